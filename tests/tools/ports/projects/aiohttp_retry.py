"""aiohttp_retry: an async loop of its own; settings on an object that users subclass; an async test of responses."""

from __future__ import annotations

from ports.edits import Edit, Port

CLIENT = "aiohttp_retry/client.py"

# The archive has the tests but not the server that they talk to.
SERVER = '''
from aiohttp import BasicAuth, web


class App:
    """Count requests; answer them as the tests expect."""

    def __init__(self):
        self.counter = 0
        self.web_app = app = web.Application(middlewares=[self.count])
        for path, handler in (
            ("/ping", self.ok),
            ("/internal_error", self.internal_error),
            ("/not_found_error", self.not_found),
            ("/sometimes_error", self.third_time),
            ("/sometimes_json", self.third_time_json),
            ("/check_headers", self.check_headers),
            ("/with_auth", self.with_auth),
        ):
            app.router.add_get(path, handler)
        for method in ("options", "head", "post", "put", "patch", "delete"):
            app.router.add_route(method, f"/{method}_handler", self.ok)

    @web.middleware
    async def count(self, request, handler):
        self.counter += 1
        return await handler(request)

    async def ok(self, request):
        return web.Response(text="Ok!")

    async def internal_error(self, request):
        raise web.HTTPInternalServerError

    async def not_found(self, request):
        raise web.HTTPNotFound

    async def third_time(self, request):
        if self.counter < 3:
            raise web.HTTPInternalServerError
        return web.Response(text="Ok!")

    async def third_time_json(self, request):
        return web.Response(text="Ok!") if self.counter < 3 else web.json_response({"status": "Ok!"})

    async def check_headers(self, request):
        if request.headers.get("correct_headers") != "True":
            raise web.HTTPNotAcceptable
        return web.Response(text="Ok!")

    async def with_auth(self, request):
        if request.headers.get("Authorization") != BasicAuth("username", "password").encode():
            raise web.HTTPForbidden
        return web.Response(text="Ok!")
'''

PORT = Port(
    name="aiohttp_retry",
    version="2.9.1",
    sha256="8eb75e904ed4ee5c2ec242fefe85bf04240f685391c4879d8f541d6028ff01f1",
    extra_files={"tests/app.py": SERVER},
    edits=(
        Edit(CLIENT, "import asyncio"),
        Edit(
            CLIENT,
            "from yarl import",
            """
            from redouble import retrying
            from redouble.events import Retrying
            from yarl import URL as YARL_URL
            """,
        ),
        Edit(
            CLIENT,
            "async def _do_request(",
            body=True,
            new="""
            options = self._retry_options

            def on(error: Exception) -> float | bool:
                if attempt.is_last or not isinstance(error, tuple(options.exceptions)):
                    return False
                return options.get_timeout(attempt=attempt.number)

            def log(event: object) -> None:
                if isinstance(event, Retrying):
                    self._logger.debug(f"Retrying after {event.error_message}")

            async for attempt in retrying(
                on=on, attempts=options.attempts, base=0, idempotent=True, listeners=(log,), logger=False
            ):
                async with attempt:
                    self._logger.debug(f"Attempt {attempt.number} out of {options.attempts}")
                    params = self._params_list[min(attempt.number, len(self._params_list)) - 1]
                    response: ClientResponse = await self._request_func(
                        params.method,
                        params.url,
                        headers=params.headers,
                        trace_request_ctx={"current_attempt": attempt.number, **(params.trace_request_ctx or {})},
                        **(params.kwargs or {}),
                    )
                    if not await self._is_skip_retry(attempt.number, response):
                        after = options.get_timeout(attempt=attempt.number, response=response)
                        attempt.again(f"response code: {response.status}", after)
                    elif self._raise_for_status:
                        response.raise_for_status()
            self._response = response
            return response
            """,
        ),
    ),
    tests=("tests/test_client.py", "tests/test_retry_options.py"),  # all that there are
)
