"""`policy.call` and calls in a scope: the first attempt is made at once, and all else is as in `@retry`."""

from __future__ import annotations

import asyncio
import functools
import gc
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from redouble import Policy, Rule, policy, retrying
from redouble.testing import no_waits, scripted


def by_policy(chosen: Policy, function: Any, *args: Any, **kwargs: Any) -> Any:
    return chosen.call(function, *args, **kwargs)


def by_scope(chosen: Policy, function: Any, *args: Any, **kwargs: Any) -> Any:
    with retrying(chosen) as call:
        return call(function, *args, **kwargs)


def by_scope_elsewhere(chosen: Policy, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call by a scope whose deadline does not hold in this context."""
    with retrying(chosen.replace(deadline=1e6)) as call:
        pass
    return call(function, *args, **kwargs)


Caller = Callable[..., Any]
EVERY_WAY = pytest.mark.parametrize("call", [by_policy, by_scope, by_scope_elsewhere])


class Client:
    def __init__(self, *outcomes: object) -> None:
        self.next = scripted(*outcomes)

    def get(self, url: str, *, depth: int = 1) -> tuple[str, int, object]:
        return url, depth, self.next()


def kinds_of(client: Client) -> dict[str, Any]:
    def plain(url: str, *, depth: int = 1) -> Any:
        return client.get(url, depth=depth)

    @functools.wraps(plain)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return plain(*args, **kwargs)

    class Instance:
        __call__ = staticmethod(plain)

    return {
        "function": plain,
        "lambda": lambda *args, **kwargs: plain(*args, **kwargs),
        "method": client.get,
        "partial": functools.partial(plain),
        "wrapped": wrapped,
        "instance": Instance(),
    }


@EVERY_WAY
@pytest.mark.parametrize("kind", kinds_of(Client()))
def test_every_kind_of_function_is_retried_with_the_same_arguments(call: Caller, kind: str) -> None:
    function = kinds_of(Client(TimeoutError("slow"), OSError(104, "reset"), "page"))[kind]
    with no_waits() as waits:
        assert call(Policy(on=OSError), function, "/", depth=2) == ("/", 2, "page")
    assert len(waits) == 2


@EVERY_WAY
def test_a_success_at_once_needs_no_wait_and_any_result_is_one(call: Caller) -> None:
    for result in (None, 0, "", object(), functools.partial(int)):

        def answer(value: Any = result) -> Any:
            return value

        assert call(Policy(), answer) is result


def test_an_error_has_two_frames_of_ours_and_then_those_of_the_function() -> None:
    def fetch() -> None:
        raise TimeoutError("slow")

    for attempts in (1, 2):
        with no_waits(), pytest.raises(TimeoutError) as caught:
            Policy(attempts=attempts).call(fetch)
        frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)[1:]]
        assert frames == ["call", "drive", "fetch"]
        assert "gave up on" in caught.value.__notes__[0]
        assert "fetch after" in caught.value.__notes__[0]


def test_an_interrupt_passes_straight_through() -> None:
    def fetch() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        Policy(on=lambda error: True).call(fetch)
    assert [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)[1:]] == [
        "call",
        "once",
        "fetch",
    ]


@EVERY_WAY
def test_a_plain_function_that_returns_a_coroutine_is_awaited_and_retried(call: Caller) -> None:
    fetch = scripted(TimeoutError("slow"), "page", asynchronous=True)

    async def main() -> Any:
        return await call(Policy(), lambda: fetch())

    with no_waits() as waits:
        assert asyncio.run(main()) == "page"
    assert len(waits) == 1


@EVERY_WAY
def test_generators_are_retried_until_their_first_item(call: Caller) -> None:
    outcome = scripted(TimeoutError("slow"), "item")

    def items() -> Any:
        yield outcome()

    with no_waits() as waits:
        assert list(call(Policy(), items)) == ["item"]
    assert len(waits) == 1


@EVERY_WAY
def test_a_function_of_the_policy_that_may_be_async_is_refused_in_a_sync_call(call: Caller) -> None:
    async def hook(*args: Any) -> None:
        """Be async."""

    accepting = []
    for name, field in policy._FIELDS.items():
        given: Any = {Exception: Rule(recover=hook)} if name == "rules" else hook
        try:
            field.check(name, given)
        except (TypeError, ValueError):
            continue
        accepting.append(name)
        with pytest.raises(TypeError, match="must be sync too"):
            call(Policy(**{name: given}), lambda: "page")
    assert {"rules", "fallback", "sleep"} <= {*accepting}


@EVERY_WAY
def test_the_limits_and_guards_of_a_policy_hold(call: Caller) -> None:
    with no_waits(), pytest.raises(TimeoutError, match="slow"):
        call(Policy(attempts=2, until=bool), scripted(0, TimeoutError("slow"), 1))
    assert call(Policy(fallback=7, attempts=1), scripted(TimeoutError("slow"))) == 7


@pytest.mark.parametrize("outcome", ["page", TimeoutError("slow")])
def test_nothing_of_a_call_outlives_it(outcome: Any) -> None:
    class Argument:
        """Something that is watched."""

    def fetch(argument: Argument) -> Any:
        if isinstance(outcome, Exception):
            raise TimeoutError("slow")
        return outcome

    argument = Argument()
    watch = weakref.ref(argument)
    gc.disable()
    try:
        with no_waits():
            try:
                Policy(attempts=2).call(fetch, argument)
            except TimeoutError:
                pass
        del argument
        assert watch() is None
    finally:
        gc.enable()
