"""The part that HTTP clients share: which response is retried, what an attempt sends, how a call ends.

Each client has a subclass of `HttpClient` that reads its requests and responses. The engine runs the calls,
as it does for a decorated function: a request is the argument, a response the result, and ``until`` rejects
the responses that are retried.

One object serves all requests of a client, from any thread or task: it holds the configuration, and the state
of a call is in the call.
"""

from __future__ import annotations

from contextvars import ContextVar

from .._base import checks as check
from .._base.log_once import shielded, warn_once
from .._engine.decorate import chosen
from .._engine.first import wrap, wrap_async
from .._engine.note import history, passed_to
from ..classify import DEFAULT, Classifier, may_repeat
from ..context import (
    IDEMPOTENCY_KEY,
    KEY,
    NUMBER,
    POLICY,
    RUNNING,
    current,
    living,
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

    from ..context import AttemptContext

    Send = Callable[..., Any]
    Kwargs = dict[str, Any]

# Bytes of a response that is retried which are read, so that its connection can be used again.
DRAIN = 64 * 1024
# Seconds that an async client spends on that: a body may stall.
DRAIN_TIME = 0.5

USED_UP = "its body was a generator, which is used up; send bytes or a file"
NO_REWIND = "its body was a file that cannot be rewound; send bytes or a seekable file"

_KEYED_METHODS = frozenset({"POST", "PATCH"})
# The fields that may be functions of a call's arguments.
_OF_ARGUMENTS = ("budget", "breaker", "throttle", "bulkhead", "idempotency_key", "payload")
# Policies of single requests whose wrapped function is kept: making it takes longer than a request.
_MOST_POLICIES = 64

# The request whose call failed for good last here, as `HttpClient.resend_key` names it, and its error.
_given_up: ContextVar[tuple[object, Exception] | None] = ContextVar("redouble given up", default=None)


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

    The arguments of a call are those of `bare`, which sends a request: the request is the first. Subclasses
    define how to read it. ``inner`` is the object of the library that sends requests.
    """

    #: The name of the library, for calls that have no other name.
    library = ""
    #: How a caller allows a request to be sent twice.
    remedy = "idempotent=True or send an Idempotency-Key"
    #: Our errors, each joined with the class that callers of the library expect.
    joined: tuple[type[Exception], ...] = ()
    #: The error of an attempt that was cancelled at the ``timeout`` of the policy.
    timed_out: type[Exception] | None = None
    #: Whether `bare` and `discard` are async.
    awaits = False
    #: Returns the status of a response.
    status_of: Callable[[Any], int]

    def __init__(
        self,
        caller: str,
        policy: Any,
        fields: Mapping[str, Any],
        inner: Any = None,
        raise_status: bool = False,
        propagate_to: Iterable[str] = (),
    ) -> None:
        if policy is not None and not isinstance(policy, Policy):
            raise TypeError(f"{caller}() takes a Policy or fields, got {policy!r}")
        self._caller, self.inner = caller, inner
        self._raise_status = check.one_of(True, False)("raise_status", raise_status)
        self._propagate_to = _hosts(propagate_to)
        by_host = {
            name: value.by(self.host_of) if isinstance(value, Registry) else value
            for name, value in fields.items()
        }
        self.policy = chosen(policy, by_host, caller)
        self._expected: dict[Any, Any] = {each.__bases__[0]: each for each in self.joined}
        if self.timed_out is not None:
            self._expected[TimeoutError] = self.timed_out
        self._once: Send = self._attempt_async if self.awaits else self._attempt
        self._others: dict[Policy, Send] = {}
        self._under = self._wrapped(self.policy)

    def _wrapped(self, policy: Policy) -> Send:
        """Return the function that sends a request under a policy."""
        wrapper = wrap_async if self.awaits else wrap
        return wrapper(ClientPolicy(self, policy), self._once, self.library)

    def sender(self, chosen: Any = None) -> Send:
        """Return the function that sends a request under its policy: ``chosen``, the override or our own."""
        if chosen is None:
            chosen = overriding.get()
            if chosen is None:
                return self._under
        if chosen is False:
            return self._once
        if not isinstance(chosen, Policy):
            raise TypeError(f"the policy of a request must be a Policy or False, got {chosen!r}")
        send = self._others.get(chosen)
        if send is None:
            if len(self._others) >= _MOST_POLICIES:
                self._others.clear()
            send = self._others[chosen] = self._wrapped(chosen)
        return send

    # A call

    def run(self, policy: Any, *args: Any, **kwargs: Any) -> Any:
        """Send a request under a policy, or ours. Return the response; raise an error of the library."""
        if _given_up.get() is not None:
            self._refuse_resent(*args)
        try:
            # Not by `sender` in the usual case: a success takes less time.
            plain = policy is None and overriding.get() is None
            return (self._under if plain else self.sender(policy))(*args, **kwargs)
        except RedoubleError as error:
            failure = error
        except Exception as error:
            self._remember(error, *args)
            raise
        try:
            unread, left = self._unread(failure)
            if unread is not None:
                shielded(self, self._not_closed(args), self.discard, unread, left)
            return self.finish(failure, *args)
        finally:
            del failure  # which would hold itself in the frames that it goes through

    async def run_async(self, policy: Any, *args: Any, **kwargs: Any) -> Any:
        """As `run`, for a client that is async."""
        if _given_up.get() is not None:
            self._refuse_resent(*args)
        try:
            return await self.sender(policy)(*args, **kwargs)
        except (RedoubleError, TimeoutError) as error:
            failure: Any = error
        except Exception as error:
            self._remember(error, *args)
            raise
        try:
            unread, left = self._unread(failure)
            if unread is not None:
                await shielded_async(self, self._not_closed(args), self.discard(unread, left))
            return self.finish(failure, *args)
        finally:
            del failure

    def _attempt(self, *args: Any, **kwargs: Any) -> Any:
        """Send a request once, with the headers and time limits of the attempt that runs here."""
        attempt, told = current.get(), None
        try:
            if attempt is not None:
                kwargs, told = self.prepare(attempt, args, kwargs)
            return self.bare(*args, **kwargs)
        except BaseException as error:
            self.clean_up(error)
            raise
        finally:
            if told:
                self._forget(told, args)

    async def _attempt_async(self, *args: Any, **kwargs: Any) -> Any:
        """As `_attempt`, for a client that is async."""
        attempt, told = current.get(), None
        try:
            if attempt is not None:
                kwargs, told = self.prepare(attempt, args, kwargs)
            return await self.bare(*args, **kwargs)
        except BaseException as error:
            if (closing := self.clean_up(error)) is not None:
                await closing
            raise
        finally:
            if told:
                self._forget(told, args)

    def _forget(self, told: list[str], args: Any) -> None:
        """Remove headers that are for this host and this attempt: a redirect may lead to another host."""
        for name in told:
            args[0].headers.pop(name, None)

    def prepare(self, context: AttemptContext, args: Any, kwargs: Kwargs) -> tuple[Kwargs, list[str]]:
        """Rewind the body and set the headers of this attempt.

        Return the keywords with its time limit, and the headers that must not outlive the attempt. The
        attempt may be that of an enclosing call, whose deadline counts here, too.
        """
        told: list[str] = []
        # The usual case first: a success pays for what is asked here.
        attempt = context if context[RUNNING] is True else living(context)
        if attempt is None:
            return kwargs, told
        limit, policy = time_left(attempt), attempt[POLICY]
        if policy and policy._client is self:
            if policy.timeout is not None:
                limit = shorter(policy.timeout, limit)
            if attempt[NUMBER] > 1:
                self.rewind(*args)
            if policy.idempotency_key is not False and self.method_of(*args) in _KEYED_METHODS:
                args[0].headers.setdefault(IDEMPOTENCY_KEY, attempt[KEY].value())
        if self._propagate_to is not None and not self._propagate_to.isdisjoint(("*", self.host_of(*args))):
            headers = outgoing_headers()
            headers.pop(IDEMPOTENCY_KEY, None)
            args[0].headers.update(headers)
            told += headers
        return kwargs if limit is None else self.limit(limit, args, kwargs), told

    # Responses

    def accepting(self, policy: Policy) -> Callable[[Any], bool] | None:
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
        raised: Any = error
        cause = error.__cause__
        if type(error) is ResultRejected and (self._raise_status or self.is_usable(error.result)):
            self.mark(error.result, error, *args)
            if not self._raise_status:
                return error.result
            raised = self.status_error(error.result, *args)
            raised.__notes__ = error.result.__notes__
        elif type(error) in self._expected:
            raised = as_type(self._expected[type(error)], error)
            self.complete(raised, *args)
        else:
            raise error
        self._remember(raised, *args)
        try:
            raise raised from cause
        finally:
            del raised, error, cause

    def _unread(self, error: RedoubleError | TimeoutError) -> tuple[Any, float | None]:
        """Return the response that is not returned, if the time was up or its status is raised; or None.

        Also return the seconds that are left to read it.
        """
        if type(error) is ResultRejected:
            return (error.result if self._raise_status else None), None
        cause = error.__cause__
        # One that was closed before a retry has nothing to read.
        if type(cause) is ResultRejected and self.is_usable(cause.result):
            return cause.result, 0.0 if type(error) is DeadlineExceeded else None
        return None, None

    def _not_closed(self, args: Any) -> str:
        """Return the warning about a response that cannot be closed: the error of the call is raised."""
        return f"closing a response of {self.name_of(*args)} failed"

    def mark(self, response: Any, error: RedoubleError, *args: Any) -> None:
        """Put the note of the call on its last response: `history` and enclosing calls read it there."""
        passed_to(response, error)

    # Requests that the layer above sends again by itself

    def resend_key(self, error: BaseException | None, *args: Any) -> object:
        """Return a key of requests that the layer above sends again after an error; None if it does not.

        ``error`` is None for a request that may be sent again: the key is that of the request before.
        """
        return None

    def _remember(self, error: Exception, *args: Any) -> None:
        """Remember a request that was retried or refused here, so that it is not sent again from above."""
        tried = history(error)
        if isinstance(error, RedoubleError) or (tried is not None and tried.attempts > 1):
            key = self.resend_key(error, *args)
            if key is not None:
                # A copy without its traceback, whose frames must not live on in the context.
                _given_up.set((key, as_type(type(error), error).with_traceback(None)))

    def _refuse_resent(self, *args: Any) -> None:
        """Raise the error of a request once more if the layer above sends that request again."""
        before: Any = _given_up.get()
        if before[0] != self.resend_key(None, *args):
            _given_up.set(None)
            return
        raise before[1].with_traceback(None)

    # For subclasses

    def bare(self, *args: Any, **kwargs: Any) -> Any:
        """Send a request once."""
        raise NotImplementedError

    def name_of(self, *args: Any) -> str:
        """Return method and host: few names, for metrics."""
        host = self.host_of(*args)
        return f"{self.method_of(*args)} {host}" if host else self.method_of(*args)

    def method_of(self, *args: Any) -> str:
        """Return the method of a request, in capitals."""
        return str(args[0].method)

    def host_of(self, *args: Any) -> str | None:
        """Return the host of a request, in lower case."""
        host: str | None = args[0].url.host
        return host

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
        return ""

    def rewind(self, *args: Any) -> None:
        """Set the body back to where it began, before it is sent again."""

    def limit(self, seconds: float, args: Any, kwargs: Kwargs) -> Kwargs:
        """Limit the timeouts of the library to these seconds. Return the keywords of the attempt.

        Where a request has no timeout of its own, async attempts are cancelled, and others run on.
        """
        return kwargs

    def discard(self, result: Any, left: float | None) -> Any:
        """Read a short body, so that its connection is used again, and close the response.

        ``left`` are the seconds until the deadline. Only an async client can stop reading a body that stalls.
        """
        try:
            if is_short(result.headers):
                self.drain(result)
        finally:
            result.close()

    def drain(self, response: Any) -> None:
        """Read the rest of a response."""

    def clean_up(self, error: BaseException) -> Any:
        """Remove what a failed attempt has left in the library. An async client may return an awaitable."""
        return None

    def is_usable(self, response: Any) -> bool:
        """Return whether a caller can still read the response."""
        return False

    def complete(self, error: Any, *args: Any) -> None:
        """Set attributes that errors of the library have, such as the request."""

    def status_error(self, response: Any, *args: Any) -> Exception:
        """Return the error that the library has for a status."""
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


async def shielded_async(source: object, text: str, awaitable: Any) -> None:
    """Await; if that raises, log the error once with ``text``, as `shielded` does."""
    try:
        await awaitable
    except Exception as error:  # noqa: BLE001 - it must not replace the error of the call
        warn_once(source, text, error)


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


def limited(given: Any, seconds: float) -> float:
    """Return the smaller of a timeout, if it is a number, and the time that is left."""
    return min(given, seconds) if isinstance(given, (int, float)) else seconds


def position_of(file: Any) -> int | None:
    """Return where a file is, to send it again from there; ``None`` if it cannot be rewound."""
    try:
        position: int = file.tell()
        file.seek(position)
    except (AttributeError, OSError, ValueError):
        return None  # a pipe, or a file that is closed
    return position


def used_up(body: Any) -> str:
    """Return why a body cannot be sent again; empty if it can, or was not begun. Files do not count."""
    if not hasattr(body, "__next__") and not hasattr(body, "__anext__"):
        return ""
    if getattr(body, "gi_suspended", True) is False and body.gi_frame is not None:
        return ""
    return USED_UP
