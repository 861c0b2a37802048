"""Where a policy logs, what its lines say, and to whose code they point."""

from __future__ import annotations

import asyncio
import logging
import pickle
import threading

import pytest

from redouble import Policy, ResultRejected, retry, retrying
from redouble.backoff import exponential
from redouble.events import log_to


class Kept(logging.Handler):
    """Keeps the records of a logger that nothing else listens to."""

    def __init__(self, name):
        super().__init__()
        self.records = []
        self.logger = logging.getLogger(name)
        self.logger.addHandler(self)
        self.logger.setLevel(logging.WARNING)
        self.logger.propagate = False

    def emit(self, record):
        self.records.append(record)

    @property
    def lines(self):
        return [record.getMessage() for record in self.records]


@pytest.fixture(autouse=True)
def warnings_only(caplog):
    """Recoveries are not logged, whatever level other tests have left."""
    caplog.set_level(logging.WARNING, "redouble")


@pytest.fixture
def app():
    kept = Kept("app.retries")
    yield kept
    kept.logger.removeHandler(kept)
    kept.logger.propagate = True
    kept.logger.setLevel(logging.NOTSET)


@pytest.fixture
def quiet(clock):
    return Policy(backoff=exponential, name="fetch", clock=clock, sleep=clock.sleep)


RETRIED = "retrying fetch in 1.00 s: TimeoutError: slow (attempt 1 of 4)"


def retried(flavour, policy):
    assert flavour.call(policy, flavour.scripted(TimeoutError("slow"), "page")) == "page"


@pytest.mark.parametrize(
    "logger", ["app.retries", logging.getLogger("app.retries")], ids=["by name", "by object"]
)
def test_a_policy_logs_to_the_logger_that_it_is_given(flavour, quiet, app, caplog, logger):
    retried(flavour, quiet.replace(logger=logger))
    assert app.lines == [RETRIED]
    assert {record.name for record in (*app.records, *caplog.records)} == {"app.retries"}


def test_the_children_of_a_logger_with_handlers_log_as_well(flavour, quiet, app):
    retried(flavour, quiet.replace(logger=logging.getLogger("app.retries.fetch")))
    assert app.lines == [RETRIED]


def test_an_adapter_is_a_logger(flavour, quiet, app):
    class Tagged(logging.LoggerAdapter):
        def process(self, msg, kwargs):
            return f"[shop] {msg}", kwargs

    retried(flavour, quiet.replace(logger=Tagged(app.logger, {})))
    assert app.lines == [f"[shop] {RETRIED}"]
    assert app.records[0].policy == "fetch"


def test_false_is_silence(flavour, quiet, caplog):
    retried(flavour, quiet.replace(logger=False))
    assert caplog.records == []


def test_listeners_of_a_silent_policy_still_hear(flavour, quiet, caplog):
    heard = []
    retried(flavour, quiet.replace(logger=False, listeners=[heard.append]))
    assert len(heard) == 2
    assert caplog.records == []


def test_a_logger_without_handlers_gets_nothing(flavour, quiet, capfd):
    lonely = logging.getLogger("lonely")
    lonely.propagate = False
    retried(flavour, quiet.replace(logger=lonely))
    retried(flavour, quiet.replace(logger="lonely"))
    assert capfd.readouterr() == ("", "")


def test_a_logger_that_is_switched_off_costs_no_event(flavour, quiet, app, monkeypatch):
    app.logger.setLevel(logging.CRITICAL + 1)
    monkeypatch.setattr("redouble._engine.call.Retrying", None)
    retried(flavour, quiet.replace(logger=app.logger))
    assert app.records == []


def test_a_logger_that_fails_hides_neither_result_nor_error(flavour, quiet):
    class Broken:
        def hasHandlers(self):  # noqa: N802 - as logging has it
            raise LookupError

        isEnabledFor = log = hasHandlers  # noqa: N815 - as logging has it

    retried(flavour, quiet.replace(logger=Broken()))


def test_a_policy_with_a_logger_can_be_pickled(quiet):
    policy = Policy(logger=logging.getLogger("app.retries"))
    again = pickle.loads(pickle.dumps(policy))
    assert again == policy
    assert again.logger is policy.logger


@pytest.mark.parametrize("value", [True, 0, "", print, logging.Logger, object()])
def test_what_is_no_logger_is_refused(value):
    with pytest.raises(TypeError, match=r"^logger must be a "):
        Policy(logger=value)


# Lines


def lines(caplog):
    return [record.getMessage() for record in caplog.records]


