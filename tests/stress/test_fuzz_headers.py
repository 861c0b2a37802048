"""Headers, dates, bodies and errors of every kind, mutated: never an exception, a delay or nothing, at once.

What is valid is the beginning: its bytes are flipped, doubled, dropped and spliced. Hypothesis makes up the
rest. With ``REDOUBLE_LONG=1`` in the environment there are two hundred times as many.
"""

from __future__ import annotations

import http.client
import os
import sys
import time
from decimal import Decimal
from email.message import Message
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redouble import BulkheadFull, Cause, CircuitOpen, RedoubleError
from redouble._base.headers import read_headers
from redouble.classify import (
    Verdict,
    accepted,
    explain,
    is_retryable,
    parse_retry_after,
    repeatable,
    request_method,
    retry_after,
    verdict,
)
from redouble.classify import _retry_after as hints
from redouble.classify._codes import READERS, pushback, retry_info
from redouble.classify._table_classes import CLASSES
from redouble.classify._table_statuses import EVIDENCE, INNER_ATTRIBUTES
from redouble.context import incoming, outgoing_headers


def headers_hint(headers, *, status=None, now=None):
    return hints.hint(read_headers(headers, hints.INTERESTING), status, now)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LONG = os.environ.get("REDOUBLE_LONG") == "1"
MANY = 200 if LONG else 1
NOW = 1_790_000_000.0

NAMES = sorted(
    {*hints._BY_NAME, "date", "Retry-After", "RATELIMIT", "x-request-timeout-ms", "x-retry-attempt"}
)
STATUSES = [None, 200, 403, 429, 500, 503, "503", True, 10**30]
RETRY_INFO = b"\n\x28type.googleapis.com/google.rpc.RetryInfo\x12\x08\n\x06\x08\x07\x10\x80\xa2\x07"
GRPC_STATUS = b"\x08\x0e\x12\x04busy\x1a" + bytes([len(RETRY_INFO)]) + RETRY_INFO

VALID = [
    "120", "0", "1.5", ".5", "5.", "1, 7", "250", "1790000060", "1790000060000", "-1", "+1", "1e3", "nan", "inf",
    "Fri, 31 Dec 1999 23:59:59 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994",
    "Mon, 29 Feb 2028 23:59:60 GMT", "2026-09-21T14:13:20Z", "2026-09-21T14:13:20.123456+02:00",
    '"default";r=0;t=30', '"a;b";r=0;t=30, "c";r=5;t=60', "limit=10, remaining=0, reset=50", "6m0s", "1d2h3m4s5ms",
    "true", "FALSE", "0x10", "1_000", "\u0661\u0662", "\u00b2", "\uff11", "\U0001d7d9", "7\x00", "7\r\n", "\ud800", "",
]  # fmt: skip


def is_a_delay_or_nothing(found: Any) -> bool:
    return found is None or (type(found) is float and 0.0 <= found < float("inf"))


def mutated(rng: Random, valid: Any) -> Any:
    """A valid text, or bytes, to which some things were done."""
    value = rng.choice(valid)
    for _ in range(rng.randint(0, 4)):
        here, there = sorted((rng.randint(0, len(value)), rng.randint(0, len(value))))
        other = rng.choice(valid)
        value = rng.choice([
            lambda: value[:here] + value[there:],  # noqa: B023 - called at once
            lambda: value[:there] + value[here:],  # noqa: B023
            lambda: value[:here] + other + value[here:],  # noqa: B023
            lambda: value[:here] + other[: there - here] + value[there:],  # noqa: B023
            lambda: value[:here] + odd(rng, value) + value[here:],  # noqa: B023
            lambda: value[:here] + odd(rng, value) + value[here + 1 :],  # noqa: B023
            lambda: value[here:] + value[:here],  # noqa: B023
        ])()  # fmt: skip
    return value


def odd(rng: Random, like: Any) -> Any:
    """One character, or one byte."""
    if isinstance(like, bytes):
        return bytes([rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])])
    return (
        rng.choice('0129.,;:=-+ \t"\\TZGMe\n\x00\x7f\u0660\ud800')
        if rng.random() < 0.9
        else chr(rng.randrange(0x110000))
    )


