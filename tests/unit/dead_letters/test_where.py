"""Replays and purges of selected letters: ``where=``."""

from __future__ import annotations

import asyncio

import pytest

from redouble.dead_letters import Discarded, Replayed
from support.dead_letters import fail, print_nothing


def is_slow(letter):
    return letter.error_type == "TimeoutError"


def payloads(letters):
    return [letter.payload for letter in letters]


@pytest.fixture
def three(letters, clock):
    """Letters about two kinds of failures."""
    for number, error in enumerate([TimeoutError("a"), ValueError("b"), TimeoutError("c")]):
        letters.put(payload=number, error=error)
        clock.advance(10.0)
    return letters


def test_a_replay_passes_only_selected_letters_and_counts_no_others(three):
    told = []
    outcome = three.replay(
        print_nothing, where=is_slow, progress=lambda letter, what: told.append(letter.payload)
    )
    assert (outcome, told) == (Replayed(replayed=2), [0, 2])
    assert [(letter.payload, letter.replays) for letter in three] == [(1, 0)]


def test_letters_that_are_not_selected_do_not_count_against_the_limit(three):
    assert three.replay(print_nothing, where=lambda letter: letter.payload > 0, limit=1) == Replayed(
        replayed=1
    )
    assert payloads(three) == [0, 2]


def test_an_async_replay_selects_too(three):
    async def handler(letter):
        pass

    assert asyncio.run(three.areplay(handler, where=is_slow)) == Replayed(replayed=2)


def test_the_only_letter_is_not_replayed_unless_it_is_selected(three):
    letter = three.list()[1]
    assert three.replay(print_nothing, id=letter.id, where=is_slow) == Replayed()
    assert three.get(letter.id) == letter


def test_a_letter_that_was_put_again_since_it_was_read_is_selected_anew(letters):
    letters.put(payload="first", error=TimeoutError("slow"))
    letters.put(error=TimeoutError("slow"), idempotency_key="a")
    letters.put(error=TimeoutError("slow"), idempotency_key="b")
    seen = []

    def handler(letter):
        seen.append((letter.payload, letter.idempotency_key))
        if letter.payload == "first":  # the others were read by now
            letters.put(error=ValueError("wrong"), idempotency_key="a")
            letters.put(error=TimeoutError("slower"), idempotency_key="b")

    assert letters.replay(handler, where=is_slow) == Replayed(replayed=2)
    assert seen == [("first", None), (None, "b")]
    (left,) = letters.list()
    assert (left.idempotency_key, left.state, left.replays) == ("a", "waiting", 0)


def test_an_error_in_where_ends_the_replay_and_leaves_no_lease(letters):
    letters.put(payload=1, idempotency_key="a")
    read = []

    def where(letter):
        read.append(letter.puts)
        if len(read) == 1:
            letters.put(payload=2, idempotency_key="a")
            return True
        raise LookupError("no such table")

    with pytest.raises(LookupError, match="no such table"):
        letters.replay(print_nothing, where=where)
    assert read == [1, 2]
    (left,) = letters.list()
    assert (left.state, left.replays) == ("waiting", 0)


def test_a_purge_deletes_only_selected_letters_that_are_old_enough(three, events):
    events.clear()
    assert three.purge(15.0, where=is_slow) == 1
    assert payloads(three) == [1, 2]
    assert events == [Discarded("default", count=1, why="purged")]
    assert three.purge(0.0, where=lambda letter: True) == 2
    assert three.depths() == {}


def test_a_purge_of_selected_letters_is_of_one_queue(letters, clock):
    letters.put(queue="bulk")
    letters.put()
    clock.advance(1.0)
    assert letters.purge(0.0, "bulk", where=lambda letter: True) == 1
    assert letters.depths() == {"default": 1}


def test_a_purge_of_selected_letters_deletes_parked_ones_and_leaves_those_in_hand(letters, clock):
    parked = letters.put()
    letters.replay(fail(), park_after=1)
    letters.put()
    clock.advance(1.0)
    purged = []
    outcome = letters.replay(lambda letter: purged.append(letters.purge(0.0, where=lambda _: True)))
    assert (outcome, purged, letters.get(parked.id)) == (Replayed(replayed=1), [1], None)


def test_a_letter_that_is_put_again_or_taken_while_it_is_purged_stays(letters, clock):
    again, taken = letters.put(idempotency_key="a"), letters.put()
    letters.put()
    clock.advance(1.0)

    def where(letter):
        if letter.id == again.id:
            letters.put(payload="new", idempotency_key="a")
        elif letter.id == taken.id:
            letters.store.claim(letter.id, owner="other", now=clock(), until=clock() + 9.0)
        else:
            letters.discard(letter.id)
        return True

    assert letters.purge(0.0, where=where) == 0
    first, second = letters.list()
    assert (first.payload, first.state, first.replays) == ("new", "waiting", 0)
    assert (second.id, second.state) == (taken.id, "leased")


def test_a_parked_letter_that_is_put_again_while_it_is_purged_stays(letters, clock):
    letters.put(idempotency_key="a")
    letters.replay(fail(), park_after=1)
    clock.advance(1.0)
    assert letters.purge(0.0, where=lambda letter: letters.put(payload="new", idempotency_key="a")) == 0
    (letter,) = letters.list()
    assert (letter.payload, letter.state) == ("new", "parked")


def test_a_purge_tells_of_the_letters_that_it_deleted_before_where_raised(three, events):
    with pytest.raises(ZeroDivisionError):
        three.purge(0.0, where=lambda letter: 1 / (1 - letter.payload))
    assert payloads(three) == [1, 2]
    assert [(event.count, event.why) for event in events if type(event) is Discarded] == [(1, "purged")]


@pytest.mark.parametrize("where", [7, "TimeoutError"])
def test_where_must_be_a_function(letters, where):
    with pytest.raises(TypeError, match="where must be"):
        letters.purge(0.0, where=where)
    with pytest.raises(TypeError, match="where must be"):
        letters.replay(print_nothing, where=where)
