"""Policies with a floor under their waits, and policies that retry for ever."""

from __future__ import annotations

import functools
import math
from itertools import islice
from typing import Any

import pytest

from conftest import Flavour
from redouble import DeadlineExceeded, Policy, Rule, current_attempt, retry, retrying
from redouble.backoff import decorrelated_jitter, exponential, fixed, full_jitter, immediately_once
from redouble.testing import FakeClock, capped, scripted
from support.backoffs import Pinned


class Busy(Exception):
    status_code = 503

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.headers = {"Retry-After": str(seconds)}


def waits_of(policy: Policy, clock: FakeClock, flavour: Flavour, *failures: Exception) -> list[float]:
    """Return the waits of a call that fails thrice, or with these, and then succeeds."""
    outcomes = failures or [TimeoutError()] * 3
    timed = policy.replace(clock=clock, sleep=clock.sleep)
    assert flavour.call(timed, flavour.scripted(*outcomes, "page")) == "page"
    return clock.waits


# floor


@pytest.mark.parametrize(
    ("fields", "waits"),
    [
        ({"backoff": exponential}, [3.0, 3.0, 4.0]),
        ({"rng": Pinned(0.5)}, [3.0, 3.0, 3.5]),
        ({"backoff": functools.partial(full_jitter, factor=4.0), "rng": Pinned(0.5)}, [3.0, 3.5, 9.5]),
        ({"backoff": immediately_once(fixed), "base": 5.0}, [3.0, 5.0, 5.0]),
        ({"backoff": decorrelated_jitter, "rng": Pinned(1.0)}, [3.0, 9.0, 27.0]),
        ({"backoff": lambda attempt, *args, **kwargs: 2.0 * attempt}, [3.0, 3.0, 4.0]),
    ],
)
def test_no_wait_of_the_backoff_is_shorter_than_the_floor(
    fields: dict[str, Any], waits: list[float], flavour: Flavour, clock: FakeClock
) -> None:
    policy = Policy(floor=3.0, **fields)
    assert waits_of(policy, clock, flavour) == waits
    assert list(policy.delays()) == waits


def test_the_default_wait_is_drawn_above_the_floor(flavour: Flavour, clock: FakeClock) -> None:
    first, second, third = waits_of(Policy(floor=1.5, base=2.0), clock, flavour)
    assert 1.5 <= first <= 2.0
    assert 1.5 <= second <= 4.0
    assert 1.5 <= third <= 8.0
    assert len({first, second, third}) == 3


def test_a_rule_has_a_floor_of_its_own_or_that_of_the_policy(flavour: Flavour, clock: FakeClock) -> None:
    rules = {429: Rule(attempts=2), TimeoutError: Rule(floor=7.0), KeyError: Rule(floor=0.0)}
    policy = Policy(floor=3.0, backoff=exponential, rules=rules)
    failures = [TimeoutError(), KeyError(), ConnectionResetError()]
    # A rule with waits of its own begins with its first wait.
    assert waits_of(policy, clock, flavour, *failures) == [7.0, 1.0, 4.0]


def test_a_delay_that_on_or_again_sets_is_not_bounded(flavour: Flavour, clock: FakeClock) -> None:
    policy = Policy(floor=3.0, on=lambda error: 0.25, clock=clock, sleep=clock.sleep)
    assert waits_of(policy, clock, flavour) == [0.25] * 3

    def body(attempt: Any) -> None:
        if attempt.number == 1:
            attempt.again(after=0.5)

    flavour.block(policy, body)
    assert clock.waits[3:] == [0.5]


@pytest.mark.parametrize(("hint", "low", "high"), [(0.5, 3.0, 3.0), (10.0, 10.0, 11.0), (2.5, 3.0, 3.5)])
def test_of_a_hint_and_the_floor_the_longer_counts(
    hint: float, low: float, high: float, flavour: Flavour, clock: FakeClock
) -> None:
    [wait] = waits_of(Policy(floor=3.0), clock, flavour, Busy(hint))
    assert low <= wait <= high


