"""Policies out of plain data: mappings as parsed from JSON or TOML, and the environment."""

from __future__ import annotations

import functools
import json
import tomllib
from types import MappingProxyType

import pytest

from redouble import Cause, Policy, Rule
from redouble.backoff import (
    additive_jitter,
    decorrelated_jitter,
    equal_jitter,
    exponential,
    fixed,
    full_jitter,
    linear,
    proportional_jitter,
)
from redouble.budget import RatioBudget

INF = float("inf")


# Names


@pytest.mark.parametrize(
    ("value", "expected"),
    [("App.retries", "App.retries"), (" app ", "app"), (False, False), ("off", False), ("None", None)],
)
def test_a_logger_is_a_name_or_false(value, expected):
    assert Policy.from_mapping({"logger": value}) == Policy(logger=expected)


@pytest.mark.parametrize("value", [True, "yes", ""])
def test_a_logger_that_is_neither_is_refused(value):
    with pytest.raises(TypeError, match=r"^logger must be a "):
        Policy.from_mapping({"logger": value})


def test_no_data_is_the_default_policy():
    assert Policy.from_mapping({}) == Policy()


def test_the_fields_own_names_are_understood():
    data = {
        "attempts": 6,
        "base": 0.2,
        "cap": 5,
        "backoff": "linear",
        "deadline": 20,
        "timeout": 2,
        "max_retry_after": 60,
        "idempotent": False,
        "rules": {"timeout": {"attempts": 2}},
        "nested": "defer",
        "enabled": False,
        "name": "payments",
        "idempotency_key": True,
    }
    assert Policy.from_mapping(data) == Policy(
        attempts=6,
        base=0.2,
        cap=5,
        backoff=linear,
        deadline=20,
        timeout=2,
        max_retry_after=60,
        idempotent=False,
        rules={Cause.timeout: Rule(attempts=2)},
        nested="defer",
        enabled=False,
        name="payments",
        idempotency_key=True,
    )


def test_fields_that_hold_code_may_be_in_a_mapping_made_in_python(clock):
    data = {
        "on": (KeyError,),
        "until": bool,
        "listeners": [print],
        "rng": None,
        "clock": clock,
        "sleep": clock.sleep,
        "backoff": fixed,
        "rules": {429: Rule(attempts=2)},
    }
    assert Policy.from_mapping(data) == Policy(
        on=KeyError,
        until=bool,
        listeners=[print],
        clock=clock,
        sleep=clock.sleep,
        backoff=fixed,
        rules={429: Rule(attempts=2)},
    )


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"max_attempts": 6}, {"attempts": 6}),
        ({"base_delay": 0.2}, {"base": 0.2}),
        ({"max_delay": 9}, {"cap": 9}),
        ({"base_delay_ms": 100}, {"base": 0.1}),
        ({"max_delay_ms": 2500}, {"cap": 2.5}),
        ({"base_delay_ms": "100", "max_delay_ms": " 1500.5 "}, {"base": 0.1, "cap": 1.5005}),
        ({"min_delay": "500ms"}, {"floor": 0.5}),
        ({"min_delay_ms": 250}, {"floor": 0.25}),
        ({"floor": 2, "rules": {"429": {"min_delay": 4}}}, {"floor": 2.0, "rules": {429: Rule(floor=4.0)}}),
        ({"attempts": "none", "give_up_after": "1.5m"}, {"attempts": None, "give_up_after": 90.0}),
        ({"attempts": "inf", "give_up_after": "none"}, {"attempts": INF}),
        (
            {"max_attempts": INF, "deadline": "inf", "max_retry_after": "inf"},
            {"attempts": INF, "max_retry_after": INF},
        ),
        ({"rules": {"429": {"attempts": "inf"}}}, {"rules": {429: Rule(attempts=INF)}}),
    ],
)
def test_the_common_names_of_other_systems_are_understood(data, expected):
    assert Policy.from_mapping(data) == Policy(**expected)


