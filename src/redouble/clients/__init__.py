"""Retries for a whole client: transports, adapters, middleware and interceptors.

Import the module of your client; each imports its client and nothing else does:

- `redouble.clients.httpx`, `redouble.clients.httpx2`: ``httpx.Client(transport=RetryTransport())``
- `redouble.clients.requests`: ``retrying_session()``, or ``session.mount("https://", RetryAdapter())``
- `redouble.clients.aiohttp`: ``aiohttp.ClientSession(middlewares=(retry_middleware(),))``
- `redouble.clients.urllib3`: ``RetryPoolManager()``
- `redouble.clients.grpc`: interceptors, sync and ``grpc.aio``
- `redouble.clients.botocore`: ``retry_client(boto3.client("s3"))``
- `redouble.clients.sqlalchemy`: ``run_transaction(engine, function)``
- `redouble.clients.asgi`, `redouble.clients.wsgi`: middleware for servers

`override` changes the policy of the requests that are sent inside a block.
"""

from __future__ import annotations

from ._override import override

__all__ = ["override"]
