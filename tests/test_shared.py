"""Guards whose state is in a store: here a file, and Redis clients that answer and fail by script.

What a real Redis does with the scripts is in interop/test_shared_redis.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import hashlib
import logging
import os
import pickle
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import redouble
from conftest import loop_time, watchdog
from redouble import CircuitOpen, Policy, retrying
from redouble._budget_file import APPLICATION
from redouble._redis import BUDGET, CIRCUIT
from redouble.breaker import State
from redouble.budget import TokenBudget
from redouble.events import CircuitChanged, StoreChanged
from redouble.shared import FileBudget, RedisBreaker, RedisBudget
from redouble.testing import FakeClock, scripted

ROOT = str(Path(redouble.__file__).parent.parent)
REFUSED = ConnectionError("Error 111 connecting to localhost:6379. Connection refused.")


class Interrupt(BaseException):
    """Not an Exception, as KeyboardInterrupt, but ends no test run."""


class NoScriptError(Exception):
    """As in redis.exceptions."""


class Client:
    """Stands for a ``redis.Redis``: answers by its script, the last line of which goes on for ever."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked, self.proving = [], []

    def execute_command(self, *words):
        raise AssertionError("not called")

    def evalsha(self, digest, keys, key, *words):
        self._note(words)
        return self._answer(digest, keys, key)

    def eval(self, script, keys, key, *words):
        self._note(words)
        return self._answer(script, keys, key)

    def _note(self, words):
        """The last word says whether the store must prove that it can be written to."""
        *words, proving = words
        self.asked.append(tuple(words))
        self.proving.append(proving == "True")

    def _answer(self, *_):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer() if callable(answer) else answer


class AsyncClient(Client):
    """Stands for a ``redis.asyncio.Redis``, whose commands are plain functions that give something to await."""

    async def execute_command(self, *words):
        raise AssertionError("not called")

    def evalsha(self, *args):
        return self._later(super().evalsha, args)

    def eval(self, *args):
        return self._later(super().eval, args)

    async def _later(self, method, args):
        answer = method(*args)
        return (await answer) if hasattr(answer, "__await__") else answer


class Store:
    """A flavour's client and clock, and what listeners heard."""

    def __init__(self, flavour, clock, *answers):
        self.flavour, self.clock, self.events = flavour, clock, []
        self.client = (AsyncClient if flavour.is_async else Client)(*answers)

    def budget(self, **fields):
        return RedisBudget(self.client, "retries", clock=self.clock, listeners=[self.events.append], **fields)

    def breaker(self, **fields):
        return RedisBreaker(
            self.client, "circuit", clock=self.clock, listeners=[self.events.append], **fields
        )

    def run(self, method, *args, **kwargs):
        return self.flavour.run(method, *args, **kwargs)


@pytest.fixture
def store(flavour, clock):
    return lambda *answers: Store(flavour, clock, *answers)


def left(tokens, taken=0):
    """What the script of a budget answers."""
    return [b"%r" % taken, b"%r" % tokens]


def said(state="closed", before=None, admitted=1, generation=7, oldest=None, failures=0, successes=0,
         probes=0, ends_in=b"", age=0, last=b""):  # fmt: skip
    """What the script of a circuit answers."""
    oldest = generation if oldest is None else oldest
    numbers = [b"%d" % generation, b"%d" % oldest, failures, successes, probes]
    return [admitted, (before or state).encode(), state.encode(), *numbers, ends_in, b"%r" % age, last]


def changes(events):
    return [event.available for event in events if isinstance(event, StoreChanged)]


def transitions(events):
    return [(event.before, event.after) for event in events if isinstance(event, CircuitChanged)]


# A store that answers


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
    given = []
    answer = here.client._answer
    here.client._answer = lambda *words: given.append(words) or answer(*words)
    assert here.run(budget.acquire) == 5.0
    digest = hashlib.sha1(BUDGET.encode()).hexdigest()
    assert given == [(digest, 1, "retries"), (BUDGET, 1, "retries")]
    assert budget.available


def test_the_client_says_whether_a_guard_is_awaited():
    assert not RedisBudget(Client(left(1.0)), "key").is_async
    assert RedisBudget(AsyncClient(left(1.0)), "key").is_async
    assert RedisBreaker(AsyncClient(said()), "key").is_async


def test_a_guard_is_called_by_its_key_unless_it_has_a_name(tmp_path):
    assert RedisBudget(Client(1), "payments:retries").name == "payments:retries"
    assert RedisBreaker(Client(1), "circuit", name="payments").name == "payments"
    assert FileBudget(tmp_path / "retries.db").name == "retries.db"


# A store that is away


@pytest.mark.parametrize("answer", [REFUSED, None, [], [b"1"], [b"one", b"two"], 5, said()], ids=str)
def test_whatever_the_store_fails_with_the_twin_answers(store, answer):
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
    assert record.getMessage() == "store of a shared guard changed"
    assert (record.policy, record.available) == ("payments", False)


def test_a_store_that_is_away_is_left_alone_for_a_while_and_then_tried_by_one(store, clock):
    here = store(REFUSED)
    budget = here.budget(retry_in=2.0)
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


def test_while_one_caller_tries_the_store_the_others_have_the_twin():
    clock, inner = FakeClock(), []
    client = Client(REFUSED, lambda: inner.append(budget.acquire()) or left(100.0, 5.0))
    budget = RedisBudget(client, "key", clock=clock)
    budget.acquire()
    clock.advance(1.0)
    assert budget.acquire() == 5.0
    assert (inner, len(client.asked)) == ([5.0], 2)


@pytest.mark.slow
def test_while_one_task_tries_the_store_the_others_have_the_twin(virtual):
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


def test_the_twin_begins_with_what_the_store_said_last(store):
    here = store(left(12.0, 5.0), REFUSED)
    budget = here.budget()
    assert [here.run(budget.acquire) for _ in range(4)] == [5.0, 5.0, 5.0, 0.0]
    assert budget.tokens == 2.0


def test_an_answer_that_comes_late_counts_but_the_next_does_without():
    clock, events = FakeClock(), []
    client = Client(lambda: clock.advance(0.3) or left(100.0, 5.0))
    budget = RedisBudget(client, "key", clock=clock, slow=0.25, listeners=[events.append])
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


# What successes cost


def test_a_success_asks_nobody_while_the_budget_is_believed_full(store, clock):
    here = store(left(500.0))
    budget = here.budget()
    assert not budget.full  # nothing is known yet
    here.run(budget.success)
    assert len(here.client.asked) == 1
    assert budget.full
    for _ in range(100):
        here.run(budget.success)
    assert len(here.client.asked) == 1
    clock.advance(0.99)
    assert budget.full
    clock.advance(0.01)
    assert not budget.full
    here.run(budget.success)
    assert budget.full
    assert [words[1] for words in here.client.asked] == ["1.0", "1.0"]


