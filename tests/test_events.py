"""What happened, as records: told to listeners in order, and to logging."""

from __future__ import annotations

import copy
import logging
import pickle
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

import redouble
from conftest import watchdog
from redouble import Cause, DeadlineExceeded, Policy, ResultRejected, Rule, _trouble, events
from redouble.backoff import exponential
from redouble.events import Event, Expired, GaveUp, Reason, Recovered, Retrying
from redouble.testing import retries_disabled

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
TERMINAL = (Recovered, GaveUp, Expired)


@pytest.fixture
def heard():
    return []


@pytest.fixture
def policy(clock, heard):
    return Policy(backoff=exponential, name="fetch", listeners=[heard.append], clock=clock, sleep=clock.sleep)


class Unavailable(Exception):
    """Carries a status, as the errors of HTTP clients do."""

    def __init__(self):
        super().__init__("try later")
        self.status_code = 503


# Records


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
        "patience",
        "deadline",
        "nested",
        "circuit",
        "budget",
        "bulkhead",
        "callback",
    ]


# The stream of one call


def test_a_clean_success_is_no_event(flavour, policy, heard):
    assert flavour.call(policy, flavour.scripted("page")) == "page"
    assert heard == []


def test_a_call_that_recovers_tells_each_retry_and_the_end(flavour, policy, heard):
    assert flavour.call(policy, flavour.scripted(TimeoutError("slow"), Unavailable(), "page")) == "page"
    assert heard == [
        Retrying(
            "fetch",
            attempt=1,
            delay=1.0,
            elapsed=0.0,
            cause=Cause.timeout,
            error_type="TimeoutError",
            error_message="slow",
        ),
        Retrying(
            "fetch",
            attempt=2,
            delay=2.0,
            elapsed=1.0,
            cause=Cause.unavailable,
            status=503,
            error_type="Unavailable",
            error_message="try later",
        ),
        Recovered(
            "fetch",
            attempt=3,
            elapsed=3.0,
            cause=Cause.unavailable,
            status=503,
            error_type="Unavailable",
            error_message="try later",
        ),
    ]


def test_a_call_that_is_given_up_on_ends_with_the_reason(flavour, policy, heard):
    with pytest.raises(TimeoutError):
        flavour.call(policy.replace(attempts=2), flavour.scripted(TimeoutError("a"), TimeoutError("b")))
    assert [type(event) for event in heard] == [Retrying, GaveUp]
    assert heard[1] == GaveUp(
        "fetch",
        attempt=2,
        elapsed=1.0,
        cause=Cause.timeout,
        error_type="TimeoutError",
        error_message="b",
        reason=Reason.attempts,
    )


def test_elapsed_counts_from_the_beginning_where_there_is_a_deadline(flavour, policy, heard, clock):
    def slow():
        clock.advance(2.0)
        raise TimeoutError("slow")

    with pytest.raises(DeadlineExceeded):
        flavour.call(policy.replace(deadline=9.0), flavour.function(slow))
    assert [(type(event), event.attempt, event.delay, event.elapsed, event.reason) for event in heard] == [
        (Retrying, 1, 1.0, 2.0, None),
        (Retrying, 2, 2.0, 5.0, None),
        (Expired, 3, None, 9.0, Reason.deadline),
    ]


def test_the_name_is_the_functions_own_where_the_policy_has_none(flavour, policy, heard):
    def fetch_page():
        raise KeyError

    with pytest.raises(KeyError):
        flavour.call(policy.replace(name=None), flavour.function(fetch_page))
    assert heard[0].name.endswith("fetch_page")


def test_a_block_tells_what_a_function_tells(flavour, policy, heard):
    script = iter([TimeoutError("slow"), None])

    def body(attempt):
        error = next(script)
        if error:
            raise error

    flavour.block(policy.replace(name=None), body)
    assert [(type(event), event.name, event.attempt) for event in heard] == [
        (Retrying, "block", 1),
        (Recovered, "block", 2),
    ]


def test_a_refused_result_is_told_without_an_error_type(flavour, policy, heard):
    with pytest.raises(ResultRejected):
        flavour.call(policy.replace(until=bool, attempts=2), flavour.scripted(0, 0))
    assert [(type(event), event.error_type, event.error_message) for event in heard] == [
        (Retrying, None, "the result was refused"),
        (GaveUp, None, "the result was refused"),
    ]


class Post(Unavailable):
    def __init__(self):
        super().__init__()
        self.status_code = 500
        self.request = mock.NonCallableMock(spec=["method", "headers"], method="POST", headers={})


class Patient(Unavailable):
    retry_after = 999.0


