"""A pool manager for urllib3 that retries every request.

>>> pool = RetryPoolManager(attempts=6, deadline=20.0)
>>> pool.clear()
"""

from __future__ import annotations

from operator import attrgetter

import urllib3
import urllib3.exceptions
from urllib3._request_methods import RequestMethods
from urllib3.exceptions import MaxRetryError, ResponseError
from urllib3.util import Retry, Timeout, parse_url
from urllib3.util.request import rewind_body

from .. import errors
from .._base.log_once import warn_once
from ..context import REQUEST_TIMEOUT, RETRY_ATTEMPT
from ._http import NO_REWIND, HttpClient, limited, position_of, used_up
from ._override import override

__all__ = ["Request", "RetryPoolManager", "override"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Self

    from typing_extensions import Unpack

    from .._policy.typed import PolicyFields
    from ..policy import Policy
    from ._http import Kwargs

# Redirects that are followed where the caller says nothing, as urllib3 does.
_REDIRECTS = 10
# The shortest time limit of an attempt: 0 would mean not to wait at all.
_SHORTEST = 0.001


class DeadlineExceeded(errors.DeadlineExceeded, urllib3.exceptions.TimeoutError):
    """`redouble.DeadlineExceeded` that callers of urllib3 catch as ``urllib3.exceptions.TimeoutError``."""


class ResultRejected(errors.ResultRejected, urllib3.exceptions.ProtocolError):
    """`redouble.ResultRejected` that callers of urllib3 catch as ``urllib3.exceptions.ProtocolError``."""


class CircuitOpen(errors.CircuitOpen, urllib3.exceptions.ProtocolError):
    """`redouble.CircuitOpen` that callers of urllib3 catch as ``urllib3.exceptions.ProtocolError``."""


class BulkheadFull(errors.BulkheadFull, urllib3.exceptions.ProtocolError):
    """`redouble.BulkheadFull` that callers of urllib3 catch as ``urllib3.exceptions.ProtocolError``."""


class _Headers(urllib3.HTTPHeaderDict):
    """Headers that are ours to change."""


class Request:
    """A request: functions of a call's arguments and ``recover`` receive it.

    ``options`` are the other keywords of ``urlopen``.
    """

    __slots__ = ("_headers", "_position", "body", "method", "options", "url")

    def __init__(self, method: str, url: str, headers: Any, body: Any, options: dict[str, Any]) -> None:
        self.method = method.upper()
        self.url = url
        self.body = body
        self.options = options
        self._headers = headers
        # Where a file begins, to send it again from there.
        self._position = position_of(body) if hasattr(body, "read") else None

    @property
    def headers(self) -> urllib3.HTTPHeaderDict:
        """The headers: a copy, which may be changed between two attempts."""
        headers = self._headers
        if type(headers) is not _Headers:  # copied when first asked for: a success does not need it
            headers = self._headers = _Headers(headers)
        return headers

    def __repr__(self) -> str:
        return f"<Request {self.method} {parse_url(self.url).host}>"


class _Urllib3(HttpClient):
    """Requests and responses of urllib3."""

    library = "urllib3"
    joined = (DeadlineExceeded, ResultRejected, CircuitOpen, BulkheadFull)
    status_of = attrgetter("status")

    def bare(self, *args: Any, **kwargs: Any) -> Any:
        """Send a request by the manager inside, with the options that its caller gave."""
        request = args[0]
        options = {**request.options, **kwargs} if kwargs else request.options
        return self.inner.urlopen(
            request.method, request.url, headers=request._headers, body=request.body, **options
        )

    def host_of(self, *args: Any) -> str | None:
        return parse_url(args[0].url).host

    def unrepeatable(self, *args: Any) -> str:
        """Return why the body cannot be sent again: it was a generator, or a file without a position."""
        request = args[0]
        if hasattr(request.body, "read"):
            return NO_REWIND if request._position is None else ""
        return used_up(request.body)

    def rewind(self, *args: Any) -> None:
        if args[0]._position is not None:
            rewind_body(args[0].body, args[0]._position)

    def limit(self, seconds: float, args: Any, kwargs: Kwargs) -> Kwargs:
        """Return the timeout of the attempt, with a ``total``, and the time for a connection of the pool."""
        options, seconds = args[0].options, max(seconds, _SHORTEST)
        own = options if "timeout" in options else self.inner.connection_pool_kw
        given = own.get("timeout", Timeout.DEFAULT_TIMEOUT)
        timeout = given.clone() if isinstance(given, Timeout) else Timeout.from_float(given)
        timeout.total = limited(timeout.total, seconds)
        return {"timeout": timeout, "pool_timeout": limited(options.get("pool_timeout"), seconds)}

    def discard(self, result: Any, left: float | None) -> None:
        """Close a response whose body is not in memory, and remember that nobody can read it any more."""
        if result.connection is not None:  # otherwise it was read when it arrived
            result._redouble_closed = True
            try:
                super().discard(result, left)
            finally:
                result.release_conn()

    def drain(self, response: Any) -> None:
        response.drain_conn()

    def is_usable(self, response: Any) -> bool:
        return not hasattr(response, "_redouble_closed")

    def status_error(self, response: Any, *args: Any) -> Any:
        """Return a ``MaxRetryError``, as urllib3 raises it for statuses, with the response."""
        url = args[0].url
        reason = ResponseError(ResponseError.SPECIFIC_ERROR.format(status_code=response.status))
        error: Any = MaxRetryError(self.inner.connection_from_url(url), url, reason)
        error.response = response
        return error

    def redirects(self, given: Any) -> Retry:
        """Return a ``Retry`` that follows redirects as the one that is given, and retries nothing."""
        asked = Retry.from_int(given, default=Retry(total=None))
        if asked.total or asked.connect or asked.read or asked.status or asked.other:
            warn_once(
                self,
                f"retries={given!r} counts for redirects only: {self._caller} retries by its policy; "
                "set attempts= instead",
            )
        counts = (count for count in (asked.redirect, asked.total) if count is not None)
        return Retry(
            total=None,
            connect=False,
            read=False,
            redirect=int(next(counts, _REDIRECTS)),
            status=0,
            other=0,
            raise_on_redirect=asked.raise_on_redirect,
            respect_retry_after_header=False,
            # The host that a redirect leads to is not asked whether it wants our headers.
            remove_headers_on_redirect={*asked.remove_headers_on_redirect, RETRY_ATTEMPT, REQUEST_TIMEOUT},
        )


class RetryPoolManager(RequestMethods):
    """A pool manager that retries its requests.

    Takes a `Policy`, or its fields as keywords, and:

    - ``manager`` sends the requests: ``urllib3.PoolManager()`` by default, or a ``ProxyManager``. Its own
      retries are off; it follows redirects.
    - ``raise_status=True`` raises ``MaxRetryError`` when no attempt is left. By default the last response is
      returned as it is, with a note that `history` reads.
    - ``propagate_to`` are the hosts, or ``["*"]``, that receive ``X-Retry-Attempt`` and
      ``X-Request-Timeout-Ms``.

    A `Registry` as a guard has one guard for each host. `override` sets another policy for the requests of a
    block. A response that is retried is read if it is short, otherwise closed, before the wait. ``timeout``
    and ``deadline`` limit the timeout of each attempt.

    Safe to share between threads. `DeadlineExceeded` is also a ``urllib3.exceptions.TimeoutError``; other
    errors of redouble are also ``ProtocolError``.

    >>> with RetryPoolManager(attempts=6, manager=urllib3.PoolManager(timeout=5.0)) as pool:
    ...     pool.policy
    Policy(attempts=6)
    """

    def __init__(
        self,
        policy: Policy | None = None,
        /,
        *,
        manager: urllib3.PoolManager | None = None,
        raise_status: bool = False,
        propagate_to: Iterable[str] = (),
        **fields: Unpack[PolicyFields],
    ) -> None:
        self._manager = urllib3.PoolManager() if manager is None else manager
        super().__init__(self._manager.headers)
        caller = type(self).__name__
        self._client = _Urllib3(caller, policy, fields, self._manager, raise_status, propagate_to)
        self._retries = self._client.redirects(self._manager.connection_pool_kw.get("retries"))

    @property
    def policy(self) -> Policy:
        """The policy of requests outside of `override`."""
        return self._client.policy

    def urlopen(  # type: ignore[override]
        self, method: str, url: str, redirect: bool = True, **kw: Any
    ) -> urllib3.BaseHTTPResponse:
        """Send a request, and again after a transient failure. Takes the options of ``PoolManager``."""
        client, retries = self._client, kw.pop("retries", None)
        kw["retries"] = self._retries if retries is None else client.redirects(retries)
        kw["redirect"] = redirect
        headers, body = kw.pop("headers", None), kw.pop("body", None)
        request = Request(method, url, self.headers if headers is None else headers, body, kw)
        response: urllib3.BaseHTTPResponse = client.run(None, request)
        return response

    def clear(self) -> None:
        """Close the connections of the manager inside."""
        self._manager.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.clear()
