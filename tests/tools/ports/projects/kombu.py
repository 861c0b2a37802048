"""kombu: a loop of its own with a limit of time, callbacks every second of a wait, and a hook that sets the wait."""

from __future__ import annotations

from ports.edits import Edit, Port

FUNCTIONAL = "kombu/utils/functional.py"

PORT = Port(
    name="kombu",
    version="5.7.0",
    sha256="31e62fdfd2381caa3422f8e02b84a491d9a2180ddda74507b57f4cb1e1c2c2c9",
    edits=(
        Edit(
            FUNCTIONAL,
            "import inspect",
            """
            import inspect
            import math
            """,
        ),
        Edit(
            FUNCTIONAL,
            "from vine.utils import wraps",
            """
            from redouble import retrying
            from vine.utils import wraps
            """,
        ),
        Edit(
            FUNCTIONAL,
            "def retry_over_time(",
            body=True,
            new="""
            intervals = (
                min(value, float(interval_max))
                for value in fxrange(
                    interval_start,
                    interval_max + interval_start,
                    interval_step,
                    repeatlast=True,
                )
            )

            end = time() + timeout if timeout else math.inf

            def interval(error):
                if attempt.is_last or time() > end or not isinstance(error, catch):
                    return False
                if callback:
                    callback()
                tts = errback(error, intervals, attempt.number - 1) if errback else next(intervals)
                return min(float(tts), float(interval_max))

            def wait(seconds):
                for _ in range(int(seconds)):
                    if callback:
                        callback()
                    sleep(1.0)
                sleep(seconds - int(seconds))

            for attempt in retrying(
                on=interval,
                attempts=math.inf if max_retries is None else max_retries + 1,
                base=0,
                idempotent=True,
                sleep=wait,
            ):
                with attempt:
                    return fun(*args or (), **kwargs or {})
            """,
        ),
    ),
    tests=(
        "t/unit/utils/test_functional.py",  # the loop itself
        "t/unit/test_connection.py",  # its user: connecting, failover, total timeouts
        "t/unit/test_pools.py",  # pools of such connections
    ),
    others={
        "t/unit/utils/test_functional.py::test_retry_over_time::test_simple": "it replaces `count`, with which the loop counted",
    },
)
