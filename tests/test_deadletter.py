"""What was given up on is kept, once for each key; it is replayed by one at a time; and it does not grow for ever."""

from __future__ import annotations

import asyncio
import copy
import datetime
import gc
import itertools
import json
import os
import pickle
import sqlite3
import sys
import threading
import time
import warnings
import weakref
from pathlib import Path

import pytest

from conftest import watchdog
from redouble import (
    Policy,
    _leases,
    _letters,
    _letters_file,
    _letters_sqlite,
    context,
    current_attempt,
    deadletter,
    retry,
)
from redouble._letters import Added, Limits, UnreadableLetter, iso, new_id, read, written
from redouble._letters_sqlite import SqliteStore
from redouble.context import outgoing_headers
from redouble.deadletter import (
    DeadLetter,
    DeadLettered,
    DeadLetters,
    Discarded,
    Replayed,
    Store,
    StoreTrouble,
    masked_text,
)
from redouble.testing import FakeClock

NOW = 1_700_000_000.0  # 2023-11-14T22:13:20+00:00


@pytest.fixture
def clock():
    return FakeClock(NOW)


@pytest.fixture
def events():
    return []


@pytest.fixture
def letters(tmp_path, clock, events):
    with DeadLetters(tmp_path / "letters.db", clock=clock, listeners=[events.append]) as letters:
        yield letters


def fail(message="no"):
    def handler(letter):
        raise TimeoutError(message)

    return handler


def raised(error):
    try:
        raise error
    except type(error) as caught:
        return caught


# Records


def test_a_letter_says_all_that_was_known_of_the_call(letters, clock):
    error = raised(TimeoutError("slow, token=abc"))
    letter = letters.put(
        payload={"order": 7, "password": "hunter2"},
        function=retry,
        error=error,
        attempts=4,
        first_attempt_at=NOW - 60,
        last_attempt_at=datetime.datetime(
            2023, 11, 14, 23, 13, tzinfo=datetime.timezone(datetime.timedelta(hours=1))
        ),
        message_id=12,
        correlation_id="c-1",
        idempotency_key="orders:7",
        replay_instructions="mind the stock; api_key=abc",
    )
    assert letter.traceback.endswith("TimeoutError: slow, token=***\n")
    assert "in raised" in letter.traceback
    assert letter == DeadLetter(
        id=letter.id,
        queue="default",
        idempotency_key="orders:7",
        first_attempt_at="2023-11-14T22:12:20.000000+00:00",
        enqueued_at="2023-11-14T22:13:20.000000+00:00",
        payload={"order": 7, "password": "***"},
        payload_masked=True,
        function="retry",
        error_type="TimeoutError",
        error_message="slow, token=***",
        traceback=letter.traceback,
        failure_code="timeout",
        attempts=4,
        last_attempt_at="2023-11-14T22:13:00.000000+00:00",
        dead_lettered_at="2023-11-14T22:13:20.000000+00:00",
        message_id="12",
        correlation_id="c-1",
        replayable=True,
        replay_instructions="mind the stock; api_key=***",
        state="waiting",
        puts=1,
        replays=0,
        leased_by=None,
        leased_until=None,
        last_replay_error=None,
    )
    assert letters.get(letter.id) == letter
    assert letters.list() == [letter]


def test_a_letter_needs_nothing_but_to_be_put(letters):
    letter = letters.put()
    assert letters.get(letter.id) == letter
    assert (letter.payload, letter.function, letter.error_type, letter.failure_code) == (
        None,
        None,
        None,
        None,
    )
    assert (letter.first_attempt_at, letter.last_attempt_at) == (None, letter.dead_lettered_at)
    text = letters.put(
        error="it broke, password=x", function="a.b", failure_code=503, first_attempt_at="2023-01-01"
    )
    assert (text.error_type, text.error_message, text.traceback) == (None, "it broke, password=***", None)
    assert (text.function, text.failure_code, text.first_attempt_at) == ("a.b", "503", "2023-01-01")


def test_the_failure_code_is_the_status_where_there_is_one(letters):
    class Response:
        status_code = 503

    class HTTPError(Exception):
        response = Response()

    assert letters.put(error=HTTPError("x")).failure_code == "503"
    assert letters.put(error=ConnectionRefusedError()).failure_code == "connection"
    assert letters.put(error=KeyboardInterrupt()).failure_code is None


def test_a_letter_is_a_frozen_value_that_pickles_and_hashes():
    letter = DeadLetter(id="x", payload={"a": [1]})
    assert pickle.loads(pickle.dumps(letter)) == letter
    assert hash(letter) == hash(letter.replace())
    assert json.loads(json.dumps(letter.as_dict()))["payload"] == {"a": [1]}
    with pytest.raises(AttributeError, match="immutable"):
        letter.payload = 1
    with pytest.raises(TypeError, match="a dead letter has no 'colour'"):
        DeadLetter(colour=1)


def test_a_letter_is_read_in_the_state_that_it_is_in_at_the_time():
    content = written(DeadLetter(payload=[1]))
    known = {"id": "x", "queue": "q", "leased_by": "me"}
    waiting = read(content, now=NOW, parked=False, until=NOW, **known)
    leased = read(content, now=NOW, parked=False, until=NOW + 1, **known)
    parked = read(content, now=NOW, parked=True, until=0.0, **known)
    assert (waiting.state, waiting.leased_by, waiting.leased_until) == ("waiting", None, None)
    assert (leased.state, leased.leased_by, leased.leased_until) == ("leased", "me", iso(NOW + 1))
    assert (parked.state, parked.payload) == ("parked", [1])


def test_ids_are_unique_and_sort_by_time():
    ids = [new_id(NOW + step * 2e-6) for step in range(1000)]
    assert ids == sorted(ids)
    assert len({new_id(NOW) for _ in range(1000)}) == 1000


def test_letters_keep_their_order_where_the_clock_stands_still(letters):
    for number in range(50):
        letters.put(payload=number)
    assert [letter.payload for letter in letters] == list(range(50))
    seen = []
    letters.replay(lambda letter: seen.append(letter.payload))
    assert seen == list(range(50))


def test_tracebacks_tell_the_chain_and_never_the_values_of_variables(letters):
    def inner():
        local_value = "in a variable"
        raise ValueError("first " + local_value[:0])

    def outer():
        try:
            inner()
        except ValueError as error:
            error.add_note("a note with token=abc")
            raise KeyError("second") from error

    def outermost():
        try:
            outer()
        except KeyError:
            raise ExceptionGroup("third", [OSError("leaf password=abc")])  # noqa: B904 - the context is meant

    try:
        outermost()
    except ExceptionGroup as error:
        text = letters.put(error=error).traceback
    assert text.index("ValueError: first") < text.index("a note with token=***") < text.index("direct cause")
    assert text.index("direct cause") < text.index("KeyError: 'second'") < text.index("During handling")
    assert text.rstrip().endswith("member: OSError: leaf password=***")
    assert 'local_value = "in a variable"' not in text


