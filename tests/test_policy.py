"""The frozen value: what each field accepts, refuses and means, and that a policy is a value."""

from __future__ import annotations

import ast
import asyncio
import copy
import functools
import http
import pickle
import random
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from unittest import mock

import pytest

from conftest import watchdog
from redouble import Cause, Policy, Rule, policy, presets
from redouble.backoff import (
    LONGEST,
    decorrelated_jitter,
    equal_jitter,
    exponential,
    fixed,
    full_jitter,
    immediately_once,
    linear,
    proportional_jitter,
)
from redouble.breaker import CircuitBreaker
from redouble.budget import TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.classify import Classifier
from redouble.testing import FakeClock
from redouble.throttle import AdaptiveThrottle

INF = float("inf")
NAN = float("nan")
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)

SECONDS = ["base", "cap", "deadline", "timeout", "patience"]
RULE_SECONDS = ["base", "cap"]
BUILDERS = [pytest.param(Policy, field, id=f"Policy-{field}") for field in SECONDS] + [
    pytest.param(Rule, field, id=f"Rule-{field}") for field in RULE_SECONDS
]


# At module level, since policies that hold them are pickled.


def predicate(error):
    return True


def listener(event):
    return None


def three(attempt, base=1.0, cap=30.0, *, previous=None, rng=None):
    return 3.0


class AlwaysLongest(random.Random):
    def random(self):
        return 1.0


async def coroutine(*args, **kwargs):
    return True


def generator(*args, **kwargs):
    yield True


class AsyncCallable:
    async def __call__(self, *args, **kwargs):
        return True


# Defaults


def test_the_defaults_are_those_of_the_documentation():
    bare = Policy()
    assert {field: getattr(bare, field) for field in policy._FIELDS} == {
        "attempts": 4,
        "base": 1.0,
        "cap": 30.0,
        "backoff": full_jitter,
        "on": None,
        "until": None,
        "deadline": None,
        "timeout": None,
        "patience": 120.0,
        "idempotent": "by_method",
        "rules": {},
        "budget": None,
        "breaker": None,
        "throttle": None,
        "bulkhead": None,
        "fallback": policy.UNSET,
        "priority": 0,
        "dead_letters": None,
        "payload": None,
        "nested": "independent",
        "enabled": True,
        "listeners": (),
        "name": None,
        "idempotency_key": False,
        "rng": None,
        "clock": None,
        "sleep": None,
    }


PRIVATE = ["_in_context", "_guarded", "_falls_back", "_successes", "_way"]


def test_table_annotations_slots_and_typed_keywords_name_the_same_fields_in_the_same_order():
    source = ast.parse(Path(policy.__file__).read_text("utf-8"))

    def annotated(name):
        (found,) = (node for node in ast.walk(source) if isinstance(node, ast.ClassDef) and node.name == name)
        return [node.target.id for node in found.body if isinstance(node, ast.AnnAssign)]

    table = [*policy._FIELDS]
    assert annotated("PolicyFields") == table
    assert annotated("Policy") == [*table, *PRIVATE]
    assert [*Policy.__slots__] == [*table, *PRIVATE]
    assert [*Policy._fields] == [*table, *PRIVATE]


def test_every_field_is_named_in_the_docstring():
    for field in policy._FIELDS:
        assert f"``{field}``" in Policy.__doc__


# Seconds


@pytest.mark.parametrize(("build", "field"), BUILDERS)
@pytest.mark.parametrize(
    "value",
    [NAN, -INF, -1, -0.001, Decimal("NaN"), Decimal("sNaN"), Fraction(-1, 3), timedelta(seconds=-1)],
    ids=repr,
)
def test_negative_and_undefined_seconds_are_refused_naming_field_rule_and_value(build, field, value):
    with pytest.raises(ValueError) as caught:
        build(**{field: value})
    shown = value.total_seconds() if isinstance(value, timedelta) else value
    assert str(caught.value) == f"{field} must be finite and not negative, got {shown!r}"


