"""`redouble.clients.grpc`, against a server on loopback that fails as a test asks for."""

from __future__ import annotations

import asyncio
import pickle
import threading
from concurrent import futures
from contextvars import copy_context

import pytest

from redouble import Policy, history, retry
from redouble.breaker import CircuitBreaker
from redouble.bulkhead import Bulkhead
from redouble.errors import BulkheadFull, CircuitOpen, DeadlineExceeded, ResultRejected
from redouble.registry import Registry

grpc = pytest.importorskip("grpc")

from redouble.clients.grpc import RetryInterceptor, override, retry_interceptors  # noqa: E402

DO, LIST, SEND = "/t.T/Do", "/t.T/List", "/t.T/Send"
OPTIONS = [("grpc.enable_retries", 0)]


class Service:
    """Methods that fail with the codes of a script and then succeed. ``b"hold"`` keeps a call open."""

    def __init__(self):
        self.script = []
        self.trailers = []
        self.received = []  # metadata and time that is left
        self.held = threading.Event()

    def reply(self, request, context):
        self.received.append((dict(context.invocation_metadata()), context.time_remaining()))
        if request == b"hold":
            self.held.set()
            over = threading.Event()
            context.add_callback(over.set)  # when the client is gone
            over.wait(60)
        elif self.script:
            code, *trailers = self.script.pop(0).split()
            context.set_trailing_metadata([*self.trailers, *(tuple(pair.split("=")) for pair in trailers)])
            if code != "OK":
                context.abort(grpc.StatusCode[code], "by order")
        return b"done"

    def stream(self, request, context):
        self.reply(request, context)
        if request == b"nothing":
            return
        yield b"1"
        if request == b"break":
            context.abort(grpc.StatusCode.UNAVAILABLE, "in the middle")
        yield b"2"

    def collect(self, requests, context):
        for request in requests:
            self.reply(request, context)
        return b"done"

    @property
    def calls(self):
        return len(self.received)

    @property
    def keys(self):
        return [metadata.get("idempotency-key") for metadata, _ in self.received]

    @property
    def times(self):
        return [left for _, left in self.received]


@pytest.fixture
def address_and_service():
    service = Service()
    handlers = {
        "Do": grpc.unary_unary_rpc_method_handler(service.reply),
        "List": grpc.unary_stream_rpc_method_handler(service.stream),
        "Send": grpc.stream_unary_rpc_method_handler(service.collect),
    }
    with futures.ThreadPoolExecutor(8) as pool:
        server = grpc.server(pool, handlers=[grpc.method_handlers_generic_handler("t.T", handlers)])
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        yield address, service
        server.stop(None).wait()


@pytest.fixture
def address(address_and_service):
    return address_and_service[0]


@pytest.fixture
def service(address_and_service):
    service = address_and_service[1]
    service.script, service.received = [], []
    service.held.clear()
    return service


@pytest.fixture
def channel_of(address):
    """Make channels with an interceptor, which are closed at the end."""
    channels = []

    def make(*args, **fields):
        channels.append(grpc.insecure_channel(address, OPTIONS))
        return grpc.intercept_channel(channels[-1], RetryInterceptor(*args, **fields))

    yield make
    for channel in channels:
        channel.close()


class Sync:
    """Calls of a sync channel, in one of its forms."""

    def __init__(self, address, form):
        self.address, self.form = address, form

    def unary(self, *args, request=b"", fields=None, **options):
        with grpc.insecure_channel(self.address, OPTIONS) as plain:
            call = grpc.intercept_channel(plain, RetryInterceptor(*args, **(fields or {}))).unary_unary(DO)
            return (
                call.future(request, **options).result()
                if self.form == "future"
                else call(request, **options)
            )

    def stream(self, *args, request=b"", fields=None, **options):
        with grpc.insecure_channel(self.address, OPTIONS) as plain:
            channel = grpc.intercept_channel(plain, RetryInterceptor(*args, **(fields or {})))
            return list(channel.unary_stream(LIST)(request, **options))


