"""A service goes away and comes back: the thundering herd, and the failure that outlasts its cause."""

from __future__ import annotations

import pytest

from conftest import not_under_coverage
from redouble import Policy, Rule
from redouble.backoff import fixed
from redouble.simulate import Strategy, outage

# The herd

JITTERS = ("full_jitter", "equal_jitter", "decorrelated_jitter", "proportional_jitter")


def herd(strategy, **terms):
    """1,000 clients whose connections break at one instant, while the service refuses at once."""
    return outage(strategy, before=2.0, away=20.0, after=5.0, think=100.0, hangs=False, **terms)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["no_jitter", "fixed"])
def test_without_jitter_a_thousand_clients_come_back_in_one_tenth_of_a_second(strategy):
    found = herd(strategy)
    assert found.peak >= 990
    assert found.peak_at in ((1.0, 3.0, 7.0) if strategy == "no_jitter" else (1.0, 2.0, 3.0))


def test_without_jitter_they_come_back_at_every_step_of_the_backoff_and_not_in_between():
    bins = herd("no_jitter").arrivals
    gone = 20
    for seconds in (1, 3, 7):  # 1, then 2 more, then 4 more
        at = gone + 10 * seconds
        assert bins[at] > 950
        assert sum(bins[at + 2 : at + 9]) < 50


# Measured with seeds 1 and 2: 158 and 151, 207 and 217, 71 and 70, 218 and 218.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "most"),
    [("full_jitter", 180), ("equal_jitter", 240), ("decorrelated_jitter", 90), ("proportional_jitter", 240)],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_with_jitter_no_tenth_of_a_second_sees_more_than_a_few_of_them(strategy, most, seed):
    assert herd(strategy, seed=seed).peak < most


@pytest.mark.slow
def test_a_budget_or_a_breaker_makes_the_herd_small_even_without_jitter():
    assert (
        herd("no_jitter+budget").peak <= 130
    )  # a tenth of them and the floors of ten processes, at one instant
    assert herd("full_jitter+budget").peak < 30
    assert herd("no_jitter+breaker").peak < 30


def test_clients_that_notice_the_outage_one_by_one_make_no_herd():
    assert herd("no_jitter", together=False).peak < 60


# The failure that outlasts its cause


