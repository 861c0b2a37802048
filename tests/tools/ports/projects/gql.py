"""gql: async tenacity decorators around bound methods; one retries for ever."""

from __future__ import annotations

from ports.edits import Edit, Port

CLIENT = "gql/client.py"
INIT = "ReconnectingAsyncClientSession.__init__"

PORT = Port(
    name="gql",
    version="4.4.0",
    sha256="e54fe470d51347ceb46a04fc88c5553695d2d8c86b05bef13aeee8b8f2d5f61a",
    edits=(
        Edit(
            CLIENT,
            "import logging",
            """
            import logging
            import math
            """,
        ),
        Edit(
            CLIENT,
            "from tenacity import",
            """
            from redouble import retry
            from redouble.backoff import exponential
            """,
        ),
        Edit(
            CLIENT,
            "self.retry_connect = retry(",
            "self.retry_connect = retry(on=Exception, attempts=math.inf, backoff=exponential, cap=60)",
            inside=INIT,
        ),
        Edit(
            CLIENT,
            "self.retry_execute = retry(",
            """
            self.retry_execute = retry(
                on=lambda error: not isinstance(error, TransportQueryError),
                idempotent=True,
                attempts=5,
                backoff=exponential,
            )
            """,
            inside=INIT,
        ),
    ),
    tests=(
        "tests/test_aiohttp.py",  # sessions that reconnect, over aiohttp
        "tests/test_httpx_async.py",  # the same over httpx
        "-k",
        "reconnecting",
    ),
)
