"""First attempts: what an interrupt leaves behind."""

import asyncio

import pytest

from redouble import context, retry
from support.interrupted_calls import interrupt_as_a_context_is_set


@pytest.fixture
def interrupted(monkeypatch):
    return interrupt_as_a_context_is_set(monkeypatch, context)


def test_an_interrupt_that_comes_with_the_context_of_a_sync_attempt_takes_it_away(interrupted):
    with pytest.raises(KeyboardInterrupt):
        retry(deadline=5.0)(lambda: None)()
    assert interrupted == ["interrupted", None]


def test_an_interrupt_that_comes_with_the_context_of_an_async_attempt_takes_it_away(interrupted):
    @retry(deadline=5.0)
    async def fetch():
        raise AssertionError("the attempt was not to be made")

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(fetch())
    assert interrupted == ["interrupted", None]