def failing(error):
    raise error


ENDINGS = [
    pytest.param({"attempts": 1}, TimeoutError("slow"), GaveUp, Reason.attempts, id="attempts"),
    pytest.param({}, KeyError("no"), GaveUp, Reason.not_retryable, id="not_retryable"),
    pytest.param({"enabled": False}, TimeoutError("slow"), GaveUp, Reason.disabled, id="disabled"),
    pytest.param(
        {"idempotent": False}, TimeoutError("slow"), GaveUp, Reason.not_idempotent, id="not_idempotent"
    ),
    pytest.param({}, Patient(), GaveUp, Reason.patience, id="patience"),
    pytest.param({"deadline": 0.5}, TimeoutError("slow"), Expired, Reason.deadline, id="deadline"),
    pytest.param({"on": failing}, TimeoutError("slow"), GaveUp, Reason.callback, id="callback"),
]


@pytest.mark.parametrize(("fields", "error", "kind", "reason"), ENDINGS)
def test_a_first_failure_that_is_not_retried_is_one_event_with_its_reason(
    flavour, policy, heard, clock, fields, error, kind, reason
):
    if reason is Reason.callback:
        fields = {"on": lambda failure: failing(LookupError("predicate"))}
    with pytest.raises((type(error), DeadlineExceeded)):
        flavour.call(policy.replace(**fields), flavour.scripted(error))
    (event,) = heard
    assert (type(event), event.reason, event.attempt, event.delay) == (kind, reason, 1, None)
    assert (event.error_type, event.error_message) == (type(error).__name__, str(error))
    assert clock.waits == []


@pytest.mark.parametrize(("fields", "error", "kind", "reason"), ENDINGS)
def test_a_later_failure_ends_the_call_with_exactly_one_terminal_event(
    flavour, policy, heard, fields, error, kind, reason
):
    # The first failure is retried; the second meets what ends the call.
    said = iter([True, False])
    changed = {
        Reason.attempts: {"attempts": 2},
        Reason.disabled: {"enabled": lambda: next(said)},
        Reason.not_idempotent: {},
        Reason.deadline: {"deadline": 2.5},
        Reason.callback: {"on": lambda failure: next(said) or failing(LookupError("predicate"))},
    }.get(reason, fields)
    if reason is Reason.not_idempotent:
        error = Post()
    with pytest.raises((type(error), DeadlineExceeded)):
        flavour.call(policy.replace(**changed), flavour.scripted(TimeoutError("first"), error))
    assert [type(event) for event in heard] == [Retrying, kind]
    assert heard[1].reason == reason
    assert heard[1].attempt == 2


def test_a_failing_recover_ends_the_call_with_exactly_one_terminal_event(flavour, policy, heard):
    rules = {TimeoutError: Rule(recover=lambda error: failing(LookupError("no token")))}
    with pytest.raises(TimeoutError):
        flavour.call(policy.replace(rules=rules), flavour.scripted(TimeoutError("slow"), "page"))
    assert [(type(event), event.reason) for event in heard] == [(Retrying, None), (GaveUp, Reason.callback)]


def test_a_deadline_that_comes_during_the_wait_ends_the_call_with_one_terminal_event(flavour, clock, heard):
    policy = Policy(
        deadline=5.0,
        backoff=exponential,
        listeners=[heard.append],
        clock=clock,
        sleep=lambda seconds: clock.sleep(10.0),
    )
    with pytest.raises(DeadlineExceeded):
        flavour.call(policy, flavour.scripted(TimeoutError("slow"), "page"))
    assert [(type(event), event.attempt) for event in heard] == [(Retrying, 1), (Expired, 1)]
    assert heard[1].elapsed == 10.0


def test_an_until_that_raises_in_a_later_attempt_still_ends_the_call_with_one_terminal_event(
    flavour, policy, heard
):
    def until(result):
        raise LookupError("cannot tell")

    with pytest.raises(LookupError, match="cannot tell"):
        flavour.call(policy.replace(until=until), flavour.scripted(TimeoutError("slow"), "page"))
    assert sum(isinstance(event, TERMINAL) for event in heard) == 1


def test_a_call_that_never_began_says_so_with_attempt_0(flavour, policy, heard, clock):
    outer = Policy(deadline=1.0, clock=clock, sleep=clock.sleep)
    inner = policy.replace(deadline=5.0)
    script = flavour.scripted("page")
    if flavour.is_async:

        async def late():
            clock.advance(2.0)
            return await inner(script)()
    else:

        def late():
            clock.advance(2.0)
            return inner(script)()

    with pytest.raises(DeadlineExceeded) as caught:
        flavour.call(outer, late)
    assert caught.value.attempts == 0 or caught.value.last_error.attempts == 0
    assert [(type(event), event.attempt, event.reason) for event in heard] == [(Expired, 0, Reason.deadline)]
    assert (heard[0].error_type, heard[0].error_message) == (None, None)
    assert script.calls == []