def test_without_a_limit_only_the_number_of_the_attempt_is_said(flavour, quiet, caplog):
    retried(flavour, quiet.replace(attempts=None, deadline=60.0))
    assert lines(caplog) == ["retrying fetch in 1.00 s: TimeoutError: slow (attempt 1)"]


def test_a_rejected_result_is_said_without_a_type(flavour, quiet, caplog):
    with pytest.raises(ResultRejected):
        flavour.call(quiet.replace(until=bool, attempts=2), flavour.scripted(0, 0))
    assert lines(caplog) == [
        "retrying fetch in 1.00 s: the result was refused (attempt 1 of 2)",
        "gave up on fetch after 2 attempts, 1.0 s after the first failure: "
        "no attempts left; the result was refused",
    ]


def test_a_call_that_until_ends_says_so(flavour, quiet, caplog):
    def until(result):
        raise LookupError("cannot tell")

    with pytest.raises(LookupError):
        flavour.call(quiet.replace(until=until), flavour.scripted(TimeoutError("slow"), "page"))
    assert ": until raised LookupError: cannot tell; TimeoutError: slow" in lines(caplog)[-1]


def test_a_line_holds_no_secret_and_begins_no_other_line(flavour, quiet, caplog):
    error = TimeoutError("password=hunter2\nERROR:root:forged \x1b[31m" + "x" * 300)
    retry_policy = quiet.replace(name="fe\ntch", attempts=2)
    with pytest.raises(TimeoutError):
        flavour.call(retry_policy, flavour.scripted(error, error))
    for line in lines(caplog):
        assert line.isprintable()
        assert "hunter2" not in line
        assert "password=*** ERROR:root:forged \\x1b[31mxxx" in line
        assert "…" in line
    assert "hunter2" not in str([vars(record) for record in caplog.records])


def test_a_reason_is_masked_as_the_note_is(flavour, quiet, caplog):
    said = iter([True])

    def on(error):
        if next(said, False):
            return True
        raise LookupError("token=abcdef123456")

    with pytest.raises(TimeoutError):
        flavour.call(quiet.replace(on=on), flavour.scripted(TimeoutError("slow"), TimeoutError("slow")))
    assert "deciding failed with LookupError: token=***; TimeoutError: slow" in lines(caplog)[-1]


# The caller


def here(caplog):
    return {(record.filename, record.funcName) for record in caplog.records}


@retry(attempts=2, base=0.0)
def fetch():
    raise TimeoutError("slow")


@retry(attempts=2, base=0.0)
async def fetch_async():
    raise TimeoutError("slow")


def test_a_record_points_at_the_line_that_called_the_function(caplog):
    def caller():
        fetch()

    with pytest.raises(TimeoutError):
        caller()
    assert here(caplog) == {("test_policy_logger.py", "caller")}
    assert {record.lineno for record in caplog.records} == {caller.__code__.co_firstlineno + 1}


def test_a_record_points_at_the_coroutine_that_awaits_the_function(caplog):
    async def caller():
        await fetch_async()

    with pytest.raises(TimeoutError):
        asyncio.run(caller())
    assert here(caplog) == {("test_policy_logger.py", "caller")}


def test_a_record_of_a_task_passes_over_the_event_loop(caplog):
    async def main():
        await asyncio.gather(fetch_async(), return_exceptions=True)

    def caller():
        asyncio.run(main())

    caller()
    assert here(caplog) == {("test_policy_logger.py", "caller")}


def test_a_record_of_a_thread_without_a_caller_is_written_all_the_same(caplog):
    thread = threading.Thread(target=retry(attempts=2, base=0.0, fallback=None)(fetch.__wrapped__))
    thread.start()
    thread.join(60)
    assert len(caplog.records) == 2


@pytest.mark.parametrize("form", ["block", "scope", "call", "log_to"])
def test_a_record_of_any_form_points_at_the_caller(caplog, form):
    def block():
        for attempt in retrying(attempts=2, base=0.0):
            with attempt:
                raise TimeoutError("slow")

    def scope():
        with retrying(attempts=2, base=0.0) as call:
            call(fetch.__wrapped__)

    def call():
        Policy(attempts=2, base=0.0).call(fetch.__wrapped__)

    def to():
        Policy(attempts=2, base=0.0, logger=False, listeners=[log_to("redouble")]).call(fetch.__wrapped__)

    caller = {"block": block, "scope": scope, "call": call, "log_to": to}[form]
    with pytest.raises(TimeoutError):
        caller()
    assert here(caplog) == {("test_policy_logger.py", caller.__name__)}
    assert len(caplog.records) == 2
