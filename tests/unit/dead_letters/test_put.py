"""A letter holds what was known of the call: bounded, masked, once for each key."""

from __future__ import annotations

import asyncio
import datetime
import gc
import itertools
import json
import os
import pickle
import threading
import weakref

import pytest

from conftest import watchdog
from redouble import retry
from redouble.dead_letters import DeadLetter, DeadLetters, masked_text
from redouble.dead_letters._letter import from_json, iso, new_id, to_json
from support.dead_letters import NOW, fail, raised

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
    with pytest.raises(TypeError, match="DeadLetter has no field 'colour'"):
        DeadLetter(colour=1)


def test_a_letter_is_read_in_the_state_that_it_is_in_at_the_time():
    content = to_json(DeadLetter(payload=[1]))
    known = {"id": "x", "queue": "q", "leased_by": "me"}
    waiting = from_json(content, now=NOW, parked=False, until=NOW, **known)
    leased = from_json(content, now=NOW, parked=False, until=NOW + 1, **known)
    parked = from_json(content, now=NOW, parked=True, until=0.0, **known)
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
    assert len(to_json(letter).encode()) < 100_000
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


def test_an_unknown_field_is_refused_sync_and_async(letters):
    with pytest.raises(TypeError, match="unexpected keyword argument 'pay'"):
        letters.put(pay=7)
    with pytest.raises(TypeError, match="unexpected keyword argument 'pay'"):
        asyncio.run(letters.aput(pay=7))


def test_where_the_interpreter_shuts_down_an_async_put_blocks_rather_than_lose_the_letter(
    letters, monkeypatch
):
    class Ended:
        def is_alive(self):
            return False

    async def main():
        with monkeypatch.context() as patched:
            patched.setattr(threading, "main_thread", Ended)
            patched.setattr(asyncio, "to_thread", pytest.fail)
            return await letters.aput(payload=7)

    assert asyncio.run(main()).payload == 7