class Async:
    """Calls of a channel of grpc.aio."""

    def __init__(self, address):
        self.address = address

    def _run(self, args, fields, use):
        async def main():
            interceptors = retry_interceptors(*args, **(fields or {}))
            async with grpc.aio.insecure_channel(self.address, OPTIONS, interceptors=interceptors) as channel:
                return await use(channel)

        return asyncio.run(main())

    def unary(self, *args, request=b"", fields=None, **options):
        async def use(channel):
            return await channel.unary_unary(DO)(request, **options)

        return self._run(args, fields, use)

    def stream(self, *args, request=b"", fields=None, **options):
        async def use(channel):
            return [message async for message in channel.unary_stream(LIST)(request, **options)]

        return self._run(args, fields, use)


@pytest.fixture(params=["call", "future", "async"])
def calls(request, address):
    return Async(address) if request.param == "async" else Sync(address, request.param)


# In every form


def test_failures_without_effect_are_retried(calls, service, waits):
    service.script = ["RESOURCE_EXHAUSTED", "ABORTED"]
    assert calls.unary() == b"done"
    assert (service.calls, len(waits)) == (3, 2)


def test_a_pushback_of_the_server_is_the_wait(calls, service, waits):
    service.script = ["RESOURCE_EXHAUSTED grpc-retry-pushback-ms=3000"]
    calls.unary(fields={"base": 0.5})
    assert 3.0 <= waits[0] <= 3.5
    service.script = ["RESOURCE_EXHAUSTED grpc-retry-pushback-ms=-1"]
    with pytest.raises(grpc.RpcError):
        calls.unary()