@pytest.mark.slow
@not_under_coverage
@pytest.mark.parametrize("strategy", ["fixed", "no_jitter", *JITTERS])
@pytest.mark.parametrize("seed", [1, 2])
def test_retries_alone_keep_the_service_down_after_it_is_back(strategy, seed):
    found = outage(strategy, seed=seed)
    assert found.metastable
    assert found.goodput_before > 90
    # All the service does is done for clients that have given up.
    assert found.goodput_after < 0.1 * found.goodput_before
    assert found.wasted_after > 0.9
    assert sum(found.wasted[-100:]) == pytest.approx(10 * found.capacity, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("guards", ["+budget", "+breaker", "+budget+breaker"])
@pytest.mark.parametrize("strategy", ["fixed", "no_jitter", *JITTERS])
def test_a_budget_or_a_breaker_ends_that_within_seconds(strategy, guards):
    found = outage(strategy + guards)
    assert not found.metastable
    assert found.recovered_after <= 6.0
    assert found.goodput_after > 0.85 * found.goodput_before
    assert found.wasted_after < 0.05


@pytest.mark.slow
def test_without_retries_the_service_is_back_at_once_but_calls_were_lost():
    found = outage("no_retries")
    assert found.recovered_after == 0.0
    assert found.retries == 0
    assert found.gave_up > 3000


@pytest.mark.slow
def test_a_service_strong_enough_for_the_retries_recovers_by_itself():
    assert outage("full_jitter", capacity=400.0).recovered_after < 1.0


@pytest.mark.slow
def test_an_outage_before_which_nothing_was_wrong_begins_with_full_service():
    found = outage("full_jitter")
    bins = round(found.before / found.bin_seconds)
    assert sum(found.served[:bins]) == pytest.approx(sum(found.arrivals[:bins]), abs=10)
    assert sum(found.wasted[:bins]) == 0


@pytest.mark.slow
def test_no_request_is_served_while_the_service_is_away():
    for hangs in (True, False):
        found = outage("full_jitter", hangs=hangs)
        assert sum(found.served[201:500]) == 0
        assert (found.refused > 0) is not hangs


@pytest.mark.slow
def test_every_call_ends_once_or_is_under_way_at_the_end():
    for strategy in ("no_jitter", "full_jitter+budget+breaker"):
        found = outage(strategy)
        under_way = found.calls - found.succeeded - found.gave_up - found.rejected_by_breaker
        assert 0 <= under_way <= found.clients


@pytest.mark.slow
def test_the_service_never_does_more_than_it_can():
    found = outage("full_jitter")
    done = [good + bad for good, bad in zip(found.served, found.wasted, strict=True)]
    for start in range(0, len(done) - 10, 10):
        assert sum(done[start : start + 10]) <= found.capacity + 3


def test_a_full_queue_turns_requests_away():
    found = outage("no_jitter", queue=5, before=5.0, away=5.0, after=10.0)
    assert found.rejected > 0
    # Nobody waits long in a short queue: what is served is served in time.
    assert found.wasted_after == 0
    assert found.timed_out > 0  # while the service hung


def test_a_queue_that_is_lost_in_the_outage_resets_who_stood_in_it():
    busy = {
        "clients": 200,
        "think": 0.1,
        "capacity": 100.0,
        "timeout": 5.0,
        "together": False,
        "hangs": False,
    }
    found = outage("no_retries", before=5.0, away=2.0, after=3.0, **busy)
    assert 100 < found.reset <= 200
    assert found.refused > 0


@pytest.mark.slow
def test_a_service_that_is_back_begins_with_an_empty_queue():
    busy = {"clients": 1000, "think": 0.1, "capacity": 100.0, "timeout": 20.0, "together": False}
    found = outage("no_retries", before=5.0, away=0.5, after=3.0, hangs=False, **busy)
    # What stood in the queue was seconds of work; the first answers come at once all the same.
    assert found.reset > 400
    assert sum(found.served[55:60]) > 40


@pytest.mark.slow
def test_a_deadline_of_the_policy_ends_calls_in_the_simulation():
    patient, strong = Policy(attempts=50, backoff=fixed, base=1.0), {"capacity": 1000.0, "hangs": False}
    without = outage(Strategy("without", patient), clients=100, **strong)
    within = outage(Strategy("with", patient.replace(deadline=3.5)), clients=100, **strong)
    assert without.gave_up == 0
    assert within.gave_up > 100
    # Nobody tried more than the three times for which there was time.
    assert within.retries <= 3 * within.calls


def test_a_timeout_of_the_policy_goes_before_that_of_the_fleet():
    hurried = Strategy("hurried", Policy(attempts=1, timeout=0.004))
    assert outage(hurried, clients=100, before=5.0, away=1.0, after=1.0).succeeded == 0


def test_rules_of_the_policy_hold_in_the_simulation():
    ruled = Policy(backoff=fixed, attempts=9, rules={TimeoutError: Rule(attempts=2)})
    found = outage(Strategy("ruled", ruled), clients=100, together=False)
    assert found.timed_out > 0
    # One retry after a timeout, and then no more.
    assert found.retries <= found.calls
    two = Policy(backoff=fixed, attempts=9, rules={TimeoutError: Rule(attempts=3)})
    more = outage(Strategy("two", two), clients=100, together=False)
    assert 1.3 * found.retries < more.retries <= 2 * more.calls


def test_nothing_served_and_nothing_wasted_is_no_waste():
    found = outage("no_retries", clients=1, think=1000.0, before=0.2, away=0.2, after=0.2)
    assert (found.wasted_after, found.goodput_after) == (0.0, 0.0)
    assert found.peak == 0


def test_bins_that_are_wider_than_the_outage_do_no_harm():
    found = outage(before=10.0, away=0.5, after=0.5, bin_seconds=6.0, clients=5)
    assert len(found.arrivals) == 2
    assert found.peak == found.arrivals[1]
