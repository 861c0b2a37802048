"""What belongs to a call ends with it, also in tasks, threads and callbacks that outlive the call."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from typing import Any

import pytest

from conftest import Flavour
from redouble import DeadlineExceeded, Policy, current_attempt, retry, retrying
from redouble.backoff import fixed
from redouble.context import carried, incoming, outgoing_headers
from redouble.dead_letters import DeadLetters
from redouble.testing import FakeClock, scripted


def quick(clock: FakeClock, **fields: Any) -> Policy:
    return Policy(backoff=fixed, clock=clock, sleep=clock.sleep).replace(**fields)


def seen() -> tuple[int | None, dict[str, str]]:
    """What code can learn of the call that it runs in."""
    attempt = current_attempt()
    return None if attempt is None else attempt.number, outgoing_headers()


NOTHING = (None, {})

NEEDS = [
    {"deadline": 5.0},
    {"timeout": 5.0},
    {"idempotency_key": True},
    {"deadline": 5.0, "until": lambda result: True},
    {"deadline": 5.0, "listeners": [type("Wanting", (), {"successes": True, "__call__": lambda *_: None})()]},
]


def left_behind(flavour: Flavour, policy: Policy, *outcomes: Any) -> Context:
    """The context of a call's last attempt, as a task or a thread that was started in it keeps it."""
    kept: list[Context] = []
    script = scripted(*outcomes)

    def body() -> Any:
        kept.append(copy_context())
        assert kept[-1].run(seen) != NOTHING or not policy._in_context
        return script()

    try:
        flavour.call(policy, flavour.function(body))
    except (TimeoutError, ValueError):
        pass
    return kept[-1]


@pytest.mark.parametrize("fields", NEEDS)
@pytest.mark.parametrize(
    "outcomes",
    [
        ["page"],
        [TimeoutError(), "page"],
        [TimeoutError(), ValueError()],
        [ValueError()],
        [TimeoutError()] * 4,
    ],
)
def test_a_context_ends_with_its_call_however_that_ends(
    flavour: Flavour, clock: FakeClock, fields: Any, outcomes: list[Any]
) -> None:
    assert left_behind(flavour, quick(clock, **fields), *outcomes).run(seen) == NOTHING


def test_the_context_of_a_bare_calls_retry_ends_with_the_call(flavour: Flavour, clock: FakeClock) -> None:
    assert left_behind(flavour, quick(clock), TimeoutError(), "page").run(seen) == NOTHING


def test_a_context_ends_with_a_call_that_is_interrupted(flavour: Flavour, clock: FakeClock) -> None:
    for outcomes in ([KeyboardInterrupt()], [TimeoutError(), KeyboardInterrupt()]):
        kept: list[Context] = []
        script = scripted(*outcomes)

        def body(kept: list[Context] = kept, script: Any = script) -> Any:
            kept.append(copy_context())
            return script()

        with pytest.raises(KeyboardInterrupt):
            flavour.call(quick(clock, deadline=5.0), flavour.function(body))
        assert [context.run(seen) for context in kept] == [NOTHING] * len(outcomes)


def test_a_context_ends_with_a_call_whose_until_fails(flavour: Flavour, clock: FakeClock) -> None:
    def until(result: Any) -> bool:
        raise ValueError("cannot say")

    assert left_behind(flavour, quick(clock, deadline=5.0, until=until), "page").run(seen) == NOTHING


def test_a_failed_attempts_context_holds_until_its_call_ends(flavour: Flavour, clock: FakeClock) -> None:
    # A sibling of a failed gather() goes on, and is to send the key that the next attempt sends.
    kept: list[Context] = []
    keys: list[str] = []

    def body() -> str:
        kept.append(copy_context())
        keys.append(kept[0].run(outgoing_headers)["Idempotency-Key"])
        if len(kept) == 1:
            raise TimeoutError
        return "page"

    flavour.call(quick(clock, idempotency_key=True), flavour.function(body))
    assert keys[0] == keys[1]
    assert kept[0].run(seen) == kept[1].run(seen) == NOTHING