def test_what_successes_earn_is_sent_once_in_a_while(store, clock):
    here = store(left(100.0))
    budget = here.budget(earn=2)
    here.run(budget.look)
    for _ in range(10):
        here.run(budget.success)
        clock.advance(0.09)
    assert len(here.client.asked) == 1
    clock.advance(0.2)
    here.run(budget.success)
    assert [words[1:3] for words in here.client.asked] == [("0.0", "0.0"), ("22.0", "0.0")]


def test_what_successes_earned_goes_along_with_the_next_retry(store):
    here = store(left(100.0))
    budget = here.budget()
    here.run(budget.look)
    for _ in range(3):
        here.run(budget.success)
    assert not budget.at_rest
    here.run(budget.acquire)
    here.run(budget.acquire)
    assert [words[1:3] for words in here.client.asked] == [("0.0", "0.0"), ("3.0", "5.0"), ("0.0", "5.0")]
    assert budget.at_rest


@pytest.mark.parametrize(("refund", "given_back"), [(None, "10.0"), (3, "3.0"), (0, "0.0")])
def test_a_success_after_retries_gives_back_the_last_cost_at_once(store, refund, given_back):
    here = store(left(100.0))
    budget = here.budget(refund=refund)
    here.run(budget.look)
    here.run(budget.success, 10.0)
    assert [words[1] for words in here.client.asked] == ["0.0", given_back]


def test_a_cost_is_given_back_even_if_the_budget_is_believed_full(store):
    here = store(left(500.0))
    budget = here.budget()
    here.run(budget.look)
    assert budget.full
    here.run(budget.success, 5.0)
    assert here.client.asked[1][1] == "5.0"


def test_what_is_collected_is_never_more_than_the_capacity(store):
    here = store(left(2.0))
    budget = here.budget(capacity=3)
    here.run(budget.look)
    for _ in range(10):
        here.run(budget.success)
    here.run(budget.look)
    assert here.client.asked[1][1] == "3.0"


def test_a_first_attempt_that_failed_costs_nothing(store):
    here = store(left(2.0))
    assert here.run(here.budget().failure) is None
    assert here.client.asked == []


def test_what_successes_earn_while_the_store_is_away_the_twin_has(store, clock):
    here = store(left(5.0, 5.0), REFUSED)
    budget = here.budget()
    here.run(budget.acquire)
    here.run(budget.success)
    assert here.run(budget.look) == 6.0  # the twin's
    here.run(budget.success, 5.0)
    assert budget.tokens == 11.0
    clock.advance(1.0)
    here.run(budget.success)
    assert budget.tokens == 12.0
    assert not budget.at_rest


def test_a_budget_prints_what_was_last_seen(store):
    here = store(left(12.5))
    budget = here.budget(name="payments")
    here.run(budget.look)
    assert repr(budget) == "<payments: 12.5 of 500 tokens>"


# A breaker that hears of others


def test_a_call_asks_nobody_while_the_circuit_was_closed_a_moment_ago(store, clock):
    here = store(said())
    breaker = here.breaker(refresh=0.5)
    assert breaker.ticket is None
    assert here.run(breaker.enter) == 7
    assert (breaker.ticket, breaker.clean, len(here.client.asked)) == (7, True, 1)
    assert [here.run(breaker.enter) for _ in range(9)] == [7] * 9
    assert here.run(breaker.success, 7) is None
    clock.advance(0.49)
    assert breaker.ticket == 7
    assert len(here.client.asked) == 1
    clock.advance(0.01)
    assert breaker.ticket is None
    here.run(breaker.enter)
    assert len(here.client.asked) == 2


def test_one_caller_asks_again_and_the_others_go_by_what_is_known():
    clock, inner = FakeClock(), []
    client = Client(
        said(), lambda: inner.append((breaker.ticket, breaker.enter())) or said("open", admitted=0)
    )
    breaker = RedisBreaker(client, "key", clock=clock)
    breaker.enter()
    clock.advance(0.5)
    with pytest.raises(CircuitOpen):
        breaker.enter()
    assert (inner, len(client.asked)) == ([(7, 7)], 2)


def test_what_was_heard_long_ago_is_not_gone_by():
    clock, inner = FakeClock(), []
    client = Client(said(), lambda: inner.append(breaker.enter()) or said(generation=9), said(generation=8))
    breaker = RedisBreaker(client, "key", clock=clock)
    breaker.enter()
    clock.advance(60.0)
    breaker.enter()
    assert (inner, len(client.asked)) == ([8], 3)


def test_nothing_is_gone_by_before_anything_was_heard():
    inner = []
    client = Client(lambda: inner.append(breaker.enter()) or said(generation=9), said(generation=8))
    breaker = RedisBreaker(client, "key", clock=FakeClock())
    breaker.enter()
    assert (inner, len(client.asked)) == ([8], 2)


def test_a_probe_of_another_process_is_waited_for_as_long_as_is_left(store):
    here = store(said("half-open", admitted=0, probes=1, age=10_000))
    breaker = here.breaker(open_for=30.0)
    with pytest.raises(CircuitOpen) as caught:
        here.run(breaker.enter)
    assert caught.value.retry_after == breaker.retry_after == 20.0


def test_a_probe_that_was_replaced_counts_at_the_twin_too(store):
    here = store(said("half-open", probes=1, oldest=5, generation=9), REFUSED)
    breaker = here.breaker()
    here.run(breaker.look)
    here.run(breaker.success, 4)
    assert breaker.state is State.half_open
    here.run(breaker.success, 5)
    assert breaker.state is State.closed


def test_the_store_is_told_the_rules_and_what_happened(store):
    here = store(said(failures=1))
    breaker = here.breaker(failures=3, successes=2, open_for=10.0, probes=4, ttl=60.0)
    ticket = here.run(breaker.enter)
    place = here.client.asked[0][2]
    here.run(breaker.failure, ticket, TimeoutError("sl\N{EURO SIGN}w"))
    here.run(breaker.success, ticket)
    here.run(breaker.failure)
    here.run(breaker.open)
    here.run(breaker.close)
    rules = ("3", "2", "10000.0", "4", "60000.0", "")
    assert here.client.asked == [
        ("enter", "", place, "", *rules),
        ("failure", "7", "", r"TimeoutError: sl\u20acw", *rules),
        ("success", "7", "", "", *rules),
        ("failure", "", "", "", *rules),
        ("open", "", "", "", *rules),
        ("close", "", "", "", *rules),
    ]
    assert len(bytes.fromhex(place)) == 8


def test_times_that_redis_does_not_take_are_made_such_that_it_does(store):
    here = store(said())
    here.run(here.breaker(open_for=1e300, ttl=1e-9).look)
    assert (here.client.asked[0][6], here.client.asked[0][8]) == ("1000000000000.0", "1.0")


