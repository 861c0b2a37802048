"""Run both sides of the pages "coming from" another library, and compare them where possible.

How such a page is read:

- A block fenced as ``python had NAME`` is code for that library. It is always compiled, and run if the library is
  installed, block after block in one namespace, without waiting. ``python had`` alone needs no library.
- The first ``python`` block and the first ``python had`` block define the names that the rows of the tables need.
- In a table that begins with ``| you had | you write |`` all code of these two columns is run: ``@decorator`` on a function
  that is then called, ``keyword=...`` as settings, anything else as it is.
- Below a heading that begins with ``Waits`` both sides must have the same waits, for any random numbers.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib.util
import inspect
import io
import logging
import random
import re
import time
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from redouble import Policy
from redouble.testing import no_waits
from support.pages import DOCS, HAD, Block, blocks, pairs, without_figures

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PAGES = sorted((DOCS / "coming-from").glob("*.md"))
FAILURES = 7

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


class Row(NamedTuple):
    """One row of a table: its heading, the code for the other library, the code for redouble."""

    heading: str
    had: list[str]
    write: list[str]


def rows(page: Path) -> list[Row]:
    found, heading, in_table = [], "", False
    for line in page.read_text("utf-8").splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        if not line.startswith("|"):
            in_table = False
        elif line.startswith("| you had | you write |"):
            in_table = True
        elif in_table and not line.startswith("|---"):
            cells = [cell.replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            found.append(Row(heading, *(re.findall(r"`([^`]+)`", cell) for cell in cells[:2])))
    return found


def settings(code: str) -> bool:
    """Return whether a piece of code is only keyword arguments."""
    try:
        [statement] = ast.parse(f"made({code})").body
    except (SyntaxError, ValueError):
        return False
    call: Any = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and not call.args and bool(call.keywords)


def run(code: str, namespace: dict[str, Any], made: Callable[..., Any]) -> None:
    """Run one piece of code from a table."""
    if code.startswith("@"):
        code = f"{code}\ndef decorated(*args, **kwargs):\n    return 'page'\nassert decorated() == 'page'"
    elif settings(code):
        namespace, code = {**namespace, "made": made}, f"made({code})"
    exec(compile(code, f"<{code}>", "exec"), namespace)


def first(page: Path, *, had: bool) -> Block:
    return next(block for block in blocks(page) if (block.was_had if had else block.is_code))


def prepared(page: Path, *, had: bool) -> dict[str, Any]:
    """Return the names that the rows of the tables on a page need."""
    namespace: dict[str, Any] = {"__name__": "page"}
    block = first(page, had=had)
    if block.needs is not None:
        pytest.skip(f"{block.needs} is not installed")
    with contextlib.redirect_stdout(io.StringIO()):
        exec(block.text, namespace)
    return namespace


def library(page: Path) -> str | None:
    """Return the library of a page; skip the test if it is not installed."""
    name = first(page, had=True).fence.removeprefix(HAD).strip()
    if name:
        pytest.importorskip(name)
    return name or None


# How each library takes what its tables show as bare keywords.
THEIRS: dict[str | None, str] = {
    "tenacity": "Retrying(**{'stop': stop_after_attempt(9), **given})",
    "backoff": "backoff.on_exception(backoff.expo, OSError, **given)",
    "stamina": "stamina.retry(**{'on': OSError, **given})",
    "urllib3": "Retry(**given)",
}


def theirs(name: str | None, namespace: dict[str, Any]) -> Callable[..., Any]:
    return lambda **given: eval(THEIRS[name], namespace, {"given": given})


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record and skip the waits by ``time.sleep`` and ``asyncio.sleep``."""
    written: list[float] = []
    yielded, now = asyncio.sleep, time.time

    async def skipped(seconds: float, result: object = None) -> object:
        written.append(seconds)
        return await yielded(0, result)

    monkeypatch.setattr(time, "sleep", written.append)
    monkeypatch.setattr(time, "time", lambda: now() + sum(written))
    monkeypatch.setattr(asyncio, "sleep", skipped)
    return written


@every_page
def test_what_you_had_compiles(page: Path) -> None:
    for block in blocks(page):
        if block.was_had:
            compile("\n" * block.line + block.text, str(page), "exec")


@every_page
@pytest.mark.usefixtures("waits")
def test_what_you_had_runs_and_prints_what_the_page_shows(page: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "page"}
    missing: set[str] = set()
    for block, following in pairs(blocks(page)):
        name = block.fence.removeprefix(HAD).strip() if block.was_had else ""
        if name and importlib.util.find_spec(name) is None:
            missing.add(name)
        if not block.was_had or name in missing:
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what other packages say of themselves
            exec(compile("\n" * block.line + block.text, str(page), "exec"), namespace)
        shown = following.text if following is not None and following.fence == "text" else ""
        assert without_figures(printed.getvalue()) == without_figures(shown), (
            f"{page.name}, line {block.line}"
        )
    if missing:
        pytest.skip(f"the rest ran; not installed: {', '.join(sorted(missing))}")


