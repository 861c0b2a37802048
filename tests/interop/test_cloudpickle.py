"""cloudpickle sends decorated local functions and those of ``__main__``, as dask, ray and spark do."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from interop.support import left_out
from redouble import retry
from redouble.testing import no_waits


@pytest.fixture
def cloudpickle() -> Any:
    left_out("cloudpickle")
    import cloudpickle

    return cloudpickle


POLICIES: dict[str, Any] = {
    "bare": {},
    "until": {"until": bool},
    "deadline": {"deadline": 5.0},
    "timeout": {"timeout": 5.0},
    "key": {"idempotency_key": True},
    "key of the arguments": {"idempotency_key": lambda failures: len(failures)},
    "deadline and until": {"deadline": 5.0, "until": bool},
}


@pytest.mark.parametrize("fields", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("kind", ["sync", "async", "coroutine from a plain function"])
def test_a_local_function_is_sent_and_still_retries(cloudpickle: Any, kind: str, fields: Any) -> None:
    def fetch(failures: list[str]) -> str:
        if failures:
            raise ConnectionResetError(failures.pop())
        return "page"

    async def fetch_async(failures: list[str]) -> str:
        return fetch(failures)

    function: Any = {"sync": fetch, "async": fetch_async}.get(kind, lambda failures: fetch_async(failures))
    sent = cloudpickle.loads(cloudpickle.dumps(retry(**fields)(function)))
    with no_waits() as waits:
        result = sent(["lost", "lost"])
        assert (result if kind == "sync" else asyncio.run(result)) == "page"
    assert len(waits) == 2


def test_a_function_of_main_is_sent_to_another_process(cloudpickle: Any) -> None:
    make = """
import sys, cloudpickle
from redouble import retry

@retry(deadline=5.0, timeout=1.0, idempotency_key=True, base=0.0)
def fetch(failures):
    if failures:
        raise ConnectionResetError(failures.pop())
    return "page"

sys.stdout.buffer.write(cloudpickle.dumps(fetch))
"""
    take = "import sys, pickle; print(pickle.load(sys.stdin.buffer)(['lost']))"
    sent = subprocess.run([sys.executable, "-c", make], capture_output=True, check=True)
    taken = subprocess.run([sys.executable, "-c", take], input=sent.stdout, capture_output=True, check=True)
    assert taken.stdout.decode().strip() == "page"
