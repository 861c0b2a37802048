"""The two loops are one: same steps in the same order, but for the awaits."""

from __future__ import annotations

import ast
import inspect
from types import ModuleType

import pytest

from redouble import _async, _sync

SHARED = ["wrap", "_wrap_bare", "resume", "again", "within", "pause", "_recover"]


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
# code can be cut off; sync code is warned about where it would block a loop.
ONLY_SYNC = {"_really",
    "type", "_async.take_over", "_async.carry_on", "in_event_loop", "warn_blocking", "sleep", "outcome.close", "recover",
}  # fmt: skip
ONLY_ASYNC = {"_finished", "call.time_left", "time_limit_of", "time_limit", "timed_out", "sleep", "recover"}


@pytest.mark.parametrize("name", SHARED)
def test_both_loops_take_the_same_steps_in_the_same_order(name: str) -> None:
    sync_steps = [step for step in calls(_sync, name) if step not in ONLY_SYNC]
    async_steps = [step for step in calls(_async, name) if step not in ONLY_ASYNC]
    if name == "within":  # one call of the function, written twice in async: with and without a limit
        async_steps = [step for place, step in enumerate(async_steps) if step not in async_steps[:place]]
    assert sync_steps == async_steps


def test_the_first_attempt_of_a_full_policy_takes_the_same_steps() -> None:
    sync_steps = [step for step in calls(_sync, "_wrap_full") if step not in ONLY_SYNC]
    # The async one stands in two functions, and its attempt in `within`.
    async_steps = [*calls(_async, "_wrap_full"), *calls(_async, "start")]
    inline = ["current.set", "function", "current.reset"]
    sync_steps = [step for step in sync_steps if step not in ("current.get", "clock")]  # made on the spot
    assert [step for step in sync_steps if step not in inline and step != "until"] == [
        step for step in async_steps if step not in ("start", "within", "policy.until")
    ]
    assert [step for step in sync_steps if step in inline] == calls(_sync, "within")
