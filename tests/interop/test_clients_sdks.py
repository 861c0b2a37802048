"""SDKs above the transports of `redouble.clients`: the server sees as many requests as redouble has decided."""

from __future__ import annotations

import asyncio
import logging
import time
from importlib import import_module

import pytest

from interop.server import hang_up, reset, stall, status
from interop.support import in_long_mode, left_out
from interop.test_llm_clients import COMPLETION, MESSAGE, MESSAGES
from redouble import DeadlineExceeded, history, presets
from redouble.testing import no_waits


class Sdk:
    """An SDK with the library that its ``http_client`` is of."""

    def __init__(self, name, library, awaits):
        self.name, self.library, self.awaits = name, library, awaits
        self.answer = status(200, body=MESSAGE if name == "anthropic" else COMPLETION)
        self.module = import_module(name)
        self.errors = self.module.APIError

    def chat(self, url, retries=0, timeout=30.0, **fields):
        """Send a request to a model. Return the answer."""
        retrying = import_module(f"redouble.clients.{self.library}")
        api = import_module(self.library)
        # Without certificates, which take long to load.
        policy = presets.llm(**{"base": 0.01, **fields})
        if self.awaits:
            inner = api.AsyncHTTPTransport(verify=False)
            http_client = api.AsyncClient(transport=retrying.AsyncRetryTransport(policy, transport=inner))
        else:
            inner = api.HTTPTransport(verify=False)
            http_client = api.Client(transport=retrying.RetryTransport(policy, transport=inner))
        kind = {"openai": "OpenAI", "anthropic": "Anthropic"}[self.name]
        client = getattr(self.module, f"Async{kind}" if self.awaits else kind)(
            api_key="none", base_url=url, http_client=http_client, max_retries=retries, timeout=timeout
        )
        if not self.awaits:
            with client:
                return self._create(client)

        async def main():
            async with client:
                return await self._create(client)

        return asyncio.run(main())

    def _create(self, client):
        if self.name == "anthropic":
            return client.messages.create(model="m", max_tokens=9, messages=MESSAGES)
        return client.chat.completions.create(model="m", messages=MESSAGES)


# anthropic takes clients of httpx2 only.
SDKS = [("openai", "httpx"), ("openai", "httpx2"), ("anthropic", "httpx2")]


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def awaits(request):
    return request.param


@pytest.fixture(params=SDKS, ids=lambda pair: f"{pair[0]} on {pair[1]}")
def sdk(request, awaits):
    """Run the test with each SDK that is installed."""
    for name in request.param:
        left_out(name)
    return Sdk(*request.param, awaits)


@pytest.mark.parametrize("name", ["openai", "anthropic"])
def test_every_sdk_is_tried(name):
    left_out(name)


def test_an_sdk_recovers_and_does_not_multiply_the_attempts(sdk, web):
    page = web.page(status(503), status(429, ("retry-after-ms", "1500")), hang_up, sdk.answer)
    busy = web.page(status(503))
    with no_waits() as waits:
        assert sdk.chat(page.url).id == "1"
        with pytest.raises(sdk.errors):
            sdk.chat(busy.url, attempts=3)
    assert (len(page.seen), len(busy.seen), 1.5 <= waits[1] <= 1.52) == (4, 3, True)


@in_long_mode
@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize("failure", [status(503), status(500), status(429)], ids=["503", "500", "429"])
def test_the_server_sees_the_attempts_of_the_policy_whatever_the_sdk_would_do(sdk, web, failure, retries):
    page = web.page(failure)
    with no_waits(), pytest.raises(sdk.errors) as caught:
        sdk.chat(page.url, retries, attempts=3)
    assert len(page.seen) == 3
    assert history(caught.value.response).attempts == 3


@in_long_mode
@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize("failure", [reset, hang_up])
def test_a_lost_connection_is_not_sent_again_by_the_sdk(sdk, web, failure, retries):
    page, began = web.page(failure), time.monotonic()
    with no_waits(), pytest.raises(sdk.module.APIConnectionError):
        sdk.chat(page.url, retries, attempts=3)
    assert len(page.seen) == 3
    assert time.monotonic() - began < 10


@in_long_mode
def test_the_setting_that_turns_the_retries_of_an_sdk_off_is_logged_once(sdk, web, caplog):
    page = web.page(reset)
    with no_waits(), caplog.at_level(logging.WARNING), pytest.raises(sdk.module.APIConnectionError):
        sdk.chat(page.url, 2, attempts=3)
    assert sum("max_retries=0" in record.getMessage() for record in caplog.records) == 1


@in_long_mode
def test_an_sdk_without_retries_is_not_warned_about(sdk, web, caplog):
    with no_waits(), caplog.at_level(logging.WARNING):
        assert sdk.chat(web.page(status(503), sdk.answer).url).id == "1"
    assert "max_retries" not in caplog.text


@in_long_mode
def test_the_deadline_is_a_timeout_of_the_sdk(sdk, web):
    page, began = web.page(stall), time.monotonic()
    with pytest.raises(sdk.module.APITimeoutError) as caught:
        sdk.chat(page.url, deadline=0.4)
    assert isinstance(caught.value.__cause__, DeadlineExceeded)
    assert (len(page.seen), time.monotonic() - began < 5) == (1, True)


@in_long_mode
def test_an_error_of_the_caller_is_not_retried(sdk, web):
    page = web.page(status(400))
    with no_waits() as waits, pytest.raises(sdk.module.BadRequestError):
        sdk.chat(page.url)
    assert (len(page.seen), waits) == (1, [])
