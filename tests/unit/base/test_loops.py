"""asyncio, trio, and anyio on both, for real. Needs the extra ``loops``; without it these are left out."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import redouble
from redouble import DeadlineExceeded, current_attempt, retry, retrying
from redouble.backoff import fixed
from redouble.testing import scripted

trio = pytest.importorskip("trio", reason="the extra 'loops' is not installed")
anyio = pytest.importorskip("anyio", reason="the extra 'loops' is not installed")


def run_trio(main: Any) -> Any:
    """On trio's own virtual time."""
    import trio.testing

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_trio_waits_with_its_own_sleep() -> None:
    async def main() -> None:
        start = trio.current_time()
        fetch = retry(backoff=fixed, base=5.0)(
            scripted(TimeoutError(), TimeoutError(), "page", asynchronous=True)
        )
        assert await fetch() == "page"
        assert trio.current_time() - start == pytest.approx(10.0)

    run_trio(main)


def test_a_trio_cancellation_in_the_attempt_is_never_caught() -> None:
    async def main() -> None:
        calls: list[int] = []

        @retry(on=lambda error: True)
        async def fetch() -> None:
            calls.append(1)
            await trio.sleep(60)

        with trio.move_on_after(1) as scope:
            await fetch()
        assert scope.cancelled_caught
        assert calls == [1]

    run_trio(main)


def test_a_trio_cancellation_in_the_wait_is_never_caught() -> None:
    async def main() -> None:
        fetch = scripted(TimeoutError(), "page", asynchronous=True)
        with trio.move_on_after(1) as scope:
            await retry(base=50.0, backoff=fixed)(fetch)()
        assert scope.cancelled_caught
        assert len(fetch.calls) == 1

    run_trio(main)


def test_a_trio_attempt_is_cut_off_by_its_timeout_and_retried() -> None:
    async def main() -> None:
        durations = iter([60.0, 0.5])

        @retry(timeout=2.0, backoff=fixed, clock=trio.current_time)
        async def fetch() -> str:
            await trio.sleep(next(durations))
            return "page"

        start = trio.current_time()
        assert await fetch() == "page"
        assert trio.current_time() - start == pytest.approx(2.0 + 1.0 + 0.5)

    run_trio(main)


def test_a_trio_attempt_is_cut_off_at_the_deadline() -> None:
    async def main() -> None:
        @retry(deadline=5.0, clock=trio.current_time, name="fetch")
        async def fetch() -> None:
            await trio.sleep(60)

        start = trio.current_time()
        with pytest.raises(DeadlineExceeded, match="came during the attempt"):
            await fetch()
        assert trio.current_time() - start == pytest.approx(5.0)

    run_trio(main)


def test_a_trio_block_is_cut_off_and_run_again() -> None:
    async def main() -> None:
        numbers: list[int] = []
        async for attempt in retrying(timeout=2.0, backoff=fixed, clock=trio.current_time):
            with attempt:
                numbers.append(attempt.number)
                await trio.sleep(60 if attempt.number == 1 else 0)
        assert numbers == [1, 2]

    run_trio(main)


def test_a_trio_block_whose_cancelled_nursery_fails_is_run_again() -> None:
    async def main() -> None:
        numbers: list[int] = []

        async def bad_loser() -> None:
            try:
                await trio.sleep(60)
            except trio.Cancelled:
                raise ConnectionResetError("while cleaning up") from None

        async for attempt in retrying(timeout=2.0, attempts=2, backoff=fixed, clock=trio.current_time):
            async with attempt:
                numbers.append(attempt.number)
                if attempt.number == 1:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(bad_loser)
                        nursery.start_soon(trio.sleep, 60)
        assert numbers == [1, 2]
        assert current_attempt() is None

    run_trio(main)


def test_an_outer_trio_cancellation_passes_an_inner_limit() -> None:
    async def main() -> None:
        @retry(timeout=30.0, clock=trio.current_time)
        async def fetch() -> None:
            await trio.sleep(60)

        with trio.move_on_after(1) as scope:
            await fetch()
        assert scope.cancelled_caught

    run_trio(main)


def test_a_sync_wait_inside_trio_warns() -> None:
    from redouble._engine import flow as _flow

    async def main() -> None:
        _flow._warned.clear()
        with pytest.warns(RuntimeWarning, match="named_in_trio"):
            retry(base=0, name="named_in_trio")(scripted(TimeoutError(), "page"))()

    run_trio(main)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_anyio_works_on_both_of_its_backends(backend: str) -> None:
    async def main() -> None:
        durations = iter([60.0, 0.0])

        @retry(timeout=0.05, base=0.0)
        async def fetch() -> str:
            await anyio.sleep(next(durations))
            return "page"

        assert await fetch() == "page"
        calls = scripted(TimeoutError(), "page", asynchronous=True)
        with anyio.move_on_after(0.05) as scope:
            await retry(base=50.0, backoff=fixed)(calls)()
        assert scope.cancelled_caught
        assert len(calls.calls) == 1

    anyio.run(main, backend=backend)


def test_with_trio_imported_an_asyncio_task_still_waits_with_asyncio() -> None:
    assert "trio" in sys.modules
    fetch = retry(base=0.0)(scripted(TimeoutError(), "page", asynchronous=True))
    assert asyncio.run(fetch()) == "page"


def test_neither_library_is_imported_before_the_first_async_wait() -> None:
    program = """
import sys
from redouble import retry
@retry(deadline=5.0)
def fetch(): return 1
@retry
async def fetch_async(): return 2
fetch()
try: fetch_async().send(None)
except StopIteration as done: assert done.value == 2
assert "asyncio" not in sys.modules and "trio" not in sys.modules
"""
    source = str(Path(redouble.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": source}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
