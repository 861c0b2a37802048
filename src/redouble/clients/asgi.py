"""A middleware for ASGI servers: a request ends when the time that its client gave it is up.

>>> async def app(scope, receive, send): ...
>>> app = DeadlineMiddleware(app)
"""

from __future__ import annotations

from contextlib import ExitStack

from .._base.loops import time_limit
from ..context import current, incoming, time_left
from ..errors import DeadlineExceeded

__all__ = ["DeadlineMiddleware"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping
    from typing import Any

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Message, Receive, Send], Awaitable[None]]

_BODY = b"The time that the client gave this request is up.\n"
_HEADERS = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(_BODY))]


class DeadlineMiddleware:
    """Take up the headers of `outgoing_headers` for each HTTP request, and end it when its time is up.

    The app is cancelled when the time of ``X-Request-Timeout-Ms`` is up. If no response has begun, the client
    receives 504, also for a `DeadlineExceeded` that the app raises while the request has a deadline. If a
    response has begun, `DeadlineExceeded` is raised, and the server closes the connection. The deadline ends
    with the response: tasks that run after it are not cancelled. Other scopes, such as ``websocket`` and
    ``lifespan``, pass unchanged.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle one connection of the server."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif not await self._responds(scope, receive, send):
            await send({"type": "http.response.start", "status": 504, "headers": _HEADERS})
            await send({"type": "http.response.body", "body": _BODY})

    async def _responds(self, scope: Message, receive: Receive, send: Send) -> bool:
        """Run the app; return false if its time was up before a response began."""
        began = False
        request = ExitStack()

        async def send_on(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                limit.lift()
                request.close()

        with request:
            request.enter_context(incoming(scope["headers"]))
            around = current.get()
            left = time_left(around) if around else None
            limit = time_limit(left)
            if left == 0.0:
                return False
            try:
                with limit:
                    await self._app(scope, receive, send_on)
            except DeadlineExceeded:
                if left is None or began:
                    raise
                return False
        if not limit.struck:
            return True
        if began:
            raise DeadlineExceeded(
                f"the {left:g} s of the request were up after its response had begun: it is cut off",
                attempts=1,
                elapsed=limit.seconds,
            ) from limit.cut_off()
        return False
