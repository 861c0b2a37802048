"""`redouble.clients` as type checkers see it."""

from __future__ import annotations

from typing import assert_type

import aiohttp
import httpx
import requests

from redouble import Policy, history
from redouble.breaker import CircuitBreaker
from redouble.clients import override
from redouble.clients.aiohttp import retry_middleware
from redouble.clients.httpx import AsyncRetryTransport, RetryTransport
from redouble.clients.requests import RetryAdapter, retrying_session
from redouble.clients.urllib3 import RetryPoolManager
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
RetryPoolManager(attempts=6).request("GET", "https://example.org/")

with override(policy, attempts=2):
    pass
with override(False):
    pass
override(3)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
