"""Delay functions: their formulas, their bounds, and the figures other projects publish for the same formulas."""

from __future__ import annotations

import functools
import inspect
import logging
import math
import random
import threading
import time
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from redouble import Policy
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
    proportional_jitter,
)
from support.backoffs import EVERY, INF, NAN, Pinned, attempts, names

GROWING = [exponential, full_jitter, equal_jitter, proportional_jitter, additive_jitter]


@pytest.fixture(params=EVERY, ids=names)
def backoff(request):
    return request.param


# Formulas


def test_fixed_waits_the_base_every_time():
    assert [fixed(n, base=2.0) for n in range(4)] == [2.0] * 4


def test_linear_waits_one_base_more_each_time():
    assert [linear(n, base=2.0, cap=7.0) for n in range(5)] == [2.0, 4.0, 6.0, 7.0, 7.0]


def test_exponential_doubles_unless_told_otherwise():
    assert [exponential(n, base=0.5, cap=3.0) for n in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert [exponential(n, factor=3.0) for n in range(5)] == [1.0, 3.0, 9.0, 27.0, 30.0]


@pytest.mark.parametrize(("u", "delay"), [(0.0, 0.0), (0.25, 1.0), (0.5, 2.0), (1.0, 4.0)])
def test_full_jitter_draws_between_nothing_and_the_exponential_wait(u, delay):
    assert full_jitter(2, rng=Pinned(u)) == delay


@pytest.mark.parametrize(("u", "delay"), [(0.0, 2.0), (0.25, 2.5), (0.5, 3.0), (1.0, 4.0)])
def test_equal_jitter_draws_the_upper_half_of_the_exponential_wait(u, delay):
    assert equal_jitter(2, rng=Pinned(u)) == delay


@pytest.mark.parametrize(("u", "delay"), [(0.0, 1.0), (0.5, 3.5), (1.0, 6.0)])
def test_decorrelated_jitter_draws_between_the_base_and_thrice_the_previous_delay(u, delay):
    assert decorrelated_jitter(5, previous=2.0, rng=Pinned(u)) == delay


def test_decorrelated_jitter_without_a_previous_delay_starts_from_the_base():
    assert decorrelated_jitter(0, base=2.0, rng=Pinned(1.0)) == 6.0
    assert decorrelated_jitter(9, base=2.0, previous=None, rng=Pinned(1.0)) == 6.0


@pytest.mark.parametrize(("u", "delay"), [(0.0, 2.0), (0.5, 4.0), (1.0, 6.0)])
def test_proportional_jitter_draws_around_the_exponential_wait(u, delay):
    assert proportional_jitter(2, spread=0.5, rng=Pinned(u)) == delay


@pytest.mark.parametrize(("u", "delay"), [(0.0, 4.0), (0.5, 5.0), (1.0, 6.0)])
def test_additive_jitter_draws_above_the_exponential_wait(u, delay):
    assert additive_jitter(2, spread=2.0, rng=Pinned(u)) == delay


def test_the_default_spreads_are_a_quarter_and_one_second():
    assert proportional_jitter(0, rng=Pinned(1.0)) == 1.25
    assert additive_jitter(0, rng=Pinned(1.0)) == 2.0


@pytest.mark.parametrize("function", [full_jitter, equal_jitter, proportional_jitter, additive_jitter])
def test_every_growing_jitter_takes_a_factor(function):
    assert function(2, factor=3.0, rng=Pinned(1.0)) > function(2, factor=2.0, rng=Pinned(1.0))


def test_the_defaults_are_a_base_of_1_and_a_cap_of_30_for_every_function(backoff):
    for function in (backoff, immediately_once(backoff)):
        parameters = inspect.signature(function).parameters
        assert [*parameters][:3] == ["attempt", "base", "cap"]
        assert (parameters["base"].default, parameters["cap"].default) == (1.0, 30.0)
        assert {parameters[name].kind for name in ("previous", "rng")} == {inspect.Parameter.KEYWORD_ONLY}
        assert (parameters["previous"].default, parameters["rng"].default) == (None, None)
        assert function(9, rng=Pinned(1.0)) == function(9, 1.0, 30.0, rng=Pinned(1.0)) > 0.0


def test_without_a_random_source_the_random_module_is_used(monkeypatch):
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    assert full_jitter(2) == 4.0
    assert list(delays(attempts=7, base=1.5)) == [1.5, 3.0, 6.0, 12.0, 24.0, 30.0]


@pytest.mark.parametrize("number", [2, Decimal(2), Fraction(2), 2.0])
def test_any_kind_of_number_is_seconds_and_a_float_comes_out(backoff, number):
    seconds = backoff(1, number, number, rng=Pinned(0.5))
    assert type(seconds) is float
    assert seconds == backoff(1, 2.0, 2.0, rng=Pinned(0.5))


@pytest.mark.parametrize("number", [1, Decimal(1), Fraction(1)])
def test_any_kind_of_number_is_a_factor_a_spread_or_a_previous_delay(number):
    half = Pinned(0.5)
    assert exponential(3, factor=number) == 1.0
    assert proportional_jitter(1, spread=number, rng=half) == 2.0
    assert additive_jitter(1, spread=number, rng=half) == 2.5
    assert decorrelated_jitter(1, previous=number, rng=half) == 2.0


def test_an_attempt_may_be_anything_with_an_index(backoff):
    class Two:
        def __index__(self):
            return 2

    assert backoff(Two(), rng=Pinned(0.5)) == backoff(2, rng=Pinned(0.5))


# Bounds

finite = st.floats(min_value=0.0, allow_nan=False, allow_infinity=False)
caps = st.one_of(finite, st.just(INF))
draws = st.floats(0.0, 1.0)


@given(attempts, finite, caps, draws, st.one_of(st.none(), finite))
@example(10**400, 5e-324, INF, 1.0, None)
@example(10**9, 1.7976931348623157e308, INF, 1.0, 1.7976931348623157e308)
@example(10**9, 1.7976931348623157e308, 5e-324, 0.5, 0.0)
@example(0, 0.0, 0.0, 1.0, None)
def test_a_delay_is_never_negative_nor_above_the_cap_whatever_the_input(attempt, base, cap, u, previous):
    for function in (*EVERY, immediately_once(full_jitter)):
        delay = function(attempt, base, cap, previous=previous, rng=Pinned(u))
        assert type(delay) is float, function
        assert 0.0 <= delay <= min(cap, threading.TIMEOUT_MAX), function


@given(attempts, finite, caps, st.floats(1.0, allow_nan=False, allow_infinity=False), draws)
@example(10**400, 1.0, 30.0, 1.0000000000000002, 1.0)
def test_no_growth_factor_leads_out_of_the_bounds(attempt, base, cap, factor, u):
    for function in GROWING:
        delay = function(attempt, base, cap, factor=factor, rng=Pinned(u))
        assert 0.0 <= delay <= min(cap, threading.TIMEOUT_MAX), function


@given(attempts, finite, caps, st.floats(0.0, 1.0), finite, draws)
def test_no_spread_leads_out_of_the_bounds(attempt, base, cap, share, seconds, u):
    for function, spread in ((proportional_jitter, share), (additive_jitter, seconds)):
        delay = function(attempt, base, cap, spread=spread, rng=Pinned(u))
        assert 0.0 <= delay <= min(cap, threading.TIMEOUT_MAX), function


@given(st.integers(0, 3000), finite, caps)
@example(1024, 5e-324, 30.0)  # 2.0 ** 1024 is past the largest float, the product is not past the cap
@example(1100, 1e-300, INF)
def test_exponential_is_the_formula_in_exact_arithmetic(attempt, base, cap):
    ceiling = Fraction(min(cap, LONGEST))
    expected = min(ceiling, Fraction(base) * 2**attempt)
    assert math.isclose(exponential(attempt, base, cap), expected, rel_tol=1e-12, abs_tol=1e-320)


@given(st.one_of(st.integers(0, 10**9), st.just(10**400)), finite, caps)
def test_linear_is_the_formula_in_exact_arithmetic(attempt, base, cap):
    ceiling = Fraction(min(cap, LONGEST))
    expected = min(ceiling, Fraction(base) * (attempt + 1))
    assert math.isclose(linear(attempt, base, cap), expected, rel_tol=1e-12, abs_tol=1e-320)


@pytest.mark.parametrize("attempt", [10**6, 10**9, 10**400], ids=["10**6", "10**9", "10**400"])
def test_a_huge_attempt_number_gives_the_cap(attempt):
    assert linear(attempt, 0.1) == 30.0
    assert exponential(attempt, 0.1) == 30.0
    assert full_jitter(attempt, 0.1, rng=Pinned(0.5)) == 15.0
    assert equal_jitter(attempt, 0.1, rng=Pinned(0.5)) == 22.5
    assert proportional_jitter(attempt, 0.1, rng=Pinned(1.0)) == 30.0
    assert additive_jitter(attempt, 0.1, rng=Pinned(1.0)) == 30.0
    assert fixed(attempt, 0.1) == 0.1
    assert decorrelated_jitter(attempt, 0.1, previous=30.0, rng=Pinned(1.0)) == 30.0


def test_a_huge_attempt_number_costs_no_more_than_a_small_one(backoff):
    def quickest(attempt):
        def took():
            start = time.perf_counter()
            backoff(attempt, 0.1, 30.0)
            return time.perf_counter() - start

        # The quickest of many: what the machine did beside it does not count.
        return min(took() for _ in range(500))

    # Ten microseconds more at most, and what a tracer such as coverage adds to both.
    limit = 10e-6 + 5 * quickest(3)
    assert quickest(10**9) < limit
    assert quickest(10**400) < limit


@pytest.mark.parametrize("function", [linear, exponential])
def test_without_a_cap_a_delay_saturates_at_the_longest_wait_there_is(function):
    assert function(10**11, 1.0, INF) == threading.TIMEOUT_MAX == LONGEST
    assert fixed(0, 1e300, INF) == LONGEST
    assert decorrelated_jitter(0, 1e308, INF, previous=1e308) == LONGEST


@pytest.mark.parametrize("base", [0.0, 5e-324, 1e-9, 1.0])
def test_two_thousand_failures_without_a_cap_never_ask_for_more_than_can_be_slept(backoff, base):
    waits = list(delays(backoff, attempts=2001, base=base, cap=INF, rng=random.Random(3)))
    assert len(waits) == 2000
    assert all(0.0 <= wait <= threading.TIMEOUT_MAX for wait in waits)


@pytest.mark.parametrize(
    "function",
    [fixed, linear, exponential, full_jitter, equal_jitter, decorrelated_jitter, proportional_jitter],
)
def test_a_base_of_zero_gives_no_wait_at_all(function):
    for attempt in (0, 1, 1023, 1024, 1500, 10**9, 10**400):
        assert function(attempt, 0.0, INF, rng=Pinned(1.0)) == 0.0
    assert set(delays(function, attempts=1501, base=0, rng=Pinned(1.0))) == {0.0}


def test_a_base_of_zero_leaves_additive_jitter_its_spread():
    # Its jitter is in seconds of its own: with a spread of nothing there is no wait either.
    assert additive_jitter(10**9, 0.0, rng=Pinned(0.5)) == 0.5
    assert additive_jitter(10**9, 0.0, spread=0.0, rng=Pinned(0.5)) == 0.0


def test_a_cap_below_the_base_bounds_every_delay_from_the_first_on(backoff):
    assert all(wait <= 2.0 for wait in delays(backoff, attempts=50, base=4.0, cap=2.0))
    assert backoff(0, 4.0, 2.0, rng=Pinned(1.0)) == 2.0


@pytest.mark.parametrize("function", GROWING)
@pytest.mark.parametrize("factor", [0.8, 0.5, 0, 0.9999999])  # temporal and failsafe probe 0.8 and 0.5
def test_a_shrinking_factor_is_refused_naming_the_rule(function, factor):
    with pytest.raises(ValueError) as caught:
        function(0, factor=factor)
    assert str(caught.value) == f"factor must be at least 1 (1 is a fixed wait), got {factor}"


@pytest.mark.parametrize("attempt", [0, 1, 1024, 10**9, 10**400], ids=["0", "1", "1024", "10**9", "10**400"])
def test_a_factor_of_1_is_a_fixed_wait(attempt):
    assert exponential(attempt, 2.0, factor=1.0) == 2.0
    assert full_jitter(attempt, 2.0, factor=1, rng=Pinned(0.5)) == 1.0


# What is refused


@pytest.mark.parametrize("argument", ["base", "cap", "previous", "factor", "spread"])
@pytest.mark.parametrize(
    "value", [-1.0, -1e-300, NAN, -INF, Decimal("NaN"), Decimal("sNaN"), Fraction(-1, 3)]
)
def test_negative_and_undefined_seconds_are_refused_naming_argument_rule_and_value(argument, value):
    functions = {"previous": [decorrelated_jitter], "factor": GROWING, "spread": [proportional_jitter]}
    for function in functions.get(argument, EVERY):
        with pytest.raises(ValueError) as caught:
            function(0, **{argument: value})
        message = str(caught.value)
        assert message.startswith(f"{argument} must be ")
        assert message.endswith(f", got {value!r}")


@pytest.mark.parametrize("argument", ["base", "previous", "factor", "spread"])
@pytest.mark.parametrize("value", [INF, 10**400], ids=["inf", "10**400"])
def test_infinity_is_refused_for_everything_but_the_cap(argument, value):
    function = {"previous": decorrelated_jitter, "spread": additive_jitter}.get(argument, exponential)
    with pytest.raises(ValueError) as caught:
        function(0, **{argument: value})
    assert str(caught.value) == f"{argument} must be finite and not negative, got {value!r}"


@pytest.mark.parametrize("argument", ["base", "cap", "previous", "factor", "spread"])
@pytest.mark.parametrize("value", [True, False])
def test_a_bool_is_no_number_of_seconds(argument, value):
    function = {"previous": decorrelated_jitter, "spread": additive_jitter}.get(argument, exponential)
    with pytest.raises(ValueError) as caught:
        function(0, **{argument: value})
    assert str(caught.value) == f"{argument} must be a number, not a bool, got {value}"


@pytest.mark.parametrize("argument", ["base", "cap", "previous", "factor", "spread"])
@pytest.mark.parametrize("value", ["1", b"1", [], object, 1j])
def test_what_is_no_number_is_refused_naming_argument_rule_and_value(argument, value):
    function = {"previous": decorrelated_jitter, "spread": additive_jitter}.get(argument, exponential)
    with pytest.raises(TypeError) as caught:
        function(0, **{argument: value})
    assert str(caught.value) == f"{argument} must be a number, got {value!r}"


def test_none_stands_for_no_previous_delay_only():
    assert decorrelated_jitter(0, previous=None, rng=Pinned(0.0)) == 1.0
    for argument in ("base", "cap", "factor"):
        with pytest.raises(TypeError, match=f"{argument} must be a number, got None"):
            exponential(0, **{argument: None})


def test_a_proportional_spread_above_1_is_refused_since_delays_are_not_negative():
    with pytest.raises(ValueError) as caught:
        proportional_jitter(0, spread=1.5)
    assert str(caught.value) == "spread must be at most 1 (a delay cannot be negative), got 1.5"


@pytest.mark.parametrize(
    ("attempt", "error", "rule"),
    [
        (-1, ValueError, "at least 0"),
        (1.0, ValueError, "a whole number"),
        (NAN, ValueError, "a whole number"),
        (True, ValueError, "a whole number, not a bool"),
        ("1", TypeError, "a whole number"),
        (None, TypeError, "a whole number"),
    ],
)
def test_an_attempt_that_is_no_count_is_refused_naming_rule_and_value(backoff, attempt, error, rule):
    with pytest.raises(error) as caught:
        backoff(attempt)
    assert str(caught.value) == f"attempt must be {rule}, got {attempt!r}"


# Distributions


def counts_of(draws, low, high, bins):
    width = (high - low) / bins
    counts = [0] * bins
    for draw in draws:
        counts[min(bins - 1, int((draw - low) / width))] += 1
    return counts


def chi_square(counts):
    mean = sum(counts) / len(counts)
    return sum((count - mean) ** 2 / mean for count in counts)


@pytest.mark.parametrize(
    ("function", "low", "high"),
    [
        (full_jitter, 0.0, 8.0),
        (equal_jitter, 4.0, 8.0),
        (functools.partial(decorrelated_jitter, previous=3.0), 1.0, 9.0),
        (proportional_jitter, 6.0, 10.0),
        (additive_jitter, 8.0, 9.0),
    ],
)
def test_every_jitter_is_uniform_on_its_range(function, low, high):
    rng = random.Random(20)
    drawn = [function(3, rng=rng) for _ in range(10_000)]
    assert low <= min(drawn) < max(drawn) <= high
    counts = counts_of(drawn, low, high, 20)
    assert all(abs(count - 500) < 100 for count in counts)
    assert chi_square(counts) < 52.4  # p = 1e-4 with 19 degrees of freedom
    assert sum(drawn) / 10_000 == pytest.approx((low + high) / 2, rel=0.02)


def test_at_the_cap_every_second_is_drawn_alike():
    # As botocore tests it: 10,000 draws at the cap of 20, each bin within 20 % of the mean.
    rng = random.Random(1)
    counts = counts_of([full_jitter(20, 1.0, 20.0, rng=rng) for _ in range(10_000)], 0.0, 20.0, 20)
    assert all(abs(count - 500) < 100 for count in counts)


@pytest.mark.parametrize(
    ("n", "mean", "tolerance"),
    [
        (1, 0.25, 0.02),
        (2, 0.5, 0.04),
        (3, 1, 0.08),
        (4, 2, 0.16),
        (5, 4, 0.32),
        (6, 8, 0.64),
        (7, 16, 1.28),
        (8, 30, 2.56),
        (9, 30, 2.56),
    ],
)
def test_the_means_of_full_jitter_are_those_that_tenacity_publishes(n, mean, tolerance):
    rng = random.Random(n)
    drawn = [full_jitter(n - 1, 0.5, 60.0, rng=rng) for _ in range(4000)]
    assert sum(drawn) / 4000 == pytest.approx(mean, abs=tolerance)


# A backoff of the user's that misbehaves


def told(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "redouble"]


@pytest.mark.parametrize("answer", [NAN, INF, -INF, -1.0, "1", None, True, [], 1j, Decimal("NaN")], ids=repr)
def test_a_backoff_that_answers_nonsense_is_replaced_by_full_jitter_and_told_of_once(answer, caplog):
    def nonsense(attempt, base=1.0, cap=30.0, *, previous=None, rng=None):
        return answer

    with caplog.at_level(logging.WARNING, "redouble"):
        assert list(delays(nonsense, attempts=5, cap=3.0, rng=Pinned(0.5))) == [0.5, 1.0, 1.5, 1.5]
    assert told(caplog) == ["backoff nonsense failed; using full_jitter instead (said once)"]
    message = caplog.records[0].exc_text.splitlines()[-1].partition(": ")[2]
    assert message.startswith("the delay must be ")
    assert message.endswith(f"got {answer!r}")


def test_a_backoff_that_raises_is_replaced_by_full_jitter_and_told_of_once(caplog):
    def broken(attempt, base=1.0, cap=30.0, *, previous=None, rng=None):
        if attempt == 1:
            return 7.0
        raise LookupError("no such delay")

    with caplog.at_level(logging.WARNING, "redouble"):
        assert list(delays(broken, attempts=4, rng=Pinned(0.5))) == [0.5, 7.0, 2.0]
    assert told(caplog) == ["backoff broken failed; using full_jitter instead (said once)"]
    assert caplog.records[0].exc_text.endswith("\nLookupError: no such delay")


def test_two_backoffs_that_misbehave_are_both_told_of(caplog):
    def made():
        return lambda *args, **kwargs: -1

    first, second = made(), made()
    with caplog.at_level(logging.WARNING, "redouble"):
        for function in (first, second, first, second):
            list(delays(function, attempts=3))
    assert len(told(caplog)) == 2


def test_a_backoff_of_another_signature_is_told_of_rather_than_raised(caplog):
    with caplog.at_level(logging.WARNING, "redouble"):
        assert list(delays(lambda attempt: 1.0, attempts=3, rng=Pinned(1.0))) == [1.0, 2.0]
    assert len(told(caplog)) == 1
    assert "\nTypeError: " in caplog.records[0].exc_text


def test_an_interrupt_in_a_backoff_is_not_held_back():
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        next(delays(interrupted))


def test_an_answer_above_the_cap_is_clipped_without_a_word(caplog):
    assert list(delays(lambda *args, **kwargs: 99, attempts=3, cap=2)) == [2.0, 2.0]
    assert list(delays(lambda *args, **kwargs: 1e300, attempts=2, cap=INF)) == [LONGEST]
    assert told(caplog) == []


def test_a_backoff_whose_very_name_raises_does_no_harm():
    class Nasty:
        def __getattr__(self, name):
            raise RuntimeError(name)

        def __call__(self, *args, **kwargs):
            raise LookupError

    assert list(delays(Nasty(), attempts=3, rng=Pinned(1.0))) == [1.0, 2.0]


class NanSource(random.Random):
    def uniform(self, a, b):
        return NAN


class BrokenSource(random.Random):
    def uniform(self, a, b):
        raise OSError("no entropy")


@pytest.mark.parametrize(
    ("make", "trouble"),
    [(NanSource, "the delay must be finite and not negative, got nan"), (BrokenSource, "no entropy")],
)
def test_for_a_broken_random_source_the_random_module_stands_in_and_it_is_logged_once(make, trouble, caplog):
    with caplog.at_level(logging.WARNING, "redouble"):
        waits = list(delays(attempts=4, rng=make()))
    assert len(waits) == 3
    assert all(0.0 <= wait <= 4.0 for wait in waits)
    assert told(caplog)[1:] == ["rng failed; using the random module instead (said once)"]
    assert caplog.records[1].exc_text.endswith(f": {trouble}")


def test_an_interrupt_in_a_random_source_or_in_the_name_of_a_backoff_is_not_held_back():
    class Interrupted(random.Random):
        def uniform(self, a, b):
            raise KeyboardInterrupt

    class Nameless:
        @property
        def __name__(self):
            raise KeyboardInterrupt

        def __call__(self, *args, **kwargs):
            raise LookupError

    for backoff, rng in ((lambda *args, **kwargs: -1, Interrupted()), (Nameless(), None)):
        with pytest.raises(KeyboardInterrupt):
            next(delays(backoff, rng=rng))


def test_a_misbehaving_backoff_never_hides_the_result(flavour, clock, caplog):
    def broken(*args, **kwargs):
        raise LookupError("no such delay")

    policy = Policy(backoff=broken, rng=Pinned(0.5), clock=clock, sleep=clock.sleep)
    with caplog.at_level(logging.WARNING, "redouble"):
        assert flavour.call(policy, flavour.scripted(TimeoutError(), TimeoutError(), "page")) == "page"
    assert clock.waits == [0.5, 1.0]
    assert sum("using full_jitter instead" in message for message in told(caplog)) == 1


def test_a_misbehaving_backoff_never_hides_the_error(flavour, clock):
    error = TimeoutError("slow")
    policy = Policy(backoff=lambda *args, **kwargs: NAN, rng=Pinned(0.5), clock=clock, sleep=clock.sleep)
    with pytest.raises(TimeoutError) as caught:
        flavour.call(policy, flavour.scripted(*[error] * 4))
    assert caught.value is error
    assert clock.waits == [0.5, 1.0, 2.0]