def test_a_worker_started_by_a_call_is_not_bound_by_its_deadline_later(clock: FakeClock) -> None:
    async def worker() -> str:
        clock.advance(1.0)
        fetch = scripted(TimeoutError("slow"), "page", asynchronous=True)
        return await quick(clock, deadline=60.0).call(fetch)

    @quick(clock, deadline=0.1)
    async def connect() -> asyncio.Task[str]:
        return asyncio.create_task(worker())

    async def main() -> str:
        return await (await connect())

    assert asyncio.run(main()) == "page"


def test_background_tasks_of_a_call_that_is_over_do_not_send_its_key(virtual: Any) -> None:
    async def send() -> dict[str, str]:
        await asyncio.sleep(1.0)
        return outgoing_headers()

    @retry(idempotency_key=True)
    async def start() -> list[asyncio.Task[dict[str, str]]]:
        assert "Idempotency-Key" in outgoing_headers()
        return [asyncio.create_task(send()) for _ in range(2)]

    async def main() -> list[dict[str, str]]:
        return await asyncio.gather(*await start())

    assert virtual(main) == [{}, {}]


def test_a_callback_that_a_call_has_left_with_the_loop_runs_without_it(virtual: Any) -> None:
    found: list[Any] = []

    @retry(deadline=0.1)
    async def start() -> None:
        asyncio.get_running_loop().call_later(1.0, lambda: found.append(seen()))

    async def main() -> None:
        await start()
        await asyncio.sleep(2.0)

    virtual(main)
    assert found == [NOTHING]


def test_a_thread_that_outlives_a_call_is_not_bound_by_it(clock: FakeClock) -> None:
    over, found = threading.Event(), []

    def work() -> None:
        over.wait(60)
        clock.advance(60.0)
        found.append(seen())

    def start() -> threading.Thread:
        thread = threading.Thread(target=copy_context().run, args=(work,))
        thread.start()
        return thread

    thread = quick(clock, deadline=5.0).call(start)
    over.set()
    thread.join()
    assert found == [NOTHING]


def test_a_deferring_call_retries_again_when_the_call_around_it_is_over(
    flavour: Flavour, clock: FakeClock
) -> None:
    context = left_behind(flavour, quick(clock), TimeoutError(), "page")
    deferring = quick(clock, nested="defer")
    fetch = scripted(TimeoutError(), "page")
    assert context.run(deferring.call, fetch) == "page"


def test_an_ended_context_inside_a_running_call_falls_back_to_that_call(
    flavour: Flavour, clock: FakeClock
) -> None:
    kept: list[Context] = []

    def inner() -> None:
        kept.append(copy_context())

    def outer() -> Any:
        quick(clock, deadline=2.0, idempotency_key=True).call(inner)
        return kept[0].run(seen)

    policy = quick(clock, name="outer", deadline=9.0, idempotency_key=lambda: 1)
    number, headers = flavour.call(policy, flavour.function(outer))
    assert (number, headers["Idempotency-Key"], headers["X-Request-Timeout-Ms"]) == (1, "outer:1", "9000")


def test_a_call_that_began_inside_another_is_released_when_that_ends(
    flavour: Flavour, clock: FakeClock
) -> None:
    block = iter(retrying(quick(clock, deadline=1.5)))
    outer = next(block).__enter__()
    context = copy_context()
    script = scripted(TimeoutError(), TimeoutError(), "page")

    def fetch() -> Any:
        if not clock.waits:
            outer.__exit__(None, None, None)  # in time; the inner call goes on after it
        return script()

    assert context.run(flavour.call, quick(clock, deadline=60.0), flavour.function(fetch)) == "page"
    assert clock.waits == [1.0, 1.0]
    block.close()