def test_switched_off_retries_are_told_as_such(flavour, policy, heard):
    with retries_disabled(), pytest.raises(TimeoutError):
        flavour.call(policy, flavour.scripted(TimeoutError("slow"), "page"))
    assert [(type(event), event.reason) for event in heard] == [(GaveUp, Reason.disabled)]


def test_an_interrupt_is_no_failure_and_no_event(flavour, policy, heard):
    with pytest.raises(SystemExit):
        flavour.call(policy, flavour.scripted(SystemExit(3)))
    assert heard == []


# Listeners


def test_listeners_are_told_in_order(flavour, policy):
    order = []
    listeners = [lambda event, name=name: order.append((name, type(event))) for name in "abc"]
    flavour.call(policy.replace(listeners=listeners), flavour.scripted(TimeoutError(), "page"))
    assert order == [(name, kind) for kind in (Retrying, Recovered) for name in "abc"]


def told(caplog):
    return [record for record in caplog.records if "(said once)" in record.getMessage()]


def test_a_listener_that_raises_is_told_of_once_and_hides_nothing(flavour, policy, caplog):
    first, last = [], []

    def broken(event):
        raise LookupError("no such metric")

    listening = policy.replace(listeners=[first.append, broken, last.append])
    with caplog.at_level(logging.WARNING, "redouble"):
        result = flavour.call(listening, flavour.scripted(TimeoutError(), TimeoutError(), "page"))
        assert result == "page"
        with pytest.raises(KeyError):
            flavour.call(listening, flavour.scripted(KeyError("own")))
    assert first == last
    assert [type(event) for event in first] == [Retrying, Retrying, Recovered, GaveUp]
    (record,) = told(caplog)
    assert record.name == "redouble"
    assert record.levelname == "WARNING"
    assert "broken" in record.getMessage()
    assert record.exc_text.endswith("\nLookupError: no such metric")


def test_each_listener_that_raises_is_told_of_once(policy, caplog, flavour):
    def made():
        def broken(event):
            raise LookupError

        return broken

    listening = policy.replace(listeners=[made(), made()])
    flavour.call(listening, flavour.scripted(TimeoutError(), TimeoutError(), "page"))
    assert len(told(caplog)) == 2


def test_trouble_without_end_is_forgotten_rather_than_kept_without_end(caplog):
    culprits = [lambda event: None for _ in range(_trouble._TOLD_AT_MOST + 1)]
    for culprit in culprits:
        _trouble.report(culprit, "trouble")
    assert len(told(caplog)) == len(culprits)
    assert len(_trouble._told) == 1
    _trouble.report(culprits[0], "trouble")  # forgotten, so said again
    _trouble.report(culprits[0], "trouble")
    assert len(told(caplog)) == len(culprits) + 1


def test_an_object_without_a_name_is_reported_too(caplog):
    class Sink:
        def __call__(self, event):
            raise LookupError

    sinks = [Sink(), Sink()]
    for sink in (*sinks, *sinks):
        _trouble.report(sink, "sink failed", LookupError("x"))
    assert [record.getMessage() for record in told(caplog)] == ["sink failed (said once)"] * 2


def test_a_listener_whose_very_name_raises_hides_nothing(flavour, policy, heard):
    class Nasty:
        def __getattr__(self, name):
            if name in ("__name__", "__qualname__", "func"):
                raise RuntimeError(name)
            raise AttributeError(name)

        def __call__(self, event):
            raise LookupError

    listening = policy.replace(listeners=[Nasty(), heard.append])
    assert flavour.call(listening, flavour.scripted(TimeoutError(), "page")) == "page"
    assert [type(event) for event in heard] == [Retrying, Recovered]


def test_a_mock_that_raises_is_a_listener_like_any_other(flavour, policy, heard):
    listening = policy.replace(listeners=[mock.Mock(side_effect=LookupError), heard.append])
    with watchdog():
        assert flavour.call(listening, flavour.scripted(TimeoutError(), "page")) == "page"
    assert [type(event) for event in heard] == [Retrying, Recovered]


