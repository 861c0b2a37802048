"""Objects that fight back: whatever is thrown in, a verdict comes out."""

from __future__ import annotations

import contextlib
import enum
import importlib
import smtplib
import socket
import sqlite3
import ssl
import sys
import time
import types
import urllib.error
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import watchdog
from redouble.classify import (
    Cause,
    Classifier,
    accepted,
    explain,
    is_retryable,
    repeatable,
    request_method,
    retry_after,
    verdict,
)
from redouble.classify import _probe as _shapes
from redouble.classify import _table_statuses as _catalogue

FUNCTIONS = (verdict, explain, is_retryable, accepted, retry_after, repeatable, request_method)


def ask_everything(failure):
    for function in FUNCTIONS:
        function(failure)
    Classifier(transient=["a.B", LookupError], permanent=[KeyError]).verdict(failure)
    return verdict(failure)


def raising(*_args, **_kwargs):
    raise RuntimeError("leave me alone")


ATTRIBUTES = [
    *_catalogue.RESPONSE_ATTRIBUTES,
    *_catalogue.RESPONSE_STATUSES,
    *_catalogue.ERROR_STATUSES,
    *_catalogue.DELAY_ATTRIBUTES,
    *_catalogue.CLAIM_ATTRIBUTES,
    *_catalogue.INNER_ATTRIBUTES,
    *_catalogue.HEADER_ATTRIBUTES,
    *[
        "request",
        "request_info",
        "method",
        "headers",
        "meta",
        "errno",
        "winerror",
        "errors",
        "kwargs",
    ],
    *["recipients", "smtp_code", "sqlite_errorcode", "message", "body", "error_code", "__notes__"],
]
# Python's own; an object on which they raise lies about itself.
DUNDERS = [
    "args",
    "exceptions",
    "__cause__",
    "__context__",
    "__traceback__",
    "__class__",
    "__dict__",
    "__module__",
]


def spiky(*bases, names=ATTRIBUTES):
    """A class of which every attribute that anyone may read raises."""
    body = {name: property(raising) for name in names}
    hooks = (
        "__str__ __repr__ __eq__ __hash__ __bool__ __len__ __iter__ __int__ __index__ __call__ __getitem__"
    )
    body.update(dict.fromkeys(hooks.split(), raising))
    body["__init__"] = lambda self, *_: None  # URLError's own would set what cannot be set
    return type("Spiky", bases, body)


@pytest.mark.parametrize(
    ("base", "cause"),
    [
        (Exception, Cause.unknown),
        (OSError, Cause.unknown),
        (ConnectionError, Cause.disconnected),
        (urllib.error.URLError, Cause.permanent),
        (smtplib.SMTPException, Cause.unknown),
        (sqlite3.Error, Cause.unknown),
        (ssl.SSLError, Cause.permanent),
        (socket.gaierror, Cause.connection),
        (ExceptionGroup, Cause.timeout),
    ],
)
def test_attributes_that_raise_are_absent(base, cause):
    given = ("x", [TimeoutError()]) if base is ExceptionGroup else ("x",)
    found = ask_everything(spiky(base)(*given))
    assert found.cause is cause
    assert not found.reason.startswith("could not be examined")


@pytest.mark.parametrize("names", [DUNDERS, *([name] for name in DUNDERS)])
@pytest.mark.parametrize(
    "base", [Exception, OSError, ConnectionError, urllib.error.URLError, ExceptionGroup, object]
)
def test_an_object_that_lies_about_itself_is_judged_without_an_error(base, names):
    given = ("x", [TimeoutError()]) if base is ExceptionGroup else ("x",)
    assert ask_everything(spiky(base, names=names)(*given)).unprocessed is False


def test_a_result_of_which_every_attribute_raises_is_no_response():
    assert ask_everything(spiky(object)()).cause is Cause.unknown


def test_attributes_that_raise_do_not_hide_the_good_ones():
    class Half(Exception):
        response = property(raising)
        request = property(raising)
        retry_after = property(raising)
        status_code = 503

    assert ask_everything(Half()).status == 503


