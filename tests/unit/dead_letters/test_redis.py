"""What the Redis store of dead letters sends, how it reads the answers, and what it says of trouble. No server runs."""

from __future__ import annotations

import hashlib
import json
import pickle
import threading

import pytest

from redouble import Policy, context
from redouble.dead_letters import DeadLetter, DeadLetters, RedisStore, StoreError
from redouble.dead_letters import _redis as _letters_redis
from redouble.dead_letters._letter import Added, Limits, UnreadableLetter, iso, to_json
from support.fake_redis import AsyncFakeRedis, FakeRedis, NoScriptError

NOW = 1_700_000_000.0


def store(*answers):
    return RedisStore(FakeRedis(*answers), "letters")


def arguments(store, call=-1):
    """What was sent after the script and the keys."""
    return store.client.asked[call][6:]


def life(**fields):
    known = {
        "id": "01", "queue": "default", "idempotency_key": None, "first_attempt_at": None, "enqueued_at": "e",
        "put": "01", "puts": 1, "at": "0", "size": 9, "replays": 0, "parked": False,
        "leased_by": None, "leased_until": "0", "last_replay_error": None,
    }  # fmt: skip
    return json.dumps({**known, **fields}).encode()


def content(**fields):
    return to_json(DeadLetter(**fields)).encode()


@pytest.fixture(params=["bytes", "text"])
def as_client(request):
    """What a client makes of an answer: it may or may not decode."""

    def decoded(word):
        if isinstance(word, list):
            return [decoded(inner) for inner in word]
        return word.decode("ascii") if request.param == "text" and isinstance(word, bytes) else word

    return decoded


# What is sent


def test_all_keys_are_in_one_slot_of_a_cluster():
    letters = store([])
    letters.depths()
    assert letters.client.asked[0][2:6] == (3, "{letters}:letters", "{letters}:index", "{letters}:tallies")


def test_a_script_is_sent_by_its_digest_and_whole_where_the_server_does_not_know_it():
    for unknown in (NoScriptError("x"), ValueError("NOSCRIPT No matching script")):
        letters = store(unknown, 1, 0)
        assert letters.unpark("01") is True
        assert letters.unpark("01") is False
        first, whole, again = letters.client.asked
        assert (first[0], whole[0], again[0]) == ("evalsha", "eval", "evalsha")
        assert first[1] == again[1] == hashlib.sha1(whole[1].encode()).hexdigest()
        assert first[2:] == whole[2:]


def test_ids_are_sent_as_bytes_and_other_texts_in_ascii_so_that_the_encoding_of_the_client_does_not_matter():
    letters = store([life(), 0, 1, 0, 0], 1)
    letter = DeadLetter(id="é", queue="é", idempotency_key="ü\n", payload="ß")
    letters.add(letter, now=NOW, limits=Limits())
    raw_id, fresh, text, *rest = arguments(letters)
    assert raw_id == "é".encode()
    assert json.loads(text)["payload"] == "ß"
    assert text.isascii()
    assert json.loads(fresh)["queue"] == json.loads(fresh)["id"] == "\\xe9"
    assert json.loads(fresh)["idempotency_key"] == "\\xfc\\n"
    assert json.loads(fresh)["size"] == len(to_json(letter).encode())
    assert rest == ["1700000000.0", b"", b"", b"", "1000"]
    letters.release("01", owner="ö", error="ß", park=True)
    assert arguments(letters) == (b"01", b"\\xf6", "1", b"\\xdf", "1", "1")


def test_limits_are_sent_as_they_are_and_none_as_nothing():
    letters = store(*[[life(), 0, 1, 0, 0]] * 2)
    letters.add(DeadLetter(id="01"), now=NOW, limits=Limits(rows=5, size=100, oldest=NOW - 9))
    assert arguments(letters)[4:7] == ("5", "100", _letters_redis._sortable(NOW - 9).encode())
    letters.add(DeadLetter(id="01"), now=NOW, limits=Limits())
    assert arguments(letters)[4:7] == (b"", b"", b"")


