"""``give_up_after``: no attempt starts later, none is cut off, and the call's own error is raised."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from conftest import Flavour, loop_time, watchdog
from redouble import DeadlineExceeded, Policy, ResultRejected, Rule, current_attempt, history, retrying
from redouble.backoff import exponential, fixed
from redouble.budget import TokenBudget
from redouble.dead_letters import DeadLetters
from redouble.events import Event, GaveUp, Reason, Retrying
from redouble.testing import FakeClock, scripted
from support.guarded import Turnstile


class Busy(Exception):
    """A response that asks for a wait of 3 seconds."""

    status_code = 503
    headers = {"Retry-After": "3"}  # noqa: RUF012


def steady(clock: FakeClock, **fields: Any) -> Policy:
    """Waits 1, 2, 4, 8 seconds."""
    waits = Policy(attempts=None, give_up_after=60.0, backoff=exponential, clock=clock, sleep=clock.sleep)
    return waits.replace(**fields)


def fails(policy: Policy, flavour: Flavour, function: Any) -> Exception:
    with pytest.raises(Exception) as caught:
        flavour.call(policy, function)
    return caught.value


def always(error: Exception, flavour: Flavour) -> Any:
    def raises() -> None:
        raise error

    return flavour.function(raises)


def test_a_wait_that_would_end_after_it_is_not_made_and_the_last_error_is_raised(
    flavour: Flavour, clock: FakeClock
) -> None:
    error = TimeoutError("slow")
    assert fails(steady(clock, give_up_after=12.0), flavour, always(error, flavour)) is error
    assert clock.waits == [1.0, 2.0, 4.0]  # the fourth, 8 s, would end at 15 s
    [note] = error.__notes__
    first, *attempts = note.splitlines()
    assert first.endswith(
        " after 4 attempts in 7.0 s: the next wait (8.0 s) would pass give_up_after of 12 s"
    )
    assert len(attempts) == 4
    assert error.__cause__ is None


def test_no_attempt_starts_at_that_very_moment(flavour: Flavour, clock: FakeClock) -> None:
    fails(steady(clock, give_up_after=7.0), flavour, always(TimeoutError(), flavour))
    assert clock.waits == [1.0, 2.0]  # as tenacity's stop_before_delay, and as a deadline


def test_the_time_of_attempts_counts_from_the_beginning_of_the_call(
    flavour: Flavour, clock: FakeClock
) -> None:
    def slow() -> None:
        clock.advance(5.0)
        raise TimeoutError

    error = fails(steady(clock, give_up_after=9.0), flavour, flavour.function(slow))
    assert clock.waits == [1.0]
    tried = history(error)
    assert tried is not None
    assert (tried.attempts, tried.elapsed) == (2, 11.0)
    assert tried.why == "give_up_after of 9 s has passed"


def test_a_running_attempt_is_not_cut_off(virtual: Any) -> None:
    async def slow() -> str:
        await asyncio.sleep(100.0)
        return "page"

    async def main() -> None:
        policy = Policy(give_up_after=5.0, attempts=None, clock=loop_time)
        assert await policy.call(slow) == "page"
        assert loop_time() == 100.0

    virtual(main)


def test_nothing_is_refused_before_the_first_attempt(flavour: Flavour, clock: FakeClock) -> None:
    throttle: Any = Turnstile(5.0)
    policy = steady(clock, give_up_after=4.0, throttle=throttle)
    assert flavour.call(policy, flavour.scripted("page")) == "page"
    assert clock.waits == [5.0]


def test_the_time_that_a_first_attempt_waited_for_counts(flavour: Flavour, clock: FakeClock) -> None:
    throttle: Any = Turnstile(5.0)
    error = TimeoutError()
    policy = steady(clock, give_up_after=4.0, throttle=throttle)
    assert fails(policy, flavour, flavour.scripted(error)) is error
    assert clock.waits == [5.0]


def test_a_wait_for_the_throttle_that_would_end_after_it_is_not_made(
    flavour: Flavour, clock: FakeClock
) -> None:
    error, throttle = TimeoutError("slow"), Turnstile(0.0, 5.0)
    given: Any = throttle
    policy = steady(clock, give_up_after=4.0, throttle=given)
    assert fails(policy, flavour, flavour.scripted(error)) is error
    assert clock.waits == [1.0]
    assert "give_up_after of 4 s would pass during the wait" in error.__notes__[0]


@pytest.mark.parametrize("delayed_by", ["sleep", "recover", "listener"])
def test_no_attempt_starts_late_after_an_overlong(
    delayed_by: str, flavour: Flavour, clock: FakeClock
) -> None:
    def listener(event: Event) -> None:
        if isinstance(event, Retrying):
            clock.advance(90.0)

    fields: dict[str, Any] = {
        "sleep": {"sleep": lambda seconds: clock.sleep(seconds + 90.0)},
        "recover": {"rules": {TimeoutError: Rule(recover=lambda error: clock.advance(90.0))}},
        "listener": {"listeners": [listener]},
    }[delayed_by]
    function, heard = flavour.scripted(error := TimeoutError("slow"), "page"), list[Event]()
    policy = steady(clock, **fields)
    policy = policy.replace(listeners=[*policy.listeners, heard.append])
    assert fails(policy, flavour, function) is error
    assert len(function.calls) == 1
    assert "give_up_after of 60 s has passed" in error.__notes__[0]
    assert ("waited" in error.__notes__[0]) is (delayed_by != "listener")
    assert [(type(event), event.reason) for event in heard] == [
        (Retrying, None),
        (GaveUp, Reason.give_up_after),
    ]


def test_a_result_that_is_rejected_for_too_long_is_raised_as_at_any_giving_up(
    flavour: Flavour, clock: FakeClock
) -> None:
    error = fails(steady(clock, give_up_after=5.0, until=bool), flavour, flavour.scripted(0, 0, 0))
    assert isinstance(error, ResultRejected)
    assert (error.result, error.attempts) == (0, 3)
    assert "the next wait (4.0 s) would pass give_up_after of 5 s" in str(error)


def test_a_rejected_result_after_an_overlong_wait_is_raised_with_the_note(
    flavour: Flavour, clock: FakeClock
) -> None:
    def overlong(seconds: float) -> None:
        clock.advance(90.0)

    error = fails(steady(clock, until=bool, sleep=overlong), flavour, flavour.scripted(0, 1))
    assert isinstance(error, ResultRejected)
    assert error.result == 0
    assert "give_up_after of 60 s has passed" in error.__notes__[0]


def test_a_permanent_failure_after_it_stays_itself_without_a_note(flavour: Flavour, clock: FakeClock) -> None:
    def slow() -> None:
        clock.advance(90.0)
        raise ValueError("bad")

    error = fails(steady(clock), flavour, flavour.function(slow))
    assert type(error) is ValueError
    assert not hasattr(error, "__notes__")


# Events, fallback, dead letters, guards


def test_the_event_has_a_reason_of_its_own(flavour: Flavour, clock: FakeClock) -> None:
    heard: list[Event] = []
    policy = steady(clock, give_up_after=2.5, listeners=[heard.append])
    fails(policy, flavour, always(TimeoutError("slow"), flavour))
    assert [(type(event), event.reason) for event in heard] == [
        (Retrying, None),
        (GaveUp, Reason.give_up_after),
    ]
    assert (heard[-1].attempt, heard[-1].elapsed) == (2, 1.0)


@pytest.mark.parametrize("overlong", [False, True], ids=["decided", "after the wait"])
def test_the_fallback_answers_and_a_dead_letter_is_kept(
    overlong: bool, flavour: Flavour, clock: FakeClock, tmp_path: Path
) -> None:
    letters = DeadLetters(tmp_path / "letters.db")
    sleep = (lambda seconds: clock.advance(90.0)) if overlong else clock.sleep
    policy = steady(
        clock, give_up_after=2.5, fallback="cached", dead_letters=letters, sleep=sleep, name="fetch"
    )
    assert flavour.call(policy, always(TimeoutError("slow"), flavour)) == "cached"
    [letter] = letters.list()
    assert (letter.error_type, letter.failure_code, letter.attempts) == (
        "TimeoutError",
        "timeout",
        2 - overlong,
    )


def test_the_budget_gets_back_what_a_retry_cost_that_was_not_made(flavour: Flavour, clock: FakeClock) -> None:
    budget = TokenBudget(capacity=100)
    policy = steady(clock, budget=budget, sleep=lambda seconds: clock.advance(90.0))
    fails(policy, flavour, always(ConnectionResetError(), flavour))
    assert budget.tokens == 100.0


# Hints


def test_a_hint_that_fits_is_waited_for_and_its_jitter_is_clipped(flavour: Flavour, clock: FakeClock) -> None:
    policy = steady(clock, give_up_after=3.0 + 1e-6, base=10.0)
    assert flavour.call(policy, flavour.scripted(Busy(), "page")) == "page"
    assert clock.waits == [pytest.approx(3.0, abs=1e-6)]
    assert clock.waits[0] >= 3.0


def test_a_hint_that_does_not_fit_gives_up_at_once_and_is_named(flavour: Flavour, clock: FakeClock) -> None:
    error = fails(steady(clock, give_up_after=2.0), flavour, always(Busy(), flavour))
    assert isinstance(error, Busy)
    assert clock.waits == []
    asked = "the server asked for a wait of 3.0 s, which would pass give_up_after of 2 s"
    assert asked in error.__notes__[0]


# Beside a deadline


@pytest.mark.parametrize(
    ("give_up_after", "kind"),
    [(4.0, TimeoutError), (5.0, TimeoutError), (5.5, DeadlineExceeded)],
)
def test_of_a_deadline_and_give_up_after_the_one_that_comes_first_counts(
    give_up_after: float, kind: type[Exception], flavour: Flavour, clock: FakeClock
) -> None:
    error = fails(
        steady(clock, deadline=5.0, give_up_after=give_up_after), flavour, always(TimeoutError(), flavour)
    )
    assert type(error) is kind
    assert clock.waits == [1.0, 2.0]


def test_a_deadline_still_cuts_off_the_last_attempt(virtual: Any) -> None:
    async def main() -> None:
        policy = Policy(give_up_after=5.0, deadline=8.0, attempts=None, clock=loop_time)
        with pytest.raises(DeadlineExceeded):
            await policy.call(asyncio.sleep, 100.0)
        assert loop_time() == 8.0

    virtual(main)


# What it binds


def test_nested_calls_do_not_inherit_it(flavour: Flavour, clock: FakeClock) -> None:
    inner = Policy(attempts=4, backoff=fixed, base=30.0, clock=clock, sleep=clock.sleep)
    remaining: list[float | None] = []

    def call() -> Any:
        attempt = current_attempt()
        assert attempt is not None
        remaining.append(attempt.remaining)
        return inner.call(scripted(TimeoutError(), TimeoutError(), TimeoutError(), "page"))

    assert flavour.call(steady(clock, give_up_after=5.0), flavour.function(call)) == "page"
    assert clock.waits == [30.0] * 3
    assert remaining == [None]


def test_a_scope_counts_it_for_each_call(flavour: Flavour, clock: FakeClock) -> None:
    policy = steady(clock, give_up_after=5.0)
    with retrying(policy) as call:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                flavour.run(call, always(TimeoutError(), flavour))
    assert clock.waits == [1.0, 2.0] * 3


def test_a_block_counts_it_for_each_loop(flavour: Flavour, clock: FakeClock) -> None:
    policy = steady(clock, give_up_after=5.0)
    runs: list[int] = []

    def body(attempt: Any) -> None:
        runs.append(attempt.number)
        raise TimeoutError("slow")

    for _ in range(2):
        with pytest.raises(TimeoutError, match="slow") as caught:
            flavour.block(policy, body)
        assert "would pass give_up_after of 5 s" in caught.value.__notes__[0]
    assert runs == [1, 2, 3] * 2
    assert clock.waits == [1.0, 2.0] * 2


def test_a_block_that_waits_too_long_raises_its_own_error(flavour: Flavour, clock: FakeClock) -> None:
    def body(attempt: Any) -> None:
        raise TimeoutError("slow")

    with pytest.raises(TimeoutError, match="slow") as caught:
        flavour.block(steady(clock, sleep=lambda seconds: clock.advance(90.0)), body)
    assert "give_up_after of 60 s has passed" in caught.value.__notes__[0]


def test_a_block_that_asks_to_run_again_is_bound_by_it(flavour: Flavour, clock: FakeClock) -> None:
    with pytest.raises(ResultRejected, match="not yet"):
        flavour.block(steady(clock, give_up_after=5.0), lambda attempt: attempt.again("not yet", after=2.0))
    assert clock.waits == [2.0, 2.0]


def test_a_generator_is_bound_until_its_first_item(clock: FakeClock) -> None:
    tries: list[float] = []

    @steady(clock, give_up_after=5.0)
    def items() -> Any:
        tries.append(clock.now)
        if len(tries) < 3:
            raise TimeoutError
        yield 1
        clock.advance(99.0)
        yield 2

    assert [*items()] == [1, 2]
    with pytest.raises(TimeoutError):
        [*steady(clock, give_up_after=2.0)(lambda: (_ for _ in ()).throw(TimeoutError))()]


def test_a_call_whose_clock_stands_still_ends(flavour: Flavour) -> None:
    waits: list[float] = []
    policy = Policy(
        attempts=None, give_up_after=5.0, backoff=exponential, clock=lambda: 7.0, sleep=waits.append
    )
    with watchdog(), pytest.raises(TimeoutError):
        flavour.call(policy, always(TimeoutError(), flavour))
    assert waits == [1.0, 2.0]


def test_attempts_without_end_are_bound_by_it(flavour: Flavour, clock: FakeClock) -> None:
    for endless in (None, math.inf):
        policy = steady(clock, attempts=endless, backoff=fixed, give_up_after=50.0)
        tried = history(fails(policy, flavour, always(TimeoutError(), flavour)))
        assert tried is not None
        assert tried.attempts == 50
