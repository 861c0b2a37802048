"""An adapter for requests that retries every request of a session.

>>> import requests
>>> session = retrying_session(attempts=6, deadline=20.0)
>>> session.close()
"""

from __future__ import annotations

from operator import attrgetter
from urllib.parse import urlsplit

import requests
from requests.adapters import BaseAdapter, HTTPAdapter
from requests.utils import rewind_body

from .. import errors
from .._base.log_once import warn_once
from ._http import NO_REWIND, HttpClient, limited, used_up
from ._override import override

__all__ = ["RetryAdapter", "override", "retrying_session"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from typing_extensions import Unpack

    from .._policy.typed import PolicyFields
    from ..policy import Policy
    from ._http import Kwargs


class DeadlineExceeded(errors.DeadlineExceeded, requests.Timeout):
    """`redouble.DeadlineExceeded` that callers of requests catch as ``requests.Timeout``."""


class ResultRejected(errors.ResultRejected, requests.ConnectionError):
    """`redouble.ResultRejected` that callers of requests catch as ``requests.ConnectionError``."""


class CircuitOpen(errors.CircuitOpen, requests.ConnectionError):
    """`redouble.CircuitOpen` that callers of requests catch as ``requests.ConnectionError``."""


class BulkheadFull(errors.BulkheadFull, requests.ConnectionError):
    """`redouble.BulkheadFull` that callers of requests catch as ``requests.ConnectionError``."""


class _Requests(HttpClient):
    """Requests and responses of requests. A call has two arguments: a request and the options of ``send``."""

    library = "requests"
    joined = (DeadlineExceeded, ResultRejected, CircuitOpen, BulkheadFull)
    status_of = attrgetter("status_code")

    def bare(self, *args: Any, **kwargs: Any) -> Any:
        request, options = args  # in one piece: keywords are copied by each function that they pass
        return self.inner.send(request, **{**options, **kwargs} if kwargs else options)

    def method_of(self, *args: Any) -> str:
        return str(args[0].method).upper()

    def host_of(self, *args: Any) -> str | None:
        return urlsplit(str(args[0].url)).hostname

    def unrepeatable(self, *args: Any) -> str:
        """Return why the body cannot be sent again: a generator, or a file without a position."""
        body = args[0].body
        if hasattr(body, "read"):
            return "" if isinstance(args[0]._body_position, int) else NO_REWIND
        return used_up(body)

    def rewind(self, *args: Any) -> None:
        if isinstance(args[0]._body_position, int):
            rewind_body(args[0])

    def limit(self, seconds: float, args: Any, kwargs: Kwargs) -> Kwargs:
        """Return the timeout of the attempt: that of the caller, with no part longer than the time left."""
        given: Any = args[1].get("timeout")
        if hasattr(given, "clone"):  # a Timeout of urllib3
            timeout = given.clone()
            timeout.total = limited(timeout.total, seconds)
        elif hasattr(given, "__len__"):
            timeout = tuple(limited(each, seconds) for each in given)
        else:
            timeout = limited(given, seconds)
        return {"timeout": timeout}

    def drain(self, response: Any) -> None:
        response.content  # noqa: B018 - reading it gives the connection back to the pool

    def is_usable(self, response: Any) -> bool:
        """Return whether the body is in memory, or can still be read."""
        return response._content is not False or not getattr(response.raw, "closed", False)

    def complete(self, error: Any, *args: Any) -> None:
        """Set request and response, which errors of requests have."""
        error.request, error.response = args[0], None

    def status_error(self, response: Any, *args: Any) -> Exception:
        """Return a ``requests.HTTPError`` with the response."""
        return requests.HTTPError(f"{self.reason(response)} for url: {response.url}", response=response)


class RetryAdapter(BaseAdapter):
    """An adapter that retries the requests of a ``requests.Session``.

    Takes a `Policy`, or its fields as keywords, and:

    - ``adapter`` sends the requests: ``HTTPAdapter()`` by default, or one with other settings. If it has
      ``max_retries`` of its own, a warning says so once.
    - ``raise_status=True`` raises ``requests.HTTPError`` when no attempt is left. By default the last
      response is returned as it is, with a note that `history` reads.
    - ``propagate_to`` are the hosts, or ``["*"]``, that receive ``X-Retry-Attempt`` and
      ``X-Request-Timeout-Ms``.

    A `Registry` as a guard has one guard for each host. `override` sets another policy for the requests of a
    block. A response that is retried is read if it is short, otherwise closed, before the wait. ``timeout``
    and ``deadline`` limit the timeout of each attempt.

    Safe to share between threads. `DeadlineExceeded` is also a ``requests.Timeout``; other errors of
    redouble are also ``requests.ConnectionError``.

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
        self._adapter: Any = HTTPAdapter() if adapter is None else adapter
        caller = type(self).__name__
        self._client = _Requests(caller, policy, fields, self._adapter, raise_status, propagate_to)
        if getattr(getattr(self._adapter, "max_retries", None), "total", 0):
            warn_once(
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
        response: requests.Response = self._client.run(None, request, kwargs)
        return response

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