def test_a_release_says_whether_the_claim_counts():
    letters = store(1, 1)
    assert letters.release("01", owner="me")
    assert arguments(letters) == (b"01", b"me", "0", b"", "0", "1")
    assert letters.release("01", owner="me", count=False)
    assert arguments(letters) == (b"01", b"me", "0", b"", "0", "0")


def test_leases_are_told_with_their_owner():
    letters = store(1, 0)
    assert letters.renew("01", owner="me", until=NOW)
    assert arguments(letters) == (b"01", b"me", "1700000000.0")
    assert not letters.settle(DeadLetter(id="01", puts=3), owner="me")
    assert arguments(letters) == (b"01", b"me", "3")


def test_times_are_sent_as_texts_that_sort_as_they_do():
    times = [-1e300, -NOW, -1.5, -1.0, -1e-300, 0.0, 5e-324, 0.1, 1.0, NOW, NOW + 1e-6, 1e300]
    texts = [_letters_redis._sortable(time) for time in times]
    assert texts == sorted(texts)
    assert len(set(texts)) == len(times)
    assert {len(text) for text in texts} == {16}
    assert _letters_redis._sortable(-0.0) == _letters_redis._sortable(0.0)


# What is answered


def test_an_addition_is_read(as_client):
    letters = store(as_client([life(puts=2, idempotency_key="k\\xe9", replays=3), 4, 5, 6, 7]))
    added = letters.add(DeadLetter(id="02", payload=["é"]), now=NOW, limits=Limits())
    kept = DeadLetter(id="01", enqueued_at="e", idempotency_key="ké", payload=["é"], puts=2, replays=3)
    assert added == Added(kept, before=4, depth=5, expired=6, crowded_out=7)


def test_a_letter_is_read_in_its_state(as_client):
    leased = life(leased_by="m\\xe9", leased_until=repr(NOW + 1), last_replay_error="\\xdf")
    letters = store(
        as_client([leased, content(payload=1)]), as_client([life(parked=True), content()]), None, None
    )
    found = letters.get("01", now=NOW)
    assert (found.state, found.leased_by, found.leased_until) == ("leased", "mé", iso(NOW + 1))
    assert (found.payload, found.last_replay_error) == (1, "ß")
    assert letters.get("01", now=NOW).state == "parked"
    assert letters.get("01", now=NOW) is None
    assert letters.claim("01", owner="me", now=NOW, until=NOW + 9) is None


def test_a_claim_gives_the_letter(as_client):
    answer = as_client([life(leased_by="me", leased_until=repr(NOW + 9)), content()])
    letters = store(answer)
    claimed = letters.claim("01", owner="me", now=NOW, until=NOW + 9)
    assert (claimed.id, claimed.leased_by, claimed.state) == ("01", "me", "leased")
    assert arguments(letters) == (b"01", b"me", "1700000000.0", "1700000009.0")


def test_a_list_goes_on_where_the_server_left_off(as_client):
    letters = store(
        as_client([b"k\\xe9", life(id="01"), content()]),
        as_client([b"", life(id="02"), content(), life(id="03"), content()]),
    )
    found = letters.list("default", now=NOW, state="waiting", limit=5, after="00")
    assert [letter.id for letter in found] == ["01", "02", "03"]
    assert arguments(letters, 0) == (b"default", b"00", b"waiting", "1700000000.0", "5", "1000")
    assert arguments(letters, 1) == (b"default", "ké".encode(), b"waiting", "1700000000.0", "4", "1000")


def test_a_list_ends_at_its_limit_also_where_there_is_more(as_client):
    letters = store(as_client([b"01", life(id="01"), content()]))
    found = letters.list("q", now=NOW, state=None, limit=1, after="")
    assert [letter.id for letter in found] == ["01"]
    assert letters.list("q", now=NOW, state=None, limit=0, after="") == []
    assert len(letters.client.asked) == 1
    assert arguments(letters)[2] == b""


def test_a_purge_goes_on_until_a_step_finds_less_than_it_may():
    letters = store(1000, 1000, 999)
    assert letters.purge("é", before=NOW - 5, now=NOW) == 2999
    assert len(letters.client.asked) == 3
    assert arguments(letters) == (
        b"\\xe9",
        _letters_redis._sortable(NOW - 5).encode(),
        "1700000000.0",
        "1000",
    )


