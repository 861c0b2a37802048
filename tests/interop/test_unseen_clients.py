"""How many failures of libraries that no table names are classified correctly.

The package ``unseen`` has the libraries and the right verdicts; each lot has to reach the goals by itself.
"""

from __future__ import annotations

import gc
import importlib.util
import warnings
from typing import TYPE_CHECKING, NamedTuple

import pytest

from interop.unseen import services, systems  # noqa: F401 - they fill LIBRARIES
from interop.unseen.failures import LIBRARIES, Failure, failures_of
from interop.unseen.second_lot import SECOND
from redouble.classify import verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from interop.server import Web

RIGHT = 0.90
WRONGLY_RETRIED = 0.01
# With fewer libraries, a share says nothing.
ENOUGH = 15

LOTS = {"first": LIBRARIES, "second": SECOND}
ALL = {**LIBRARIES, **SECOND}
MISSING = {name for name, (module, _) in ALL.items() if importlib.util.find_spec(module) is None}

pytestmark = pytest.mark.filterwarnings("ignore")


class Judged(NamedTuple):
    """One failure and redouble's verdict."""

    failure: Failure
    error: Exception
    retryable: bool
    unprocessed: bool
    reason: str

    @property
    def wrongly_unprocessed(self) -> bool:
        return self.retryable and self.unprocessed and not self.failure.right.may_be_unprocessed

    @property
    def wrongly_retried(self) -> bool:
        return self.retryable and not self.failure.right.retryable

    @property
    def right(self) -> bool:
        return self.retryable == self.failure.right.retryable and not self.wrongly_unprocessed

    def __str__(self) -> str:
        if self.wrongly_retried:
            word = "wrongly retried"
        elif self.wrongly_unprocessed:
            word = "wrongly unprocessed"
        else:
            word = "not retried"
        kind = f"{type(self.error).__module__}.{type(self.error).__qualname__}"
        return f"{word}: {self.failure.title} ({self.failure.why}); {kind}; redouble: {self.reason}"


@pytest.fixture(scope="module")
def judged(web: Web) -> Iterator[dict[str, list[Judged]]]:
    """The verdicts on every failure of every installed library."""
    found: dict[str, list[Judged]] = {}
    for name, (_, library) in ALL.items():
        if name in MISSING:
            continue
        found[name] = []
        for failure, error in failures_of(library, web):
            said = verdict(error)
            found[name].append(Judged(failure, error, said.retryable, said.unprocessed, said.reason))
    yield found
    found.clear()
    with warnings.catch_warnings():  # sessions that libraries leave open
        warnings.simplefilter("ignore")
        gc.collect()


def table(judged: dict[str, list[Judged]]) -> str:
    """Format the figures of each library and its misses."""
    lines: list[str] = []
    for name, cases in judged.items():
        lines.append(f"{name:25} {sum(case.right for case in cases):3} / {len(cases)}")
        lines += [f"    {case}" for case in cases if not case.right]
    every = [case for cases in judged.values() for case in cases]
    good, retried, unprocessed = (
        sum(case.right for case in every),
        sum(case.wrongly_retried for case in every),
        sum(case.wrongly_unprocessed for case in every),
    )
    share = good / max(1, len(every))
    lines.append(f"{'all':25} {good:3} / {len(every)} = {share:.1%} right")
    lines.append(f"wrongly retried: {retried}, wrongly unprocessed: {unprocessed}")
    return "\n".join(lines)


@pytest.mark.parametrize("name", ALL)
def test_each_library_fails_in_at_least_six_ways_of_which_some_are_permanent(
    judged: dict[str, list[Judged]], name: str
) -> None:
    if name in MISSING:
        pytest.skip(f"{name} is not installed; the extra 'unseen' is needed")
    cases = judged[name]
    assert len(cases) >= 6
    assert {case.failure.right.retryable for case in cases} == {True, False}
    assert len({case.failure.title for case in cases}) == len(cases)


@pytest.mark.parametrize("lot", LOTS)
def test_failures_of_unknown_libraries_are_judged_rightly(judged: dict[str, list[Judged]], lot: str) -> None:
    found = {name: judged[name] for name in LOTS[lot] if name not in MISSING}
    if len(found) < ENOUGH:
        missing = ", ".join(LOTS[lot].keys() & MISSING)
        pytest.skip(f"not installed: {missing}; the extra 'unseen' is needed")
    figures = table(found)
    print(figures)
    every = [case for cases in found.values() for case in cases]
    assert not any(case.wrongly_unprocessed for case in every), figures
    assert sum(case.wrongly_retried for case in every) <= max(1, WRONGLY_RETRIED * len(every)), figures
    assert sum(case.right for case in every) >= RIGHT * len(every), figures