@pytest.mark.parametrize("field", ["base", "deadline", "timeout", "patience"])
@pytest.mark.parametrize("value", [INF, 10**400], ids=["inf", "10**400"])
def test_infinite_seconds_are_refused_for_everything_but_the_cap(field, value):
    with pytest.raises(ValueError) as caught:
        Policy(**{field: value})
    assert str(caught.value) == f"{field} must be finite and not negative, got {value!r}"


def test_a_cap_of_infinity_is_no_cap():
    assert Policy(cap=INF).cap == INF
    assert Rule(cap=INF).cap == INF
    assert max(Policy(cap=INF, backoff=exponential, attempts=2000).delays()) == LONGEST


@pytest.mark.parametrize(("build", "field"), BUILDERS)
@pytest.mark.parametrize("value", [True, False])
def test_a_bool_is_no_number_of_seconds(build, field, value):
    with pytest.raises(ValueError) as caught:
        build(**{field: value})
    assert str(caught.value) == f"{field} must be a number, not a bool, got {value}"


@pytest.mark.parametrize(("build", "field"), BUILDERS)
@pytest.mark.parametrize("value", ["1", "20s", b"1", [1], 1j, ...], ids=repr)
def test_what_is_no_number_of_seconds_is_refused_naming_field_rule_and_value(build, field, value):
    with pytest.raises(TypeError) as caught:
        build(**{field: value})
    assert str(caught.value) == f"{field} must be a number, got {value!r}"


@pytest.mark.parametrize("field", SECONDS)
def test_a_type_in_the_place_of_a_number_is_refused_naming_the_field(field):
    with pytest.raises(TypeError, match=f"{field} must be a number, got <class 'float'>"):
        Policy(**{field: float})


@pytest.mark.parametrize(("build", "field"), BUILDERS)
@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (2, 2.0),
        (2.5, 2.5),
        (Decimal("2.5"), 2.5),
        (Fraction(5, 2), 2.5),
        (timedelta(minutes=1, milliseconds=500), 60.5),
    ],
    ids=repr,
)
def test_every_kind_of_number_and_a_timedelta_are_stored_as_seconds(build, field, value, seconds):
    stored = getattr(build(**{field: value}), field)
    assert type(stored) is float
    assert stored == seconds


def test_seconds_of_any_kind_never_fail_in_the_sleep(flavour, clock):
    made = Policy(
        base=Decimal("0.5"),
        cap=timedelta(seconds=1),
        deadline=Fraction(99, 2),
        backoff=exponential,
        clock=clock,
        sleep=clock.sleep,
    )
    assert (
        flavour.call(made, flavour.scripted(TimeoutError(), TimeoutError(), TimeoutError(), "page")) == "page"
    )
    assert clock.waits == [0.5, 1.0, 1.0]


@pytest.mark.parametrize("field", ["base", "cap", "patience"])
def test_no_seconds_at_all_are_seconds(field):
    assert getattr(Policy(**{field: 0}), field) == 0.0


@pytest.mark.parametrize("field", ["deadline", "timeout"])
@pytest.mark.parametrize("value", [0, 0.0, timedelta(0)], ids=repr)
def test_a_limit_of_no_time_is_refused_since_it_allows_nothing(field, value):
    with pytest.raises(ValueError) as caught:
        Policy(**{field: value})
    assert str(caught.value) == f"{field} must be above 0 seconds (None for no limit), got {value!r}"


@pytest.mark.parametrize("field", ["base", "cap", "patience"])
def test_seconds_that_must_be_there_cannot_be_none(field):
    with pytest.raises(TypeError, match=f"{field} must be a number, got None"):
        Policy(**{field: None})


def test_a_cap_below_the_base_is_allowed_and_holds():
    made = Policy(base=4, cap=2, backoff=exponential)
    assert list(made.delays()) == [2.0, 2.0, 2.0]


# Attempts


@pytest.mark.parametrize("build", [Policy, Rule])
@pytest.mark.parametrize("value", [0, -1, -(10**30)], ids=["0", "-1", "-10**30"])
def test_less_than_one_attempt_is_refused_naming_field_rule_and_value(build, value):
    with pytest.raises(ValueError) as caught:
        build(attempts=value)
    assert str(caught.value) == f"attempts must be at least 1 (the first call counts), got {value}"


