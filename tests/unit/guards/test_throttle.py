"""The rate of a throttle: the curve, what is measured, when a call may be made; arguments."""

from __future__ import annotations

import copy
import math
import pickle
from datetime import timedelta

import pytest

from redouble import throttle as module
from redouble.backoff import LONGEST
from redouble.testing import FakeClock
from redouble.throttle import AdaptiveThrottle, cubic, measure, plateau
from support.throttles import BETA, SCALE, Response, TooManyRequests, at_rate


@pytest.fixture
def throttle(clock):
    return AdaptiveThrottle(clock=clock, sleep=clock.sleep)


@pytest.mark.parametrize(
    ("t", "rate"),
    [
        (5, 7.0),
        (6, 9.64893600966),
        (7, 10.000030849917364),
        (8, 10.453284520772092),
        (9, 13.408697022224185),
        (10, 21.26626835427364),
        (11, 36.425998516920465),
    ],
)
def test_the_rate_recovers_along_the_published_curve(t, rate):
    assert cubic(t - 5, 10, BETA, SCALE) == pytest.approx(rate, rel=1e-9)


MIXED = [
    ("success", 5, 7.0),
    ("success", 6, 9.64893600966),
    ("throttle", 7, 6.754255206761999),
    ("throttle", 8, 4.727978644733399),
    ("success", 9, 6.606547753887045),
    ("success", 10, 6.763279816944947),
    ("success", 11, 7.598174833907107),
    ("success", 12, 11.511232804773524),
]


MIXED_GO_RUST = [*MIXED[:4], *zip(["success"] * 4, [9, 10, 11, 12], [4.670125557970046, 4.770870456867401, 6.011819748005445, 10.792973431384178], strict=True)]  # fmt: skip


def mixed(clock, monkeypatch, answers):
    """The rates of a throttle that was brought down from 10 at second 5, if it sends as fast as it may."""
    monkeypatch.setattr(module, "measure", lambda *_: (0.0, 0, 1e6))
    throttle = AdaptiveThrottle(clock=clock)
    clock.now = 5.0
    throttle.throttled()
    throttle._curve, throttle._bucket = (10.0, 5.0), (7.0, 0.0, 5.0)
    rates = []
    for answer, t, _ in answers:
        clock.now = float(t)
        throttle.success() if answer == "success" else throttle.throttled()
        rates.append(throttle.rate)
    return rates


def test_the_rate_to_come_back_to_is_the_one_before_the_decrease(clock, monkeypatch):
    """As in smithy-kotlin and botocore."""
    assert mixed(clock, monkeypatch, MIXED) == pytest.approx([rate for *_, rate in MIXED], rel=1e-9)


def test_the_rate_to_come_back_to_is_not_the_one_after_the_decrease(clock, monkeypatch):
    """The tests of aws-sdk-go-v2 and smithy-rs have it so, and differ from the first success after a decrease.

    We follow the other two: the peak of the curve is the rate at which the server complained, before the
    decrease, as in the formula that all of them state. Coming back to the lowered rate, and lowering that,
    would make each decrease count twice.
    """
    rates = mixed(clock, monkeypatch, MIXED_GO_RUST)
    theirs = [rate for *_, rate in MIXED_GO_RUST]
    assert rates[:4] == pytest.approx(theirs[:4], rel=1e-9)
    assert all(ours > other for ours, other in zip(rates[4:], theirs[4:], strict=True))
    # What they have is the same curve around the lowered rate.
    lowered = [cubic(second, MIXED[3][2], BETA, SCALE) for second in (1, 2, 3, 4)]
    assert lowered == pytest.approx(theirs[4:], rel=1e-9)


@pytest.mark.parametrize(("peak", "seconds"), [(10, 1.9574338205844317), (8, 1.8171205928321397)])
def test_the_curve_is_flat_where_the_server_last_complained(peak, seconds):
    assert plateau(peak, BETA, SCALE) == pytest.approx(seconds, rel=1e-12)
    assert cubic(seconds, peak, BETA, SCALE) == pytest.approx(peak)


