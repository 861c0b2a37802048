"""Dead letters of a policy: which calls are kept, what of them, and that trouble with it hides nothing."""

from __future__ import annotations

import asyncio
import logging
import pickle
import sqlite3
import time

import pytest

from redouble import (
    BulkheadFull,
    CircuitOpen,
    DeadlineExceeded,
    Policy,
    ResultRejected,
    Rule,
    context,
    current_attempt,
    retrying,
)
from redouble._engine import call as _call
from redouble.backoff import exponential, fixed
from redouble.breaker import CircuitBreaker
from redouble.budget import TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.context import outgoing_headers
from redouble.dead_letters import DeadLetters
from redouble.events import DeadLettered, correlate
from redouble.testing import retries_disabled, scripted
from support.errors import HTTPError, Nasty
from support.threads import in_threads


@pytest.fixture
def letters(tmp_path):
    with DeadLetters(tmp_path / "letters.db") as letters:
        yield letters


@pytest.fixture
def heard():
    return []


@pytest.fixture
def policy(clock, heard, letters):
    return Policy(
        attempts=2,
        clock=clock,
        sleep=clock.sleep,
        backoff=exponential,
        listeners=[heard.append],
        name="pay",
        dead_letters=letters,
    )


def the(letters):
    (letter,) = letters
    return letter


def test_a_call_that_was_given_up_on_is_kept_and_its_own_error_comes_out(flavour, policy, letters, heard):
    error = HTTPError(503)
    with pytest.raises(HTTPError) as caught:
        flavour.call(policy, flavour.scripted(HTTPError(502), error), "card", amount=7)
    assert caught.value is error
    letter = the(letters)
    assert (letter.function, letter.error_type, letter.error_message) == ("pay", "HTTPError", "status 503")
    assert (letter.failure_code, letter.attempts, letter.payload) == ("503", 2, None)
    assert letter.replayable
    assert letter.first_attempt_at < letter.last_attempt_at
    assert [type(event).__name__ for event in heard] == ["Retrying", "GaveUp", "DeadLettered"]
    assert (heard[-1].letter, heard[-1].queue, heard[-1].name) == (letter.id, "default", "pay")


def test_arguments_are_kept_only_as_the_policy_says(flavour, policy, letters):
    def payload(card, *, amount):
        return {"amount": amount, "password": card}

    with pytest.raises(TimeoutError):
        flavour.call(
            policy.replace(payload=payload, attempts=1), flavour.scripted(TimeoutError()), "4111", amount=7
        )
    assert the(letters).payload == {"amount": 7, "password": "***"}


def test_a_payload_that_raises_is_said_and_the_rest_is_kept(flavour, policy, letters, caplog):
    error = TimeoutError("slow")
    with pytest.raises(TimeoutError) as caught:
        flavour.call(policy.replace(payload=lambda: 1 / 0, attempts=1), flavour.scripted(error))
    assert caught.value is error
    letter = the(letters)
    assert (letter.replayable, letter.payload) == (False, None)
    assert letter.replay_instructions == "its payload could not be made: ZeroDivisionError: division by zero"
    assert "its payload could not be made" in caplog.text


def test_a_success_keeps_nothing(flavour, policy, letters):
    assert flavour.call(policy, flavour.scripted(TimeoutError(), "paid")) == "paid"
    assert letters.depth() == 0


@pytest.mark.parametrize("failure", [KeyError("k"), HTTPError(404)], ids=repr)
def test_a_failure_that_was_never_retryable_is_the_callers_and_not_kept(flavour, policy, letters, failure):
    with pytest.raises(type(failure)):
        flavour.call(policy, flavour.scripted(failure))
    assert letters.depth() == 0


def test_what_passes_while_retries_are_switched_off_is_not_kept(flavour, policy, letters):
    with retries_disabled(), pytest.raises(TimeoutError):
        flavour.call(policy, flavour.scripted(TimeoutError()))
    assert letters.depth() == 0


def test_what_is_left_to_the_call_further_out_is_kept_by_that_one_alone(policy, letters):
    calls = []

    @policy
    def outer():
        calls.append(1)
        if len(calls) == 1:
            raise TimeoutError("outer")
        return policy.replace(nested="defer", name="inner").call(fail)

    def fail():
        raise TimeoutError("inner")

    with pytest.raises(TimeoutError):
        outer()
    assert [letter.function for letter in letters] == ["pay"]