@pytest.mark.parametrize("build", [Policy, Rule])
@pytest.mark.parametrize("value", [2.5, 3.0, NAN, INF, Decimal(3), Fraction(3)], ids=repr)
def test_attempts_that_are_not_whole_are_refused_naming_field_rule_and_value(build, value):
    with pytest.raises(ValueError) as caught:
        build(attempts=value)
    assert str(caught.value) == f"attempts must be a whole number, got {value!r}"


@pytest.mark.parametrize("build", [Policy, Rule])
def test_attempts_that_are_a_bool_or_no_number_are_refused_naming_field_rule_and_value(build):
    with pytest.raises(ValueError, match="attempts must be a whole number, not a bool, got True"):
        build(attempts=True)
    with pytest.raises(TypeError, match="attempts must be a whole number, got '3'"):
        build(attempts="3")
    with pytest.raises(TypeError, match="attempts must be a whole number, got <class 'int'>"):
        build(attempts=int)


def test_attempts_may_be_anything_with_an_index():
    class Six:
        def __index__(self):
            return 6

    for build in (Policy, Rule):
        made = build(attempts=Six())
        assert made.attempts == 6
        assert type(made.attempts) is int


def test_unlimited_attempts_need_a_deadline():
    with pytest.raises(ValueError, match="attempts must not be None without a deadline"):
        Policy(attempts=None)
    with pytest.raises(ValueError, match="attempts must not be None without a deadline"):
        Policy(attempts=None, deadline=5.0).replace(deadline=None)
    assert Policy(attempts=None, deadline=5.0).attempts is None


# on


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (OSError, (OSError,)),
        ((OSError, KeyError), (OSError, KeyError)),
        ((OSError, (KeyError, (ValueError,))), (OSError, KeyError, ValueError)),
        ([OSError, [KeyError]], (OSError, KeyError)),
        ({OSError}, (OSError,)),
        (frozenset({OSError}), (OSError,)),
        ((), ()),
        ([], ()),
        (Exception, (Exception,)),
    ],
    ids=repr,
)
def test_exception_types_in_any_collection_become_one_flat_tuple(given, stored):
    assert Policy(on=given).on == stored


def test_no_exception_type_at_all_means_that_nothing_is_retried(flavour, clock):
    made = Policy(on=(), clock=clock, sleep=clock.sleep)
    script = flavour.scripted(TimeoutError("slow"), "page")
    with pytest.raises(TimeoutError, match="slow"):
        flavour.call(made, script)
    assert len(script.calls) == 1


def test_a_classifier_and_a_predicate_are_kept_as_they_are():
    classifier = Classifier(transient=[KeyError])
    assert Policy(on=classifier).on is classifier
    assert Policy(on=predicate).on is predicate
    assert Policy(on=None).on is None


@pytest.mark.parametrize(
    "value",
    [
        "OSError",
        OSError("instance"),
        3,
        True,
        object(),
        {OSError: 1},
        int,
        (OSError, "KeyError"),
        [3],
        [None],
    ],
    ids=repr,
)
def test_what_names_no_exception_types_is_refused_naming_the_field(value):
    with pytest.raises(TypeError) as caught:
        Policy(on=value)
    message = str(caught.value)
    assert message.startswith("on must ")
    assert "exception types" in message
    assert ", got " in message


@pytest.mark.parametrize(
    "value",
    [BaseException, KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, BaseExceptionGroup],
)
@pytest.mark.parametrize("wrap", [lambda kind: kind, lambda kind: (OSError, (kind,))])
def test_interrupts_and_cancellation_cannot_be_named(value, wrap):
    with pytest.raises(TypeError) as caught:
        Policy(on=wrap(value))
    assert str(caught.value).startswith(f"on must not name {value.__name__}: interrupts and cancellation")


# Functions


@pytest.mark.parametrize("field", ["until", "on", "enabled", "clock", "idempotency_key", "backoff"])
@pytest.mark.parametrize(
    "function",
    [
        coroutine,
        functools.partial(coroutine, 1),
        AsyncCallable(),
        AsyncCallable().__call__,
        mock.AsyncMock(),
        generator,
    ],
    ids=["function", "partial", "object", "method", "mock", "generator"],
)
def test_an_async_function_is_refused_where_it_could_not_be_awaited(field, function):
    with pytest.raises(TypeError) as caught:
        Policy(**{field: function})
    assert str(caught.value) == (
        f"{field} must be a plain function, not an async one or a generator, got {function!r}"
    )