def test_a_long_chain_a_circle_and_a_suppressed_context_are_told_briefly(letters):
    errors = [ValueError(str(number)) for number in range(20)]
    for one, other in itertools.pairwise(errors):
        one.__cause__ = other
    errors[-1].__cause__ = errors[0]
    assert letters.put(error=errors[0]).traceback.count("ValueError") == 5
    circle = ValueError("circle")
    circle.__cause__ = circle
    assert letters.put(error=circle).traceback.count("circle") == 1
    try:
        try:
            raise ValueError("hidden")
        except ValueError:
            raise KeyError("shown") from None
    except KeyError as error:
        assert "hidden" not in letters.put(error=error).traceback


def test_errors_that_cannot_be_looked_at_are_stored_with_what_can_be_said(letters):
    class Unprintable(Exception):
        def __str__(self):
            raise RuntimeError("no")

    class Hostile(Exception):
        @property
        def __cause__(self):
            raise RuntimeError("no")

    assert letters.put(error=Unprintable()).error_message == "<unprintable Unprintable>"
    letter = letters.put(error=Hostile("x"))
    assert (letter.error_message, letter.traceback) == ("x", None)


def test_nothing_holds_the_error_or_the_payload_after_a_put(letters):
    class Failure(Exception):
        pass

    class Thing:
        pass

    def put():
        thing = Thing()
        try:
            raise Failure("x")
        except Failure as error:
            letters.put(error=error, payload=[thing])
            return weakref.ref(thing), weakref.ref(error)

    gc.disable()
    try:
        assert [reference() for reference in put()] == [None, None]
    finally:
        gc.enable()


# Payloads


@pytest.mark.slow
def test_huge_payloads_and_messages_take_little_room(letters):
    huge = "é" * 20_000_000
    letter = letters.put(payload=[huge, huge], error=ValueError(huge), replay_instructions=huge)
    assert len(written(letter).encode()) < 100_000
    assert letter.payload[0].endswith("… (cut, of 20000000 characters)")
    assert letter.error_message.endswith("… (cut, of 20000000 characters)")
    with watchdog():
        letters.put(payload=[{huge: huge}, {"name": huge, "value": huge}, huge.encode(), [huge] * 1000])


def test_payloads_of_any_kind_are_stored_and_never_pickled(letters, tmp_path):
    class Trap:
        def __reduce__(self):
            raise AssertionError("pickled")

        def __repr__(self):
            return "<trap>"

    circle = {}
    circle["me"] = circle
    payload = [Trap(), lambda: 1, circle, "\ud800", b"\xff", float("nan"), {1, 2}]
    letter = letters.put(
        payload=payload, idempotency_key="\ud800", message_id="\ud800", queue="\udc80", function="\ud800"
    )
    assert letters.get(letter.id) == letter
    assert letter.payload[0] == "<trap>"
    assert letter.payload[2:6] == [{"me": "… (circular)"}, "\\ud800", "\\xff", "nan"]


def test_no_secret_is_in_the_file(letters, tmp_path):
    try:
        raise ValueError("Authorization: Bearer hunter2", {"password": "hunter2"})
    except ValueError as error:
        letters.put(
            payload={"kwargs": {"api_key": "hunter2"}, "url": "https://u:hunter2@h/?token=hunter2"},
            error=error,
        )
    letters.replay(fail("token=hunter2"))
    for file in tmp_path.iterdir():
        content = file.read_bytes()
        # The only place that has it is the source line of this very test, where it stands by no name.
        assert b"hunter2" not in content.replace(b"u:hunter2", b"")
    assert letters.list()[0].last_replay_error == "TimeoutError: token=***"


def test_masking_takes_more_names_a_function_or_nothing(tmp_path, clock):
    payload, error = {"email": "a@b", "token": "abc", "n": 1}, "email=a@b"
    path = tmp_path / "letters.db"

    def hook(name, value):
        return f"<{name}>" if name in ("email", "error_message") else value

    def stored(mask):
        with DeadLetters(path, mask=mask) as letters:
            letter = letters.put(payload=payload, error=error)
            return letter.payload, letter.error_message

    assert stored(["email"]) == ({"email": "***", "token": "***", "n": 1}, "email=***")
    assert stored(hook) == ({"email": "<email>", "token": "***", "n": 1}, "<error_message>")
    assert stored(False) == (payload, "email=a@b")
    assert masked_text(error) == "email=a@b"


def test_a_file_is_readable_by_its_owner_alone(letters, tmp_path):
    letters.put()
    if os.name == "posix":
        assert (tmp_path / "letters.db").stat().st_mode & 0o077 == 0


# Keys


def test_a_second_put_under_a_key_changes_the_letter_that_is_there(letters, clock):
    first = letters.put(
        idempotency_key="k", error=ValueError("1"), attempts=2, first_attempt_at=1.0, payload=1
    )
    letters.replay(fail())
    clock.advance(60)
    second = letters.put(
        idempotency_key="k", error=KeyError("2"), attempts=5, first_attempt_at=9.0, payload=2
    )
    assert letters.list() == [second]
    assert second.id == first.id
    assert (second.puts, second.replays, second.attempts, second.payload) == (2, 1, 5, 2)
    assert (second.error_type, second.failure_code) == ("KeyError", "unknown")
    assert (second.first_attempt_at, second.enqueued_at) == (first.first_attempt_at, first.enqueued_at)
    assert second.dead_lettered_at == iso(NOW + 60)
    assert letters.depth() == 1


def test_the_same_key_in_another_queue_and_no_key_at_all_are_other_letters(letters):
    for queue in ("default", "bulk", "bulk"):
        letters.put(idempotency_key="k", queue=queue)
        letters.put(queue=queue)
    assert letters.depths() == {"default": 2, "bulk": 3}


def test_long_identifiers_are_cut_and_stay_apart(letters):
    one, other = letters.put(idempotency_key="k" * 5000 + "1"), letters.put(idempotency_key="k" * 5000 + "2")
    assert one.idempotency_key != other.idempotency_key
    assert len(one.idempotency_key) == len(other.idempotency_key) == 565
    assert letters.depth() == 2


# Queues


def test_a_view_is_the_same_store_with_another_queue(letters, clock):
    critical = letters.queue("critical")
    critical.put(payload=1)
    clock.advance(1)
    letters.put(payload=2)
    letters.put(payload=3, queue="critical")
    assert [letter.payload for letter in critical] == [1, 3]
    assert [letter.payload for letter in letters] == [2]
    assert (letters.depth("critical"), critical.depth(), critical.depth("default")) == (2, 2, 1)
    assert critical.queue("default") == letters
    assert repr(critical) == f"<DeadLetters 'critical' in {letters.store.name}>"


@pytest.mark.slow
def test_letters_are_listed_in_order_page_by_page(letters, clock):
    for number in range(250):
        letters.put(payload=number)
        clock.advance(0.001)
    assert [letter.payload for letter in letters] == list(range(250))
    page = letters.list(limit=3)
    assert [letter.payload for letter in letters.list(limit=2, after=page[-1].id)] == [3, 4]
    assert letters.list(limit=0) == []
    assert letters.get("nothing") is None