@pytest.mark.parametrize("interrupt", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_an_interrupt_in_a_listener_is_not_held_back(flavour, policy, interrupt, clock):
    def interrupted(event):
        raise interrupt

    later = []
    listening = policy.replace(listeners=[interrupted, later.append])
    decorated = listening(flavour.scripted(TimeoutError(), "page"))
    caught = []

    # Caught inside: an event loop treats an interrupt of a task in a way of its own.
    def outcome():
        try:
            decorated()
        except interrupt as error:
            caught.append(error)

    async def awaited():
        try:
            await decorated()
        except interrupt as error:
            caught.append(error)

    flavour.run(awaited if flavour.is_async else outcome)
    assert [type(error) for error in caught] == [interrupt]
    assert later == []
    assert clock.waits == []


async def async_listener(event):
    return None


def generator_listener(event):
    yield event


@pytest.mark.parametrize("listener", [async_listener, generator_listener, mock.AsyncMock()])
def test_an_async_listener_is_refused_when_the_policy_is_built(listener):
    with pytest.raises(
        TypeError, match="listeners must be a plain function, not an async one or a generator"
    ):
        Policy(listeners=[listener])


def test_the_time_a_listener_takes_counts_against_the_deadline(flavour, clock):
    policy = Policy(
        deadline=5.0,
        backoff=exponential,
        listeners=[lambda event: clock.advance(10.0)],
        clock=clock,
        sleep=clock.sleep,
    )
    script = flavour.scripted(TimeoutError("slow"), "page")
    with pytest.raises(DeadlineExceeded):
        flavour.call(policy, script)
    assert len(script.calls) == 1


def test_a_listener_sees_no_arguments_and_cannot_change_the_next_wait(flavour, policy, clock, heard):
    def meddling(event):
        event.delay = 0.0

    listening = policy.replace(listeners=[meddling, heard.append])
    decorated = listening(flavour.scripted(TimeoutError("slow"), "page"))
    assert flavour.run(decorated, "s3cret", password="s3cret") == "page"
    assert clock.waits == [1.0]
    assert "s3cret" not in repr(heard)


# Logging


LOGGED = (
    "attempt",
    "delay_ms",
    "elapsed_ms",
    "error_type",
    "error_message",
    "cause",
    "status",
    "policy",
    "reason",
)


def logged(caplog):
    return [
        (record.levelname, record.getMessage(), {field: getattr(record, field) for field in LOGGED})
        for record in caplog.records
    ]


@pytest.fixture
def quiet_policy(policy):
    return policy.replace(listeners=())


def test_a_retry_is_a_warning_and_a_recovery_is_information(flavour, quiet_policy, caplog):
    with caplog.at_level(logging.INFO, "redouble"):
        flavour.call(quiet_policy, flavour.scripted(Unavailable(), "page"))
    assert {record.name for record in caplog.records} == {"redouble"}
    assert logged(caplog) == [
        (
            "WARNING",
            "retrying after a failed attempt",
            {
                "attempt": 1,
                "delay_ms": 1000,
                "elapsed_ms": 0,
                "error_type": "Unavailable",
                "error_message": "try later",
                "cause": "unavailable",
                "status": 503,
                "policy": "fetch",
                "reason": None,
            },
        ),
        (
            "INFO",
            "recovered after retries",
            {
                "attempt": 2,
                "delay_ms": None,
                "elapsed_ms": 1000,
                "error_type": "Unavailable",
                "error_message": "try later",
                "cause": "unavailable",
                "status": 503,
                "policy": "fetch",
                "reason": None,
            },
        ),
    ]


def test_giving_up_after_retries_is_an_error(flavour, quiet_policy, caplog):
    with pytest.raises(TimeoutError):
        flavour.call(quiet_policy.replace(attempts=3), flavour.scripted(*[TimeoutError("slow")] * 3))
    assert [(level, message) for level, message, _ in logged(caplog)] == [
        ("WARNING", "retrying after a failed attempt"),
        ("WARNING", "retrying after a failed attempt"),
        ("ERROR", "gave up after retries"),
    ]
    fields = logged(caplog)[-1][2]
    assert (fields["attempt"], fields["reason"], fields["delay_ms"]) == (3, "attempts", None)
    assert type(fields["reason"]) is str
    assert type(fields["cause"]) is str


def test_a_deadline_after_retries_is_an_error(flavour, quiet_policy, caplog):
    with pytest.raises(DeadlineExceeded):
        flavour.call(quiet_policy.replace(deadline=2.5), flavour.scripted(*[TimeoutError("slow")] * 3))
    assert [(level, message) for level, message, _ in logged(caplog)] == [
        ("WARNING", "retrying after a failed attempt"),
        ("ERROR", "gave up because of the deadline"),
    ]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({}, KeyError("no")),
        ({"attempts": 1}, TimeoutError("slow")),
        ({"deadline": 0.5}, TimeoutError("slow")),
    ],
)
def test_a_first_failure_that_is_not_retried_is_not_logged(flavour, quiet_policy, caplog, fields, error):
    with caplog.at_level(logging.DEBUG, "redouble"), pytest.raises((type(error), DeadlineExceeded)):
        flavour.call(quiet_policy.replace(**fields), flavour.scripted(error))
    assert caplog.records == []