def test_an_async_backoff_of_a_rule_is_refused():
    with pytest.raises(TypeError, match="backoff must be a plain function"):
        Rule(backoff=coroutine)


@pytest.mark.parametrize("field", ["until", "backoff", "clock", "sleep"])
@pytest.mark.parametrize("value", [3, "full", ...], ids=repr)
def test_what_cannot_be_called_is_refused_naming_field_rule_and_value(field, value):
    with pytest.raises(TypeError) as caught:
        Policy(**{field: value})
    assert str(caught.value) == f"{field} must be a function, got {value!r}"


def test_a_sleep_may_be_async_and_so_may_recover():
    assert Policy(sleep=coroutine).sleep is coroutine
    assert Rule(recover=coroutine).recover is coroutine


@pytest.mark.parametrize("field", ["until", "clock", "sleep", "rng", "name"])
def test_none_is_what_an_optional_field_is_without(field):
    assert Policy(**{field: None}) == Policy()


def test_a_backoff_cannot_be_none():
    with pytest.raises(TypeError, match="backoff must be a function, got None"):
        Policy(backoff=None)


@pytest.mark.parametrize("field", ["enabled", "idempotency_key"])
def test_a_switch_is_a_bool_or_a_function(field):
    assert getattr(Policy(**{field: True}), field) is True
    assert getattr(Policy(**{field: False}), field) is False
    assert getattr(Policy(**{field: predicate}), field) is predicate
    for value in (1, 0, None, "true"):
        with pytest.raises(TypeError, match=f"{field} must be .*, got {value!r}"):
            Policy(**{field: value})


def test_listeners_are_kept_in_order_as_a_tuple():
    assert Policy(listeners=[listener, print]).listeners == (listener, print)
    assert Policy(listeners=iter([print, listener])).listeners == (print, listener)


def test_a_listener_that_is_not_in_a_list_is_refused_with_what_to_write():
    with pytest.raises(TypeError) as caught:
        Policy(listeners=listener)
    assert str(caught.value) == f"listeners must be a list of functions: write [{listener!r}]"


@pytest.mark.parametrize("value", [3, None, [3], [listener, "x"]], ids=repr)
def test_listeners_that_are_no_functions_are_refused_naming_the_field(value):
    with pytest.raises(TypeError, match=r"listeners must be a (list of functions|function), got "):
        Policy(listeners=value)


@pytest.mark.parametrize("function", [coroutine, AsyncCallable(), generator])
def test_an_async_listener_is_refused_when_the_policy_is_built(function):
    with pytest.raises(TypeError) as caught:
        Policy(listeners=[listener, function])
    assert str(caught.value) == (
        f"listeners must be a plain function, not an async one or a generator, got {function!r}"
    )


def test_a_random_source_draws_and_nothing_else_is_one():
    source = random.Random(1)
    assert Policy(rng=source).rng is source
    for value in (3, object(), len):
        with pytest.raises(TypeError) as caught:
            Policy(rng=value)
        assert str(caught.value) == f"rng must be a random.Random, got {value!r}"


def test_the_class_of_a_random_source_is_refused_since_only_an_instance_draws():
    with pytest.raises(TypeError, match=r"rng must be a random\.Random, got <class 'random.Random'>"):
        Policy(rng=random.Random)


# Choices and texts


@pytest.mark.parametrize("value", [True, False, "by_method"])
def test_idempotent_is_one_of_three(value):
    assert Policy(idempotent=value).idempotent is value


@pytest.mark.parametrize("value", [1, 0, None, "yes", "BY_METHOD", 1.0], ids=repr)
def test_any_other_word_on_idempotency_is_refused_with_the_choices(value):
    with pytest.raises(ValueError) as caught:
        Policy(idempotent=value)
    assert str(caught.value) == f"idempotent must be one of True, False, 'by_method', got {value!r}"


@pytest.mark.parametrize("value", ["independent", "defer"])
def test_nested_is_one_of_two(value):
    assert Policy(nested=value).nested == value