# Events


def test_a_put_is_told_with_what_was_stored(letters, events):
    letter = letters.put(function="send", error=ValueError("token=abc"), attempts=3)
    assert events == [DeadLettered(letter)]
    (event,) = events
    assert (event.name, event.attempt, event.queue, event.letter) == ("send", 3, "default", letter.id)
    assert (event.error_type, event.error_message) == ("ValueError", "token=***")
    assert letters.put().queue == events[1].name == "default"


def test_a_listener_that_fails_does_not_lose_the_letter(tmp_path, caplog):
    def broken(event):
        raise RuntimeError("listener")

    heard = []
    with DeadLetters(tmp_path / "x.db", listeners=[broken, heard.append]) as letters:
        letters.put()
        letters.put()
        assert (letters.depth(), len(heard)) == (2, 2)
    assert sum("listener" in record.message for record in caplog.records) == 1


def test_nothing_is_made_where_nobody_listens(tmp_path, monkeypatch):
    monkeypatch.setattr("redouble.events._logger", lambda: None)
    monkeypatch.setattr("redouble.deadletter.DeadLettered", None)
    with DeadLetters(tmp_path / "x.db") as letters:
        letter = letters.put()
        assert letters.discard(letter.id)


# Growth


def test_beyond_the_limit_the_oldest_of_the_queue_go_and_it_is_told(tmp_path, clock, events):
    with DeadLetters(tmp_path / "x.db", max_rows=3, clock=clock, listeners=[events.append]) as letters:
        letters.put(queue="critical")
        for number in range(10):
            letters.put(payload=number)
            clock.advance(1)
        assert [letter.payload for letter in letters] == [7, 8, 9]
        assert letters.depths() == {"critical": 1, "default": 3}
    discarded = [event for event in events if isinstance(event, Discarded)]
    assert discarded == [Discarded("default", count=1, why="limit")] * 7


def test_beyond_the_bytes_the_oldest_go_but_never_the_one_just_put(tmp_path, clock):
    with DeadLetters(tmp_path / "x.db", max_bytes=10_000, clock=clock) as letters:
        for number in range(20):
            letters.put(payload=[number, "x" * 2000])
            clock.advance(1)
        assert [letter.payload[0] for letter in letters] == [16, 17, 18, 19]
        letters.put(payload="x" * 50_000)
        assert letters.depth() == 1


def test_a_letter_that_is_put_again_is_young_again(tmp_path, clock):
    with DeadLetters(tmp_path / "x.db", max_rows=2, clock=clock) as letters:
        for key in "abac":
            letters.put(idempotency_key=key)
            clock.advance(1)
        assert [letter.idempotency_key for letter in letters] == ["a", "c"]


def test_letters_past_their_time_go_when_others_come(tmp_path, clock, events):
    ttl = datetime.timedelta(days=14)
    with DeadLetters(tmp_path / "x.db", ttl=ttl, clock=clock, listeners=[events.append]) as letters:
        for payload in (1, 2):
            letters.put(payload=payload)
        clock.advance(ttl.total_seconds())
        letters.put(payload=3)
        assert letters.depth() == 3
        clock.advance(1)
        events.clear()
        letter = letters.put(payload=4)
        assert [letter.payload for letter in letters] == [3, 4]
        assert events == [DeadLettered(letter), Discarded("default", count=2, why="purged")]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_letters_past_their_time_are_not_replayed(letters, clock, asynchronous):
    letters.put(payload="old")
    clock.advance(letters.ttl - 1)
    letters.put(payload="new")
    letters.put(payload="of age while the one before it is replayed")
    clock.advance(1)

    def handler(letter):
        seen.append(letter.payload)
        clock.advance(5)

    seen = []
    first = letters.replay(handler, limit=1)
    assert (first, seen) == (Replayed(replayed=1), ["old"])  # to the very second
    letters.put(payload="newest")
    clock.advance(letters.ttl - 8)
    done = asyncio.run(letters.areplay(handler)) if asynchronous else letters.replay(handler)
    assert (done, seen) == (Replayed(replayed=2, skipped=1), ["old", "new", "newest"])
    assert letters.depth() == 1
    endless = DeadLetters(letters.store, ttl=None, clock=clock)
    assert endless.replay(handler) == Replayed(replayed=1)


def test_without_limits_everything_stays(tmp_path, clock):
    with DeadLetters(tmp_path / "x.db", ttl=None, max_rows=None, max_bytes=None, clock=clock) as letters:
        letters.put()
        clock.advance(1e9)
        letters.put()
        assert letters.depth() == 2
        with pytest.raises(ValueError, match="older_than must be given where there is no ttl"):
            letters.purge()
        assert letters.purge(older_than=1e8) == 1


def test_a_purge_is_told_once_with_the_number(letters, clock, events):
    for number in range(3):
        letters.put(payload=number)
        clock.advance(3600)
    letters.put(queue="bulk")
    events.clear()
    assert letters.purge(older_than=datetime.timedelta(hours=1)) == 2
    assert letters.purge(older_than=datetime.timedelta(hours=1)) == 0
    assert letters.purge() == 0
    assert events == [Discarded("default", count=2, why="purged")]
    assert letters.depths() == {"default": 1, "bulk": 1}
    clock.advance(1)
    assert letters.purge(older_than=0, queue="bulk") == 1


def test_a_discarded_letter_is_gone_and_told(letters, events):
    letter = letters.put(queue="bulk")
    events.clear()
    assert letters.discard(letter.id)
    assert not letters.discard(letter.id)
    assert events == [Discarded("bulk", count=1, why="discarded")]
    assert letters.depths() == {}


def test_leased_letters_are_never_thrown_away_by_age_or_number(tmp_path, clock):
    with DeadLetters(tmp_path / "x.db", max_rows=1, ttl=100, clock=clock) as letters:
        letters.put(payload="old")

        def handler(letter):
            clock.advance(50)
            letters.put(payload="new")
            letters.put(payload="newer")
            assert letters.purge(older_than=0) == 0
            assert [letter.payload for letter in letters.list(state="leased")] == ["old"]

        assert letters.replay(handler, lease=1000).replayed == 1


# Depth


def test_a_depth_is_told_once_when_it_is_reached_and_again_only_after_it_fell(letters):
    told = []
    letters.on_depth(3, lambda depth, queue: told.append((depth, queue)))
    made = [letters.put() for _ in range(5)]
    assert told == [(3, "default")]
    for letter in made[:2]:
        letters.discard(letter.id)
    letters.put()
    assert len(told) == 1
    for letter in made[2:4]:
        letters.discard(letter.id)
    letters.put()
    assert told == [(3, "default")] * 2


