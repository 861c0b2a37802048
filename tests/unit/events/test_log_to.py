"""`log_to`: other levels and texts for the log."""

from __future__ import annotations

import copy
import logging
import pickle

import pytest

from redouble import Policy
from redouble.backoff import exponential
from redouble.dead_letters import DeadLetters
from redouble.events import (
    BackendChanged,
    Discarded,
    Event,
    GaveUp,
    Recovered,
    Retrying,
    Succeeded,
    log_to,
    with_successes,
)


@pytest.fixture
def policy(clock):
    return Policy(backoff=exponential, name="fetch", logger=False, clock=clock, sleep=clock.sleep)


@pytest.fixture(autouse=True)
def everything(caplog):
    caplog.set_level(logging.DEBUG, "app")
    caplog.set_level(logging.DEBUG, "redouble")


def logged(caplog):
    assert {record.name for record in caplog.records} <= {"app"}
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_without_a_level_and_a_text_it_logs_what_the_policy_would(flavour, policy, caplog):
    script = [TimeoutError("slow")] * 2
    for fields in ({"logger": "app"}, {"listeners": [log_to("app")]}):
        with pytest.raises(TimeoutError):
            flavour.call(policy.replace(attempts=2, **fields), flavour.scripted(*script))
    first, second = caplog.records[:2], caplog.records[2:]
    assert [record.getMessage() for record in first] == [record.getMessage() for record in second]
    assert [(record.levelname, record.msg) for record in first] == [
        (record.levelname, record.msg) for record in second
    ]
    assert second[0].attempt == 1
    assert second[0].error_type == "TimeoutError"


@pytest.mark.parametrize("logger", ["app", logging.getLogger("app")], ids=["by name", "by object"])
def test_one_level_is_for_all_events(flavour, policy, caplog, logger):
    listening = policy.replace(listeners=[log_to(logger, level=logging.DEBUG)])
    flavour.call(listening, flavour.scripted(TimeoutError("slow"), "page"))
    assert logged(caplog) == [
        ("DEBUG", "retrying fetch in 1.00 s: TimeoutError: slow (attempt 1 of 4)"),
        ("DEBUG", "recovered fetch at attempt 2 of 4 after TimeoutError: slow"),
    ]


def test_a_mapping_chooses_the_classes_and_the_level_of_each(flavour, policy, caplog):
    levels = {Retrying: logging.INFO, GaveUp: logging.CRITICAL}
    listening = policy.replace(attempts=2, listeners=[log_to("app", level=levels)])
    flavour.call(listening, flavour.scripted(TimeoutError("slow"), "page"))
    with pytest.raises(TimeoutError):
        flavour.call(listening, flavour.scripted(*[TimeoutError("slow")] * 2))
    assert [level for level, _ in logged(caplog)] == ["INFO", "INFO", "CRITICAL"]


def test_a_level_that_is_not_enabled_is_not_logged(flavour, policy, caplog):
    caplog.set_level(logging.INFO, "app")
    listening = policy.replace(listeners=[log_to("app", level=logging.DEBUG)])
    flavour.call(listening, flavour.scripted(TimeoutError("slow"), "page"))
    assert logged(caplog) == []


def test_a_level_above_error_is_logged_where_only_that_is_enabled(flavour, policy, caplog):
    caplog.set_level(logging.CRITICAL, "app")
    listening = policy.replace(listeners=[log_to("app", level=logging.CRITICAL)])
    flavour.call(listening, flavour.scripted(TimeoutError("slow"), "page"))
    assert len(logged(caplog)) == 2


def test_a_template_is_the_constant_text_of_the_records(flavour, policy, caplog):
    template = "%(name)s: %(error)s, again in %(delay).1f s (%(attempt)d, %(attempt_of)s, %(cause)s)"
    listening = policy.replace(listeners=[log_to("app", {Retrying: logging.INFO}, template)])
    flavour.call(listening, flavour.scripted(TimeoutError("slow"), TimeoutError("token=abc123"), "page"))
    assert logged(caplog) == [
        ("INFO", "fetch: TimeoutError: slow, again in 1.0 s (1, 1 of 4, timeout)"),
        ("INFO", "fetch: TimeoutError: token=***, again in 2.0 s (2, 2 of 4, timeout)"),
    ]
    assert {record.msg for record in caplog.records} == {template}


def test_a_template_may_say_why_and_after_how_many_attempts(flavour, policy, caplog):
    template = "%(reason)s: %(why)s (%(attempts)s, %(status)s, %(queue)s)"
    listening = policy.replace(attempts=2, listeners=[log_to("app", {GaveUp: 40}, template)])
    with pytest.raises(TimeoutError):
        flavour.call(listening, flavour.scripted(*[TimeoutError("slow")] * 2))
    assert logged(caplog) == [
        ("ERROR", "attempts: no attempts left (2 attempts, 1.0 s after the first failure, None, None)")
    ]


