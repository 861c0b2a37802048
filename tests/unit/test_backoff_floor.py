"""Delay functions with a floor: no wait is shorter, and jitter keeps its spread above it."""

from __future__ import annotations

import functools
import logging
import math
import random
from decimal import Decimal
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redouble.backoff import (
    LONGEST,
    additive_jitter,
    decorrelated_jitter,
    delays,
    equal_jitter,
    exponential,
    fixed,
    full_jitter,
    immediately_once,
    linear,
    next_delay,
    proportional_jitter,
)
from support.backoffs import EVERY, INF, JITTERED, NAN, Pinned, attempts, names


@pytest.fixture(params=EVERY, ids=names)
def backoff(request):
    return request.param


def mine(attempt, base=1.0, cap=30.0, *, previous=None, rng=None):
    return 0.5 * min(attempt + 1, 1000)


# Formulas


@pytest.mark.parametrize(
    ("function", "waits"),
    [(fixed, [3.0, 3.0, 3.0, 3.0]), (linear, [3.0, 3.0, 3.0, 4.0]), (exponential, [3.0, 3.0, 4.0, 8.0])],
)
def test_without_jitter_a_wait_below_the_floor_is_the_floor(function, waits):
    assert [function(n, floor=3.0) for n in range(4)] == waits


@pytest.mark.parametrize(
    ("function", "low", "high"),
    [
        (full_jitter, 3.0, 8.0),
        (equal_jitter, 4.0, 8.0),
        (functools.partial(equal_jitter, factor=3.0), 13.5, 27.0),
        (functools.partial(decorrelated_jitter, previous=3.0), 3.0, 9.0),
        (proportional_jitter, 6.0, 10.0),
        (functools.partial(proportional_jitter, spread=1.0), 3.0, 16.0),
        (additive_jitter, 8.0, 9.0),
    ],
)
def test_jitter_is_drawn_between_the_ends_of_its_formula_raised_to_the_floor(function, low, high):
    drawn = [function(3, floor=3.0, rng=Pinned(u)) for u in (0.0, 0.5, 1.0)]
    assert drawn == [low, (low + high) / 2, high]


@pytest.mark.parametrize("function", JITTERED)
def test_jitter_whose_longest_wait_is_not_above_the_floor_waits_for_the_floor(function):
    assert {function(0, base=0.1, floor=5.0, rng=Pinned(u)) for u in (0.0, 0.3, 1.0)} == {5.0}


def test_a_draw_above_the_floor_is_clipped_to_the_cap():
    assert additive_jitter(0, 1.0, 4.0, floor=3.0, spread=9.0, rng=Pinned(0.9)) == 4.0
    assert decorrelated_jitter(0, 1.0, 4.0, floor=3.0, previous=9.0, rng=Pinned(0.9)) == 4.0


def test_a_floor_of_zero_changes_no_wait(backoff):
    for n in range(9):
        assert backoff(n, floor=0, rng=random.Random(n)) == backoff(n, rng=random.Random(n))


def test_a_retry_at_once_waits_for_the_floor():
    assert [immediately_once(exponential)(n, floor=1.5) for n in range(4)] == [1.5, 1.5, 2.0, 4.0]
    assert immediately_once(full_jitter)(3, floor=2.0, rng=Pinned(0.5)) == 3.0  # between 2 and 4


def test_a_retry_at_once_raises_the_answer_of_a_function_that_is_not_ours():
    assert [immediately_once(mine)(n, floor=0.75) for n in range(4)] == [0.75, 0.75, 1.0, 1.5]


finite = st.floats(min_value=0.0, allow_nan=False, allow_infinity=False)


