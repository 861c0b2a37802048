"""A policy in words, and the longest time that it can take."""

from __future__ import annotations

import functools
import logging
import random

import pytest

from conftest import watchdog
from redouble import Cause, Policy, Rule
from redouble.backoff import (
    decorrelated_jitter,
    equal_jitter,
    exponential,
    fixed,
    full_jitter,
    immediately_once,
    linear,
    proportional_jitter,
)

INF = float("inf")


def predicate(error):
    return True


def three(attempt, base=1.0, cap=30.0, *, previous=None, rng=None):
    return 3.0


class AlwaysLongest(random.Random):
    def random(self):
        return 1.0


def test_the_default_policy_described():
    assert Policy().describe() == (
        "Calls up to 4 times.\n"
        "Waits by full_jitter from 1 s, never longer than 30 s.\n"
        "Retries failures known to be transient, but not of a POST or PATCH that may have acted, "
        "unless it has an Idempotency-Key or only reads.\n"
        "Waits as long as a server asks, up to 120 s; gives up at once if it asks for more.\n"
        "Does not retry again an error that an inner call has already retried.\n"
        "Takes at most 7 s of waiting without server hints, plus the attempts themselves."
    )


def test_a_policy_with_everything_described():
    made = Policy(
        attempts=None,
        base=0.5,
        cap=INF,
        backoff=functools.partial(equal_jitter, factor=3.0),
        on=(OSError, KeyError),
        until=bool,
        deadline=20.0,
        timeout=2.5,
        max_retry_after=60.0,
        idempotent=True,
        rules={429: Rule(), Cause.conflict: Rule(), KeyError: Rule()},
        nested="defer",
    )
    assert made.describe() == (
        "Calls as often as the deadline allows.\n"
        "Waits by equal_jitter from 0.5 s, with no upper limit.\n"
        "Retries OSError, KeyError and results that until rejects, also of requests that may act twice; "
        "has rules for 429, conflict, KeyError.\n"
        "Waits as long as a server asks, up to 60 s; gives up at once if it asks for more.\n"
        "Tries once while an enclosing call is already retrying.\n"
        "Ends 20 s after the call began, waits included, with DeadlineExceeded.\n"
        "Cuts an async attempt off after 2.5 s.\n"
        "Takes at most 20 s, plus a sync attempt that is still running.\n"
        "Warning: timeout=2.5 is enforced in async code only: a sync attempt that hangs blocks the call until "
        "its client times out; in sync code pass current_attempt().timeout to the client; in async code there is "
        "nothing to do"
    )


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"attempts": 1}, "Calls once, never again."),
        ({"on": predicate}, "Retries failures that predicate selects, but not"),
        ({"on": ()}, "Retries nothing, but not"),
        ({"idempotent": False}, "but only of calls that certainly had no effect."),
        ({"backoff": immediately_once(linear)}, "Waits by immediately_once(linear) from 1 s"),
        ({"floor": 0.5}, "Waits by full_jitter from 1 s, never shorter than 0.5 s, never longer than 30 s."),
        ({"max_retry_after": INF}, "Waits as long as a server asks.\n"),
        ({"attempts": INF}, "Calls for ever, until an attempt succeeds or fails for good.\n"),
        ({"attempts": INF}, "Has no limit in time."),
        ({"attempts": INF, "deadline": 5.0}, "Calls as often as the deadline allows.\n"),
        ({"attempts": None, "give_up_after": 5.0}, "Calls as often as give_up_after allows.\n"),
        (
            {"attempts": None, "give_up_after": 5.0, "deadline": 9.0},
            "Calls as often as the deadline and give_up_after allow.\n",
        ),
        (
            {"give_up_after": 5.0},
            "From 5 s after the call began, starts no attempt; a running one finishes, "
            "and its error is raised.\n",
        ),
        ({"logger": False}, "Logs nothing."),
        ({"logger": "app.retries"}, "Logs under app.retries."),
        ({"logger": logging.getLogger("app.retries")}, "Logs under app.retries."),
    ],
)
def test_a_description_says_what_is_particular(fields, sentence):
    assert sentence in Policy(**fields).describe()


@pytest.mark.parametrize(
    "fields", [{"on": OSError}, {"nested": "independent"}, {"nested": "defer"}], ids=repr
)
def test_a_policy_that_retries_what_an_inner_call_has_retried_does_not_say_otherwise(fields):
    assert "inner call" not in Policy(**fields).describe()