@pytest.mark.parametrize(
    ("one", "other", "field"),
    [
        ("attempts", "max_attempts", "attempts"),
        ("base", "base_delay", "base"),
        ("base_delay", "base_delay_ms", "base"),
        ("cap", "max_delay", "cap"),
        ("max_delay_ms", "cap", "cap"),
        ("min_delay", "floor", "floor"),
    ],
)
def test_two_names_for_one_field_are_refused_naming_both(one, other, field):
    with pytest.raises(ValueError) as caught:
        Policy.from_mapping({one: 5, other: 5})
    assert str(caught.value) == f"{other} and {one} both set {field}: keep one of them"


def test_two_ways_to_say_the_jitter_are_refused_naming_both():
    with pytest.raises(ValueError, match="jitter_factor and jitter both set backoff: keep one of them"):
        Policy.from_mapping({"jitter": "full", "jitter_factor": 0.1})


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("max_atempts", "max_attempts"),
        ("base_delay_sec", "base_delay"),
        ("deadlin", "deadline"),
        ("jiter", "jitter"),
    ],
)
def test_an_unknown_name_is_refused_and_the_nearest_one_suggested(typo, meant):
    with pytest.raises(TypeError) as caught:
        Policy.from_mapping({typo: 1})
    assert str(caught.value).startswith(f"unknown policy field '{typo}': did you mean '{meant}")


def test_an_unknown_name_that_resembles_none_is_refused_with_all_there_are():
    for name in ("xyzzy", 42):
        with pytest.raises(TypeError) as caught:
            Policy.from_mapping({name: 1})
        assert str(caught.value).startswith(
            f"unknown policy field {name!r}: known are attempts, backoff, base, "
        )


@pytest.mark.parametrize("data", [None, 3, "attempts=3", [("attempts", 3)]], ids=repr)
def test_what_is_no_mapping_is_refused_in_words(data):
    with pytest.raises(TypeError, match="mapping"):
        Policy.from_mapping(data)


# Durations


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("100ms", 0.1),
        ("3ms", 0.003),
        ("20s", 20.0),
        ("20", 20.0),
        ("1.5m", 90.0),
        ("2h", 7200.0),
        ("5 s", 5.0),
        (" 5sec ", 5.0),
        ("2MIN", 120.0),
        (".5s", 0.5),
        ("1.", 1.0),
    ],
)
@pytest.mark.parametrize("field", ["base", "cap", "deadline", "timeout", "max_retry_after"])
def test_a_duration_may_be_a_text_with_its_unit(field, text, seconds):
    assert getattr(Policy.from_mapping({field: text}), field) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s",
        "ms",
        ".",
        "1.2.3s",
        "-5s",
        "+5s",
        "1e3",
        "5 days",
        "5d",
        "nan",
        "1_0s",
        "٣s",
        "²",
        "5s5",
        "0x10",
    ],
)
@pytest.mark.parametrize(
    "field",
    [
        "base",
        "base_delay",
        "cap",
        "max_delay",
        "floor",
        "deadline",
        "give_up_after",
        "timeout",
        "max_retry_after",
    ],
)
def test_a_text_that_is_no_duration_is_refused_naming_the_name_the_rule_and_the_value(field, text):
    with pytest.raises(ValueError) as caught:
        Policy.from_mapping({field: text})
    assert str(caught.value) == f"{field} must be a duration such as '100ms', '20s' or '1.5m', got {text!r}"


@pytest.mark.parametrize("text", ["inf", "Inf", " INF "])
def test_a_cap_may_be_the_text_inf(text):
    assert Policy.from_mapping({"cap": text}).cap == INF
    assert Policy.from_mapping({"max_delay": text}).cap == INF
    with pytest.raises(ValueError, match="base must be a duration"):
        Policy.from_mapping({"base": text})


@pytest.mark.parametrize("nothing", [None, "none", "None", " NONE "])
def test_limits_may_be_left_open_in_words(nothing):
    made = Policy.from_mapping({"deadline": nothing, "timeout": nothing})
    assert (made.deadline, made.timeout) == (None, None)
    assert Policy.from_mapping({"attempts": nothing, "deadline": "5s"}).attempts is None


