"""Interrupts are not failures: cancellation passes straight through, in the attempt and in the wait."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from functools import partial
from typing import Any

import pytest

from conftest import loop_time
from redouble import Policy, Rule, retry, retrying
from redouble.backoff import fixed
from redouble.budget import TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.testing import scripted


def test_a_task_cancelled_in_its_attempt_is_cancelled(virtual: Any) -> None:
    async def main() -> None:
        calls: list[int] = []

        @retry(on=lambda error: True, clock=loop_time)
        async def fetch() -> None:
            calls.append(1)
            await asyncio.sleep(60)

        task = asyncio.create_task(fetch())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert calls == [1]

    virtual(main)


def test_a_task_cancelled_during_its_wait_ends_within_one_turn_of_the_loop(virtual: Any) -> None:
    async def main() -> None:
        fetch = scripted(TimeoutError(), "page", asynchronous=True)
        task = asyncio.create_task(retry(base=50.0, cap=50.0, backoff=fixed)(fetch)())
        await asyncio.sleep(1)
        assert len(fetch.calls) == 1
        task.cancel()
        await asyncio.sleep(0)
        assert task.cancelled()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert not isinstance(caught.value.__context__, TimeoutError)

    virtual(main)


def test_a_task_group_whose_other_member_fails_ends_our_wait(virtual: Any) -> None:
    async def main() -> None:
        fetch = scripted(TimeoutError(), "page", asynchronous=True)

        async def sibling() -> None:
            await asyncio.sleep(1)
            raise ValueError("sibling")

        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.TaskGroup() as group:
                group.create_task(retry(base=50.0, backoff=fixed)(fetch)())
                group.create_task(sibling())
        assert caught.group_contains(ValueError, match="sibling")
        assert len(fetch.calls) == 1
        assert loop_time() == 1.0

    virtual(main)


def test_the_event_loop_runs_on_during_an_async_wait(virtual: Any) -> None:
    async def main() -> None:
        ticks: list[float] = []

        async def ticker() -> None:
            while True:
                ticks.append(loop_time())
                await asyncio.sleep(1)

        task = asyncio.create_task(ticker())
        await retry(base=5.0, backoff=fixed)(scripted(TimeoutError(), "page", asynchronous=True))()
        task.cancel()
        assert ticks == [0.0, 1.0, 2.0, 3.0, 4.0]

    virtual(main)


def test_a_block_cancelled_in_its_body_is_not_run_again(virtual: Any) -> None:
    async def main() -> None:
        numbers: list[int] = []

        async def block() -> None:
            async for attempt in retrying(on=lambda error: True, deadline=100.0, clock=loop_time):
                with attempt:
                    numbers.append(attempt.number)
                    await asyncio.sleep(60)

        task = asyncio.create_task(block())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert numbers == [1]

    virtual(main)


def test_an_async_for_left_early_leaves_nothing_to_close(virtual: Any) -> None:
    async def main() -> None:
        async for attempt in retrying(Policy(deadline=5.0, clock=loop_time)):
            with attempt:
                break
        async for attempt in retrying(attempts=2):
            async with attempt:
                return

    virtual(main)


def test_a_process_without_trio_waits_with_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "trio", raising=False)
    fetch = retry(base=0.0)(scripted(TimeoutError(), "page", asynchronous=True))
    assert asyncio.run(fetch()) == "page"


# A cancellation that the attempt has made something else of


async def reset_when_cancelled(calls: list[str]) -> str:
    calls.append("call")
    if len(calls) > 1:
        return "late"
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        raise ConnectionResetError("closed") from None
    return "never"


async def reset_by_cleanup(calls: list[str]) -> str:
    calls.append("call")
    if len(calls) > 1:
        return "late"
    try:
        await asyncio.sleep(60)
    finally:
        raise ConnectionResetError("closed")


async def reset_after_swallowing(calls: list[str]) -> str:
    calls.append("call")
    if len(calls) > 1:
        return "late"
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        pass
    raise ConnectionResetError("closed")


HIDING = [reset_when_cancelled, reset_by_cleanup, reset_after_swallowing]
WAYS = [
    {},
    {"timeout": 30.0},
    {"deadline": 30.0},
    {"idempotency_key": True},
    {"until": bool},
    {"budget": TokenBudget()},
    {"budget": TokenBudget(), "until": bool},
    {"bulkhead": Bulkhead(1)},
]


async def block(policy: Policy, attempt_it: Any, calls: list[str], *, with_await: bool) -> Any:
    async for attempt in retrying(policy):
        if with_await:
            async with attempt:
                return await attempt_it(calls)
        else:
            with attempt:
                return await attempt_it(calls)
    return None


async def scope(policy: Policy, attempt_it: Any, calls: list[str]) -> Any:
    async with retrying(policy) as call:
        return await call(attempt_it, calls)


async def stream(policy: Policy, attempt_it: Any, calls: list[str]) -> Any:
    @policy
    async def items() -> Any:
        yield await attempt_it(calls)

    return await anext(items())


FORMS: dict[str, Any] = {
    "call": lambda policy, attempt_it, calls: policy.call(attempt_it, calls),
    "plain function": lambda policy, attempt_it, calls: policy.call(lambda: attempt_it(calls)),
    "with": partial(block, with_await=False),
    "async with": partial(block, with_await=True),
    "scope": scope,
    "async generator": stream,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("attempt_it", HIDING)
def test_a_cancelled_attempt_that_raises_something_else_is_not_retried(
    virtual: Any, attempt_it: Any, form: str
) -> None:
    calls: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(ConnectionResetError) as caught:
            await asyncio.wait_for(FORMS[form](Policy(), attempt_it, calls), 0.05)
        assert loop.time() == pytest.approx(0.05)
        assert "its task was cancelled during the attempt" in caught.value.__notes__[0]

    virtual(main)
    assert calls == ["call"]


@pytest.mark.parametrize("fields", WAYS)
def test_whatever_the_policy_asks_for_a_cancelled_attempt_is_not_retried(virtual: Any, fields: Any) -> None:
    policy = Policy(fallback="fallback", **fields)
    made: list[list[str]] = [[], []]

    async def main() -> None:
        for calls in made:  # the second is a cancellation of its own, from Python 3.12 on in the same task
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(policy.call(reset_when_cancelled, calls), 0.05)

    virtual(main)
    assert made == [["call"], ["call"]]


def test_a_later_attempt_that_hides_a_cancellation_is_not_retried(virtual: Any) -> None:
    calls: list[str] = []

    async def fails_first() -> str:
        if not calls:
            calls.append("first")
            raise TimeoutError("slow")
        calls.append("call")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
        raise ConnectionResetError("closed")

    async def main() -> None:
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(Policy(base=0.01).call(fails_first), 1.0)

    virtual(main)
    assert calls == ["first", "call"]


def test_a_member_of_a_task_group_that_hides_its_cancellation_is_not_retried(virtual: Any) -> None:
    calls: list[str] = []

    async def broken() -> None:
        await asyncio.sleep(0.01)
        raise ValueError("a bug")

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(retry(reset_when_cancelled)(calls))
            group.create_task(broken())

    with pytest.raises(ExceptionGroup):
        virtual(main)
    assert calls == ["call"]


def test_a_task_group_that_fails_in_an_attempt_is_no_cancellation_of_it(virtual: Any) -> None:
    calls: list[str] = []

    async def lost() -> None:
        await asyncio.sleep(0.01)
        raise ConnectionResetError("lost")

    @retry(attempts=3, base=0.01)
    async def fetch() -> None:
        calls.append("call")
        async with asyncio.TaskGroup() as group:
            group.create_task(lost())
            group.create_task(asyncio.sleep(60))

    with pytest.raises(ExceptionGroup):
        virtual(fetch)
    assert calls == ["call"] * 3


def test_a_cancellation_beside_a_task_group_that_fails_is_not_retried(virtual: Any) -> None:
    calls: list[str] = []

    async def reset() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ConnectionResetError("lost") from None

    @retry(attempts=3, base=0.01)
    async def fetch() -> None:
        calls.append("call")
        async with asyncio.TaskGroup() as group:
            group.create_task(reset())

    async def main() -> None:
        task = asyncio.create_task(fetch())
        await asyncio.sleep(0.01)
        task.cancel()
        await task

    with pytest.raises((ExceptionGroup, asyncio.CancelledError)):
        virtual(main)
    assert calls == ["call"]


def test_a_cancelled_attempt_whose_result_is_refused_ends_as_cancelled(virtual: Any) -> None:
    calls: list[str] = []

    async def swallows() -> str:
        calls.append("call")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
        return ""

    async def again() -> None:
        async for attempt in retrying():
            with attempt:
                await swallows()
                attempt.again("no page yet")

    async def main() -> None:
        for function in (retry(until=bool)(swallows), again):
            task = asyncio.create_task(function())
            await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()

    virtual(main)
    assert calls == ["call"] * 2


@pytest.mark.parametrize("where", ["sleep", "recover"])
def test_a_cancellation_that_is_caught_during_the_wait_ends_the_call(virtual: Any, where: str) -> None:
    calls: list[str] = []

    async def swallows(_: Any) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

    async def fails() -> None:
        calls.append("call")
        raise ConnectionResetError("lost")

    fields: Any = (
        {"sleep": swallows}
        if where == "sleep"
        else {"rules": {ConnectionResetError: Rule(base=0.0, recover=swallows)}}
    )

    async def main() -> None:
        task = asyncio.create_task(Policy(**fields).call(fails))
        await asyncio.sleep(1.0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    virtual(main)
    assert calls == ["call"]


def test_a_timeout_of_ours_that_the_attempt_makes_something_else_of_is_retried(virtual: Any) -> None:
    calls: list[str] = []

    async def main() -> str:
        result: str = await Policy(timeout=0.05, base=0.01).call(reset_when_cancelled, calls)
        return result

    assert virtual(main) == "late"


@pytest.mark.parametrize("fields", [{}, {"until": bool}])
def test_a_cleanup_in_a_cancelled_task_is_retried(virtual: Any, fields: Any) -> None:
    script = scripted(*([""] if fields else []), ConnectionResetError("lost"), "clean", asynchronous=True)
    done: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            done.append(await Policy(base=0.01, **fields).call(script))

    async def main() -> None:
        task = asyncio.create_task(work())
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    virtual(main)
    assert done == ["clean"]


def test_a_cleanup_that_is_cancelled_once_more_is_not_retried(virtual: Any) -> None:
    calls: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await retry(reset_when_cancelled)(calls)

    async def main() -> None:
        task = asyncio.create_task(work())
        for _ in range(2):
            await asyncio.sleep(0.01)
            task.cancel()
        with pytest.raises(ConnectionResetError):
            await task

    virtual(main)
    assert calls == ["call"]


def test_a_task_that_lives_on_after_its_cancellation_retries_again(virtual: Any) -> None:
    # Who swallows a cancellation should call uncancel(). A first call cannot tell; later ones can.
    async def work() -> list[Any]:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
        with pytest.raises(ConnectionResetError):
            await Policy(base=0.01).call(scripted(ConnectionResetError("lost"), "page", asynchronous=True))
        return [
            await Policy(base=0.01).call(scripted(ConnectionResetError("lost"), "page", asynchronous=True))
            for _ in range(2)
        ]

    async def main() -> Any:
        task = asyncio.create_task(work())
        await asyncio.sleep(0.01)
        task.cancel()
        return await task

    assert virtual(main) == ["page", "page"]


def test_a_cancellation_counts_anew_after_an_earlier_one_was_taken_back(virtual: Any) -> None:
    calls: list[int] = []

    async def hide() -> None:
        task: Any = asyncio.current_task()
        calls.append(1)
        if len(calls) == 2:
            task.uncancel()
        if len(calls) == 3:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
        raise ConnectionResetError("lost")

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await Policy(base=0.01, attempts=9).call(hide)

    async def main() -> None:
        task = asyncio.create_task(work())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(ConnectionResetError):
            await task

    virtual(main)
    assert len(calls) == 3


def test_a_task_that_does_not_count_its_cancellations_retries_as_ever(virtual: Any) -> None:
    class Task(asyncio.tasks._PyTask):  # type: ignore[name-defined, misc]
        @property
        def cancelling(self) -> Any:
            raise AttributeError

    async def main() -> Any:
        loop = asyncio.get_running_loop()
        fetch = scripted(ConnectionResetError("lost"), "page", asynchronous=True)
        return await Task(Policy(base=0.01).call(fetch), loop=loop)

    assert virtual(main) == "page"


def test_an_error_in_a_circle_of_contexts_does_not_hold_up_a_cancelled_call(virtual: Any) -> None:
    async def circular() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
        one, other = ConnectionResetError("one"), ConnectionResetError("other")
        one.__context__, other.__context__ = other, one
        raise one

    async def main() -> None:  # not by wait_for, which such a circle holds up in Python 3.13
        task = asyncio.create_task(retry(circular)())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(ConnectionResetError):
            await task

    virtual(main)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="there are no eager tasks")
def test_an_eager_task_that_hides_its_cancellation_is_not_retried(virtual: Any) -> None:
    calls: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        task: Any = asyncio.Task(retry(reset_when_cancelled)(calls), loop=loop, eager_start=True)  # type: ignore[call-arg]
        task.cancel()
        with pytest.raises(ConnectionResetError):
            await task

    virtual(main)
    assert calls == ["call"]


class Unreadable(Exception):
    """An error with attributes that cannot be read."""

    @property
    def __context__(self) -> Any:
        raise RuntimeError("no context")

    @property
    def __traceback__(self) -> Any:
        raise RuntimeError("no traceback")


def test_an_error_that_cannot_be_read_is_raised_itself_in_a_cancelled_task(virtual: Any) -> None:
    error = Unreadable("mine")

    async def main() -> None:
        @retry(on=Unreadable, clock=loop_time)
        async def fetch() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                raise error

        task = asyncio.create_task(fetch())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(Unreadable) as caught:
            await task
        assert caught.value is error

    virtual(main)
