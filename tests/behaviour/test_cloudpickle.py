"""Wrappers can be sent by value, as cloudpickle does with local functions and those of ``__main__``.

That needs no cloudpickle to see: whatever a wrapper names or holds must be found by its name on the other side,
or pickle. ``tests/interop`` has the same with the real one.
"""

from __future__ import annotations

import pickle
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

from redouble import retry
from redouble.budget import TokenBudget
from redouble.hedging import hedge


def fetch() -> None: ...
async def fetch_async() -> None: ...
def items() -> Any:
    yield


async def items_async() -> Any:
    yield


def accept(result: object) -> bool:
    return True


class Wanting:
    """A listener that hears of every success."""

    successes = True

    def __call__(self, event: object) -> None: ...


def names(code: CodeType) -> set[str]:
    """The names that a function uses, and the functions inside it."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return {*code.co_names}.union(*map(names, inner))


def found_by_name(thing: Any) -> bool:
    """Whether it is imported on the other side, not sent."""
    if isinstance(thing, ModuleType):
        return True
    try:
        return bool(pickle.loads(pickle.dumps(thing)) is thing)
    except Exception:
        return False


def sent(function: FunctionType, seen: set[int]) -> list[str]:
    """What of a function could not be sent by value."""
    if id(function) in seen:
        return []
    seen.add(id(function))
    wrong: list[str] = []
    globals_ = {
        name: function.__globals__[name] for name in names(function.__code__) if name in function.__globals__
    }
    for name, thing in globals_.items():
        # A value would be a copy on the other side: a dict that nobody writes to, a variable that nobody sets.
        if not found_by_name(thing) and not isinstance(thing, (int, str, float)):
            wrong.append(f"global {name}")
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        thing = cell.cell_contents
        if isinstance(thing, FunctionType) and not found_by_name(thing):
            wrong += sent(thing, seen)
        elif not isinstance(thing, FunctionType):
            try:
                pickle.dumps(thing)
            except Exception as error:
                wrong.append(f"{name}: {error}")
    return wrong


POLICIES: dict[str, Any] = {
    "bare": {},
    "judged": {"until": accept},
    "known": {"deadline": 5.0},
    "timeout": {"timeout": 5.0},
    "key": {"idempotency_key": True},
    "both": {"deadline": 5.0, "until": accept},
    "full": {"listeners": [Wanting()]},
}


@pytest.mark.parametrize("fields", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("function", [fetch, fetch_async, items, items_async])
def test_a_wrapper_names_and_holds_only_what_can_be_sent(function: Any, fields: Any) -> None:
    if "until" in fields and function in (items, items_async):
        fields = {**fields, "until": None}
    wrapper = retry(**fields)(function)
    if function is fetch:
        wrapper()  # what it remembers of results must not stand in the way
    assert sent(wrapper, set()) == []


@pytest.mark.parametrize("function", [fetch, fetch_async])
def test_a_hedged_function_can_be_sent_too(function: Any) -> None:
    assert sent(hedge(after=1.0)(function), set()) == []


def test_a_guard_cannot_be_sent_and_says_so() -> None:
    assert "TokenBudget" in " ".join(sent(retry(budget=TokenBudget())(fetch), set()))


def test_the_type_of_a_result_that_cannot_be_sent_is_forgotten() -> None:
    wrapper = retry(lambda: (one for one in ()))
    wrapper()
    assert sent(wrapper, set()) == []