@pytest.mark.parametrize("failures", [0, 1])
def test_the_context_of_a_block_ends_with_the_block(
    flavour: Flavour, clock: FakeClock, failures: int
) -> None:
    kept: list[Context] = []
    script = scripted(*[TimeoutError()] * failures, "page")

    def body(attempt: Any) -> None:
        kept.append(copy_context())
        script()

    flavour.block(quick(clock, deadline=9.0), body)
    assert [context.run(seen) for context in kept] == [NOTHING] * (failures + 1)


def test_the_context_of_a_block_that_is_left_between_its_runs_ends(clock: FakeClock) -> None:
    def sleep(seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        for attempt in retrying(quick(clock, deadline=9.0, sleep=sleep)):
            with attempt:
                context = copy_context()
                raise TimeoutError
    assert context.run(seen) == NOTHING


def test_the_context_of_a_generators_call_ends_with_its_first_item(clock: FakeClock) -> None:
    kept: list[Context] = []

    @quick(clock, deadline=9.0)
    def items() -> Any:
        kept.append(copy_context())
        yield 1

    assert list(items()) == [1]
    assert kept[0].run(seen) == NOTHING


def test_a_coroutine_out_of_a_plain_function_runs_in_the_context_of_its_call(clock: FakeClock) -> None:
    kept: list[Context] = []

    async def fetch() -> Any:
        kept.append(copy_context())
        found = seen()
        if len(kept) == 1:
            raise TimeoutError
        return found

    for fields in ({}, {"listeners": NEEDS[-1]["listeners"]}):
        kept.clear()
        policy = quick(clock, deadline=9.0, **fields)
        found = asyncio.run(policy.call(lambda: fetch()))
        assert found[0] == 2
        assert [context.run(seen) for context in kept] == [NOTHING] * 2


def test_the_context_of_a_scope_ends_with_it(clock: FakeClock) -> None:
    with retrying(quick(clock, deadline=5.0)) as call:
        context = copy_context()
        assert context.run(seen) != NOTHING
        inside = call(copy_context)
    assert context.run(seen) == inside.run(seen) == NOTHING
    clock.advance(60.0)
    assert context.run(quick(clock, deadline=5.0).call, scripted("page")) == "page"


def test_a_call_through_a_scope_that_is_closed_leaves_no_context_behind(clock: FakeClock) -> None:
    with retrying(quick(clock, deadline=5.0)) as call:
        pass

    def remaining() -> tuple[str, Context]:
        return outgoing_headers()["X-Request-Timeout-Ms"], copy_context()

    async def remaining_async() -> tuple[str, Context]:
        return remaining()

    async def main() -> tuple[str, Context]:
        return await call(remaining_async)

    for left, context in (call(remaining), asyncio.run(main())):
        assert left == "5000"
        assert context.run(seen) == NOTHING


def test_what_came_in_with_a_request_ends_with_its_block(clock: FakeClock) -> None:
    with incoming({"x-request-timeout-ms": "100", "x-retry-attempt": "2"}, clock=clock):
        context = copy_context()
        assert context.run(outgoing_headers) == {"X-Retry-Attempt": "2", "X-Request-Timeout-Ms": "100"}
    assert context.run(outgoing_headers) == {}
    assert context.run(quick(clock, nested="defer").call, scripted(TimeoutError(), "page")) == "page"


def test_what_came_in_ends_also_where_it_is_left_in_another_context(clock: FakeClock) -> None:
    block, context = incoming({"x-request-timeout-ms": "100"}, clock=clock), copy_context()
    context.run(block.__enter__)
    block.__exit__(None, None, None)
    assert context.run(outgoing_headers) == {}


def test_a_request_that_came_in_hides_the_attempt_around_it(clock: FakeClock) -> None:
    def handle() -> Any:
        with incoming({}):
            return current_attempt()

    assert quick(clock, deadline=5.0).call(handle) is None


def test_what_a_replay_has_started_does_not_send_its_key_or_lose_its_letters(
    flavour: Flavour, clock: FakeClock, tmp_path: Any
) -> None:
    letters = DeadLetters(tmp_path / "letters.db")
    place = quick(clock, name="place", attempts=1, idempotency_key=True, dead_letters=letters, payload=dict)
    down = scripted(then=TimeoutError("down"))
    with pytest.raises(TimeoutError):
        place.call(down)
    [letter] = letters.list()
    kept: list[Context] = []

    def handle(letter: Any) -> None:
        assert place.call(outgoing_headers)["Idempotency-Key"] == letter.idempotency_key
        kept.append(copy_context())

    replay = letters.areplay if flavour.is_async else letters.replay
    flavour.run(replay, flavour.function(handle), quick(clock, attempts=2))
    assert kept[0].run(seen) == NOTHING
    assert kept[0].run(place.call, outgoing_headers)["Idempotency-Key"] != letter.idempotency_key
    with pytest.raises(TimeoutError):
        kept[0].run(place.call, down)
    assert letters.depth() == 1
    letters.close()


def test_a_replay_that_is_retried_keeps_its_key_until_it_ends(clock: FakeClock, tmp_path: Any) -> None:
    letters = DeadLetters(tmp_path / "letters.db")
    letters.put(error=TimeoutError("down"), function="place", idempotency_key="place:1")
    kept: list[Context] = []

    def handle(letter: Any) -> None:
        kept.append(copy_context())
        assert outgoing_headers()["Idempotency-Key"] == "place:1"
        if len(kept) == 1:
            raise TimeoutError

    assert letters.replay(handle, quick(clock, attempts=2)).replayed == 1
    assert [context.run(seen) for context in kept] == [NOTHING] * 2
    letters.close()


# Threads of a pool


def test_a_pool_of_threads_does_not_take_a_deadline_over_and_a_carried_function_does(
    clock: FakeClock,
) -> None:
    def fetch() -> list[Any]:
        with ThreadPoolExecutor(2) as pool:
            return [pool.submit(function).result() for function in (seen, carried(seen))]

    without, with_it = quick(clock, deadline=5.0, idempotency_key=True).call(fetch)
    assert without == NOTHING
    assert with_it[0] == 1
    assert with_it[1]["X-Request-Timeout-Ms"] == "5000"


def test_a_carried_function_runs_in_many_threads_at_once(clock: FakeClock) -> None:
    together = threading.Barrier(4, timeout=10)

    def meet() -> int | None:
        together.wait()
        return seen()[0]

    def fetch() -> list[Any]:
        with ThreadPoolExecutor(4) as pool:
            function = carried(meet)
            return [future.result() for future in [pool.submit(function) for _ in range(4)]]

    assert quick(clock, deadline=5.0).call(fetch) == [1] * 4


def test_a_carried_call_is_bound_by_the_deadline_of_its_place(clock: FakeClock) -> None:
    def fetch() -> str:
        return quick(clock, attempts=None, deadline=60.0).call(scripted(then=TimeoutError("slow")))

    def outer() -> str:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(carried(fetch)).result()

    with pytest.raises(DeadlineExceeded):
        quick(clock, deadline=2.5).call(outer)
    assert clock.waits == [1.0, 1.0]


def test_what_was_carried_ends_with_its_call(clock: FakeClock) -> None:
    assert quick(clock, deadline=5.0).call(lambda: carried(seen))() == NOTHING


def test_a_carried_function_keeps_its_arguments_and_looks() -> None:
    def add(one: int, other: int = 2) -> int:
        return one + other

    add.__doc__ = "Adds."  # which -OO would have taken away
    function = carried(add)
    assert (function(1), function(1, other=3), function.__name__, function.__doc__) == (3, 4, "add", "Adds.")


@pytest.mark.parametrize("kind", ["async def", "generator"])
def test_what_runs_later_cannot_be_carried(kind: str) -> None:
    async def coroutine() -> None: ...

    def generator() -> Any:
        yield

    with pytest.raises(TypeError, match="runs later, in the context of the code that awaits or iterates it"):
        carried(coroutine if kind == "async def" else generator)