def test_a_depth_is_told_by_views_and_for_the_queue_that_was_meant(letters):
    told = []
    letters.on_depth(1, lambda depth, queue: told.append((depth, queue)), queue="critical")
    letters.put()
    letters.queue("critical").put()
    letters.put(idempotency_key="k", queue="critical")
    letters.put(idempotency_key="k", queue="critical")
    assert told == [(1, "critical")]


def test_a_key_that_is_put_again_does_not_reach_a_depth(letters):
    told = []
    letters.on_depth(1, lambda depth, queue: told.append(depth))
    letters.put(idempotency_key="k")
    letters.put(idempotency_key="k")
    assert told == [1]


def test_a_depth_callback_that_fails_is_reported_once_and_swallowed(letters, caplog):
    def broken(depth, queue):
        owned.append(letters.store._turn._is_owned())
        raise RuntimeError("no")

    owned = []
    assert isinstance(letters.store, SqliteStore)

    letters.on_depth(1, broken)
    letters.discard(letters.put().id)
    letters.put()
    assert [record.message for record in caplog.records if "on_depth" in record.message] == [
        "the function given to on_depth() failed (said once)"
    ]
    assert owned == [False, False]


# Replays


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


def print_nothing(letter):
    pass


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


# Claims are counted


def claim_and_die(letters, clock, **fields):
    """What is left by a process that was killed in its handler, when the lease is over."""
    run = letters._run(**fields)
    claimed = run.next()
    run._renewal.stop()
    clock.advance(61)
    return claimed


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_letter_whose_replays_never_end_is_parked_after_so_many_claims(letters, clock, asynchronous):
    letter = letters.put(payload="deadly")
    letters.put(payload="behind")
    for number in (1, 2, 3):
        claimed, _ = claim_and_die(letters, clock, park_after=3)
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
        first, second = letters._run(), letters._run()
        late = first.next()
        clock.advance(61)
        assert second.next() is not None
        first.done(*late)
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
            end = time.monotonic() + 5
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
                raise StoreTrouble("away", where="x")
            renewed.set()
            return super().renew(id, **fields)

    with DeadLetters(Flaky(str(tmp_path / "x.db"))) as letters:
        letters.put()
        assert letters.replay(lambda letter: renewed.wait(5), lease=0.03) == Replayed(replayed=1)
    assert renewed.is_set()


def test_nothing_is_renewed_between_two_letters():
    class NoStore(Store):
        def renew(self, id, **fields):
            raise AssertionError("renewed")

    renewal = _leases.Renewal(NoStore(), 0.003, time.time)
    renewal.hold("x", "me", 0.0)
    renewal.let_go()
    time.sleep(0.02)
    renewal.stop()
    _leases.Renewal(NoStore(), 1.0, time.time).stop()


def test_a_lease_that_was_taken_by_another_is_not_believed_to_be_renewed():
    asked = threading.Event()

    class Lost(Store):
        def renew(self, id, **fields):
            asked.set()
            return False

    renewal = _leases.Renewal(Lost(), 0.003, time.time)
    renewal.hold("x", "me", 7.0)
    assert asked.wait(5)
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
            raise StoreTrouble("away", where="x")

    with DeadLetters(Away(str(tmp_path / "x.db"))) as letters:
        letters.put()
        with pytest.raises(KeyboardInterrupt):
            letters.replay(interrupting)
        assert letters.list()[0].state == "leased"
    assert any("could not be given back" in record.message for record in caplog.records)


def interrupting(letter):
    raise KeyboardInterrupt


def test_a_progress_function_that_fails_is_reported_once_and_swallowed(letters, caplog):
    def broken(letter, outcome):
        raise RuntimeError("no")

    letters.put()
    letters.put()
    assert letters.replay(print_nothing, progress=broken) == Replayed(replayed=2)
    assert sum("progress=" in record.message for record in caplog.records) == 1


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
        with pytest.raises(TypeError, match=r"gives something to be awaited: await areplay\(\.\.\.\)"):
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


# As a value


def test_letters_in_a_file_pickle_and_compare_by_path_and_settings(tmp_path):
    letters = DeadLetters(tmp_path / "x.db", queue="bulk", ttl=60, max_rows=7, owner="me")
    copied = pickle.loads(pickle.dumps(letters))
    assert copied == letters
    assert hash(copied) == hash(letters)
    assert (copied.name, copied.ttl, copied.max_rows, copied.owner) == ("bulk", 60.0, 7, "me")
    assert copied != DeadLetters(tmp_path / "x.db")
    assert copied != DeadLetters(tmp_path / "y.db", queue="bulk", ttl=60, max_rows=7, owner="me")
    assert letters != 7
    assert copy.copy(letters) is copy.deepcopy(letters) is letters


def test_letters_in_a_store_of_the_users_do_not_pickle(tmp_path):
    store = SqliteStore(str(tmp_path / "x.db"))
    letters = DeadLetters(store)
    with pytest.raises(TypeError, match="cannot be pickled: give a path instead of a store"):
        pickle.dumps(letters)
    assert letters == DeadLetters(store)
    assert letters != DeadLetters(SqliteStore(store.name))
    assert hash(letters) == hash(DeadLetters(store))


def test_a_relative_path_is_that_of_the_directory_at_the_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    letters = DeadLetters("letters.db")
    monkeypatch.chdir("/")
    with letters:
        letters.put()
    assert (tmp_path / "letters.db").exists()


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        (
            {"path_or_store": 7},
            TypeError,
            "path_or_store must be a path or a redouble.deadletter.Store, got 7",
        ),
        ({"path_or_store": ":memory:"}, ValueError, "path_or_store must be the path of a file"),
        ({"path_or_store": ""}, ValueError, "path_or_store must be the path of a file"),
        ({"queue": ""}, TypeError, "queue must be a text that is not empty, got ''"),
        ({"ttl": 0}, ValueError, "ttl must be above 0 seconds"),
        ({"ttl": float("nan")}, ValueError, "ttl must be finite"),
        ({"max_rows": 0}, ValueError, "max_rows must be at least 1, got 0"),
        ({"max_rows": True}, ValueError, "max_rows must be a whole number, not a bool"),
        ({"max_bytes": -1}, ValueError, "max_bytes must be at least 1"),
        ({"payload_limit": 1.5}, ValueError, "payload_limit must be a whole number"),
        ({"mask": "password"}, TypeError, "mask must be a list of names"),
        ({"mask": [""]}, TypeError, "a name in mask must be a text"),
        ({"mask": 7}, TypeError, "mask must be a list of names"),
        ({"owner": 7}, TypeError, "owner must be a text"),
        ({"clock": 7}, TypeError, "clock must be a function"),
        ({"listeners": print}, TypeError, "listeners must be a list of functions"),
    ],
)
def test_wrong_settings_are_refused_by_name(fields, error, message):
    with pytest.raises(error, match=message):
        DeadLetters(**{"path_or_store": "x.db", **fields})


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda letters: letters.put(attempts=-1), "the attempts of a dead letter must be at least 0"),
        (lambda letters: letters.put(first_attempt_at=float("nan")), "first_attempt_at must be finite"),
        (lambda letters: letters.put(last_attempt_at=-1), "last_attempt_at must be finite and not negative"),
        (lambda letters: letters.list(state="lost"), "state must be one of 'waiting', 'leased', 'parked'"),
        (lambda letters: letters.list(limit=-1), "limit must be at least 0"),
        (lambda letters: letters.replay(print, lease=0), "lease must be above 0 seconds"),
        (lambda letters: letters.replay(print, park_after=0), "park_after must be at least 1"),
        (lambda letters: letters.replay(print, limit=-1), "limit must be at least 0"),
        (lambda letters: letters.on_depth(0, print), "threshold must be at least 1"),
        (lambda letters: letters.purge(older_than=-1), "older_than must be finite"),
    ],
)
def test_wrong_arguments_are_refused_by_name(letters, use, message):
    with pytest.raises(ValueError, match=message):
        use(letters)