@pytest.mark.parametrize(
    ("fields", "longest"),
    [
        ({"attempts": 1}, "0 s of waiting"),
        ({"backoff": exponential}, "7 s of waiting"),
        ({"backoff": fixed, "attempts": 3}, "2 s of waiting"),
        ({"backoff": linear, "attempts": 5}, "10 s of waiting"),
        ({"backoff": equal_jitter}, "7 s of waiting"),
        ({"backoff": decorrelated_jitter, "attempts": 5, "cap": 20.0}, "52 s of waiting"),  # 3 + 9 + 20 + 20
        ({"backoff": proportional_jitter}, "8.75 s of waiting"),
        ({"backoff": functools.partial(proportional_jitter, spread=0.5)}, "10.5 s of waiting"),
        ({"backoff": immediately_once(exponential)}, "3 s of waiting"),
        ({"backoff": three, "cap": 5.0}, "15 s of waiting"),
        ({"backoff": functools.partial(three), "cap": 5.0}, "15 s of waiting"),
        ({"backoff": three, "attempts": 1, "cap": INF}, "0 s of waiting"),
        ({"deadline": 5.0}, "5 s, plus a sync attempt that is still running."),
        ({"deadline": 5.0, "attempts": None}, "5 s, plus a sync attempt that is still running."),
        ({"deadline": 9.0}, "7 s of waiting"),
        ({"attempts": 10**9, "deadline": 60.0}, "60 s, plus a sync attempt that is still running."),
        ({"enabled": False}, "0 s of waiting"),
        ({"floor": 3.0}, "10 s of waiting"),  # 3 + 3 + 4
        ({"backoff": three, "cap": 5.0, "floor": 4.0}, "15 s of waiting"),
        ({"rules": {429: Rule(floor=9.0)}}, "27 s of waiting"),
        ({"give_up_after": 5.0}, "5 s until its last attempt starts, plus that attempt."),
        ({"give_up_after": 7.0}, "7 s of waiting"),
        ({"attempts": INF, "give_up_after": 5.0}, "5 s until its last attempt starts, plus that attempt."),
        ({"give_up_after": 5.0, "deadline": 6.0}, "5 s until its last attempt starts, plus that attempt."),
        ({"give_up_after": 6.0, "deadline": 5.0}, "5 s, plus a sync attempt that is still running."),
        ({"attempts": INF, "deadline": 5.0}, "5 s, plus a sync attempt that is still running."),
    ],
)
def test_a_description_tells_the_longest_the_call_can_take(fields, longest):
    with watchdog():
        last = _longest(Policy(**fields))
    # Of a backoff that is not ours only the cap is known.
    assert last.startswith(longest)


def _longest(made):
    return made.describe().partition("Takes at most ")[2].splitlines()[0]


def test_of_a_backoff_that_is_not_ours_only_the_cap_is_known_also_after_an_immediate_retry():
    def drawing(attempt, base=1.0, cap=30.0, *, previous=None, rng=None):
        return cap * rng.random()

    described = Policy(backoff=immediately_once(drawing), cap=5.0).describe()
    assert "Takes at most 10 s" in described or "Takes at most 15 s" in described


@pytest.mark.parametrize("attempts", [2, 3, 2000])
def test_without_a_cap_the_longest_time_of_a_backoff_that_is_not_ours_is_still_a_time(attempts):
    assert "nan" not in Policy(backoff=three, cap=INF, attempts=attempts).describe()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backoff", "base"),
    [(linear, 0.001), (functools.partial(exponential, factor=1.0001), 1.0), (full_jitter, 1.0)],
)
def test_the_longest_time_of_many_attempts_is_never_understated(backoff, base):
    made = Policy(backoff=backoff, base=base, attempts=40_000, rng=AlwaysLongest())
    with watchdog():
        longest = float(_longest(made).split()[0])
        assert longest >= sum(made.delays()) * 0.999  # six digits are shown


def test_the_longest_time_counts_what_a_rule_waits():
    made = Policy(rules={429: Rule(base=60.0, cap=60.0, backoff=fixed)})
    assert "Takes at most 7 s" not in made.describe()
    assert "180 s" in made.describe()


def test_describing_a_policy_reports_no_trouble_of_its_own_making(caplog):
    def drawing(attempt, base=1.0, cap=30.0, *, previous=None, rng=None):
        return rng.random()

    Policy(backoff=immediately_once(drawing)).describe()
    Policy(backoff=functools.partial(drawing)).describe()
    assert caplog.records == []


def test_a_policy_that_is_switched_off_does_not_claim_to_call_again():
    assert "Calls up to 4 times" not in Policy(enabled=False).describe()