def field(number, value):
    """Return a field of a message of Protocol Buffers: a number, or bytes with their length."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    return bytes([number << 3 | 2, len(value)]) + value


def test_retry_info_of_the_server_is_the_wait(calls, service, waits):
    duration = field(1, field(1, 7))  # RetryInfo.retry_delay.seconds
    detail = field(1, b"type.googleapis.com/google.rpc.RetryInfo") + field(2, duration)
    service.trailers = [("grpc-status-details-bin", field(1, 8) + field(3, detail))]
    service.script = ["RESOURCE_EXHAUSTED"]
    calls.unary(fields={"base": 0.5})
    assert 7.0 <= waits[0] <= 7.5


def test_a_call_that_may_have_acted_is_not_repeated(calls, service):
    service.script = ["UNAVAILABLE"]
    with pytest.raises(grpc.RpcError) as caught:
        calls.unary()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "gave up on t.T/Do" in caught.value.__notes__[0]
    assert "repeating this Do might act twice" in caught.value.__notes__[0]
    assert service.calls == 1


def test_idempotent_true_repeats_every_call(calls, service):
    service.script = ["UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED"]
    assert calls.unary(idempotent_policy()) == b"done"
    assert service.calls == 4


def idempotent_policy(**fields):
    return Policy(idempotent=True, **fields)


def test_a_key_of_the_policy_is_sent_with_each_attempt_and_allows_it(calls, service):
    service.script = ["UNAVAILABLE"]
    fields = {"idempotency_key": lambda rpc: rpc.request.decode(), "name": "pay"}
    assert calls.unary(request=b"17", fields=fields, metadata=(("a", "b"),)) == b"done"
    assert service.keys == ["pay:17", "pay:17"]
    assert service.received[1][0]["a"] == "b"


def test_a_key_of_the_caller_is_kept_and_allows_another_attempt(calls, service):
    service.script = ["UNAVAILABLE"]
    fields = {"idempotency_key": True}
    assert calls.unary(fields=fields, metadata=(("idempotency-key", "mine"),)) == b"done"
    assert service.keys == ["mine", "mine"]


def test_the_time_left_is_the_timeout_of_the_call(calls, service):
    calls.unary(fields={"timeout": 1000.0, "deadline": 2000.0})
    calls.unary(fields={"timeout": 3000.0, "deadline": 2000.0})
    calls.unary(fields={"timeout": 3000.0, "deadline": 2000.0}, timeout=500.0)
    calls.unary(timeout=500.0)
    for left, limit in zip(service.times, (1000, 2000, 500, 500), strict=True):
        assert limit - 400 < left < limit + 100  # gRPC rounds it


def test_an_enclosing_deadline_is_handed_on(calls, service):
    retry(deadline=1000.0)(lambda: calls.unary(timeout=5000.0))()
    assert 500 < service.times[0] < 1100


def test_the_timeout_of_the_caller_limits_all_attempts_together(calls, service):
    service.script = ["RESOURCE_EXHAUSTED grpc-retry-pushback-ms=30000"]
    with pytest.raises(grpc.RpcError) as caught:
        calls.unary(timeout=20.0)
    assert isinstance(caught.value, DeadlineExceeded)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert isinstance(caught.value.__cause__, grpc.RpcError)
    assert (str(caught.value), service.calls) == (caught.value.details(), 1)
    assert history(caught.value).attempts == 1


def test_an_enclosing_call_does_not_multiply_the_attempts(calls, service):
    service.script = ["ABORTED"] * 20
    with pytest.raises(grpc.RpcError):
        retry(lambda: calls.unary(fields={"attempts": 2}))()
    assert service.calls == 2


def test_a_fallback_is_the_response(calls, service):
    service.script = ["UNAVAILABLE"]
    assert calls.unary(fields={"fallback": lambda error: b"cached"}) == b"cached"


def test_until_rejects_a_response(calls, service):
    with pytest.raises(ResultRejected) as caught:
        calls.unary(idempotent_policy(attempts=2, until=lambda response: response == b"ready"))
    assert (caught.value.result, service.calls) == (b"done", 2)


def test_a_call_in_the_context_of_a_call_that_has_ended_has_no_limit(calls, service):
    contexts = []
    retry(deadline=1000.0)(lambda: contexts.append(copy_context()))()
    assert contexts[0].run(calls.unary) == b"done"
    assert service.times[0] is None or service.times[0] > 1_000_000


def test_a_stream_is_retried_until_the_first_message(calls, service):
    service.script = ["ABORTED", "ABORTED"]
    assert calls.stream(fields={"until": lambda message: False}) == [b"1", b"2"]
    assert service.calls == 3


def test_an_error_after_the_first_message_is_raised(calls, service):
    with pytest.raises(grpc.RpcError) as caught:
        calls.stream(idempotent_policy(), request=b"break")
    assert caught.value.details() == "in the middle"
    assert service.calls == 1


def test_a_stream_without_messages_is_no_failure(calls, service):
    assert calls.stream(request=b"nothing") == []
    assert service.calls == 1


def test_a_stream_that_fails_for_good_raises_its_error(calls, service):
    service.script = ["ABORTED"] * 2
    with pytest.raises(grpc.RpcError) as caught:
        calls.stream(fields={"attempts": 2})
    assert caught.value.code() is grpc.StatusCode.ABORTED
    assert history(caught.value).attempts == 2


def test_the_fallback_of_a_stream_is_its_messages(calls, service):
    service.script = ["UNAVAILABLE"]
    assert calls.stream(fields={"fallback": lambda error: [b"cached"]}) == [b"cached"]


def test_override_switches_retries_off_for_a_block(calls, service):
    service.script = ["ABORTED", "ABORTED"]
    with override(False), pytest.raises(grpc.RpcError):
        calls.unary()
    with override(attempts=1), pytest.raises(grpc.RpcError):
        calls.unary()
    assert service.calls == 2


def test_a_refusal_by_a_guard_is_an_rpc_error(calls, service):
    service.script = ["UNAVAILABLE"]
    breakers = Registry(lambda service: CircuitBreaker(failures=1, name=service))
    for kind in (grpc.RpcError, CircuitOpen):
        with pytest.raises(kind) as caught:
            calls.unary(fields={"breaker": breakers})
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert list(breakers) == ["t.T"]
    bulkhead = Bulkhead(1, queue=0)
    with bulkhead, pytest.raises(BulkheadFull) as caught:
        calls.unary(fields={"bulkhead": bulkhead})
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), str(copy), copy.code()) == (
        type(caught.value),
        str(caught.value),
        caught.value.code(),
    )


# Sync


def test_the_call_beside_the_response_is_that_of_the_last_attempt(channel_of, service):
    service.script = ["ABORTED", "OK a=b"]
    response, call = channel_of().unary_unary(DO).with_call(b"")
    assert (response, call.code(), service.calls) == (b"done", grpc.StatusCode.OK, 2)
    assert dict(call.trailing_metadata()) == {"a": "b"}


def test_the_call_of_a_fallback_has_succeeded(channel_of, service):
    service.script = ["UNAVAILABLE"]
    response, call = channel_of(fallback=lambda error: b"cached").unary_unary(DO).with_call(b"")
    assert (response, call.result(), call.code(), call.details()) == (
        b"cached",
        b"cached",
        grpc.StatusCode.OK,
        "",
    )
    assert (call.exception(), call.traceback(), call.time_remaining()) == (None, None, None)
    assert (call.initial_metadata(), call.trailing_metadata()) == ((), ())
    assert (call.done(), call.running(), call.cancelled(), call.cancel()) == (True, False, False, False)
    assert not call.add_callback(print)
    seen = []
    call.add_done_callback(seen.append)
    assert seen == [call]


class Watching(grpc.UnaryUnaryClientInterceptor):
    """An interceptor of somebody else, which looks at the outcome."""

    def __init__(self):
        self.seen = []

    def intercept_unary_unary(self, continuation, client_call_details, request):
        call = continuation(client_call_details, request)
        self.seen.append((call.code(), call.exception(), call.traceback()))
        return call


def test_interceptors_around_it_see_our_errors_as_calls(channel_of, service):
    watching = Watching()
    channel = grpc.intercept_channel(channel_of(bulkhead=(bulkhead := Bulkhead(1, queue=0))), watching)
    with bulkhead, pytest.raises(BulkheadFull) as caught:
        channel.unary_unary(DO)(b"")
    ((code, error, trace),) = watching.seen
    assert (code, error) == (grpc.StatusCode.RESOURCE_EXHAUSTED, caught.value)
    assert trace is not None


def test_a_stream_of_requests_is_sent_once(channel_of, service):
    service.script = ["ABORTED"]
    with pytest.raises(grpc.RpcError):
        channel_of().stream_unary(SEND)(iter([b"1", b"2"]))
    assert service.calls == 1


def test_a_future_has_the_methods_of_a_call(channel_of, service):
    service.script = ["ABORTED", "OK a=b"]
    future = channel_of().unary_unary(DO).future(b"")
    over = threading.Event()
    future.add_done_callback(lambda done: done is future and over.set())
    assert (future.result(60), over.wait(60)) == (b"done", True)
    assert (future.code(), future.exception(), future.traceback()) == (grpc.StatusCode.OK, None, None)
    assert dict(future.trailing_metadata()) == {"a": "b"}
    assert (future.done(), future.running(), future.cancelled(), future.is_active()) == (
        True,
        False,
        False,
        False,
    )
    assert not future.cancel()
    assert not hasattr(future, "_anything")


def test_a_future_that_fails_has_the_code_of_its_error(channel_of, service):
    service.script = ["UNAVAILABLE"]
    future = channel_of().unary_unary(DO).future(b"")
    assert future.exception(60).code() is future.code() is grpc.StatusCode.UNAVAILABLE
    assert future.traceback() is not None


def test_an_error_that_is_not_of_grpc_has_the_code_unknown(channel_of, service):
    channel = channel_of(attempts=1, until=lambda response: False)
    future = channel.unary_unary(DO).future(b"")
    assert future.code() is grpc.StatusCode.UNKNOWN
    assert "rejected by until" in future.details()
    stream = channel_of(idempotency_key=lambda rpc: 1 / 0).unary_stream(LIST)(b"")
    assert stream.code() is grpc.StatusCode.UNKNOWN


def test_a_future_of_a_fallback_has_its_response(channel_of, service):
    service.script = ["UNAVAILABLE"]
    assert channel_of(fallback=lambda error: b"cached").unary_unary(DO).future(b"").result(60) == b"cached"


def test_a_future_can_be_waited_for_and_cancelled(channel_of, service):
    future = channel_of(idempotent=True).unary_unary(DO).future(b"hold")
    assert service.held.wait(60)
    with pytest.raises(grpc.FutureTimeoutError):
        future.result(0.01)
    assert future.running()
    assert future.cancel()
    assert (future.cancelled(), future.code()) == (True, grpc.StatusCode.CANCELLED)
    with pytest.raises(grpc.FutureCancelledError):
        future.result()
    assert service.calls == 1


def test_a_future_that_is_cancelled_during_a_wait_makes_no_other_attempt(channel_of, service):
    waiting, over = threading.Event(), threading.Event()

    def recover(error):
        waiting.set()
        over.wait(60)

    service.script = ["ABORTED"] * 9
    future = channel_of(recover=recover).unary_unary(DO).future(b"")
    assert waiting.wait(60)
    assert future.cancel()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "<t.T/Do>"]
    over.set()
    thread.join(60)
    assert service.calls == 1


def test_a_call_that_is_cancelled_while_an_attempt_begins_is_cancelled(channel_of, service):
    stream = channel_of(idempotent=True).unary_stream(LIST)(b"hold")
    inner = stream._rpc._continuation

    def late(details, request):
        call = inner(details, request)
        assert service.held.wait(60)
        stream.cancel()
        return call

    stream._rpc._continuation = late
    with pytest.raises(grpc.RpcError) as caught:
        next(stream)
    assert caught.value.code() is grpc.StatusCode.CANCELLED


def test_a_stream_has_the_methods_of_its_last_call(channel_of, service):
    service.script = ["ABORTED"]
    stream = channel_of().unary_stream(LIST)(b"")
    assert service.calls == 0
    assert stream.initial_metadata() is not None
    assert service.calls == 2
    assert list(stream) == [b"1", b"2"]
    assert stream.code() is grpc.StatusCode.OK
    assert not hasattr(stream, "_anything")


def test_a_stream_that_failed_has_the_code_of_its_error_and_no_messages(channel_of, service):
    service.script = ["UNAVAILABLE"]
    stream = channel_of().unary_stream(LIST)(b"")
    assert stream.code() is grpc.StatusCode.UNAVAILABLE


def test_a_stream_can_be_cancelled_before_and_after_it_has_begun(channel_of, service):
    unused = channel_of().unary_stream(LIST)(b"")
    unused.cancel()
    with pytest.raises(grpc.RpcError) as caught:
        next(unused)
    assert (caught.value.code(), service.calls) == (grpc.StatusCode.CANCELLED, 0)
    stream = channel_of().unary_stream(LIST)(b"")
    assert next(stream) == b"1"
    stream.cancel()


def test_the_policy_of_an_interceptor_can_be_read():
    assert RetryInterceptor(attempts=6).policy == Policy(attempts=6)
    with pytest.raises(TypeError, match=r"RetryInterceptor\(\) takes a Policy or fields, got 3"):
        RetryInterceptor(3)


# Async


def test_an_async_call_that_is_cancelled_ends_its_attempt(address, service):
    async def main():
        interceptors = retry_interceptors(idempotent=True)
        async with grpc.aio.insecure_channel(address, OPTIONS, interceptors=interceptors) as channel:
            call = channel.unary_unary(DO)(b"hold")
            task = asyncio.ensure_future(call)
            await asyncio.to_thread(service.held.wait, 60)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert service.calls == 1


def test_an_async_call_has_the_metadata_of_its_last_attempt(address, service):
    service.script = ["ABORTED", "OK a=b"]

    async def main():
        async with grpc.aio.insecure_channel(address, OPTIONS, interceptors=retry_interceptors()) as channel:
            call = channel.unary_unary(DO)(b"")
            await call
            assert dict(await call.trailing_metadata()) == {"a": "b"}
            stream = channel.unary_stream(LIST)(b"")
            assert [message async for message in stream] == [b"1", b"2"]
            assert await stream.code() is grpc.StatusCode.OK

    asyncio.run(main())
