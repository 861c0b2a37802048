"""grpcio, sync and async, against a real gRPC server that fails as a test asks for."""

from __future__ import annotations

import asyncio
import threading
from concurrent import futures
from typing import TYPE_CHECKING, Any

import pytest

from interop.server import Web, status
from interop.support import error_of, judged, permanent, transient, unprocessed
from redouble import retry
from redouble.testing import no_waits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Call = Callable[..., Any]

grpc = pytest.importorskip("grpc", reason="grpcio is not installed: the extra 'interop' is needed")


class Failing:
    """A service whose only method fails with the errors of a script, and then succeeds."""

    def __init__(self) -> None:
        self.script: list[tuple[Any, str, Any]] = []
        self.calls = 0

    def answer(self, request: bytes, context: Any) -> bytes:
        self.calls += 1
        if request == b"slowly":
            over = threading.Event()
            context.add_callback(over.set)  # when the client has had enough
            over.wait(60)
        if self.script:
            code, details, trailers = self.script.pop(0)
            context.set_trailing_metadata(trailers)
            context.abort(code, details)
        return b"done"


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Failing, str]]:
    """The service and its address."""
    service = Failing()
    handler = grpc.unary_unary_rpc_method_handler(service.answer)  # bytes in, bytes out
    with futures.ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool, handlers=[grpc.method_handlers_generic_handler("t.T", {"Do": handler})])
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        yield service, address
        server.stop(None).wait()


@pytest.fixture
def service(server: tuple[Failing, str]) -> Failing:
    """The service, with an empty script."""
    server[0].script.clear()
    server[0].calls = 0
    return server[0]


# Its own retries, which a service may ask for, are not what is tested here.
OPTIONS = [("grpc.enable_retries", 0)]


def plain(address: str, request: bytes = b"", timeout: float = 10.0, credentials: Any = None) -> Any:
    with (
        grpc.insecure_channel(address, OPTIONS)
        if credentials is None
        else grpc.secure_channel(address, credentials, OPTIONS)
    ) as channel:
        return channel.unary_unary("/t.T/Do")(request, timeout=timeout)


def on_a_loop(address: str, request: bytes = b"", timeout: float = 10.0, credentials: Any = None) -> Any:
    async def main() -> Any:
        async with (
            grpc.aio.insecure_channel(address, OPTIONS)
            if credentials is None
            else grpc.aio.secure_channel(address, credentials, OPTIONS)
        ) as channel:
            return await channel.unary_unary("/t.T/Do")(request, timeout=timeout)

    return asyncio.run(main())


@pytest.fixture(params=[plain, on_a_loop], ids=["sync", "async"])
def call(request: pytest.FixtureRequest, server: tuple[Failing, str]) -> Call:
    """Call the service, or another address."""

    def call(message: bytes = b"", address: str = server[1], **options: Any) -> Any:
        return request.param(address, message, **options)

    return call


CODES = {
    "CANCELLED": permanent(),
    "INVALID_ARGUMENT": permanent(),
    "NOT_FOUND": permanent(),
    "ALREADY_EXISTS": permanent(),
    "PERMISSION_DENIED": permanent(),
    "UNAUTHENTICATED": permanent("unauthorized"),
    "FAILED_PRECONDITION": permanent(),
    "OUT_OF_RANGE": permanent(),
    "UNIMPLEMENTED": permanent(),
    "DATA_LOSS": permanent(),
    "UNAVAILABLE": transient("unavailable"),
    "DEADLINE_EXCEEDED": transient("timeout"),
    "INTERNAL": transient("server_error"),
    "RESOURCE_EXHAUSTED": unprocessed("rate_limited"),
    "ABORTED": unprocessed("conflict"),
}


@pytest.mark.parametrize("code", CODES)
def test_a_code_tells_what_may_be_repeated(call: Call, service: Failing, code: str) -> None:
    service.script = [(grpc.StatusCode[code], "by order", ())]
    error: Any = error_of(call)
    assert error.code().name == code
    assert judged(error) == CODES[code]


def test_an_error_in_the_service_is_not_known_to_pass(call: Call, service: Failing) -> None:
    service.script = [(grpc.StatusCode.UNKNOWN, "an exception that nobody caught", ())]
    assert not judged(error_of(call)).retryable


