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


def client_of(library, awaits, **fields):
    """Make a client of httpx or httpx2 that retries. It has no certificates, which take long to load."""
    retrying, api = import_module(f"redouble.clients.{library}"), import_module(library)
    policy = presets.llm(**{"base": 0.01, **fields})
    if awaits:
        inner = api.AsyncHTTPTransport(verify=False)
        return api.AsyncClient(transport=retrying.AsyncRetryTransport(policy, transport=inner))
    inner = api.HTTPTransport(verify=False)
    return api.Client(transport=retrying.RetryTransport(policy, transport=inner))


class Sdk:
    """An SDK with the library that its ``http_client`` is of."""

    def __init__(self, name, library, awaits):
        self.name, self.library, self.awaits = name, library, awaits
        self.answer = status(200, body=MESSAGE if name == "anthropic" else COMPLETION)
        self.module = import_module(name)
        self.errors = self.module.APIError

    def chat(self, url, retries=0, timeout=30.0, **fields):
        """Send a request to a model. Return the answer."""
        http_client = client_of(self.library, self.awaits, **fields)
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


@pytest.mark.parametrize("name", ["openai", "anthropic", "mistralai", "supabase"])
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


# SDKs whose retries are off, or have a setting of their own


class Mistral:
    """mistralai: takes clients of httpx2, and does not retry unless it has a ``retry_config``."""

    library = "httpx2"

    def __init__(self, awaits):
        self.awaits = awaits
        self.answer = status(200, body=COMPLETION.replace(b'"choices"', b'"usage": {}, "choices"'))
        self.errors = import_module("mistralai.client.errors").SDKError

    def read(self, url, **fields):
        """Send a request to a model. Return the text of the answer."""
        client = client_of(self.library, self.awaits, **fields)
        given = {"async_client" if self.awaits else "client": client}
        sdk = import_module("mistralai.client").Mistral(api_key="none", server_url=url, **given)
        if not self.awaits:
            with client:
                return self._text(sdk.chat.complete(model="m", messages=MESSAGES))

        async def main():
            async with client:
                return self._text(await sdk.chat.complete_async(model="m", messages=MESSAGES))

        return asyncio.run(main())

    def _text(self, answer):
        return answer.choices[0].message.content


class Supabase:
    """supabase: takes clients of httpx, and retries reads of tables by itself."""

    library = "httpx"

    def __init__(self, awaits):
        self.awaits = awaits
        self.answer = status(200, body=b'["Hello!"]')
        self.module = import_module("supabase")
        self.errors = self.module.PostgrestAPIError

    def read(self, url, retries=False, **fields):
        """Read a table. Return its first row."""
        client = client_of(self.library, self.awaits, **fields)
        given = {"httpx_client": client, "postgrest_client_retry": retries}
        if not self.awaits:
            with client:
                sdk = self.module.create_client(url, "none", self.module.ClientOptions(**given))
                return sdk.table("words").select("*").execute().data[0]

        async def main():
            async with client:
                options = self.module.AsyncClientOptions(**given)
                sdk = await self.module.create_async_client(url, "none", options)
                return (await sdk.table("words").select("*").execute()).data[0]

        return asyncio.run(main())


@pytest.fixture
def supabase(awaits, monkeypatch):
    left_out("supabase")
    for folder in ("_sync", "_async"):
        monkeypatch.setattr(f"postgrest.{folder}.request_builder.get_retry_delay", lambda count: 0)
    return Supabase(awaits)


@pytest.fixture(params=[("mistralai", Mistral), ("supabase", Supabase)], ids=lambda pair: pair[0])
def other_sdk(request, awaits):
    name, kind = request.param
    left_out(name)
    return kind(awaits)


def test_only_redouble_retries_below_an_sdk_without_retries(other_sdk, web):
    page = web.page(status(503), other_sdk.answer)
    busy = web.page(status(503))
    with no_waits() as waits:
        assert other_sdk.read(page.url) == "Hello!"
        with pytest.raises(other_sdk.errors):
            other_sdk.read(busy.url, attempts=3)
    assert (len(page.seen), len(busy.seen), len(waits)) == (2, 3, 1 + 2)


@in_long_mode
@pytest.mark.parametrize("failure", [reset, hang_up])
def test_an_error_of_the_connection_reaches_the_caller_of_an_sdk_with_its_history(other_sdk, web, failure):
    page, broken = web.page(failure, other_sdk.answer), web.page(failure)
    with no_waits():
        assert other_sdk.read(page.url) == "Hello!"
        with pytest.raises(import_module(other_sdk.library).TransportError) as caught:
            other_sdk.read(broken.url, attempts=3)
    assert (len(page.seen), len(broken.seen)) == (2, 3)
    assert history(caught.value).attempts == 3


@in_long_mode
def test_the_deadline_is_a_timeout_of_the_library_below_an_sdk(other_sdk, web):
    page = web.page(stall)
    with pytest.raises(import_module(other_sdk.library).TimeoutException) as caught:
        other_sdk.read(page.url, deadline=0.4)
    assert isinstance(caught.value, DeadlineExceeded)
    assert len(page.seen) == 1


@in_long_mode
def test_retries_of_supabase_are_sent_once_each_and_its_setting_is_logged_once(supabase, web, caplog):
    page = web.page(status(503))
    with no_waits(), caplog.at_level(logging.WARNING), pytest.raises(supabase.errors):
        supabase.read(page.url, retries=True, attempts=3)
    assert [request.headers["X-Retry-Count"] for request in page.seen] == [None] * 3 + ["1", "2", "3"]
    assert sum("postgrest_client_retry=False" in record.getMessage() for record in caplog.records) == 1
