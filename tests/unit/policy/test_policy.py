"""What each field of a policy accepts and refuses, and what a policy does."""

from __future__ import annotations

import asyncio
import functools
import random
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from unittest import mock

import pytest

from redouble import Policy, Rule, policy
from redouble.backoff import (
    LONGEST,
    exponential,
    fixed,
    full_jitter,
)
from redouble.breaker import CircuitBreaker
from redouble.budget import TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.classify import Classifier
from redouble.throttle import AdaptiveThrottle

INF = float("inf")
NAN = float("nan")

SECONDS = ["base", "cap", "floor", "deadline", "give_up_after", "timeout", "max_retry_after"]
RULE_SECONDS = ["base", "cap", "floor"]
BUILDERS = [pytest.param(Policy, field, id=f"Policy-{field}") for field in SECONDS] + [
    pytest.param(Rule, field, id=f"Rule-{field}") for field in RULE_SECONDS
]


def predicate(error):
    return True


def listener(event):
    return None


async def coroutine(*args, **kwargs):
    return True


def generator(*args, **kwargs):
    yield True


class AsyncCallable:
    async def __call__(self, *args, **kwargs):
        return True


class CallableError(OSError):
    def __call__(self, error):
        return True


# Defaults


def test_the_defaults_are_those_of_the_documentation():
    bare = Policy()
    assert {field: getattr(bare, field) for field in policy._FIELDS} == {
        "attempts": 4,
        "base": 1.0,
        "cap": 30.0,
        "floor": 0.0,
        "backoff": full_jitter,
        "on": None,
        "until": None,
        "deadline": None,
        "give_up_after": None,
        "timeout": None,
        "logger": None,
        "max_retry_after": 120.0,
        "idempotent": "by_method",
        "rules": {},
        "budget": None,
        "breaker": None,
        "throttle": None,
        "bulkhead": None,
        "recover": None,
        "fallback": policy.UNSET,
        "priority": 0,
        "dead_letters": None,
        "payload": None,
        "nested": "stop",
        "enabled": True,
        "listeners": (),
        "name": None,
        "idempotency_key": False,
        "rng": None,
        "clock": None,
        "sleep": None,
    }


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


@pytest.mark.parametrize(
    ("field", "value"), [*((field, 10**400) for field in SECONDS), ("base", INF), ("floor", INF)]
)
def test_infinite_seconds_are_refused_for_base_and_floor_and_overlong_ones_for_all(field, value):
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
    message, _, advised = str(caught.value).partition(": write ")
    assert message == f"{field} must be a number, got {value!r}"
    assert bool(advised) == (build is Policy and isinstance(value, str))


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
    others = {"cap": INF} if field == "floor" else {}
    stored = getattr(build(**{field: value}, **others), field)
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


@pytest.mark.parametrize("field", ["base", "cap", "max_retry_after"])
def test_no_seconds_at_all_are_seconds(field):
    assert getattr(Policy(**{field: 0}), field) == 0.0


@pytest.mark.parametrize("field", ["deadline", "timeout"])
@pytest.mark.parametrize("value", [0, 0.0, timedelta(0)], ids=repr)
def test_a_limit_of_no_time_is_refused_since_it_allows_nothing(field, value):
    with pytest.raises(ValueError) as caught:
        Policy(**{field: value})
    assert str(caught.value) == f"{field} must be above 0 seconds (None for no limit), got {value!r}"


@pytest.mark.parametrize("field", ["base", "cap", "max_retry_after"])
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
@pytest.mark.parametrize("value", [2.5, NAN, -INF, Decimal(3), Fraction(3)], ids=repr)
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
        CallableError("instance"),
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


@pytest.mark.parametrize("field", ["until", "clock", "sleep"])
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


@pytest.mark.parametrize("value", ["stop", "independent", "defer"])
def test_nested_is_one_of_three(value):
    assert Policy(nested=value).nested == value


@pytest.mark.parametrize("value", ["both", True, None, 1], ids=repr)
def test_any_other_word_on_nesting_is_refused_with_the_choices(value):
    with pytest.raises(ValueError) as caught:
        Policy(nested=value)
    assert str(caught.value) == f"nested must be one of 'stop', 'independent', 'defer', got {value!r}"


def test_a_name_is_a_text_that_is_not_empty():
    assert Policy(name="payments").name == "payments"
    for value in ("", 3, b"payments"):
        with pytest.raises(TypeError) as caught:
            Policy(name=value)
        assert str(caught.value) == f"name must be a text that is not empty, got {value!r}"


# Keywords


def test_fields_are_given_by_keyword_only():
    with pytest.raises(TypeError, match="positional"):
        Policy(4)
    with pytest.raises(TypeError, match="positional"):
        Rule(4)


def test_a_policy_is_simple_if_its_functions_are_sync_at_first_sight():
    def plain(*args): ...

    async def later(*args): ...

    rules = {429: Rule(recover=plain)}
    for fields in (
        {},
        {"recover": plain, "sleep": plain, "fallback": plain, "rules": rules},
        {"fallback": 3},
    ):
        assert Policy(**fields)._simple is True
    unclear = {"rules": {429: Rule(), 503: Rule(recover=later)}}
    for fields in ({"recover": later}, {"sleep": later}, {"fallback": later}, unclear, {"deadline": 1}):
        assert Policy(**fields)._simple is False
        assert Policy(**fields).replace(attempts=2)._simple is False


def test_only_a_policy_that_asks_for_nothing_has_a_bare_first_attempt():
    for fields in ({}, {"on": OSError}, {"rules": {429: Rule()}}, {"listeners": [listener]}):
        assert Policy(**fields)._variant == "plain"
    for fields in ({"fallback": None}, {"priority": 3}):
        assert Policy(**fields)._variant == "plain"
    for fields in ({"until": bool}, {"deadline": 1}, {"timeout": 1}, {"idempotency_key": True}):
        assert Policy(**fields)._variant != "plain"


def test_the_way_of_a_first_attempt_is_as_short_as_its_policy_allows():
    assert Policy(until=bool)._variant == "guarded"
    assert Policy(until=bool, deadline=1)._variant == "timed"
    for guards in ({"budget": TokenBudget()}, {"breaker": CircuitBreaker()}):
        assert Policy(**guards)._variant == "guarded"
        assert Policy(**guards, until=bool)._variant == "guarded"
        assert Policy(**guards, deadline=1)._variant == "timed"
    for guards in ({"throttle": AdaptiveThrottle()}, {"bulkhead": Bulkhead(1)}):
        assert Policy(**guards)._variant == "full"


# Delays and calls


def test_delays_previews_the_waits_of_one_call():
    assert list(Policy(backoff=exponential, base=0.5, cap=1.5, attempts=5).delays()) == [0.5, 1.0, 1.5, 1.5]
    seeded = Policy(rng=random.Random(7))
    expected = random.Random(7)
    assert list(seeded.delays()) == [expected.uniform(0, 1), expected.uniform(0, 2), expected.uniform(0, 4)]


def test_delays_without_a_limit_of_attempts_do_not_end():
    endless = Policy(attempts=None, deadline=5.0, backoff=fixed).delays()
    assert [next(endless) for _ in range(100)] == [1.0] * 100


def test_a_policy_calls_and_decorates(flavour, clock):
    made = Policy(backoff=exponential, clock=clock, sleep=clock.sleep)
    assert flavour.run(made.call, flavour.scripted(TimeoutError(), "called")) == "called"
    assert flavour.run(made(flavour.scripted(TimeoutError(), "decorated"))) == "decorated"
    assert clock.waits == [1.0, 1.0]