def test_a_circuit_that_others_have_opened_refuses_with_their_failure_and_the_time_left(store, clock):
    here = store(said("open", admitted=0, ends_in=b"12500", last=rb"TimeoutError: sl\u20acw"))
    breaker = here.breaker(name="payments")
    with pytest.raises(CircuitOpen) as caught:
        here.run(breaker.enter)
    error = caught.value
    assert (error.name, error.retry_after) == ("payments", 12.5)
    assert error.last_failure == "TimeoutError: sl\N{EURO SIGN}w"
    assert (breaker.state, breaker.retry_after, breaker.refuses()) == (State.open, 12.5, True)
    assert str(breaker.refusal()) == str(error)
    assert transitions(here.events) == []  # whoever opened it told of it
    for _ in range(5):
        with pytest.raises(CircuitOpen):
            here.run(breaker.enter)
    assert len(here.client.asked) == 1


def test_a_circuit_that_refuses_is_looked_at_again_in_case_somebody_closed_it(store, clock):
    here = store(said("open", admitted=0, ends_in=b"30000"), said(generation=9))
    breaker = here.breaker(refresh=0.5)
    with pytest.raises(CircuitOpen):
        here.run(breaker.enter)
    clock.advance(0.5)
    assert here.run(breaker.enter) == 9


def test_when_the_time_is_over_the_store_is_asked_whether_this_call_may_try(store, clock):
    here = store(
        said("open", admitted=0, ends_in=b"200"),
        said("half-open", before="open", generation=8, probes=1),
        said("closed", before="half-open", generation=9),
    )
    breaker = here.breaker(open_for=0.2)
    with pytest.raises(CircuitOpen):
        here.run(breaker.enter)
    clock.advance(0.2)
    assert (breaker.state, breaker.refuses()) == (State.half_open, False)
    ticket = here.run(breaker.enter)
    assert ticket == 8
    with pytest.raises(CircuitOpen, match="no more than 1 at once may try"):
        here.run(breaker.enter)
    here.run(breaker.success, ticket)
    place = here.client.asked[1][2]
    assert here.client.asked[2][:3] == ("success", "8", place)
    assert transitions(here.events) == [("open", "half-open"), ("half-open", "closed")]
    assert (breaker.state, breaker.ticket) == (State.closed, 9)


def test_whoever_changes_the_circuit_tells_of_it(store):
    here = store(said("open", before="closed", ends_in=b"30000", last=b"OSError: off"))
    others = []
    here.run(here.breaker().failure, 7, OSError("off"), (others.append,))
    (event,) = here.events
    assert others == [event]
    assert (event.before, event.after, event.delay) == ("closed", "open", 30.0)
    assert event.error_message == "OSError: off"


def test_a_circuit_that_is_held_open_by_hand_has_no_end(store):
    here = store(said("open", before="closed"))
    breaker = here.breaker()
    here.run(breaker.open)
    assert (breaker.retry_after, breaker.refuses()) == (None, True)
    assert here.events[0].delay is None
    with pytest.raises(CircuitOpen, match="held open by hand"):
        here.run(breaker.enter)


def test_an_answer_to_an_earlier_question_does_not_undo_a_later_one(virtual):
    async def main():
        async def slowly():
            await asyncio.sleep(0.1)
            return said()

        breaker = RedisBreaker(AsyncClient(slowly, said("open", ends_in=b"30000")), "key", clock=loop_time)
        early = asyncio.ensure_future(breaker.look())
        await asyncio.sleep(0)
        await breaker.failure(None, OSError())
        assert breaker.state is State.open
        await early
        assert breaker.state is State.open

    virtual(main)


def test_an_error_that_says_nothing_about_health_is_not_told(store):
    here = store(said())
    breaker = here.breaker(ignore=[KeyError])
    ticket = here.run(breaker.enter)
    here.run(breaker.failure, ticket, KeyError("id"))
    here.run(breaker.failure, ticket, FileNotFoundError(2, "no such file"))
    assert len(here.client.asked) == 1


def test_a_probe_that_ends_with_such_an_error_gives_its_place_back(store):
    here = store(said("half-open", probes=1), said("half-open", probes=0))
    breaker = here.breaker(ignore=lambda error: isinstance(error, KeyError))
    ticket = here.run(breaker.enter)
    place = here.client.asked[0][2]
    here.run(breaker.failure, ticket, KeyError("id"))
    assert (here.client.asked[1][0], here.client.asked[1][-1]) == ("look", place)
    assert breaker.at_rest


def test_ignore_is_asked_once_of_each_error(store):
    asked = []
    here = store(REFUSED)
    breaker = here.breaker(failures=9, ignore=lambda error: asked.append(error))
    here.run(breaker.failure, None, KeyError("id"))
    assert len(asked) == 1
    assert breaker.counted == (1, 1)


def test_an_interrupt_in_ignore_gives_the_place_of_the_probe_back(store):
    def ignore(error):
        raise Interrupt

    here = store(said("half-open", probes=1), said())
    breaker = here.breaker(ignore=ignore)
    ticket = here.run(breaker.enter)
    with pytest.raises(Interrupt):
        here.run(breaker.failure, ticket, KeyError("id"))
    here.run(breaker.enter)
    assert here.client.asked[1][-1] == here.client.asked[0][2]


def test_an_interrupt_in_a_listener_gives_the_place_of_the_probe_back(store):
    def listen(event):
        raise Interrupt

    here = store(said("half-open", before="open", probes=1), said())
    breaker = here.breaker()
    with pytest.raises(Interrupt):
        here.run(breaker.enter, (listen,))
    here.run(breaker.enter)
    assert here.client.asked[1][-1] == here.client.asked[0][2]


def test_a_place_that_may_have_been_taken_is_given_back_with_the_next_question(store, clock):
    here = store(REFUSED, Interrupt(), said(), said())
    breaker = here.breaker()
    here.run(breaker.enter)  # the twin lets it through
    clock.advance(1.0)
    with pytest.raises(Interrupt):
        here.run(breaker.enter)
    assert not breaker.at_rest
    here.run(breaker.enter)
    here.run(breaker.look)
    first, second = (words[2] for words in here.client.asked[:2])
    assert [words[-1] for words in here.client.asked] == ["", first, f"{first} {second}", ""]
    assert breaker.at_rest


def test_only_so_many_places_are_remembered(store, clock):
    here = store(REFUSED)
    breaker = here.breaker()
    for _ in range(100):
        here.run(breaker.enter)
        clock.advance(1.0)
    assert len(here.client.asked[-1][-1].split()) == 64


def test_a_cancelled_probe_is_not_lost(virtual):
    async def main():
        async def slowly():
            await asyncio.sleep(0.2)
            return said("half-open", probes=1)

        client = AsyncClient(slowly, said("half-open", probes=1))
        breaker = RedisBreaker(client, "key", clock=loop_time)
        task = asyncio.ensure_future(breaker.enter())
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await breaker.enter()
        assert client.asked[1][-1] == client.asked[0][2]

    virtual(main)


