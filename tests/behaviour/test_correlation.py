"""The correlation of events, log records and dead letters."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle

import pytest

from redouble import Policy, current_attempt
from redouble.backoff import fixed
from redouble.breaker import CircuitBreaker
from redouble.dead_letters import DeadLetters
from redouble.events import (
    CircuitChanged,
    DeadLettered,
    Event,
    GaveUp,
    correlate,
)


@pytest.fixture
def heard():
    return []


@pytest.fixture
def correlating():
    yield correlate
    correlate(None)


def kinds(events):
    return [type(event).__name__ for event in events]


def _times_out():
    raise TimeoutError("slow")


def test_an_event_carries_what_belongs_together(flavour, clock, heard, correlating):
    correlating(
        lambda: {"trace_id": "4bf9", "attempt": attempt.number if (attempt := current_attempt()) else 0}
    )
    policy = Policy(listeners=[heard.append], backoff=fixed, clock=clock, sleep=clock.sleep)
    flavour.call(policy, flavour.scripted(TimeoutError(), "page"))
    assert [event.correlation["trace_id"] for event in heard] == ["4bf9", "4bf9"]
    with pytest.raises(TypeError):
        heard[0].correlation["trace_id"] = "other"


def test_without_a_hook_an_event_carries_nothing(clock, heard):
    with pytest.raises(ValueError, match="no"):
        Policy(listeners=[heard.append]).call(int, "no")
    assert heard[0].correlation == {}


def test_an_event_of_a_call_has_every_field_that_an_event_has(clock, heard):
    with pytest.raises(ValueError, match="no"):
        Policy(listeners=[heard.append]).call(int, "no")
    assert tuple(vars(heard[0])) == Event._fields == tuple(vars(Event("fetch", attempt=1, elapsed=0.0)))


def test_an_event_with_a_correlation_is_a_value():
    event = Event("fetch", attempt=1, elapsed=0.0)
    one = GaveUp("fetch", attempt=1, elapsed=0.0, correlation={"trace_id": ["4bf9"]})
    assert event.correlation == {}
    assert one == GaveUp("fetch", attempt=1, elapsed=0.0, correlation={"trace_id": ["4bf9"]})
    assert hash(one) == hash(GaveUp("fetch", attempt=1, elapsed=0.0, correlation={"trace_id": "5"}))
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(one, protocol))
        assert again == one
        with pytest.raises(TypeError):
            again.correlation["trace_id"] = "other"


def test_what_a_correlation_was_given_cannot_be_changed_afterwards():
    given = {"trace_id": "4bf9"}
    event = GaveUp("fetch", attempt=1, elapsed=0.0, correlation=given)
    given["trace_id"] = "other"
    assert event.correlation == {"trace_id": "4bf9"}


def test_a_guards_event_carries_what_belongs_together_too(clock, heard, correlating):
    correlating(lambda: {"service": "orders"})
    CircuitBreaker(clock=clock, listeners=[heard.append]).open()
    assert [(type(event), dict(event.correlation)) for event in heard] == [
        (CircuitChanged, {"service": "orders"})
    ]


@pytest.mark.parametrize("broken", [lambda: 1 / 0, lambda: None, lambda: ["trace"]])
def test_a_correlate_hook_that_fails_is_told_of_once_and_hides_nothing(
    flavour, clock, heard, caplog, correlating, broken
):
    correlating(broken)
    policy = Policy(listeners=[heard.append], clock=clock, sleep=clock.sleep)
    assert flavour.call(policy, flavour.scripted(TimeoutError(), "page")) == "page"
    assert [event.correlation for event in heard] == [{}, {}]
    assert [record.getMessage() for record in caplog.records if "correlate" in record.getMessage()] == [
        "correlate <lambda> failed (said once)"
    ]


def test_an_async_correlate_hook_is_refused():
    with pytest.raises(TypeError, match="hook must be a plain function"):
        correlate(asyncio.sleep)


def logged(caplog, policy, *outcomes):
    with caplog.at_level(logging.INFO, "redouble"), pytest.raises(TimeoutError):
        policy.call(_times_out)
    return [vars(record) for record in caplog.records if record.name == "redouble"]


@pytest.fixture
def quiet(clock):
    return Policy(attempts=2, name="fetch", clock=clock, sleep=clock.sleep)


def test_a_log_record_has_what_belongs_together_as_fields(caplog, correlating, quiet):
    correlating(lambda: {"trace_id": "4bf9", "service": "orders"})
    for record in logged(caplog, quiet):
        assert (record["trace_id"], record["service"], record["policy"]) == ("4bf9", "orders", "fetch")


def test_a_field_whose_name_is_taken_in_a_log_record_gets_a_longer_one(caplog, correlating, quiet):
    correlating(lambda: {"name": "orders", "message": "m", "policy": "p", "asctime": "now", 5: "five"})
    record = logged(caplog, quiet)[0]
    assert record["name"] == "redouble"
    assert record["policy"] == "fetch"
    assert record["correlation_name"] == "orders"
    assert record["correlation_message"] == "m"
    assert record["correlation_policy"] == "p"
    assert record["correlation_asctime"] == "now"
    assert record["5"] == "five"


def test_a_record_factory_that_takes_our_names_loses_no_log(caplog, correlating, quiet):
    class Record(logging.LogRecord):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.trace_id, self.policy = "of the factory", "of the factory"

    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(Record)
    try:
        plain = logged(caplog, quiet)[0]
        caplog.clear()
        correlating(lambda: {"trace_id": "4bf9"})
        record = logged(caplog, quiet)[0]
    finally:
        logging.setLogRecordFactory(before)
    assert (plain["policy"], plain["redouble_policy"]) == ("of the factory", "fetch")
    assert (record["policy"], record["redouble_policy"]) == ("of the factory", "fetch")
    assert (record["trace_id"], record["correlation_trace_id"]) == ("of the factory", "4bf9")


def test_a_log_record_masks_secrets_in_the_message(caplog, clock):
    def login():
        raise TimeoutError("no answer to POST /login?password=hunter2")

    with caplog.at_level(logging.INFO, "redouble"), pytest.raises(TimeoutError):
        Policy(attempts=2, clock=clock, sleep=clock.sleep).call(login)
    assert {record.error_message for record in caplog.records} == {"no answer to POST /login?password=***"}


def test_log_records_can_be_written_as_json(caplog, correlating, quiet):
    correlating(lambda: {"trace_id": "4bf9"})
    for record in logged(caplog, quiet):
        standard = vars(logging.makeLogRecord({}))
        extra = {key: value for key, value in record.items() if key not in standard}
        assert json.loads(json.dumps(extra))["policy"] == "fetch"


def test_a_dead_letter_is_told_to_the_policys_listeners_with_what_belongs_together(
    flavour, clock, heard, correlating, tmp_path
):
    correlating(lambda: {"correlation_id": "order 7"})
    letters = DeadLetters(tmp_path / "letters.db")
    policy = Policy(
        attempts=1, dead_letters=letters, listeners=[heard.append], clock=clock, sleep=clock.sleep
    )
    with pytest.raises(TimeoutError):
        flavour.call(policy, flavour.scripted(TimeoutError()))
    (letter,) = letters.list()
    letters.close()
    assert letter.correlation_id == "order 7"
    told = [event for event in heard if type(event) is DeadLettered]
    assert [(event.letter, dict(event.correlation)) for event in told] == [
        (letter.id, {"correlation_id": "order 7"})
    ]
