"""Log records of retries."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

import redouble
from redouble import DeadlineExceeded, Policy, events
from redouble.backoff import exponential
from redouble.events import Expired, GaveUp, Recovered, Retrying
from support.errors import Unavailable

TERMINAL = (Recovered, GaveUp, Expired)


@pytest.fixture
def heard():
    return []


@pytest.fixture
def policy(clock, heard):
    return Policy(backoff=exponential, name="fetch", listeners=[heard.append], clock=clock, sleep=clock.sleep)


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
        flavour.call(quiet_policy, flavour.scripted(Unavailable("try later"), "page"))
    assert {record.name for record in caplog.records} == {"redouble"}
    assert logged(caplog) == [
        (
            "WARNING",
            "retrying fetch in 1.00 s: Unavailable: try later (attempt 1 of 4)",
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
            "recovered fetch at attempt 2 of 4 after Unavailable: try later",
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
        ("WARNING", "retrying fetch in 1.00 s: TimeoutError: slow (attempt 1 of 3)"),
        ("WARNING", "retrying fetch in 2.00 s: TimeoutError: slow (attempt 2 of 3)"),
        (
            "ERROR",
            "gave up on fetch after 3 attempts, 3.0 s after the first failure: "
            "no attempts left; TimeoutError: slow",
        ),
    ]
    fields = logged(caplog)[-1][2]
    assert (fields["attempt"], fields["reason"], fields["delay_ms"]) == (3, "attempts", None)
    assert type(fields["reason"]) is str
    assert type(fields["cause"]) is str


def test_a_deadline_after_retries_is_an_error(flavour, quiet_policy, caplog):
    with pytest.raises(DeadlineExceeded):
        flavour.call(quiet_policy.replace(deadline=2.5), flavour.scripted(*[TimeoutError("slow")] * 3))
    assert [(level, message) for level, message, _ in logged(caplog)] == [
        ("WARNING", "retrying fetch in 1.00 s: TimeoutError: slow (attempt 1 of 4)"),
        (
            "ERROR",
            "gave up on fetch after 2 attempts in 1.0 s: "
            "the next wait (2.0 s) would pass the deadline of 2.5 s; TimeoutError: slow",
        ),
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
    assert {record.msg for record in records} == {Retrying._text}
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
    monkeypatch.setattr(events, "_loggers", {})
    assert events.logger_for() is None
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
        "WARNING retrying Scripted in 1.00 s: TimeoutError (attempt 1 of 4) Scripted",
        "WARNING retrying Scripted in 1.00 s: TimeoutError: slow (attempt 1 of 4) Scripted",
        "WARNING retrying Scripted in 2.00 s: TimeoutError: slow (attempt 2 of 4) Scripted",
        "WARNING retrying Scripted in 4.00 s: TimeoutError: slow (attempt 3 of 4) Scripted",
        "ERROR gave up on Scripted after 4 attempts, 7.0 s after the first failure: "
        "no attempts left; TimeoutError: slow Scripted",
    ]
