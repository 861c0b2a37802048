"""Limits of a policy: attempts for ever, limits in time, and a floor below the cap."""

from __future__ import annotations

import pytest

from redouble import Cause, Policy, Rule

INF = float("inf")


@pytest.mark.parametrize("field", ["deadline", "give_up_after", "timeout"])
def test_a_limit_of_infinity_is_no_limit(field):
    assert Policy(**{field: INF}) == Policy()
    assert Policy(**{field: 5.0}).replace(**{field: INF}) == Policy()


def test_a_server_may_be_allowed_any_wait():
    assert Policy(max_retry_after=INF).max_retry_after == INF


@pytest.mark.parametrize("build", [Policy, Rule])
def test_attempts_may_be_a_float_without_a_fraction(build):
    made = build(attempts=5.0)
    assert (made.attempts, type(made.attempts)) == (5, int)


@pytest.mark.parametrize("limit", ["deadline", "give_up_after"])
def test_unlimited_attempts_need_a_limit_in_time(limit):
    never_ends = "attempts must not be None without a deadline or give_up_after: such a call may never end"
    with pytest.raises(ValueError, match=f"^{never_ends}; write math.inf to retry for ever$"):
        Policy(attempts=None)
    for none in (None, INF):
        with pytest.raises(ValueError, match=never_ends):
            Policy(attempts=None, **{limit: 5.0}).replace(**{limit: none})
    assert Policy(attempts=None, **{limit: 5.0}).attempts is None


def test_attempts_for_ever_are_said_with_infinity_and_need_no_limit_in_time():
    assert Policy(attempts=INF).attempts == Rule(attempts=INF).attempts == INF
    assert repr(Policy(attempts=INF)) == "Policy(attempts=inf)"


# floor


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: Policy(floor=60.0), "floor must be at most cap, got floor=60 and cap=30"),
        (lambda: Policy(floor=4.0).replace(cap=2.0), "floor must be at most cap, got floor=4 and cap=2"),
        (lambda: Rule(floor=4.0, cap=2.0), "floor must be at most cap, got floor=4 and cap=2"),
        (
            lambda: Policy(rules={429: Rule(floor=60.0)}),
            "in rules[429], floor must be at most cap, got floor=60 and cap=30",
        ),
        (
            lambda: Policy(floor=4.0, rules={Cause.timeout: Rule(), TimeoutError: Rule(cap=2.0)}),
            "in rules[TimeoutError], floor must be at most cap, got floor=4 and cap=2",
        ),
    ],
)
def test_a_floor_above_the_cap_is_refused_naming_both(build, text):
    with pytest.raises(ValueError) as caught:
        build()
    assert str(caught.value) == text


def test_a_floor_may_be_the_cap_and_that_of_a_rule_may_be_above_the_cap_of_the_policy():
    assert Policy(floor=30.0).floor == 30.0
    assert (
        Policy(floor=4.0, rules={429: Rule(floor=60.0, cap=90.0), 503: Rule(floor=0.0, cap=1.0)}).floor == 4.0
    )
    assert Policy(floor=1e300, cap=INF).floor == 1e300
