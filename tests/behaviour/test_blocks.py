"""Blocks that are run again, and scopes of one policy and one deadline."""

from __future__ import annotations

import asyncio
import datetime
import threading
from typing import Any

import pytest

from conftest import Flavour
from redouble import DeadlineExceeded, Policy, ResultRejected, current_attempt, retrying
from redouble.backoff import exponential, fixed
from redouble.context import current
from redouble.events import GaveUp, Recovered, Retrying
from redouble.testing import FakeClock, retries_disabled, scripted


def steady(clock: FakeClock, **fields: Any) -> Policy:
    return Policy(backoff=exponential, clock=clock, sleep=clock.sleep).replace(**fields)


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


# The loop


def test_a_block_that_succeeds_is_run_once(flavour: Flavour, clock: FakeClock) -> None:
    numbers: list[int] = []
    flavour.block(steady(clock), lambda attempt: numbers.append(attempt.number))
    assert (numbers, clock.waits) == ([1], [])


def test_a_block_is_run_again_after_a_retryable_failure(flavour: Flavour, clock: FakeClock) -> None:
    seen: list[Any] = []

    def body(attempt: Any) -> str:
        seen.append((attempt.number, attempt.is_last, attempt.previous))
        if attempt.number < 3:
            raise TimeoutError(f"slow {attempt.number}")
        return "page"

    assert flavour.block(steady(clock, attempts=3), body) == "page"
    assert seen == [(1, False, None), (2, False, "TimeoutError: slow 1"), (3, True, "TimeoutError: slow 2")]
    assert clock.waits == [1.0, 2.0]


def test_a_block_given_up_on_raises_its_own_last_error_with_the_story(
    flavour: Flavour, clock: FakeClock
) -> None:
    errors = [TimeoutError(str(n)) for n in range(2)]

    def body(attempt: Any) -> None:
        raise errors[attempt.number - 1]

    with pytest.raises(TimeoutError) as caught:
        flavour.block(steady(clock, attempts=2), body)
    assert caught.value is errors[-1]
    assert "redouble: gave up on block after 2 attempts" in notes(caught.value)


def test_until_is_not_asked_about_a_block_which_has_no_result(flavour: Flavour, clock: FakeClock) -> None:
    runs: list[int] = []

    def body(attempt: Any) -> None:
        runs.append(attempt.number)
        if attempt.number == 1:
            raise TimeoutError

    flavour.block(steady(clock, until=bool), body)
    assert runs == [1, 2]


def test_a_permanent_failure_leaves_the_block_at_once(flavour: Flavour, clock: FakeClock) -> None:
    def body(attempt: Any) -> None:
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad") as caught:
        flavour.block(steady(clock), body)
    assert (clock.waits, notes(caught.value)) == ([], "")


def test_a_block_ends_at_the_deadline(flavour: Flavour, clock: FakeClock) -> None:
    left: list[float] = []

    def body(attempt: Any) -> None:
        left.append(attempt.remaining)
        raise TimeoutError("slow")

    with pytest.raises(DeadlineExceeded) as caught:
        flavour.block(steady(clock, deadline=5.0, attempts=9), body)
    assert left == [5.0, 4.0, 2.0]
    assert isinstance(caught.value.__cause__, TimeoutError)


