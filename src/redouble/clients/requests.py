"""An adapter for requests that retries every request of a session.

>>> import requests
>>> session = retrying_session(attempts=6, deadline=20.0)
>>> session.close()
"""

from __future__ import annotations

from urllib.parse import urlsplit

import requests
from requests.adapters import BaseAdapter, HTTPAdapter
from requests.utils import rewind_body

from ..errors import BulkheadFull as _BulkheadFull
from ..errors import CircuitOpen as _CircuitOpen
from ..errors import DeadlineExceeded as _DeadlineExceeded
from ..errors import RedoubleError
from ..errors import ResultRejected as _ResultRejected
from ._http import NO_REWIND, HttpClient, is_short, used_up
from ._override import override

__all__ = ["RetryAdapter", "override", "retrying_session"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from typing_extensions import Unpack

    from .._policy.typed import PolicyFields
    from ..policy import Policy


class DeadlineExceeded(_DeadlineExceeded, requests.Timeout):
    """`redouble.DeadlineExceeded` that callers of requests catch as ``requests.Timeout``."""


class ResultRejected(_ResultRejected, requests.ConnectionError):
    """`redouble.ResultRejected` that callers of requests catch as ``requests.ConnectionError``."""


class CircuitOpen(_CircuitOpen, requests.ConnectionError):
    """`redouble.CircuitOpen` that callers of requests catch as ``requests.ConnectionError``."""


class BulkheadFull(_BulkheadFull, requests.ConnectionError):
    """`redouble.BulkheadFull` that callers of requests catch as ``requests.ConnectionError``."""


class _Requests(HttpClient):
    """Requests and responses of requests."""

    library = "requests"
    errors = {  # noqa: RUF012 - of the class, and never changed
        _DeadlineExceeded: DeadlineExceeded,
        _ResultRejected: ResultRejected,
        _CircuitOpen: CircuitOpen,
        _BulkheadFull: BulkheadFull,
    }

    def method_of(self, *args: Any) -> str:
        return str(args[0].method).upper()

    def host_of(self, *args: Any) -> str | None:
        return urlsplit(str(args[0].url)).hostname

    def status_of(self, response: Any) -> int:
        status: int = response.status_code
        return status

    def unrepeatable(self, *args: Any) -> str:
        body = args[0].body
        if hasattr(body, "read"):
            return "" if isinstance(args[0]._body_position, int) else NO_REWIND
        return used_up(body)

    def rewind(self, *args: Any) -> None:
        if isinstance(args[0]._body_position, int):
            rewind_body(args[0])

    def set_header(self, name: str, value: str, *args: Any, keep: bool = False) -> None:
        headers = args[0].headers
        if not (keep and name in headers):
            headers[name] = value

    def limit(self, seconds: float, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        given: Any = kwargs.get("timeout")
        if hasattr(given, "__len__"):
            limits = tuple(_shorter(each, seconds) for each in given)
        else:
            limits = (_shorter(given, seconds),) * 2
        return {**kwargs, "timeout": limits}

    def discard(self, result: Any, left: float | None) -> None:
        try:
            if is_short(result.headers):
                result.content  # noqa: B018 - reading it gives the connection back to the pool
        finally:
            result.close()

    def is_usable(self, response: Any) -> bool:
        return response._content is not False or not getattr(response.raw, "closed", False)

    def complete(self, error: RedoubleError, *args: Any) -> None:
        made: Any = error
        made.request, made.response = args[0], None

    def raise_status(self, response: Any, error: RedoubleError, *args: Any) -> None:
        message = f"{self.reason(response)} for url: {response.url}"
        raised = requests.HTTPError(message, response=response)
        raised.__notes__ = response.__notes__
        raise raised


def _shorter(given: Any, seconds: float) -> Any:
    """Return the smaller of a timeout of requests and the time that is left."""
    return min(given, seconds) if isinstance(given, (int, float)) else seconds


class RetryAdapter(BaseAdapter):
    """An adapter that retries the requests of a ``requests.Session``.

    Takes a `Policy`, or its fields as keywords. ``adapter`` is the one that sends the requests:
    ``HTTPAdapter()`` by default. When no attempt is left the last response is returned;
    ``raise_status=True`` raises ``requests.HTTPError`` instead. ``propagate_to`` are the hosts, or
    ``["*"]``, that receive ``X-Retry-Attempt`` and ``X-Request-Timeout-Ms``. A `Registry` as a guard has
    one guard for each host. `override` sets another policy for the requests of a block.

    >>> session = requests.Session()
    >>> session.mount("https://", RetryAdapter(attempts=6))
    """

    def __init__(
        self,
        policy: Policy | None = None,
        /,
        *,
        adapter: BaseAdapter | None = None,
        raise_status: bool = False,
        propagate_to: Iterable[str] = (),
        **fields: Unpack[PolicyFields],
    ) -> None:
        super().__init__()
        inner = HTTPAdapter() if adapter is None else adapter
        self._adapter: Any = inner

        def send(request: requests.PreparedRequest, **options: Any) -> requests.Response:
            return inner.send(request, **options)  # looked up here: tests replace the method of the class

        self._client = _Requests(
            type(self).__name__,
            policy,
            fields,
            send=send,
            raise_status=raise_status,
            propagate_to=propagate_to,
        )
        if getattr(getattr(self._adapter, "max_retries", None), "total", 0):
            self._client.say_once(
                self, "the adapter inside this one retries by itself, so requests multiply: set max_retries=0"
            )

    @property
    def policy(self) -> Policy:
        """The policy of requests outside of `override`."""
        return self._client.policy

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        """Send a request, and again after a transient failure."""
        if args:  # by position, as a session never does
            kwargs = {**dict(zip(_SEND, args, strict=False)), **kwargs}
        client = self._client
        try:
            response: requests.Response = client.sender()(request, **kwargs)
            return response
        except RedoubleError as error:
            given_up = error
        last: requests.Response = client.conclude(given_up, request)
        return last

    def close(self) -> None:
        """Close the adapter inside."""
        self._adapter.close()


# The parameters of ``BaseAdapter.send`` after the request.
_SEND = ("stream", "timeout", "verify", "cert", "proxies")


def retrying_session(
    policy: Policy | None = None,
    /,
    *,
    raise_status: bool = False,
    propagate_to: Iterable[str] = (),
    **fields: Unpack[PolicyFields],
) -> requests.Session:
    """Return a session that retries its requests, with a `RetryAdapter` for ``http://`` and ``https://``.

    >>> retrying_session(attempts=6).get_adapter("https://example.org").policy
    Policy(attempts=6)
    """
    session = requests.Session()
    adapter = RetryAdapter(policy, raise_status=raise_status, propagate_to=propagate_to, **fields)
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session