@pytest.mark.parametrize("value", [-1, float("nan"), True], ids=repr)
@pytest.mark.parametrize("name", ["base_delay_ms", "max_delay_ms", "min_delay_ms"])
def test_milliseconds_that_are_none_are_refused_naming_the_name_and_the_value(name, value):
    with pytest.raises(ValueError, match=f"{name} must be .*, got {value!r}"):
        Policy.from_mapping({name: value})


@pytest.mark.parametrize("value", ["100ms", "", "-1", "1e3"])
def test_milliseconds_as_text_are_a_bare_number(value):
    with pytest.raises(ValueError) as caught:
        Policy.from_mapping({"base_delay_ms": value})
    assert str(caught.value) == f"base_delay_ms must be a number of milliseconds, got {value!r}"


def test_milliseconds_cannot_be_none():
    with pytest.raises(TypeError, match="base_delay_ms must be a number, got None"):
        Policy.from_mapping({"base_delay_ms": None})


# Counts and switches


@pytest.mark.parametrize("value", [6, "6", " 6 "], ids=repr)
def test_a_count_may_be_a_text(value):
    assert Policy.from_mapping({"attempts": value}).attempts == 6


@pytest.mark.parametrize("value", ["", "six", "-", "--1", "2.5", "٣", "1_0"])
@pytest.mark.parametrize("name", ["attempts", "max_attempts"])
def test_a_text_that_is_no_count_is_refused_naming_the_name_the_rule_and_the_value(name, value):
    with pytest.raises(ValueError) as caught:
        Policy.from_mapping({name: value})
    assert str(caught.value) == f"{name} must be a whole number, 'none' or 'inf', got {value!r}"


def test_a_count_below_one_is_refused_by_the_check_of_the_field():
    with pytest.raises(ValueError, match=r"^attempts must be at least 1 \(the first call counts\), got -1$"):
        Policy.from_mapping({"max_attempts": "-1"})


def test_a_count_beyond_all_measure_is_refused_naming_the_name():
    with pytest.raises(ValueError, match="attempts"):
        Policy.from_mapping({"attempts": "9" * 5000})


@pytest.mark.parametrize(
    ("value", "error"), [(0, ValueError), ("0", ValueError), (2.5, ValueError), (True, ValueError)]
)
def test_a_wrong_count_is_refused_as_by_the_constructor(value, error):
    with pytest.raises(error, match="attempts must be "):
        Policy.from_mapping({"attempts": value})


@pytest.mark.parametrize("field", ["enabled", "idempotency_key", "idempotent"])
@pytest.mark.parametrize(
    ("value", "meaning"),
    [(word, True) for word in (True, "true", "Yes", " on ", "1")]
    + [(word, False) for word in (False, "false", "No", "OFF", "0")],
)
def test_a_switch_may_be_a_word(field, value, meaning):
    assert getattr(Policy.from_mapping({field: value}), field) is meaning


@pytest.mark.parametrize("field", ["enabled", "idempotency_key", "idempotent"])
@pytest.mark.parametrize("value", ["", "maybe", "2", "y"])
def test_a_word_that_is_no_switch_is_refused_naming_field_rule_and_value(field, value):
    with pytest.raises(ValueError) as caught:
        Policy.from_mapping({field: value})
    words = "true, false or by_method" if field == "idempotent" else "true or false"
    assert str(caught.value) == f"{field} must be {words}, got {value!r}"


def test_idempotency_by_method_is_a_word_too():
    assert Policy.from_mapping({"idempotent": "by_method"}).idempotent == "by_method"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"nested": "both"}, "nested must be one of 'stop', 'independent', 'defer', got 'both'"),
        ({"idempotent": 3}, "idempotent must be one of True, False, 'by_method', got 3"),
        ({"base": -1}, "base must be finite and not negative, got -1"),
        ({"deadline": 0}, "deadline must be above 0 seconds"),
    ],
)
def test_values_of_the_right_kind_are_checked_as_by_the_constructor(data, message):
    with pytest.raises(ValueError) as caught:
        Policy.from_mapping(data)
    assert str(caught.value).startswith(message)


# Backoffs


