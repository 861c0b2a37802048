"""Delay functions against published sequences of other projects."""

from __future__ import annotations

import copy
import functools
import itertools
import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redouble import Policy
from redouble.backoff import (
    LONGEST,
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
from redouble.testing import FakeClock, scripted
from support.backoffs import EVERY, INF, NAN, Pinned, names


@pytest.fixture(params=EVERY, ids=names)
def backoff(request):
    return request.param


# Published figures of other projects. Where they count attempts from 1, or from the first try, n is shifted.


@pytest.mark.parametrize(
    ("function", "scale", "cap", "expected"),
    [
        (exponential, 2, 20, [2, 4, 8, 16, 20, 20]),
        (exponential, 1, 20, [1, 2, 4, 8, 16, 20]),
        (exponential, 4, 2, [2, 2, 2]),
        (exponential, 23.4, 76.5, [23.4, 46.8, 76.5, 76.5]),
        (full_jitter, 2, 20, [1, 2, 4, 8, 10, 10]),
        (full_jitter, 5, 20, [2.5, 5, 10, 10]),
        (full_jitter, 5, 10, [2.5, 5, 5, 5]),
        (full_jitter, 23.4, 76.5, [11.7, 23.4, 38.25, 38.25]),
        (equal_jitter, 2, 20, [1.5, 3, 6, 12, 15, 15]),
        (equal_jitter, 23.4, 76.5, [17.55, 35.1, 57.375, 57.375]),
        (exponential, 5, 0, [0, 0, 0]),
        (exponential, 0, 5, [0, 0, 0]),
        (exponential, 0, 0, [0, 0, 0]),
        (full_jitter, 5, 0, [0, 0, 0]),
        (full_jitter, 0, 5, [0, 0, 0]),
        (full_jitter, 0, 0, [0, 0, 0]),
    ],
)
def test_the_figures_of_smithy_python(function, scale, cap, expected):
    found = list(delays(function, attempts=len(expected) + 1, base=scale, cap=cap, rng=Pinned(0.5)))
    assert found == pytest.approx(expected)


def test_decorrelated_jitter_follows_the_published_formula_where_smithy_python_does_not():
    # smithy-python computes scale + u * 3 * previous, not uniform(scale, 3 * previous): 5, 9.5, 16.25, 20.
    found = list(delays(decorrelated_jitter, attempts=5, base=2, cap=20, rng=Pinned(0.5)))
    assert found == [4.0, 7.0, 11.5, 18.25]


@pytest.mark.parametrize(
    ("u", "base", "cap", "expected"),
    [
        (0.5, 2, 20, [4.0, 7.0, 11.5, 18.25, 20, 20]),
        (0.0, 2, 20, [2.0] * 6),
        (1.0, 2, 20, [6.0, 18.0, 20, 20, 20, 20]),
        (0.5, 23.4, 76.5, [46.8, 76.5, 76.5, 76.5, 76.5]),
        (
            0.5,
            5,
            2000,
            [
                10.0,
                17.5,
                28.75,
                45.625,
                70.9375,
                108.90625,
                165.859375,
                251.2890625,
                379.43359375,
                571.650390625,
            ],
        ),
        (1.0, 5, 2000, [15.0, 45.0, 135.0, 405.0, 1215.0, 2000, 2000, 2000]),
    ],
)
def test_the_figures_of_the_aws_blog_for_decorrelated_jitter(u, base, cap, expected):
    found = list(delays(decorrelated_jitter, attempts=len(expected) + 1, base=base, cap=cap, rng=Pinned(u)))
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        (1, [1, 2, 4, 8, 16, 20, 20, 20, 20]),
        (0.05, [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 20, 20]),
    ],
)
def test_the_figures_of_botocore(base, expected):
    found = list(delays(full_jitter, attempts=len(expected) + 1, base=base, cap=20, rng=Pinned(1.0)))
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("attempt", "below", "half"),
    [(2, 22, 11), (3, 45, 23), (5, 183, 92), (7, 735, 368), (11, 11775, 5888), (13, 19999, 10000)],
)
def test_the_figures_of_the_aws_sdk_for_java(attempt, below, half):
    # In whole milliseconds, drawn below the bound; its attempt 1 is the first try.
    bound = full_jitter(attempt - 2, 0.023, 20.0, rng=Pinned(1.0))
    assert round(bound * 1000) == below + 1
    assert int(full_jitter(attempt - 2, 0.023, 20.0, rng=Pinned(0.5)) * 1000) == half
    assert full_jitter(attempt - 2, 0.023, 20.0, rng=Pinned(0.0)) == 0.0


