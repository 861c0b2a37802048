"""Rules: what they are keyed by, what they accept, and that they are values."""

from __future__ import annotations

import copy
import functools
import http
import pickle

import pytest

from redouble import Cause, Policy, Rule
from redouble.backoff import (
    exponential,
)

INF = float("inf")
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def test_rules_are_keyed_by_cause_status_type_or_the_text_of_a_cause():
    rule = Rule(attempts=2)
    made = Policy(
        rules={
            Cause.timeout: rule,
            "conflict": rule,
            429: rule,
            http.HTTPStatus.BAD_GATEWAY: rule,
            KeyError: rule,
        }
    )
    assert dict(made.rules) == {
        Cause.timeout: rule,
        Cause.conflict: rule,
        429: rule,
        502: rule,
        KeyError: rule,
    }
    assert [type(key) for key in made.rules] == [Cause, Cause, int, int, type]


def test_a_rule_may_be_for_the_lowest_and_for_the_highest_status():
    assert set(Policy(rules={100: Rule(), 599: Rule()}).rules) == {100, 599}


def test_rules_are_read_only_and_apart_from_what_they_were_made_of():
    given = {429: Rule(attempts=2)}
    made = Policy(rules=given)
    given[503] = Rule()
    assert dict(made.rules) == {429: Rule(attempts=2)}
    with pytest.raises(TypeError):
        made.rules[503] = Rule()
    assert not hasattr(made.rules, "clear")


@pytest.mark.parametrize(
    ("key", "error", "rule"),
    [
        ("slow", ValueError, "rules must name causes, one of connection, disconnected, "),
        (99, ValueError, "rules must be keyed by a Cause, a status from 100 to 599 or a type"),
        (600, ValueError, "rules must be keyed by a Cause, a status from 100 to 599 or a type"),
        (True, ValueError, "rules must be keyed by a Cause, a status from 100 to 599 or a type"),
        (429.0, ValueError, "rules must be keyed by a Cause, a status from 100 to 599 or a type"),
        (None, ValueError, "rules must be keyed by a Cause, a status from 100 to 599 or a type"),
        (int, TypeError, "rules must name exception types"),
        (KeyboardInterrupt, TypeError, "rules must not name KeyboardInterrupt"),
    ],
    ids=repr,
)
def test_a_rule_for_what_cannot_happen_is_refused(key, error, rule):
    with pytest.raises(error) as caught:
        Policy(rules={key: Rule()})
    assert str(caught.value).startswith(rule)
    if key is not KeyboardInterrupt:
        assert str(caught.value).endswith(f", got {key!r}")


@pytest.mark.parametrize("value", [None, 3, {"attempts": 2}, Rule], ids=repr)
def test_what_is_no_rule_is_refused_naming_its_key(value):
    with pytest.raises(TypeError) as caught:
        Policy(rules={429: value})
    assert str(caught.value) == f"rules[429] must be a Rule, such as Rule(attempts=2), got {value!r}"


@pytest.mark.parametrize("value", [None, 3, [429], Rule()], ids=repr)
def test_rules_that_are_no_mapping_are_refused(value):
    with pytest.raises(TypeError) as caught:
        Policy(rules=value)
    assert str(caught.value).startswith(
        "rules must map causes, statuses or exception types to rules, such as "
    )


def test_a_rule_is_a_value():
    def made():
        return Rule(
            attempts=2, base=5, cap=9, backoff=functools.partial(exponential, factor=3.0), recover=print
        )

    assert made() == made()
    assert hash(made()) == hash(made())
    assert made() != Rule(attempts=2)
    for protocol in PROTOCOLS:
        assert pickle.loads(pickle.dumps(made(), protocol)) == made()
    assert copy.copy(made()) == made() == copy.deepcopy(made())
    with pytest.raises(AttributeError, match="Rule is immutable: cannot set 'attempts'"):
        made().attempts = 3


def test_a_rule_prints_what_was_said():
    assert repr(Rule()) == "Rule()"
    assert repr(Rule(attempts=2, base=5, cap=INF)) == "Rule(attempts=2, base=5.0, cap=inf)"


@pytest.mark.parametrize("field", ["backoff", "recover"])
def test_a_function_of_a_rule_must_be_one(field):
    with pytest.raises(TypeError, match=f"{field} must be a function, got 3"):
        Rule(**{field: 3})