def test_depths_are_read_by_queue_in_their_order(as_client):
    letters = store(
        as_client(
            [b"parked b", b"2", b"size a", b"9", b"depth b", b"1", b"depth \\xe9 c", b"3", b"parked \\xe9 c", b"0",
             b"depth a", b"0", b"size b", b"9", b"parked a", b"4"]
        ),
        [],
    )  # fmt: skip
    found = letters.depths()
    assert list(found.items()) == [("a", (0, 4)), ("b", (1, 2)), ("é c", (3, 0))]
    assert letters.depths() == {}


def test_a_discarded_letter_is_told_by_its_queue(as_client):
    letters = store(as_client(b"\\xe9"), None)
    assert letters.discard("01") == "é"
    assert letters.discard("01") is None


# Trouble


class Named(Exception):
    """An error of a client, known by its name alone."""

    def __new__(cls, name, message):
        made = type(name, (Exception,), {})
        return made(message)


@pytest.mark.parametrize(
    ("name", "message", "advice"),
    [
        ("ConnectionError", "Error 111 connecting to localhost:6379", "check that the server runs and can be reached"),
        ("ConnectionError", "auth.example.org refused", "check that the server runs and can be reached"),
        ("TimeoutError", "Timeout reading from socket", "it may have been done or not"),
        ("OutOfMemoryError", "command not allowed when used memory > 'maxmemory'.", "memory is full: replay or purge"),
        ("ResponseError", "OOM command not allowed when used memory > 'maxmemory'.", "memory is full"),
        ("ReadOnlyError", "You can't write against a read only replica.", "connect to the primary"),
        ("ResponseError", "MISCONF Redis is configured to save RDB", "the server cannot write to its disk"),
        ("ResponseError", "NOREPLICAS Not enough good replicas to write.", "has too few replicas"),
        ("AuthenticationError", "invalid username-password pair", "check the client's user and password"),
        ("NoPermissionError", "this user has no permissions", "let the client's user run scripts"),
        ("BusyLoadingError", "Redis is loading the dataset in memory", "the server is starting"),
        ("ResponseError", "WRONGTYPE Operation against a key", "use another key"),
        ("ResponseError", "REDOUBLE they were written by a later redouble (layout 2)", "install that one"),
        ("ResponseError", "REDOUBLE something else is there, or a part", "evicts nothing"),
        ("ResponseError", "ERR unknown command", "ERR unknown command)"),
    ],
)  # fmt: skip
def test_whatever_goes_wrong_is_trouble_that_says_where_and_what_to_do(name, message, advice):
    error = Named(name, message)
    letters = store(error)
    with pytest.raises(StoreError) as caught:
        DeadLetters(letters).put()
    told = str(caught.value)
    assert told.startswith(f"dead letters in Redis under 'letters' cannot be used ({name}: {message[:20]}")
    assert advice in told
    assert caught.value.location == letters.name == "Redis under 'letters'"
    assert caught.value.__cause__ is error


def test_every_method_tells_its_trouble():
    letter = DeadLetter(id="01")
    letters = store(*[ConnectionError("no")] * 12)
    uses = [
        lambda: letters.add(letter, now=NOW, limits=Limits()),
        lambda: letters.get("01", now=NOW),
        lambda: letters.list("q", now=NOW, state=None, limit=1, after=""),
        lambda: letters.claim("01", owner="me", now=NOW, until=NOW),
        lambda: letters.renew("01", owner="me", until=NOW),
        lambda: letters.settle(letter, owner="me"),
        lambda: letters.release("01", owner="me"),
        lambda: letters.unpark("01"),
        lambda: letters.discard("01"),
        lambda: letters.purge("q", before=NOW, now=NOW),
        lambda: letters.depths(),
    ]
    for use in uses:
        with pytest.raises(StoreError, match="ConnectionError: no"):
            use()
    assert len(letters.client.asked) == len(uses)