def test_every_way_of_giving_up_is_kept_with_its_code(flavour, policy, letters, clock):
    breaker, full = CircuitBreaker(clock=clock), Bulkhead(1)
    breaker.open()
    full.acquire()
    opens = CircuitBreaker(clock=clock)

    def broken(error):
        raise LookupError("no token")

    slow = TimeoutError("slow")
    ways = [
        ({"deadline": 0.5}, (slow,), DeadlineExceeded, "timeout", 1),
        (
            {"deadline": 9.0, "sleep": lambda seconds: clock.advance(60)},
            (slow,),
            DeadlineExceeded,
            "deadline",
            1,
        ),
        ({"until": bool, "attempts": 1}, (0,), ResultRejected, "unknown", 1),
        ({"breaker": breaker}, ("paid",), CircuitOpen, "breaker", 0),
        ({"breaker": opens, "sleep": lambda seconds: opens.open()}, (slow,), TimeoutError, "breaker", 1),
        ({"bulkhead": full}, ("paid",), BulkheadFull, "bulkhead", 0),
        ({"budget": TokenBudget(capacity=0)}, (slow,), TimeoutError, "timeout", 1),
        ({"rules": {TimeoutError: Rule(recover=broken)}}, (slow,), TimeoutError, "callback", 1),
        ({"idempotent": False}, (slow,), TimeoutError, "timeout", 1),
    ]
    for fields, outcomes, out, code, attempts in ways:
        with pytest.raises(out):
            flavour.call(policy.replace(**fields), flavour.scripted(*outcomes))
        letter = the(letters)
        assert (letter.error_type, letter.failure_code, letter.attempts) == (out.__name__, code, attempts)
        assert letters.discard(letter.id)


def test_the_dead_letter_is_written_before_the_fallback_is_asked(flavour, policy, letters):
    depths = []

    def fallback(error):
        depths.append(letters.depth())
        return "later"

    assert (
        flavour.call(policy.replace(fallback=fallback, attempts=1), flavour.scripted(TimeoutError()))
        == "later"
    )
    assert depths == [1]


def test_a_block_is_kept_too(flavour, policy, letters):
    def body(attempt):
        raise TimeoutError("slow")

    with pytest.raises(TimeoutError):
        flavour.block(policy, body)
    assert (the(letters).function, the(letters).attempts) == ("pay", 2)


def test_the_queue_is_that_of_the_view(flavour, policy, letters):
    with pytest.raises(TimeoutError):
        flavour.call(
            policy.replace(dead_letters=letters.queue("critical"), attempts=1),
            flavour.scripted(TimeoutError()),
        )
    assert letters.depths() == {"critical": 1}


def test_a_call_with_a_key_is_kept_once_however_often_it_is_given_up_on(flavour, policy, letters):
    keyed = policy.replace(idempotency_key=lambda order: order, attempts=1)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            flavour.call(keyed, flavour.scripted(TimeoutError()), "order-7")
    letter = the(letters)
    assert (letter.idempotency_key, letter.puts) == ("pay:order-7", 3)


def test_what_the_user_correlates_is_kept(flavour, policy, letters):
    correlate(lambda: {"trace_id": "4bf9"})
    try:
        with pytest.raises(TimeoutError):
            flavour.call(policy.replace(attempts=1), flavour.scripted(TimeoutError()))
    finally:
        correlate(None)
    assert the(letters).correlation_id == "4bf9"


def test_a_correlate_hook_that_raises_is_reported_once_and_nothing_is_lost(flavour, policy, letters, caplog):
    correlate(lambda: 1 / 0)
    try:
        for _ in range(2):
            with pytest.raises(TimeoutError):
                flavour.call(policy.replace(attempts=1), flavour.scripted(TimeoutError()))
    finally:
        correlate(None)
    assert letters.depth() == 2
    assert len([text for text in caplog.messages if text.startswith("correlate ")]) == 1


@pytest.mark.parametrize(
    "garbage", [b"not a database, but long enough to be read as one" * 100, None], ids=["file", "folder"]
)
def test_a_store_in_trouble_never_hides_the_own_error_and_is_said_every_time(
    flavour, policy, tmp_path, caplog, garbage
):
    path = tmp_path / "broken.db"
    if garbage is None:
        path.mkdir()
    else:
        path.write_bytes(garbage)
    broken = policy.replace(dead_letters=DeadLetters(path), attempts=1)
    for _ in range(2):
        error = TimeoutError("slow")
        with pytest.raises(TimeoutError) as caught:
            flavour.call(broken, flavour.scripted(error))
        assert caught.value is error
        assert "no attempts left; its dead letter could not be stored: StoreError" in error.__notes__[0]
    assert caplog.text.count("failed for good, and its dead letter could not be stored") == 2


