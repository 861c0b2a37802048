"""singer-sdk: `backoff.on_exception`, with every part a method that taps override."""

from __future__ import annotations

from ports.edits import Edit, Port

REST = "singer_sdk/streams/rest.py"

PORT = Port(
    name="singer_sdk",
    version="0.54.9",
    sha256="09ef3b5974ba012a96f7821bd2ced917a525f0586a39f379a774b48453de9539",
    edits=(
        Edit(
            REST,
            "import decimal",
            """
            import decimal
            import functools
            """,
        ),
        Edit(
            REST,
            "import logging",
            """
            import logging
            import math
            import random
            """,
        ),
        Edit(
            REST,
            "import backoff",
            """
            from redouble import Policy
            from redouble.backoff import delays, exponential
            from redouble.events import Retrying
            """,
        ),
        Edit(REST, "from backoff.types import Details"),
        Edit(
            REST,
            "def request_decorator(",
            inside="_HTTPStream",
            body=True,
            new="""
            transient = (
                ConnectionResetError,
                RetriableAPIError,
                requests.exceptions.Timeout,
                requests.exceptions.ConnectionError,
                requests.exceptions.ChunkedEncodingError,
                requests.exceptions.ContentDecodingError,
            )

            def handle(event):
                if isinstance(event, Retrying):
                    self.backoff_handler({
                        "target": func,
                        "args": event.args,
                        "kwargs": event.kwargs,
                        "tries": event.attempt,
                        "elapsed": event.elapsed,
                        "wait": event.delay,
                        "exception": event.error,
                    })

            @functools.wraps(func)
            def retried(*args, **kwargs):
                waits = self.backoff_wait_generator()
                waits.send(None)
                tries = self.backoff_max_tries
                return Policy(
                    on=lambda e: isinstance(e, transient) and self.backoff_jitter(waits.send(e)),
                    attempts=tries() if callable(tries) else tries,
                    base=0,
                    cap=math.inf,
                    idempotent=True,
                    listeners=(handle,),
                    logger=self.logger,
                ).call(func, *args, **kwargs)

            return retried
            """,
        ),
        Edit(
            REST,
            "return backoff.expo(",
            """
            waits = delays(exponential, base=2, cap=math.inf)
            return self.backoff_runtime(value=lambda _: next(waits))
            """,
        ),
        Edit(REST, "return backoff.random_jitter(", "return value + random.random()"),
    ),
    tests=(
        "tests/core/rest",  # all tests of the module of the retried requests
    ),
)