def test_a_guarded_call_that_is_interrupted_gives_its_place_back_and_counts_as_nothing(store):
    here = store(said("half-open", probes=1), said("half-open", probes=0))
    breaker = here.breaker()
    guarded = breaker(here.flavour.scripted(Interrupt()))
    with pytest.raises(Interrupt):
        here.run(guarded)
    assert [words[0] for words in here.client.asked] == ["enter", "look"]
    assert here.client.asked[1][-1] == here.client.asked[0][2]


def test_a_guarded_coroutine_that_is_closed_waits_for_nobody(clock):
    class Forever:
        def __await__(self):
            yield

    async def fetch():
        await Forever()

    client = AsyncClient(said("half-open", probes=1))
    breaker = RedisBreaker(client, "key", clock=clock)
    client._later = lambda method, args: _plain(method, args)
    with asyncio.Runner() as runner:
        coroutine = breaker(fetch)()

        async def start():
            # Stepped by hand, on a running loop: its time limit needs one.
            coroutine.send(None)

        runner.run(start())
        coroutine.close()
    assert len(client.asked) == 1
    assert not breaker.at_rest  # it goes with the next question


async def _plain(method, args):
    return method(*args)


def test_a_result_told_by_hand_needs_no_ticket(store):
    here = store(said("half-open", probes=1), said("half-open", probes=0))
    breaker = here.breaker()
    here.run(breaker.look)
    here.run(breaker.release)
    assert here.client.asked[1][:3] == ("release", "", "")
    assert here.run(here.breaker().release) is None


def test_the_twin_of_a_breaker_begins_where_the_store_was(store, clock):
    here = store(said("open", admitted=0, ends_in=b"30000", last=b"OSError: off"), REFUSED)
    breaker = here.breaker(probes=2)
    with pytest.raises(CircuitOpen):
        here.run(breaker.enter)
    clock.advance(1.0)
    with pytest.raises(CircuitOpen, match=r"for another 29\.0 s \(OSError: off\)"):
        here.run(breaker.enter)
    clock.advance(29.0)
    tickets = [here.run(breaker.enter) for _ in range(2)]
    with pytest.raises(CircuitOpen):
        here.run(breaker.enter)
    here.run(breaker.release, tickets[0])
    here.run(breaker.success, here.run(breaker.enter))
    assert breaker.state is State.closed
    assert transitions(here.events) == [("open", "half-open"), ("half-open", "closed")]


def test_a_breaker_is_opened_and_closed_by_hand_while_the_store_is_away(store):
    here = store(REFUSED)
    breaker = here.breaker()
    here.run(breaker.open)
    assert here.run(breaker.look) is State.open
    here.run(breaker.close)
    assert here.run(breaker.look) is State.closed
    assert repr(breaker) == "<circuit: closed>"


def test_when_the_store_is_back_its_circuit_counts(store, clock):
    here = store(REFUSED, said(failures=3))
    breaker = here.breaker(failures=1)
    here.run(breaker.failure, here.run(breaker.enter), OSError())
    assert breaker.state is State.open
    clock.advance(1.0)
    assert here.run(breaker.look) is State.closed
    assert (breaker.counted, breaker.clean) == ((3, 3), False)
    assert changes(here.events) == [False, True]


def test_a_breaker_is_a_decorator_and_a_context_manager():
    client = Client(said())
    breaker = RedisBreaker(client, "key")
    with breaker:
        pass
    assert breaker(lambda: "page")() == "page"

    async def main():
        asynchronous = RedisBreaker(AsyncClient(said()), "key")
        async with asynchronous:
            pass
        with pytest.raises(TypeError, match="async with"):
            asynchronous.__enter__()

    asyncio.run(main())
    assert len(client.asked) == 1


# Wrong arguments


@pytest.mark.parametrize("client", [None, object(), Client, "redis://localhost"], ids=repr)
@pytest.mark.parametrize("kind", [RedisBudget, RedisBreaker])
def test_what_is_no_client_is_refused(kind, client):
    with pytest.raises(TypeError, match=r"client must be a redis\.Redis or a redis\.asyncio\.Redis, got"):
        kind(client, "key")


NUMBERS = [float("nan"), float("inf"), -1, True]


@pytest.mark.parametrize("value", [*NUMBERS, 0], ids=repr)
@pytest.mark.parametrize("field", ["ttl", "refresh", "slow", "retry_in"])
@pytest.mark.parametrize("kind", [RedisBudget, RedisBreaker, FileBudget])
def test_a_wrong_time_is_refused_by_name(kind, field, value, tmp_path):
    args = (tmp_path / "file",) if kind is FileBudget else (Client(1), "key")
    with pytest.raises(ValueError, match=rf"^{field} must be .*, got {value!r}$"):
        kind(*args, **{field: value})


@pytest.mark.parametrize("value", NUMBERS, ids=repr)
@pytest.mark.parametrize("field", ["capacity", "cost", "timeout_cost", "refund", "earn"])
def test_a_wrong_amount_is_refused_by_name(field, value, tmp_path):
    with pytest.raises(ValueError, match=rf"^{field} must be .*, got {value!r}$"):
        FileBudget(tmp_path / "file", **{field: value})


@pytest.mark.parametrize("field", ["failures", "successes", "probes"])
def test_a_wrong_count_is_refused_by_name(field):
    with pytest.raises(ValueError, match=rf"^{field} must be at least 1, got 0$"):
        RedisBreaker(Client(1), "key", **{field: 0})


@pytest.mark.parametrize("key", [None, "", b"key", 5], ids=repr)
def test_a_key_is_a_text(key):
    with pytest.raises(TypeError, match="key must be a text"):
        RedisBudget(Client(1), key)


@pytest.mark.parametrize(("path", "error"), [(None, TypeError), (5, TypeError), ("", ValueError), (":memory:", ValueError)])  # fmt: skip
def test_a_path_is_the_path_of_a_file(path, error):
    with pytest.raises(error, match=r"path must be the path of a file.*"):
        FileBudget(path)


def test_an_async_listener_is_refused(tmp_path):
    async def listen(event): ...

    with pytest.raises(TypeError, match="listeners must be a plain function"):
        FileBudget(tmp_path / "file", listeners=[listen])