def test_a_store_in_trouble_is_noted_on_our_own_errors_too(flavour, policy, tmp_path, clock):
    (tmp_path / "broken.db").mkdir()
    breaker = CircuitBreaker(clock=clock)
    breaker.open()
    broken = policy.replace(dead_letters=DeadLetters(tmp_path / "broken.db"), breaker=breaker)
    with pytest.raises(CircuitOpen) as caught:
        flavour.call(broken, flavour.scripted("paid"))
    assert "its dead letter could not be stored" in caught.value.__notes__[0]


class Slow(DeadLetters):
    """A store that keeps an event loop waiting, if it is asked on it."""

    def _add(self, fields):
        import time

        time.sleep(0.1)
        return super()._add(fields)


@pytest.mark.slow
def test_the_event_loop_goes_on_while_a_dead_letter_is_written(policy, tmp_path):
    ticks = []

    async def tick():
        while True:
            ticks.append(1)
            await asyncio.sleep(0.005)

    async def fail():
        raise TimeoutError("slow")

    async def main():
        ticker = asyncio.create_task(tick())
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await policy.replace(dead_letters=Slow(tmp_path / "slow.db"), attempts=1).call(fail)
        ticker.cancel()

    asyncio.run(main())
    assert len(ticks) > 3


def test_a_replay_runs_under_the_key_of_the_letter_also_in_the_function_it_was_kept_for(
    flavour, policy, letters
):
    keyed, sent = policy.replace(idempotency_key=True, attempts=1), []

    def send(amount):
        sent.append((outgoing_headers()["Idempotency-Key"], current_attempt().idempotency_key))
        if len(sent) == 1:
            raise TimeoutError("slow")
        return "paid"

    pay = keyed.replace(payload=lambda amount: {"amount": amount})(flavour.function(send))
    with pytest.raises(TimeoutError):
        flavour.run(pay, 7)
    key = the(letters).idempotency_key
    other = keyed.replace(name="mail", dead_letters=None)

    def handle(letter):
        return pay(**letter.payload)

    async def handle_async(letter):
        await pay(**letter.payload)

    if flavour.is_async:
        done = asyncio.run(letters.areplay(handle_async))
    else:
        done = letters.replay(lambda letter: (handle(letter), other.call(send, 1)))
        assert sent.pop()[0].startswith("mail:")  # a key for another call is another key
    assert done.replayed == 1
    assert sent == [(key, key), (key, key)]
    assert letters.depth() == 0


def replayed(flavour, letters, handler):
    """A replay whose handler calls what is async where the flavour is."""
    if not flavour.is_async:
        return letters.replay(handler)

    async def awaiting(letter):
        for coroutine in handler(letter):
            await coroutine

    return asyncio.run(letters.areplay(awaiting))


def sender(flavour, policy, sent):
    def send(order, **fields):
        sent.append((order, outgoing_headers()["Idempotency-Key"]))

    return policy(flavour.function(send))


def test_two_payments_of_one_batch_are_not_sent_under_the_key_of_the_batch(flavour, policy, letters):
    """The name in front was enough: the server took the second payment for a repetition of the first."""
    sent = []
    letters.put(payload=["o1", "o2"], function="pay", idempotency_key="pay:batch-7")
    for key in (lambda order: order, True):
        pay = sender(flavour, policy.replace(idempotency_key=key), sent)
        letters.put(idempotency_key="pay:batch-7", payload=["o1", "o2"])

        def each(letter, pay=pay):
            return [pay(order) for order in letter.payload]

        assert replayed(flavour, letters, each).replayed == 1
    assert sent[:2] == [("o1", "pay:o1"), ("o2", "pay:o2")]
    assert len({key for _, key in sent}) == 4
    assert all(key.startswith("pay:") and "batch" not in key for _, key in sent)


def test_a_random_key_stands_in_for_the_one_call_that_it_was_made_for(flavour, policy, letters):
    sent = []
    key = "pay:7e8b3f1e-0c57-4b7e-9f0e-2f1d7f3a5a11"
    letters.put(payload="o1", idempotency_key=key)
    pay = sender(flavour, policy.replace(idempotency_key=True), sent)
    replayed(flavour, letters, lambda letter: [pay("o1"), pay("o2"), pay("o1"), pay("o1", gift=True)])
    keys = [key for _, key in sent]
    assert keys[0] == keys[2] == key
    assert len(set(keys)) == 3


