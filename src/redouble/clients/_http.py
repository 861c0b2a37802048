"""The part that HTTP clients share: which response is retried, what an attempt sends, how a call ends.

Each client has a subclass of `HttpClient` that reads its requests and responses. The engine runs the calls,
as it does for a decorated function: a request is the argument, a response the result, and ``until`` rejects
the responses that are retried.
"""

from __future__ import annotations

from .._base import checks as check
from .._base.log_once import warn_once
from .._engine.decorate import chosen
from .._engine.first import wrap, wrap_async
from .._engine.note import passed_to
from ..classify import DEFAULT, Classifier, may_repeat
from ..context import (
    IDEMPOTENCY_KEY,
    KEY,
    NUMBER,
    POLICY,
    current,
    here,
    outgoing_headers,
    shorter,
    time_left,
)
from ..errors import DeadlineExceeded, RedoubleError, ResultRejected
from ..policy import Policy
from ..registry import Registry
from ._override import overriding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    Send = Callable[..., Any]

# Bytes of a response that is retried which are read, so that its connection can be used again.
DRAIN = 64 * 1024
# Seconds that an async client spends on that: a body may stall.
DRAIN_TIME = 0.5

_KEYED_METHODS = frozenset({"POST", "PATCH"})


# The fields that may be functions of a call's arguments.
_OF_ARGUMENTS = ("budget", "breaker", "throttle", "bulkhead", "idempotency_key", "payload")


class ClientPolicy(Policy):
    """A policy whose calls are requests of a client. Functions of a call's arguments receive the request."""

    __slots__ = ("_client",)

    def __init__(self, client: HttpClient, policy: Policy) -> None:
        given: Any = {**policy._given(), "until": client.accepting(policy)}
        for name in _OF_ARGUMENTS:
            if callable(function := given.get(name)) and not check.is_guard(function):
                given[name] = _of_request(function)
        super().__init__(**given)
        object.__setattr__(self, "_client", client)