# The store


def test_a_store_of_ones_own_says_what_it_lacks():
    store = Store()
    some = {"now": 0.0}
    for use in (
        lambda: store.add(DeadLetter(), now=0.0, limits=Limits()),
        lambda: store.get("x", **some),
        lambda: store.list("q", **some, state=None, limit=1, after=""),
        lambda: store.claim("x", owner="me", now=0.0, until=1.0),
        lambda: store.renew("x", owner="me", until=1.0),
        lambda: store.settle(DeadLetter(), owner="me"),
        lambda: store.release("x", owner="me"),
        lambda: store.unpark("x"),
        lambda: store.discard("x"),
        lambda: store.purge("q", before=0.0, now=0.0),
        store.depths,
    ):
        with pytest.raises(NotImplementedError):
            use()
    assert store.close() is None


@pytest.fixture
def store(tmp_path):
    store = SqliteStore(str(tmp_path / "store.db"))
    yield store
    store.close()


def add(store, now=NOW, limits=None, **fields):
    return store.add(DeadLetter(id=new_id(now), **fields), now=now, limits=limits or Limits())


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


def test_an_addition_says_what_became_of_the_queue(store):
    limits = Limits(rows=2)
    first = add(store, limits=limits)
    assert (first.before, first.depth, first.crowded_out) == (0, 1, 0)
    add(store, NOW + 1, limits)
    third = add(store, NOW + 2, limits)
    assert third == Added(third.letter, before=2, depth=2, crowded_out=1)


def test_at_most_so_many_are_discarded_for_one_that_comes(store, monkeypatch):
    monkeypatch.setattr(_letters_sqlite, "AT_ONCE", 3)
    for number in range(10):
        add(store, NOW + number)
    added = add(store, NOW + 20, Limits(rows=1, oldest=NOW + 20))
    assert (added.expired, added.crowded_out, added.depth) == (3, 3, 5)


def test_the_tallies_are_true_whatever_happens(store):
    letters = [
        add(store, NOW + number, payload="x" * number, idempotency_key=f"k{number % 7}").letter
        for number in range(20)
    ]
    claimed = store.claim(letters[0].id, owner="a", now=NOW, until=NOW + 9)
    store.release(claimed.id, owner="a", error="x", park=True)
    store.claim(letters[1].id, owner="a", now=NOW, until=NOW + 9)
    store.settle(letters[1], owner="nobody")
    store.discard(letters[2].id)
    connection = sqlite3.connect(store.name)
    counted = connection.execute(
        "SELECT queue, sum(1 - parked), sum(parked), sum(size), sum(length(CAST(content AS BLOB))) FROM letters GROUP BY queue"
    ).fetchall()
    kept = connection.execute("SELECT queue, depth, parked, size FROM tallies").fetchall()
    connection.close()
    assert [row[:4] for row in counted] == kept == [("default", 5, 1, kept[0][3])]
    assert counted[0][4] == kept[0][3]


def test_a_file_that_is_deleted_or_replaced_is_made_anew_rather_than_written_in_the_void(letters, tmp_path):
    letters.put(payload=1)
    for file in tmp_path.iterdir():
        file.unlink()
    letters.put(payload=2)
    assert [letter.payload for letter in letters] == [2]
    (tmp_path / "letters.db").rename(tmp_path / "old.db")
    assert letters.depth() == 0


@pytest.mark.parametrize("how", ["moved", "deleted"])
def test_a_file_that_is_moved_or_deleted_under_others_fails_nobody_and_loses_nothing(tmp_path, how, caplog):
    """Every put failed until the others had acted, and the letters of a moved file were lost with its log."""
    path, moved = tmp_path / "x.db", tmp_path / "old.db"
    with DeadLetters(path) as one, DeadLetters(path) as other, DeadLetters(path) as third:
        one.put(payload=1)
        other.put(payload=2)
        third.put(payload=3)
        path.rename(moved)
        if how == "deleted":
            moved.unlink()
        one.put(payload=4)
        one.put(payload=5)
        other.put(payload=6)
        assert [letter.payload for letter in third] == [4, 5, 6]
    with DeadLetters(path) as again:
        assert [letter.payload for letter in again] == [4, 5, 6]
    if how == "moved":
        with DeadLetters(moved) as old:
            assert [letter.payload for letter in old] == [1, 2, 3]
    assert [file.name for file in tmp_path.iterdir() if "-wal" in file.name] == []


def test_a_file_that_is_moved_is_complete_when_its_store_is_closed(tmp_path):
    with DeadLetters(tmp_path / "x.db") as letters:
        letters.put(payload=1)
        (tmp_path / "x.db").rename(tmp_path / "old.db")
    with DeadLetters(tmp_path / "old.db") as old:
        assert [letter.payload for letter in old] == [1]


def test_a_log_that_nobody_can_copy_is_kept_beside_the_new_file(tmp_path, caplog):
    path = tmp_path / "x.db"
    log = tmp_path / "x.db-wal"
    log.write_bytes(b"letters of a file that was moved")
    (tmp_path / "x.db-shm").touch()
    with DeadLetters(path) as letters:
        letters.put()
    (kept,) = [file for file in tmp_path.iterdir() if file.name.startswith("x.db-wal-")]
    assert kept.read_bytes() == b"letters of a file that was moved"
    assert f"Its log is kept as {kept}: if that is not empty, rename it" in caplog.text


def test_a_log_in_trouble_does_not_keep_a_store_from_closing(letters, tmp_path, monkeypatch):
    letters.put()

    class Failing:
        closed = False

        def rollback(self):
            raise sqlite3.OperationalError("disk I/O error")

        def close(self):
            self.closed = True

    connection = Failing()
    monkeypatch.setattr(_letters_file, "_TRIES", 2)
    _letters_file.leave(connection, str(tmp_path / "letters.db"), (0, 0))
    assert connection.closed


