"""Dead letters are a value with queues, events and callbacks; wrong settings are refused by name."""

from __future__ import annotations

import copy
import pickle

import pytest

from redouble.dead_letters import DeadLetter, DeadLettered, DeadLetters, Store
from redouble.dead_letters._letter import Limits
from redouble.dead_letters._sqlite import SqliteStore

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
    monkeypatch.setattr("redouble.events.logger_for", lambda chosen: None)
    monkeypatch.setattr("redouble.dead_letters.DeadLettered", None)
    with DeadLetters(tmp_path / "x.db") as letters:
        letter = letters.put()
        assert letters.discard(letter.id)


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
        owned.append(letters.store._file._turn._is_owned())
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
    with pytest.raises(TypeError, match="cannot be pickled: use a path, not a store"):
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
            "path_or_store must be a path or a redouble.dead_letters.Store, got 7",
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


def test_a_letter_made_by_hand_keeps_its_payload_when_another_field_is_replaced(letters):
    letter = letters.put(payload=None).replace(payload=(1, [2]))
    assert letter.replace(queue="other").payload == (1, [2])
