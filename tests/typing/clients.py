"""`redouble.clients` as type checkers see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, assert_type

import aiohttp
import grpc
import httpx
import httpx2
import requests
import sqlalchemy
import urllib3
from botocore.client import BaseClient  # pyright: ignore[reportMissingTypeStubs]
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as aio

import redouble.clients.httpx2 as for_httpx2
from redouble import Policy, history, presets
from redouble.breaker import CircuitBreaker
from redouble.clients import override
from redouble.clients.aiohttp import retry_middleware
from redouble.clients.asgi import DeadlineMiddleware
from redouble.clients.botocore import retry_client
from redouble.clients.grpc import RetryInterceptor, retry_interceptors
from redouble.clients.httpx import AsyncRetryTransport, RetryTransport
from redouble.clients.requests import RetryAdapter, retrying_session
from redouble.clients.sqlalchemy import run_transaction, run_transaction_async
from redouble.clients.urllib3 import Request, RetryPoolManager
from redouble.clients.wsgi import DeadlineMiddleware as WsgiMiddleware
from redouble.errors import History

policy = Policy(attempts=6)
client = httpx.Client(transport=RetryTransport(policy, transport=httpx.HTTPTransport(http2=True)))
assert_type(RetryTransport(attempts=6, breaker=CircuitBreaker()).policy, Policy)
assert_type(AsyncRetryTransport(policy, raise_status=True, propagate_to=["a.example"]).policy, Policy)
RetryTransport(retries=3)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
RetryTransport(transport=httpx.AsyncHTTPTransport())  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
assert_type(history(client.get("https://example.org/")), History | None)

assert_type(retrying_session(policy, deadline=20.0), requests.Session)
retrying_session().mount("https://", RetryAdapter(policy))
assert_type(retry_middleware(attempts=6), aiohttp.ClientMiddlewareType)
pool = RetryPoolManager(attempts=6, manager=urllib3.PoolManager(), propagate_to=["a.example"])
assert_type(pool.request("GET", "https://example.org/"), urllib3.BaseHTTPResponse)
RetryPoolManager(manager=3)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
RetryAdapter(adapter="https://")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def method_of(request: Request) -> str:
    assert_type(request.headers, urllib3.HTTPHeaderDict)
    return request.method


# httpx2 has the same transports, for its own clients.
later = for_httpx2.RetryTransport(presets.llm(deadline=60.0), transport=httpx2.HTTPTransport())
assert_type(httpx2.Client(transport=later).get("https://example.org/"), httpx2.Response)
assert_type(later.policy, Policy)
assert_type(for_httpx2.AsyncRetryTransport(attempts=6).policy, Policy)
for_httpx2.RetryTransport(transport=httpx.HTTPTransport())  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
httpx.Client(transport=later)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


async def send(transport: AsyncRetryTransport, request: httpx.Request) -> None:
    assert_type(await transport.handle_async_request(request), httpx.Response)
    assert_type(RetryTransport().handle_request(request), httpx.Response)


assert_type(RetryInterceptor(policy, idempotent=True).policy, Policy)
assert_type(retry_interceptors(attempts=6), list[grpc.aio.ClientInterceptor])
retry_interceptors(retries=6)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]


def for_boto(client: BaseClient) -> None:
    assert_type(retry_client(client, attempts=6), BaseClient)


def count(connection: sqlalchemy.Connection) -> int:
    return len(connection.execute(sqlalchemy.text("SELECT 1")).all())


async def count_async(session: aio.AsyncSession) -> int:
    return len((await session.execute(sqlalchemy.text("SELECT 1"))).all())


async def transactions(
    engine: sqlalchemy.Engine, sessions: orm.sessionmaker[orm.Session], later: aio.async_sessionmaker[Any]
) -> None:
    assert_type(run_transaction(engine, count, policy, deadline=5.0), int)
    assert_type(run_transaction(sessions, lambda session: "done"), str)
    assert_type(await run_transaction_async(later, count_async), int)
    run_transaction(later, count)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


async def asgi_app(scope: Any, receive: Any, send: Any) -> None: ...


def wsgi_app(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    return []


DeadlineMiddleware(asgi_app)
WsgiMiddleware(wsgi_app)
if TYPE_CHECKING:
    DeadlineMiddleware(3)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    WsgiMiddleware(asgi_app)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]

with override(policy, attempts=2):
    pass
with override(False):
    pass
override(3)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