@pytest.mark.parametrize("value", ["both", True, None, 1], ids=repr)
def test_any_other_word_on_nesting_is_refused_with_the_choices(value):
    with pytest.raises(ValueError) as caught:
        Policy(nested=value)
    assert str(caught.value) == f"nested must be one of 'independent', 'defer', got {value!r}"


def test_a_name_is_a_text_that_is_not_empty():
    assert Policy(name="payments").name == "payments"
    for value in ("", 3, b"payments"):
        with pytest.raises(TypeError) as caught:
            Policy(name=value)
        assert str(caught.value) == f"name must be a text that is not empty, got {value!r}"


# Keywords


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("atempts", "attempts"),
        ("max_attempts", "attempts"),
        ("dead_line", "deadline"),
        ("listener", "listeners"),
    ],
)
@pytest.mark.parametrize(
    "build", [Policy, Policy().replace, presets.standard], ids=["Policy", "replace", "preset"]
)
def test_an_unknown_keyword_is_refused_and_the_nearest_one_suggested(build, typo, meant):
    with pytest.raises(TypeError) as caught:
        build(**{typo: 3})
    assert str(caught.value) == f"unknown policy field '{typo}': did you mean '{meant}'?"


def test_an_unknown_keyword_that_resembles_none_is_refused_with_all_there_are():
    with pytest.raises(TypeError) as caught:
        Policy(xyzzy=1)
    known = ", ".join(sorted(policy._FIELDS))
    assert str(caught.value) == f"unknown policy field 'xyzzy': known are {known}"


def test_fields_are_given_by_keyword_only():
    with pytest.raises(TypeError, match="positional"):
        Policy(4)
    with pytest.raises(TypeError, match="positional"):
        Rule(4)


# Rules


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
        ("slow", ValueError, "rules must name causes out of connection, disconnected, "),
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
    assert str(caught.value) == f"rules[429] must be a Rule, got {value!r}"


@pytest.mark.parametrize("value", [None, 3, [429], Rule()], ids=repr)
def test_rules_that_are_no_mapping_are_refused(value):
    with pytest.raises(TypeError) as caught:
        Policy(rules=value)
    assert str(caught.value).startswith("rules must map causes, statuses or exception types to rules, got ")


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


# A policy is a value


FULL = {
    "attempts": 7,
    "base": 0.5,
    "cap": 9.0,
    "backoff": functools.partial(exponential, factor=3.0),
    "on": (OSError, KeyError),
    "until": functools.partial(max, 1),
    "deadline": 60.0,
    "timeout": 5.0,
    "patience": 30.0,
    "idempotent": True,
    "rules": {
        429: Rule(attempts=2, backoff=functools.partial(exponential, factor=4.0)),
        Cause.timeout: Rule(),
        KeyError: Rule(),
    },
    "fallback": "page",
    "priority": -1,
    "nested": "defer",
    "enabled": False,
    "listeners": [listener],
    "name": "payments",
    "idempotency_key": True,
    "rng": None,
    "clock": None,
    "sleep": coroutine,
}

VALUES = [
    pytest.param({}, id="bare"),
    pytest.param(FULL, id="full"),
    pytest.param({"on": Classifier(transient=[KeyError], statuses=[418])}, id="classifier"),
    pytest.param({"backoff": immediately_once(functools.partial(exponential, factor=3.0))}, id="immediately"),
    pytest.param({"attempts": None, "deadline": 5.0}, id="unlimited"),
    pytest.param({"cap": INF, "on": ()}, id="nothing"),
    pytest.param({"listeners": [functools.partial(print, 1)]}, id="partial listener"),
]


def test_a_full_policy_differs_from_the_default_in_every_field_but_the_unpicklable():
    made = Policy(**FULL)
    alike = {field for field in policy._FIELDS if getattr(made, field) == getattr(Policy(), field)}
    assert alike == {"rng", "clock", "budget", "breaker", "throttle", "bulkhead", "dead_letters", "payload"}