def test_an_interrupt_leaves_the_block_at_once(flavour: Flavour, clock: FakeClock) -> None:
    told: list[object] = []

    def body(attempt: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        flavour.block(steady(clock, on=lambda error: True, listeners=[told.append]), body)
    assert (clock.waits, told) == ([], [])


def test_a_block_asks_to_be_run_again_without_an_exception(flavour: Flavour, clock: FakeClock) -> None:
    ran_to_the_end: list[int] = []

    def body(attempt: Any) -> None:
        if attempt.number < 3:
            attempt.again("not ready")
        ran_to_the_end.append(attempt.number)

    flavour.block(steady(clock), body)
    assert ran_to_the_end == [1, 2, 3]
    assert clock.waits == [1.0, 2.0]


def test_a_block_that_asks_again_sets_its_own_wait(flavour: Flavour, clock: FakeClock) -> None:
    waits = iter([7, datetime.timedelta(seconds=2), None])

    def body(attempt: Any) -> None:
        if attempt.number < 4:
            attempt.again(after=next(waits))

    flavour.block(steady(clock), body)
    assert clock.waits == [7.0, 2.0, 4.0]


def test_a_wait_that_makes_no_sense_is_refused_where_it_is_asked_for(clock: FakeClock) -> None:
    with pytest.raises(ValueError, match="after must be finite and not negative, got -1"):
        for attempt in retrying(steady(clock)):
            with attempt:
                attempt.again(after=-1)


def test_asking_again_to_the_end_is_rejected_with_the_reason(flavour: Flavour, clock: FakeClock) -> None:
    with pytest.raises(ResultRejected, match="no attempts left; not ready") as caught:
        flavour.block(steady(clock, attempts=2), lambda attempt: attempt.again("not ready"))
    assert (caught.value.result, caught.value.attempts) == (None, 2)


def test_an_exception_after_asking_again_counts_as_the_exception(flavour: Flavour, clock: FakeClock) -> None:
    def body(attempt: Any) -> None:
        attempt.again("not ready")
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        flavour.block(steady(clock), body)


def test_with_retries_switched_off_asking_again_is_ignored(flavour: Flavour, clock: FakeClock) -> None:
    numbers: list[int] = []

    def body(attempt: Any) -> None:
        numbers.append(attempt.number)
        attempt.again("not ready")

    with retries_disabled():
        flavour.block(steady(clock), body)
    assert numbers == [1]


def test_forgetting_the_with_is_a_clear_error_not_a_loop() -> None:
    rounds = []
    with pytest.raises(RuntimeError, match=r"put the body of a retrying\(\) loop inside 'with attempt:'"):
        for attempt in retrying():
            rounds.append(attempt)  # noqa: PERF402
    assert len(rounds) == 1


def test_forgetting_the_with_in_an_async_for_is_a_clear_error_too() -> None:
    async def main() -> None:
        async for _ in retrying():
            pass

    with pytest.raises(RuntimeError, match=r"put the body of a retrying\(\) loop inside 'with attempt:'"):
        asyncio.run(main())


def test_an_attempt_entered_twice_is_a_clear_error() -> None:
    with pytest.raises(RuntimeError, match="attempt 1 was entered already"):
        for attempt in retrying():
            with attempt:
                pass
            with attempt:
                pass


def test_going_on_to_the_next_round_while_the_block_still_runs_is_a_clear_error() -> None:
    runs = iter(retrying())
    next(runs).__enter__()
    with pytest.raises(RuntimeError, match=r"put the body of a retrying\(\) loop inside 'with attempt:'"):
        next(runs)


def test_a_loop_left_by_break_or_return_makes_no_further_attempt(clock: FakeClock) -> None:
    def leave() -> int:
        for attempt in retrying(steady(clock)):
            with attempt:
                return attempt.number
        return 0

    assert leave() == 1
    for attempt in retrying(steady(clock)):
        with attempt:
            break
    assert clock.waits == []


def test_each_iteration_of_one_object_is_a_new_call(clock: FakeClock) -> None:
    block = retrying(steady(clock, attempts=2))
    for _ in range(3):
        seen = []
        with pytest.raises(TimeoutError):
            for attempt in block:
                with attempt:
                    seen.append(attempt.number)
                    raise TimeoutError
        assert seen == [1, 2]


def test_one_object_is_shared_by_threads(clock: FakeClock) -> None:
    block = retrying(Policy(base=0, attempts=3))
    results: list[list[int]] = []

    def work() -> None:
        seen = []
        for attempt in block:
            with attempt:
                seen.append(attempt.number)
                if attempt.number < 3:
                    raise TimeoutError
        results.append(seen)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[1, 2, 3]] * 8


def test_a_block_tells_the_same_events_as_a_call(flavour: Flavour, clock: FakeClock) -> None:
    told: list[Any] = []

    def body(attempt: Any) -> None:
        if attempt.number < 2:
            raise TimeoutError("slow")

    flavour.block(steady(clock, listeners=[told.append], name="step"), body)
    assert [(type(event), event.name, event.attempt) for event in told] == [
        (Retrying, "step", 1),
        (Recovered, "step", 2),
    ]
    with pytest.raises(ValueError):
        flavour.block(steady(clock, listeners=[told.append]), lambda attempt: int("x"))
    assert type(told[-1]) is GaveUp