@pytest.mark.skipif(os.name != "posix", reason="there are no modes here")
def test_a_file_at_the_end_of_a_dangling_link_is_readable_by_its_owner_alone(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "further.db")
    (tmp_path / "further.db").symlink_to(tmp_path / "folder" / "x.db")
    before = os.umask(0)
    try:
        with DeadLetters(tmp_path / "link.db") as letters:
            letters.put(payload=1)
            modes = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "folder").iterdir()}
            assert modes == {f"x.db{ending}": 0o600 for ending in ("", "-shm", "-wal", "-reserve")}
            assert letters.depth() == 1
    finally:
        os.umask(before)


@pytest.mark.skipif(os.name != "posix", reason="folders cannot be locked here")
def test_one_process_makes_the_file_while_others_wait(tmp_path):
    import fcntl

    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    store = SqliteStore(str(tmp_path / "x.db"), patience=0.01)
    with pytest.raises(StoreTrouble, match="another process has kept it locked for too long"):
        add(store)
    os.close(handle)
    add(store)
    assert store.depths() == {"default": (1, 0)}
    store.close()


def test_a_file_that_another_process_makes_in_the_last_moment_is_taken(tmp_path, monkeypatch):
    path = str(tmp_path / "x.db")
    real = _letters_file._locked_folder

    def locked(folder):
        handle = real(folder)
        (tmp_path / "x.db").touch()
        (tmp_path / "x.db-wal").write_bytes(b"live")
        return handle

    monkeypatch.setattr(_letters_file, "_locked_folder", locked)
    _letters_file.make(path)
    assert (tmp_path / "x.db-wal").read_bytes() == b"live"


def test_a_file_that_cannot_be_laid_out_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(_letters_file, "STEPS", (("CREATE NONSENSE",),))
    with pytest.raises(StoreTrouble, match="syntax error"):
        DeadLetters(tmp_path / "x.db").put()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_moved_in_the_middle_of_a_put_is_made_anew_and_the_letter_is_in_it(letters, tmp_path):
    """The log that is opened by its name may be that of another file by then."""
    file, moves = tmp_path / "letters.db", []
    kept = _letters_sqlite._kept

    def moved(connection, letter, now):
        if not moves:
            moves.append(file.rename(tmp_path / "old.db"))
            connection.execute("SELECT nonsense FROM nowhere")
        return kept(connection, letter, now)

    letters.put(payload="before")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_letters_sqlite, "_kept", moved)
        letters.put(payload="new")
    assert [letter.payload for letter in letters] == ["new"]
    with DeadLetters(tmp_path / "old.db") as old:
        assert [letter.payload for letter in old] == ["before"]


def test_a_file_that_is_moved_while_it_is_opened_is_not_used(letters, tmp_path, monkeypatch):
    letters.put(payload="before")
    letters.close()
    layout, moves = _letters_file._layout, []

    def moved(connection, path):
        if not moves:
            moves.append((tmp_path / "letters.db").rename(tmp_path / "old.db"))
        return layout(connection, path)

    monkeypatch.setattr(_letters_file, "_layout", moved)
    letters.put(payload="new")
    assert [letter.payload for letter in letters] == ["new"]


def test_where_folders_cannot_be_locked_the_file_is_made_without(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def refuse(handle, operation):
        raise OSError(95, "Operation not supported")

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", refuse)
        with DeadLetters(tmp_path / "x.db") as letters:
            letters.put()
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with DeadLetters(tmp_path / "y.db") as letters:
        letters.put()


def test_a_closed_store_opens_again_when_it_is_asked(letters):
    letters.put()
    letters.close()
    letters.close()
    assert letters.depth() == 1


def test_a_put_from_within_a_put_is_refused_rather_than_waiting_for_itself(letters):
    assert isinstance(letters.store, SqliteStore)
    with letters.store._turn, pytest.raises(StoreTrouble, match="being written in this very thread"):
        letters.put()
    letters.put()


def test_an_interrupt_in_the_middle_leaves_nothing_half_done(letters, monkeypatch):
    letters.put()

    def interrupted(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(_letters_sqlite, "_drop_old", interrupted)
        with pytest.raises(KeyboardInterrupt):
            letters.put()
    assert letters.depth() == 1
    assert letters.put()


def test_before_a_fork_every_connection_is_closed(letters):
    letters.put()
    connection = letters.store._connection
    _letters_sqlite._before_fork()
    _letters_sqlite._after_fork()
    with pytest.raises(sqlite3.ProgrammingError):
        connection.execute("SELECT 1")
    assert letters.depth() == 1


def test_a_forked_child_waits_for_no_thread_of_its_parent(letters):
    assert isinstance(letters.store, SqliteStore)
    turn = letters.store._turn
    holding, over = threading.Event(), threading.Event()

    def wait_for_the_file():
        with turn:
            holding.set()
            over.wait(5)

    thread = threading.Thread(target=wait_for_the_file)
    thread.start()
    holding.wait(5)
    _letters_sqlite._before_fork()
    _letters_sqlite._after_fork_in_child()
    with watchdog():
        letters.put()
    over.set()
    thread.join()


def test_a_connection_that_came_with_a_fork_nobody_told_of_is_left_alone(letters, monkeypatch):
    letters.put()
    inherited = letters.store._connection
    monkeypatch.setattr(os, "getpid", lambda: -1)
    letters.put()
    assert {inherited, letters.store._connection} <= SqliteStore._open
    assert letters.depth() == 2
    SqliteStore._open.remove(inherited)
    inherited.close()


def test_a_store_that_goes_in_a_cycle_leaves_no_connection_open(tmp_path):
    def leave_behind():
        store = SqliteStore(str(tmp_path / "letters.db"))
        store.depths()
        connection, cycle = store._connection, [store]
        store.cycle = cycle
        del store
        # Puts the store behind the connection, where the collector comes to it last.
        gc.collect()
        return id(connection)

    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        connection = leave_behind()
        gc.collect()
    assert [str(warning.message) for warning in caught] == []
    assert connection not in map(id, SqliteStore._open)


def test_a_store_that_is_dropped_closes_its_file(tmp_path):
    store = SqliteStore(str(tmp_path / "x.db"))
    add(store)
    connection = store._connection
    del store
    gc.collect()
    with pytest.raises(sqlite3.ProgrammingError):
        connection.execute("SELECT 1")


# Trouble


def trouble(path, use=lambda letters: letters.put()):
    with DeadLetters(path) as letters, pytest.raises(StoreTrouble) as caught:
        use(letters)
    assert caught.value.where == str(path)
    assert str(path) in str(caught.value)
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), StoreTrouble)
    return caught.value


def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(tmp_path):
    path = tmp_path / "x.db"
    noise = os.urandom(5000)
    path.write_bytes(noise)
    error = trouble(path)
    assert "it is not a database: use another file" in str(error)
    assert isinstance(error.__cause__, sqlite3.DatabaseError)
    assert path.read_bytes() == noise
    trouble(path, lambda letters: letters.depth())