@pytest.mark.parametrize(
    ("name", "backoff"),
    [
        ("full", full_jitter),
        ("equal", equal_jitter),
        ("decorrelated", decorrelated_jitter),
        ("none", exponential),
        (True, full_jitter),
        (False, exponential),
    ],
)
def test_a_jitter_is_known_by_its_common_name(name, backoff):
    assert Policy.from_mapping({"jitter": name}).backoff is backoff


@pytest.mark.parametrize("value", ["half", "", None, 0.5, 1, ["full"], {"kind": "full"}], ids=repr)
def test_a_jitter_nobody_knows_is_refused_with_those_there_are(value):
    with pytest.raises((TypeError, ValueError)) as caught:
        Policy.from_mapping({"jitter": value})
    assert str(caught.value) == f"jitter must be one of full, equal, decorrelated, none, got {value!r}"


@pytest.mark.parametrize(
    "backoff",
    [
        fixed,
        linear,
        exponential,
        full_jitter,
        equal_jitter,
        decorrelated_jitter,
        proportional_jitter,
        additive_jitter,
    ],
)
def test_a_backoff_is_known_by_its_own_name(backoff):
    assert Policy.from_mapping({"backoff": backoff.__name__}).backoff is backoff


def test_a_backoff_nobody_knows_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"backoff must be one of additive_jitter, .*, got 'quadratic'"):
        Policy.from_mapping({"backoff": "quadratic"})


@pytest.mark.parametrize("value", [0.1, "0.1", " 0.1 ", "10%"], ids=repr)
def test_a_jitter_factor_is_the_spread_of_proportional_jitter(value):
    expected = Policy(backoff=functools.partial(proportional_jitter, spread=0.1))
    assert Policy.from_mapping({"jitter_factor": value}) == expected


@pytest.mark.parametrize("value", [0, 1, 1.0, "1"], ids=repr)
def test_a_jitter_factor_may_be_nothing_or_everything(value):
    assert Policy.from_mapping({"jitter_factor": value}).backoff.keywords == {"spread": float(value)}


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (1.5, ValueError),
        ("1.5", ValueError),
        (-0.1, ValueError),
        ("ten", ValueError),
        (True, ValueError),
        (None, TypeError),
    ],
)
def test_a_jitter_factor_that_is_none_is_refused_naming_it(value, error):
    with pytest.raises(error, match="jitter_factor must be "):
        Policy.from_mapping({"jitter_factor": value})


# Rules


def test_rules_may_be_plain_data():
    made = Policy.from_mapping(
        {
            "rules": {
                "429": {"max_attempts": "3", "base_delay": "500ms", "max_delay_ms": 2000, "jitter": "none"},
                "conflict": {"attempts": 2, "base": 0.1, "cap": "inf", "backoff": "fixed"},
                503: MappingProxyType({"jitter_factor": 0.5}),
            }
        }
    )
    assert made == Policy(
        rules={
            429: Rule(attempts=3, base=0.5, cap=2.0, backoff=exponential),
            Cause.conflict: Rule(attempts=2, base=0.1, cap=INF, backoff=fixed),
            503: Rule(backoff=functools.partial(proportional_jitter, spread=0.5)),
        }
    )


@pytest.mark.parametrize(
    ("field", "meant"), [("atempts", "attempts"), ("deadline", None), ("recover", None), ("capp", "cap")]
)
def test_a_field_that_rules_do_not_have_is_refused(field, meant):
    with pytest.raises(TypeError) as caught:
        Policy.from_mapping({"rules": {"429": {field: 1}}})
    message = str(caught.value)
    assert message.startswith(f"in rules: unknown policy field '{field}': ")
    assert meant is None or message.endswith(f"did you mean '{meant}'?")


def test_two_names_for_one_field_of_a_rule_are_refused():
    with pytest.raises(ValueError, match="max_attempts and attempts both set attempts"):
        Policy.from_mapping({"rules": {"429": {"attempts": 2, "max_attempts": 3}}})


@pytest.mark.parametrize("value", [None, 3, "429", [429]], ids=repr)
def test_rules_that_are_no_mapping_are_refused(value):
    with pytest.raises(TypeError) as caught:
        Policy.from_mapping({"rules": value})
    assert str(caught.value) == f"rules must be a mapping of causes or statuses to rules, got {value!r}"