def test_the_attempt_is_current_inside_its_block_on_every_retry(flavour: Flavour, clock: FakeClock) -> None:
    seen: list[Any] = []

    def body(attempt: Any) -> None:
        current = current_attempt()
        seen.append(current and current.number)
        if attempt.number < 2:
            raise TimeoutError

    flavour.block(steady(clock), body)
    flavour.block(steady(clock, deadline=9.0), body)
    assert seen == [None, 2, 1, 2]


def test_a_blocks_timeout_is_offered_and_clipped_to_what_is_left(clock: FakeClock) -> None:
    for attempt in retrying(steady(clock, timeout=4.0, deadline=3.0)):
        with attempt:
            assert attempt.timeout == 3.0
    for attempt in retrying(steady(clock, timeout=4.0)):
        with attempt:
            assert (attempt.timeout, attempt.remaining) == (4.0, None)


def test_a_bare_block_knows_the_time_left_of_a_scope_around_it(clock: FakeClock) -> None:
    with retrying(steady(clock, deadline=8.0)):
        for attempt in retrying(steady(clock)):
            with attempt:
                assert attempt.remaining == 8.0
                assert attempt.idempotency_key is None


def test_an_attempt_says_what_it_is(clock: FakeClock) -> None:
    for attempt in retrying(steady(clock)):
        with attempt:
            assert repr(attempt) == "<attempt 1 of 4>"
    for attempt in retrying(attempts=None, deadline=5.0):
        with attempt:
            assert repr(attempt) == "<attempt 1 of any number>"
            assert not attempt.is_last


# The scope


def test_a_scope_retries_each_call_through_it(clock: FakeClock) -> None:
    with retrying(steady(clock)) as call:
        assert call(scripted(TimeoutError(), "a"), 1) == "a"
        assert call(scripted(TimeoutError(), "b")) == "b"
    assert clock.waits == [1.0, 1.0]


def test_an_async_scope_retries_each_call_through_it(clock: FakeClock) -> None:
    async def main() -> list[Any]:
        async with retrying(steady(clock)) as call:
            return [
                await call(scripted(TimeoutError(), "a", asynchronous=True)),
                call(scripted(TimeoutError(), "b")),
            ]

    assert asyncio.run(main()) == ["a", "b"]


def test_one_deadline_holds_over_two_calls_of_a_scope(clock: FakeClock) -> None:
    with pytest.raises(DeadlineExceeded), retrying(steady(clock, deadline=5.0)) as call:
        assert call(scripted(TimeoutError(), TimeoutError(), "a")) == "a"  # takes 3 s
        call(scripted(TimeoutError(), TimeoutError(), "b"))  # 1 s, and 2 s would end at 6 s
    assert clock.waits == [1.0, 2.0, 1.0]


def test_a_call_after_the_deadline_of_its_scope_never_begins(clock: FakeClock) -> None:
    late = scripted("b")
    with pytest.raises(DeadlineExceeded, match="before its first attempt"):
        with retrying(steady(clock, deadline=5.0)) as call:
            clock.advance(5.0)
            call(late)
    assert late.calls == []


def test_a_block_after_the_deadline_of_its_scope_never_begins(flavour: Flavour, clock: FakeClock) -> None:
    ran: list[object] = []
    with pytest.raises(DeadlineExceeded, match="before its first attempt"):
        with retrying(steady(clock, deadline=5.0)):
            clock.advance(5.0)
            flavour.block(steady(clock, deadline=9.0), ran.append)
    assert ran == []


def test_blocks_work_through_a_scope_within_its_deadline(clock: FakeClock) -> None:
    seen = []
    with pytest.raises(DeadlineExceeded), retrying(steady(clock, deadline=5.0)) as call:
        clock.advance(3.0)
        for attempt in call:
            with attempt:
                seen.append(attempt.remaining)
                raise TimeoutError
    assert seen == [2.0, 1.0]


def test_async_blocks_work_through_a_scope(clock: FakeClock) -> None:
    async def main() -> list[int]:
        seen = []
        async with retrying(steady(clock, deadline=5.0)) as call:
            async for attempt in call:
                async with attempt:
                    seen.append(attempt.number)
                    if attempt.number == 1:
                        raise TimeoutError
        return seen

    assert asyncio.run(main()) == [1, 2]