@pytest.fixture
def logs_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo the changes that a row makes to the logger."""
    logger = logging.getLogger("redouble")
    monkeypatch.setattr(logger, "level", logger.level)
    monkeypatch.setattr(logger, "filters", list(logger.filters))
    monkeypatch.setattr(logger, "_cache", {})


@every_page
@pytest.mark.usefixtures("logs_stay")
def test_every_piece_of_code_that_a_table_tells_you_to_write_runs(page: Path) -> None:
    namespace = prepared(page, had=False)
    with no_waits():
        for row in rows(page):
            for code in row.write:
                run(code, dict(namespace), Policy)


@every_page
@pytest.mark.usefixtures("waits")
def test_every_piece_of_code_that_a_table_says_you_had_runs(page: Path) -> None:
    name = library(page)
    namespace = prepared(page, had=True)
    for row in rows(page):
        for code in row.had:
            run(code, dict(namespace), theirs(name, namespace))


def fail() -> None:
    raise OSError("no")


def waits_of_ours(code: str, namespace: dict[str, Any]) -> list[float]:
    def made(**given: Any) -> None:
        policy = Policy(**given).replace(on=OSError, attempts=FAILURES + 1)
        with contextlib.suppress(OSError):
            policy.call(fail)

    with no_waits() as skipped:
        run(code, namespace, made)
    return list(skipped)


def waits_of_urllib3(code: str, namespace: dict[str, Any]) -> list[float]:
    retries: list[Any] = []
    run(code, namespace, lambda **given: retries.append(namespace["Retry"](total=FAILURES, **given)))
    found = []
    for _ in range(FAILURES):
        retries.append(retries[-1].increment("GET", "/", error=OSError("no")))
        found.append(retries[-1].get_backoff_time())
    return found


def waits_of_theirs(
    name: str | None, code: str, namespace: dict[str, Any], slept: list[float]
) -> list[float]:
    if name == "urllib3":
        return waits_of_urllib3(code, namespace)
    slept.clear()

    def made(**given: Any) -> None:
        limits: dict[str, Any] = {"stamina": {"attempts": FAILURES + 1, "timeout": None}}.get(name or "", {})
        made = theirs(name, namespace)(**limits, **given)
        with contextlib.suppress(Exception):
            made(fail)() if name == "stamina" else made(fail)

    if code.startswith("@"):  # a decorator that says what it retries, as those of backoff
        decorate = eval(code[1:], namespace)
        with contextlib.suppress(OSError):
            decorate(fail)()
    else:
        run(code, namespace, made)
    return slept[:FAILURES]


COMPARED = [(page, row) for page in PAGES for row in rows(page) if row.heading.startswith("Waits")]


@pytest.mark.parametrize("draw", ["the least", "the most"])
@pytest.mark.parametrize(
    ("page", "row"), COMPARED, ids=[f"{page.stem}: {row.had and row.had[0]}" for page, row in COMPARED]
)
def test_what_you_write_waits_as_long_as_what_you_had(
    page: Path, row: Row, draw: str, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = library(page)
    least = draw == "the least"
    monkeypatch.setattr(random, "uniform", lambda low, high: low if least else high)
    monkeypatch.setattr(random, "random", lambda: 0.0 if least else 1.0)
    had = waits_of_theirs(name, row.had[0], prepared(page, had=True), waits)
    write = waits_of_ours(row.write[0], prepared(page, had=False))
    assert len(had) == FAILURES
    assert write == pytest.approx(had)


# What the pages say of the others, beyond what their code shows. If one of these fails, a page is out of date.


def test_tenacity_as_the_page_describes_it(waits: list[float]) -> None:
    tenacity = pytest.importorskip("tenacity")
    bare = tenacity.Retrying()
    assert bare.stop is tenacity.stop_never
    assert bare.wait(None) == 0
    with pytest.raises(tenacity.RetryError):
        tenacity.Retrying(stop=tenacity.stop_after_attempt(2))(fail)

    outcomes = [KeyboardInterrupt(), "went on"]

    def interrupted() -> str:
        outcome = outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    anything_else = tenacity.retry_if_not_exception_type(ValueError)
    assert tenacity.Retrying(retry=anything_else)(interrupted) == "went on"
    limits = tenacity.stop_any(tenacity.stop_after_delay(60), tenacity.stop_after_attempt(2))
    with pytest.raises(tenacity.RetryError):
        tenacity.Retrying(stop=limits, wait=tenacity.wait_fixed(999))(fail)
    assert waits[-1:] == [999], "it sleeps, whatever is left of its time"


def test_backoff_as_the_page_describes_it(waits: list[float]) -> None:
    backoff = pytest.importorskip("backoff")
    calls: list[int] = []

    @backoff.on_exception(backoff.constant, OSError, interval=999, max_time=5, max_tries=2, jitter=None)
    def down() -> None:
        calls.append(1)
        fail()

    with pytest.raises(OSError, match="no"):
        down()
    assert len(calls) == 2
    assert waits[0] == pytest.approx(5, abs=0.5), "the last wait is shortened, and one more attempt begins"


def test_stamina_as_the_page_describes_it() -> None:
    stamina = pytest.importorskip("stamina")
    breaks = [True]

    @stamina.retry(on=OSError, attempts=2)
    def items() -> Any:
        yield 1
        if breaks.pop():
            breaks.append(False)
            fail()
        yield 2

    with stamina.set_testing(True, attempts=2):
        assert list(items()) == [1, 1, 2], "the first items are seen twice"
    defaults = stamina.RetryingCaller()._context_kws
    assert (defaults["attempts"], defaults["timeout"]) == (10, 45.0)
    assert (defaults["wait_initial"], defaults["wait_max"], defaults["wait_jitter"]) == (0.1, 5.0, 1.0)


def test_urllib3_as_the_page_describes_it() -> None:
    pytest.importorskip("urllib3")
    from urllib3.exceptions import ReadTimeoutError, SSLError
    from urllib3.util import Retry

    certificate = Retry(3).increment("POST", "/", error=SSLError("certificate verify failed"))
    assert certificate.total == 2, "it is retried, and a POST at that"
    with pytest.raises(ReadTimeoutError):
        Retry(3).increment("POST", "/", error=ReadTimeoutError(None, "/", "slow"))  # type: ignore[arg-type]
    assert not Retry(3).is_retry("GET", 503)
    assert {
        status for status in range(400, 600) if Retry(3).is_retry("GET", status, has_retry_after=True)
    } == {413, 429, 503}
    assert Retry(3).get_backoff_time() == 0
    assert Retry.DEFAULT_RETRY_AFTER_MAX == 6 * 3600
    off = Retry.from_int(False)
    assert (off.total, off.redirect, off.raise_on_redirect) == (False, 0, False)


def test_the_page_on_urllib3_has_every_parameter_of_its_retry() -> None:
    pytest.importorskip("urllib3")
    from urllib3.util import Retry

    page = (DOCS / "coming-from" / "urllib3.md").read_text("utf-8")
    missing = [
        name for name in inspect.signature(Retry).parameters if not re.search(rf"`[^`]*\b{name}\b", page)
    ]
    assert missing == []


def test_httpx_retries_as_the_page_describes_it() -> None:
    pytest.importorskip("httpx_retries")
    from httpx_retries import Retry

    bare = Retry()
    assert (bare.total, bare.backoff_factor) == (10, 0.0)
    assert {int(status) for status in bare.status_forcelist} == {429, 502, 503, 504}
    first = Retry(backoff_factor=0.5, backoff_jitter=0.0).increment()
    assert first.backoff_strategy() == 1.0


def test_aiohttp_retry_as_the_page_describes_it() -> None:
    pytest.importorskip("aiohttp_retry")
    from aiohttp_retry import ExponentialRetry, ListRetry

    options = ExponentialRetry(start_timeout=0.5, factor=2.0, max_timeout=3.0)
    assert [options.get_timeout(attempt) for attempt in (1, 2, 3)] == [1.0, 2.0, 3.0]
    assert (options.attempts, options.exceptions) == (3, set())
    assert options.retry_all_server_errors
    assert "POST" in options.methods
    assert ListRetry([0.1, 1.0, 5.0]).get_timeout(1) == 1.0


def test_requests_does_not_retry_by_itself() -> None:
    requests = pytest.importorskip("requests")
    retries = requests.Session().get_adapter("https://pay.example").max_retries
    assert (retries.total, retries.read) == (0, False)


def test_every_page_pairs_what_was_had_with_what_is_written() -> None:
    without_rows = {"loops", "httpx-retries", "aiohttp-retry"}
    assert {page.stem for page in PAGES} - without_rows == {"backoff", "stamina", "tenacity", "urllib3"}
    for page in PAGES:
        assert page.stem in without_rows or len(rows(page)) >= 10
        assert any(block.was_had for block in blocks(page))
    assert len(COMPARED) >= 25


@pytest.mark.parametrize(
    ("code", "expected"),
    [("attempts=5", True), ("base=1.0, cap=2.0", True), ("@retry(on=OSError)", False), ("len('a')", False)],
)
def test_settings_are_told_from_other_code(code: str, expected: bool) -> None:
    assert settings(code) is expected