@pytest.mark.parametrize("order", ["a b", "a%20b", "100%", "%2520", "é%"])
def test_a_key_is_the_same_in_a_replay_and_no_other_order_has_it(flavour, policy, letters, order):
    """ "a b" and "a%20b" had one key."""
    sent = []
    failing = [TimeoutError("slow"), None]

    def send(order):
        sent.append(outgoing_headers()["Idempotency-Key"])
        if error := failing.pop(0):
            raise error

    keyed = policy.replace(idempotency_key=lambda order: order, payload=lambda order: order, attempts=1)
    pay = keyed(flavour.function(send))
    with pytest.raises(TimeoutError):
        flavour.run(pay, order)
    assert the(letters).idempotency_key == sent[0]
    seen = []

    def again(letter):
        seen.append(current_attempt().idempotency_key)
        return [pay(letter.payload)]

    assert replayed(flavour, letters, again).replayed == 1
    assert sent == [sent[0]] * 2
    assert seen == [sent[0]]
    orders = {"a b": "a%20b", "a%20b": "a%2520b", "100%": "100%25", "%2520": "%252520", "é%": "%C3%A9%25"}
    assert sent[0] == f"pay:{orders[order]}"


def locked(path):
    with DeadLetters(path) as letters:
        letters.put()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    return other


@pytest.mark.parametrize(
    ("fields", "least", "most"), [({"deadline": 0.1}, 0.1, 0.9), ({}, 0.2, 0.9)], ids=repr
)
def test_storing_takes_no_more_time_than_the_call_has_and_a_little(
    flavour, tmp_path, monkeypatch, fields, least, most
):
    """With deadline=1.0 and a file locked by another process, calls ended after 30 s, and those behind them after 61 s."""
    for name in (context, _call):
        monkeypatch.setattr(name, "BEYOND", 0.05)
    monkeypatch.setattr(_call, "_STORE_AT_MOST", 0.2)
    other = locked(tmp_path / "x.db")
    policy = Policy(attempts=1, dead_letters=DeadLetters(tmp_path / "x.db"), **fields)
    errors, took = [], []

    def work(_):
        began = time.monotonic()
        with pytest.raises(TimeoutError) as caught:
            flavour.call(policy, flavour.scripted(TimeoutError("slow")))
        errors.append(caught.value)
        took.append(time.monotonic() - began)

    in_threads(work, 8, fail=True)
    other.close()
    assert len(errors) == 8
    assert least < min(took) <= max(took) < most
    assert all("its dead letter could not be stored: StoreError" in error.__notes__[0] for error in errors)
    assert context.storing.get() is None


def test_a_replay_that_fails_again_does_not_keep_a_second_letter(policy, letters):
    def fail():
        raise TimeoutError("slow")

    with pytest.raises(TimeoutError):
        policy.call(fail)
    assert letters.replay(lambda letter: fail(), policy).failed == 1
    assert letters.depth() == 1


def test_a_policy_with_dead_letters_in_a_file_pickles(policy, letters):
    plain = Policy(dead_letters=letters)
    again = pickle.loads(pickle.dumps(plain))
    assert again.dead_letters.store.name == letters.store.name


@pytest.mark.parametrize("value", ["letters.db", 3, DeadLetters], ids=repr)
def test_what_keeps_no_letters_is_refused(value):
    with pytest.raises(TypeError, match="dead_letters must be a DeadLetters"):
        Policy(dead_letters=value)


def test_a_payload_without_dead_letters_is_refused():
    with pytest.raises(ValueError, match="payload needs dead_letters"):
        Policy(payload=lambda: None)


def test_a_policy_says_that_it_keeps_dead_letters(policy):
    assert "Stores a dead letter if a call fails for good with a retryable error." in policy.describe()


def test_listeners_of_both_hear_of_a_letter_once(flavour, tmp_path, clock, heard):
    letters = DeadLetters(tmp_path / "letters.db", listeners=[heard.append])
    both = Policy(attempts=1, dead_letters=letters, listeners=[heard.append], backoff=fixed, name="pay")
    with pytest.raises(TimeoutError):
        flavour.call(both, flavour.scripted(TimeoutError()))
    assert [type(event) for event in heard].count(DeadLettered) == 1