def test_a_scope_may_be_opened_again_and_within_itself(clock: FakeClock) -> None:
    scope = retrying(steady(clock, deadline=5.0))
    with scope as outer:
        clock.advance(2.0)
        with scope as inner:
            assert inner is not outer
            assert inner(lambda: current_attempt().remaining) == 3.0  # type: ignore[union-attr]
        assert outer(lambda: current_attempt().remaining) == 3.0  # type: ignore[union-attr]
    with scope as later:
        assert later(lambda: current_attempt().remaining) == 5.0  # type: ignore[union-attr]


def test_a_scope_inside_an_attempt_leaves_that_attempt_current(clock: FakeClock) -> None:
    def body() -> None:
        assert current_attempt().number == 1  # type: ignore[union-attr]
        with retrying(steady(clock)):
            assert current_attempt().number == 1  # type: ignore[union-attr]

    steady(clock, deadline=9.0).call(body)
    with retrying(steady(clock)):
        assert current_attempt() is None


def test_a_body_that_fails_retryably_is_told_how_to_be_retried(clock: FakeClock) -> None:
    with pytest.raises(TimeoutError) as caught, retrying(steady(clock)):
        raise TimeoutError("in the body")
    assert "runs once" in notes(caught.value)
    assert "for attempt in retrying(...)" in notes(caught.value)
    assert "call(function, ...)" in notes(caught.value)


def test_nested_scopes_tell_it_once(clock: FakeClock) -> None:
    with pytest.raises(TimeoutError) as caught, retrying(steady(clock)), retrying(steady(clock)):
        raise TimeoutError("in the body")
    assert len(caught.value.__notes__) == 1


def test_a_body_that_fails_for_good_is_told_nothing(clock: FakeClock) -> None:
    with pytest.raises(ValueError) as caught, retrying(steady(clock)):
        raise ValueError("bad")
    assert notes(caught.value) == ""


def test_a_body_that_is_interrupted_is_told_nothing(clock: FakeClock) -> None:
    with pytest.raises(KeyboardInterrupt) as caught, retrying(steady(clock, on=lambda error: True)):
        raise KeyboardInterrupt
    assert notes(caught.value) == ""


def test_an_error_out_of_a_call_keeps_its_story_and_gets_no_other_note(clock: FakeClock) -> None:
    with pytest.raises(TimeoutError) as caught, retrying(steady(clock, attempts=2, name="fetch")) as call:
        call(scripted(TimeoutError(), TimeoutError("last")))
    assert len(caught.value.__notes__) == 1
    assert notes(caught.value).startswith("redouble: gave up on fetch after 2 attempts")


def test_a_scope_left_in_another_context_than_it_was_entered_in_does_no_harm(clock: FakeClock) -> None:
    import contextvars

    scope = retrying(steady(clock, deadline=5.0))
    contextvars.copy_context().run(scope.__enter__)
    scope.__exit__(None, None, None)
    assert current_attempt() is None


def test_many_threads_open_one_scope_object_at_once() -> None:
    scope = retrying(Policy(base=0, deadline=60.0))
    results: list[Any] = []
    barrier = threading.Barrier(8)

    def work() -> None:
        with scope as call:
            barrier.wait()
            results.append(call(scripted(TimeoutError(), "page")))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["page"] * 8


# What retrying takes, and what it is not


def test_retrying_takes_a_policy_fields_or_both(clock: FakeClock) -> None:
    def count(block: retrying) -> int:
        seen = 0
        with pytest.raises(TimeoutError):
            for attempt in block:
                with attempt:
                    seen += 1
                    raise TimeoutError
        return seen

    fast: dict[str, Any] = {"sleep": clock.sleep, "clock": clock}
    assert count(retrying(attempts=2, **fast)) == 2
    assert count(retrying(Policy(attempts=3, **fast))) == 3
    assert count(retrying(Policy(attempts=3, **fast), attempts=5)) == 5


def test_anything_but_a_policy_is_refused() -> None:
    with pytest.raises(TypeError, match="takes a Policy or fields"):
        retrying(len)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="did you mean 'attempts'"):
        retrying(attempst=3)  # type: ignore[call-arg]


def test_retrying_is_no_decorator_and_says_what_is() -> None:
    with pytest.raises(TypeError, match="use @retry"):

        @retrying(attempts=3)
        def fetch() -> None: ...