# Pickling, copying, forking


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("kind", [RedisBudget, RedisBreaker])
def test_a_guard_with_a_client_refuses_to_pickle(kind, protocol):
    guard = kind(Client(1), "key", name="payments")
    with pytest.raises(TypeError, match=r"payments \(Redis\w+\) .* cannot be pickled"):
        pickle.dumps(guard, protocol)
    assert copy.copy(guard) is guard
    assert copy.deepcopy([guard])[0] is guard


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_budget_in_a_file_pickles_with_its_settings(protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fields = {
        "capacity": 50.0, "cost": 4.0, "timeout_cost": 8.0, "refund": 2.0, "earn": 3.0, "ttl": 60.0,
        "refresh": 2.0, "slow": 0.5, "retry_in": 3.0, "name": "payments", "listeners": (print,),
        "reserves": {-1: 0.2},
    }  # fmt: skip
    budget = FileBudget("retries", **fields, clock=time.monotonic)
    budget.acquire()
    monkeypatch.chdir("/")
    other = pickle.loads(pickle.dumps(budget, protocol))
    assert {name: getattr(other, name) for name in fields} == fields
    assert (other.path, other._clock) == (str(tmp_path / "retries"), time.monotonic)
    assert other.look() == 46.0
    assert copy.copy(budget) is budget


def test_a_policy_with_a_budget_in_a_file_pickles(tmp_path):
    policy = pickle.loads(pickle.dumps(Policy(budget=FileBudget(tmp_path / "retries", capacity=10))))
    assert policy.budget.acquire() == 5.0


class Handover:
    """In the place of a lock: another thread is faster."""

    def __init__(self, happens):
        self.happens = happens

    def __enter__(self):
        self.happens()

    def __exit__(self, *_):
        pass


def test_a_caller_that_finds_the_store_back_asks_it(clock):
    client = Client(REFUSED, left(100.0, 5.0))
    budget = RedisBudget(client, "key", clock=clock)
    budget.acquire()
    budget._lock = Handover(lambda: setattr(budget, "_retry_at", None))
    assert budget._may_ask(1.0) is False


def test_what_is_of_the_parent_is_not_of_its_child(clock):
    budget = RedisBudget(Client(left(5.0)), "key", clock=clock)
    breaker = RedisBreaker(Client(REFUSED), "key", clock=clock)
    budget.look()
    budget.success()
    breaker.enter()
    assert (budget._earned, len(breaker._to_give_back)) == (1.0, 1)
    budget._trying = True
    for guard in (budget, breaker):
        lock = guard._lock
        guard._after_fork()
        assert guard._lock is not lock
    assert (budget._earned, budget._trying, breaker._to_give_back, breaker.ticket) == (0.0, False, (), None)


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")


def in_a_fork(body):
    """Runs a function in a forked child; it must come to an end, with something true."""
    child = os.fork()
    if not child:
        done = 1
        try:
            done = 0 if body() else 2
        finally:
            os._exit(done)
    with watchdog(60):
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_send_what_its_parent_earned(tmp_path):
    budget = FileBudget(tmp_path / "retries", capacity=100)
    for _ in range(4):
        budget.acquire()
    budget.success()
    in_a_fork(lambda: budget.look() == 80.0)
    assert budget.look() == 81.0


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_gives_no_place_back_that_is_its_parents():
    client = Client(said("half-open", probes=1), Interrupt(), said())
    breaker = RedisBreaker(client, "key", clock=FakeClock())
    breaker.enter()
    with pytest.raises(Interrupt):
        breaker.failure(None, OSError())
    breaker._give_back("place")
    in_a_fork(lambda: breaker.at_rest and breaker.look() and client.asked[-1][-1] == "")
    breaker.look()
    assert client.asked[-1][-1] == "place"


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_may_try_a_store_that_its_parent_is_trying():
    clock = FakeClock()
    client = Client(REFUSED, lambda: in_a_fork(lambda: retried(budget)) or left(9.0))
    budget = RedisBudget(client, "key", clock=clock)
    budget.acquire()
    clock.advance(1.0)

    def retried(budget):
        client.answers = [left(7.0)]
        return budget.look() == 7.0

    assert budget.look() == 9.0


@pytest.mark.slow
@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_while_threads_use_a_file_can_use_it_too(tmp_path):
    budget = FileBudget(tmp_path / "retries", capacity=1e6, slow=5.0)
    stop = threading.Event()

    def work():
        while not stop.is_set():
            budget.acquire()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            in_a_fork(lambda: budget.acquire() == 5.0 and budget.available)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert budget.available


# A budget in a file


def raw(path, statement="SELECT tokens FROM budget"):
    connection = sqlite3.connect(path)
    try:
        with connection:
            return connection.execute(statement).fetchall()
    finally:
        connection.close()


def test_the_file_is_made_when_it_is_first_needed(tmp_path):
    path = tmp_path / "retries"
    budget = FileBudget(path)
    assert not path.exists()
    assert budget.acquire() == 5.0
    assert raw(path) == [(495.0,)]
    assert list(tmp_path.iterdir()) == [path]  # nothing is left lying beside it


def test_budgets_of_one_file_share_what_is_left(tmp_path):
    one, other = (FileBudget(tmp_path / "retries", capacity=20) for _ in range(2))
    assert [one.acquire(), other.acquire(timeout=True), one.acquire(), other.acquire()] == [5, 10, 5, 0]
    other.success(5.0)
    assert one.look() == 5.0
    assert one.tokens == 5.0


def test_low_priorities_leave_their_reserve(tmp_path):
    budget = FileBudget(tmp_path / "retries", capacity=20, reserves={-1: 0.5})
    assert [budget.acquire(priority=-1) for _ in range(4)] == [5, 5, 5, 0]
    assert budget.acquire() == 5.0


operations = st.lists(
    st.one_of(
        st.tuples(st.just("acquire"), st.booleans(), st.integers(-1, 0)),
        st.tuples(st.just("success"), st.sampled_from([0.0, 5.0, 10.0])),
    ),
    max_size=30,
)


@pytest.mark.slow
@given(operations, st.integers(0, 40), st.sampled_from([None, 0, 7]), st.integers(0, 3))
def test_it_does_what_a_token_budget_does(tmp_path_factory, steps, capacity, refund, earn):
    path = tmp_path_factory.mktemp("budget") / "retries"
    model = TokenBudget(capacity, refund=refund, earn=earn)
    budgets = [FileBudget(path, capacity, refund=refund, earn=earn) for _ in range(2)]
    for number, (what, *rest) in enumerate(steps):
        budget = budgets[number % 2]
        if what == "acquire":
            timeout, priority = rest
            assert budget.acquire(timeout=timeout, priority=priority) == model.acquire(
                timeout=timeout, priority=priority
            )
        else:
            model.success(*rest)
            budget.look()  # or it may believe that it is full,
            budget.success(*rest)
            budget.look()  # and what was earned is sent a while later
        assert budget.tokens == model.tokens
        assert 0 <= budget.tokens <= capacity
    assert budgets[0].look() == model.tokens


def test_a_success_touches_no_file_while_the_budget_is_believed_full(tmp_path, clock):
    path = tmp_path / "retries"
    budget = FileBudget(path, clock=clock)
    budget.success()
    assert budget.full
    path.unlink()
    for _ in range(10):
        budget.success()
    assert not path.exists()
    clock.advance(1.0)
    budget.success()
    assert path.exists()


def test_a_budget_that_nobody_used_for_long_is_full_again(tmp_path, monkeypatch):
    now = [1e9]
    monkeypatch.setattr(time, "time", lambda: now[0])
    budget = FileBudget(tmp_path / "retries", capacity=20, ttl=60.0)
    budget.acquire()
    now[0] += 59.0
    assert budget.acquire() == 5.0
    now[0] += 59.0
    assert budget.look() == 10.0
    now[0] += 60.0
    assert budget.look() == 20.0
    budget.acquire()
    now[0] -= 1e6  # somebody set the clock
    assert budget.look() == 15.0


@pytest.mark.parametrize("held", ["NULL", "'many'", "-1", "9e999", "-9e999"])
def test_what_is_no_amount_counts_as_nothing(tmp_path, held):
    path = tmp_path / "retries"
    budget = FileBudget(path)
    budget.acquire()
    raw(path, f"UPDATE budget SET tokens = {held}")
    assert (budget.acquire(), budget.look(), budget.available) == (0.0, 0.0, True)
    budget.success(5.0)
    assert budget.look() == 5.0


@pytest.mark.parametrize("held", ["NULL", "'long ago'"])
def test_a_time_that_is_none_is_not_long_ago(tmp_path, held):
    path = tmp_path / "retries"
    budget = FileBudget(path)
    budget.acquire()
    raw(path, f"UPDATE budget SET used = {held}")
    assert budget.look() == 495.0


def foreign(path):
    raw(path, "CREATE TABLE people (name TEXT)")
    return "is a database, but not a budget"


def numbered(path):
    raw(path, "PRAGMA user_version = 3")
    return "is a database, but not a budget"


def newer(path):
    FileBudget(path).acquire()
    raw(path, "PRAGMA user_version = 2")
    return "has layout 2, this redouble knows 1"


def of_another_program(path):
    raw(path, f"PRAGMA application_id = {APPLICATION + 1}")
    return "is a database, but not a budget"


def garbage(path):
    path.write_bytes(b"not a database, but long enough to be taken for one" * 100)
    return "file is not a database"


def torn(path):
    FileBudget(path).acquire()
    content = bytearray(path.read_bytes())
    content[100:] = b"\xff" * (len(content) - 100)
    path.write_bytes(content)
    return "malformed"


def folder(path):
    path.mkdir()
    return "unable to open database file"


@pytest.mark.parametrize("spoil", [foreign, numbered, newer, of_another_program, garbage, torn, folder])
def test_a_file_that_is_not_a_budget_is_left_as_it_is_and_the_twin_takes_over(tmp_path, spoil):
    path = tmp_path / "retries"
    message = spoil(path)
    before = path.read_bytes() if path.is_file() else None
    events = []
    budget = FileBudget(path, capacity=10, listeners=[events.append])
    assert [budget.acquire() for _ in range(3)] == [5.0, 5.0, 0.0]
    assert message in events[0].error_message
    assert changes(events) == [False]
    assert before == (path.read_bytes() if path.is_file() else None)


def test_a_folder_that_is_not_there_yet_is_waited_for(tmp_path, clock):
    budget = FileBudget(tmp_path / "later" / "retries", clock=clock)
    assert (budget.acquire(), budget.available) == (5.0, False)
    (tmp_path / "later").mkdir()
    clock.advance(1.0)
    assert (budget.acquire(), budget.available) == (5.0, True)


@pytest.mark.slow
def test_a_file_that_somebody_holds_locked_is_not_waited_for_long(tmp_path):
    path = tmp_path / "retries"
    budget = FileBudget(path, slow=0.05)
    budget.acquire()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        began = time.monotonic()
        assert budget.acquire() == 5.0
        assert time.monotonic() - began < 2.0
        assert not budget.available
    finally:
        holder.close()
    assert raw(path) == [(495.0,)]


def run(code, *args):
    """Starts a program that finds this redouble; whatever it writes to stderr is shown."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        env={**os.environ, "PYTHONPATH": ROOT},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no limits on files there")
def test_a_full_disk_is_the_twins_hour(tmp_path):
    code = """
        import resource, sys
        from redouble.shared import FileBudget
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        budget = FileBudget(sys.argv[1], capacity=10)
        print([budget.acquire() for _ in range(3)], budget.available)
    """
    assert run(code, tmp_path / "retries").communicate(timeout=60)[0] == "[5.0, 5.0, 0.0] False\n"


SPEND = """
    import sys
    from redouble.shared import FileBudget
    budget = FileBudget(sys.argv[1], capacity=2000, slow=10.0)
    sys.stdin.readline()
    granted = 0
    while budget.acquire():
        granted += 1
    assert budget.available
    print(granted)
"""


@pytest.mark.slow
def test_processes_that_share_a_file_never_overspend(tmp_path):
    path = tmp_path / "retries"
    processes = []
    for _ in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(SPEND), str(path)],
            env={**os.environ, "PYTHONPATH": ROOT},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    granted = [int(process.communicate(timeout=60)[0]) for process in processes]
    assert sum(granted) == 400
    assert raw(path) == [(0.0,)]


@pytest.mark.slow
def test_a_process_that_is_killed_in_the_middle_leaves_the_file_whole_and_nothing_unspent(tmp_path):
    code = """
        import os, sys
        from redouble.shared import FileBudget
        budget = FileBudget(sys.argv[1], capacity=1e6, slow=10.0)
        while budget.acquire():
            os.write(1, b".")  # at once: what was said was granted
    """
    path = tmp_path / "retries"
    granted = 0
    for _ in range(5):
        process = run(code, path)
        process.stdout.read(20)
        process.kill()
        granted += 20 + len(process.stdout.read())
        process.stdout.close()
        process.wait()
    spent = 1e6 - FileBudget(path, capacity=1e6).look()
    assert granted * 5 <= spent <= (granted + 5) * 5
    assert raw(path, "PRAGMA integrity_check") == [("ok",)]


def test_threads_that_share_a_budget_never_overspend(tmp_path):
    budget = FileBudget(tmp_path / "retries", capacity=500, slow=10.0)
    granted = []

    def work():
        while taken := budget.acquire():
            granted.append(taken)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(granted) == 500.0


@pytest.mark.slow
def test_it_travels_to_processes_that_are_spawned(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import multiprocessing, sys
        from redouble.shared import FileBudget

        def work(budget):
            return budget.acquire()

        if __name__ == "__main__":
            budget = FileBudget(sys.argv[1], capacity=10)
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                print(sorted(pool.map(work, [budget] * 3)), budget.look())
                pool.close()
                pool.join()
        """)
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", script, tmp_path / "retries"],
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[0.0, 5.0, 5.0] 0.0\n", "")