def test_a_kept_call_is_logged(flavour, policy, caplog):
    caplog.set_level(logging.INFO, "redouble")
    with pytest.raises(TimeoutError):
        flavour.call(policy.replace(attempts=1), flavour.scripted(TimeoutError()))
    assert f" {caplog.records[0].letter} of pay in default: TimeoutError" in caplog.messages[0]


def test_a_scope_keeps_what_its_calls_give_up_on(policy, letters):
    with pytest.raises(TimeoutError):
        with retrying(policy, attempts=1) as call:
            call(lambda: (_ for _ in ()).throw(TimeoutError()))
    assert letters.depth() == 1


def test_a_replay_whose_call_fails_again_changes_no_count_of_letters(flavour, policy, letters):
    ship = policy.replace(payload=dict)(flavour.function(lambda: (_ for _ in ()).throw(TimeoutError("slow"))))
    with pytest.raises(TimeoutError):
        flavour.run(ship)

    async def again(letter):
        await ship(**letter.payload)

    for _ in range(3):
        if flavour.is_async:
            done = asyncio.run(letters.areplay(again))
        else:
            done = letters.replay(lambda letter: ship(**letter.payload))
        assert (done.failed, letters.depth()) == (1, 1)
    assert the(letters).replays == 3


def test_a_replay_whose_call_gives_its_fallback_is_no_success(policy, letters):
    def fail():
        raise TimeoutError("slow")

    ship = policy.replace(fallback="later", attempts=1)(fail)
    assert ship() == "later"
    assert letters.replay(lambda letter: ship()).failed == 1
    assert the(letters).last_replay_error == "RedoubleError: pay failed for good again: TimeoutError: slow"


def test_another_call_that_is_given_up_on_in_a_replay_is_kept(policy, letters):
    def fail():
        raise TimeoutError("slow")

    ship = policy.replace(attempts=1)
    with pytest.raises(TimeoutError):
        ship.call(fail)
    mail = ship.replace(name="mail", fallback=None)
    assert letters.replay(lambda letter: mail.call(fail)).replayed == 1
    assert the(letters).function == "mail"


def test_a_call_that_might_act_twice_is_kept_and_not_replayed_unless_asked(flavour, policy, letters):
    with pytest.raises(TimeoutError):
        flavour.call(policy.replace(idempotent=False), flavour.scripted(TimeoutError()))
    letter = the(letters)
    assert not letter.replayable
    assert (
        letter.replay_instructions == "the call may have had an effect, and the policy says idempotent=False"
    )
    assert letters.replay(print).skipped == 1


def test_the_key_of_a_call_further_out_is_sent_by_every_attempt_and_kept_by_none(
    flavour, policy, letters, clock
):
    sent = []

    def send():
        sent.append(outgoing_headers().get("Idempotency-Key"))
        raise TimeoutError("slow")

    inner = policy.replace(name="inner")(flavour.function(send))
    outer = Policy(attempts=1, idempotency_key=True, name="outer", clock=clock, sleep=clock.sleep)

    async def call():
        return await inner()

    with pytest.raises(TimeoutError):
        flavour.run(outer(call if flavour.is_async else lambda: inner()))
    assert len(sent) == 2
    assert sent[0] == sent[1]
    assert sent[0].startswith("outer:")
    assert the(letters).idempotency_key is None


def test_a_replay_is_of_a_letter_also_where_the_call_has_opened_the_same_file_for_itself(
    policy, letters, tmp_path
):
    def fail():
        raise TimeoutError("slow")

    own = policy.replace(dead_letters=DeadLetters(tmp_path / "letters.db"), attempts=1)
    with pytest.raises(TimeoutError):
        own.call(fail)
    for _ in range(2):
        assert letters.replay(lambda letter: own.call(fail)).failed == 1
        assert letters.depth() == 1


def test_an_error_that_does_nothing_it_is_asked_is_kept_and_comes_out(policy, letters, clock):
    opens = CircuitBreaker(clock=clock)
    for fields in (
        {"attempts": 1},
        {"deadline": 0.5},
        {"breaker": opens, "sleep": lambda seconds: opens.open()},
    ):
        error = Nasty()
        with pytest.raises(TimeoutError) as caught:
            policy.replace(on=TimeoutError, **fields).call(scripted(error))
        assert caught.value is error or caught.value.__cause__ is error
        letter = the(letters)
        assert letter.error_type in ("Nasty", "DeadlineExceeded")
        letters.discard(letter.id)
    assert policy.replace(on=TimeoutError, attempts=1, fallback=7).call(scripted(Nasty())) == 7
