"""tornado, aiosmtplib, aiormq, databricks-sdk and python-telegram-bot: errors that are classified by class name.

Each test is skipped if its library is not installed; the extra ``interop`` installs the small ones.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from interop.server import hang_up, stall, status
from interop.support import Judged, error_in, judged, left_out, permanent, transient, unprocessed
from redouble.classify import verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from interop.server import Web


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()[1]


# tornado


async def fetch(url: str, **limits: float) -> Any:
    from tornado.httpclient import AsyncHTTPClient

    return await AsyncHTTPClient().fetch(url, **limits)


def test_a_status_of_tornado_is_read_from_its_response(web: Web) -> None:
    left_out("tornado")
    page = web.page(status(503, ("Retry-After", "7")))
    assert judged(error_in(fetch(page.url))) == unprocessed("unavailable", 503, 7.0)
    assert judged(error_in(fetch(web.page(status(404)).url))) == permanent(status=404)


def test_a_tornado_request_without_a_response_has_no_status(web: Web, closed_port: int) -> None:
    left_out("tornado")
    slow = error_in(fetch(web.page(stall).url, request_timeout=0.05))
    assert judged(slow) == transient("timeout")
    assert slow.code == 599  # type: ignore[attr-defined]
    assert judged(error_in(fetch(web.page(hang_up).url))) == transient("disconnected")
    assert judged(error_in(fetch(f"http://127.0.0.1:{closed_port}/"))) == unprocessed("connection")


# aiosmtplib


@contextmanager
def smtp(reply: bytes) -> Iterator[int]:
    """An SMTP server that sends the same reply to every command but HELO and EHLO."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"220 ready\r\n")
            while line := connection.recv(1000):
                connection.sendall(b"250 ok\r\n" if line[1:4].upper() == b"HLO" else reply)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
    thread.join(60)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (b"451 try later\r\n", unprocessed("unavailable")),
        (b"550 no such mailbox\r\n", permanent()),
        (b"535 who are you\r\n", Judged(False, False, permanent("unauthorized").cause, None, None)),
    ],
)
def test_a_reply_to_aiosmtplib_is_smtps_not_https(reply: bytes, expected: Judged) -> None:
    left_out("aiosmtplib")
    import aiosmtplib

    async def send(port: int) -> None:
        async with aiosmtplib.SMTP(
            hostname="127.0.0.1", port=port, start_tls=False, local_hostname="me"
        ) as client:
            await client.mail("a@example.org")

    with smtp(reply) as port:
        error = error_in(send(port))
    assert isinstance(error, aiosmtplib.SMTPResponseException)
    assert judged(error) == expected


# aiormq


def test_aiormqs_refusal_of_credentials_is_not_a_lost_connection() -> None:
    left_out("aiormq")
    import aiormq.exceptions as errors

    assert issubclass(errors.ProbableAuthenticationError, ConnectionError)
    assert judged(errors.ProbableAuthenticationError("x")) == permanent("unauthorized")
    assert judged(errors.ConnectionClosed("x")) == transient("disconnected")


# databricks-sdk


def test_databricks_errors_are_judged_by_class_and_keep_their_delay() -> None:
    left_out("databricks")
    from databricks.sdk import errors

    assert judged(errors.TooManyRequests("x", retry_after_secs=3)) == unprocessed("rate_limited", None, 3.0)
    assert judged(errors.TemporarilyUnavailable("x", retry_after_secs=3)) == transient(
        "unavailable", None, 3.0
    )
    assert not verdict(errors.NotFound("x")).retryable
    assert not verdict(errors.PermissionDenied("x")).retryable


# python-telegram-bot


def test_a_delay_of_telegram_is_a_timedelta(monkeypatch: pytest.MonkeyPatch) -> None:
    left_out("telegram")
    from telegram.error import RetryAfter

    monkeypatch.setenv("PTB_TIMEDELTA", "1")
    assert isinstance(RetryAfter(7).retry_after, timedelta)
    assert judged(RetryAfter(7)) == unprocessed("rate_limited", None, 7.0)


# asyncio, as every client that connects through it


def test_a_host_with_two_addresses_that_both_refuse_is_a_refused_connection(
    closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_out("asyncpg")
    import asyncpg

    both = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{n}", closed_port)) for n in (1, 2)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)

    async def connect() -> Any:
        return await asyncpg.connect(host="both.example", port=closed_port, user="a", password="b", ssl=False)

    error = error_in(asyncio.wait_for(connect(), 10))
    assert getattr(error, "errno", 0) is None
    assert judged(error) == unprocessed("connection")