def test_a_complaint_at_8_per_second_brings_the_rate_to_5_6(clock):
    throttle = at_rate(8.0, clock)
    throttle._meter = 0.0, 0, 100.0
    throttle.throttled()
    assert throttle.rate == pytest.approx(5.6)


def test_with_another_beta_the_curve_begins_at_that_share(clock):
    throttle = at_rate(10.0, clock, beta=0.6)
    throttle._meter = 2.0, 0, 100.0
    clock.now = 1.0
    throttle.throttled()
    assert throttle.rate == pytest.approx(6.0)
    throttle.success()  # at the same instant: the curve begins where the rate fell to
    assert throttle.rate == pytest.approx(6.0)


@pytest.mark.parametrize(
    ("timestamps", "measured"),
    [([1], 0.8), (range(1, 21), 1.0), ([0.1, 0.2, 0.3, 0.4, 0.49, 0.5], 9.6)],
)
def test_the_sending_rate_is_measured_in_slots_of_half_a_second(timestamps, measured):
    meter = 0.0, 0, 0.0
    for t in timestamps:
        meter = measure(meter, t, 0.5, 0.8)
    assert meter[2] == pytest.approx(measured, abs=1e-7)


END_TO_END = [
    ("success", 0.2, 0, 0.5),
    ("success", 0.4, 0, 0.5),
    ("success", 0.6, 4.8, 0.5),
    ("success", 0.8, 4.8, 0.5),
    ("success", 1.0, 4.16, 0.5),
    ("success", 1.2, 4.16, 0.6912),
    ("success", 1.4, 4.16, 1.0976),
    ("success", 1.6, 5.632, 1.6384),
    ("success", 1.8, 5.632, 2.3328),
    ("throttle", 2.0, 4.3264, 3.02848),
    ("success", 2.2, 4.3264, 3.486639),
    ("success", 2.4, 4.3264, 3.821874),
    ("success", 2.6, 5.66528, 4.053386),
    ("success", 2.8, 5.66528, 4.200373),
    ("success", 3.0, 4.333056, 4.282037),
    ("throttle", 3.2, 4.333056, 2.997426),
    ("success", 3.4, 4.333056, 3.452226),
]


def test_measured_and_allowed_rates_are_those_of_the_aws_sdks_end_to_end(clock, throttle):
    assert throttle.acquire() == 0.0
    seen_active = False
    for answer, t, measured, rate in END_TO_END:
        clock.now = t
        throttle.success() if answer == "success" else throttle.throttled()
        seen_active = seen_active or answer == "throttle"
        assert throttle.measured_rate == pytest.approx(measured, abs=1e-6)
        assert throttle._bucket[0] == pytest.approx(rate, abs=1e-6)
        assert throttle.active is seen_active
        assert throttle.rate == (throttle._bucket[0] if seen_active else None)


def test_the_rate_grows_to_no_more_than_twice_what_is_sent(clock, throttle):
    throttle.throttled()
    for second in range(1, 60):
        clock.now = float(second)
        throttle.success()
    assert throttle.measured_rate == pytest.approx(1.0)
    assert throttle.rate == pytest.approx(2.0)


def test_without_headroom_to_grow_into_the_curve_is_not_followed(clock):
    throttle = at_rate(10.0, clock, headroom=1.5)
    clock.now = 60.0
    throttle._meter = 120.0, 0, 4.0
    throttle.success()
    assert throttle.rate == pytest.approx(6.0)


def test_the_rate_is_finite_whatever_it_may_grow_to(clock):
    throttle = at_rate(10.0, clock, headroom=1e308, scale=1e308)
    clock.now = 1e6
    throttle._meter = 2e6, 0, 100.0
    throttle.success()
    assert throttle.rate == 1e9


def test_many_complaints_bring_the_rate_to_the_least_and_not_below(clock, throttle):
    for _ in range(1000):
        throttle.throttled()
    assert throttle.rate == 0.5


def test_nothing_is_held_back_before_the_first_complaint(clock, throttle):
    assert not throttle.active
    assert [throttle.acquire() for _ in range(1000)] == [0.0] * 1000
    throttle.success()
    throttle.failure(TimeoutError())
    assert [throttle.acquire() for _ in range(1000)] == [0.0] * 1000
    assert throttle.rate is None
    assert throttle.retry_after == 0.0


