"""A letter is in one hand at a time, its claims are counted, and its lease is renewed while a handler runs."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from redouble import Policy
from redouble.dead_letters import DeadLetters, Replayed, Store, StoreError
from redouble.dead_letters._letter import iso
from redouble.dead_letters._replay import Renewal, Replay
from redouble.dead_letters._sqlite import SqliteStore
from support.dead_letters import NOW, add, claim_and_die, fail, interrupting, print_nothing


def test_a_lease_that_is_over_may_be_taken_by_another_and_the_first_can_no_longer_delete(letters, clock):
    letters.put()

    def slow(letter):
        clock.advance(61)
        assert letters.list(state="leased") == []
        assert letters.replay(fail()) == Replayed(failed=1)

    # Only the one that holds the claim counts, though both have run the handler.
    assert letters.replay(slow) == Replayed(skipped=1)
    (letter,) = letters
    assert (letter.state, letter.replays, letter.last_replay_error) == ("waiting", 2, "TimeoutError: no")


def test_a_failure_after_the_lease_is_over_is_told_by_the_one_that_took_the_letter(letters, clock):
    letters.put()

    def slow(letter):
        clock.advance(61)
        assert letters.replay(print_nothing) == Replayed(replayed=1)
        raise TimeoutError("no")

    assert letters.replay(slow, park_after=1) == Replayed(skipped=1)
    assert letters.depths() == {}


def test_a_replay_that_nobody_took_over_counts_although_its_lease_is_over(letters, clock):
    letters.put()
    assert letters.replay(lambda letter: clock.advance(61)) == Replayed(replayed=1)
    letters.put(idempotency_key="k")

    def put_again(letter):
        clock.advance(61)
        letters.put(idempotency_key="k")

    assert letters.replay(put_again) == Replayed(replayed=1)
    assert [letter.replays for letter in letters] == [0]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_letter_whose_replays_never_end_is_parked_after_so_many_claims(letters, clock, asynchronous):
    letter = letters.put(payload="deadly")
    letters.put(payload="behind")
    for number in (1, 2, 3):
        claimed = claim_and_die(letters, clock, park_after=3)
        assert (claimed.id, claimed.replays) == (letter.id, number)
    seen, told = [], []
    fields = {"park_after": 3, "progress": lambda letter, outcome: told.append((letter.payload, outcome))}
    if asynchronous:
        done = asyncio.run(letters.areplay(lambda letter: seen.append(letter.payload), **fields))
    else:
        done = letters.replay(lambda letter: seen.append(letter.payload), **fields)
    assert done == Replayed(replayed=1, parked=1)
    assert seen == ["behind"]
    assert told == [("deadly", "parked"), ("behind", "replayed")]
    (parked,) = letters.list(state="parked")
    assert (parked.replays, parked.leased_by) == (3, None)
    assert parked.last_replay_error.startswith("its last replay never ended: the process was killed")
    assert letters.unpark(letter.id)
    assert letters.replay(print_nothing, park_after=3) == Replayed(replayed=1)


def test_without_park_after_claims_are_counted_and_nothing_is_parked(letters, clock):
    letters.put()
    for _ in range(8):
        claim_and_die(letters, clock, park_after=None)
    assert letters.replay(fail(), park_after=None) == Replayed(failed=1)
    assert [letter.replays for letter in letters] == [9]


def test_failures_and_replays_that_never_ended_are_counted_together(letters, clock):
    letters.put()
    claim_and_die(letters, clock)
    assert letters.replay(fail(), park_after=3) == Replayed(failed=1)
    assert letters.replay(fail(), park_after=3) == Replayed(parked=1)
    assert [letter.replays for letter in letters.list(state="parked")] == [3]


@pytest.mark.parametrize("way_out", [SystemExit, GeneratorExit, asyncio.CancelledError])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_handler_that_ends_the_replay_itself_is_counted_and_parked(letters, way_out, asynchronous):
    letters.put()

    def handler(letter):
        raise way_out("3")

    async def async_handler(letter):
        raise way_out("3")

    for _ in range(2):
        with pytest.raises(way_out):
            if not asynchronous:
                letters.replay(handler, Policy(attempts=3), park_after=2)
            else:
                asyncio.run(letters.areplay(async_handler, park_after=2))
    (letter,) = letters
    if asynchronous and way_out is GeneratorExit:  # as where the coroutine is closed
        assert (letter.state, letter.replays) == ("waiting", 0)
    else:
        assert (letter.state, letter.replays) == ("parked", 2)
        assert letter.last_replay_error == f"{way_out.__name__}: 3"


def test_a_replay_whose_coroutine_is_closed_gives_the_lease_back(letters):
    letters.put()

    async def main():
        never = asyncio.get_running_loop().create_future()

        async def handler(letter):
            await never

        coroutine = letters.areplay(handler)
        while (waits_for := coroutine.send(None)) is not never:
            await asyncio.wait([waits_for])
        coroutine.close()

    asyncio.run(main())
    assert [(letter.state, letter.replays) for letter in letters] == [("waiting", 0)]


def test_a_lease_of_the_same_owner_is_not_mistaken_for_the_one_before(tmp_path, clock):
    with DeadLetters(tmp_path / "x.db", owner="me", clock=clock) as letters:
        letters.put()
        first, second = Replay(letters), Replay(letters)
        late = first.next()
        clock.advance(61)
        assert second.next() is not None
        first.done(late)
        assert [letter.state for letter in letters] == ["leased"]
        first.end()
        second.end()


def test_an_interrupted_replay_keeps_the_error_of_the_one_before(letters):
    letters.put()
    letters.replay(fail("before"))
    with pytest.raises(KeyboardInterrupt):
        letters.replay(interrupting)
    (letter,) = letters
    assert (letter.replays, letter.last_replay_error) == (1, "TimeoutError: before")


def test_a_lease_is_renewed_while_the_handler_runs(tmp_path):
    with DeadLetters(tmp_path / "x.db") as letters:
        letters.put()
        first = []

        def slow(letter):
            first.append(letter.leased_until)
            end = time.monotonic() + 60
            while letters.get(letter.id).leased_until == first[0] and time.monotonic() < end:
                time.sleep(0.005)
            assert letters.get(letter.id).leased_until > first[0]

        assert letters.replay(slow, lease=0.6) == Replayed(replayed=1)
    assert "redouble lease" not in [thread.name for thread in threading.enumerate()]


def test_a_renewal_that_fails_is_reported_and_tried_again(tmp_path, caplog):
    renewed = threading.Event()

    class Flaky(SqliteStore):
        def renew(self, id, **fields):
            if not any("renewed" in record.message for record in caplog.records):
                raise StoreError("away", location="x")
            renewed.set()
            return super().renew(id, **fields)

    with DeadLetters(Flaky(str(tmp_path / "x.db"))) as letters:
        letters.put()
        assert letters.replay(lambda letter: renewed.wait(60), lease=0.03) == Replayed(replayed=1)
    assert renewed.is_set()


def test_nothing_is_renewed_between_two_letters():
    class NoStore(Store):
        def renew(self, id, **fields):
            raise AssertionError("renewed")

    renewal = Renewal(NoStore(), 0.003, time.time)
    renewal.hold("x", "me", 0.0)
    renewal.let_go()
    time.sleep(0.02)
    renewal.stop()
    Renewal(NoStore(), 1.0, time.time).stop()


def test_a_lease_that_was_taken_by_another_is_not_believed_to_be_renewed():
    asked = threading.Event()

    class Lost(Store):
        def renew(self, id, **fields):
            asked.set()
            return False

    renewal = Renewal(Lost(), 0.003, time.time)
    renewal.hold("x", "me", 7.0)
    assert asked.wait(60)
    renewal.stop()
    assert renewal.until == 7.0


def test_where_no_thread_can_be_started_the_replay_goes_on_without(letters, monkeypatch, caplog):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    letters.put()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert letters.replay(print_nothing) == Replayed(replayed=1)
    assert any("leases are not renewed" in record.message for record in caplog.records)


def test_an_interrupt_gives_the_lease_back_and_comes_out(letters):
    letters.put()

    with pytest.raises(KeyboardInterrupt):
        letters.replay(interrupting, Policy(attempts=3))
    (letter,) = letters
    assert (letter.state, letter.replays, letter.last_replay_error) == ("waiting", 0, None)


def test_a_lease_that_cannot_be_given_back_does_not_hide_the_interrupt(tmp_path, caplog):
    class Away(SqliteStore):
        def release(self, id, **fields):
            raise StoreError("away", location="x")

    with DeadLetters(Away(str(tmp_path / "x.db"))) as letters:
        letters.put()
        with pytest.raises(KeyboardInterrupt):
            letters.replay(interrupting)
        assert letters.list()[0].state == "leased"
    assert any("could not be released" in record.message for record in caplog.records)


def test_a_progress_function_that_fails_is_reported_once_and_swallowed(letters, caplog):
    def broken(letter, outcome):
        raise RuntimeError("no")

    letters.put()
    letters.put()
    assert letters.replay(print_nothing, progress=broken) == Replayed(replayed=2)
    assert sum("progress=" in record.message for record in caplog.records) == 1


def test_a_claim_is_refused_while_leased_or_parked_and_given_when_the_lease_is_over(store):
    letter = add(store).letter
    claimed = store.claim(letter.id, owner="a", now=NOW, until=NOW + 60)
    assert (claimed.state, claimed.leased_by, claimed.leased_until) == ("leased", "a", iso(NOW + 60))
    assert store.claim(letter.id, owner="b", now=NOW + 59.9, until=NOW + 99) is None
    assert store.renew(letter.id, owner="a", until=NOW + 70)
    assert store.claim(letter.id, owner="b", now=NOW + 60, until=NOW + 99) is None
    assert store.claim(letter.id, owner="b", now=NOW + 70, until=NOW + 99).leased_by == "b"
    assert not store.renew(letter.id, owner="a", until=NOW + 999)
    assert not store.release(letter.id, owner="a", error="x", park=True)
    assert not store.settle(claimed, owner="a")
    assert store.get(letter.id, now=NOW + 71).leased_by == "b"
    assert store.release(letter.id, owner="b", error="x", park=True)
    assert store.claim(letter.id, owner="c", now=NOW + 999, until=NOW + 1000) is None
    assert store.claim("nothing", owner="c", now=NOW, until=NOW + 1) is None


def test_a_lease_that_is_over_still_settles_if_nobody_took_it(store):
    letter = add(store).letter
    claimed = store.claim(letter.id, owner="a", now=NOW, until=NOW + 1)
    assert store.settle(claimed, owner="a")
    assert store.depths() == {}