# In a policy


def test_an_empty_shared_budget_stops_retries_but_never_a_first_attempt(flavour, tmp_path):
    budget = FileBudget(tmp_path / "retries", capacity=5)
    other = FileBudget(tmp_path / "retries", capacity=5)
    policy = Policy(attempts=3, budget=budget, on=OSError, sleep=lambda seconds: None)
    with pytest.raises(OSError, match="off"):
        flavour.call(policy, flavour.scripted(*[OSError("off")] * 2))
    assert other.look() == 0.0
    function = flavour.scripted(OSError("off"))
    with pytest.raises(OSError, match="off"):
        flavour.call(policy.replace(budget=other), function)
    assert len(function.calls) == 1


def test_a_policy_awaits_a_budget_on_an_asyncio_client(clock):
    client = AsyncClient(left(495.0, 5.0))
    policy = Policy(budget=RedisBudget(client, "key", clock=clock), sleep=lambda seconds: None)
    fetch = policy(scripted(TimeoutError("slow"), "page", asynchronous=True))
    assert asyncio.run(fetch()) == "page"
    # Taken for the retry, after a timeout; then given back.
    assert [words[1:3] for words in client.asked] == [("0.0", "10.0"), ("5.0", "0.0")]


def test_a_policy_asks_and_tells_a_shared_breaker(store):
    here = store(said(), said(failures=1), said())
    policy = Policy(breaker=here.breaker(), sleep=lambda seconds: None)
    assert here.flavour.call(policy, here.flavour.scripted(TimeoutError("slow"), "page")) == "page"
    assert [words[0] for words in here.client.asked] == ["enter", "failure", "success"]