def test_a_damaged_file_is_told(tmp_path):
    path = tmp_path / "x.db"
    with DeadLetters(path) as letters:
        for _ in range(50):
            letters.put(payload="x" * 2000)
    content = bytearray(path.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    path.write_bytes(content)
    assert "it is damaged" in str(trouble(path))


@pytest.mark.parametrize(
    "damage",
    [
        "content = '{'",
        "content = '[]'",
        "content = 7",
        "content = CAST(x'7bff' AS TEXT)",
        "leased_until = -1e999",
    ],
)
def test_a_letter_that_cannot_be_read_is_skipped_and_named(letters, damage, caplog):
    """One damaged letter used to fail every list and every replay of its queue."""
    first, broken, last = (letters.put(payload=payload, idempotency_key=payload) for payload in "abc")
    damage = damage.replace("-1e999", "1e300")
    letters.store._connection.execute(f"UPDATE letters SET {damage} WHERE id = ?", (broken.id,))
    assert [letter.id for letter in letters] == [first.id, broken.id, last.id]
    stand_in = letters.get(broken.id)
    assert isinstance(stand_in, UnreadableLetter)
    assert (stand_in.idempotency_key, stand_in.payload, stand_in.replayable) == ("b", None, False)
    assert stand_in.replay_instructions.startswith(f"dead letter {broken.id} cannot be read (")
    assert f"dead letter {broken.id} cannot be read" in caplog.text
    letters.store._connection.execute("UPDATE letters SET leased_until = 0")
    if "content" in damage:
        assert letters.replay(print_nothing, include_unreplayable=True) == Replayed(replayed=2, skipped=1)
        assert [letter.state for letter in letters] == ["waiting"]
    assert letters.discard(broken.id)


def test_a_damaged_name_of_an_owner_hides_no_letter(letters):
    letters.put()
    letters.store._connection.execute("UPDATE letters SET last_replay_error = CAST(x'ff41' AS TEXT)")
    assert [letter.last_replay_error for letter in letters] == ["\\xffA"]


@pytest.mark.parametrize(
    "made", ["CREATE TABLE users (id)", "PRAGMA user_version = 3", "PRAGMA application_id = 7"]
)
def test_the_database_of_somebody_else_is_refused_and_left_as_it_is(tmp_path, made):
    path = tmp_path / "x.db"
    connection = sqlite3.connect(path)
    connection.execute(made)
    connection.commit()
    connection.close()
    before = path.read_bytes()
    assert "is a database, but not one of dead letters" in str(trouble(path))
    assert path.read_bytes() == before


def test_a_later_layout_is_refused_and_an_earlier_one_brought_up_to_date(tmp_path, monkeypatch):
    path = tmp_path / "x.db"
    with DeadLetters(path) as letters:
        letter = letters.put()
    with monkeypatch.context() as patched:
        step = ("ALTER TABLE letters ADD COLUMN colour TEXT DEFAULT 'red'",)
        patched.setattr(_letters_file, "STEPS", (*_letters_file.STEPS, step))
        with DeadLetters(path) as letters:
            assert letters.get(letter.id).id == letter.id
            assert letters.store._connection.execute("SELECT colour FROM letters").fetchall() == [("red",)]
    error = trouble(path)
    assert "was written by a later redouble (layout 2, this one knows 1)" in str(error)


def test_another_process_may_have_brought_the_file_up_to_date_meanwhile(tmp_path, monkeypatch):
    path = str(tmp_path / "x.db")
    DeadLetters(path).put()
    answers = [0]
    real = _letters_file._layout
    monkeypatch.setattr(_letters_file, "_layout", lambda *args: answers.pop() if answers else real(*args))
    with DeadLetters(path) as letters:
        assert letters.depth() == 1


def test_an_empty_file_is_taken(tmp_path):
    (tmp_path / "x.db").touch()
    with DeadLetters(tmp_path / "x.db") as letters:
        letters.put()


@pytest.mark.parametrize("path", ["nowhere/x.db", "."])
def test_a_place_that_cannot_be_written_is_told(tmp_path, path):
    assert "see to its directory and the permissions" in str(trouble(tmp_path / path))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a directory that nobody may write to")
def test_a_directory_that_nobody_may_write_to_is_told():
    assert "see to its directory and the permissions" in str(trouble(Path("/proc/letters.db")))


def test_a_full_disk_is_told_and_what_was_there_stays(tmp_path):
    with DeadLetters(tmp_path / "x.db") as letters:
        letters.put()
        letters.store._connection.execute("PRAGMA max_page_count = 20")
        with pytest.raises(StoreTrouble, match="the disk is full: make room"):
            for _ in range(100):
                letters.put(payload="x" * 4000)
        count = letters.depth()
        assert count >= 1
        assert len(list(letters)) == count


# A full disk


def full():
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorname = "SQLITE_FULL"
    return error


@pytest.fixture
def without_room(letters, monkeypatch):
    """A disk on which a write finds no room until the reserve is given up; counts what happened."""
    happened = []
    transact = SqliteStore._transact
    reserve = Path(letters.store.name + "-reserve")

    def limited(self, work, begin):
        if begin == "BEGIN IMMEDIATE" and reserve.exists():
            happened.append("full")
            raise full()
        return transact(self, work, begin)

    for payload in "abc":
        letters.put(payload=payload)
    monkeypatch.setattr(SqliteStore, "_transact", limited)
    return happened


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_on_a_full_disk_letters_are_refused_and_those_that_are_there_can_be_replayed(
    letters, without_room, asynchronous
):
    with pytest.raises(StoreTrouble, match="the disk is full: make room"):
        asyncio.run(letters.aput()) if asynchronous else letters.put()
    if asynchronous:
        assert asyncio.run(letters.areplay(print_nothing)) == Replayed(replayed=3)
    else:
        assert letters.replay(print_nothing) == Replayed(replayed=3)
    assert without_room == ["full", "full"]


def test_on_a_full_disk_letters_can_be_discarded_and_purged(letters, without_room, clock):
    (first, *_) = letters
    assert letters.discard(first.id)
    clock.advance(1)
    assert letters.purge(older_than=0) == 2
    assert without_room == ["full"]
    letters.put()


def test_a_purge_on_a_full_disk_goes_in_small_steps(letters, clock, monkeypatch):
    for _ in range(20):
        letters.put(payload="x" * 10_000)
    clock.advance(1)
    drop, steps = _letters_sqlite._drop_some, []

    def limited(connection, *, size, **fields):
        steps.append(size)
        if size > 1 << 16:
            raise full()
        return drop(connection, size=size, **fields)

    monkeypatch.setattr(_letters_sqlite, "_drop_some", limited)
    assert letters.purge(older_than=0) == 20
    assert steps == [1 << 20] * 2 + [1 << 16] * 4  # twice, with the reserve given up in between
    assert letters.depth() == 0

    def failing(connection, **fields):
        raise full()

    letters.put()
    clock.advance(1)
    monkeypatch.setattr(_letters_sqlite, "_drop_some", failing)
    with pytest.raises(StoreTrouble, match="the disk is full"):
        letters.purge(older_than=0)

    def broken(connection, **fields):
        raise sqlite3.OperationalError("other")

    monkeypatch.setattr(_letters_sqlite, "_drop_some", broken)
    with pytest.raises(StoreTrouble, match="other"):
        letters.purge(older_than=0)


def test_a_purge_of_many_lets_others_write_in_between(letters, clock):
    for _ in range(40):
        letters.put(payload="x" * 60_000)
    clock.advance(1)
    drop, depths = _letters_sqlite._drop_some, []

    def watched(connection, **fields):
        depths.append(connection.execute("SELECT depth FROM tallies").fetchone()[0])
        return drop(connection, **fields)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_letters_sqlite, "_drop_some", watched)
        assert letters.purge(older_than=0) == 40
    assert len(depths) == 4
    assert depths == sorted(depths, reverse=True)