@pytest.mark.parametrize("field", [*policy._FIELDS])
def test_no_field_can_be_set_or_deleted(field):
    made = Policy()
    with pytest.raises(AttributeError, match=f"Policy is immutable: cannot set '{field}'"):
        setattr(made, field, 3)
    with pytest.raises(AttributeError, match=f"Policy is immutable: cannot delete '{field}'"):
        delattr(made, field)
    assert made == Policy()


def test_no_field_can_be_added():
    with pytest.raises(AttributeError, match="cannot set 'budget'"):
        Policy().budget = 3


@pytest.mark.parametrize("fields", VALUES)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_policy_is_the_same_after_pickling(fields, protocol):
    made = Policy(**fields)
    again = pickle.loads(pickle.dumps(made, protocol))
    assert type(again) is Policy
    assert again == made
    assert hash(again) == hash(made)
    assert again._way == made._way


@pytest.mark.parametrize("fields", VALUES)
@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda made: made.replace(attempts=made.attempts)]
)
def test_a_policy_is_the_same_after_copying(fields, copied):
    made = Policy(**fields)
    again = copied(made)
    assert again == made
    assert hash(again) == hash(made)


def test_an_unpickled_policy_works(flavour, clock):
    made = pickle.loads(pickle.dumps(Policy(on=KeyError, backoff=three)))
    timed = made.replace(clock=clock, sleep=clock.sleep)
    assert flavour.call(timed, flavour.scripted(KeyError(), "page")) == "page"
    assert clock.waits == [3.0]


@pytest.mark.parametrize("fields", VALUES)
def test_two_policies_of_the_same_fields_are_equal_and_hash_alike(fields):
    again = copy.deepcopy(fields)
    assert Policy(**fields) == Policy(**again)
    assert hash(Policy(**fields)) == hash(Policy(**again))


@pytest.mark.parametrize("field", [field for field in FULL if field not in ("rng", "clock")])
def test_a_difference_in_any_field_is_a_difference(field):
    assert Policy(**{field: FULL[field]}) != Policy()


def test_a_policy_equals_nothing_else():
    assert Policy() != {}
    assert Policy() != 4
    assert Policy() == Policy(attempts=4)
    assert Policy(backoff=functools.partial(exponential, factor=2.0)) != Policy(
        backoff=functools.partial(exponential, factor=3.0)
    )


def test_a_policy_may_be_a_key_whatever_it_holds():
    class Unhashable:
        __hash__ = None

        def __call__(self, error):
            return True

    assert {Policy(on=Unhashable()): 1}
    assert len({Policy(), Policy(attempts=4), Policy(attempts=5)}) == 2


def test_replace_changes_what_it_names_and_nothing_else():
    made = Policy(**FULL)
    changed = made.replace(attempts=2, name=None)
    assert (changed.attempts, changed.name) == (2, None)
    for field in set(policy._FIELDS) - {"attempts", "name"}:
        assert getattr(changed, field) == getattr(made, field)
    assert made.attempts == 7


def test_replace_of_nothing_is_the_policy_itself():
    made = Policy(attempts=2)
    assert made.replace() is made


def test_replace_checks_as_the_constructor_does():
    with pytest.raises(ValueError, match="base must be finite and not negative, got -1"):
        Policy().replace(base=-1)


def test_a_subclass_stays_what_it_is():
    class Mine(Policy):
        __slots__ = ()

    assert type(Mine(attempts=2).replace(base=2.0)) is Mine
    assert Mine() != Policy()


def test_a_policy_prints_what_differs_from_the_default():
    assert repr(Policy()) == "Policy()"
    assert repr(Policy(attempts=4, base=1)) == "Policy()"
    made = Policy(attempts=2, backoff=linear, on=KeyError, rules={429: Rule(attempts=2)}, name="payments")
    assert repr(made) == (
        "Policy(attempts=2, backoff=linear, on=(<class 'KeyError'>,), "
        "rules={429: Rule(attempts=2)}, name='payments')"
    )
    assert "backoff=immediately_once(linear)" in repr(Policy(backoff=immediately_once(linear)))


def test_a_mock_in_the_place_of_a_function_can_be_printed_and_described():
    made = Policy(backoff=mock.Mock(return_value=1.0), on=mock.Mock(return_value=True))
    with watchdog():
        assert "Mock" in repr(made)
        assert "Mock" in made.describe()


