"""What all models have in common: seeds, results, progress, strategies, checks of parameters."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest

import redouble
from redouble import Policy, simulate
from redouble.backoff import exponential
from redouble.breaker import CircuitBreaker
from redouble.budget import RatioBudget
from redouble.bulkhead import Bulkhead
from redouble.simulate import Strategy
from redouble.simulate._fleet import _limited
from redouble.testing import no_waits, retries_disabled
from redouble.throttle import AdaptiveThrottle

SOURCE = str(Path(redouble.__file__).parents[1])

SMALL = {
    "contention": {"clients": 5, "runs": 3},
    "budgets": {"clients": 3, "seconds": 2.0},
    "outage": {"clients": 50, "before": 2.0, "away": 2.0, "after": 2.0},
    "layers": {"calls": 3, "failure_rate": 0.9},
}
every_model = pytest.mark.parametrize("model", SMALL)


def run(model, **changes):
    return getattr(simulate, model)(**{**SMALL[model], **changes})


@every_model
def test_the_same_seed_gives_the_same_result_and_another_one_another(model):
    assert run(model) == run(model)
    assert run(model, seed=2) != run(model)


@every_model
def test_a_result_is_plain_data(model):
    found = run(model)
    again = json.loads(json.dumps(found.as_dict()))
    assert again == found.as_dict()
    assert again["strategy"] == found.strategy
    assert pickle.loads(pickle.dumps(found)) == found
    with pytest.raises(AttributeError, match="immutable"):
        found.seed = 3


@every_model
def test_no_waits_and_other_switches_around_it_do_not_reach_a_simulation(model):
    usual = run(model)
    with no_waits(), retries_disabled():
        assert run(model) == usual
    with no_waits(everywhere=True):
        assert run(model) == usual


def test_switches_do_not_reach_the_guards_of_a_simulation_either():
    guarded = run("outage", strategy="full_jitter+budget+breaker")
    with no_waits():
        assert run("outage", strategy="full_jitter+budget+breaker") == guarded
    with no_waits(everywhere=True):
        assert run("outage", strategy="full_jitter+budget+breaker") == guarded


@every_model
def test_progress_goes_up_and_ends_with_one(model):
    told = []
    run(model, progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert all(0.0 <= fraction <= 1.0 for fraction in told)


def test_progress_is_told_at_most_some_20_times_a_second(monkeypatch):
    now, told = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    tell = _limited(told.append)
    for step in range(1000):
        now[0] = step / 1000
        tell(step / 1000)
    assert 15 <= len(told) <= 21
    tell(1.0)
    assert told[-1] == 1.0


@every_model
@pytest.mark.parametrize("wrong", ["no_such", 3, None])
def test_an_unknown_strategy_is_refused_with_the_known_ones(model, wrong):
    with pytest.raises(ValueError, match=r"strategy must be a Strategy or one of .*, got"):
        run(model, strategy=wrong)


NUMBERS = {
    "contention": ["clients", "runs", "seed"],
    "budgets": ["failure_rate", "clients", "rate", "seconds", "seed"],
    "outage": [
        "clients",
        "processes",
        "think",
        "capacity",
        "queue",
        "timeout",
        "before",
        "away",
        "bin_seconds",
    ],
    "layers": ["depth", "calls", "failure_rate", "seed"],
}


@pytest.mark.parametrize(("model", "name"), [(model, name) for model in NUMBERS for name in NUMBERS[model]])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), True])
def test_a_figure_that_is_none_is_refused_by_name(model, name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be"):
        run(model, **{name: value})


@pytest.mark.parametrize("model", ["budgets", "layers"])
def test_a_failure_rate_is_a_share(model):
    with pytest.raises(ValueError, match=r"failure_rate must be a share from 0 to 1, got 1\.5"):
        run(model, failure_rate=1.5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"budget": RatioBudget()},
            r"policy must not have budget in a simulation: give Strategy\(budget=...\)",
        ),
        ({"breaker": CircuitBreaker()}, r"give Strategy\(breaker=...\) a function of a clock"),
        ({"throttle": AdaptiveThrottle()}, "policy must not have throttle in a simulation: leave it out"),
        ({"bulkhead": Bulkhead(2)}, "policy must not have bulkhead in a simulation: leave it out"),
        ({"until": bool}, "policy must not have until"),
        ({"fallback": None}, "policy must not have fallback"),
    ],
)
def test_a_policy_with_what_no_model_acts_on_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Strategy("mine", Policy(**fields))


def test_every_named_strategy_is_known_by_its_own_name():
    tables = [value for name, value in vars(simulate).items() if name.endswith("_STRATEGIES")]
    assert len(tables) == 4
    for table in tables:
        assert [strategy.name for strategy in table.values()] == list(table)


def test_a_strategy_of_ones_own_runs_in_every_model():
    mine = Strategy("mine", Policy(attempts=3, backoff=exponential, base=0.01))
    assert {run(model, strategy=mine).strategy for model in SMALL} == {"mine"}


CODE = """
import json, sys
from redouble.simulate import *
found = [contention(clients=8, runs=4), budgets("adaptive_10pct", clients=5, seconds=3.0),
         outage("decorrelated_jitter+budget+breaker", clients=200, away=3.0, after=5.0), layers(calls=2)]
print(json.dumps([one.as_dict() for one in found]))
"""


@pytest.mark.slow
def test_figures_do_not_depend_on_the_hash_seed():
    outputs = set()
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": SOURCE}
        done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, check=True)
        outputs.add(done.stdout)
    assert len(outputs) == 1


@pytest.mark.slow
def test_importing_redouble_loads_no_simulator():
    code = "import sys, redouble; print([name for name in sys.modules if name.startswith('redouble.')])"
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=True, text=True
    )
    for name in ("simulate", "_cli"):
        assert f"'redouble.{name}" not in done.stdout
