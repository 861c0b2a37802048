"""First attempts: what an interrupt leaves behind."""

import asyncio
from types import SimpleNamespace

import pytest

from redouble import context, retry


@pytest.fixture
def interrupted(monkeypatch):
    """Let an interrupt come when the context of an attempt is set; return what is set after that."""
    later, real = [], context.current

    def set_(value):
        if value is not None and not later:
            later.append("interrupted")
            raise KeyboardInterrupt
        later.append(value)

    monkeypatch.setattr(context, "current", SimpleNamespace(get=real.get, set=set_, reset=real.reset))
    return later


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