@pytest.mark.parametrize(
    ("rules", "error", "message"),
    [
        ({"slow": {}}, ValueError, "rules must name causes, one of "),
        ({"42": {}}, ValueError, "rules must be keyed by "),
        ({"429": 3}, TypeError, "rules[429] must be a Rule, such as Rule(attempts=2), got 3"),
        ({"429": {"attempts": 0}}, ValueError, "attempts must be at least 1"),
        ({"429": {"base": "soon"}}, ValueError, "base must be a duration"),
    ],
)
def test_a_wrong_rule_is_refused_with_what_is_wrong(rules, error, message):
    with pytest.raises(error) as caught:
        Policy.from_mapping({"rules": rules})
    assert str(caught.value).startswith(message)


# Parsed files


EXPECTED = Policy(
    attempts=6,
    base=0.2,
    cap=5.0,
    backoff=decorrelated_jitter,
    deadline=20.0,
    idempotent=True,
    rules={429: Rule(attempts=3, base=1.0), Cause.timeout: Rule(attempts=2)},
    name="payments",
)


def test_parsed_json_makes_a_policy():
    text = """
    {"max_attempts": 6, "base_delay_ms": 200, "max_delay": "5s", "jitter": "decorrelated", "deadline": "20s",
     "timeout": null, "idempotent": true, "name": "payments",
     "rules": {"429": {"attempts": 3, "base": 1}, "timeout": {"max_attempts": 2}}}
    """
    assert Policy.from_mapping(json.loads(text)) == EXPECTED


def test_parsed_toml_makes_a_policy():
    text = """
    [retry]
    max_attempts = 6
    base_delay = "200ms"
    cap = 5
    jitter = "decorrelated"
    deadline = "20s"
    idempotent = true
    name = "payments"
    [retry.rules.429]
    attempts = 3
    base = 1.0
    [retry.rules.timeout]
    attempts = 2
    """
    assert Policy.from_mapping(tomllib.loads(text)["retry"]) == EXPECTED


def test_an_infinite_cap_of_toml_is_no_cap():
    assert Policy.from_mapping(tomllib.loads("cap = inf")).cap == INF


def test_the_data_is_left_as_it_was():
    data = {"max_attempts": 6, "rules": {"429": {"attempts": 2}}}
    Policy.from_mapping(data)
    assert data == {"max_attempts": 6, "rules": {"429": {"attempts": 2}}}


# Budgets and priorities


def test_a_subclass_is_built_as_itself():
    class Mine(Policy):
        __slots__ = ()

    assert type(Mine.from_mapping({})) is Mine
    assert type(Mine.from_env("P", {})) is Mine


@pytest.mark.parametrize(
    ("value", "ratio"),
    [(0.1, 0.1), ("0.1", 0.1), ("10%", 0.1), (" 2.5 % ", 0.025), (0, 0.0), (1, 1.0), ("100%", 1.0)],
)
def test_a_retry_budget_is_a_share_of_calls(value, ratio):
    budget = Policy.from_mapping({"retry_budget": value}).budget
    assert type(budget) is RatioBudget
    assert budget.ratio == ratio


@pytest.mark.parametrize("value", [None, "none", "None"])
def test_no_retry_budget_can_be_said(value):
    assert Policy.from_mapping({"retry_budget": value}).budget is None


@pytest.mark.parametrize("value", ["much", "-1", "10 percent", "%", 1.5, "150%", -0.1, True, float("nan")])
def test_a_retry_budget_that_is_no_share_is_refused(value):
    with pytest.raises(ValueError, match=r"retry_budget must be"):
        Policy.from_mapping({"retry_budget": value})


def test_a_retry_budget_and_a_budget_are_two_names_for_one_field():
    with pytest.raises(ValueError, match="budget"):
        Policy.from_mapping({"retry_budget": 0.1, "budget": RatioBudget()})


def test_a_priority_may_be_text_or_a_number():
    assert Policy.from_mapping({"priority": "-1"}).priority == -1
    assert Policy.from_mapping({"priority": " 2 "}).priority == 2
    assert Policy.from_mapping({"priority": -2}).priority == -2