@pytest.mark.parametrize("answer", [[b"{", b"{}"], [b"{}", b"{}"], b"?", 7])
def test_an_answer_that_makes_no_sense_is_trouble_too(answer):
    with pytest.raises(StoreError, match="under 'letters' cannot be used"):
        store(answer).get("01", now=NOW)


@pytest.mark.parametrize(
    "answer", [[life(), b"{"], [life(), b"[]"], [life(), None], [life(leased_until="1e300"), content()], [b'{"id": "01"}', content()]]
)  # fmt: skip
def test_a_damaged_letter_is_named_and_hides_no_other(answer, caplog):
    letters = store([b"", *answer, life(id="02"), content(payload=2)])
    broken, sound = letters.list("default", now=NOW, state=None, limit=9, after="")
    assert isinstance(broken, UnreadableLetter)
    assert (broken.id, broken.replayable, broken.state) == ("01", False, "waiting")
    assert broken.replay_instructions.startswith("dead letter 01 cannot be read (")
    assert (sound.id, sound.payload) == ("02", 2)
    assert "dead letter 01 cannot be read" in caplog.text


# Time


def test_a_server_costs_a_call_no_more_time_than_it_has(monkeypatch):
    monkeypatch.setattr(context, "BEYOND", 0.01)
    monkeypatch.setattr(_letters_redis, "_LATE", 2)
    answered = threading.Event()

    class Stopped(FakeRedis):
        def evalsha(self, *words):
            answered.wait(30)
            return super().evalsha(*words)

    letters = RedisStore(Stopped(*[[b"depth a", b"1", b"parked a", b"0"]] * 3), "letters")
    policy = Policy(attempts=1, deadline=0.01)
    for why in ["no answer in the time that the call has"] * 2 + ["2 earlier requests have no answer yet"]:
        with pytest.raises(StoreError, match=f"{why}.*it may have been done or not"):
            policy.call(letters.depths)
    late = list(letters._late)
    answered.set()
    for thread in late:
        thread.join()
    assert policy.call(letters.depths) == {"a": (1, 0)}
    assert letters._late == []


def test_what_the_server_says_in_time_comes_out_also_where_time_is_limited(monkeypatch):
    policy = Policy(attempts=1, deadline=60.0)
    with pytest.raises(StoreError, match="ConnectionError: no") as caught:
        policy.call(store(ConnectionError("no")).depths)
    assert isinstance(caught.value.__cause__, ConnectionError)

    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert policy.call(store([]).depths) == {}


def test_what_cannot_be_sent_is_trouble_and_nothing_was_sent():
    letters = store()
    with pytest.raises(StoreError, match="UnicodeEncodeError"):
        letters.get("\ud800", now=NOW)
    assert letters.client.asked == []


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_comes_out_as_it_is(interrupt):
    with pytest.raises(interrupt):
        store(interrupt()).depths()


# Settings


@pytest.mark.parametrize("wrong", [None, "redis://localhost", FakeRedis, object()])
def test_what_is_no_client_is_refused(wrong):
    with pytest.raises(TypeError, match=r"client must be a redis\.Redis, got"):
        RedisStore(wrong, "letters")


def test_an_async_client_is_refused_with_the_reason():
    with pytest.raises(
        TypeError, match=r"client must be a sync one, such as redis\.Redis: dead letters call .* threads"
    ):
        RedisStore(AsyncFakeRedis(), "letters")


@pytest.mark.parametrize("wrong", [None, "", 7, b"letters"])
def test_a_key_must_be_a_text(wrong):
    with pytest.raises(TypeError, match="key must be a text that is not empty"):
        RedisStore(FakeRedis(), wrong)


@pytest.mark.parametrize("wrong", ["{letters}", "}", "a{"])
def test_a_key_with_braces_is_refused(wrong):
    with pytest.raises(ValueError, match="key must be without braces"):
        RedisStore(FakeRedis(), wrong)


def test_letters_on_a_client_do_not_pickle_and_closing_them_leaves_the_client_open():
    letters = DeadLetters(store())
    with pytest.raises(TypeError, match="dead letters in Redis under 'letters' cannot be pickled"):
        pickle.dumps(letters)
    assert repr(letters) == "<DeadLetters 'default' in Redis under 'letters'>"
    letters.close()
