"""`redouble.clients.wsgi`, without a server."""

from __future__ import annotations

import contextvars
import io
from wsgiref.util import FileWrapper
from wsgiref.validate import validator

import pytest

from redouble.clients.wsgi import DeadlineMiddleware
from redouble.context import outgoing_headers
from redouble.errors import DeadlineExceeded

LONG = {"HTTP_X_REQUEST_TIMEOUT_MS": "100000", "HTTP_X_RETRY_ATTEMPT": "3", "HTTP_IDEMPOTENCY_KEY": "abc"}
NOTHING_LEFT = {"HTTP_X_REQUEST_TIMEOUT_MS": "0"}
BODY = b"The time that the client gave this request is up.\n"


class Server:
    """Calls an app as a server does, and keeps what it began a response with."""

    def __init__(self, app, environ=LONG):
        self.began = []
        self.environ = {"REQUEST_METHOD": "GET", **environ}
        self.body = DeadlineMiddleware(app)(self.environ, self.start)

    def start(self, status, headers, exc_info=None):
        self.began.append((status, dict(headers)))
        return lambda data: None

    def read(self):
        try:
            return b"".join(self.body)
        finally:
            if hasattr(self.body, "close"):
                self.body.close()

    @property
    def statuses(self):
        return [status for status, _ in self.began]


def ok(start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])


def out_of_time():
    raise DeadlineExceeded("no time", attempts=1, elapsed=1.0)


def test_the_app_knows_the_deadline_and_the_attempt_of_the_client_and_not_its_key():
    seen = []

    def app(environ, start_response):
        seen.append(outgoing_headers())
        ok(start_response)
        return [b"body"]

    assert Server(app).body == [b"body"]
    assert seen[0].keys() == {"X-Retry-Attempt", "X-Request-Timeout-Ms"}
    assert seen[0]["X-Retry-Attempt"] == "3"
    assert 0 < int(seen[0]["X-Request-Timeout-Ms"]) <= 100_000
    assert outgoing_headers() == {}


def test_the_deadline_holds_while_the_body_is_made_and_closed_and_not_in_between():
    seen = []

    class Body:
        def __iter__(self):
            seen.append("X-Request-Timeout-Ms" in outgoing_headers())
            yield b"one"
            seen.append("X-Request-Timeout-Ms" in outgoing_headers())
            yield b"two"

        def close(self):
            seen.append("X-Request-Timeout-Ms" in outgoing_headers())
            self.later = contextvars.copy_context()

    body = Body()

    def app(environ, start_response):
        ok(start_response)
        return body

    server = Server(app)
    assert iter(server.body) is server.body
    assert next(server.body) == b"one"
    assert outgoing_headers() == {}
    assert server.read() == b"two"
    assert seen == [True, True, True]
    assert outgoing_headers() == {}
    assert body.later.run(outgoing_headers) == {}


def test_the_deadline_ends_if_closing_the_body_fails():
    class Broken:
        def __iter__(self):
            return iter([b"body"])

        def close(self):
            self.context = contextvars.copy_context()
            raise OSError("broken")

    broken = Broken()

    def app(environ, start_response):
        ok(start_response)
        return broken

    server = Server(app)
    with pytest.raises(OSError, match="broken"):
        server.read()
    assert broken.context.run(outgoing_headers) == {}
    server.body._request.end()  # a second end does nothing


def test_a_body_without_close_and_a_request_without_our_headers_pass():
    def app(environ, start_response):
        ok(start_response)
        return iter([b"a", b"b"])

    server = Server(app, {})
    assert (server.read(), server.statuses) == (b"ab", ["200 OK"])


@pytest.mark.parametrize("body", [[b"a", b"b"], (b"a",), FileWrapper(io.BytesIO(b"file"))])
def test_lists_and_files_are_handed_to_the_server_as_they_are(body):
    def app(environ, start_response):
        ok(start_response)
        return body

    assert Server(app, {**LONG, "wsgi.file_wrapper": FileWrapper}).body is body


def test_an_app_is_not_called_when_no_time_is_left():
    server = Server(None, NOTHING_LEFT)
    assert (server.body, server.statuses) == ([BODY], ["504 Gateway Timeout"])
    assert server.began[0][1]["Content-Length"] == str(len(BODY))
    assert outgoing_headers() == {}


def test_a_head_request_has_no_body():
    assert Server(None, {**NOTHING_LEFT, "REQUEST_METHOD": "HEAD"}).read() == b""


def test_deadline_exceeded_before_the_response_began_is_504():
    def app(environ, start_response):
        out_of_time()

    server = Server(app)
    assert (server.read(), server.statuses) == (BODY, ["504 Gateway Timeout"])


def test_deadline_exceeded_in_a_generator_before_it_began_the_response_is_504():
    def app(environ, start_response):
        out_of_time()
        yield b"never"

    server = Server(app)
    assert (server.read(), server.statuses) == (BODY, ["504 Gateway Timeout"])
    assert outgoing_headers() == {}


@pytest.mark.parametrize("environ", [LONG, {}])
def test_deadline_exceeded_after_the_response_began_is_raised(environ):
    def app(environ, start_response):
        ok(start_response)
        yield b"part"
        out_of_time()

    server = Server(app, environ)
    with pytest.raises(DeadlineExceeded, match="no time"):
        server.read()
    assert server.statuses == ["200 OK"]


def test_deadline_exceeded_in_a_request_without_a_deadline_is_raised():
    with pytest.raises(DeadlineExceeded, match="no time"):
        Server(lambda environ, start_response: out_of_time(), {})
    assert outgoing_headers() == {}


def test_other_errors_pass_and_end_the_deadline():
    contexts = []

    def app(environ, start_response):
        contexts.append(contextvars.copy_context())
        raise LookupError("broken")

    with pytest.raises(LookupError, match="broken"):
        Server(app)
    assert outgoing_headers() == contexts[0].run(outgoing_headers) == {}


def test_the_middleware_keeps_the_rules_of_wsgi():
    def app(environ, start_response):
        ok(start_response)
        return iter([b"body"])

    environ = {
        "REQUEST_METHOD": "GET", "SERVER_NAME": "x", "SERVER_PORT": "80", "SCRIPT_NAME": "", "PATH_INFO": "/",
        "QUERY_STRING": "", "wsgi.version": (1, 0), "wsgi.url_scheme": "http", "wsgi.input": io.BytesIO(),
        "wsgi.errors": io.StringIO(), "wsgi.multithread": False, "wsgi.multiprocess": False,
        "wsgi.run_once": False, **LONG,
    }  # fmt: skip
    body = validator(DeadlineMiddleware(validator(app)))(environ, lambda *args: lambda data: None)
    assert list(body) == [b"body"]
    body.close()
