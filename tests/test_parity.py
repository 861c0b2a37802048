"""The two loops are one: same steps in the same order, but for the awaits."""

from __future__ import annotations

import ast
import inspect
from types import ModuleType

import pytest

from redouble import _async, _async_first, _sync, _sync_first

LOOP = [
    "start",
    "begin",
    "take_place",
    "admit",
    "_enter",
    "resume",
    "again",
    "within",
    "succeeded",
    "pause",
    "_recover",
]
FIRST = ["wrap", "_wrap_bare", "_wrap_judged", "_wrap_guarded", "_wrap_watched", "_wrap_full"]


class _Levelled(ast.NodeTransformer):
    """Takes away what only one flavour has."""

    def visit_Await(self, node: ast.Await) -> ast.AST:
        return self.visit(node.value)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        plain = ast.FunctionDef(
            name=node.name,
            args=node.args,
            body=node.body,
            decorator_list=node.decorator_list,
            returns=node.returns,
        )
        return self.generic_visit(plain)


def calls(module: ModuleType, name: str) -> list[str]:
    """The names a function calls, in the order of its source."""
    function = ast.parse(inspect.getsource(getattr(module, name)))
    levelled = _Levelled().visit(function)
    names = [node for node in ast.walk(levelled) if isinstance(node, ast.Call)]
    names.sort(key=lambda node: (node.lineno, node.col_offset))
    return [ast.unparse(node.func) for node in names]


# What one flavour has and the other cannot: coroutines are handed over from sync to async, and only async
# code can be cut off or cancelled, or awaits a guard; sync code is warned about where it would block a loop.
ONLY_SYNC = {
    "type", "Usual", "is_awaited", "take_over", "_async.carry_on", "in_event_loop", "warn_blocking", "_really",
    "outcome.close", "recover",
}  # fmt: skip
ONLY_ASYNC = {
    "_finished", "call.time_left", "time_limit_of", "time_limit", "timed_out", "limit.cut_off", "_heard", "recover",
    "cancelled", "heed",
}  # fmt: skip
# The same step under two names.
TWINS = {"bulkhead.acquire_async": "bulkhead.acquire"}


def steps(module: ModuleType, name: str, only: set[str]) -> list[str]:
    return [TWINS.get(step, step) for step in calls(module, name) if step not in only]


@pytest.mark.parametrize("name", LOOP)
def test_both_loops_take_the_same_steps_in_the_same_order(name: str) -> None:
    sync_steps, async_steps = steps(_sync, name, ONLY_SYNC), steps(_async, name, ONLY_ASYNC)
    # Written twice: with and without a limit, in async; with and without a context, in both.
    if name == "within":
        sync_steps, async_steps = [[*dict.fromkeys(these)] for these in (sync_steps, async_steps)]
    if name == "take_place":  # a sync call asks for the time left, which is the same step
        sync_steps = [step for step in sync_steps if step != "call.time_left"]
    assert sync_steps == async_steps


@pytest.mark.parametrize("name", FIRST)
def test_both_ways_of_a_first_attempt_take_the_same_steps(name: str) -> None:
    assert steps(_sync_first, name, ONLY_SYNC) == steps(_async_first, name, ONLY_ASYNC)


def test_a_failure_takes_the_same_steps_but_for_a_budget_that_must_be_awaited() -> None:
    async_steps = [
        step for step in steps(_async, "failed", ONLY_ASYNC) if step not in ("isinstance", "_afford")
    ]
    assert sorted(steps(_sync, "failed", ONLY_SYNC)) == sorted(async_steps)


def test_a_first_attempt_that_knows_of_itself_takes_the_same_steps() -> None:
    sync_steps = steps(_sync_first, "_wrap_known", ONLY_SYNC)
    # The async one stands in two functions, and its attempt in `within`.
    async_steps = [*steps(_async_first, "_wrap_known", ONLY_ASYNC), *steps(_async_first, "known", ONLY_ASYNC)]
    inline = ["current.set", "function", "current.set", "current.reset"]
    sync_steps = [
        step for step in sync_steps if step not in ("current.get", "time.monotonic")
    ]  # made on the spot
    assert [step for step in sync_steps if step not in inline and step != "until"] == [
        step for step in async_steps if step not in ("known", "within", "policy.until")
    ]
    assert [step for step in sync_steps if step in inline] == inline


@pytest.mark.parametrize(("one", "other"), [(_sync, _async), (_sync_first, _async_first)])
def test_what_one_loop_offers_the_other_offers_too(one: ModuleType, other: ModuleType) -> None:
    def offered(module: ModuleType) -> set[str]:
        functions = {name for name, value in vars(module).items() if inspect.isfunction(value)}
        return {name for name in functions if vars(module)[name].__module__ == module.__name__}

    only_sync = {"_really", "warn_blocking", "_level_of_caller"}
    only_async = {
        "time_limit_of", "timed_out", "_finished", "under", "carry_on", "awaiting", "take_over",
        "known", "_afford", "_heard", "_slept", "onlookers", "tell_onlookers",
    }  # fmt: skip
    assert offered(one) - only_sync == offered(other) - only_async
