"""A POST in another task: when redouble can see its request, and how to mark it otherwise.

The page is docs/explanation/idempotency.md, "What stays out of sight".
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from interop.server import Web, stall
from interop.support import left_out
from redouble import retry
from redouble.testing import no_waits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LIMIT = 0.6


@pytest.fixture(autouse=True)
def libraries() -> None:
    left_out("httpx")
    left_out("anyio")
    left_out("trio")


async def post(url: str) -> None:
    import httpx

    async with httpx.AsyncClient(timeout=10) as client:
        await client.post(url)


async def by_a_task(url: str) -> None:
    await asyncio.create_task(post(url))


async def by_gather(url: str) -> None:
    await asyncio.gather(post(url), asyncio.sleep(0))


async def by_a_group(url: str) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(post(url))


async def by_a_group_of_anyio(url: str) -> None:
    import anyio

    async with anyio.create_task_group() as group:
        group.start_soon(post, url)


async def by_a_thread(url: str) -> None:
    import httpx

    await asyncio.to_thread(httpx.post, url, timeout=2 * LIMIT)


async def under_a_limit_of_anyio(url: str) -> None:
    import anyio

    with anyio.fail_after(LIMIT):
        await post(url)


async def under_a_limit_of_trio(url: str) -> None:
    import trio

    with trio.fail_after(LIMIT):
        await post(url)


def on_asyncio(function: Callable[[str], Awaitable[None]], url: str) -> None:
    async def main() -> None:
        await function(url)

    asyncio.run(main())


def on_trio(function: Callable[[str], Awaitable[None]], url: str) -> None:
    import trio

    trio.run(function, url)


def story(run: Any, function: Callable[[str], Awaitable[None]], url: str, **policy: Any) -> str:
    """Return the note of the error that a call raises."""
    with no_waits(), pytest.raises(Exception) as caught:
        run(retry(**policy)(function), url)
    return caught.value.__notes__[0]


@pytest.mark.parametrize("function", [by_a_task, by_gather])
def test_a_post_in_a_task_that_is_awaited_is_found_when_it_is_cut_off(
    function: Callable[[str], Awaitable[None]], web: Web
) -> None:
    page = web.page(stall)
    assert "repeating this POST might act twice" in story(on_asyncio, function, page.url, timeout=LIMIT)
    assert len(page.seen) <= 1


@pytest.mark.parametrize(
    ("run", "function"), [(on_asyncio, under_a_limit_of_anyio), (on_trio, under_a_limit_of_trio)]
)
def test_a_post_under_a_time_limit_of_its_own_is_found(
    run: Any, function: Callable[[str], Awaitable[None]], web: Web
) -> None:
    page = web.page(stall)
    assert "repeating this POST might act twice" in story(run, function, page.url)
    assert len(page.seen) <= 1


@pytest.mark.parametrize("function", [by_a_group, by_a_group_of_anyio, by_a_thread])
def test_a_post_that_is_out_of_sight_is_sent_once_if_the_policy_says_so(
    function: Callable[[str], Awaitable[None]], web: Web
) -> None:
    page = web.page(stall)
    told = story(on_asyncio, function, page.url, timeout=LIMIT, idempotent=False)
    assert "idempotent=False" in told
    assert len(page.seen) <= 1
