"""Functions that stand in for those of HTTP and Redis clients: a frame is known by function and module."""

import textwrap
from types import SimpleNamespace as Thing

import pytest

from redouble.classify._requests import find_requests

KEY = {"Idempotency-Key": "order-1"}


def client(module, source, **names):
    """Return the last function of a source, as one of that module; ``fail()`` in it raises a lost connection."""
    scope = {"__name__": module, "fail": lost, **names}
    exec(textwrap.dedent(source), scope)
    return scope[list(scope)[-1]]


def lost(kind=ConnectionResetError):
    """Raise a lost connection."""
    raise kind("lost")


def failure_of(function, *args, **kwargs):
    """Return the error that a function raises."""
    with pytest.raises(BaseException) as caught:
        function(*args, **kwargs)
    return caught.value


NAMED = "def {function}(method, url, headers=None, body=None): fail()"
HELD = "def {function}({variable}): fail()"

urlopen = client("urllib3.connectionpool", NAMED.format(function="urlopen"))
send = client("httpx._client", HELD.format(function="send", variable="request"))
redis = client("redis.client", "def execute_command(*args): fail()")


def request(method, url="https://example.org/orders", headers=None, **others):
    """Return a request, as clients of HTTP hold it."""
    return Thing(method=method, url=url, headers=headers or {}, **others)


def judged(error, **options):
    """Return whether a request is visible, and which one may not be repeated."""
    found = find_requests(error, **options)
    return bool(found.sent), found.unrepeatable and (found.unrepeatable.name or found.unrepeatable.method)
