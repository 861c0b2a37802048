"""A replay passes every letter to the handler once, under a policy and the letter's key."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref

import pytest

from conftest import watchdog
from redouble import Policy, current_attempt, retry
from redouble.context import outgoing_headers
from redouble.dead_letters import DeadLettered, DeadLetters, Replayed
from redouble.dead_letters._sqlite import SqliteStore
from support.dead_letters import NOW, fail, print_nothing

# Replays


def test_a_replay_of_an_empty_queue_leaves_nothing_to_the_garbage_collector(tmp_path):
    letters = DeadLetters(tmp_path / "letters.db")
    gc.collect()
    gc.disable()
    try:
        assert letters.replay(fail) == Replayed()
        store = weakref.ref(letters.store)
        del letters
        assert store() is None
    finally:
        gc.enable()


@pytest.mark.slow
def test_a_replay_hands_out_every_letter_once_and_deletes_what_succeeded(letters, clock):
    for number in range(120):
        letters.put(payload=number)
        clock.advance(0.001)
    seen, told = [], []

    def handler(letter):
        assert letter.state == "leased"
        seen.append(letter.payload)
        if letter.payload % 3 == 0:
            raise TimeoutError("no")

    outcome = letters.replay(handler, progress=lambda letter, what: told.append((letter.payload, what)))
    assert seen == list(range(120))
    assert outcome == Replayed(replayed=80, failed=40)
    assert told == [(number, "replayed" if number % 3 else "failed") for number in range(120)]
    assert [(letter.payload, letter.replays, letter.state) for letter in letters.list(limit=2)] == [
        (0, 1, "waiting"),
        (3, 1, "waiting"),
    ]
    assert letters.list(limit=1)[0].last_replay_error == "TimeoutError: no"


def test_a_letter_that_fails_too_often_is_parked_until_it_is_let_out(letters):
    letter = letters.put()
    outcomes = [letters.replay(fail(), park_after=3) for _ in range(4)]
    assert outcomes == [Replayed(failed=1), Replayed(failed=1), Replayed(parked=1), Replayed()]
    assert (letters.depth(), letters.parked(), letters.depths()) == (0, 1, {"default": 0})
    assert letters.list(state="waiting") == []
    assert [parked.id for parked in letters.list(state="parked")] == [letter.id]
    assert letters.unpark(letter.id)
    assert not letters.unpark(letter.id)
    assert (letters.depth(), letters.parked(), letters.get(letter.id).replays) == (1, 0, 0)
    for _ in range(10):
        letters.replay(fail(), park_after=None)
    assert letters.get(letter.id).replays == 10


def test_letters_that_are_not_to_be_replayed_are_skipped_unless_asked_for(letters):
    letters.put(replayable=False)
    letters.put()
    told = []
    assert letters.replay(print_nothing, progress=lambda letter, what: told.append(what)) == Replayed(
        replayed=1, skipped=1
    )
    assert sorted(told) == ["replayed", "skipped"]
    assert letters.replay(print_nothing, include_unreplayable=True) == Replayed(replayed=1)


def test_a_replay_ends_at_its_limit_and_keeps_to_its_queue(letters, clock):
    for number in range(5):
        letters.put(payload=number)
        clock.advance(1)
    letters.put(queue="bulk")
    assert letters.replay(print_nothing, limit=2) == Replayed(replayed=2)
    assert letters.replay(print_nothing, limit=0) == Replayed()
    assert letters.replay(print_nothing, queue="bulk") == Replayed(replayed=1)
    assert [letter.payload for letter in letters] == [2, 3, 4]


def test_letters_that_come_during_a_replay_are_for_the_next(letters):
    letters.put()
    letters.put()

    def handler(letter):
        letters.put()

    with watchdog():
        assert letters.replay(handler) == Replayed(replayed=2)
    assert letters.depth() == 2


def test_a_letter_that_is_put_again_while_it_is_replayed_is_not_deleted(letters):
    letters.put(idempotency_key="k", payload=1)

    def handler(letter):
        letters.put(idempotency_key="k", payload=2)

    assert letters.replay(handler) == Replayed(replayed=1)
    (letter,) = letters
    assert (letter.payload, letter.state, letter.puts) == (2, "waiting", 2)


def test_two_replayers_never_have_the_same_letter(letters):
    letters.put()

    def handler(letter):
        assert letters.depth() == 1
        assert letters.list(state="leased")[0].leased_by.startswith("me/")
        assert letters.replay(print_nothing) == Replayed()

    mine = DeadLetters(letters.store, owner="me", clock=letters._clock)
    assert mine.replay(handler) == Replayed(replayed=1)


def test_a_letter_that_another_takes_first_is_skipped(letters, clock):
    letter = letters.put()
    now = clock.now

    class Racing(SqliteStore):
        def claim(self, id, **fields):
            letters.store.claim(id, owner="other", now=now, until=now + 9)
            return super().claim(id, **fields)

    store = Racing(letters.store.name)
    assert DeadLetters(store, clock=clock).replay(print_nothing) == Replayed(skipped=1)
    assert letters.get(letter.id).leased_by == "other"
    store.close()


# Replays: policies and keys


def test_a_handler_is_retried_under_the_policy_with_the_letters_own_key(letters):
    letters.put(idempotency_key="orders:7 é")
    seen = []

    def handler(letter):
        seen.append(
            (
                current_attempt().number,
                current_attempt().idempotency_key,
                outgoing_headers()["Idempotency-Key"],
            )
        )
        raise TimeoutError("no")

    policy = Policy(attempts=3, sleep=lambda seconds: None)
    assert letters.replay(handler, policy) == Replayed(failed=1)
    key = "orders:7%20%C3%A9"
    assert seen == [(1, key, key), (2, key, key), (3, key, key)]
    assert current_attempt() is None


def test_without_a_policy_a_handler_is_called_once_and_has_the_key_all_the_same(letters):
    letter = letters.put(idempotency_key="k")
    seen = []

    def handler(letter):
        seen.append(outgoing_headers()["Idempotency-Key"])
        raise TimeoutError("no")

    letters.replay(handler)
    letters.discard(letter.id)
    letter = letters.put()
    letters.replay(handler)
    letters.replay(handler)
    assert seen == ["k", letter.id, letter.id]


def test_a_policy_that_makes_keys_makes_them_for_letters_that_have_none(letters):
    keys = []

    def handler(letter):
        keys.append(current_attempt().idempotency_key)

    letters.put(payload="p")
    letters.put(idempotency_key="k")
    letters.replay(handler, Policy(name="orders", idempotency_key=lambda letter: letter.payload))
    assert sorted(keys) == ["k", "orders:p"]


def test_the_name_of_a_replayed_call_is_the_handlers_or_the_policys(letters):
    heard = []
    letters.put()
    policy = Policy(attempts=2, sleep=lambda seconds: None, listeners=[heard.append])
    letters.replay(fail(), policy)
    letters.replay(fail(), policy.replace(name="mine"))
    assert {event.name for event in heard} == {fail().__qualname__, "mine"}


def test_a_policy_that_would_hide_failures_is_refused(letters):
    letters.put()
    with pytest.raises(ValueError, match="policy must have no fallback for a replay"):
        letters.replay(fail(), Policy(fallback=None))
    with pytest.raises(TypeError, match=r"policy must be a redouble\.Policy or None"):
        letters.replay(fail(), retry)
    assert letters.list()[0].replays == 0


def test_a_policy_with_dead_letters_of_its_own_writes_none_for_a_replay(letters):
    letters.put()
    policy = Policy(attempts=2, sleep=lambda seconds: None, dead_letters=letters)
    assert letters.replay(fail(), policy) == Replayed(failed=1)
    assert letters.depth() == 1


def test_async_handlers_are_refused_by_the_sync_replay_and_nothing_is_lost(letters):
    async def handler(letter):
        raise AssertionError("never runs")

    class Awaitable:
        def __await__(self):
            raise AssertionError("never runs")

    letters.put()
    for wrong in (handler, lambda letter: handler(letter), lambda letter: Awaitable()):
        with pytest.raises(TypeError, match=r"returns an awaitable: use await areplay\(\.\.\.\)"):
            letters.replay(wrong, Policy(until=lambda result: False))
    with pytest.raises(TypeError, match="handler must be a function"):
        letters.replay(7)
    (letter,) = letters
    assert (letter.state, letter.replays) == ("waiting", 0)


# Async


@pytest.mark.slow
def test_a_put_from_an_event_loop_does_not_block_it(tmp_path, events):
    class Slow(SqliteStore):
        def add(self, letter, **fields):
            assert threading.current_thread() is not threading.main_thread()
            time.sleep(0.1)
            return super().add(letter, **fields)

    async def main(letters):
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0.005)
                ticks += 1

        ticker = asyncio.create_task(tick())
        letter = await letters.aput(payload=1, idempotency_key="k")
        ticker.cancel()
        return letter, ticks

    with DeadLetters(Slow(str(tmp_path / "x.db")), listeners=[events.append]) as letters:
        letter, ticks = asyncio.run(main(letters))
        assert letters.list() == [letter]
    assert ticks >= 5
    assert events == [DeadLettered(letter)]


def test_async_handlers_are_awaited_under_the_policy_and_the_key(letters):
    seen = []

    async def handler(letter):
        await asyncio.sleep(0)
        seen.append((letter.payload, current_attempt().number, outgoing_headers()["Idempotency-Key"]))
        if letter.payload == 1 or current_attempt().number == 1:
            raise TimeoutError("no")

    letters.put(payload=1, idempotency_key="a")
    letters._clock.advance(1)
    letters.put(payload=2, idempotency_key="b")

    async def main():
        return await letters.areplay(handler, Policy(attempts=2, sleep=lambda seconds: None))

    assert asyncio.run(main()) == Replayed(replayed=1, failed=1)
    assert seen == [(1, 1, "a"), (1, 2, "a"), (2, 1, "b"), (2, 2, "b")]


def test_a_plain_handler_may_be_replayed_from_a_loop(letters):
    letters.put()
    assert asyncio.run(letters.areplay(print_nothing)) == Replayed(replayed=1)


def test_a_cancelled_replay_gives_the_lease_back(letters):
    letters.put()

    async def main():
        started = asyncio.Event()

        async def handler(letter):
            started.set()
            await asyncio.sleep(60)

        task = asyncio.create_task(letters.areplay(handler))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    (letter,) = letters
    assert (letter.state, letter.replays) == ("waiting", 0)


def test_everything_works_on_trio(letters):
    trio = pytest.importorskip("trio")

    async def handler(letter):
        await trio.sleep(0)
        if letter.payload == 1:
            raise TimeoutError("no")
        if letter.payload == 3:
            await trio.sleep(60)

    async def main():
        for payload in (1, 2, 3):
            await letters.aput(payload=payload)
            letters._clock.advance(1)
        assert await letters.areplay(handler, limit=2) == Replayed(replayed=1, failed=1)
        with trio.move_on_after(0.1):
            await letters.areplay(handler)

    trio.run(main)
    assert [(letter.payload, letter.replays, letter.state) for letter in letters] == [
        (1, 2, "waiting"),
        (3, 0, "waiting"),
    ]


def test_a_generator_is_no_handler_since_calling_it_runs_nothing(letters):
    def handler(letter):
        yield letter

    async def async_handler(letter):
        yield letter

    letters.put(payload=1)
    with pytest.raises(TypeError, match="handler must be a function, not a generator"):
        letters.replay(handler)
    with pytest.raises(TypeError, match="handler must be a function, not a generator"):
        asyncio.run(letters.areplay(async_handler))
    assert letters.depth() == 1


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_one_letter_can_be_replayed_by_its_id_whatever_its_queue(letters, asynchronous):
    first, second, third = (letters.put(payload=number, queue="bulk") for number in range(3))
    seen = []

    def replay(**fields):
        def handler(letter):
            seen.append(letter.payload)

        if asynchronous:
            return asyncio.run(letters.areplay(handler, **fields))
        return letters.replay(handler, **fields)

    assert replay(id=second.id) == Replayed(replayed=1)
    assert replay(id=second.id) == Replayed()
    assert replay(id=third.id, limit=0) == Replayed()
    assert letters.store.claim(first.id, owner="other", now=NOW, until=NOW + 60)
    assert replay(id=first.id) == Replayed(skipped=1)
    assert (seen, letters.depths()) == ([1], {"bulk": 2})
