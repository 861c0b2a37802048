"""What an exception says of itself, redouble's own errors, and the values and costs of a verdict."""

from __future__ import annotations

import builtins
import datetime
import email.utils
import errno
import gc
import os
import pickle
import subprocess
import sys
import time
import urllib.error
from types import SimpleNamespace as Thing
from typing import Any
from unittest import mock

import pytest

from redouble.classify import (
    Cause,
    Classifier,
    Verdict,
    is_retryable,
    parse_retry_after,
    repeatable,
    request_method,
    retry_after,
    transient,
    verdict,
)
from redouble.classify._judge import Judge
from support.failures import HINT, Failure, answered, brief, caused, headers_message, sent

C = Cause


# What an exception says of itself


@pytest.mark.parametrize("name", ["retry_after", "retry_after_s", "backoff"])
@pytest.mark.parametrize(
    ("value", "delay"), [(3, 3), (2.5, 2.5), ("4", 4), (datetime.timedelta(minutes=1), 60)]
)
def test_an_error_that_carries_its_own_delay_is_a_rate_limit(name, value, delay):
    found = verdict(Failure(**{name: value}))
    assert (found.retryable, found.unprocessed, found.cause) == (True, True, C.rate_limited)
    assert found.retry_after == delay


@pytest.mark.parametrize("value", [True, -1, float("nan"), float("inf"), "soon", "", None, object(), {}])
def test_a_delay_that_is_no_number_of_seconds_is_no_evidence(value):
    assert brief(Failure(retry_after=value)) == (False, False, C.unknown)


def test_the_headers_delay_comes_before_the_errors_own():
    assert verdict(answered(429, {"Retry-After": "7"}, retry_after=3)).retry_after == 7
    assert verdict(answered(429, retry_after=3)).retry_after == 3


def test_the_errors_own_delay_is_evidence_of_a_rate_limit_on_a_403():
    assert brief(answered(403, retry_after=3)) == (True, True, C.rate_limited)


@pytest.mark.parametrize("name", ["retryable", "retriable", "should_retry"])
def test_an_error_that_calls_itself_retryable_is_but_false_and_other_values_say_nothing(name):
    assert brief(Failure(**{name: True})) == (True, False, C.unknown)
    for weak in (False, 1, "yes", lambda: True):
        assert brief(Failure(**{name: weak})) == (False, False, C.unknown)
        assert verdict(caused(Failure(**{name: weak}), TimeoutError())).retryable


# The other functions


def test_what_is_not_idempotent_is_retried_only_if_it_had_no_effect():
    assert is_retryable(ConnectionResetError())
    assert not is_retryable(ConnectionResetError(), idempotent=False)
    assert is_retryable(ConnectionRefusedError(), idempotent=False)
    assert not is_retryable(ValueError())