# Everything that headers and responses come in


class Raw:
    """As httpx keeps them."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw


class Asked:
    """Headers that can only be asked by name."""

    def __init__(self, values: dict[Any, Any]) -> None:
        self._values = values

    def get(self, name: Any, default: Any = None) -> Any:
        return self._values.get(name, default)


def headers_of(name: str, value: Any) -> Iterator[Any]:
    """One header in all the ways in which clients keep them."""
    yield {name: value}
    yield {name: [value, value], "date": value}
    yield [(name, value), (name.upper(), value), ("x", None)]
    yield Asked({name: value})
    data = value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")
    yield Raw([(name.encode(), data), (b"date", data)])
    for kind in (Message, http.client.HTTPMessage):
        message = kind()
        message._headers = [(name, value)]  # past the checks, as a parser puts them there
        yield message


def answers_of(status: Any, headers: Any) -> Iterator[Any]:
    """The same as responses, and as the errors that report them."""
    response = SimpleNamespace(status_code=status, status=status, headers=headers, request=None)
    yield response
    yield status, headers, b""
    yield {
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers},
        "Error": {"Code": "Throttling"},
    }
    yield {"status": status, "headers": headers}
    yield with_attributes(Exception("answered"), response=response)
    yield with_attributes(Exception("answered"), status=status, headers=headers)
    yield with_attributes(OSError(104, "reset"), meta=SimpleNamespace(status=status, headers=headers))


def with_attributes(error: BaseException, **attributes: Any) -> BaseException:
    vars(error).update(attributes)
    return error


def check_headers(headers: Any, status: Any) -> None:
    known = status if type(status) is int else None
    assert is_a_delay_or_nothing(headers_hint(headers, status=known, now=NOW))
    assert is_a_delay_or_nothing(headers_hint(headers, status=known))
    assert hints.shows_limit(read_headers(headers, hints.INTERESTING)) in (True, False)
    assert hints.should_retry(read_headers(headers, hints.INTERESTING)) in (True, False, None)
    assert is_a_delay_or_nothing(retry_after(headers, now=NOW))
    with incoming(headers, clock=lambda: 0.0):
        assert all(text.isascii() and text.isdigit() for text in outgoing_headers().values())


def check_failure(failure: Any) -> Verdict:
    found = verdict(failure)
    assert (type(found.retryable), type(found.unprocessed), type(found.cause), type(found.reason)) == (
        bool,
        bool,
        Cause,
        str,
    )
    assert found.status is None or (type(found.status) is int and 100 <= found.status <= 599)
    assert is_a_delay_or_nothing(found.retry_after)
    assert is_a_delay_or_nothing(retry_after(failure, now=NOW))
    assert not found.reason.startswith("could not be examined"), "the last resort is not the mechanism"
    assert is_retryable(failure) is found.retryable is not accepted(failure)
    assert type(explain(failure)) is str
    assert repeatable(failure) in (True, False, None)
    assert request_method(failure) is None or type(request_method(failure)) is str
    return found


# Mutations of what is valid


@pytest.mark.slow
def test_no_mutation_of_a_value_makes_a_parser_raise_or_answer_anything_but_a_delay() -> None:
    rng = Random(1)
    for _ in range(1_200 * MANY):
        text = mutated(rng, VALID)
        for value in (text, text.encode("utf-8", "surrogatepass"), [text]):
            assert is_a_delay_or_nothing(parse_retry_after(value, now=NOW)), value
        for parser in (
            hints._after,
            hints._reset,
            hints._duration,
            hints._ratelimit,
            hints._left,
            hints._http_date,
        ):
            assert is_a_delay_or_nothing(hints._parse(parser, text, NOW)), (parser, text)
        assert is_a_delay_or_nothing(pushback(text)), text


@pytest.mark.slow
def test_no_mutation_of_a_header_makes_its_answer_raise_or_give_anything_but_a_delay() -> None:
    rng = Random(2)
    for _ in range(12 * MANY):
        name, status, value = rng.choice(NAMES), rng.choice(STATUSES), mutated(rng, VALID)
        given = rng.choice(
            [
                value,
                value.encode("utf-8", "replace"),
                rng.choice([7, 1.5, 1e22, -1, 10**400, Decimal(7), None]),
            ]
        )
        for headers in headers_of(name, given):
            check_headers(headers, status)
            for answer in answers_of(status, headers):
                check_failure(answer)


def test_no_mutation_of_a_status_of_grpc_makes_its_reader_raise_or_answer_anything_but_a_delay() -> None:
    assert retry_info(GRPC_STATUS) == pytest.approx(7.00012)
    rng, found = Random(3), 0
    for _ in range(1_200 * MANY):
        delay = retry_info(mutated(rng, [GRPC_STATUS, RETRY_INFO]))
        assert is_a_delay_or_nothing(delay)
        found += delay is not None
    assert found


# Mutated exceptions: those of packages that are known by name, with all that is looked at in them.

KINDS: list[type[BaseException]] = [
    OSError,
    TimeoutError,
    ConnectionError,
    ValueError,
    CircuitOpen,
    BulkheadFull,
]
for _known in sorted({*CLASSES, *READERS, *[f"{package}.Error" for package in READERS]}):
    _package, _, _name = _known.partition(".")
    KINDS.append(
        type(_name or "Error", (Exception,), {"__module__": _package, "__qualname__": _name or "Error"})
    )
ATTRIBUTES = [
    *EVIDENCE, *INNER_ATTRIBUTES, "errno", "winerror", "args", "body", "details", "trailing_metadata", "recipients",
    "smtp_code", "reply_code", "result", "rcvd", "grpc_status_code", "error_details", "errors", "kwargs", "message",
    "sqlite_errorcode", "error_labels", "request", "request_info", "method", "fp", "name", "fatal", "exceptions",
]  # fmt: skip


class Sly(tuple):
    """A tuple that cannot be read."""

    def __getitem__(self, place: Any) -> Any:
        raise RuntimeError("no")

    __iter__ = __len__ = __getitem__


def some_value(rng: Random, depth: int = 0) -> Any:
    text = mutated(rng, VALID)
    plain = [
        text, text.encode("utf-8", "replace"), rng.choice([0, 1, -1, 28, 104, 429, 503, 599, 1205, 10**400]), rng.random() * 1e3,
        rng.choice([None, True, False, float("nan"), float("inf"), Decimal("NaN")]), GRPC_STATUS, object(), Sly((1, 2)),
    ]  # fmt: skip
    if depth > 2 or rng.random() < 0.6:
        return rng.choice(plain)
    inner = [some_value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    names = ["code", "Code", "Error", "error", "status", "headers", "name", "seconds", "nanos", *NAMES[:4]]
    return rng.choice([
        lambda: inner,
        lambda: tuple(inner),
        lambda: {rng.choice(names): value for value in inner},
        lambda: SimpleNamespace(**{rng.choice(ATTRIBUTES): value for value in inner}),
        lambda: lambda *_: inner,
        lambda: next(headers_of(rng.choice(NAMES), text)),
        lambda: some_error(rng, depth + 1),
    ])()  # fmt: skip


def some_error(rng: Random, depth: int = 0) -> BaseException:
    if rng.random() < 0.1:
        errors = (
            [some_error(rng, depth + 1) for _ in range(rng.randint(1, 3))] if depth < 3 else [SystemExit()]
        )
        return BaseExceptionGroup("several", errors)
    kind = rng.choice(KINDS)
    error = kind.__new__(kind, *[some_value(rng, depth + 2) for _ in range(rng.randint(0, 2))])
    for _ in range(rng.randint(0, 4)):
        try:
            setattr(error, rng.choice(ATTRIBUTES), some_value(rng, depth + 1))
        except (AttributeError, TypeError):  # a builtin that takes no such value there
            pass
    if rng.random() < 0.3 and depth < 3:
        error.__cause__ = some_error(rng, depth + 1)
    return error


@pytest.mark.slow
def test_no_mutation_of_an_exception_keeps_a_verdict_from_coming_out() -> None:
    rng, causes = Random(4), set()
    for _ in range(250 * MANY):
        error = some_error(rng)
        try:
            causes.add(check_failure(error).cause)
        except AssertionError as wrong:
            wrong.add_note(f"{type(error).__module__}.{type(error).__name__} {vars(error)!r}")
            raise
    assert causes == set(Cause)


# Anything at all

texts = st.text() | st.text('0123456789.,;:=-+ \trtRT"\\hmsdGMTSunNov', max_size=60)
values = st.one_of(
    texts, st.binary(), st.integers(), st.floats(), st.none(), st.booleans(), st.lists(texts, max_size=2)
)
moments = st.floats(allow_nan=False, allow_infinity=False) | st.none()


@settings(max_examples=10_000 if LONG else 20)
@given(values, moments)
def test_no_value_at_any_time_makes_the_parser_raise(value: Any, now: float | None) -> None:
    assert is_a_delay_or_nothing(parse_retry_after(value, now=now))
    for name in ("retry-after", "x-ratelimit-reset", "ratelimit", "x-ratelimit-reset-tokens", "date"):
        assert is_a_delay_or_nothing(headers_hint({name: value, "Date": value}, now=now))


@settings(max_examples=10_000 if LONG else 20)
@given(st.binary(max_size=200))
def test_no_bytes_make_the_reader_of_grpc_raise(data: bytes) -> None:
    assert is_a_delay_or_nothing(retry_info(data))
    assert is_a_delay_or_nothing(retry_info(GRPC_STATUS[:14] + data))


@settings(max_examples=2_000 if LONG else 10)
@given(st.lists(st.tuples(st.sampled_from(NAMES), values), max_size=6), st.sampled_from(STATUSES))
def test_no_headers_keep_a_verdict_from_coming_out(pairs: Any, status: Any) -> None:
    for headers in (pairs, dict(pairs)):
        check_headers(headers, status)
        for answer in answers_of(status, headers):
            check_failure(answer)


# How long it takes

SIZE = 65_536


def steps(count: int) -> float:
    """Return how long a loop of that many steps takes now: the unit for limits, which a slow machine makes longer."""
    best = 1.0
    for _ in range(50):
        began = time.process_time()
        for _ in range(count):
            pass
        best = min(best, time.process_time() - began)
    return best


# On a machine that makes 50,000 steps in 1 ms. Tracing and Python's development mode make everything slower.
LIMIT = max(0.001, steps(50_000)) * (1 if sys.gettrace() is None else 20) * (2 if sys.flags.dev_mode else 1)
FILLERS = [
    "9", " ", ",", "1,", "Fri, ", '"', '\\"', '"a";r=0;t=1,', "1s", "1ns", "9" * 300 + "x", "\u0663", "1e999", ".",
    "-", "\t \t", "2026-01-01T00:00:00Z,", "=", ";", "\x00", "\ud800", "GMT ", "a",
]  # fmt: skip


def takes_at_most(limit: float, function: Callable[..., Any], *given: Any) -> bool:
    """Whether some run of many is as fast as that: whatever else the machine does makes it slower only."""
    for _ in range(100):
        began = time.process_time()
        function(*given)
        if time.process_time() - began < limit:
            return True
    return False


@pytest.mark.parametrize("filler", FILLERS)
def test_a_header_of_64_kib_is_read_in_less_than_a_millisecond(filler: str) -> None:
    value = (filler * SIZE)[:SIZE]
    assert takes_at_most(LIMIT, parse_retry_after, value)
    assert takes_at_most(LIMIT, pushback, value)
    for name in (
        "retry-after",
        "retry-after-ms",
        "ratelimit",
        "x-ratelimit-reset-requests",
        "date",
        "x-should-retry",
    ):
        for headers in headers_of(name, value):
            assert takes_at_most(LIMIT, headers_hint, headers), (name, headers)
            error = with_attributes(Exception(), response=SimpleNamespace(status_code=403, headers=headers))
            assert takes_at_most(LIMIT, verdict, error), (name, headers)


def test_as_much_of_a_value_as_is_read_is_read_in_less_than_a_millisecond() -> None:
    for filler in FILLERS:
        for name in ("retry-after", "ratelimit", "x-ratelimit-reset", "x-ratelimit-reset-requests"):
            assert takes_at_most(LIMIT, headers_hint, {name: (filler * 256)[:256]}), (name, filler)


def many(count: int, value: str) -> list[tuple[str, str]]:
    return [(f"h{number}", value) for number in range(count)]


@pytest.mark.parametrize(
    "pairs",
    [
        many(8_000, "1"),
        [*many(199, "1" * 300), ("retry-after", "soon")],
        [*many(200, "1" * 300), ("retry-after", "soon")],
        [("retry-after", f"{number}" + "1" * 320) for number in range(199)],
        [("x-ratelimit-remaining", "0"), *many(8_000, "")],
    ],
)
def test_64_kib_of_headers_however_many_are_judged_in_less_than_a_millisecond(pairs: Any) -> None:
    raw = Raw([(name.encode(), value.encode()) for name, value in pairs])
    for headers in (dict(pairs), pairs, raw, Asked(dict(pairs))):
        response = SimpleNamespace(status_code=403, headers=headers)
        assert takes_at_most(LIMIT, headers_hint, headers)
        assert takes_at_most(LIMIT, verdict, response)
        assert takes_at_most(LIMIT, verdict, with_attributes(Exception(), response=response))


def test_the_last_of_many_headers_is_still_found_by_its_name() -> None:
    pairs = [*many(5_000, "1"), ("Retry-After", "7"), ("Date", "Fri, 31 Dec 1999 23:59:59 GMT")]
    assert headers_hint(dict(pairs)) == headers_hint(Asked(dict(pairs))) == 7.0
    assert headers_hint([("Retry-After", "3"), ("retry-after", "7"), *many(5_000, "1")]) == 7.0


def details(field: bytes) -> bytes:
    """A status of gRPC of 8 KiB, all of it details of as many fields as fit."""
    detail = field * (126 // len(field))
    return (b"\x1a" + bytes([len(detail)]) + detail) * 64


@pytest.mark.slow
@pytest.mark.parametrize(
    "status",
    [
        details(b"\x18\x01"), details(b"\n\x00"), details(b"\x80" * 9 + b"\x01" + b"\x01"), b"\x1a\x00" * 4096,
        b"\xff" * 8192, (b"\x1a" + bytes([len(RETRY_INFO) - 1]) + RETRY_INFO[:-1]) * 150, b"\x00" * SIZE,
    ],
)  # fmt: skip
def test_a_status_of_grpc_of_any_size_is_read_in_less_than_a_millisecond(status: bytes) -> None:
    assert takes_at_most(LIMIT, retry_info, status)
    kind = type(
        "RpcError",
        (Exception,),
        {"__module__": "grpc", "code": lambda self: SimpleNamespace(name="UNAVAILABLE")},
    )
    for count in (1, 200):  # of one thing, as much as there can be of all
        metadata = [("grpc-status-details-bin", status[: SIZE // count])] * count + many(3_000, "x")
        error = with_attributes(kind(), details=lambda: "x" * SIZE, trailing_metadata=lambda: metadata)  # noqa: B023
        assert takes_at_most(LIMIT, verdict, error)


@pytest.mark.parametrize(
    "known",
    ["psycopg.OperationalError", "urllib3.ResponseError", "paramiko.SSHException", "builtins.OSError"],
)
def test_an_error_with_a_message_of_64_kib_is_judged_in_less_than_a_millisecond(known: str) -> None:
    module, name = known.split(".")
    for filler in FILLERS:
        text = (filler * SIZE)[:SIZE]
        error = type(name, (Exception,), {"__module__": module})(text, text)
        body = {"code": text, "error": {"code": text, "message": text}}
        with_attributes(
            error, status_code=429, body=body, code=text, sqlstate=text, retry_after=text, reason=text
        )
        assert takes_at_most(LIMIT, verdict, error)


# What was found


@pytest.mark.parametrize(
    ("wait", "delay"), [("soon", None), (float("nan"), None), (float("inf"), None), (-1, None), (2, 2.0)]
)
def test_a_wait_that_is_none_in_an_error_of_our_own_is_no_hint(wait: Any, delay: float | None) -> None:
    error: RedoubleError = CircuitOpen("open", name="orders", retry_after=wait)
    assert retry_after(error) == delay
    assert verdict(error).retry_after is None  # nobody is asked to come back
