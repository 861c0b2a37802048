"""`redouble.clients.grpc` with a real server and real channels, sync and ``grpc.aio``."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict
from concurrent import futures

import pytest

from interop.processes import free_port
from interop.support import in_long_mode
from interop.test_grpc import details
from redouble import DeadlineExceeded, history
from redouble.testing import no_waits

grpc = pytest.importorskip("grpc", reason="grpcio is not installed: the extra 'interop' is needed")

from redouble.clients.grpc import RetryInterceptor, retry_interceptors  # noqa: E402

OPTIONS = [("grpc.enable_retries", 0)]
BUSY = grpc.StatusCode.RESOURCE_EXHAUSTED
AWAY = grpc.StatusCode.UNAVAILABLE


class Service:
    """Fails as its script says, one entry for each call, then answers. ``choose`` decides instead, if it is set."""

    def __init__(self):
        self.script, self.keys, self.left, self.choose = [], [], [], None
        self.lock = threading.Lock()

    def fail(self, request, context):
        with self.lock:
            self.keys.append(dict(context.invocation_metadata()).get("idempotency-key"))
            self.left.append(context.time_remaining())
            found = self.choose(request, self.keys[-1]) if self.choose else self.script and self.script.pop(0)
        if found:
            code, *trailers = found
            context.set_trailing_metadata(tuple(trailers))
            context.abort(code, "by order")

    def once(self, request, context):
        self.fail(request, context)
        if request == b"slow":
            time.sleep(1.0)
        return b"done"

    def stream(self, request, context):
        self.fail(request, context)
        yield b"one"
        if request == b"break":
            context.abort(AWAY, "after the first message")
        yield b"two"


def serve(service, pool, port=0):
    """Start a server. Return it and its address."""
    handlers = {
        "Once": grpc.unary_unary_rpc_method_handler(service.once),
        "Stream": grpc.unary_stream_rpc_method_handler(service.stream),
    }
    options = [("grpc.so_reuseport", 0)]
    generic = grpc.method_handlers_generic_handler("t.T", handlers)
    server = grpc.server(pool, handlers=[generic], options=options)
    address = f"127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
    server.start()
    return server, address


@pytest.fixture
def pool():
    with futures.ThreadPoolExecutor(16) as pool:
        yield pool


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def address(service, pool):
    server, address = serve(service, pool)
    yield address
    server.stop(None).wait()


class Sync:
    """A channel with the interceptor. ``stream`` reads all messages."""

    def __init__(self, address, **fields):
        self._plain = grpc.insecure_channel(address, OPTIONS)
        self._channel = grpc.intercept_channel(self._plain, RetryInterceptor(**{"base": 0.01, **fields}))

    def once(self, request=b"", timeout=None):
        return self._channel.unary_unary("/t.T/Once")(request, timeout=timeout)

    def stream(self, request=b"", timeout=None, into=None):
        messages = [] if into is None else into
        for message in self._channel.unary_stream("/t.T/Stream")(request, timeout=timeout):
            messages.append(message)
        return messages

    def all_once(self, requests):
        with futures.ThreadPoolExecutor(50) as threads:
            return list(threads.map(self.once, requests))

    def close(self):
        self._plain.close()


class Aio:
    """The same with ``grpc.aio``, on a loop of its own for each call."""

    def __init__(self, address, **fields):
        self._address, self._fields = address, {"base": 0.01, **fields}

    def _run(self, use):
        async def main():
            interceptors = retry_interceptors(**self._fields)
            async with grpc.aio.insecure_channel(
                self._address, OPTIONS, interceptors=interceptors
            ) as channel:
                return await use(channel)

        return asyncio.run(main())

    def once(self, request=b"", timeout=None):
        async def use(channel):
            return await channel.unary_unary("/t.T/Once")(request, timeout=timeout)

        return self._run(use)

    def stream(self, request=b"", timeout=None, into=None):
        messages = [] if into is None else into

        async def use(channel):
            async for message in channel.unary_stream("/t.T/Stream")(request, timeout=timeout):
                messages.append(message)
            return messages

        return self._run(use)

    def all_once(self, requests):
        async def use(channel):
            call = channel.unary_unary("/t.T/Once")

            async def one(request):
                return await call(request)

            return await asyncio.gather(*[one(request) for request in requests])

        return self._run(use)

    def close(self):
        pass


@pytest.fixture(params=[Sync, Aio], ids=["sync", "aio"])
def connect(request, address):
    """Return a function that opens a channel with retries."""
    made = []

    def connect(**fields):
        made.append(request.param(fields.pop("at", address), **fields))
        return made[-1]

    yield connect
    for each in made:
        each.close()


@pytest.fixture(params=["once", "stream"])
def kind(request):
    return request.param


def test_a_call_and_a_stream_are_retried_and_the_pushback_is_the_wait(connect, service):
    script = [(BUSY, ("grpc-retry-pushback-ms", "2500")), (grpc.StatusCode.ABORTED,)]
    client = connect()
    with no_waits() as waits:
        service.script = script[:]
        assert client.once() == b"done"
        service.script = script[:]
        assert client.stream() == [b"one", b"two"]
    assert len(service.keys) == 6
    assert [2.5 <= waits[0] <= 2.52, 2.5 <= waits[2] <= 2.52] == [True, True]


@in_long_mode
def test_retry_info_is_the_wait(connect, service, kind):
    service.script = [(BUSY, ("grpc-status-details-bin", details(8, seconds=34, nanos=500_000_000)))]
    with no_waits() as waits:
        assert getattr(connect(), kind)()
    assert 34.5 <= waits[0] <= 34.52


@in_long_mode
def test_a_pushback_that_forbids_a_retry_is_obeyed(connect, service, kind):
    service.script = [(BUSY, ("grpc-retry-pushback-ms", "-1"))]
    with no_waits(), pytest.raises(grpc.RpcError) as caught:
        getattr(connect(), kind)()
    assert (caught.value.code(), len(service.keys)) == (BUSY, 1)


@in_long_mode
def test_a_call_that_may_have_acted_is_sent_once_unless_that_is_safe(connect, service, kind):
    service.script = [(AWAY,)]
    with no_waits(), pytest.raises(grpc.RpcError):
        getattr(connect(), kind)()
    assert len(service.keys) == 1
    service.script = [(AWAY,)]
    with no_waits():
        assert getattr(connect(idempotent=True), kind)()
    assert len(service.keys) == 3


@in_long_mode
def test_a_stream_is_not_retried_after_its_first_message(connect, service):
    messages = []
    with no_waits(), pytest.raises(grpc.RpcError) as caught:
        connect(idempotent=True).stream(b"break", into=messages)
    assert (messages, caught.value.code(), len(service.keys)) == ([b"one"], AWAY, 1)


@in_long_mode
def test_the_deadline_is_the_timeout_of_the_call(connect, service, kind):
    assert getattr(connect(deadline=20.0), kind)()
    assert 15 < service.left[0] <= 20.1


@in_long_mode
def test_a_call_that_takes_too_long_ends_with_the_deadline(connect, service):
    began = time.monotonic()
    with pytest.raises(grpc.RpcError) as caught:
        connect(deadline=0.3, idempotent=True).once(b"slow")
    assert isinstance(caught.value, DeadlineExceeded)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - began < 0.9


@in_long_mode
def test_the_timeout_of_the_caller_limits_all_attempts(connect, service, kind):
    service.script = [(BUSY,)] * 100
    began = time.monotonic()
    with pytest.raises(grpc.RpcError):
        getattr(connect(attempts=100, base=0.1, floor=0.1), kind)(timeout=0.5)
    assert time.monotonic() - began < 3
    assert 1 < len(service.keys) < 10
    assert service.left == sorted(service.left, reverse=True)


@in_long_mode
def test_a_server_that_comes_up_late_is_reached(connect, service, pool, kind):
    port, servers = free_port(), []
    timer = threading.Timer(0.3, lambda: servers.append(serve(service, pool, port)[0]))
    timer.start()
    try:
        client = connect(at=f"127.0.0.1:{port}", attempts=200, base=0.05, cap=0.1)
        assert getattr(client, kind)()
        assert len(service.keys) == 1
    finally:
        timer.join()
        servers[0].stop(None).wait()


@in_long_mode
def test_the_last_error_is_that_of_the_server_with_its_history(connect, service, kind):
    service.script = [(BUSY,)] * 10
    with no_waits(), pytest.raises(grpc.RpcError) as caught:
        getattr(connect(attempts=3), kind)()
    assert (caught.value.code(), history(caught.value).attempts, len(service.keys)) == (BUSY, 3, 3)


@in_long_mode
def test_of_many_calls_each_has_its_own_key_in_all_attempts(connect, service):
    seen, keys = Counter(), defaultdict(set)

    def every_third(request, key):
        seen[request] += 1
        keys[request].add(key)
        return (AWAY,) if sum(seen.values()) % 3 == 0 else None

    service.choose = every_third
    requests = [str(number).encode() for number in range(300)]
    with no_waits(everywhere=True):
        assert connect(attempts=20, idempotency_key=True, logger=False).all_once(requests) == [b"done"] * 300
    assert max(seen.values()) > 1
    assert {len(each) for each in keys.values()} == {1}
    assert len({key for each in keys.values() for key in each}) == 300


@in_long_mode
def test_of_many_calls_that_may_act_none_is_sent_twice(connect, service):
    seen = Counter()

    def every_third(request, key):
        seen[request] += 1
        return (AWAY,) if sum(seen.values()) % 3 == 0 else None

    service.choose = every_third

    def count_failures(client):
        failures = 0
        for number in range(30):
            try:
                client.once(str(number).encode())
            except grpc.RpcError:
                failures += 1
        return failures

    with no_waits():
        assert count_failures(connect(attempts=20, logger=False)) == 10
    assert (len(seen), set(seen.values())) == (30, {1})