@pytest.mark.parametrize(("base", "n", "ceiling_ms"), [(1, 10, 1024000), (1e-9, 30, 1073)])
def test_the_ceilings_of_equal_jitter_in_the_aws_sdk_for_java(base, n, ceiling_ms):
    # Its other ceilings are those of a 32-bit int and of an exponent cut at 30, which there is none of here.
    assert int(equal_jitter(n, base, INF, rng=Pinned(1.0)) * 1000) == ceiling_ms
    assert int(equal_jitter(n, base, INF, rng=Pinned(0.0)) * 1000) == ceiling_ms // 2


@pytest.mark.parametrize(
    ("attempt", "u", "delay"),
    [
        (1, 0.0, 0.0),
        (1, 1 - 2**-53, 2 * (1 - 2**-53)),
        (2, 0.5, 2.0),
        (2147483647, 1 - 2**-53, 20 * (1 - 2**-53)),
    ],
)
def test_the_figures_of_the_aws_sdk_for_go(attempt, u, delay):
    assert full_jitter(attempt, 1.0, 20.0, rng=Pinned(u)) == delay


@pytest.mark.parametrize(
    ("function", "base", "cap", "expected"),
    [
        (fixed, 7, INF, [7] * 7),
        (exponential, 2, INF, [2, 4, 8, 16, 32]),
        (exponential, 2, 15, [2, 4, 8, 15, 15]),
        # Of its linear series only this starts with its own step; 7, 17, 27 has no counterpart here.
        (linear, 1, INF, [1, 2, 3, 4]),
    ],
)
def test_the_figures_of_finagle(function, base, cap, expected):
    assert list(delays(function, attempts=len(expected) + 1, base=base, cap=cap)) == expected


@pytest.mark.parametrize(
    ("base", "cap", "remainders"), [(5, 100, [4, 9, 19, 39, 79, 99, 99]), (25, 30, [24, 29, 29])]
)
def test_the_ranges_of_envoy(base, cap, remainders):
    # It takes a random integer modulo the exponential wait, so the largest it can give is one less.
    found = list(delays(full_jitter, attempts=len(remainders) + 1, base=base, cap=cap, rng=Pinned(1.0)))
    assert found == [largest + 1 for largest in remainders]


@pytest.mark.parametrize(
    ("cap", "expected"),
    [(120, {1: 0, 2: 0.4, 3: 0.8, 4: 1.6, 14: 120}), (1, {1: 0, 2: 0.4, 3: 0.8, 4: 1, 5: 1})],
)
def test_the_figures_of_urllib3_whose_first_retry_is_immediate(cap, expected):
    function = immediately_once(exponential)
    found = {n: function(n - 1, 0.4, cap) for n in expected}
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("base", "cap", "expected"),
    [
        (1, INF, {n + 1: 2**n for n in range(8)}),
        (1, 40, {1: 1, 6: 32, 7: 40, 8: 40, 50: 40}),
        (1, INF, {20: 524288}),
        (2, INF, {20: 1048576}),
        (1, 100, {5: 16, 7: 64, 8: 100, 20: 100}),
        (1e300, 1e-100, {1: 1e-100}),
    ],
)
def test_the_figures_of_tenacity(base, cap, expected):
    # Its minimum has no counterpart; only what lies above it is taken.
    assert {n: exponential(n - 1, base, cap) for n in expected} == expected


@pytest.mark.parametrize(
    ("base", "factor", "cap", "expected"),
    [
        (1, 2, INF, [1, 2, 4, 8, 16, 32, 64, 128, 256]),
        (5, 3, INF, [5, 15, 45, 135, 405, 1215, 3645, 10935, 32805]),
        (1, 2, 16, [1, 2, 4, 8, 16, 16, 16]),
    ],
)
def test_the_figures_of_backoff(base, factor, cap, expected):
    # What it calls base is the factor here, and the other way round.
    function = functools.partial(exponential, factor=factor)
    assert list(delays(function, attempts=len(expected) + 1, base=base, cap=cap)) == expected


