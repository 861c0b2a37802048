"""Event classes and reasons."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

from redouble import Cause, events
from redouble.events import Discarded, Event, Expired, GaveUp, Reason, Recovered, Retrying

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


EVENT = {
    "attempt": 2,
    "elapsed": 1.5,
    "delay": 0.5,
    "cause": Cause.timeout,
    "status": 504,
    "error_type": "TimeoutError",
    "error_message": "slow",
    "reason": Reason.attempts,
}


@pytest.mark.parametrize("kind", [Retrying, Recovered, GaveUp, Expired])
def test_an_event_is_a_value(kind):
    event = kind("fetch", **EVENT)
    assert event == kind("fetch", **EVENT)
    assert hash(event) == hash(kind("fetch", **EVENT))
    assert event != kind("fetch", **{**EVENT, "attempt": 3})
    assert {field: getattr(event, field) for field in EVENT} == EVENT
    assert event.name == "fetch"
    for protocol in PROTOCOLS:
        again = pickle.loads(pickle.dumps(event, protocol))
        assert again == event
        assert type(again) is kind
    assert copy.copy(event) == event == copy.deepcopy(event)
    assert repr(event).startswith(f"{kind.__name__}(")
    assert "error_message='slow'" in repr(event)


def test_events_of_two_kinds_are_never_equal():
    assert Retrying("fetch", attempt=1, elapsed=0.0) != GaveUp("fetch", attempt=1, elapsed=0.0)
    assert Retrying("fetch", attempt=1, elapsed=0.0) != "fetch"


@pytest.mark.parametrize("field", ["name", *EVENT, "anything_new"])
def test_an_event_cannot_be_changed(field):
    event = Retrying("fetch", **EVENT)
    with pytest.raises(AttributeError, match=f"Retrying is immutable: cannot set '{field}'"):
        setattr(event, field, 3)
    with pytest.raises(AttributeError, match=f"Retrying is immutable: cannot delete '{field}'"):
        delattr(event, field)
    assert event == Retrying("fetch", **EVENT)


def test_what_an_event_does_not_know_is_none():
    event = Event("fetch", attempt=1, elapsed=0.0)
    assert {getattr(event, field) for field in EVENT if field not in ("attempt", "elapsed")} == {None}


def test_reasons_are_few_fixed_and_texts():
    assert [*Reason] == [
        "disabled",
        "not_retryable",
        "not_idempotent",
        "attempts",
        "retry_after",
        "deadline",
        "give_up_after",
        "nested",
        "already_retried",
        "breaker",
        "budget",
        "bulkhead",
        "callback",
    ]


def test_an_event_that_nobody_sends_carries_no_call():
    event = Retrying("fetch", **EVENT)
    assert (event.error, event.args, event.kwargs) == (None, None, None)


@pytest.mark.parametrize("field", ["error", "args", "kwargs"])
def test_what_an_event_carries_cannot_be_set(field):
    with pytest.raises(AttributeError, match=f"Retrying is immutable: cannot set '{field}'"):
        setattr(Retrying("fetch", **EVENT), field, 3)


def test_an_event_as_a_dict_is_its_fields_as_plain_data():
    event = Discarded("orders", count=3, why="limit")
    data = event.as_dict()
    assert [*data] == [*event._fields]
    assert (data["queue"], data["count"], data["why"], data["attempt"]) == ("orders", 3, "limit", 0)
    traced = Retrying("fetch", **EVENT, correlation={"trace_id": "4bf92f35"})
    assert json.loads(json.dumps(traced.as_dict())) == {
        **EVENT,
        "name": "fetch",
        "correlation": {"trace_id": "4bf92f35"},
    }


def test_a_module_has_no_other_names():
    with pytest.raises(AttributeError, match="no attribute 'log_too'"):
        _ = events.log_too