class HttpClient:
    """Requests and responses of one client library, and the way of a request under a policy.

    ``send`` is the function that sends a request; its arguments are those of a call.
    """

    #: The name of the library, and for each of our errors the class that its callers expect.
    library = ""
    remedy = "idempotent=True or send an Idempotency-Key"
    errors: Mapping[type[Exception], type[Exception]]

    def __init__(
        self,
        caller: str,
        policy: Any,
        fields: Mapping[str, Any],
        *,
        send: Send,
        awaits: bool = False,
        raise_status: bool = False,
        propagate_to: Iterable[str] = (),
    ) -> None:
        if policy is not None and not isinstance(policy, Policy):
            raise TypeError(f"{caller}() takes a Policy or fields, got {policy!r}")
        self._caller = caller
        self._bare, self._awaits = send, awaits
        self._raise_status = check.one_of(True, False)("raise_status", raise_status)
        self._propagate_to = _hosts(propagate_to)
        self.policy = chosen(policy, self._by_host(fields), caller)
        self._under: Send = self._wrapped(self.policy)

    def _by_host(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields, with a guard for each host instead of a `Registry`."""
        return {
            name: value.by(self.host_of) if isinstance(value, Registry) else value
            for name, value in fields.items()
        }

    def _wrapped(self, policy: Policy) -> Send:
        under = ClientPolicy(self, policy)
        if self._awaits:
            return wrap_async(under, self._attempt_async, self.library)
        return wrap(under, self._attempt, self.library)

    def sender(self, chosen: Any = None) -> Send:
        """Return the function that sends a request under its policy: ``chosen``, the override or our own."""
        if chosen is None:
            chosen = overriding.get()
            if chosen is None:
                return self._under
        if chosen is False:
            return self._bare
        if not isinstance(chosen, Policy):
            raise TypeError(f"the policy of a request must be a Policy or False, got {chosen!r}")
        return self._wrapped(chosen)

    # One attempt

    def _attempt(self, *args: Any, **kwargs: Any) -> Any:
        if current.get() is None:
            return self._bare(*args, **kwargs)
        kwargs, told = self._prepared(args, kwargs)
        try:
            return self._bare(*args, **kwargs)
        finally:
            self._forget(told, args)

    async def _attempt_async(self, *args: Any, **kwargs: Any) -> Any:
        if current.get() is None:
            return await self._bare(*args, **kwargs)
        kwargs, told = self._prepared(args, kwargs)
        try:
            return await self._bare(*args, **kwargs)
        finally:
            self._forget(told, args)

    def _forget(self, told: list[str], args: Any) -> None:
        """Remove headers that are for this host and this attempt: a redirect may lead to another host."""
        for name in told:
            args[0].headers.pop(name, None)

    def _prepared(self, args: Any, kwargs: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Rewind the body and set the headers of this attempt.

        Return the keywords with its time limit, and the headers that must not outlive the attempt.
        """
        attempt, told = here(), list[str]()
        if attempt is None:
            return kwargs, told
        limit, policy = time_left(attempt), attempt[POLICY]
        if isinstance(policy, ClientPolicy) and policy._client is self:
            limit = shorter(policy.timeout, limit)
            if attempt[NUMBER] > 1:
                self.rewind(*args)
            if policy.idempotency_key is not False and self.method_of(*args) in _KEYED_METHODS:
                self.set_header(IDEMPOTENCY_KEY, attempt[KEY].value(), *args, keep=True)
        if self._propagate_to is not None and self._is_asked_for(self.host_of(*args)):
            for name, value in outgoing_headers().items():
                if name != IDEMPOTENCY_KEY:
                    self.set_header(name, value, *args)
                    told.append(name)
        return kwargs if limit is None else self.limit(limit, args, kwargs), told

    def _is_asked_for(self, host: str | None) -> bool:
        hosts = self._propagate_to or frozenset()
        return "*" in hosts or host in hosts

    # Responses

    def accepting(self, policy: Policy) -> Callable[[Any], bool]:
        """Return the ``until`` of a policy for responses: false for those that are retried.

        Responses are judged by the classifier and the rules of the policy, and by its own ``until``. Other
        forms of ``on`` are about errors: with them only rules and ``until`` reject a response.
        """
        on, until, rules = policy.on, policy.until, policy.rules
        classifier = on if isinstance(on, Classifier) else DEFAULT
        judges = on is None or classifier is on
        # Below 400 only a status that is named is retried.
        named: set[Any] = {*rules, *classifier.statuses}
        lowest = min([400, *(key for key in named if type(key) is int)])
        status_of = self.status_of

        def accept(response: Any) -> Any:
            status = status_of(response)
            if status >= lowest:
                found = classifier.verdict(response)
                if (judges and found.retryable) or status in rules or found.cause in rules:
                    return False
            return True if until is None else until(response)

        return accept

    def finish(self, error: RedoubleError | TimeoutError, *args: Any) -> Any:
        """Return the last response of a call that gave up, with its note; or raise an error of the client."""
        if type(error) is ResultRejected and (self._raise_status or self.is_usable(error.result)):
            response = error.result
            self.mark(response, error, *args)
            if not self._raise_status:
                return response
            self.raise_status(response, error, *args)
        expected = self.errors.get(type(error))
        if expected is None:
            raise error
        raised = as_type(expected, error)
        self.complete(raised, *args)
        raise raised from error.__cause__

    def conclude(self, error: RedoubleError, *args: Any) -> Any:
        """Close a response that is not returned, and `finish` the call."""
        unread = self._unread(error)
        if unread is not None:
            try:
                self.discard(unread, 0.0 if isinstance(error, DeadlineExceeded) else None)
            except Exception as failed:  # noqa: BLE001 - it must not replace the error of the call
                self._not_closed(failed, args)
        return self.finish(error, *args)

    async def conclude_async(self, error: RedoubleError | TimeoutError, *args: Any) -> Any:
        """As `conclude`, for a client whose responses are closed with an await."""
        unread = self._unread(error)
        if unread is not None:
            try:
                await self.discard(unread, 0.0 if isinstance(error, DeadlineExceeded) else None)
            except Exception as failed:  # noqa: BLE001 - as above
                self._not_closed(failed, args)
        return self.finish(error, *args)

    def _not_closed(self, failed: Exception, args: Any) -> None:
        warn_once(self, f"closing a response of {self.name_of(*args)} failed", failed)

    def _unread(self, error: RedoubleError | TimeoutError) -> Any:
        """Return the response that is not returned, if the time was up or its status is raised; or None."""
        if type(error) is ResultRejected:
            return error.result if self._raise_status else None
        cause = error.__cause__
        # One that was closed before a retry has nothing to read.
        return cause.result if type(cause) is ResultRejected and self.is_usable(cause.result) else None

    def mark(self, response: Any, error: RedoubleError, *args: Any) -> None:
        """Put the note of the call on its last response: `history` and enclosing calls read it there."""
        passed_to(response, error)

    def say_once(self, key: object, text: str) -> None:
        """Log once that something retries beside us."""
        warn_once(key, text)

    # For subclasses

    def name_of(self, *args: Any) -> str:
        """Return method and host: few names, for metrics."""
        host = self.host_of(*args)
        return f"{self.method_of(*args)} {host}" if host else self.method_of(*args)

    def method_of(self, *args: Any) -> str:
        """Return the method of a request, in capitals."""
        raise NotImplementedError

    def host_of(self, *args: Any) -> str | None:
        """Return the host of a request, in lower case."""
        raise NotImplementedError

    def status_of(self, response: Any) -> int:
        """Return the status of a response."""
        raise NotImplementedError

    def reason(self, result: Any) -> str:
        """Return the status of a response that was rejected, in words."""
        phrase = getattr(result, "reason_phrase", None) or getattr(result, "reason", None)
        return f"HTTP {self.status_of(result)} {phrase or ''}".rstrip()

    def may_repeat(self, *args: Any) -> bool:
        """Return whether the request may be sent twice: by its method, its key, or as a read."""
        request = args[0]
        return may_repeat(request.method, request, request.headers)

    def unrepeatable(self, *args: Any) -> str:
        """Return why the request must not be sent again, such as a body that was read; or nothing."""
        raise NotImplementedError

    def rewind(self, *args: Any) -> None:
        """Set the body back to where it began, before it is sent again."""
        raise NotImplementedError

    def set_header(self, name: str, value: str, *args: Any, keep: bool = False) -> None:
        """Set a header of the request; with ``keep``, only if it has none."""
        raise NotImplementedError

    def limit(self, seconds: float, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Limit the client's own timeouts to so many seconds. Return the keywords of the attempt."""
        raise NotImplementedError

    def discard(self, result: Any, left: float | None) -> Any:
        """Read a short body or close the response, so that its connection is free.

        ``left`` are the seconds until the deadline. Only an async client can stop reading a body that stalls.
        """
        raise NotImplementedError

    def is_usable(self, response: Any) -> bool:
        """Return whether a caller can still read the response."""
        raise NotImplementedError

    def complete(self, error: RedoubleError, *args: Any) -> None:
        """Set what the errors of the client have, such as the request."""
        raise NotImplementedError

    def raise_status(self, response: Any, error: RedoubleError, *args: Any) -> None:
        """Raise the client's own error for a status, with the note of the call."""
        raise NotImplementedError


def _of_request(function: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a function of the arguments of a call that passes on the request alone."""

    def of_request(request: Any, *args: Any, **kwargs: Any) -> Any:
        return function(request)

    return of_request


def _hosts(hosts: Iterable[str]) -> frozenset[str] | None:
    """Check the hosts that receive our headers. ``None`` if there are none."""
    if isinstance(hosts, str):
        raise TypeError(f"propagate_to must be a list of host names, got {hosts!r}; write [{hosts!r}]")
    return frozenset(host.lower() for host in hosts) or None


def as_type(expected: type[Any], error: BaseException) -> Any:
    """Return the same error, note included, as one of another class."""
    # Around __init__: the classes that are joined take different arguments.
    made: Any = expected.__new__(expected, *error.args)
    made.args = error.args
    made.__dict__.update(error.__dict__)
    return made.with_traceback(error.__traceback__)


def is_short(headers: Mapping[str, str]) -> bool:
    """Return whether a response is short, by its headers: reading it costs less than a new connection."""
    length = headers.get("content-length", "")
    return length.isdigit() and len(length) < 10 and int(length) <= DRAIN


def used_up(body: Any) -> str:
    """Return why a body cannot be sent again; empty if it can, or was not begun. Files do not count."""
    if not hasattr(body, "__next__") and not hasattr(body, "__anext__"):
        return ""
    if getattr(body, "gi_suspended", True) is False and body.gi_frame is not None:
        return ""
    return USED_UP


USED_UP = "its body was a generator, which is used up; send bytes or a file"
NO_REWIND = "its body was a file that cannot be rewound; send bytes or a seekable file"