def test_a_fibonacci_series_of_ones_own_is_clipped_to_the_cap():
    def fibonacci(attempt, base=1.0, cap=30.0, *, previous=None, rng=None):
        a, b = 1, 1
        for _ in range(attempt):
            a, b = b, a + b
        return base * a

    assert list(delays(fibonacci, attempts=9, cap=8)) == [1, 1, 2, 3, 5, 8, 8, 8]


@pytest.mark.parametrize(
    ("initial", "expected"),
    [
        (1, [1, 2, 4, 8, 10, 10, 10, 10, 10, 10]),
        (0.05, [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10, 10]),
    ],
)
def test_the_figures_of_temporal(initial, expected):
    found = list(delays(exponential, attempts=len(expected) + 1, base=initial, cap=10))
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("delay", "u", "jittered"),
    [
        (100, 0, 150),
        (100, 0.25, 125),
        (100, 0.5, 100),
        (100, 0.75, 75),
        (100, 0.9999, 50),
        (500, 0.25, 625),
        (500, 0.75, 375),
        (50000, 0.25, 62500),
    ],
)
def test_the_figures_of_failsafe_for_a_jitter_factor_of_a_half(delay, u, jittered):
    # It counts downwards from the top, in whole milliseconds.
    found = proportional_jitter(0, delay, INF, spread=0.5, rng=Pinned(1 - u))
    assert found == pytest.approx(jittered, abs=0.02)


@pytest.mark.parametrize(
    ("wait", "u", "jittered"),
    [
        (1, 0.0, 0.75),
        (1, 0.4, 0.95),
        (1, 0.6, 1.05),
        (1, 1.0, 1.25),
        (3, 0.0, 2.25),
        (3, 0.4, 2.85),
        (3, 0.5, 3.0),
        (3, 0.6, 3.15),
        (3, 1.0, 3.75),
    ],
)
def test_the_figures_of_polly_for_a_jittered_wait(wait, u, jittered):
    # Its constant wait of 1 and its third linear wait of 3: the jitter around them is proportional_jitter's.
    assert proportional_jitter(0, wait, rng=Pinned(u)) == pytest.approx(jittered)


@pytest.mark.parametrize("attempt", [1, 2, 3, 4, 10, 100, 1000, 1024, 1025])
def test_the_attempts_that_polly_probes_stay_within_bounds(attempt):
    day = 86400.0
    assert 0 < exponential(attempt, day, INF) <= LONGEST
    assert exponential(attempt, day, 2 * day) == 2 * day
    assert exponential(1000, day, INF) == LONGEST


@given(st.integers(0, 10**6), st.floats(0.0, 1.0))
def test_jitter_of_a_fifth_as_in_grpc_never_passes_the_maximum(attempt, u):
    assert 0 <= proportional_jitter(attempt, 1.0, 120.0, spread=0.2, rng=Pinned(u)) <= 120.0


# immediately_once


def test_the_first_retry_comes_at_once_and_then_the_backoff_from_its_beginning():
    assert [immediately_once(exponential)(n) for n in range(4)] == [0.0, 1.0, 2.0, 4.0]
    assert list(delays(immediately_once(linear), attempts=4, base=2.0, cap=3.0)) == [0.0, 2.0, 3.0]


def test_the_immediate_retry_does_not_count_as_a_previous_delay():
    seen = []

    def spy(attempt, base, cap, *, previous=None, rng=None):
        seen.append((attempt, base, cap, previous, rng))
        return 5.0

    rng = random.Random(0)
    assert list(delays(immediately_once(spy), attempts=4, base=2.0, cap=9.0, rng=rng)) == [0.0, 5.0, 5.0]
    assert seen == [(0, 2.0, 9.0, None, rng), (1, 2.0, 9.0, 5.0, rng)]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_immediately_once_survives_pickling(protocol):
    made = immediately_once(functools.partial(exponential, factor=3.0))
    again = pickle.loads(pickle.dumps(made, protocol))
    assert again == made
    assert again(2) == 3.0


def test_immediately_once_survives_copying():
    made = immediately_once(full_jitter)
    assert copy.copy(made) == made == copy.deepcopy(made)