def test_a_fixed_backoff_in_a_block(flavour: Flavour, clock: FakeClock) -> None:
    def body(attempt: Any) -> None:
        if attempt.number < 4:
            raise TimeoutError

    flavour.block(steady(clock, backoff=fixed, base=0.5), body)
    assert clock.waits == [0.5, 0.5, 0.5]


def test_the_iterator_of_an_async_for_may_be_made_beforehand(clock: FakeClock) -> None:
    async def main() -> list[int]:
        runs, seen = aiter(retrying(steady(clock))), []
        async for attempt in runs:
            with attempt:
                seen.append(attempt.number)
        return seen

    assert asyncio.run(main()) == [1]


def test_the_deadline_of_a_scope_holds_in_other_threads(clock: FakeClock) -> None:
    seen: list[Any] = []
    with retrying(steady(clock, deadline=5.0)) as call:
        clock.advance(4.0)
        thread = threading.Thread(target=lambda: seen.append(call(lambda: current_attempt().remaining)))  # type: ignore[union-attr]
        thread.start()
        thread.join()
    assert seen == [1.0]


def test_the_deadline_of_a_scope_holds_in_other_threads_for_async_calls(clock: FakeClock) -> None:
    seen: list[Any] = []

    async def look() -> None:
        seen.append(current_attempt().remaining)  # type: ignore[union-attr]

    with retrying(steady(clock, deadline=5.0)) as call:
        clock.advance(4.0)
        thread = threading.Thread(target=lambda: asyncio.run(call(look)))
        thread.start()
        thread.join()
    assert seen == [1.0]


def test_a_call_through_a_scope_that_is_closed_is_still_bound_by_its_deadline(clock: FakeClock) -> None:
    with retrying(steady(clock, deadline=5.0)) as call:
        pass
    clock.advance(6.0)
    with pytest.raises(DeadlineExceeded, match="before its first attempt"):
        call(scripted("page"))


def test_scopes_that_are_left_out_of_order_close_their_own(clock: FakeClock) -> None:
    long, short = retrying(steady(clock, deadline=50.0)), retrying(steady(clock, deadline=1.0))
    short.__enter__()
    call = long.__enter__()
    short.__exit__(None, None, None)
    assert call(lambda: current_attempt().remaining) <= 50.0  # type: ignore[union-attr]
    long.__exit__(None, None, None)
    assert current_attempt() is None


def test_a_sync_block_with_an_async_sleep_is_refused() -> None:
    with pytest.raises(TypeError, match="a sync block needs a sync sleep"):
        for attempt in retrying(sleep=asyncio.sleep):
            with attempt:
                pass


def test_a_sleep_that_turns_out_to_be_async_is_made_up_for(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    monkeypatch.setattr(time, "sleep", clock.sleep)
    policy = Policy(backoff=fixed, sleep=lambda seconds: asyncio.sleep(seconds))
    assert policy.call(scripted(TimeoutError(), "page")) == "page"
    assert clock.waits == [1.0]


def test_a_block_that_asks_again_at_once_is_run_at_once(flavour: Flavour, clock: FakeClock) -> None:
    flavour.block(steady(clock), lambda attempt: attempt.number < 2 and attempt.again(after=0))
    assert clock.waits == [0.0]


def test_a_wait_beyond_what_the_platform_can_sleep_is_cut_down_to_it(
    flavour: Flavour, clock: FakeClock
) -> None:
    flavour.block(steady(clock), lambda attempt: attempt.number < 2 and attempt.again(after=1e12))
    assert clock.waits == [threading.TIMEOUT_MAX]


def test_an_attempt_left_in_another_context_than_it_was_entered_in_does_no_harm(clock: FakeClock) -> None:
    import contextvars

    attempt = next(iter(retrying(steady(clock, deadline=5.0))))
    contextvars.copy_context().run(attempt.__enter__)
    assert attempt.__exit__(None, None, None) is False


def test_a_scope_left_while_an_attempt_inside_of_it_still_runs_leaves_that_alone(clock: FakeClock) -> None:
    scope = retrying(steady(clock, deadline=5.0))
    call = scope.__enter__()
    attempt = next(iter(call))
    with attempt:
        scope.__exit__(None, None, None)
        assert current_attempt().number == 1  # type: ignore[union-attr]
    current.set(None)  # what was around the attempt is the scope, which nobody leaves a second time