def test_only_a_policy_that_asks_for_nothing_has_a_bare_first_attempt():
    for fields in ({}, {"on": OSError}, {"rules": {429: Rule()}}, {"listeners": [listener]}):
        assert Policy(**fields)._way == "bare"
    for fields in ({"fallback": None}, {"priority": 3}):
        assert Policy(**fields)._way == "bare"
    for fields in ({"until": bool}, {"deadline": 1}, {"timeout": 1}, {"idempotency_key": True}):
        assert Policy(**fields)._way != "bare"


def test_the_way_of_a_first_attempt_is_as_short_as_its_policy_allows():
    assert Policy(until=bool)._way == "judged"
    assert Policy(until=bool, deadline=1)._way == "known"
    for guards in ({"budget": TokenBudget()}, {"breaker": CircuitBreaker()}):
        assert Policy(**guards)._way == "guarded"
        for more in ({"until": bool}, {"deadline": 1}):
            assert Policy(**guards, **more)._way == "watched"
    for guards in ({"throttle": AdaptiveThrottle()}, {"bulkhead": Bulkhead(1)}):
        assert Policy(**guards)._way == "full"


# delays and describe


def test_delays_previews_the_waits_of_one_call():
    assert list(Policy(backoff=exponential, base=0.5, cap=1.5, attempts=5).delays()) == [0.5, 1.0, 1.5, 1.5]
    seeded = Policy(rng=random.Random(7))
    expected = random.Random(7)
    assert list(seeded.delays()) == [expected.uniform(0, 1), expected.uniform(0, 2), expected.uniform(0, 4)]


def test_delays_without_a_limit_of_attempts_do_not_end():
    endless = Policy(attempts=None, deadline=5.0, backoff=fixed).delays()
    assert [next(endless) for _ in range(100)] == [1.0] * 100


def test_the_default_policy_described():
    assert Policy().describe() == (
        "Calls up to 4 times.\n"
        "Waits by full_jitter from 1 s, never longer than 30 s.\n"
        "Retries failures known to be transient, but not of a POST or PATCH that may have acted, "
        "unless it has an Idempotency-Key or only reads.\n"
        "Waits as long as a server asks, up to 120 s; gives up at once if it asks for more.\n"
        "Takes at most 7 s of waiting without server hints, plus the attempts themselves."
    )


def test_a_policy_with_everything_described():
    made = Policy(
        attempts=None,
        base=0.5,
        cap=INF,
        backoff=functools.partial(equal_jitter, factor=3.0),
        on=(OSError, KeyError),
        until=bool,
        deadline=20.0,
        timeout=2.5,
        patience=60.0,
        idempotent=True,
        rules={429: Rule(), Cause.conflict: Rule(), KeyError: Rule()},
        nested="defer",
    )
    assert made.describe() == (
        "Calls as often as the deadline allows.\n"
        "Waits by equal_jitter from 0.5 s, with no upper limit.\n"
        "Retries OSError, KeyError and results that until refuses, also of requests that may act twice, "
        "429 by a rule of its own, conflict by a rule of its own, KeyError by a rule of its own.\n"
        "Waits as long as a server asks, up to 60 s; gives up at once if it asks for more.\n"
        "Ends 20 s after the call began, waits included.\n"
        "Cuts an async attempt off after 2.5 s.\n"
        "Tries once while a call further out is already retrying.\n"
        "Takes at most 20 s, and a sync attempt that is running then.\n"
        "Mind: timeout=2.5 is enforced in async code only: a sync attempt that hangs holds the call for as long as "
        "its client lets it; in sync code hand current_attempt().timeout to the client; in async code there is "
        "nothing to do"
    )


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"attempts": 1}, "Calls once, never again."),
        ({"on": predicate}, "Retries what predicate says, but not"),
        ({"on": ()}, "Retries nothing, but not"),
        ({"idempotent": False}, "but only of calls that certainly had no effect."),
        ({"backoff": immediately_once(linear)}, "Waits by immediately_once(linear) from 1 s"),
    ],
)
def test_a_description_says_what_is_particular(fields, sentence):
    assert sentence in Policy(**fields).describe()