def test_a_policy_is_refused_by_a_circuit_that_others_opened(store):
    here = store(said("open", admitted=0, ends_in=b"30000"))
    function = here.flavour.scripted("page")
    with pytest.raises(CircuitOpen):
        here.flavour.call(Policy(breaker=here.breaker()), function)
    assert function.calls == []


def test_no_call_fails_because_the_store_is_away(store):
    here = store(REFUSED)
    policy = Policy(budget=here.budget(), breaker=here.breaker(), sleep=lambda seconds: None)
    assert here.flavour.call(policy, here.flavour.scripted(TimeoutError("slow"), "page")) == "page"
    assert changes(here.events) == [False, False]


def test_the_scripts_touch_no_key_but_their_own():
    for script in (BUDGET, CIRCUIT):
        assert "KEYS[2]" not in script
        assert script.count("redis.call(") == script.count("KEYS[1]") + script.count("'TIME'")


# What the others have done


def test_a_policy_learns_within_refresh_that_others_have_closed_the_circuit(store, clock):
    here = store(said("open", ends_in=b"30000", admitted=0), said(generation=8))
    breaker = here.breaker(refresh=0.5)
    policy = Policy(breaker=breaker, clock=clock, sleep=clock.sleep)
    page = here.flavour.scripted("page")
    with pytest.raises(CircuitOpen):
        here.flavour.call(policy, page)
    assert breaker.refuses()
    clock.advance(0.5)
    assert not breaker.refuses()  # nobody knows: so `enter` is reached, and asks
    assert here.flavour.call(policy, page) == "page"


def test_an_answer_that_the_store_gave_earlier_does_not_undo_a_later_generation(virtual):
    async def main():
        async def slowly():
            await asyncio.sleep(0.1)
            return said(generation=7)

        async def at_last():
            await asyncio.sleep(0.2)
            return said(generation=0)

        opened = said("open", ends_in=b"30000", generation=9)
        breaker = RedisBreaker(AsyncClient(opened, slowly, at_last), "key", clock=loop_time)
        telling = breaker.failure(None, OSError())
        later = asyncio.ensure_future(breaker.look())  # asked later, carried out earlier
        await telling
        assert breaker.state is State.open
        await later
        assert breaker.state is State.open
        # But a store that has lost its key begins anew, which whoever asks now is told.
        await breaker.look()
        assert breaker.state is State.closed

    virtual(main)


def test_what_the_twin_has_decided_is_not_undone_by_an_answer_to_an_earlier_question(virtual):
    async def main():
        async def slowly():
            await asyncio.sleep(0.1)
            return said()

        breaker = RedisBreaker(AsyncClient(said(), slowly, REFUSED), "key", failures=1, clock=loop_time)
        await breaker.enter()
        earlier = asyncio.ensure_future(breaker.look())
        await asyncio.sleep(0.01)
        await breaker.failure(None, OSError())
        assert (breaker.state, breaker.available) == (State.open, False)
        await earlier
        assert (breaker.state, breaker.available) == (State.open, False)

        async def full():
            await asyncio.sleep(0.1)
            return left(10.0)

        budget = RedisBudget(AsyncClient(full, REFUSED), "key", capacity=10, clock=loop_time)
        earlier = asyncio.ensure_future(budget.look())
        await asyncio.sleep(0.01)
        assert [await budget.acquire() for _ in range(3)] == [5.0, 5.0, 0.0]
        await earlier
        assert (budget.tokens, budget.available) == (0.0, False)

    virtual(main)


# A store that can be read and not written


def test_a_store_that_is_tried_again_must_prove_that_it_can_be_written_to(store, clock):
    here = store(REFUSED, left(100.0, 5.0))
    budget = here.budget()
    here.run(budget.acquire)
    clock.advance(1.0)
    here.run(budget.acquire)
    here.run(budget.acquire)
    assert here.client.proving == [False, True, False]


def test_a_file_that_is_read_only_is_not_taken_for_one_that_is_back(tmp_path, clock):
    # Full, so that nothing would be written; with a table that refuses whatever is.
    path, events = tmp_path / "retries", []
    budget = FileBudget(path, capacity=10, clock=clock, listeners=[events.append])
    budget.look()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "CREATE TRIGGER full BEFORE INSERT ON budget BEGIN SELECT RAISE(ABORT, 'no room'); END"
        )
        connection.commit()
    granted = []
    for _ in range(8):
        granted.append(budget.acquire())
        clock.advance(1.0)
        budget.look()
    assert granted == [5.0, 5.0, *[0.0] * 6]
    assert changes(events) == [False]
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TRIGGER full")
    clock.advance(1.0)
    assert (budget.look(), changes(events), raw(path)) == (10.0, [False, True], [(10.0,)])


# No flapping


def test_a_connection_that_was_lost_before_the_store_came_back_does_not_count_again(store, clock):
    here = store(REFUSED, left(95.0, 5.0), ConnectionResetError("closed by server"), left(90.0, 5.0))
    budget = here.budget(capacity=100)
    here.run(budget.acquire)
    clock.advance(1.0)
    assert here.run(budget.acquire) == 5.0  # it is back
    assert here.run(budget.acquire) == 5.0  # by the twin, for this once
    assert here.run(budget.acquire) == 5.0
    assert (changes(here.events), budget.available, budget.tokens) == ([False, True], True, 90.0)


def test_a_store_that_goes_on_failing_after_it_came_back_is_away_again(store, clock):
    here = store(REFUSED, left(95.0, 5.0), REFUSED)
    budget = here.budget(capacity=100)
    here.run(budget.acquire)
    clock.advance(1.0)
    here.run(budget.acquire)
    clock.advance(1.0)
    here.run(budget.acquire)
    assert changes(here.events) == [False, True, False]


