"""Presets: ready-made policies and breakers."""

from __future__ import annotations

import functools
import pickle
from types import MappingProxyType

import pytest

from redouble import Policy, presets
from redouble.backoff import (
    linear,
    proportional_jitter,
)
from redouble.budget import TokenBudget
from redouble.testing import FakeClock


@pytest.mark.parametrize(
    ("preset", "attempts", "base", "cap", "spread", "ratio"),
    [
        (presets.conservative, 3, 1.0, 5.0, 0.10, 0.05),
        (presets.standard, 4, 0.5, 15.0, 0.25, 0.10),
        (presets.aggressive, 5, 0.1, 30.0, 0.50, 0.20),
    ],
)
def test_the_figures_of_each_preset(preset, attempts, base, cap, spread, ratio):
    expected = Policy(
        attempts=attempts, base=base, cap=cap, backoff=functools.partial(proportional_jitter, spread=spread)
    )
    made = preset()
    assert made.replace(budget=None) == expected
    assert made.budget.ratio == ratio
    assert hash(made) == hash(expected)
    assert pickle.loads(pickle.dumps(made.replace(budget=None))) == expected


@pytest.mark.parametrize("preset", [presets.conservative, presets.standard, presets.aggressive])
def test_each_call_of_a_preset_brings_a_budget_of_its_own_unless_it_is_given_one(preset):
    shared = TokenBudget()
    assert preset().budget is not preset().budget
    assert preset(budget=shared).budget is shared
    assert preset(budget=None).budget is None


@pytest.mark.parametrize(
    ("kind", "failures", "open_for"),
    [
        ("payment_api", 5, 60.0),
        ("internal_service", 10, 30.0),
        ("primary_database", 3, 10.0),
        ("cache", 20, 5.0),
        ("email_provider", 5, 120.0),
    ],
)
def test_the_figures_of_each_breaker(kind, failures, open_for):
    clock = FakeClock()
    made = presets.breaker(kind, clock=clock)
    for _ in range(failures - 1):
        made.failure()
    assert made.state == "closed"
    made.failure()
    assert (made.state, made.retry_after, made.name) == ("open", open_for, kind)
    assert presets.breaker(kind, name="other", failures=1).name == "other"


def test_an_unknown_kind_of_breaker_is_refused_with_those_that_are_known():
    with pytest.raises(ValueError, match=r"kind must be one of payment_api, .*email_provider, got 'toaster'"):
        presets.breaker("toaster")


@pytest.mark.parametrize("preset", [presets.conservative, presets.standard, presets.aggressive])
def test_a_preset_takes_fields_that_win_over_its_own(preset):
    made = preset(attempts=None, deadline=20.0, base=9, backoff=linear, name="payments")
    assert (made.attempts, made.deadline, made.base, made.backoff, made.name) == (
        None,
        20.0,
        9.0,
        linear,
        "payments",
    )
    assert made.cap == preset().cap


def test_the_three_presets_differ():
    assert len({presets.conservative(), presets.standard(), presets.aggressive()}) == 3


def test_time_that_is_injected_is_kept():
    clock = FakeClock()
    made = Policy(clock=clock, sleep=clock.sleep)
    assert made.clock is clock
    assert made.sleep == clock.sleep
    assert isinstance(made.rules, MappingProxyType)


def test_the_preset_for_llms_repeats_inference_within_two_minutes_and_has_no_budget():
    assert presets.llm() == Policy(
        attempts=6, base=1.0, cap=20.0, deadline=120.0, max_retry_after=60.0, idempotent=True
    )
    assert presets.llm(deadline=30.0, idempotent=False) == presets.llm().replace(
        deadline=30.0, idempotent=False
    )
    with pytest.raises(TypeError, match=r"presets\.llm\(\) has no 'max_retries'"):
        presets.llm(max_retries=3)