def test_a_getattr_that_raises_something_else_than_attributeerror_is_absence():
    class Odd(Exception):
        def __getattr__(self, name):
            raise KeyError(name)

    assert ask_everything(Odd()).cause is Cause.unknown


def test_a_getattr_that_answers_everything_with_a_function_is_no_evidence():
    class Helpful(Exception):
        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return lambda *_a, **_k: 503

    assert ask_everything(Helpful()).cause is Cause.unknown
    assert repeatable(Helpful()) is None


@pytest.mark.parametrize("kind", [mock.Mock, mock.MagicMock, mock.NonCallableMagicMock, mock.AsyncMock])
def test_a_mock_has_every_attribute_and_is_no_evidence(kind):
    error = Exception("x")
    error.response = error.status_code = error.headers = error.retry_after = error.request = kind()
    error.retryable = error.meta = error.errors = error.kwargs = kind()
    assert ask_everything(error).cause is Cause.unknown
    assert ask_everything(kind()).cause is Cause.unknown
    assert repeatable(error) is None


def test_a_mock_that_passes_for_an_int_an_exception_or_a_dict_is_none_of_them():
    for spec in (int, str, dict, Exception, ConnectionResetError):
        fake = mock.MagicMock(spec=spec)
        assert isinstance(fake, spec)
        assert ask_everything(fake).cause is Cause.unknown
        error = Exception()
        error.status_code = error.response = error.errno = error.reason = error.retry_after = fake
        error.method = error.headers = fake
        assert ask_everything(error).cause is Cause.unknown


class Uncooperative(type):
    """A metaclass that raises whatever it is asked."""

    __hash__ = __eq__ = __instancecheck__ = __subclasscheck__ = __repr__ = __bool__ = raising
    __mro__ = __name__ = property(raising)


def test_a_class_whose_metaclass_raises_is_not_retryable():
    awkward = Uncooperative("Awkward", (ConnectionResetError,), {})
    with watchdog():
        found = verdict(awkward())
    assert (found.retryable, found.reason) == (False, "could not be examined: RuntimeError")
    assert not Classifier(permanent=["a.B"]).verdict(awkward()).retryable
    assert repeatable(awkward()) is None


def test_a_module_name_that_is_no_text_is_passed_over():
    nameless = type("Nameless", (TimeoutError,), {"__module__": 5})
    assert ask_everything(nameless()).cause is Cause.timeout


def test_a_dict_whose_keys_cannot_be_compared_has_no_entries():
    class Key:
        def __hash__(self):
            return hash("ResponseMetadata")

        __eq__ = raising

    assert ask_everything({Key(): 1}).cause is Cause.unknown


def test_headers_that_fight_back_give_no_hint():
    class Headers(dict):
        get = items = keys = __iter__ = __getitem__ = __contains__ = __len__ = __bool__ = raising

    error = Exception()
    error.status_code, error.headers = 503, Headers(a="b")
    found = ask_everything(error)
    assert (found.status, found.retry_after, found.retryable) == (503, None, True)


def test_a_response_is_never_called_iterated_measured_or_tested_for_truth():
    hooks = "__call__ __iter__ __len__ __bool__ __contains__ __getitem__ __eq__ __hash__ __str__ content body"
    response = type("Response", (), {"status_code": 429, "headers": {"retry-after": b"4"}})
    for name in hooks.split():
        setattr(response, name, property(raising) if name.isalpha() else raising)
    error = Exception()
    error.response = response()
    found = ask_everything(error)
    assert (found.status, found.retry_after, found.unprocessed) == (429, 4.0, True)
    assert ask_everything(response()).status == 429


# Chains that do not end


def test_an_error_that_is_its_own_cause_is_looked_at_once():
    own, left, right = RuntimeError(), RuntimeError(), RuntimeError()
    own.__cause__, left.__cause__, right.__cause__ = own, right, left
    with watchdog():
        for error in (own, left):
            assert ask_everything(error).cause is Cause.unknown


def test_a_cycle_does_not_hide_the_evidence_on_it():
    error = RuntimeError()
    error.__cause__ = TimeoutError()
    error.__cause__.__cause__ = error
    assert ask_everything(error).cause is Cause.timeout