def test_two_of_the_same_backoff_are_equal_and_hash_alike():
    one, other = (immediately_once(functools.partial(exponential, factor=3.0)) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != immediately_once(exponential)
    assert one != exponential
    assert one != immediately_once(functools.partial(exponential, factor=2.0))


def test_immediately_once_prints_as_it_is_written():
    assert repr(immediately_once(full_jitter)) == "immediately_once(full_jitter)"
    assert repr(immediately_once(functools.partial(linear))) == "immediately_once(linear)"
    assert repr(immediately_once(immediately_once(linear))) == "immediately_once(immediately_once(linear))"


def test_immediately_once_of_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match=r"^backoff must be a delay function, got 3$"):
        immediately_once(3)


def test_immediately_once_checks_its_arguments_before_the_first_retry_too():
    with pytest.raises(ValueError, match="base must be finite and not negative, got -1"):
        immediately_once(full_jitter)(0, base=-1)


# delays


@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_n_attempts_have_one_wait_less(backoff, attempts):
    assert len(list(delays(backoff, attempts=attempts))) == attempts - 1


def test_without_a_number_of_attempts_the_waits_do_not_end():
    endless = delays(exponential, cap=4.0)
    assert list(itertools.islice(endless, 1000))[-1] == 4.0
    assert next(endless) == 4.0


def test_delays_draws_full_jitter_unless_told_otherwise():
    assert list(delays(attempts=7, rng=Pinned(0.5))) == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0]


def test_the_previous_delay_is_the_backoffs_own_and_at_least_the_base():
    seen = []

    def shrinking(attempt, base=1.0, cap=30.0, *, previous=None, rng=None):
        seen.append(previous)
        return [3.0, 0.1, 99.0, 2.0][attempt]

    assert list(delays(shrinking, attempts=5, base=0.5, cap=10.0)) == [3.0, 0.1, 10.0, 2.0]
    assert seen == [None, 3.0, 0.5, 10.0]


def test_interleaved_decorrelated_calls_know_nothing_of_one_another():
    alone = list(delays(decorrelated_jitter, attempts=6, base=2, cap=20, rng=Pinned(0.5)))
    one, other = (delays(decorrelated_jitter, attempts=6, base=2, cap=20, rng=Pinned(0.5)) for _ in "ab")
    pairs = list(zip(one, other, strict=True))
    assert pairs == [(wait, wait) for wait in alone]
    assert alone[0] == 4.0  # every call starts from the base


def test_calls_of_one_policy_inside_one_another_each_start_from_the_base(flavour):
    clocks = FakeClock(), FakeClock()
    fields = {"backoff": decorrelated_jitter, "base": 2, "cap": 20, "rng": Pinned(0.5)}
    inner, outer = (Policy(**fields, clock=clock, sleep=clock.sleep) for clock in clocks)

    def nested():
        assert inner.call(scripted(TimeoutError(), TimeoutError(), "page")) == "page"
        raise TimeoutError

    with pytest.raises(TimeoutError):
        flavour.call(outer, flavour.function(nested))
    assert clocks[0].waits == [4.0, 7.0] * 4
    assert clocks[1].waits == [4.0, 7.0, 11.5]


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"backoff": 3}, TypeError, "backoff must be a delay function, got 3"),
        ({"backoff": None}, TypeError, "backoff must be a delay function, got None"),
        ({"attempts": 0}, ValueError, "attempts must be at least 1 (the first call counts), got 0"),
        ({"attempts": True}, ValueError, "attempts must be a whole number, not a bool, got True"),
        ({"attempts": 2.5}, ValueError, "attempts must be a whole number, got 2.5"),
        ({"attempts": "3"}, TypeError, "attempts must be a whole number, got '3'"),
        ({"base": -1}, ValueError, "base must be finite and not negative, got -1"),
        ({"base": INF}, ValueError, "base must be finite and not negative, got inf"),
        ({"cap": NAN}, ValueError, "cap must be finite and not negative, got nan"),
        ({"cap": True}, ValueError, "cap must be a number, not a bool, got True"),
    ],
)
def test_delays_refuses_wrong_arguments_when_it_is_called_not_at_the_first_wait(fields, error, message):
    with pytest.raises(error) as caught:
        delays(**fields)
    assert str(caught.value) == message
