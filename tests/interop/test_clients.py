"""One test for each HTTP client of `redouble.clients`, against a real server. The rest runs in ``.ci/run long``."""

from __future__ import annotations

import pytest

from interop.server import hang_up, kept, reset
from interop.support import left_out
from redouble import history
from redouble.testing import no_waits


@pytest.mark.parametrize("name", ["httpx", "httpx2", "requests", "aiohttp", "urllib3"])
def test_every_client_is_tried(name):
    left_out(name)


def test_a_get_is_retried_on_one_connection_and_a_post_is_not_sent_twice(connect, web):
    page = web.page(kept(503, ("Retry-After", "2")), kept(500), hang_up, reset, kept(200, body=b"done"))
    post = web.page(kept(503))
    client = connect(connections=1, attempts=5)
    with no_waits() as waits:
        assert client.send("GET", page.url).body == b"done"
        last = client.send("POST", post.url, b"order")
    assert page.connections == [0, 0, 0, 1, 2]
    assert (len(waits), 2.0 <= waits[0] <= 2.1) == (4, True)
    assert (last.status, len(post.seen)) == (503, 1)
    assert history(last.raw).attempts == 1
