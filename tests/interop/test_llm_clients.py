"""The openai and anthropic clients against the HTTP server of ``server.py``, with their own retries off."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import pytest

from interop.server import Web, hang_up, reset, stall, status, truncated
from interop.support import each, error_of, installed, judged, left_out, permanent, transient, unprocessed
from redouble import retry
from redouble.testing import no_waits

if TYPE_CHECKING:
    from collections.abc import Callable

    Chat = Callable[..., Any]

MESSAGES: Any = [{"role": "user", "content": "Hello?"}]
COMPLETION = b"""{"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [
    {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hello!"}}]}"""
MESSAGE = b"""{"id": "1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
    "stop_sequence": null, "content": [{"type": "text", "text": "Hello!"}],
    "usage": {"input_tokens": 1, "output_tokens": 1}}"""


def openai(url: str, timeout: float = 10.0, headers: Any = None) -> Any:
    from openai import OpenAI

    with OpenAI(base_url=url, api_key="none", max_retries=0, timeout=timeout) as client:
        return client.chat.completions.create(model="m", messages=MESSAGES, extra_headers=headers)


async def openai_async(url: str, timeout: float = 10.0, headers: Any = None) -> Any:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=timeout) as client:
        return await client.chat.completions.create(model="m", messages=MESSAGES, extra_headers=headers)


def anthropic(url: str, timeout: float = 10.0, headers: Any = None) -> Any:
    from anthropic import Anthropic

    with Anthropic(base_url=url, api_key="none", max_retries=0, timeout=timeout) as client:
        return client.messages.create(model="m", max_tokens=9, messages=MESSAGES, extra_headers=headers)


async def anthropic_async(url: str, timeout: float = 10.0, headers: Any = None) -> Any:
    from anthropic import AsyncAnthropic

    async with AsyncAnthropic(base_url=url, api_key="none", max_retries=0, timeout=timeout) as client:
        return await client.messages.create(model="m", max_tokens=9, messages=MESSAGES, extra_headers=headers)


def waiting(function: Any) -> Chat:
    return lambda *args, **kwargs: asyncio.run(function(*args, **kwargs))


CLIENTS: dict[str, Chat] = {
    "openai": openai,
    "openai-async": waiting(openai_async),
    "anthropic": anthropic,
    "anthropic-async": waiting(anthropic_async),
}


if not installed(CLIENTS):
    pytest.skip(
        "openai and anthropic are not installed: the extra 'interop' is needed", allow_module_level=True
    )


@pytest.fixture(params=installed(CLIENTS))
def chat(request: pytest.FixtureRequest) -> Chat:
    """Run the test with every client that is installed."""
    return CLIENTS[request.param]


@pytest.mark.parametrize("name", ["openai", "anthropic"])
def test_every_client_is_tried(name: str) -> None:
    left_out(name)


@pytest.fixture
def answer(request: pytest.FixtureRequest) -> bytes:
    """Return a successful response for the client of this test."""
    return MESSAGE if "anthropic" in request.node.name else COMPLETION


# One class of these clients stands for everything below HTTP: only what it wraps tells the difference.


def test_a_refused_connection_is_unprocessed(chat: Chat, web: Web) -> None:
    error = error_of(chat, web.refused_url)
    assert type(error).__name__ == "APIConnectionError"
    assert judged(error) == unprocessed("connection")


def test_a_certificate_that_nobody_trusts_is_permanent(chat: Chat, secure_web: Web) -> None:
    error = error_of(chat, secure_web.secure_page(status(200)).url)
    assert type(error).__name__ == "APIConnectionError"
    assert judged(error) == permanent()


@pytest.mark.parametrize("end", [reset, hang_up])
def test_a_connection_lost_after_the_request_leaves_the_effect_unknown(
    chat: Chat, web: Web, end: Any
) -> None:
    error = error_of(chat, web.page(end).url)
    assert type(error).__name__ == "APIConnectionError"
    assert judged(error) == transient("disconnected")


def test_an_answer_that_breaks_off_leaves_the_effect_unknown(chat: Chat, web: Web) -> None:
    assert judged(error_of(chat, web.page(truncated).url)) == transient("disconnected")


def test_an_answer_that_does_not_come_is_a_timeout_with_unknown_effect(chat: Chat, web: Web) -> None:
    error = error_of(chat, web.page(stall).url, timeout=0.1)
    assert type(error).__name__ == "APITimeoutError"
    assert judged(error) == transient("timeout")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ignores connections to a full queue")
def test_a_connection_that_is_never_made_is_unprocessed(chat: Chat, web: Web) -> None:
    error = error_of(chat, web.full_url(), timeout=0.1)
    assert type(error).__name__ == "APITimeoutError"
    found = judged(error)
    assert found == unprocessed(found.cause)


# Statuses.


@pytest.mark.parametrize(
    "expected",
    [
        permanent(status=400),
        permanent("unauthorized", 401),
        permanent(status=403),
        permanent(status=404),
        permanent("conflict", 409),
        permanent(status=422),
        unprocessed("rate_limited", 429),
        transient("server_error", 500),
        transient("unavailable", 503),
        transient("unavailable", 529),
    ],
    ids=lambda expected: expected.status,
)
def test_a_status_tells_what_may_be_repeated(chat: Chat, web: Web, expected: Any) -> None:
    assert judged(error_of(chat, web.page(status(expected.status)).url)) == expected


@pytest.mark.parametrize(
    ("header", "value", "seconds"), [("retry-after-ms", "250", 0.25), ("retry-after", "7", 7.0)]
)
def test_a_limit_says_when_to_come_back(
    chat: Chat, web: Web, header: str, value: str, seconds: float
) -> None:
    error = error_of(chat, web.page(status(429, (header, value))).url)
    assert judged(error) == unprocessed("rate_limited", 429, seconds)


def test_an_overloaded_service_that_says_when_to_come_back_is_unprocessed(chat: Chat, web: Web) -> None:
    error = error_of(chat, web.page(status(529, ("retry-after", "3"))).url)
    assert judged(error) == unprocessed("unavailable", 529, 3.0)


def test_the_word_of_the_server_overrules_the_status(chat: Chat, web: Web) -> None:
    error = error_of(chat, web.page(status(409, ("x-should-retry", "true"))).url)
    assert judged(error) == transient("conflict", 409)
    error = error_of(chat, web.page(status(500, ("x-should-retry", "false"))).url)
    assert not judged(error).retryable


@each("chat", "openai", "openai-async")
def test_a_quota_that_is_used_up_is_no_limit_that_passes(chat: Chat, web: Web) -> None:
    body = b'{"error": {"message": "pay first", "type": "insufficient_quota", "code": "insufficient_quota"}}'
    error: Any = error_of(chat, web.page(status(429, body=body)).url)
    assert error.code == "insufficient_quota"
    found = judged(error)
    assert (found.retryable, found.status) == (False, 429)


# From end to end.


def test_a_limited_call_waits_as_long_as_asked_and_recovers(chat: Chat, web: Web, answer: bytes) -> None:
    page = web.page(status(429, ("retry-after", "5")), status(200, body=answer))
    with no_waits() as waits:
        retry(base=0.5)(chat)(page.url)
    assert len(page.seen) == 2
    assert 5 <= waits[0] <= 5.5


def test_a_call_with_unknown_effect_only_reads_so_it_is_repeated_unless_the_author_says_otherwise(
    chat: Chat, web: Web, answer: bytes
) -> None:
    page = web.page(status(500), hang_up, status(200, body=answer))
    with no_waits() as waits:
        retry(chat)(page.url)
    assert (len(page.seen), len(waits)) == (3, 2)

    page = web.page(status(500), hang_up, status(200, body=answer))
    with no_waits(), pytest.raises(Exception) as caught:
        retry(idempotent=False)(chat)(page.url)
    assert len(page.seen) == 1
    assert any("idempotent=False" in note for note in caught.value.__notes__)


def test_a_call_with_an_idempotency_key_is_repeated(chat: Chat, web: Web, answer: bytes) -> None:
    page = web.page(status(500), hang_up, status(200, body=answer))
    with no_waits():
        retry(chat)(page.url, headers={"Idempotency-Key": "question-7"})
    assert [request.headers["Idempotency-Key"] for request in page.seen] == ["question-7"] * 3