def test_a_refused_connection_is_unprocessed(call: Call, web: Web) -> None:
    error: Any = error_of(call, address=f"127.0.0.1:{web.closed_port}")
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert judged(error) == unprocessed("connection")


def test_a_certificate_that_nobody_trusts_is_permanent_although_it_is_called_unavailable(
    call: Call, secure_web: Web
) -> None:
    address = secure_web.secure_page(status(200)).url.split("/")[2]
    error: Any = error_of(call, address=address, credentials=grpc.ssl_channel_credentials())
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert judged(error) == permanent()


def test_a_deadline_that_passes_leaves_the_effect_unknown(call: Call, service: Failing) -> None:
    error: Any = error_of(call, b"slowly", timeout=0.1)
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert judged(error) == transient("timeout")


def test_a_message_that_is_too_large_is_permanent_although_it_is_called_exhausted(
    call: Call, service: Failing
) -> None:
    error: Any = error_of(call, b"x" * 5_000_000)
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert not judged(error).retryable


@pytest.mark.parametrize("code", ["RESOURCE_EXHAUSTED", "UNAVAILABLE"])
def test_a_pushback_is_the_delay(call: Call, service: Failing, code: str) -> None:
    service.script = [(grpc.StatusCode[code], "later", (("grpc-retry-pushback-ms", "2500"),))]
    found = judged(error_of(call))
    assert (found.retryable, found.retry_after) == (True, 2.5)


@pytest.mark.parametrize("value", ["-1", "soon"])
def test_a_pushback_that_is_no_delay_forbids_the_retry(call: Call, service: Failing, value: str) -> None:
    service.script = [(grpc.StatusCode.UNAVAILABLE, "never", (("grpc-retry-pushback-ms", value),))]
    assert not judged(error_of(call)).retryable


def test_retry_info_in_the_details_is_the_delay(call: Call, service: Failing) -> None:
    trailers = (("grpc-status-details-bin", details(8, seconds=34, nanos=500_000_000)),)
    service.script = [(grpc.StatusCode.RESOURCE_EXHAUSTED, "quota", trailers)]
    assert judged(error_of(call)) == unprocessed("rate_limited", retry_after=34.5)


def test_a_call_waits_as_long_as_the_server_asks_and_recovers(call: Call, service: Failing) -> None:
    service.script = [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "quota", (("grpc-retry-pushback-ms", "3000"),)),
        (grpc.StatusCode.ABORTED, "try the transaction again", ()),
        (grpc.StatusCode.UNAVAILABLE, "restarting", (("grpc-status-details-bin", details(14, seconds=7)),)),
    ]
    with no_waits() as waits:
        assert retry(base=0.5)(call)() == b"done"
    assert service.calls == 4
    assert 3 <= waits[0] <= 3.5
    assert 7 <= waits[2] <= 7.5


def test_a_call_with_unknown_effect_is_not_repeated_if_declared_not_idempotent(
    call: Call, service: Failing
) -> None:
    service.script = [(grpc.StatusCode.UNAVAILABLE, "connection broke", ())]
    with no_waits() as waits, pytest.raises(grpc.RpcError) as caught:
        retry(idempotent=False)(call)()
    assert (service.calls, waits) == (1, [])
    assert any("idempotent=False" in note for note in caught.value.__notes__)


def test_an_argument_that_is_invalid_is_sent_once(call: Call, service: Failing) -> None:
    service.script = [(grpc.StatusCode.INVALID_ARGUMENT, "no", ())]
    with no_waits(), pytest.raises(grpc.RpcError):
        retry(call)()
    assert service.calls == 1


def details(code: int, seconds: int, nanos: int = 0) -> bytes:
    """Return an encoded google.rpc.Status with a google.rpc.RetryInfo, without protobuf."""
    duration = number(1, seconds) + number(2, nanos)
    kind = b"type.googleapis.com/google.rpc.RetryInfo"
    retry_info = text(1, kind) + text(2, text(1, duration))
    return number(1, code) + text(2, b"by order") + text(3, retry_info)


def number(field: int, value: int) -> bytes:
    return bytes([field << 3]) + varint(value)


def text(field: int, value: bytes) -> bytes:
    return bytes([field << 3 | 2]) + varint(len(value)) + value


def varint(value: int) -> bytes:
    low = [value >> shift & 0x7F for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes([part | 0x80 for part in low[:-1]] + low[-1:])