def test_groups_that_contain_their_own_cause_end():
    members = [RuntimeError() for _ in range(50)]
    group = ExceptionGroup("g", members)
    for member in members:
        member.__cause__ = group
    with watchdog():
        assert ask_everything(group).cause is Cause.unknown


def test_layers_of_groups_that_share_a_cause_are_judged_once_each():
    group = ExceptionGroup("g", [TimeoutError()])
    for _ in range(4):
        members = [RuntimeError() for _ in range(200)]
        for member in members:
            member.__cause__ = group
        group = ExceptionGroup("g", members)
    with watchdog():
        assert ask_everything(group).retryable


@pytest.mark.slow
def test_a_wrapper_that_makes_new_errors_for_ever_ends():
    class Endless(Exception):
        __module__ = "urllib.endless"

        def __getattribute__(self, name):
            return Endless() if name in _catalogue.INNER_ATTRIBUTES else None

    with watchdog():
        assert ask_everything(Endless()).cause is Cause.unknown
        assert ask_everything(ExceptionGroup("g", [Endless(), TimeoutError()])).cause is Cause.unknown


# The last resort


def test_a_trouble_of_our_own_is_told_in_the_reason_and_not_raised(monkeypatch):
    monkeypatch.setattr("redouble.classify._judge.place", raising)
    found = verdict(type("Unlucky", (Exception,), {})())
    assert (found.retryable, found.cause) == (False, Cause.unknown)
    assert found.reason == "could not be examined: RuntimeError"


@pytest.mark.parametrize("value", [None, 5, property(raising)])
def test_a_429_of_a_class_that_hides_its_attributes_is_judged_by_the_status(value):
    hidden = type("Hidden", (Exception,), {"status": 429, "__dict__": property(lambda _: value)})
    assert verdict(hidden()).cause is Cause.rate_limited


def test_an_interrupt_in_an_attribute_is_not_swallowed():
    class Slow(Exception):
        @property
        def response(self):
            raise KeyboardInterrupt

    for ask in (verdict, retry_after):
        with pytest.raises(KeyboardInterrupt):
            ask(Slow())


def test_a_hint_that_cannot_be_looked_for_is_none(monkeypatch):
    monkeypatch.setattr("redouble.classify.read_headers", raising)
    assert retry_after({"Retry-After": "7"}) is None


# Every exception there is


def every_exception():
    """All classes of exceptions that a module imported so far defines, installed libraries included."""
    found, left = {}, [Exception]
    while left:
        kind = left.pop()
        if id(kind) not in found:
            found[id(kind)] = kind
            left.extend(type.__subclasses__(kind))
    # Not those of other tests, nor those made inside functions: they may be as bad as they like.
    return [kind for kind in found.values() if is_at_home(kind)]


def is_at_home(kind):
    module = type.__dict__["__module__"].__get__(kind)
    home = sys.modules.get(module) if type(module) is str and not module.startswith("tests.") else None
    return vars(home).get(type.__dict__["__name__"].__get__(kind)) is kind if home else False


ODD_ARGUMENTS = [
    (),
    ("x",),
    (503, "x"),
    (None, None, None),
    ({}, b"x", object(), 1.5),
    ("x", [TimeoutError()]),
]


@pytest.mark.slow
def test_exceptions_of_all_modules_made_with_odd_arguments_are_judged():
    for module in (
        "asyncio",
        "concurrent.futures",
        "configparser",
        "csv",
        "ctypes",
        "curses",
        "dbm",
        "decimal",
    ):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    # Not those of gRPC whose finalizer fails where the constructor has failed.
    kinds = [kind for kind in every_exception() if not hasattr(kind, "__del__")]
    assert len(kinds) > 100
    for kind in kinds:
        for args in ODD_ARGUMENTS:
            try:
                error = kind(*args)
            except Exception:  # whatever a constructor does not like
                continue
            found = ask_everything(error)
            assert not found.reason.startswith("could not be examined"), (kind, args)
            assert type(explain(error)) is str


