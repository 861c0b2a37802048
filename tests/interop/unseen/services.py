"""The first lot: clients of APIs over HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from interop.server import status
from interop.unseen.failures import (
    HTML,
    LONG,
    NO,
    SAFE,
    WAIT,
    WHY,
    YES,
    Failure,
    answered,
    broken_off,
    chained,
    dropped,
    library,
    refused,
    silent,
    untrusted,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from interop.server import Web


@library("ccxt", "ccxt")
def ccxt(web: Web) -> Iterator[Failure]:
    import ccxt

    def call(url: str, timeout: float) -> object:
        return ccxt.binance({"timeout": int(timeout * 1000)}).fetch(url)

    yield refused(web, call)
    yield silent(web, call)
    yield broken_off(web, call)
    yield from untrusted(web, call)
    limit = {"code": -1003, "msg": "Too many requests; current limit is 1200 requests per minute."}
    yield answered(web, call, 429, SAFE, limit, WAIT)
    yield answered(web, call, 500, YES, "Internal Server Error", HTML)
    yield answered(web, call, 503, SAFE, "Service Unavailable", HTML, WAIT)
    funds = {"code": -2010, "msg": "Account has insufficient balance for requested action."}
    yield answered(web, call, 400, NO, funds, why="there is no money")
    key = {"code": -2015, "msg": "Invalid API-key, IP, or permissions for action."}
    yield answered(web, call, 401, NO, key)
    yield answered(web, call, 400, NO, {"code": -1121, "msg": "Invalid symbol."})
    yield answered(web, call, 400, NO, {"code": -2011, "msg": "Unknown order sent."}, why=WHY[404])
    yield Failure(
        "no credentials", NO, "missing configuration", lambda: ccxt.binance().check_required_credentials()
    )
    yield Failure(
        "method not offered by the exchange",
        NO,
        "not implemented",
        lambda: ccxt.Exchange().fetch_ticker("BTC/USDT"),
    )


@library("aiogram", "aiogram")
def aiogram(web: Web) -> Iterator[Failure]:
    from aiogram import Bot
    from aiogram.client.session.aiohttp import AiohttpSession
    from aiogram.client.telegram import TelegramAPIServer

    async def send(url: str, timeout: float) -> object:
        session = AiohttpSession(api=TelegramAPIServer.from_base(url), timeout=timeout)
        async with Bot("123456:token", session=session) as bot:
            return await bot.send_message(42, "Hello")

    def call(url: str, timeout: float) -> object:
        return asyncio.run(send(url, timeout))

    def says(code: int, description: str, **parameters: object) -> dict[str, object]:
        body: dict[str, object] = {"ok": False, "error_code": code, "description": description}
        return {**body, "parameters": parameters} if parameters else body

    yield refused(web, call)
    yield silent(web, call)
    yield dropped(web, call)
    yield answered(web, call, 429, SAFE, says(429, "Too Many Requests: retry after 5", retry_after=5))
    yield answered(web, call, 500, YES, says(500, "Internal Server Error"))
    yield answered(web, call, 502, YES, says(502, "Bad Gateway"))
    yield answered(web, call, 502, YES, "<html><h1>502 Bad Gateway</h1></html>", HTML)
    yield answered(web, call, 400, NO, says(400, "Bad Request: message text is empty"))
    yield answered(web, call, 401, NO, says(401, "Unauthorized"))
    yield answered(web, call, 403, NO, says(403, "Forbidden: bot was blocked by the user"))
    yield answered(web, call, 404, NO, says(404, "Not Found"))
    yield answered(web, call, 413, NO, says(413, "Request Entity Too Large"))
    moved = says(400, "Bad Request: group chat was upgraded", migrate_to_chat_id=-100)
    yield answered(web, call, 400, NO, moved, why="the chat has another id now")
    yield Failure("a token that is none", NO, "a local mistake", lambda: Bot("nonsense"))


@library("elevenlabs", "elevenlabs")
def elevenlabs(web: Web) -> Iterator[Failure]:
    import httpx
    from elevenlabs import ElevenLabs
    from elevenlabs.core.api_error import ApiError

    def call(url: str, timeout: float) -> object:
        with httpx.Client(timeout=timeout) as transport:
            client = ElevenLabs(api_key="none", base_url=url, timeout=timeout, httpx_client=transport)
            return client.models.list(request_options={"max_retries": 0})

    def speak(url: str, timeout: float) -> object:
        with httpx.Client(timeout=timeout) as transport:
            client = ElevenLabs(api_key="none", base_url=url, timeout=timeout, httpx_client=transport)
            sound = client.text_to_speech.convert("voice", text="Hello", request_options={"max_retries": 0})
            return b"".join(sound)

    def says(name: str) -> object:
        return {"detail": {"status": name, "message": name.replace("_", " ")}}

    yield refused(web, call)
    yield silent(web, call)
    yield dropped(web, call)
    yield answered(web, speak, 429, SAFE, says("too_many_concurrent_requests"))
    yield answered(web, speak, 500, YES, says("internal_server_error"))
    yield answered(web, call, 503, SAFE, says("system_busy"), WAIT)
    yield answered(web, call, 401, NO, says("invalid_api_key"))
    yield answered(web, speak, 401, NO, says("quota_exceeded"), why="the credits are spent")
    yield answered(web, speak, 402, NO, says("payment_required"))
    yield answered(web, speak, 404, NO, says("voice_not_found"))
    unfit = {"detail": [{"loc": ["body", "text"], "msg": "field required", "type": "value_error.missing"}]}
    yield answered(web, speak, 422, NO, unfit)
    early = {"detail": "The conversation is still in progress"}
    yield Failure(
        "HTTP 425", SAFE, WHY[425], lambda: ApiError(status_code=425, headers={"date": "now"}, body=early)
    )
    yield Failure(
        "nonsense as base URL", NO, "a local mistake", lambda: call("ftp://127.0.0.1/nothing", LONG)
    )


@library("exa-py", "exa_py")
def exa_py(web: Web) -> Iterator[Failure]:
    from exa_py import Exa

    def call(url: str, timeout: float) -> object:
        return Exa("none", base_url=url).search("retries", timeout=timeout)

    def says(tag: str, message: str) -> object:
        return {"requestId": "1", "error": message, "tag": tag}

    yield refused(web, call)
    yield silent(web, call)
    yield dropped(web, call)
    yield from untrusted(web, call)
    yield answered(web, call, 429, SAFE, says("RATE_LIMIT", "You've exceeded your rate limit"))
    yield answered(web, call, 500, YES, says("DEFAULT_ERROR", "Internal server error"))
    yield answered(web, call, 401, NO, says("INVALID_API_KEY", "Invalid API key"))
    yield answered(web, call, 402, NO, says("NO_MORE_CREDITS", "You have exceeded your credits limit"))
    yield answered(web, call, 400, NO, says("INVALID_REQUEST_BODY", "Invalid request body"))
    yield Failure("unknown option", NO, "a local mistake", lambda: Exa("none").search("retries", stream=True))
    yield Failure(
        "negative timeout", NO, "a local mistake", lambda: Exa("none").search("retries", timeout=-1)
    )


@library("hcloud", "hcloud")
def hcloud(web: Web) -> Iterator[Failure]:
    from hcloud import Client
    from hcloud.actions import Action, ActionFailedException

    def call(url: str, timeout: float) -> object:
        client = Client(token="none", api_endpoint=url, timeout=timeout)
        for part in client, client._client:  # the client's own retries off
            part._retry_max_retries = 0
        return client.servers.get_by_id(1)

    def says(code: str, message: str) -> object:
        return {"error": {"code": code, "message": message, "details": None}}

    yield refused(web, call)
    yield silent(web, call)
    yield dropped(web, call)
    yield answered(
        web, call, 429, SAFE, says("rate_limit_exceeded", "limit of 3600 requests per hour reached")
    )
    changed = says("conflict", "the resource has changed during the request, please retry")
    yield answered(web, call, 409, YES, changed, why="the vendor asks to retry")
    yield answered(web, call, 500, YES, says("server_error", "internal server error"))
    yield answered(web, call, 503, SAFE, says("unavailable", "the service is temporarily unavailable"), WAIT)
    yield answered(web, call, 502, YES, "<html>502 Bad Gateway</html>", HTML)
    yield answered(web, call, 504, YES, says("timeout", "the request timed out"))
    yield answered(web, call, 401, NO, says("unauthorized", "unable to authenticate"))
    yield answered(web, call, 403, NO, says("forbidden", "insufficient permissions for this request"))
    yield answered(web, call, 404, NO, says("not_found", "server with ID 1 not found"))
    yield answered(web, call, 422, NO, says("invalid_input", "invalid input in field 'name'"))
    yield answered(web, call, 409, NO, says("uniqueness_error", "server name is already used"))
    limit = says("resource_limit_exceeded", "server limit exceeded")
    yield answered(web, call, 403, NO, limit, why="the contract allows no more")
    action = Action(id=1, error={"code": "action_failed", "message": "the disk image is corrupt"})
    yield Failure("a failed action", NO, "it ran and failed", lambda: ActionFailedException(action))


@library("opsgenie-sdk", "opsgenie_sdk")
def opsgenie_sdk(web: Web) -> Iterator[Failure]:
    import opsgenie_sdk

    def call(url: str, timeout: float, identifier: object = "1") -> object:
        settings = opsgenie_sdk.Configuration()
        settings.host, settings.retry_enabled = url, False
        api = opsgenie_sdk.AlertApi(opsgenie_sdk.ApiClient(settings))
        return api.get_alert(identifier=identifier, _request_timeout=(timeout, timeout))

    def says(message: str) -> object:
        return {"message": message, "took": 0.0, "requestId": "1"}

    yield refused(web, call)
    yield silent(web, call)
    yield dropped(web, call)
    yield from untrusted(web, call)
    yield answered(web, call, 429, SAFE, says("You are making too many requests!"))
    yield answered(web, call, 500, YES, says("Internal Server Error"))
    yield answered(web, call, 503, SAFE, says("Service Unavailable"), WAIT)
    yield answered(web, call, 401, NO, says("API key is not valid"))
    yield answered(web, call, 402, NO, says("Your plan does not include this"))
    yield answered(web, call, 403, NO, says("You are not authorized to access this resource"))
    yield answered(web, call, 404, NO, says("Alert not found"))
    yield answered(web, call, 422, NO, says("Request body is not processable"))
    yield Failure("a missing argument", NO, "a local mistake", lambda: call(web.refused_url, LONG, None))


@library("alpaca-py", "alpaca")
def alpaca(web: Web) -> Iterator[Failure]:
    from alpaca.trading.client import TradingClient

    def call(url: str, _: float) -> object:
        client = TradingClient("key", "secret", url_override=url, raw_data=True)
        client._retry = 0
        with client._session:
            return client.get_account()

    def says(code: int, message: str) -> object:
        return {"code": code, "message": message}

    yield refused(web, call)
    yield broken_off(web, call)
    yield from untrusted(web, call)
    yield answered(web, call, 429, SAFE, {"message": "too many requests."})
    yield answered(web, call, 500, YES, says(50010000, "internal server error occurred"))
    yield answered(web, call, 503, SAFE, "<html>503 Service Unavailable</html>", HTML, WAIT)
    yield answered(web, call, 504, YES, "upstream request timeout", HTML)
    yield answered(web, call, 401, NO, says(40110000, "request is not authorized"))
    yield answered(web, call, 403, NO, says(40310000, "insufficient buying power"), why="there is no money")
    yield answered(web, call, 404, NO, says(40410000, "order not found"))
    yield answered(web, call, 422, NO, says(42210000, "qty must be > 0"))
    yield Failure("no credentials", NO, "missing configuration", lambda: TradingClient())


@library("simple-salesforce", "simple_salesforce")
def simple_salesforce(web: Web) -> Iterator[Failure]:
    import requests
    from simple_salesforce import Salesforce

    def call(url: str, timeout: float) -> object:
        with requests.Session() as session:
            client = Salesforce(instance="127.0.0.1", session_id="none", session=session)
            client.base_url = f"{url}/"
            return client.query("SELECT Id FROM Account", timeout=timeout)

    def says(code: str, message: str) -> object:
        return [{"message": message, "errorCode": code}]

    yield refused(web, call)
    yield silent(web, call)
    yield dropped(web, call)
    yield answered(web, call, 500, YES, says("UNKNOWN_EXCEPTION", "An unexpected error occurred."))
    yield answered(web, call, 503, SAFE, says("SERVER_UNAVAILABLE", "Service unavailable"), WAIT)
    yield answered(web, call, 502, YES, "<html>Bad Gateway</html>", HTML)
    lock = says("UNABLE_TO_LOCK_ROW", "unable to obtain exclusive access to this record")
    yield answered(web, call, 400, SAFE, lock, why="another transaction holds the row")
    yield answered(web, call, 401, NO, says("INVALID_SESSION_ID", "Session expired or invalid"))
    yield answered(web, call, 403, NO, says("INSUFFICIENT_ACCESS", "insufficient access rights"))
    yield answered(web, call, 404, NO, says("NOT_FOUND", "The requested resource does not exist"))
    yield answered(web, call, 400, NO, says("MALFORMED_QUERY", "unexpected token: SELEC"))
    yield answered(web, call, 400, NO, says("DUPLICATE_VALUE", "duplicate value found"), why=WHY[409])
    yield Failure("no credentials", NO, "missing configuration", lambda: Salesforce(username="me"))


@library("gspread", "gspread")
def gspread(web: Web) -> Iterator[Failure]:
    import gspread
    import requests
    from gspread.exceptions import APIError, SpreadsheetNotFound, WorksheetNotFound

    def call(url: str, timeout: float) -> object:
        with requests.Session() as session:
            client = gspread.Client(auth=None, session=session)
            client.set_timeout(timeout)
            return client.http_client.request("get", url)

    def says(code: int, name: str, message: str, **more: object) -> object:
        return {"error": {"code": code, "message": message, "status": name, **more}}

    def not_found() -> Exception:
        """Return the exception of opening a spreadsheet that is not there."""
        try:
            call(web.page(status(404, body=json.dumps(says(404, "NOT_FOUND", "missing")).encode())).url, LONG)
        except APIError as error:
            return chained(SpreadsheetNotFound(error.response), error)
        raise AssertionError("no error")

    def forbidden() -> Exception:
        try:
            body = json.dumps(says(403, "PERMISSION_DENIED", "no permission")).encode()
            call(web.page(status(403, body=body)).url, LONG)
        except APIError as error:
            return chained(PermissionError(), error)
        raise AssertionError("no error")

    yield refused(web, call)
    yield silent(web, call)
    yield dropped(web, call)
    quota = says(429, "RESOURCE_EXHAUSTED", "Quota exceeded for quota metric 'Read requests' per minute")
    yield answered(web, call, 429, SAFE, quota)
    yield answered(web, call, 500, YES, says(500, "INTERNAL", "Internal error encountered."))
    yield answered(web, call, 503, YES, says(503, "UNAVAILABLE", "The service is currently unavailable."))
    yield answered(web, call, 502, YES, "<html><title>Error 502 (Server Error)</title></html>", HTML)
    yield answered(web, call, 400, NO, says(400, "INVALID_ARGUMENT", "Unable to parse range: Sheet9"))
    yield answered(web, call, 401, NO, says(401, "UNAUTHENTICATED", "invalid authentication credentials"))
    disabled = says(403, "PERMISSION_DENIED", "Google Sheets API has not been used in project 1 before")
    yield answered(web, call, 403, NO, disabled)
    yield Failure("no such spreadsheet", NO, WHY[404], not_found)
    yield Failure("no access to the spreadsheet", NO, WHY[403], forbidden)
    yield Failure("no such worksheet", NO, WHY[404], lambda: WorksheetNotFound("Sheet9"))
    yield Failure(
        "no credentials",
        NO,
        "missing configuration",
        lambda: gspread.service_account(filename="/nonexistent/account.json"),
    )


@library("pdpyras", "pdpyras")
def pdpyras(web: Web) -> Iterator[Failure]:
    import pdpyras

    def session(url: str, timeout: float = LONG) -> Any:
        session = pdpyras.APISession("none")
        session.url, session.timeout = url, timeout
        session.max_network_attempts, session.sleep_timer, session.retry = 0, 0, {429: 1}
        return session

    def call(url: str, timeout: float) -> object:
        with session(url, timeout) as client:
            return client.rget("/users/PABC123")

    def says(code: int, message: str) -> object:
        return {"error": {"code": code, "message": message}}

    yield refused(web, call)
    yield silent(web, call)
    yield dropped(web, call)
    yield from untrusted(web, call)
    yield answered(web, call, 429, SAFE, says(2020, "Rate Limit Exceeded"))
    yield answered(web, call, 500, YES, says(2000, "Internal Error"))
    yield answered(web, call, 503, SAFE, "Service Unavailable", HTML, WAIT)
    yield answered(web, call, 400, NO, says(2001, "Invalid Input Provided"))
    yield answered(web, call, 401, NO, says(2006, "Unauthorized"))
    yield answered(web, call, 403, NO, says(2010, "Access Denied"))
    yield answered(web, call, 404, NO, says(2100, "Not Found"))
    yield Failure(
        "a method that is not permitted",
        NO,
        "a local mistake",
        lambda: session(web.refused_url).request("TRACE", "/users"),
    )
    yield Failure(
        "a URL of somebody else",
        NO,
        "a local mistake",
        lambda: session(web.refused_url).rget("https://example.com/users"),
    )
    yield Failure("an empty key", NO, "missing configuration", lambda: pdpyras.APISession(""))


@library("resend", "resend")
def resend(web: Web) -> Iterator[Failure]:
    import resend
    from resend.http_client_requests import RequestsClient

    def call(url: str, timeout: float) -> object:
        resend.api_key, resend.api_url = "none", url
        resend.default_http_client = RequestsClient(timeout=timeout)
        letter = {"from": "me@example.com", "to": ["you@example.com"], "subject": "Hello", "html": "Hi"}
        return resend.Emails.send(letter)

    def says(code: int, name: str, message: str) -> object:
        return {"statusCode": code, "name": name, "message": message}

    yield refused(web, call)
    yield silent(web, call)
    yield dropped(web, call)
    yield from untrusted(web, call)
    many = says(429, "rate_limit_exceeded", "Too many requests. You can only make 2 requests per second.")
    yield answered(web, call, 429, SAFE, many, WAIT)
    month = says(429, "monthly_quota_exceeded", "You have reached your monthly email sending quota.")
    yield answered(web, call, 429, NO, month, why="a larger plan must be bought")
    yield answered(web, call, 500, YES, says(500, "application_error", "An unexpected error occurred."))
    yield answered(web, call, 502, YES, "<html>Bad Gateway</html>", HTML)
    yield answered(web, call, 503, SAFE, says(503, "service_unavailable", "Try again later."), WAIT)
    yield answered(web, call, 401, NO, says(401, "missing_api_key", "Missing API key"))
    yield answered(web, call, 403, NO, says(403, "invalid_api_key", "API key is invalid"))
    yield answered(web, call, 404, NO, says(404, "not_found", "The requested endpoint does not exist."))
    yield answered(web, call, 422, NO, says(422, "missing_required_field", "Missing `to` field."))
    yield answered(web, call, 400, NO, says(400, "validation_error", "Invalid `from` field."))


@library("b2sdk", "b2sdk")
def b2sdk(web: Web) -> Iterator[Failure]:
    from b2sdk.v2 import B2HttpApiConfig
    from b2sdk.v2.b2http import B2Http

    def call(url: str, timeout: float) -> object:
        http = B2Http(B2HttpApiConfig(install_clock_skew_hook=False))
        http.CONNECTION_TIMEOUT = http.TIMEOUT_FOR_COPY = http.TIMEOUT_FOR_UPLOAD = timeout
        with http.session:
            return http.post_json_return_json(url, {}, {"bucketName": "photos"}, try_count=1)

    def says(code: int, name: str, message: str) -> object:
        return {"status": code, "code": name, "message": message}

    yield refused(web, call)
    yield silent(web, call)
    yield dropped(web, call)
    yield broken_off(web, call)
    yield from untrusted(web, call)
    yield answered(web, call, 429, SAFE, says(429, "too_many_requests", "rate limited"), WAIT)
    yield answered(web, call, 503, SAFE, says(503, "service_unavailable", "no tomes available"), WAIT)
    yield answered(web, call, 500, YES, says(500, "internal_error", "incident id 1"))
    yield answered(web, call, 408, YES, says(408, "request_timeout", "timed out"))
    yield answered(web, call, 401, NO, says(401, "bad_auth_token", "Invalid authorization token"))
    cap = says(403, "storage_cap_exceeded", "Cannot upload files, storage cap exceeded.")
    yield answered(web, call, 403, NO, cap, why="the owner must raise the cap")
    yield answered(web, call, 403, NO, says(403, "access_denied", "not entitled"))
    yield answered(web, call, 404, NO, says(404, "not_found", "file is not present"))
    yield answered(web, call, 400, NO, says(400, "bad_request", "bucketName must be 6 characters"))
    yield answered(web, call, 400, NO, says(400, "duplicate_bucket_name", "in use"), why=WHY[409])