def test_a_full_disk_whose_reserve_was_used_up_is_told(letters, monkeypatch):
    letter = letters.put()
    Path(letters.store.name + "-reserve").unlink()

    def write(self, work):
        raise StoreTrouble("full", where="x") from full()

    monkeypatch.setattr(SqliteStore, "_write", write)
    with pytest.raises(StoreTrouble, match="full"):
        letters.discard(letter.id)


@pytest.mark.parametrize("trouble", ["little room", "no room", "short of room"])
def test_a_reserve_is_kept_only_where_there_is_room(tmp_path, monkeypatch, trouble):
    def write(handle, content):
        if trouble == "no room":
            raise OSError(28, "No space left on device")
        return len(content) - 1

    if trouble == "little room":
        monkeypatch.setattr(_letters_file, "_PLENTY", 1 << 60)
    else:
        monkeypatch.setattr(os, "write", write)
    with DeadLetters(tmp_path / "x.db") as letters:
        letters.put()
    assert not (tmp_path / "x.db-reserve").exists()


def test_where_the_room_on_a_disk_is_not_known_it_is_not_scarce(tmp_path, monkeypatch):
    assert not _letters_file.is_scarce(str(tmp_path / "nowhere"))
    monkeypatch.delattr(os, "statvfs")
    assert not _letters_file.is_scarce(str(tmp_path))


# A locked file


@pytest.fixture
def locked(tmp_path):
    """A file that another connection keeps locked."""
    path = tmp_path / "locked.db"
    with DeadLetters(path) as letters:
        letters.put(payload="first")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        yield letters
        other.close()


def seconds(function):
    began = time.monotonic()
    function()
    return time.monotonic() - began


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_locked_file_stalls_no_other_file_and_no_fork(locked, letters):
    """A lock for the whole process was held meanwhile: another file and os.fork() waited for 30 s."""
    letters.put()
    store = SqliteStore(locked.store.name, patience=0.4)
    errors = []

    def put():
        try:
            add(store)
        except StoreTrouble as error:
            errors.append(error)

    waiting = [threading.Thread(target=put) for _ in range(4)]
    took = seconds(lambda: run_beside(waiting, lambda: (letters.put(), forked(letters.put))))
    assert len(errors) == 4
    assert took < 0.4 * 3  # and not one after the other
    assert letters.depth() == 3


def run_beside(threads, work):
    for thread in threads:
        thread.start()
    assert seconds(work) < 0.3
    assert all(thread.is_alive() for thread in threads)
    for thread in threads:
        thread.join()


def forked(work):
    child = os.fork()
    if not child:
        work()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_where_a_test_has_stopped_the_clock_a_locked_file_is_not_waited_for_for_ever(locked, monkeypatch):
    store = SqliteStore(locked.store.name, patience=0.03)
    monkeypatch.setattr(time, "monotonic", lambda: 50.0)
    with watchdog(), pytest.raises(StoreTrouble, match="another process has kept it locked"):
        add(store)


def test_reading_does_not_wait_for_a_writer(locked):
    assert seconds(lambda: list(locked)) < 1.0


def test_a_put_by_hand_within_a_call_takes_no_more_time_than_the_call_has(locked, monkeypatch):
    monkeypatch.setattr(context, "BEYOND", 0.01)

    def put():
        with pytest.raises(StoreTrouble, match="another process has kept it locked"):
            locked.put()

    assert 0.04 < seconds(lambda: Policy(deadline=0.05).call(put)) < 1.0


def test_many_async_puts_wait_together_and_not_one_after_the_other(locked, monkeypatch):
    """There are fewer threads than puts: those that wait for a thread wait for the file meanwhile."""
    monkeypatch.setattr(deadletter, "PATIENCE", 0.1)
    ticks = []

    async def tick():
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.005)

    async def main():
        ticker = asyncio.create_task(tick())
        outcomes = await asyncio.gather(*[locked.aput() for _ in range(64)], return_exceptions=True)
        ticker.cancel()
        return outcomes

    began = time.monotonic()
    outcomes = asyncio.run(main())
    assert [type(outcome) for outcome in outcomes] == [StoreTrouble] * 64
    assert 0.1 <= time.monotonic() - began < 1.0
    assert len(ticks) > 5


def test_a_file_that_stays_locked_is_told(tmp_path):
    store = SqliteStore(str(tmp_path / "x.db"), patience=0.01)
    add(store)
    other = sqlite3.connect(store.name, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreTrouble, match="another process has kept it locked for too long"):
        add(store)
    other.close()
    add(store)
    assert store.depths() == {"default": (2, 0)}
    store.close()


def test_a_file_that_is_locked_while_it_is_opened_is_waited_for(tmp_path, monkeypatch):
    path = str(tmp_path / "x.db")
    busy = [BlockingIOError("the folder is locked")] * 2
    real = _letters_file._locked_folder
    monkeypatch.setattr(
        _letters_file, "_locked_folder", lambda folder: raises(busy.pop()) if busy else real(folder)
    )
    with DeadLetters(path) as letters:
        letters.put()
        assert letters.depth() == 1


def raises(error):
    raise error


@pytest.mark.parametrize("prepared", [True, False])
def test_a_python_without_sqlite_is_told(tmp_path, monkeypatch, prepared):
    monkeypatch.setitem(sys.modules, "sqlite3", None)
    monkeypatch.setattr(_letters, "_prepared", [sys] if prepared else [])
    with pytest.raises(StoreTrouble, match="see to the cause"):
        DeadLetters(tmp_path / "x.db").put()


# Threads


@pytest.mark.slow
def test_64_threads_share_one_file(letters):
    errors = []

    def work(number):
        try:
            for turn in range(5):
                letters.put(payload=[number, turn], idempotency_key=f"{number}-{turn}")
            letters.list(limit=3)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert letters.depth() == 320


@pytest.mark.slow
def test_threads_that_replay_at_once_share_the_letters_out(letters):
    for _ in range(40):
        letters.put()
    seen, outcomes = [], []

    def work():
        outcomes.append(letters.replay(lambda letter: seen.append(letter.id)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == len(set(seen)) == sum(outcome.replayed for outcome in outcomes) == 40
    assert letters.depth() == 0


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
