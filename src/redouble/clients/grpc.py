"""Interceptors for gRPC that retry every call of a channel, sync and ``grpc.aio``.

>>> import grpc
>>> channel = grpc.intercept_channel(grpc.insecure_channel("localhost:50051"), RetryInterceptor(attempts=6))
"""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import threading
from concurrent import futures
from contextlib import nullcontext, suppress
from contextvars import copy_context
from itertools import chain, islice
from typing import Any

import grpc
import grpc.aio

from .. import errors
from .._base.clock import clock_of
from ..context import KEY, POLICY, RUNNING, boundary, current, leave, living, shorter, time_left
from ._override import override
from ._rpc import RpcClient

__all__ = ["RetryInterceptor", "override", "retry_interceptors"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from typing_extensions import Unpack

    from .._policy.typed import PolicyFields
    from ..context import AttemptContext
    from ..policy import Policy
    from ._http import Kwargs

_KEY = "idempotency-key"  # metadata has lower-case names
_DETAILS = ("method", "timeout", "metadata", "credentials", "wait_for_ready", "compression")


# Outcomes


class _Ended:
    """The methods of a call that is over. Other interceptors and callers of ``with_call`` read them."""

    def done(self) -> bool:
        return True

    def running(self) -> bool:
        return False

    is_active = cancel = cancelled = running

    def time_remaining(self) -> None:
        return None

    def add_done_callback(self, function: Callable[[Any], Any]) -> None:
        """Call the function now: there is nothing to wait for."""
        function(self)

    def add_callback(self, callback: Callable[[], Any]) -> bool:
        """Return that the callback is not called: the call is over."""
        return False


class _Failed(_Ended, grpc.aio.AioRpcError):
    """The base of our errors: an ``RpcError`` in both forms of gRPC, and a call, as those of grpc are."""

    status: Any

    def __str__(self) -> str:
        return self.details() or ""

    def result(self, timeout: float | None = None) -> Any:
        raise self

    def exception(self, timeout: float | None = None) -> Any:
        return self

    def traceback(self, timeout: float | None = None) -> Any:
        return self.__traceback__


class DeadlineExceeded(errors.DeadlineExceeded, _Failed):
    """`redouble.DeadlineExceeded` that is a ``grpc.RpcError`` with the code ``DEADLINE_EXCEEDED``."""

    status = grpc.StatusCode.DEADLINE_EXCEEDED


class CircuitOpen(errors.CircuitOpen, _Failed):
    """`redouble.CircuitOpen` that is a ``grpc.RpcError`` with the code ``UNAVAILABLE``."""

    status = grpc.StatusCode.UNAVAILABLE


class BulkheadFull(errors.BulkheadFull, _Failed):
    """`redouble.BulkheadFull` that is a ``grpc.RpcError`` with the code ``RESOURCE_EXHAUSTED``."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED


class _Answered(_Ended):
    """A call whose response is that of a fallback."""

    def __init__(self, response: Any) -> None:
        self._response = response

    def result(self, timeout: float | None = None) -> Any:
        return self._response

    def exception(self, timeout: float | None = None) -> None:
        return None

    def initial_metadata(self) -> tuple[()]:
        return ()

    traceback, trailing_metadata = exception, initial_metadata

    def code(self) -> Any:
        return grpc.StatusCode.OK

    def details(self) -> str:
        return ""


# Calls


class _Details(grpc.ClientCallDetails):
    """What an attempt is sent with."""

    def __init__(self, given: Any) -> None:
        for name in _DETAILS:
            setattr(self, name, getattr(given, name, None))


class _Rpc:
    """One call, whose attempts are calls of gRPC. The argument of functions of the policy."""

    def __init__(self, continuation: Any, details: Any, request: Any) -> None:
        self._continuation = continuation
        self.details = details
        self.request = request
        self.timeout: float | None = details.timeout
        self.call: Any = None
        self.response: Any = self
        self._is_cancelled = False

    @property
    def path(self) -> str:
        """The method with its service, such as ``catalogue.Catalogue/Lookup``."""
        method: Any = self.details.method
        path: str = method.decode() if isinstance(method, bytes) else method
        return path.lstrip("/")

    @property
    def service(self) -> str:
        """The service, by which a `Registry` has its guards."""
        return self.path.rpartition("/")[0]

    @property
    def name(self) -> str:
        """The name of the method."""
        return self.path.rpartition("/")[2]

    def __repr__(self) -> str:
        return f"<{self.path}>"

    def begin(self) -> Any:
        """Start an attempt. Return its call, or an awaitable of that."""
        if self._is_cancelled:
            raise _cancelled()
        return self._continuation(self.details, self.request)

    def begun(self, call: Any) -> Any:
        """Remember the call of an attempt, so that it can be cancelled."""
        self.call = call
        if self._is_cancelled:
            call.cancel()
        return call

    def cancel(self) -> None:
        """Cancel the attempt that runs, and start no other."""
        self._is_cancelled = True
        if self.call is not None:
            self.call.cancel()

    def send(self) -> Any:
        """Make an attempt in this thread. Return the response."""
        self.response = self.begun(self.begin()).result()
        return self.response

    async def send_async(self) -> Any:
        """Make an attempt in this task. Return the response."""
        self.response = await self.begun(await self.begin())
        return self.response


class _First(list):  # type: ignore[type-arg] # pyright: ignore[reportMissingTypeArgument]
    """The first message of a stream, or nothing if it had none."""


class _StreamRpc(_Rpc):
    """A call with a stream of responses: an attempt ends with the first one."""

    rest: Any = ()

    def send(self) -> Any:
        """Make an attempt. Return its first message; `rest` are the others."""
        self.rest = iter(self.begun(self.begin()))
        self.response = _First(islice(self.rest, 1))
        return self.response

    async def send_async(self) -> Any:
        """As `send`, with awaits."""
        self.rest = self.begun(await self.begin()).__aiter__()
        self.response = _First()
        async for message in self.rest:
            self.response.append(message)
            break
        return self.response


def _cancelled() -> _Failed:
    """Return the error of a call that its caller has cancelled."""
    return _failed(grpc.StatusCode.CANCELLED, "cancelled by the caller")


def _failed(code: Any, details: str) -> _Failed:
    """Return an error with a code and details, and without metadata."""
    none: Any = grpc.aio.Metadata()
    return _Failed(code, none, none, details)


def _as_call(error: Any) -> Any:
    """Return an error that has the methods of a call: itself, if it is one of gRPC."""
    return error if isinstance(error, grpc.RpcError) else _failed(grpc.StatusCode.UNKNOWN, str(error))


class _Grpc(RpcClient):
    """Calls of a channel."""

    library = "grpc"
    joined = (DeadlineExceeded, CircuitOpen, BulkheadFull)

    def bare(self, *args: Any, **kwargs: Any) -> Any:
        return args[0].send()

    def name_of(self, *args: Any) -> str:
        return str(args[0].path)

    def accepting(self, policy: Policy) -> Any:
        """Return the ``until`` of the policy, for single responses: a stream is not judged."""
        until = policy.until
        if until is None:
            return None

        def accept(response: Any) -> Any:
            return type(response) is _First or until(response)

        return accept

    def may_repeat(self, *args: Any) -> bool:
        """Return whether the call has an idempotency key: its name does not tell whether it acts."""
        return any(name == _KEY for name, _ in args[0].details.metadata or ())

    def complete(self, error: Any, *args: Any) -> None:
        """Give an error of ours the code and the details of a failed call."""
        error.__dict__.update(_failed(error.status, str(error.args[0])).__dict__)

    def prepare(self, context: AttemptContext, args: Any, kwargs: Kwargs) -> tuple[Kwargs, list[str]]:
        """Set the time limit and the key of this attempt."""
        attempt, rpc = living(context), args[0]
        if attempt is not None:
            details: Any = _Details(rpc.details)
            rpc.details = details
            limit, policy = time_left(attempt), attempt[POLICY]
            if policy and policy._client is self:
                limit = shorter(policy.timeout, limit)
                if policy.idempotency_key is not False and not self.may_repeat(rpc):
                    pairs = (*(details.metadata or ()), (_KEY, attempt[KEY].value()))
                    details.metadata = grpc.aio.Metadata(*pairs) if self.awaits else pairs
            details.timeout = shorter(rpc.timeout, limit)
        return kwargs, []

    def run(self, policy: Any, *args: Any, **kwargs: Any) -> Any:
        """Make a call in this thread, within the timeout of its caller. Return its response."""
        with self._time_limit(args[0]):
            return super().run(policy, *args)

    async def run_async(self, policy: Any, *args: Any, **kwargs: Any) -> Any:
        """As `run`, in this task."""
        with self._time_limit(args[0]):
            return await super().run_async(policy, *args)

    def _time_limit(self, rpc: _Rpc) -> Any:
        return nullcontext() if rpc.timeout is None else _TimeLimit(self, rpc.timeout)


class _AsyncGrpc(_Grpc):
    """Calls of a channel of ``grpc.aio``."""

    awaits = True

    def bare(self, *args: Any, **kwargs: Any) -> Any:
        return args[0].send_async()


class _TimeLimit:
    """A block in which the timeout that the caller gave is the deadline of all attempts together."""

    def __init__(self, client: _Grpc, seconds: float) -> None:
        self._around = boundary(None, clock_of(client.policy.clock), seconds, 1)

    def __enter__(self) -> None:
        self._token = current.set(self._around)

    def __exit__(self, *error: object) -> None:
        self._around[RUNNING] = False
        leave(self._token)


# Sync


class RetryInterceptor(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """An interceptor that retries the calls of a channel.

    Takes a `Policy`, or its fields as keywords. Calls with one request are retried, those with a stream of
    responses until the first one; calls with a stream of requests are not. A call may act, so it is repeated
    only after failures without effect, with an ``idempotency-key`` in its metadata, or if the policy says
    ``idempotent=True``. The ``timeout`` of a call limits all its attempts together. ``stub.Method(request)``
    retries in the thread of the caller, ``stub.Method.future(request)`` in a thread of its own. A `Registry`
    as a guard has one guard for each service. `override` sets another policy for a block.

    >>> interceptor = RetryInterceptor(attempts=6, deadline=20.0)
    >>> with grpc.insecure_channel("localhost:50051") as plain:
    ...     channel = grpc.intercept_channel(plain, interceptor)
    """

    def __init__(self, policy: Policy | None = None, /, **fields: Unpack[PolicyFields]) -> None:
        self._client = _Grpc(type(self).__name__, policy, fields)

    @property
    def policy(self) -> Policy:
        """The policy of calls outside of `override`."""
        return self._client.policy

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """Make a call with one response, and again after a transient failure."""
        rpc = _Rpc(continuation, client_call_details, request)
        # The only sign of a future before there is a call. Without it, the call is right but made here.
        if ".future." in getattr(continuation, "__qualname__", ""):
            return _Future(self._client, rpc)
        return _outcome(self._client.run(None, rpc), rpc)

    def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """Return a stream of responses, which is begun when the first one is read."""
        return _Stream(self._client, _StreamRpc(continuation, client_call_details, request))


def _outcome(response: Any, rpc: _Rpc) -> Any:
    """Return the call that has given a response."""
    return rpc.call if response is rpc.response else _Answered(response)


class _Future(futures.Future[Any]):
    """A call that a thread makes."""

    def __init__(self, client: _Grpc, rpc: _Rpc) -> None:
        super().__init__()
        self._rpc = rpc
        run = copy_context().run
        threading.Thread(target=run, args=(self._work, client), name=repr(rpc), daemon=True).start()

    def _work(self, client: _Grpc) -> None:
        """Make the call in this thread, and set its outcome."""
        with suppress(futures.InvalidStateError):  # it was cancelled
            try:
                outcome = _outcome(client.run(None, self._rpc), self._rpc)
            except BaseException as error:  # noqa: BLE001 - it is raised in the thread that asks
                self.set_exception(error)
            else:
                self.set_result(outcome)

    def cancel(self) -> bool:
        """Cancel the future and the attempt that runs, also during a wait."""
        stopped = super().cancel()
        self._rpc.cancel()
        return stopped

    def running(self) -> bool:
        return not self.done()

    is_active = running

    def exception(self, timeout: float | None = None) -> Any:
        """Wait for the call, and return its error; raise the errors that futures of gRPC raise."""
        try:
            return super().exception(timeout)
        except futures.CancelledError:
            raise grpc.FutureCancelledError from None
        except TimeoutError:
            raise grpc.FutureTimeoutError from None

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the call, and return its response."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return super().result().result()

    def traceback(self, timeout: float | None = None) -> Any:
        error = self.exception(timeout)
        return None if error is None else error.__traceback__

    def __getattr__(self, name: str) -> Any:
        """Return a method of the call that was the last, when all is over: ``code`` and the like."""
        if name.startswith("_"):
            raise AttributeError(name)
        if self.cancelled():
            return getattr(_cancelled(), name)
        error = self.exception()
        return getattr(super().result() if error is None else _as_call(error), name)


class _Stream:
    """A call with a stream of responses. Its first use makes the attempts, up to the first response."""

    def __init__(self, client: _Grpc, rpc: _StreamRpc) -> None:
        self._client = client
        self._rpc = rpc
        self._messages: Iterator[Any] | None = None
        self._call: Any = None

    def _begun(self) -> Iterator[Any]:
        """Make the attempts, if there were none. Return the messages to come."""
        if self._messages is None:
            self._messages = iter(())
            rpc = self._rpc
            try:
                first = self._client.run(None, rpc)
            except Exception as error:
                self._call = _as_call(error)
                raise
            self._call = _outcome(first, rpc)
            self._messages = chain(first, rpc.rest if self._call is rpc.call else ())
        return self._messages

    def __iter__(self) -> _Stream:
        return self

    def __next__(self) -> Any:
        return next(self._begun())

    def cancel(self) -> None:
        """Cancel the stream: before it has begun, no attempt is made."""
        self._rpc.cancel()

    def __getattr__(self, name: str) -> Any:
        """Return a method of the call: ``code``, ``trailing_metadata`` and the like."""
        if name.startswith("_"):
            raise AttributeError(name)
        with suppress(Exception):  # it was kept, as a call
            self._begun()
        return getattr(self._call, name)


# Async


def retry_interceptors(
    policy: Policy | None = None, /, **fields: Unpack[PolicyFields]
) -> list[grpc.aio.ClientInterceptor]:
    """Return interceptors for a channel of ``grpc.aio`` that retry its calls, as `RetryInterceptor` does.

    >>> len(retry_interceptors(attempts=6))  # for grpc.aio.insecure_channel(target, interceptors=...)
    2
    """
    client = _AsyncGrpc("retry_interceptors", policy, fields)
    return [_AsyncUnary(client), _AsyncStream(client)]


class _AsyncUnary(grpc.aio.UnaryUnaryClientInterceptor):
    """The interceptor for calls with one response."""

    def __init__(self, client: _Grpc) -> None:
        self._client = client

    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        rpc = _Rpc(continuation, client_call_details, request)
        response = await self._client.run_async(None, rpc)
        return rpc.call if response is rpc.response else response


class _AsyncStream(grpc.aio.UnaryStreamClientInterceptor):
    """The interceptor for calls with a stream of responses."""

    def __init__(self, client: _Grpc) -> None:
        self._client = client

    async def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        rpc = _StreamRpc(continuation, client_call_details, request)
        first = await self._client.run_async(None, rpc)
        return _messages(first, rpc.rest if first is rpc.response else None)


async def _messages(first: Any, rest: Any) -> AsyncIterator[Any]:
    """Yield the messages of a stream whose first one was read, or those of a fallback."""
    for message in first:
        yield message
    if rest is not None:
        async for message in rest:
            yield message