# For ever


def test_a_call_for_ever_has_neither_last_attempt_nor_limit(flavour: Flavour, clock: FakeClock) -> None:
    seen: list[tuple[bool, str]] = []
    failures = [TimeoutError()] * 300

    def body(attempt: Any) -> None:
        seen.append((attempt.is_last, repr(attempt)))
        if failures:
            raise failures.pop()

    flavour.block(Policy(attempts=math.inf, backoff=fixed, clock=clock, sleep=clock.sleep), body)
    assert len(seen) == 301
    assert not any(last for last, _ in seen)
    assert seen[-1][1] == "<attempt 301 of any number>"


def test_a_rule_for_ever_ends_with_the_attempts_of_the_policy(flavour: Flavour, clock: FakeClock) -> None:
    policy = Policy(attempts=3, rules={TimeoutError: Rule(attempts=math.inf)}, clock=clock, sleep=clock.sleep)
    with pytest.raises(TimeoutError) as caught:
        flavour.call(policy, flavour.scripted(*[TimeoutError()] * 9))
    assert "after 3 attempts" in caught.value.__notes__[0]


def test_a_rule_ends_failures_that_a_policy_would_retry_for_ever(flavour: Flavour, clock: FakeClock) -> None:
    rules = {TimeoutError: Rule(attempts=2.0)}
    with pytest.raises(TimeoutError) as caught:
        waits_of(Policy(attempts=math.inf, rules=rules), clock, flavour)
    assert "no attempts left for TimeoutError: its rule allows 2" in caught.value.__notes__[0]


def test_a_test_can_cap_a_call_for_ever(flavour: Flavour, clock: FakeClock) -> None:
    with capped(2), pytest.raises(TimeoutError):
        waits_of(Policy(attempts=math.inf), clock, flavour)
    assert len(clock.waits) == 1


def test_the_waits_for_ever_can_be_previewed() -> None:
    assert list(islice(Policy(attempts=math.inf, backoff=exponential, cap=4.0).delays(), 5)) == [
        1.0,
        2.0,
        4.0,
        4.0,
        4.0,
    ]


def test_a_deadline_of_infinity_is_none_and_that_of_the_enclosing_call_still_binds(
    flavour: Flavour, clock: FakeClock
) -> None:
    inner = Policy(attempts=math.inf, deadline=math.inf, backoff=fixed, clock=clock, sleep=clock.sleep)
    with retrying(deadline=5.0, clock=clock) as call, pytest.raises(DeadlineExceeded, match="enclosing call"):
        flavour.run(call, inner(flavour.scripted(*[TimeoutError()] * 9)))
    assert clock.waits == [1.0] * 4


def test_a_call_outside_of_any_limit_in_time_has_none(clock: FakeClock) -> None:
    @retry(attempts=math.inf, deadline=math.inf, timeout=math.inf, idempotency_key=True)
    def limits() -> Any:
        attempt = current_attempt()
        assert attempt is not None
        return attempt.remaining, attempt.timeout

    assert limits() == (None, None)


def test_a_server_may_ask_for_any_wait_if_that_is_allowed(flavour: Flavour, clock: FakeClock) -> None:
    [wait] = waits_of(Policy(max_retry_after=math.inf), clock, flavour, Busy(86400.0))
    assert 86400.0 <= wait <= 86401.0


def test_an_enclosing_call_that_ends_during_the_wait_leaves_no_limit_behind(clock: FakeClock) -> None:
    scope = retrying(deadline=50.0, clock=clock)
    scope.__enter__()

    def leave_and_wait(seconds: float) -> None:
        scope.__exit__(None, None, None)
        clock.sleep(seconds)

    policy = Policy(clock=clock, sleep=leave_and_wait)
    assert policy.call(scripted(TimeoutError(), "page")) == "page"
