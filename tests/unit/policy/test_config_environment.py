"""A policy from environment variables."""

from __future__ import annotations

import os

import pytest

from redouble import Policy
from redouble.backoff import (
    equal_jitter,
)

INF = float("inf")


def test_variables_with_the_prefix_make_a_policy():
    environ = {
        "PAYMENTS_RETRY_MAX_ATTEMPTS": "6",
        "PAYMENTS_RETRY_BASE": "200ms",
        "PAYMENTS_RETRY_MAX_DELAY_MS": "5000",
        "PAYMENTS_RETRY_JITTER": "equal",
        "PAYMENTS_RETRY_DEADLINE": " 20s ",
        "PAYMENTS_RETRY_TIMEOUT": "none",
        "PAYMENTS_RETRY_IDEMPOTENT": "yes",
        "PAYMENTS_RETRY_ENABLED": "off",
        "PAYMENTS_RETRY_NESTED": "defer",
        "PAYMENTS_RETRY_NAME": "payments",
        "PAYMENTS_OTHER": "not ours",
        "RETRY_ATTEMPTS": "not ours either",
    }
    expected = Policy(
        attempts=6,
        base=0.2,
        cap=5.0,
        backoff=equal_jitter,
        deadline=20.0,
        idempotent=True,
        enabled=False,
        nested="defer",
        name="payments",
    )
    assert Policy.from_env("PAYMENTS_RETRY", environ) == expected
    assert Policy.from_env("PAYMENTS_RETRY_", environ) == expected


def test_without_such_variables_the_defaults_hold():
    assert Policy.from_env("PAYMENTS_RETRY", {"PAYMENTS_RETRYATTEMPTS": "9"}) == Policy()


@pytest.mark.parametrize("empty", ["", "   "])
def test_an_empty_variable_is_an_unset_one(empty):
    assert Policy.from_env("P", {"P_ATTEMPTS": empty, "P_BASE": "2"}) == Policy(base=2.0)


def test_the_environment_of_the_process_is_read_when_none_is_given(monkeypatch):
    for name in [name for name in os.environ if name.startswith("REDOUBLE_TEST_")]:
        monkeypatch.delenv(name)
    assert Policy.from_env("REDOUBLE_TEST") == Policy()
    monkeypatch.setenv("REDOUBLE_TEST_ATTEMPTS", "6")
    monkeypatch.setenv("REDOUBLE_TEST_CAP", "inf")
    assert Policy.from_env("REDOUBLE_TEST") == Policy(attempts=6, cap=INF)
    assert Policy.from_env("REDOUBLE_TEST", {}) == Policy()


def test_a_prefix_is_needed():
    with pytest.raises(ValueError, match="prefix must not be empty"):
        Policy.from_env("", {"ATTEMPTS": "3"})


@pytest.mark.parametrize(
    ("variable", "value", "error", "message"),
    [
        (
            "P_ATEMPTS",
            "3",
            TypeError,
            "in the environment under P_: unknown policy field 'atempts': did you mean 'attempts'?",
        ),
        ("P_ATTEMPTS", "three", ValueError, "attempts must be a whole number, 'none' or 'inf', got 'three'"),
        ("P_BASE", "soon", ValueError, "base must be a duration such as "),
        ("P_RULES", "429", TypeError, "rules must be a mapping of causes or statuses to rules, got '429'"),
        (
            "P_ON",
            "OSError",
            TypeError,
            "on must be exception types, a Classifier or a predicate, got 'OSError'",
        ),
        ("P_LISTENERS", "print", TypeError, "listeners must be "),
        ("P_CLOCK", "utc", TypeError, "clock must be a function, got 'utc'"),
    ],
)
def test_a_wrong_variable_is_refused_with_what_is_wrong(variable, value, error, message):
    with pytest.raises(error) as caught:
        Policy.from_env("P", {variable: value})
    assert str(caught.value).startswith(message)


def test_two_variables_for_one_field_are_refused():
    with pytest.raises(ValueError, match="both set attempts: keep one of them"):
        Policy.from_env("P", {"P_ATTEMPTS": "3", "P_MAX_ATTEMPTS": "3"})


def test_a_floor_a_soft_limit_and_attempts_for_ever_are_read_from_the_environment():
    environ = {"P_ATTEMPTS": "inf", "P_MIN_DELAY": "200ms", "P_GIVE_UP_AFTER": "1h", "P_DEADLINE": "inf"}
    expected = Policy(attempts=float("inf"), floor=0.2, give_up_after=3600.0)
    assert Policy.from_env("P", environ) == expected