@pytest.mark.parametrize(
    ("fields", "longest"),
    [
        ({"attempts": 1}, "0 s of waiting"),
        ({"backoff": exponential}, "7 s of waiting"),
        ({"backoff": fixed, "attempts": 3}, "2 s of waiting"),
        ({"backoff": linear, "attempts": 5}, "10 s of waiting"),
        ({"backoff": equal_jitter}, "7 s of waiting"),
        ({"backoff": decorrelated_jitter, "attempts": 5, "cap": 20.0}, "52 s of waiting"),  # 3 + 9 + 20 + 20
        ({"backoff": proportional_jitter}, "8.75 s of waiting"),
        ({"backoff": functools.partial(proportional_jitter, spread=0.5)}, "10.5 s of waiting"),
        ({"backoff": immediately_once(exponential)}, "3 s of waiting"),
        ({"backoff": three, "cap": 5.0}, "15 s of waiting"),
        ({"backoff": functools.partial(three), "cap": 5.0}, "15 s of waiting"),
        ({"backoff": three, "attempts": 1, "cap": INF}, "0 s of waiting"),
        ({"deadline": 5.0}, "5 s, and a sync attempt that is running then."),
        ({"deadline": 5.0, "attempts": None}, "5 s, and a sync attempt that is running then."),
        ({"deadline": 9.0}, "7 s of waiting"),
        ({"attempts": 10**9, "deadline": 60.0}, "60 s, and a sync attempt that is running then."),
        ({"enabled": False}, "0 s of waiting"),
    ],
)
def test_a_description_tells_the_longest_the_call_can_take(fields, longest):
    with watchdog():
        last = _longest(Policy(**fields))
    # Of a backoff that is not ours only the cap is known.
    assert last.startswith(longest)


def _longest(made):
    return made.describe().partition("Takes at most ")[2].splitlines()[0]


def test_of_a_backoff_that_is_not_ours_only_the_cap_is_known_also_after_an_immediate_retry():
    def drawing(attempt, base=1.0, cap=30.0, *, previous=None, rng=None):
        return cap * rng.random()

    described = Policy(backoff=immediately_once(drawing), cap=5.0).describe()
    assert "Takes at most 10 s" in described or "Takes at most 15 s" in described


@pytest.mark.parametrize("attempts", [2, 3, 2000])
def test_without_a_cap_the_longest_time_of_a_backoff_that_is_not_ours_is_still_a_time(attempts):
    assert "nan" not in Policy(backoff=three, cap=INF, attempts=attempts).describe()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backoff", "base"),
    [(linear, 0.001), (functools.partial(exponential, factor=1.0001), 1.0), (full_jitter, 1.0)],
)
def test_the_longest_time_of_many_attempts_is_never_understated(backoff, base):
    made = Policy(backoff=backoff, base=base, attempts=40_000, rng=AlwaysLongest())
    with watchdog(60):
        longest = float(_longest(made).split()[0])
        assert longest >= sum(made.delays()) * 0.999  # six digits are shown


def test_the_longest_time_counts_what_a_rule_waits():
    made = Policy(rules={429: Rule(base=60.0, cap=60.0, backoff=fixed)})
    assert "Takes at most 7 s" not in made.describe()
    assert "180 s" in made.describe()


def test_describing_a_policy_reports_no_trouble_of_its_own_making(caplog):
    def drawing(attempt, base=1.0, cap=30.0, *, previous=None, rng=None):
        return rng.random()

    Policy(backoff=immediately_once(drawing)).describe()
    Policy(backoff=functools.partial(drawing)).describe()
    assert caplog.records == []


def test_a_policy_that_is_switched_off_does_not_claim_to_call_again():
    assert "Calls up to 4 times" not in Policy(enabled=False).describe()


# Calling and decorating


def test_a_policy_calls_and_decorates(flavour, clock):
    made = Policy(backoff=exponential, clock=clock, sleep=clock.sleep)
    assert flavour.run(made.call, flavour.scripted(TimeoutError(), "called")) == "called"
    assert flavour.run(made(flavour.scripted(TimeoutError(), "decorated"))) == "decorated"
    assert clock.waits == [1.0, 1.0]


# Presets


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