NEWYEAR = 946684799.0  # one second before 2000
SPENT = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "45"}


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ({"Retry-After": "120"}, 120.0),
        ({"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}, 30.0),
        ([("retry-after", "3")], 3.0),
        (headers_message(), 5.0),
        (Thing(headers=HINT), 5.0),
        (Thing(status_code=404, headers=HINT), 5.0),
        (answered(404, HINT), 5.0),
        (answered(429, {"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}), 30.0),
        (Failure(headers=HINT), 5.0),
        (Failure(retry_after="Fri, 31 Dec 1999 23:59:59 GMT"), 30.0),
        (ExceptionGroup("g", [answered(429, HINT), Failure(retry_after=8)]), 8.0),
        (caused(RuntimeError(), answered(429, HINT)), 5.0),
        ({"ResponseMetadata": {"HTTPStatusCode": 503, "HTTPHeaders": HINT}}, 5.0),
        ({"Retry-After": "soon"}, None),
        (TimeoutError(), None),
        (None, None),
        ("120", None),
        (iter([("retry-after", "3")]), None),
        ((429, SPENT, b""), 45.0),
        ((500, SPENT, b""), None),
    ],
    ids=str,
)
def test_the_hint_is_read_from_errors_responses_and_headers(source, hint):
    assert retry_after(source, now=NEWYEAR - 30) == hint


def test_what_does_not_look_like_headers_is_not_asked_for_them():
    class Client:
        def get(self, url):
            raise AssertionError("this would be a request")

    assert retry_after(Client()) is None
    assert retry_after([["retry-after", "3"]]) is None


def test_a_date_is_measured_from_the_present_unless_said_otherwise():
    date = email.utils.formatdate(time.time() + 100.0, usegmt=True)
    assert 50.0 < retry_after({"Retry-After": date}) <= 100.0


def test_parse_retry_after_is_at_hand():
    assert parse_retry_after("1.5") == 1.5


# Values and costs


def test_a_verdict_is_a_value_with_defaults():
    found = Verdict(False)
    assert found == Verdict(False, C.unknown, None, None, "", False)
    assert pickle.loads(pickle.dumps(verdict(TimeoutError()))) == verdict(TimeoutError())
    pickled = pickle.dumps(verdict(TimeoutError()), 4).replace(b"redouble._base.record", b"")
    assert b"redouble._" not in pickled
    assert b"classify._" not in pickled
    assert Verdict.__module__ == Cause.__module__ == "redouble.classify"
    with pytest.raises(AttributeError):
        found.retryable = True


def test_causes_are_words():
    assert list(Cause) == [
        "connection", "disconnected", "timeout", "rate_limited", "unavailable",
        "server_error", "conflict", "unauthorized", "permanent", "unknown",
    ]  # fmt: skip


CERTIFICATE = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"


@pytest.mark.parametrize("texts", [(CERTIFICATE, "lost"), ("lost", CERTIFICATE)])
def test_a_bad_certificate_leaves_the_verdict_on_the_next_lost_connection_alone(texts, monkeypatch):
    monkeypatch.setattr("redouble.classify._judged", {})
    for text in (*texts, *texts):
        assert verdict(ConnectionError(text)).retryable is (text == "lost")


@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_what_is_remembered_of_a_builtin_error_holds_for_every_other_of_its_kind(first, monkeypatch):
    monkeypatch.setattr("redouble.classify._judged", {})
    arguments = [(), ("lost",), (CERTIFICATE,), (errno.ECONNRESET, CERTIFICATE)]
    kinds = [
        kind for kind in vars(builtins).values() if isinstance(kind, type) and issubclass(kind, Exception)
    ]
    for args in arguments[first:] + arguments[:first]:
        for kind in kinds:
            if not issubclass(kind, (SyntaxError, UnicodeError, BaseExceptionGroup)):
                failure = kind(*args)
                assert verdict(failure) == Judge().failure(failure)


@pytest.mark.parametrize(
    "plain", [TimeoutError, ValueError, lambda: OSError(errno.ECONNRESET, "gone"), lambda: OSError()]
)
def test_a_builtin_error_that_carries_nothing_else_is_judged_once(plain, monkeypatch):
    monkeypatch.setattr("redouble.classify._judged", {})
    assert verdict(plain()) is verdict(plain())
    assert Classifier(permanent="a.B").verdict(plain()) is not verdict(plain())


@pytest.mark.parametrize(
    "error",
    [
        Failure(),
        OSError(54321, "nobody knows this number"),
        OSError([], "no number"),
        OSError(True, "no number"),
        OSError(104.0, "no number"),
        ExceptionGroup("both", [TimeoutError(), ValueError()]),
    ],
    ids=repr,
)
def test_what_comes_in_endless_variety_is_not_remembered(error, monkeypatch):
    monkeypatch.setattr("redouble.classify._judged", remembered := {})
    verdict(error)
    verdict((503, {}, b""))
    assert remembered == {}


def test_a_group_without_arguments_is_judged_by_its_members_and_not_remembered():
    groups = [ExceptionGroup("of one", [error]) for error in (TimeoutError(), ValueError())]
    for group in groups:
        group.args = ()
    assert [verdict(group).retryable for group in groups] == [True, False]


def test_a_verdict_that_failed_for_want_of_stack_is_not_remembered(monkeypatch):
    monkeypatch.setattr("redouble.classify._judged", {})
    with monkeypatch.context() as patch:
        patch.setattr(Judge, "failure", mock.Mock(side_effect=RecursionError))
        assert verdict(ValueError("deep")).reason == "could not be examined: RecursionError"
    assert verdict(ValueError("deep")) == Judge().failure(ValueError("deep"))


def test_a_builtin_error_with_attributes_of_its_own_is_looked_at_anew():
    error = TimeoutError()
    assert verdict(error).cause is C.timeout
    error.response = Thing(status_code=404, headers={})
    assert verdict(error).cause is C.permanent
    assert verdict(TimeoutError()).cause is C.timeout


def test_a_thousand_verdicts_leave_nothing_to_the_garbage_collector():
    def judge():
        verdict(answered(503, HINT))
        verdict(
            ExceptionGroup(
                "g", [urllib.error.URLError(OSError(113, "x")), caused(LookupError(), TimeoutError())]
            )
        )
        repeatable(caused(LookupError(), Failure(request=sent("POST"))))

    judge()
    gc.collect()
    gc.disable()
    try:
        for _ in range(1000):
            judge()
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_classify_imports_nothing_that_costs():
    script = (
        "import sys; before = set(sys.modules); import redouble.classify; print(*set(sys.modules) - before)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = subprocess.run(
        [sys.executable, "-S", "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    dear = (
        "typing re dataclasses inspect logging datetime ssl socket asyncio http email sqlite3 smtplib urllib"
    )
    assert not set(dear.split()) & set(run.stdout.split())


def test_the_method_of_a_urllib_request_that_was_answered_is_known() -> None:
    import threading
    import urllib.error
    import urllib.request
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Broken(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(500)
            self.end_headers()

        do_GET = do_POST  # noqa: N815 - the name http.server asks for

        def log_message(self, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Broken) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            for method, may_repeat in (("POST", False), ("GET", True)):
                request = urllib.request.Request(f"http://127.0.0.1:{server.server_port}/", method=method)
                with pytest.raises(urllib.error.HTTPError) as caught:
                    urllib.request.urlopen(request, timeout=5)
                caught.value.close()
                assert (request_method(caught.value), repeatable(caught.value)) == (method, may_repeat)
        finally:
            server.shutdown()
            thread.join()


def test_a_class_of_ones_own_is_taught_by_a_decorator() -> None:
    @transient
    class Busy(Exception):
        pass

    class VeryBusy(Busy):
        pass

    assert verdict(Busy()).retryable
    assert verdict(VeryBusy()).retryable
    assert not verdict(Exception()).retryable


@pytest.mark.parametrize("kind", [int, KeyboardInterrupt, "Busy", None])
def test_only_classes_of_exceptions_can_be_taught(kind: Any) -> None:
    with pytest.raises(TypeError) as caught:
        transient(kind)
    assert str(caught.value) == f"transient() takes a subclass of Exception, got {kind!r}"


def test_a_builtin_class_cannot_be_taught_and_says_what_to_do() -> None:
    with pytest.raises(TypeError) as caught:
        transient(KeyError)
    assert str(caught.value) == (
        "cannot mark KeyError, a built-in class: write on=Classifier(transient=[KeyError]) in the policy"
    )


def test_an_error_of_the_class_that_is_taught_comes_out_as_it_is() -> None:
    class Sealed(type):
        def __setattr__(cls, name: str, value: object) -> None:
            raise LookupError(name)

    class Busy(Exception, metaclass=Sealed):
        pass

    with pytest.raises(LookupError, match="retryable"):
        transient(Busy)