def test_the_first_complaint_is_not_answered_by_a_burst(clock, throttle):
    throttle.acquire()
    clock.now = 1000.0
    throttle.throttled()
    assert throttle.acquire() == 2.0


def test_a_call_is_granted_when_the_wait_is_over(clock, throttle):
    throttle.throttled()
    clock.advance(throttle.acquire())
    assert throttle.acquire() == 0.0
    assert throttle.acquire() == 2.0  # its token was taken


def test_a_refused_acquire_takes_nothing(clock, throttle):
    throttle.throttled()
    clock.advance(1.9)
    for _ in range(100):
        assert throttle.acquire() == pytest.approx(0.1)
        assert throttle._bucket[1] >= 0.0
    clock.advance(0.1)
    assert throttle.acquire() == 0.0


def test_ten_who_are_refused_at_one_instant_are_given_the_same_wait(clock, throttle):
    throttle.throttled()
    clock.advance(0.5)
    assert [throttle.acquire() for _ in range(10)] == [1.5] * 10


def test_retry_after_is_what_acquire_would_give_and_takes_nothing(clock, throttle):
    throttle.throttled()
    assert throttle.retry_after == 2.0
    clock.advance(2.0)
    assert [throttle.retry_after] * 5 == [0.0] * 5
    assert throttle.acquire() == 0.0


def test_a_shortfall_that_rounds_to_a_zero_wait_is_granted_and_leaves_no_debt(clock, throttle):
    throttle.throttled()
    throttle._bucket = 0.5, 1.0 - 2e-10, 0.0  # 0.4 ns too early
    assert throttle.acquire() == 0.0
    assert throttle._bucket[1] == 0.0


def test_a_wait_too_short_for_the_clock_to_show_is_granted():
    clock = FakeClock(1e12)  # on which a step is 0.12 ms
    throttle = at_rate(0.5, clock)
    throttle._bucket = 0.5, 1.0 - 1e-5, 1e12  # 20 us too early
    assert throttle.acquire() == 0.0
    assert throttle._bucket[1] == 0.0


@pytest.mark.parametrize("start", [0.0, 0.1, 12345.678, 987654.321, 1e9])
def test_whoever_waits_as_told_is_granted_the_call_after_a_wait_or_two(start):
    clock = FakeClock(start)
    throttle = at_rate(0.7, clock)
    for _ in range(100):
        asked = 0
        while wait := throttle.acquire():
            clock.sleep(wait)
            asked += 1
        assert asked <= 2


def test_at_most_one_seconds_calls_are_saved_up(clock):
    throttle = at_rate(5.0, clock)
    clock.advance(1000.0)
    assert [throttle.acquire() for _ in range(6)] == [0.0] * 5 + [pytest.approx(0.2)]


def test_at_a_slow_rate_one_call_is_saved_up_or_burst(clock):
    slow, bursty = at_rate(0.5, clock), at_rate(0.5, clock, burst=3)
    clock.advance(1000.0)
    assert [slow.acquire() for _ in range(2)] == [0.0, 2.0]
    assert [bursty.acquire() for _ in range(4)] == [0.0, 0.0, 0.0, 2.0]


def test_what_was_saved_up_is_cut_to_what_the_lower_rate_allows(clock):
    throttle = at_rate(10.0, clock)
    clock.advance(10.0)
    assert throttle._saved(clock.now) == 10.0
    throttle._meter = 20.0, 0, 100.0
    throttle.throttled()
    assert throttle._bucket[1] == pytest.approx(7.0)


def test_tokens_up_to_a_change_are_counted_at_the_rate_before_it(clock):
    throttle = at_rate(2.0, clock)
    throttle._meter = 0.0, 0, 100.0
    clock.advance(0.25)
    throttle.throttled()
    assert throttle._bucket[1] == pytest.approx(0.5)


def test_a_wait_is_never_longer_than_the_platform_can_sleep(clock):
    throttle = AdaptiveThrottle(min_rate=5e-324, clock=clock)
    throttle.throttled()
    assert throttle.acquire() == LONGEST


def aws_error(code, status):
    error = type("ClientError", (Exception,), {"__module__": "botocore.exceptions"})(code)
    error.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return error