@pytest.mark.parametrize(
    "name", ["retry-after", "RateLimit", "x-should-retry", "date", "grpc-retry-pushback-ms"]
)
def test_an_answer_with_a_header_of_64_kib_is_judged_in_less_than_a_millisecond(name):
    error = Exception()
    error.response = types.SimpleNamespace(status_code=429, headers={name: "1," * 32768, "Retry-After": "7"})
    texts = [type("OperationalError", (Exception,), {"__module__": "psycopg"})("x" * 65536)]
    times = []
    for failure in [error, *texts] * 20:
        start = time.perf_counter()
        verdict(failure)
        times.append(time.perf_counter() - start)
    # The fastest of many: a busy machine stretches any of them.
    assert min(times[::2]) < 0.001
    assert min(times[1::2]) < 0.001


# Anything at all

kinds = st.sampled_from([Exception, OSError, ConnectionError, TimeoutError, urllib.error.URLError, KeyError])
names = st.sampled_from([name for name in ATTRIBUTES if not name.startswith("__")])


def dressed(kind, attributes):
    error = kind("x")
    for name, value in attributes.items():
        try:
            setattr(error, name, value)
        except (AttributeError, TypeError):
            pass
    return error


plain = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=8)
    | st.sampled_from([100, 200, 404, 429, 503, "503", "7", b"7", OSError, mock.MagicMock(), SystemExit()])
)  # fmt: skip
keys = st.sampled_from(["status", "headers", "ResponseMetadata", "HTTPStatusCode", "Retry-After", "error"])
anything = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner, inner)
        | st.dictionaries(keys, inner, max_size=3)
        | st.builds(lambda given: types.SimpleNamespace(**given), st.dictionaries(names, inner, max_size=4))
        | st.builds(dressed, kinds, st.dictionaries(names, inner, max_size=4))
    ),
    max_leaves=10,
)


@pytest.mark.slow
@given(anything)
def test_whatever_is_thrown_in_a_verdict_comes_out(failure):
    found = ask_everything(failure)
    assert type(found.retryable) is bool
    assert type(found.unprocessed) is bool
    assert type(found.cause) is Cause
    assert type(found.reason) is str
    assert found.status is None or (type(found.status) is int and 100 <= found.status <= 599)
    assert found.retry_after is None or (
        type(found.retry_after) is float and 0 <= found.retry_after < float("inf")
    )
    assert not found.reason.startswith("could not be examined"), "the last resort is not the mechanism"


@pytest.mark.slow
@given(anything, st.text(max_size=12))
def test_probing_gives_the_attribute_or_nothing(thing, name):
    _shapes.get(thing, name)
    assert _shapes.status_code(thing) is None or 100 <= _shapes.status_code(thing) <= 599


def test_attributes_under_keys_that_refuse_to_be_hashed_do_no_harm():
    class Key(str):
        armed = False

        def __hash__(self):
            if Key.armed:
                raise RuntimeError("leave me alone")
            return 7

    error = ValueError("x")
    error.__dict__[Key("odd")] = TimeoutError()
    Key.armed = True
    assert ask_everything(error).cause is Cause.unknown


def test_an_enumeration_that_lies_about_its_members_is_no_grpc_status():
    lying = enum.Enum("Lying", "UNAVAILABLE DEADLINE_EXCEEDED RESOURCE_EXHAUSTED")
    error = ValueError("x")
    error.code = lying.UNAVAILABLE
    assert ask_everything(error).retryable
    for members in (None, 7, [], mock.MagicMock()):
        type.__setattr__(lying, "_member_map_", members)
        assert not ask_everything(error).retryable


def test_errors_that_quote_and_hold_each_other_come_to_an_end():
    errors = [RuntimeError(f"it went wrong {n}") for n in range(50)]
    for error in errors:
        error.error, error.inner, error.errors = errors[0], errors[-1], dict(enumerate(errors))
        error.args = ("it went wrong", *errors[:3])
        error.__context__ = errors[7] if error is not errors[7] else None
    with watchdog():
        assert not ask_everything(errors[3]).retryable
