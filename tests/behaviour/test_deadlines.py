"""A deadline is true: nothing sleeps past it, it counts the running attempt, it travels to nested calls."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from conftest import Flavour, VirtualLoop, loop_time
from redouble import DeadlineExceeded, Policy, ResultRejected, Rule, current_attempt, retry, retrying
from redouble.backoff import exponential, fixed
from redouble.events import Expired, Retrying
from redouble.testing import FakeClock, scripted


def steady(clock: FakeClock, **fields: Any) -> Policy:
    return Policy(backoff=exponential, clock=clock, sleep=clock.sleep).replace(**fields)


def always(error: Exception, flavour: Flavour) -> Any:
    def raises() -> None:
        raise error

    return flavour.function(raises)


def test_a_wait_that_would_pass_the_deadline_is_never_started(flavour: Flavour, clock: FakeClock) -> None:
    policy = steady(clock, on=OSError, attempts=9, deadline=5.0)
    with pytest.raises(DeadlineExceeded):
        flavour.call(policy, always(OSError("no route to host"), flavour))
    assert clock.waits == [1.0, 2.0]  # the third wait, 4 s, would end at 7 s


def test_a_first_wait_longer_than_the_deadline_is_not_slept_at_all(
    flavour: Flavour, clock: FakeClock
) -> None:
    with pytest.raises(DeadlineExceeded) as caught:
        flavour.call(steady(clock, base=5.0, deadline=1.0), always(TimeoutError("slow"), flavour))
    assert clock.waits == []
    assert caught.value.attempts == 1
    assert isinstance(caught.value.__cause__, TimeoutError)


def test_a_deadline_error_is_a_timeout_error(flavour: Flavour, clock: FakeClock) -> None:
    with pytest.raises(TimeoutError):
        flavour.call(steady(clock, deadline=0.5), always(ConnectionResetError(), flavour))


def test_without_attempts_the_deadline_alone_ends_the_call(flavour: Flavour, clock: FakeClock) -> None:
    policy = steady(clock, attempts=None, backoff=fixed, deadline=50.0)
    with pytest.raises(DeadlineExceeded) as caught:
        flavour.call(policy, always(TimeoutError(), flavour))
    assert caught.value.attempts == 50
    assert sum(clock.waits) == 49.0


def test_the_cost_of_attempts_counts_against_the_deadline(flavour: Flavour, clock: FakeClock) -> None:
    def slow() -> None:
        clock.advance(3.0)
        raise TimeoutError

    with pytest.raises(DeadlineExceeded) as caught:
        flavour.call(steady(clock, deadline=8.5), flavour.function(slow))
    assert caught.value.attempts == 2  # 3 s, wait 1 s, 3 s: the next wait, 2 s, would end at 9 s
    assert caught.value.elapsed == 7.0


def test_a_success_that_comes_after_the_deadline_is_still_returned_by_sync_code(clock: FakeClock) -> None:
    def slow() -> str:
        clock.advance(60.0)
        return "late"

    assert steady(clock, deadline=5.0).call(slow) == "late"


def test_a_failure_that_comes_after_the_deadline_is_not_retried(flavour: Flavour, clock: FakeClock) -> None:
    def slow() -> str:
        clock.advance(60.0)
        raise TimeoutError

    with pytest.raises(DeadlineExceeded, match="the deadline of 5 s has passed"):
        flavour.call(steady(clock, deadline=5.0), flavour.function(slow))
    assert clock.waits == []


def test_a_permanent_failure_after_the_deadline_stays_itself(flavour: Flavour, clock: FakeClock) -> None:
    def slow() -> str:
        clock.advance(60.0)
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        flavour.call(steady(clock, deadline=5.0), flavour.function(slow))


def test_the_time_of_a_slow_listener_counts_against_the_deadline(flavour: Flavour, clock: FakeClock) -> None:
    told: list[object] = []

    def slow(event: object) -> None:
        told.append(type(event))
        if isinstance(event, Retrying):
            clock.advance(10.0)

    fetch = flavour.scripted(error := TimeoutError("slow"), "page")
    with pytest.raises(DeadlineExceeded, match="the deadline of 5 s has passed") as caught:
        flavour.call(steady(clock, deadline=5.0, listeners=[slow]), fetch)
    assert len(fetch.calls) == 1
    assert clock.waits == []
    assert "waited" not in caught.value.__notes__[0]
    assert caught.value.__cause__ is error
    assert told == [Retrying, Expired]


def test_the_time_of_recover_counts_against_the_deadline(flavour: Flavour, clock: FakeClock) -> None:
    rules = {TimeoutError: Rule(recover=lambda error: clock.advance(10.0))}
    with pytest.raises(DeadlineExceeded, match="the deadline of 5 s has passed"):
        flavour.call(steady(clock, deadline=5.0, rules=rules), flavour.scripted(TimeoutError(), "page"))


def test_a_sleep_that_lasts_too_long_starts_no_attempt_after_the_deadline(
    flavour: Flavour, clock: FakeClock
) -> None:
    fetch = flavour.scripted(TimeoutError(), "page")
    policy = steady(clock, deadline=5.0, sleep=lambda seconds: clock.advance(seconds + 10))
    with pytest.raises(DeadlineExceeded):
        flavour.call(policy, fetch)
    assert len(fetch.calls) == 1


def test_a_hint_longer_than_the_time_left_gives_up_at_once_and_is_named(
    flavour: Flavour, clock: FakeClock
) -> None:
    class Busy(Exception):
        status_code = 503
        headers = {"Retry-After": "30"}  # noqa: RUF012

    with pytest.raises(DeadlineExceeded, match=r"the server asked for a wait of 30\.0 s"):
        flavour.call(steady(clock, deadline=5.0), always(Busy(), flavour))
    assert clock.waits == []


def test_a_refused_result_under_a_deadline_is_the_cause_of_the_deadline_error(
    flavour: Flavour, clock: FakeClock
) -> None:
    with pytest.raises(DeadlineExceeded) as caught:
        flavour.call(steady(clock, until=bool, deadline=2.5), flavour.scripted(0, 0, 0))
    assert isinstance(caught.value.__cause__, ResultRejected)
    assert caught.value.__cause__.result == 0


def test_a_refused_result_whose_wait_lasts_too_long_is_the_cause_too(
    flavour: Flavour, clock: FakeClock
) -> None:
    policy = steady(clock, until=bool, deadline=5.0, sleep=lambda seconds: clock.advance(10))
    with pytest.raises(DeadlineExceeded) as caught:
        flavour.call(policy, flavour.scripted([], "page"))
    assert isinstance(caught.value.__cause__, ResultRejected)
    assert caught.value.__cause__.result == []


def test_the_wall_clock_has_no_part_in_it(
    flavour: Flavour, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    jumps = iter(range(0, 10**9, 3600))
    monkeypatch.setattr(time, "time", lambda: float(next(jumps)))
    fetch = flavour.scripted(TimeoutError(), TimeoutError(), "page")
    assert flavour.call(steady(clock, deadline=10.0), fetch) == "page"
    assert clock.waits == [1.0, 2.0]


# Nested


def test_an_inner_deadline_is_clipped_to_the_outer_one(flavour: Flavour, clock: FakeClock) -> None:
    seen: list[Any] = []

    def inner_body() -> None:
        attempt = current_attempt()
        assert attempt is not None
        seen.append(attempt.remaining)
        raise TimeoutError

    inner = steady(clock, deadline=10.0, name="inner")(flavour.function(inner_body))
    if flavour.is_async:

        async def outer_body() -> None:
            try:
                await inner()
            finally:
                seen.append(current_attempt().remaining)  # type: ignore[union-attr]
    else:

        def outer_body() -> None:  # type: ignore[misc]
            try:
                inner()
            finally:
                seen.append(current_attempt().remaining)  # type: ignore[union-attr]

    with pytest.raises(DeadlineExceeded):
        flavour.call(steady(clock, deadline=2.0, attempts=1), outer_body)
    assert seen == [2.0, 1.0, 1.0]  # the outer 2 s bind; the inner second wait would pass them


def test_a_deadline_set_further_out_is_not_called_by_the_figure_of_the_inner_one(
    flavour: Flavour, clock: FakeClock
) -> None:
    inner = steady(clock, deadline=10.0, name="inner")(always(TimeoutError("slow"), flavour))
    with pytest.raises(DeadlineExceeded) as caught:
        flavour.call(steady(clock, deadline=2.5, attempts=1), inner)
    assert str(caught.value).endswith("the next wait (2.0 s) would pass the deadline of the enclosing call")


def test_a_longer_outer_deadline_leaves_the_inner_one_alone(clock: FakeClock) -> None:
    def inner() -> float | None:
        return current_attempt().remaining  # type: ignore[union-attr]

    outer = steady(clock, deadline=100.0)
    assert outer.call(lambda: steady(clock, deadline=3.0).call(inner)) == 3.0


def test_a_bare_inner_call_is_bound_by_the_outer_deadline_once_it_fails(
    flavour: Flavour, clock: FakeClock
) -> None:
    inner = steady(clock, name="inner")(always(TimeoutError("slow"), flavour))
    with pytest.raises(DeadlineExceeded) as caught:
        flavour.call(steady(clock, deadline=2.5, attempts=1), inner)
    assert clock.waits == [1.0]
    assert "inner" in str(caught.value)
    assert "would pass the deadline" in str(caught.value)


def test_a_call_whose_outer_deadline_has_passed_never_begins(flavour: Flavour, clock: FakeClock) -> None:
    told: list[Any] = []
    inner_fetch = flavour.scripted("page")
    inner = steady(clock, deadline=10.0, name="inner", listeners=[told.append])(inner_fetch)
    if flavour.is_async:

        async def outer_body() -> Any:
            clock.advance(5.0)
            return await inner()
    else:

        def outer_body() -> Any:
            clock.advance(5.0)
            return inner()

    with pytest.raises(DeadlineExceeded, match="before its first attempt") as caught:
        flavour.call(steady(clock, deadline=2.0, attempts=1), outer_body)
    assert inner_fetch.calls == []
    assert [(type(event), event.attempt) for event in told] == [(Expired, 0)]
    assert (caught.value.attempts, caught.value.elapsed) == (0, 0.0)


def test_a_deadline_ends_with_its_call(clock: FakeClock) -> None:
    steady(clock, deadline=2.0).call(lambda: None)
    fetch = scripted(TimeoutError(), TimeoutError(), TimeoutError(), "page")
    assert steady(clock).call(fetch) == "page"
    assert clock.waits == [1.0, 2.0, 4.0]


def test_clocks_of_different_origin_are_compared_by_what_is_left(clock: FakeClock) -> None:
    other = FakeClock(start=1_000_000.0)

    def inner() -> float | None:
        return current_attempt().remaining  # type: ignore[union-attr]

    outer = steady(clock, deadline=2.0)
    assert outer.call(lambda: steady(other, deadline=5.0).call(inner)) == pytest.approx(2.0)


# Async: in the middle of an attempt, never late


def test_an_async_attempt_is_cut_off_at_the_deadline(virtual: Any) -> None:
    async def main() -> None:
        @retry(deadline=5.0, clock=loop_time, name="fetch")
        async def fetch() -> None:
            await asyncio.sleep(60)

        with pytest.raises(DeadlineExceeded) as caught:
            await fetch()
        assert loop_time() == 5.0
        assert str(caught.value) == (
            "gave up on fetch after 1 attempt in 5.0 s: the deadline of 5 s came during the attempt"
        )
        assert isinstance(caught.value.__cause__, TimeoutError)
        assert str(caught.value.__cause__) == "attempt 1 was cut off by the deadline after 5 s"
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]

    virtual(main)


def test_a_cut_off_comes_whatever_the_policy_retries_on(virtual: Any) -> None:
    async def main() -> None:
        @retry(deadline=5.0, on=ValueError, clock=loop_time)
        async def fetch() -> None:
            await asyncio.sleep(60)

        with pytest.raises(DeadlineExceeded):
            await fetch()

    virtual(main)


def test_an_attempt_longer_than_its_timeout_is_cancelled_and_retried(virtual: Any) -> None:
    async def main() -> None:
        durations = iter([60.0, 60.0, 0.5])
        ended: list[str] = []

        @retry(timeout=2.0, backoff=fixed, clock=loop_time, name="fetch")
        async def fetch() -> str:
            try:
                await asyncio.sleep(next(durations))
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise
            return "page"

        assert await fetch() == "page"
        assert ended == ["cancelled"] * 2
        assert loop_time() == 2.0 + 1.0 + 2.0 + 1.0 + 0.5
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]

    virtual(main)


def test_attempts_that_all_time_out_end_in_a_timeout_error_that_says_so(virtual: Any) -> None:
    async def main() -> None:
        @retry(timeout=2.0, attempts=2, clock=loop_time)
        async def fetch() -> None:
            await asyncio.sleep(60)

        with pytest.raises(TimeoutError, match=r"attempt 2 took longer than its timeout of 2 s") as caught:
            await fetch()
        assert not isinstance(caught.value, DeadlineExceeded)

    virtual(main)


def test_a_timeout_that_is_no_failure_to_the_policy_passes_unretried(virtual: Any) -> None:
    async def main() -> None:
        @retry(timeout=2.0, on=ValueError, clock=loop_time)
        async def fetch() -> None:
            await asyncio.sleep(60)

        with pytest.raises(TimeoutError, match="attempt 1 took longer"):
            await fetch()

    virtual(main)


def test_what_is_left_of_the_deadline_bounds_the_last_attempt(virtual: Any) -> None:
    async def main() -> None:
        @retry(timeout=4.0, deadline=7.0, backoff=fixed, clock=loop_time)
        async def fetch() -> None:
            await asyncio.sleep(60)

        with pytest.raises(DeadlineExceeded) as caught:
            await fetch()
        assert loop_time() == 7.0  # 4 s, wait 1 s, 2 s
        assert caught.value.attempts == 2

    virtual(main)


def test_an_attempt_that_swallows_the_cancellation_and_succeeds_is_a_success(virtual: Any) -> None:
    async def main() -> None:
        @retry(timeout=2.0, clock=loop_time)
        async def fetch() -> str:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                pass
            return "late but here"

        assert await fetch() == "late but here"

    virtual(main)


def test_an_attempt_that_turns_the_cancellation_into_an_error_fails_with_it(virtual: Any) -> None:
    async def main() -> None:
        @retry(deadline=2.0, clock=loop_time)
        async def fetch() -> None:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise ConnectionResetError("cleaning up") from None

        with pytest.raises(DeadlineExceeded) as caught:
            await fetch()
        assert isinstance(caught.value.__cause__, ConnectionResetError)

    virtual(main)


def test_a_timeout_of_the_attempts_own_is_an_ordinary_failure(virtual: Any) -> None:
    async def main() -> None:
        calls: list[float] = []

        @retry(timeout=10.0, backoff=fixed, clock=loop_time)
        async def fetch() -> str:
            calls.append(loop_time())
            if len(calls) < 3:
                async with asyncio.timeout(1.0):
                    await asyncio.sleep(60)
            return "page"

        assert await fetch() == "page"
        assert calls == [0.0, 2.0, 4.0]
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]

    virtual(main)


def test_a_cancellation_from_outside_wins_over_a_timeout_at_the_same_instant(virtual: Any) -> None:
    async def main() -> None:
        calls: list[int] = []

        @retry(timeout=2.0, clock=loop_time)
        async def fetch() -> None:
            calls.append(1)
            await asyncio.sleep(60)

        task = asyncio.create_task(fetch())
        asyncio.get_running_loop().call_at(2.0, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert calls == [1]

    virtual(main)


def test_an_inner_call_is_cut_off_by_the_outer_deadline(virtual: Any) -> None:
    async def main() -> None:
        @retry(clock=loop_time)
        async def inner() -> None:
            await asyncio.sleep(60)

        @retry(deadline=3.0, clock=loop_time, name="outer")
        async def outer() -> None:
            await inner()

        with pytest.raises(DeadlineExceeded, match="outer"):
            await outer()
        assert loop_time() == 3.0

    virtual(main)


def test_a_retry_of_a_bare_call_is_cut_off_by_the_deadline_of_a_scope(virtual: Any) -> None:
    async def main() -> None:
        durations = iter([0.0, 60.0])

        @retry(clock=loop_time, backoff=fixed, name="inner")
        async def inner() -> None:
            await asyncio.sleep(next(durations))
            raise TimeoutError

        async with retrying(deadline=3.0, clock=loop_time):
            with pytest.raises(
                DeadlineExceeded, match="the deadline of the enclosing call came during the attempt"
            ):
                await inner()
        assert loop_time() == 3.0

    virtual(main)


def test_the_block_of_an_async_for_is_cut_off_too(virtual: Any) -> None:
    async def main() -> None:
        numbers: list[int] = []
        with pytest.raises(DeadlineExceeded):
            async for attempt in retrying(timeout=4.0, deadline=7.0, backoff=fixed, clock=loop_time):
                with attempt:
                    numbers.append(attempt.number)
                    await asyncio.sleep(60)
        assert numbers == [1, 2]
        assert loop_time() == 7.0
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]

    virtual(main)


def test_the_block_of_an_async_with_is_cut_off_and_retried(virtual: Any) -> None:
    async def main() -> None:
        numbers: list[int] = []
        with pytest.raises(TimeoutError, match="attempt 2 took longer than its timeout of 2 s"):
            async for attempt in retrying(timeout=2.0, attempts=2, clock=loop_time):
                async with attempt:
                    numbers.append(attempt.number)
                    await asyncio.sleep(60)
        assert numbers == [1, 2]

    virtual(main)


def test_the_virtual_loop_of_these_tests_takes_no_real_time() -> None:
    before = time.monotonic()
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(asyncio.sleep(3600))
    assert time.monotonic() - before < 5.0


def test_a_listener_that_leaves_too_little_time_for_the_wait_ends_the_call_before_it(
    flavour: Flavour, clock: FakeClock
) -> None:
    policy = steady(clock, deadline=5.0, listeners=[lambda event: clock.advance(4.5)])
    with pytest.raises(DeadlineExceeded, match="the deadline of 5 s would pass during the wait"):
        flavour.call(policy, flavour.scripted(TimeoutError(), "page"))
    assert clock.waits == []


def test_an_async_recover_is_cut_off_at_the_deadline(virtual: Any) -> None:
    async def main() -> None:
        async def hangs(error: Exception) -> None:
            await asyncio.sleep(600)

        policy = Policy(deadline=5.0, base=0.0, rules={TimeoutError: Rule(recover=hangs)}, clock=loop_time)
        with pytest.raises(DeadlineExceeded):
            await policy(scripted(TimeoutError(), "page", asynchronous=True))()
        assert loop_time() == 5.0

    virtual(main)


def test_a_call_that_a_scope_bound_from_its_beginning_counts_from_there(
    flavour: Flavour, clock: FakeClock
) -> None:
    def slow() -> None:
        clock.advance(3.0)
        raise TimeoutError("slow")

    with retrying(deadline=100.0, clock=clock), pytest.raises(TimeoutError) as caught:
        flavour.call(steady(clock, attempts=2, timeout=50.0, name="fetch"), flavour.function(slow))
    assert caught.value.__notes__[0].startswith("redouble: gave up on fetch after 2 attempts in 7.0 s")


def test_the_story_is_on_the_deadline_and_not_on_its_cause_as_well(flavour: Any, clock: FakeClock) -> None:
    error = TimeoutError("slow")
    policy = Policy(deadline=0.5, backoff=fixed, clock=clock, sleep=clock.sleep)
    with pytest.raises(DeadlineExceeded) as caught:
        flavour.call(policy, flavour.scripted(error))
    assert caught.value.__cause__ is error
    assert "attempt 1: TimeoutError: slow" in caught.value.__notes__[0]
    assert not hasattr(error, "__notes__")