def test_events_without_a_wait_are_logged_with_a_delay_of_0(flavour, policy, caplog):
    listening = policy.replace(listeners=[log_to("app", {Recovered: 20}, "%(delay).1f of %(elapsed).1f")])
    flavour.call(listening, flavour.scripted(TimeoutError("slow"), "page"))
    assert logged(caplog) == [("INFO", "0.0 of 1.0")]


@pytest.mark.parametrize("error", [KeyError("no"), TimeoutError("slow")])
def test_a_first_failure_that_is_not_retried_is_not_logged(flavour, policy, caplog, error):
    with pytest.raises(type(error)):
        flavour.call(policy.replace(attempts=1, listeners=[log_to("app")]), flavour.scripted(error))
    assert logged(caplog) == []


def test_successes_are_logged_for_those_who_ask(flavour, policy, caplog):
    flavour.call(policy.replace(listeners=[with_successes(log_to("app"))]), flavour.scripted("page"))
    assert logged(caplog) == [("INFO", "fetch succeeded at its first attempt")]


def test_it_listens_to_stores_and_guards_as_well(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("redouble"), "disabled", True)
    with DeadLetters(tmp_path / "letters.db", listeners=[log_to("app", level=logging.INFO)]) as letters:
        letter = letters.put(function="pay", error=TimeoutError("slow"), attempts=4)
        letters.discard(letter.id)
    assert logged(caplog) == [
        ("INFO", f"stored dead letter {letter.id} of pay in default: TimeoutError: slow"),
        ("INFO", "discarded dead letters of default: 1 (discarded)"),
    ]


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (Retrying("fetch", attempt=1, elapsed=0.0, delay=2.0), "retrying fetch in 2.00 s (attempt 1)"),
        (
            GaveUp("fetch", attempt=1, elapsed=2.0, reason="attempts", error_type="E"),
            "gave up on fetch after 1 attempt in 2.0 s: attempts; E",
        ),
        (Succeeded("fetch", attempt=1, elapsed=0.0), "fetch succeeded at its first attempt"),
        (BackendChanged("payments", available=True), "store of payments answers again"),
        (Discarded("orders", count=3, why="limit"), "discarded dead letters of orders: 3 (limit)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_event_that_is_of_no_call_is_logged_with_what_it_has(event, line, caplog):
    log_to("app")(event)
    assert [message for _, message in logged(caplog)] == [line]


def test_every_event_has_a_text():
    assert all(kind._text for kind in Event.__subclasses__())


def test_without_a_handler_nothing_is_logged(capfd):
    lonely = logging.getLogger("lonely")
    lonely.propagate = False
    log_to(lonely)(GaveUp("fetch", attempt=2, elapsed=1.0))
    assert capfd.readouterr() == ("", "")


def test_it_is_a_value():
    made = log_to(logging.getLogger("app"), level={Retrying: 20}, template="%(name)s")
    assert made == log_to(logging.getLogger("app"), level={Retrying: 20}, template="%(name)s")
    assert hash(made) == hash(copy.copy(made))
    assert made != log_to("app", level={Retrying: 20}, template="%(name)s")
    again = pickle.loads(pickle.dumps(made))
    assert again == made
    assert again.logger is made.logger
    assert pickle.loads(pickle.dumps(Policy(listeners=[made]))) == Policy(listeners=[made])


@pytest.mark.parametrize(
    ("template", "kind", "message"),
    [
        (
            "%(nmae)s",
            ValueError,
            r"template has %\(nmae\)s, which events do not have; known are .*error.*name",
        ),
        ("%(status)d", ValueError, "template must be a %-style text such as"),
        ("%(name)s %s", ValueError, "template must be a %-style text such as"),
        ("%(name)", ValueError, "template must be a %-style text such as"),
        ("{name} failed", TypeError, "template must be a text that names fields, such as '%\\(name\\)s'"),
        (7, TypeError, "template must be a text that names fields"),
    ],
)
def test_a_template_that_cannot_be_filled_in_is_refused(template, kind, message):
    with pytest.raises(kind, match=message):
        log_to("app", template=template)


@pytest.mark.parametrize(
    ("level", "message"),
    [
        ("INFO", "level must be a whole number, got 'INFO'"),
        (True, "level must be a whole number, not a bool"),
        ({Retrying: "INFO"}, "level of Retrying must be a whole number, got 'INFO'"),
        ({"Retrying": 20}, "level must map classes of redouble.events to levels, got 'Retrying'"),
        (
            {TimeoutError: 20},
            "level must map classes of redouble.events to levels, got <class 'TimeoutError'>",
        ),
    ],
)
def test_what_is_no_level_is_refused(level, message):
    with pytest.raises((TypeError, ValueError), match=message):
        log_to("app", level=level)


@pytest.mark.parametrize("logger", [False, None, 7])
def test_it_needs_a_logger(logger):
    with pytest.raises(TypeError, match=r"logger must be a logging\.Logger"):
        log_to(logger)