@given(attempts, finite, st.floats(0.0, 1e12), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_delay_is_never_below_the_floor_nor_above_the_cap(attempt, base, cap, share, u):
    least, most = min(cap * share, LONGEST), min(cap, LONGEST)
    for function in (*EVERY, immediately_once(full_jitter)):
        assert least <= function(attempt, base, cap, floor=cap * share, rng=Pinned(u)) <= most
    for function in (*EVERY, immediately_once(full_jitter), mine, immediately_once(mine)):
        for rng in (Pinned(u), None):
            assert least <= next_delay(function, attempt, base, cap, None, rng, cap * share) <= most


# What is refused


@pytest.mark.parametrize("value", [-1.0, NAN, INF, True, Decimal("NaN")], ids=repr)
def test_a_floor_that_is_no_number_of_seconds_is_refused_naming_rule_and_value(backoff, value):
    for function in (backoff, immediately_once(backoff)):
        with pytest.raises(ValueError, match=r"^floor must be .*, got "):
            function(0, floor=value)


@pytest.mark.parametrize("value", ["1", None, False], ids=repr)
def test_a_floor_that_is_no_number_is_refused(backoff, value):
    with pytest.raises((TypeError, ValueError), match=r"^floor must be a number"):
        backoff(0, floor=value)


def test_a_floor_above_the_cap_is_refused_naming_both(backoff):
    for function in (backoff, immediately_once(backoff), lambda n, **given: delays(backoff, **given)):
        with pytest.raises(ValueError) as caught:
            function(0, cap=2.0, floor=Decimal("2.5"))
        assert str(caught.value) == "floor must be at most cap, got floor=2.5 and cap=2"
    assert backoff(0, base=1.0, cap=2.0, floor=2.0) == 2.0


def test_without_a_cap_a_floor_saturates_at_the_longest_wait_there_is(backoff):
    assert backoff(0, 1.0, INF, floor=1e300) == LONGEST
    assert next_delay(backoff, 0, 1.0, INF, None, None, 1e300) == LONGEST


# delays


def test_delays_know_the_floor():
    assert list(delays(exponential, attempts=5, floor=3.0)) == [3.0, 3.0, 4.0, 8.0]
    assert list(delays(attempts=4, floor=1.0, rng=Pinned(0.5))) == [1.0, 1.5, 2.5]


def test_decorrelated_jitter_goes_on_from_a_wait_of_the_floor():
    assert list(delays(decorrelated_jitter, attempts=4, floor=4.0, rng=Pinned(1.0))) == [4.0, 12.0, 30.0]
    assert list(delays(decorrelated_jitter, attempts=4, floor=4.0, rng=Pinned(0.0))) == [4.0, 4.0, 4.0]


@pytest.mark.parametrize("endless", [None, math.inf])
def test_delays_without_a_number_of_attempts_do_not_end(endless):
    assert list(islice(delays(fixed, attempts=endless), 5000)) == [1.0] * 5000


def test_delays_of_a_float_without_a_fraction_end():
    assert list(delays(fixed, attempts=3.0)) == [1.0, 1.0]


@pytest.mark.parametrize("rng", [None, random.Random(3)], ids=["fast", "seeded"])
def test_the_default_wait_is_spread_between_the_floor_and_its_longest(rng):
    drawn = [next_delay(full_jitter, 3, 1.0, 30.0, None, rng, 4.0) for _ in range(2000)]
    assert 4.0 <= min(drawn) < 4.1
    assert 7.9 < max(drawn) <= 8.0
    assert next_delay(full_jitter, 2, 1.0, 30.0, None, rng, 4.0) == 4.0


# Functions that are passed the floor, and others


@pytest.mark.parametrize(
    "function",
    [
        full_jitter,
        functools.partial(full_jitter, factor=2.0),
        functools.partial(functools.partial(full_jitter), factor=2.0),
        immediately_once(full_jitter),
        functools.partial(immediately_once(full_jitter)),
    ],
    ids=["function", "partial", "partial of a partial", "immediately_once", "partial of that"],
)
def test_ours_are_passed_the_floor_also_in_a_partial_and_after_a_retry_at_once(function):
    # Raised afterwards, a draw of 1 or 2 s would be 3 s; drawn above the floor it is in between.
    [*_, last] = delays(function, attempts=6, floor=3.0, rng=Pinned(0.25))
    assert last in (3.0 + 13.0 / 4, 3.0 + 5.0 / 4)


def test_a_function_that_is_not_ours_is_not_passed_the_floor_and_its_answer_is_raised():
    passed = []

    def curious(attempt, base=1.0, cap=30.0, **others):
        passed.append(sorted(others))
        return [0.5, 2.0, 99.0][attempt]

    for function in (curious, functools.partial(curious), functools.wraps(full_jitter)(curious)):
        assert list(delays(function, attempts=4, floor=1.0)) == [1.0, 2.0, 30.0]
    assert passed == [["previous", "rng"]] * 9


def test_a_partial_with_a_floor_of_its_own_keeps_it_and_is_raised():
    own = functools.partial(exponential, floor=3.0)
    assert list(delays(own, attempts=4)) == [3.0, 3.0, 4.0]
    assert list(delays(own, attempts=4, floor=3.5)) == [3.5, 3.5, 4.0]


@pytest.mark.parametrize("answer", [-1.0, NAN, "1", None], ids=repr)
@pytest.mark.parametrize(
    "wrapped", [lambda function: function, immediately_once], ids=["bare", "immediately_once"]
)
def test_a_floor_does_not_hide_a_senseless_answer(answer, wrapped, caplog):
    def nonsense(attempt, base=1.0, cap=30.0, *, previous=None, rng=None):
        return answer

    with caplog.at_level(logging.WARNING, "redouble"):
        waits = list(delays(wrapped(nonsense), attempts=4, floor=2.0, rng=Pinned(0.5)))
    assert waits[1:] == [2.0, 3.0]  # of full jitter, above the floor
    assert len(caplog.records) == 1


async def coroutine(*args, **kwargs):
    return 1.0


def test_an_answer_that_would_have_to_be_awaited_is_closed_and_replaced(caplog):
    with caplog.at_level(logging.WARNING, "redouble"):
        assert list(delays(immediately_once(coroutine), attempts=3, floor=2.0)) == [2.0, 2.0]
    assert len(caplog.records) == 1


def test_with_a_broken_random_source_the_floor_still_holds(caplog):
    class Broken(random.Random):
        def uniform(self, low, high):
            raise LookupError

    with caplog.at_level(logging.WARNING, "redouble"):
        assert all(wait >= 2.0 for wait in delays(full_jitter, attempts=6, floor=2.0, rng=Broken()))


# A floor and other parts


def test_a_floor_of_a_partial_is_not_replaced_by_that_of_the_policy():
    own = functools.partial(exponential, floor=5.0)
    assert list(delays(own, attempts=4, floor=2.0)) == [5.0, 5.0, 5.0]
    assert list(delays(own, attempts=3, floor=7.0)) == [7.0, 7.0]


def test_a_floor_reaches_a_function_of_the_users_own_inside_immediately_once():
    assert list(delays(immediately_once(mine), attempts=4, floor=0.75)) == [0.75, 0.75, 1.0]


def test_a_floor_of_1_is_compared_with_the_cap_too():
    with pytest.raises(ValueError, match=r"^floor must be at most cap, got floor=1 and cap=0\.5$"):
        full_jitter(0, cap=0.5, floor=1.0)


def test_immediately_once_returns_the_answer_of_another_function_as_it_is():
    assert immediately_once(lambda *args, **fields: None)(1) is None


@pytest.mark.parametrize("floor", [0.0, 2.0])
@pytest.mark.parametrize(
    ("later", "said"),
    [
        (False, "the delay must be a number, got 'soon'"),
        (True, "it returned an awaitable: it must be a plain"),
    ],
)
def test_the_log_says_what_is_wrong_with_an_answer_with_a_floor_and_without(floor, later, said, caplog):
    async def soon(): ...

    def wrong(*args, **fields):
        return soon() if later else "soon"

    with caplog.at_level(logging.WARNING, "redouble"):
        next_delay(wrong, 0, 1.0, 30.0, None, None, floor)
    assert caplog.records[0].exc_text.splitlines()[-1].startswith(f"TypeError: {said}")