@pytest.mark.parametrize(
    "error",
    [TooManyRequests(), aws_error("ThrottlingException", 400), aws_error("SlowDown", 503), Response(429)],
    ids=["429", "ThrottlingException", "SlowDown", "response"],
)
def test_a_failure_that_says_too_fast_brings_the_rate_down(throttle, error):
    throttle.failure(error)
    assert throttle.active


class Nasty(Exception):
    @property
    def response(self):
        raise RuntimeError("of the user's code")


@pytest.mark.parametrize(
    "error",
    [TimeoutError(), ConnectionResetError(), ValueError("a bug"), Response(503), Response(500), Nasty()],
    ids=["timeout", "reset", "bug", "503", "500", "nasty"],
)
def test_any_other_failure_counts_as_an_answer(clock, throttle, error):
    throttle.acquire()
    clock.now = 1.0
    throttle.failure(error)
    assert not throttle.active
    assert throttle.measured_rate == pytest.approx(0.8)


def test_the_defaults_are_the_published_constants():
    throttle = AdaptiveThrottle()
    assert (throttle.beta, throttle.scale, throttle.smooth) == (0.7, 0.4, 0.8)
    assert (throttle.min_rate, throttle.burst) == (0.5, 1.0)
    assert (throttle.measure_every, throttle.headroom) == (0.5, 2.0)


NUMBERS = ["beta", "scale", "smooth", "min_rate", "burst", "measure_every", "headroom"]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 0, True], ids=repr)
def test_what_is_no_useful_number_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"^{name} must .*got {value}$"):
        AdaptiveThrottle(**{name: value})


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["1", None, [1]], ids=repr)
def test_what_is_no_number_at_all_is_refused_by_name(name, value):
    with pytest.raises(TypeError, match=f"^{name} must be a number, got"):
        AdaptiveThrottle(**{name: value})


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("beta", 1.0, "below 1, or no rate would fall"),
        ("smooth", 1.01, "at most 1"),
        ("burst", 0.99, "at least 1, or no call would get through"),
        ("measure_every", 0.0009, "at least 0.001 seconds"),
        ("headroom", 1.0, "above 1, or no rate would grow"),
    ],
)
def test_a_setting_that_could_not_work_is_refused_with_the_reason(name, value, rule):
    with pytest.raises(ValueError, match=f"^{name} must be .*{rule}, got {value}$"):
        AdaptiveThrottle(**{name: value})


def test_the_edges_of_the_rules_are_allowed():
    throttle = AdaptiveThrottle(smooth=1, burst=1, measure_every=timedelta(milliseconds=1))
    assert throttle.measure_every == 0.001
    assert type(throttle.smooth) is type(throttle.burst) is float


@pytest.mark.parametrize("name", ["clock", "sleep"])
def test_clock_and_sleep_must_be_functions(name):
    with pytest.raises(TypeError, match=f"^{name} must be a function, got 3"):
        AdaptiveThrottle(**{name: 3})


def test_an_unknown_or_positional_setting_is_refused():
    with pytest.raises(TypeError):
        AdaptiveThrottle(betta=0.5)
    with pytest.raises(TypeError):
        AdaptiveThrottle(0.7)


def test_it_says_what_it_is_and_how_it_is(clock):
    throttle = AdaptiveThrottle(name="search", clock=clock)
    assert repr(throttle) == "<search: not active>"
    throttle.throttled()
    assert repr(throttle) == "<search: 0.5 calls/s>"
    assert repr(AdaptiveThrottle()) == "<AdaptiveThrottle: not active>"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_it_refuses_to_pickle_and_says_why(throttle, protocol):
    with pytest.raises(TypeError, match=r"AdaptiveThrottle.*cannot be pickled"):
        pickle.dumps(throttle, protocol)


def test_a_copy_is_the_same_throttle(throttle):
    assert copy.copy(throttle) is copy.deepcopy(throttle) is throttle


def test_a_throttle_is_at_rest_until_it_is_told_to_slow_down():
    throttle = AdaptiveThrottle()
    assert throttle.at_rest
    throttle.throttled()
    assert not throttle.at_rest
