"""A policy is a value: immutable, comparable, printable, replaced and pickled."""

from __future__ import annotations

import copy
import functools
import logging
import pickle
from unittest import mock

import pytest

from conftest import watchdog
from redouble import Cause, Policy, Rule, policy
from redouble.backoff import (
    exponential,
    immediately_once,
    linear,
)
from redouble.classify import Classifier

INF = float("inf")
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


# At module level, since policies that hold them are pickled.


def predicate(error):
    return True


def listener(event):
    return None


async def coroutine(*args, **kwargs):
    return True


def three(attempt, base=1.0, cap=30.0, *, previous=None, rng=None):
    return 3.0


FULL = {
    "attempts": 7,
    "base": 0.5,
    "cap": 9.0,
    "floor": 2.0,
    "backoff": functools.partial(exponential, factor=3.0),
    "on": (OSError, KeyError),
    "until": functools.partial(max, 1),
    "deadline": 60.0,
    "give_up_after": 50.0,
    "timeout": 5.0,
    "max_retry_after": 30.0,
    "idempotent": True,
    "rules": {
        429: Rule(attempts=2, backoff=functools.partial(exponential, factor=4.0)),
        Cause.timeout: Rule(),
        KeyError: Rule(),
    },
    "recover": print,
    "fallback": "page",
    "priority": -1,
    "nested": "defer",
    "enabled": False,
    "listeners": [listener],
    "logger": logging.getLogger("payments"),
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
    pytest.param({"attempts": INF, "give_up_after": 5.0}, id="for ever"),
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
    assert again._variant == made._variant


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


def test_a_subclass_may_have_slots_and_an_init_of_its_own():
    class Tagged(Policy):
        __slots__ = ("tag",)

        def __init__(self, *, tag="none", **fields):
            super().__init__(**{"attempts": 7, **fields})
            object.__setattr__(self, "tag", tag)

    made = Tagged(tag="mine", base=2.0)
    assert (made.attempts, made.base, made.tag) == (7, 2.0, "mine")
    assert type(made.replace(deadline=5.0)) is Tagged
    assert made.replace(deadline=5.0)._variant == "timed"


def test_replace_checks_what_fields_mean_together():
    with pytest.raises(ValueError, match="attempts must not be None without a deadline"):
        Policy(attempts=None, deadline=5.0).replace(deadline=None)
    with pytest.raises(ValueError, match="payload needs dead_letters"):
        Policy().replace(payload=predicate)


@pytest.mark.parametrize("field", [*FULL])
def test_replace_there_and_back_computes_anew(field):
    changed = Policy().replace(**{field: FULL[field]})
    assert [getattr(changed, name) for name in Policy.__slots__] == [
        getattr(Policy(**{field: FULL[field]}), name) for name in Policy.__slots__
    ]
    back = changed.replace(**{field: getattr(Policy(), field)})
    for name in Policy.__slots__:
        assert getattr(back, name) == getattr(Policy(), name)


def test_a_policy_that_was_refused_changes_nothing_of_the_one_it_was_made_from():
    before = Policy(attempts=5)
    with pytest.raises(ValueError, match="base must be"):
        before.replace(attempts=6, base=-1)
    assert before == Policy(attempts=5)
    assert type(before) is Policy


def test_a_policy_prints_what_differs_from_the_default():
    assert repr(Policy()) == "Policy()"
    assert repr(Policy(attempts=4, base=1)) == "Policy()"
    made = Policy(attempts=2, backoff=linear, on=KeyError, rules={429: Rule(attempts=2)}, name="payments")
    assert repr(made) == (
        "Policy(attempts=2, on=(<class 'KeyError'>,), rules={429: Rule(attempts=2)}, "
        "backoff=linear, name='payments')"
    )
    assert "backoff=immediately_once(linear)" in repr(Policy(backoff=immediately_once(linear)))
    made = Policy(backoff=functools.partial(exponential, factor=3.0))
    assert repr(made) == "Policy(backoff=partial(exponential, factor=3.0))"


def test_a_mock_in_the_place_of_a_function_can_be_printed_and_described():
    made = Policy(backoff=mock.Mock(return_value=1.0), on=mock.Mock(return_value=True))
    with watchdog():
        assert "Mock" in repr(made)
        assert "Mock" in made.describe()
