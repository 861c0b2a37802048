"""Requests to a store: answers, failures, and the local guard that takes over."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging

import pytest

from conftest import loop_time
from redouble import CircuitOpen
from redouble.breaker import State
from redouble.shared import FileBudget, RedisBreaker, RedisBudget
from redouble.shared._scripts import BUDGET
from redouble.testing import FakeClock
from support.fake_redis import NoScriptError
from support.stores import REFUSED, AsyncClient, Client, Interrupt, changes, left, said, transitions


def test_what_the_store_says_counts(store):
    here = store(left(495.0, 5.0))
    budget = here.budget()
    assert (here.run(budget.acquire), budget.tokens, budget.available) == (5.0, 495.0, True)
    assert here.events == []


def test_a_client_may_decode_answers_or_not(store):
    here = store(["5", "490.5"])
    budget = here.budget()
    assert (here.run(budget.acquire), budget.tokens) == (5.0, 490.5)


def test_a_refused_retry_takes_nothing(store):
    here = store(left(4.0))
    budget = here.budget()
    assert (here.run(budget.acquire), budget.tokens) == (0.0, 4.0)


def test_the_store_is_told_the_rules_with_every_question(store):
    here = store(left(495.0, 5.0))
    budget = here.budget(capacity=400, cost=4, timeout_cost=8, reserves={-1: 0.25}, ttl=60.0)
    here.run(budget.acquire)
    here.run(budget.acquire, timeout=True)
    here.run(budget.acquire, priority=-1)
    # capacity, earned, cost, what must be there, ttl
    assert here.client.asked == [
        ("400.0", "0.0", "4.0", "4.0", "60.0"),
        ("400.0", "0.0", "8.0", "8.0", "60.0"),
        ("400.0", "0.0", "4.0", "100.0", "60.0"),
    ]


@pytest.mark.parametrize(
    "error", [NoScriptError("No matching script."), Exception("NOSCRIPT No matching script.")], ids=type
)
def test_a_server_that_does_not_know_the_script_is_given_it(store, error):
    here = store(error, left(5.0, 5.0))
    budget = here.budget()
    assert here.run(budget.acquire) == 5.0
    digest = hashlib.sha1(BUDGET.encode()).hexdigest()
    assert here.client.scripts == [(digest, 1, "retries"), (BUDGET, 1, "retries")]
    assert budget.available


def test_the_client_says_whether_a_guard_is_awaited():
    assert not RedisBudget(Client(left(1.0)), "key").is_async
    assert RedisBudget(AsyncClient(left(1.0)), "key").is_async
    assert RedisBreaker(AsyncClient(said()), "key").is_async


def test_a_guard_is_called_by_its_key_unless_it_has_a_name(tmp_path):
    assert RedisBudget(Client(1), "payments:retries").name == "payments:retries"
    assert RedisBreaker(Client(1), "circuit", name="payments").name == "payments"
    assert FileBudget(tmp_path / "retries.db").name == "retries.db"


@pytest.mark.parametrize("answer", [REFUSED, None, [], [b"1"], [b"one", b"two"], 5, said()], ids=str)
def test_whatever_the_store_fails_with_the_local_guard_answers(store, answer):
    here = store(answer)
    budget = here.budget(capacity=10)
    assert [here.run(budget.acquire) for _ in range(3)] == [5.0, 5.0, 0.0]
    assert changes(here.events) == [False]
    assert not budget.available


@pytest.mark.parametrize("answer", [REFUSED, None, [], said()[:-1], said("ajar"), left(1.0)], ids=str)
def test_a_breaker_goes_on_alone_while_its_store_is_away(store, answer):
    here = store(answer)
    breaker = here.breaker(failures=2, open_for=30.0)
    for _ in range(2):
        here.run(breaker.failure, here.run(breaker.enter), TimeoutError("slow"))
    assert breaker.state is State.open
    with pytest.raises(CircuitOpen, match=r"open for another 30\.0 s \(TimeoutError: slow\)"):
        here.run(breaker.enter)
    assert changes(here.events) == [False]
    assert transitions(here.events) == [("closed", "open")]


def test_an_event_says_what_the_store_failed_with(store, caplog):
    here = store(REFUSED)
    with caplog.at_level(logging.WARNING, "redouble"):
        here.run(here.budget(name="payments").acquire)
    (event,) = here.events
    assert (event.name, event.available, event.error_type) == ("payments", False, "ConnectionError")
    assert event.error_message == "Error 111 connecting to localhost:6379. Connection refused."
    (record,) = caplog.records
    assert record.getMessage() == (
        "store of payments does not answer: "
        "ConnectionError: Error 111 connecting to localhost:6379. Connection refused."
    )
    assert (record.policy, record.available) == ("payments", False)


def test_a_store_that_is_away_is_left_alone_for_a_while_and_then_tried_by_one(store, clock):
    here = store(REFUSED)
    budget = here.budget(retry_interval=2.0)
    for _ in range(10):
        here.run(budget.acquire)
    assert len(here.client.asked) == 1
    clock.advance(1.9)
    here.run(budget.acquire)
    assert len(here.client.asked) == 1
    clock.advance(0.1)
    for _ in range(10):
        here.run(budget.acquire)
    assert len(here.client.asked) == 2
    assert changes(here.events) == [False]


def test_while_one_caller_tries_the_store_the_others_ask_the_local_guard():
    clock, inner = FakeClock(), []
    client = Client(REFUSED, lambda: inner.append(budget.acquire()) or left(100.0, 5.0))
    budget = RedisBudget(client, "key", clock=clock)
    budget.acquire()
    clock.advance(1.0)
    assert budget.acquire() == 5.0
    assert (inner, len(client.asked)) == ([5.0], 2)


@pytest.mark.slow
def test_while_one_task_tries_the_store_the_others_ask_the_local_guard(virtual):
    async def later():
        await asyncio.sleep(0.1)
        return left(100.0, 5.0)

    async def main():
        client = AsyncClient(REFUSED, later)
        budget = RedisBudget(client, "key", clock=loop_time)
        await budget.acquire()
        await asyncio.sleep(1.0)
        assert await asyncio.gather(*[budget.acquire() for _ in range(9)]) == [5.0] * 9
        assert len(client.asked) == 2
        assert budget.available

    virtual(main)


def test_a_store_that_is_back_is_used_again_and_an_event_says_so_once(store, clock):
    here = store(REFUSED, left(200.0, 5.0))
    budget = here.budget()
    here.run(budget.acquire)
    clock.advance(1.0)
    here.run(budget.acquire)
    here.run(budget.acquire)
    assert changes(here.events) == [False, True]
    assert here.events[1].error_type is None
    assert (budget.tokens, budget.available) == (200.0, True)


def test_the_local_guard_begins_with_what_the_store_said_last(store):
    here = store(left(12.0, 5.0), REFUSED)
    budget = here.budget()
    assert [here.run(budget.acquire) for _ in range(4)] == [5.0, 5.0, 5.0, 0.0]
    assert budget.tokens == 2.0


def test_an_answer_that_comes_late_counts_but_the_next_does_without():
    clock, events = FakeClock(), []
    client = Client(lambda: clock.advance(0.3) or left(100.0, 5.0))
    budget = RedisBudget(client, "key", clock=clock, timeout=0.25, listeners=[events.append])
    assert (budget.acquire(), budget.tokens) == (5.0, 100.0)
    assert (budget.acquire(), budget.tokens) == (5.0, 95.0)
    assert len(client.asked) == 1
    assert changes(events) == [False]
    assert events[0].error_message == "no answer within 0.25 s: it took 0.3 s"
    clock.advance(1.0)
    budget.acquire()
    assert (len(client.asked), changes(events)) == (2, [False])


def test_an_answer_that_does_not_come_is_not_awaited_for_long(virtual):
    async def main():
        ended, events = [], []

        async def never():
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(loop_time())

        budget = RedisBudget(AsyncClient(never), "key", clock=loop_time, listeners=[events.append])
        assert await budget.acquire() == 5.0
        assert (loop_time(), ended) == (0.25, [0.25])
        assert (events[0].error_type, events[0].error_message) == ("TimeoutError", "no answer within 0.25 s")
        assert await budget.acquire() == 5.0
        assert loop_time() == 0.25

    virtual(main)


def test_an_interrupt_while_the_store_is_asked_passes_and_says_nothing_about_the_store(store, clock):
    here = store(Interrupt(), REFUSED, Interrupt(), left(100.0, 5.0))
    budget = here.budget()
    with pytest.raises(Interrupt):
        here.run(budget.acquire)
    assert budget.available
    here.run(budget.acquire)
    clock.advance(1.0)
    with pytest.raises(Interrupt):  # while it was tried again
        here.run(budget.acquire)
    assert here.run(budget.acquire) == 5.0
    assert changes(here.events) == [False, True]


def test_a_task_that_is_cancelled_while_it_asks_the_store_is_cancelled(virtual):
    async def main():
        async def slowly():
            await asyncio.sleep(0.2)
            return left(100.0, 5.0)

        client = AsyncClient(slowly)
        budget = RedisBudget(client, "key", clock=loop_time)
        task = asyncio.ensure_future(budget.acquire())
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert budget.available
        assert await budget.acquire() == 5.0

    virtual(main)


@pytest.mark.parametrize("end", [left(100.0, 5.0), REFUSED], ids=["answer", "error"])
def test_a_cancellation_that_the_client_swallows_is_not_lost(virtual, end):
    async def main():
        async def stubborn():
            try:
                await asyncio.sleep(0.2)
            except asyncio.CancelledError:
                if isinstance(end, Exception):
                    raise end from None
                return end

        budget = RedisBudget(AsyncClient(stubborn), "key", clock=loop_time)
        task = asyncio.ensure_future(budget.acquire())
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert budget.available

    virtual(main)


def test_an_answer_that_comes_in_the_last_moment_counts(virtual):
    async def main():
        async def stubborn():
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return left(100.0, 5.0)

        budget = RedisBudget(AsyncClient(stubborn), "key", clock=loop_time)
        assert (await budget.acquire(), budget.tokens, budget.available) == (5.0, 100.0, True)
        assert asyncio.current_task().cancelling() == 0

    virtual(main)


def test_on_another_event_loop_an_asyncio_client_is_as_good_as_away():
    trio = pytest.importorskip("trio", reason="trio is not installed: the extra 'loops' is needed")

    async def on_asyncio():
        await asyncio.sleep(0.01)

    async def main():
        budget = RedisBudget(AsyncClient(on_asyncio), "key")
        return await budget.acquire(), budget.available

    assert trio.run(main) == (5.0, False)


def test_without_a_task_an_asyncio_client_is_as_good_as_away(clock):
    budget = RedisBudget(AsyncClient(left(100.0, 5.0)), "key", clock=clock)
    answers = []

    def callback():
        with pytest.raises(StopIteration) as end:
            budget.acquire().send(None)
        answers.append(end.value.value)

    async def main():
        asyncio.get_running_loop().call_soon(callback)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert (answers, budget.available) == ([5.0], False)


def test_listeners_that_raise_are_reported_once_and_the_others_are_told(flavour, clock, caplog):
    told = []

    def broken(event):
        raise RuntimeError("no space left")

    client = (AsyncClient if flavour.is_async else Client)(REFUSED, left(9.0), REFUSED)
    budget = RedisBudget(client, "key", clock=clock, listeners=[broken, told.append])
    for _ in range(3):
        flavour.run(budget.acquire)
        clock.advance(1.0)
    assert changes(told) == [False, True, False]
    assert len([record for record in caplog.records if "listener" in record.getMessage()]) == 1


def test_a_log_handler_that_raises_changes_nothing(flavour, clock):
    class Full(logging.Handler):
        def handle(self, record):
            raise OSError(28, "No space left on device")

    handler = Full()
    logging.getLogger("redouble").addHandler(handler)
    try:
        client = (AsyncClient if flavour.is_async else Client)(REFUSED)
        budget = RedisBudget(client, "key", clock=clock)
        assert flavour.run(budget.acquire) == 5.0
    finally:
        logging.getLogger("redouble").removeHandler(handler)
    assert not budget.available


@pytest.mark.slow
def test_the_error_of_a_store_is_not_kept(clock):
    class Broken(Exception):
        pass

    def fail():
        raise Broken

    client = Client(fail)
    budget = RedisBudget(client, "key", clock=clock)
    gc.collect()
    budget.acquire()
    assert not [thing for thing in gc.get_objects() if isinstance(thing, Broken)]