def test_a_failure_of_a_question_from_before_the_store_came_back_does_not_count(virtual):
    async def main():
        async def at_last():
            await asyncio.sleep(0.2)
            raise ValueError("what was that")

        events = []
        client = AsyncClient(left(90.0, 5.0), at_last, REFUSED, left(90.0, 5.0))
        budget = RedisBudget(client, "key", clock=loop_time, retry_in=0.1, listeners=[events.append])
        await budget.acquire()
        early = asyncio.ensure_future(budget.look())
        await asyncio.sleep(0)
        await budget.acquire()
        await asyncio.sleep(0.1)
        await budget.acquire()
        await early
        assert changes(events) == [False, True]

    virtual(main)


# The time of the call


@pytest.mark.parametrize("guard", ["breaker", "budget", "both"])
def test_a_store_that_hangs_leaves_a_call_the_time_to_be_made(virtual, guard):
    async def main():
        async def never():
            await asyncio.sleep(3600)

        client, events, made = AsyncClient(never), [], []
        fields = {
            "breaker": RedisBreaker(client, "circuit", clock=loop_time, listeners=[events.append]),
            "budget": RedisBudget(client, "retries", clock=loop_time),
        }
        policy = Policy(
            deadline=0.1, clock=loop_time, base=0.001,
            **(fields if guard == "both" else {guard: fields[guard]}),
        )  # fmt: skip

        async def fetch():
            made.append(loop_time())
            if len(made) % 2:
                raise TimeoutError("slow")
            return "page"

        for _ in range(20):
            began = loop_time()
            assert await policy.call(fetch) == "page"
            assert loop_time() - began < 0.1
        assert len(made) == 40
        # No answer for ``slow`` seconds: now it is away, however little each call has waited.
        assert [fields[name].available for name in fields if guard in (name, "both")] in (
            [False],
            [False] * 2,
        )
        assert changes(events) in ([], [False])

    virtual(main)


def test_a_store_that_is_cut_short_by_one_call_is_not_away_for_all(virtual):
    async def main():
        async def late():
            await asyncio.sleep(0.05)
            return left(95.0, 5.0)

        budget = RedisBudget(AsyncClient(late), "key", clock=loop_time)
        with retrying(deadline=0.1, clock=loop_time):
            assert await budget.acquire() == 5.0  # by the twin
        assert budget.available
        assert (await budget.acquire(), budget.tokens) == (5.0, 95.0)
        await asyncio.sleep(1.0)
        with retrying(deadline=0.1, clock=loop_time):
            await budget.acquire()
        assert budget.available

    virtual(main)


def test_a_caller_with_little_time_leaves_it_to_others_to_try_a_sync_client(clock):
    client = Client(REFUSED)
    budget = RedisBudget(client, "key", clock=clock)
    budget.acquire()
    clock.advance(1.0)
    with retrying(deadline=0.2, clock=clock):
        budget.acquire()
    assert len(client.asked) == 1
    budget.acquire()
    assert len(client.asked) == 2
    clock.advance(10.0)  # nobody else came
    with retrying(deadline=0.2, clock=clock):
        budget.acquire()
    assert len(client.asked) == 3


@pytest.fixture
def locked(tmp_path):
    """A file that another connection holds locked."""
    path = tmp_path / "locked"
    FileBudget(path).acquire()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    yield path
    holder.close()


def longest(count, function):
    """The longest of so many calls at once, in threads."""
    took, start = [], threading.Barrier(count)

    def work():
        start.wait()
        began = time.monotonic()
        function()
        took.append(time.monotonic() - began)

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(took)


def test_threads_wait_for_a_locked_file_side_by_side(locked, tmp_path):
    budget, healthy = FileBudget(locked, slow=0.1), FileBudget(tmp_path / "healthy", slow=30.0)
    others = []
    thread = threading.Thread(target=lambda: others.append(longest(4, healthy.acquire)))
    thread.start()
    assert longest(32, budget.acquire) < 1.0  # and not 3.2
    thread.join()
    assert (others[0] < 1.0, healthy.available, budget.available) == (True, True, False)


def test_a_locked_file_takes_no_more_time_than_the_call_has(locked):
    budget = FileBudget(locked, slow=30.0)
    policy = Policy(attempts=2, deadline=0.2, base=0.001, budget=budget)
    assert policy.call(scripted(TimeoutError("slow"), "page")) == "page"
    assert budget.available  # which one impatient call cannot say


def test_a_file_in_use_by_another_thread_is_not_waited_for_long(tmp_path):
    budget, done = FileBudget(tmp_path / "retries", slow=0.05), threading.Event()
    held = threading.Event()

    def hold():
        with budget._link._one_at_a_time:
            held.set()
            done.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    try:
        assert (budget.acquire(), budget.available) == (5.0, False)
    finally:
        done.set()
        thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_does_not_wait_for_a_locked_file(locked):
    budget = FileBudget(locked, slow=30.0)
    thread = threading.Thread(target=budget.acquire, daemon=True)
    thread.start()
    time.sleep(0.02)
    began = time.monotonic()
    child = os.fork()
    if not child:
        os._exit(0)
    assert time.monotonic() - began < 5.0
    assert os.waitpid(child, 0)[1] == 0


# A client that waits for longer than the guard does


class Pool:
    def __init__(self, **settings):
        self.connection_kwargs = settings


class Repeats:
    _retries = 10


def client_with(**settings):
    client = Client(REFUSED)
    client.connection_pool = Pool(**settings)
    return client


PATIENT = [
    ({"socket_timeout": 5, "socket_connect_timeout": 5, "retry": Repeats()}, "waits 5 s for an answer and repeats a command 10 times"),
    ({"socket_timeout": None, "retry": None}, "waits inf s for an answer, so"),
    ({"socket_timeout": 0.25, "socket_connect_timeout": 2}, "waits 2 s for an answer, so"),
    ({"socket_timeout": 0.25, "retry": Repeats()}, "repeats a command 10 times, so"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "found"), PATIENT)
@pytest.mark.parametrize("kind", [RedisBudget, RedisBreaker])
def test_a_client_that_waits_for_longer_than_slow_is_warned_about(kind, settings, found):
    with pytest.warns(
        RuntimeWarning, match=f"the client of key {found}.*socket_timeout=0.25.*retry=None"
    ) as caught:
        kind(client_with(**settings), "key")
    assert caught[0].filename == __file__


@pytest.mark.parametrize("kind", [RedisBudget, RedisBreaker])
def test_a_client_that_gives_up_soon_enough_is_not_warned_about(kind):
    kind(client_with(socket_timeout=0.25, socket_connect_timeout=0.25, retry=None), "key")
    kind(client_with(socket_timeout=2, retry=None), "key", slow=2.0)
    kind(AsyncClient(REFUSED), "key")
    patient = AsyncClient(REFUSED)
    patient.connection_pool = Pool(socket_timeout=5)  # it is cut off
    kind(patient, "key")


def test_what_a_retry_cost_that_was_not_made_is_sent_with_the_next_question(store):
    here = store(left(95.0, 5.0))
    budget = here.budget(capacity=100)
    budget.give_back(here.run(budget.acquire))
    here.run(budget.look)
    assert here.client.asked[1][1] == "5.0"