def test_messages_are_constant_whatever_the_call(quiet_policy, caplog, flavour):
    for name in ("one", "two"):
        named = quiet_policy.replace(name=name)
        flavour.call(named, flavour.scripted(TimeoutError(f"slow {name} %s"), "page"))
    records = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert {record.msg for record in records} == {"retrying after a failed attempt"}
    assert [record.policy for record in records] == ["one", "two"]


def test_what_nobody_logs_is_not_made(flavour, quiet_policy, caplog):
    with caplog.at_level(logging.ERROR, "redouble"):
        flavour.call(quiet_policy, flavour.scripted(TimeoutError("slow"), "page"))
    assert caplog.records == []


class FullDisk(logging.Handler):
    def emit(self, record):
        raise OSError(28, "no space left on device")


@pytest.fixture
def full_disk():
    handler = FullDisk()
    logger = logging.getLogger("redouble")
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)


def test_a_log_on_a_full_disk_hides_neither_result_nor_error(flavour, policy, heard, clock, full_disk):
    assert flavour.call(policy, flavour.scripted(TimeoutError(), TimeoutError(), "page")) == "page"
    assert clock.waits == [1.0, 2.0]
    error = TimeoutError("last")
    with pytest.raises(TimeoutError) as caught:
        flavour.call(policy.replace(attempts=2), flavour.scripted(TimeoutError(), error))
    assert caught.value is error
    assert [type(event) for event in heard] == [Retrying, Retrying, Recovered, Retrying, GaveUp]


def test_trouble_with_a_listener_on_a_full_disk_hides_nothing_either(flavour, policy, full_disk):
    def broken(event):
        raise LookupError

    listening = policy.replace(listeners=[broken])
    assert flavour.call(listening, flavour.scripted(TimeoutError(), "page")) == "page"


def test_an_interrupt_in_a_log_handler_is_not_held_back(policy, caplog):
    class Interrupted(logging.Handler):
        def emit(self, record):
            raise SystemExit

    handler = Interrupted()
    logger = logging.getLogger("redouble")
    logger.addHandler(handler)
    try:
        with pytest.raises(SystemExit):
            policy.call(mock.Mock(side_effect=TimeoutError("slow"), __name__="fetch"))
    finally:
        logger.removeHandler(handler)


def test_without_logging_in_the_process_there_is_no_logger(monkeypatch):
    monkeypatch.delitem(sys.modules, "logging")
    monkeypatch.setattr(events, "_loggers", [])
    assert events._logger() is None
    assert events.wanted(()) is False
    assert events.wanted((print,)) is True


def run(code):
    environ = {"PYTHONPATH": str(Path(redouble.__file__).parent.parent)}
    return subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60, check=False
    )


CALL = """
from redouble import Policy
from redouble.backoff import exponential
from redouble.testing import FakeClock, scripted
clock = FakeClock()
policy = Policy(backoff=exponential, clock=clock, sleep=clock.sleep)
assert policy.call(scripted(TimeoutError(), "page")) == "page"
try:
    policy.call(scripted(*[TimeoutError("slow")] * 4))
except TimeoutError:
    pass
else:
    raise AssertionError
assert clock.waits == [1.0, 1.0, 2.0, 4.0]
"""


@pytest.mark.slow
@pytest.mark.parametrize("before", ["", "import logging\n", "import logging; logging.getLogger('app')\n"])
def test_without_a_log_handler_nothing_is_printed(before):
    done = run(before + CALL)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_logging_in_the_process_it_is_not_imported_by_a_retry():
    done = run(CALL + "import sys; print('logging' in sys.modules)")
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.slow
def test_with_a_log_handler_the_messages_are_printed():
    done = run("import logging; logging.basicConfig(format='%(levelname)s %(message)s %(policy)s')\n" + CALL)
    assert done.stderr.splitlines() == [
        "WARNING retrying after a failed attempt Scripted",
        "WARNING retrying after a failed attempt Scripted",
        "WARNING retrying after a failed attempt Scripted",
        "WARNING retrying after a failed attempt Scripted",
        "ERROR gave up after retries Scripted",
    ]
