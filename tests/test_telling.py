"""Who is told what: successes for those who ask, subscribers of every policy, what belongs together."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path

import pytest

from redouble import CircuitOpen, Policy, current_attempt, events, retry, retrying
from redouble.backoff import exponential, fixed
from redouble.breaker import CircuitBreaker
from redouble.budget import TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.deadletter import DeadLetters
from redouble.events import (
    CircuitChanged,
    DeadLettered,
    Event,
    GaveUp,
    Recovered,
    Retrying,
    Succeeded,
    correlate,
    subscribe,
    with_successes,
)


@pytest.fixture
def heard():
    return []


@pytest.fixture
def subscribed(heard):
    unsubscribe = subscribe(heard.append)
    yield heard
    unsubscribe()


@pytest.fixture
def correlating():
    yield correlate
    correlate(None)


def kinds(events):
    return [type(event).__name__ for event in events]


# Successes


def counting(clock, heard, **fields):
    fields = {"backoff": exponential, "name": "fetch", "clock": clock, "sleep": clock.sleep, **fields}
    return Policy(listeners=[with_successes(heard.append)], **fields)


WAYS = {
    "bare": {},
    "deadline": {"deadline": 60.0},
    "timeout": {"timeout": 5.0},
    "until": {"until": bool},
    "key": {"idempotency_key": True},
    "budget": {"budget": TokenBudget()},
    "breaker": {"breaker": CircuitBreaker()},
    "bulkhead": {"bulkhead": Bulkhead(3)},
    "all": {"deadline": 60.0, "until": bool, "budget": TokenBudget(), "breaker": CircuitBreaker()},
}


@pytest.mark.parametrize("fields", WAYS.values(), ids=WAYS)
def test_a_success_at_the_first_try_is_told_to_those_who_ask(flavour, clock, heard, fields):
    def work():
        clock.advance(0.25)
        return "page"

    assert flavour.call(counting(clock, heard, **fields), flavour.function(work)) == "page"
    assert heard == [Succeeded("fetch", attempt=1, elapsed=0.25)]


def test_a_success_is_told_only_to_the_listener_that_asks(flavour, clock):
    one, other = [], []
    policy = counting(clock, one).replace(listeners=[with_successes(one.append), other.append])
    flavour.call(policy, flavour.scripted("page"))
    flavour.call(policy, flavour.scripted(TimeoutError(), "page"))
    assert kinds(one) == ["Succeeded", "Retrying", "Recovered"]
    assert kinds(other) == ["Retrying", "Recovered"]


def test_a_subscriber_is_not_told_of_a_success_at_the_first_try(flavour, clock):
    every = with_successes((heard := []).append)
    unsubscribe = subscribe(every)
    try:
        flavour.call(counting(clock, []), flavour.scripted("page"))
    finally:
        unsubscribe()
    assert heard == []


def test_a_call_ends_with_one_of_succeeded_and_recovered(flavour, clock, heard):
    policy = counting(clock, heard)
    flavour.call(policy, flavour.scripted(TimeoutError(), TimeoutError(), "page"))
    assert kinds(heard) == ["Retrying", "Retrying", "Recovered"]


def test_where_successes_are_asked_for_elapsed_counts_from_the_beginning(flavour, clock, heard):
    outcomes = iter([TimeoutError("slow"), "page"])

    def work():
        clock.advance(0.5)
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    flavour.call(counting(clock, heard), flavour.function(work))
    assert [(type(event), event.elapsed) for event in heard] == [(Retrying, 0.5), (Recovered, 2.0)]


def test_a_block_that_succeeds_at_once_is_told(flavour, clock, heard):
    flavour.block(counting(clock, heard), lambda attempt: None)
    assert kinds(heard) == ["Succeeded"]
    assert heard[0].name == "fetch"


def test_a_block_that_recovers_is_no_success_at_the_first_try(flavour, clock, heard):
    outcomes = iter([TimeoutError("slow"), None])

    def body(attempt):
        if (outcome := next(outcomes)) is not None:
            raise outcome

    flavour.block(counting(clock, heard), body)
    assert kinds(heard) == ["Retrying", "Recovered"]


def test_a_generator_succeeds_with_its_first_item(clock, heard):
    @counting(clock, heard)
    def numbers():
        yield 1
        assert kinds(heard) == ["Succeeded"]
        yield 2

    assert list(numbers()) == [1, 2]
    assert kinds(heard) == ["Succeeded"]


def test_a_plain_function_that_gives_a_coroutine_is_told_of_when_that_has_ended(clock, heard):
    async def page():
        clock.advance(1.0)
        return "page"

    async def main():
        running = counting(clock, heard)(lambda: page())()
        assert heard == []
        return await running

    assert asyncio.run(main()) == "page"
    assert heard == [Succeeded("fetch", attempt=1, elapsed=1.0)]


def test_an_interrupt_is_no_success(flavour, clock, heard):
    with pytest.raises(KeyboardInterrupt):
        flavour.call(counting(clock, heard), flavour.scripted(KeyboardInterrupt()))
    assert heard == []


def test_a_call_that_is_not_let_through_is_no_success(flavour, clock, heard):
    breaker = CircuitBreaker(clock=clock)
    breaker.open()
    with pytest.raises(CircuitOpen):
        flavour.call(counting(clock, heard, breaker=breaker), flavour.scripted("page"))
    assert kinds(heard) == ["Refused"]


def test_a_success_is_not_logged(clock, heard, caplog):
    with caplog.at_level(logging.DEBUG, "redouble"):
        counting(clock, heard).call(str)
    assert kinds(heard) == ["Succeeded"]
    assert caplog.records == []


def test_what_counts_successes_is_a_listener_like_any_other(clock):
    def listener(event):
        """Heard."""

    wrapped = with_successes(listener)
    assert wrapped == with_successes(listener) != with_successes(print)
    assert hash(wrapped) == hash(with_successes(listener))
    assert wrapped != listener
    assert repr(wrapped) == "with_successes(listener)"
    assert Policy(listeners=[wrapped]) == Policy(listeners=[with_successes(listener)])
    with pytest.raises(TypeError, match="listener must be a plain function, not an async one"):
        with_successes(asyncio.sleep)
    with pytest.raises(TypeError, match="listener must be a function, got 3"):
        with_successes(3)


@pytest.mark.parametrize("answer", [None, 1, "yes", False])
def test_only_true_asks_for_successes(answer, clock, heard):
    class Listener:
        wants_successes = answer

        def __call__(self, event):
            heard.append(event)

    Policy(listeners=[Listener()]).call(str)
    assert heard == []


def test_a_policy_whose_listeners_hear_of_successes_pickles(clock):
    policy = Policy(listeners=[with_successes(print)])
    again = pickle.loads(pickle.dumps(policy))
    assert again == policy
    assert again._way == policy._way == "full"


# Subscribers


def test_a_subscriber_hears_of_every_policy(flavour, clock, subscribed):
    for name in ("one", "two"):
        policy = Policy(name=name, clock=clock, sleep=clock.sleep)
        flavour.call(policy, flavour.scripted(TimeoutError(), "page"))
    assert [(type(event), event.name) for event in subscribed] == [
        (Retrying, "one"), (Recovered, "one"), (Retrying, "two"), (Recovered, "two"),
    ]  # fmt: skip


def test_a_subscriber_hears_of_guards_and_of_dead_letters_once(flavour, clock, subscribed, tmp_path):
    letters = DeadLetters(tmp_path / "letters.db")
    breaker = CircuitBreaker(failures=1, clock=clock)
    policy = Policy(
        attempts=1, breaker=breaker, dead_letters=letters, clock=clock, sleep=clock.sleep, listeners=[print]
    )
    with pytest.raises(TimeoutError):
        flavour.call(policy, flavour.scripted(TimeoutError()))
    letters.close()
    assert sorted(kinds(subscribed)) == ["CircuitChanged", "DeadLettered", "GaveUp"]


def test_after_unsubscribing_nothing_is_heard(clock, heard):
    unsubscribe = subscribe(heard.append)
    unsubscribe()
    unsubscribe()
    with pytest.raises(ValueError, match="no"):
        Policy().call(int, "no")
    assert heard == []


def test_unsubscribing_ends_one_subscription_of_a_listener(heard):
    def listener(event):
        heard.append(event)

    first, second = subscribe(listener), subscribe(listener)
    first()
    with pytest.raises(ValueError, match="no"):
        Policy().call(int, "no")
    second()
    assert kinds(heard) == ["GaveUp"]


def test_a_listener_that_is_also_subscribed_is_told_once(clock, heard):
    listener = heard.append
    unsubscribe = subscribe(listener)
    with pytest.raises(ValueError, match="no"):
        Policy(listeners=[listener]).call(int, "no")
    unsubscribe()
    assert kinds(heard) == ["GaveUp"]


@pytest.mark.parametrize("wrong", [None, 3, asyncio.sleep])
def test_what_cannot_hear_cannot_be_subscribed(wrong):
    with pytest.raises(TypeError, match="listener must be a"):
        subscribe(wrong)


def test_a_success_at_the_first_try_costs_a_default_policy_nothing_whoever_is_subscribed(subscribed):
    fetch = retry(lambda: "page")
    before = fetch.__code__
    assert fetch() == "page"
    assert fetch.__code__ is before
    assert subscribed == []


# Listeners that call what they listen to


def test_a_listener_that_calls_the_function_again_is_not_told_of_its_own_calls(flavour, clock):
    heard = []

    def listener(event):
        heard.append(type(event).__name__)
        with pytest.raises(TimeoutError):
            policy.call(_times_out)

    policy = Policy(attempts=3, base=0.0, listeners=[listener], clock=clock, sleep=clock.sleep)
    with pytest.raises(TimeoutError):
        flavour.call(policy, flavour.function(_times_out))
    assert heard == ["Retrying", "Retrying", "GaveUp"]


def _times_out():
    raise TimeoutError("slow")


def test_other_listeners_hear_of_the_calls_that_a_listener_makes(clock, heard):
    def again(event):
        with pytest.raises(TimeoutError):
            policy.replace(name="inner", attempts=1).call(_times_out)

    policy = Policy(attempts=1, name="outer", listeners=[again, heard.append])
    with pytest.raises(TimeoutError):
        policy.call(_times_out)
    assert [event.name for event in heard] == ["inner", "outer"]


def test_a_log_handler_that_calls_the_function_again_comes_to_an_end(clock):
    class Handler(logging.Handler):
        def emit(self, record):
            records.append(record.getMessage())
            with pytest.raises(TimeoutError):
                policy.call(_times_out)

    records, handler, logger = [], Handler(), logging.getLogger("redouble")
    policy = Policy(attempts=2, base=0.0, clock=clock, sleep=clock.sleep)
    logger.addHandler(handler)
    try:
        with pytest.raises(TimeoutError):
            policy.call(_times_out)
    finally:
        logger.removeHandler(handler)
    assert records == ["retrying after a failed attempt", "gave up after retries"]


def test_a_correlate_hook_that_calls_a_retried_function_comes_to_an_end(clock, heard, correlating):
    @correlating
    def trace():
        with pytest.raises(TimeoutError):
            policy.call(_times_out)
        return {"trace_id": "1"}

    policy = Policy(attempts=1, listeners=[heard.append])
    with pytest.raises(TimeoutError):
        policy.call(_times_out)
    assert [dict(event.correlation) for event in heard] == [{}, {"trace_id": "1"}]


def test_a_listener_is_told_in_every_thread_at_once(clock):
    inside, heard = threading.Barrier(4, timeout=10), []

    def listener(event):
        inside.wait()
        heard.append(event)

    def call():
        with pytest.raises(TimeoutError):
            policy.call(_times_out)

    policy = Policy(attempts=1, listeners=[listener])
    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kinds(heard) == ["GaveUp"] * 4


def test_a_listener_that_was_interrupted_is_told_again(clock, heard):
    def listener(event):
        heard.append(event)
        if len(heard) == 1:
            raise KeyboardInterrupt

    policy = Policy(attempts=1, listeners=[listener])
    with pytest.raises(KeyboardInterrupt):
        policy.call(_times_out)
    with pytest.raises(TimeoutError):
        policy.call(_times_out)
    assert kinds(heard) == ["GaveUp", "GaveUp"]


# In a process of its own: an interrupt within the measurement of coverage would stop that for good.
INTERRUPTED = """
    import signal
    from redouble import Policy
    from redouble.events import with_successes

    class Interrupt(BaseException):
        pass

    def interrupt(*_):
        raise Interrupt

    heard = []
    policy = Policy(listeners=[with_successes(lambda event: heard.append(1))])
    signal.signal(signal.SIGALRM, interrupt)
    for delay in range(1, 1500):
        try:
            signal.setitimer(signal.ITIMER_REAL, delay * 2e-7 + 2e-5)
            while True:
                policy.call(str)
        except Interrupt:
            pass
    heard.clear()
    policy.call(str)
    print(heard)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no such signals here")
def test_an_interrupt_at_any_moment_leaves_no_listener_deaf():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(INTERRUPTED)],
        env={**os.environ, "PYTHONPATH": str(Path(events.__file__).parent.parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[1]\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_threads_of_a_forked_child_hear_of_their_own_calls():
    inside, go = threading.Event(), threading.Event()

    def listener(event):
        inside.set()
        go.wait(10)

    policy = Policy(listeners=[with_successes(listener)])
    thread = threading.Thread(target=policy.call, args=(str,))
    thread.start()
    inside.wait(10)
    assert len(events._telling) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads, which is the point
        child = os.fork()
    if not child:
        os._exit(len(events._telling))
    go.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_a_listener_in_two_places_is_told_once_whatever_it_is_wrapped_in(clock, tmp_path):
    class Listener:
        def __init__(self):
            self.heard = []

        def hear(self, event):
            self.heard.append(type(event).__name__)

    one = Listener()
    unsubscribe = subscribe(one.hear)
    letters = DeadLetters(tmp_path / "letters.db", listeners=[one.hear])
    try:
        policy = Policy(
            attempts=2,
            listeners=[with_successes(one.hear)],
            dead_letters=letters,
            clock=clock,
            sleep=clock.sleep,
        )
        with pytest.raises(TimeoutError):
            policy.call(_times_out)
    finally:
        unsubscribe()
        letters.close()
    assert one.heard == ["Retrying", "GaveUp", "DeadLettered"]


def test_whoever_subscribes_what_asks_for_successes_is_told_that_it_will_hear_of_none(heard, caplog):
    subscribe(with_successes(heard.append))()
    assert "asks for successes, which subscribers do not hear of" in caplog.text


def test_an_until_that_raises_at_the_first_attempt_ends_a_counted_call_with_an_event(flavour, clock, heard):
    policy = counting(clock, heard, until=lambda result: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        flavour.call(policy, flavour.scripted("page"))
    assert [(type(event), event.reason) for event in heard] == [(GaveUp, "callback")]


# What belongs together


def test_an_event_carries_what_belongs_together(flavour, clock, heard, correlating):
    correlating(
        lambda: {"trace_id": "4bf9", "attempt": attempt.number if (attempt := current_attempt()) else 0}
    )
    policy = Policy(listeners=[heard.append], backoff=fixed, clock=clock, sleep=clock.sleep)
    flavour.call(policy, flavour.scripted(TimeoutError(), "page"))
    assert [event.correlation["trace_id"] for event in heard] == ["4bf9", "4bf9"]
    with pytest.raises(TypeError):
        heard[0].correlation["trace_id"] = "other"


def test_without_a_hook_an_event_carries_nothing(clock, heard):
    with pytest.raises(ValueError, match="no"):
        Policy(listeners=[heard.append]).call(int, "no")
    assert heard[0].correlation == {}


def test_an_event_of_a_call_has_every_field_that_an_event_has(clock, heard):
    with pytest.raises(ValueError, match="no"):
        Policy(listeners=[heard.append]).call(int, "no")
    assert tuple(vars(heard[0])) == Event._fields == tuple(vars(Event("fetch", attempt=1, elapsed=0.0)))


def test_an_event_with_a_correlation_is_a_value():
    event = Event("fetch", attempt=1, elapsed=0.0)
    one = GaveUp("fetch", attempt=1, elapsed=0.0, correlation={"trace_id": ["4bf9"]})
    assert event.correlation == {}
    assert one == GaveUp("fetch", attempt=1, elapsed=0.0, correlation={"trace_id": ["4bf9"]})
    assert hash(one) == hash(GaveUp("fetch", attempt=1, elapsed=0.0, correlation={"trace_id": "5"}))
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(one, protocol))
        assert again == one
        with pytest.raises(TypeError):
            again.correlation["trace_id"] = "other"


def test_what_a_correlation_was_given_cannot_be_changed_afterwards():
    given = {"trace_id": "4bf9"}
    event = GaveUp("fetch", attempt=1, elapsed=0.0, correlation=given)
    given["trace_id"] = "other"
    assert event.correlation == {"trace_id": "4bf9"}


def test_a_guards_event_carries_what_belongs_together_too(clock, heard, correlating):
    correlating(lambda: {"service": "orders"})
    CircuitBreaker(clock=clock, listeners=[heard.append]).open()
    assert [(type(event), dict(event.correlation)) for event in heard] == [
        (CircuitChanged, {"service": "orders"})
    ]


@pytest.mark.parametrize("broken", [lambda: 1 / 0, lambda: None, lambda: ["trace"]])
def test_a_correlate_hook_that_fails_is_told_of_once_and_hides_nothing(
    flavour, clock, heard, caplog, correlating, broken
):
    correlating(broken)
    policy = Policy(listeners=[heard.append], clock=clock, sleep=clock.sleep)
    assert flavour.call(policy, flavour.scripted(TimeoutError(), "page")) == "page"
    assert [event.correlation for event in heard] == [{}, {}]
    assert [record.getMessage() for record in caplog.records if "correlate" in record.getMessage()] == [
        "correlate <lambda> failed (said once)"
    ]


def test_an_async_correlate_hook_is_refused():
    with pytest.raises(TypeError, match="hook must be a plain function"):
        correlate(asyncio.sleep)


def logged(caplog, policy, *outcomes):
    with caplog.at_level(logging.INFO, "redouble"), pytest.raises(TimeoutError):
        policy.call(_times_out)
    return [vars(record) for record in caplog.records if record.name == "redouble"]


@pytest.fixture
def quiet(clock):
    return Policy(attempts=2, name="fetch", clock=clock, sleep=clock.sleep)


def test_a_log_record_has_what_belongs_together_as_fields(caplog, correlating, quiet):
    correlating(lambda: {"trace_id": "4bf9", "service": "orders"})
    for record in logged(caplog, quiet):
        assert (record["trace_id"], record["service"], record["policy"]) == ("4bf9", "orders", "fetch")


def test_a_field_whose_name_is_taken_in_a_log_record_gets_a_longer_one(caplog, correlating, quiet):
    correlating(lambda: {"name": "orders", "message": "m", "policy": "p", "asctime": "now", 5: "five"})
    record = logged(caplog, quiet)[0]
    assert record["name"] == "redouble"
    assert record["policy"] == "fetch"
    assert record["correlation_name"] == "orders"
    assert record["correlation_message"] == "m"
    assert record["correlation_policy"] == "p"
    assert record["correlation_asctime"] == "now"
    assert record["5"] == "five"


def test_a_record_factory_that_takes_our_names_loses_no_log(caplog, correlating, quiet):
    class Record(logging.LogRecord):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.trace_id, self.policy = "of the factory", "of the factory"

    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(Record)
    try:
        plain = logged(caplog, quiet)[0]
        caplog.clear()
        correlating(lambda: {"trace_id": "4bf9"})
        record = logged(caplog, quiet)[0]
    finally:
        logging.setLogRecordFactory(before)
    assert (plain["policy"], plain["redouble_policy"]) == ("of the factory", "fetch")
    assert (record["policy"], record["redouble_policy"]) == ("of the factory", "fetch")
    assert (record["trace_id"], record["correlation_trace_id"]) == ("of the factory", "4bf9")


def test_a_log_record_masks_secrets_in_the_message(caplog, clock):
    def login():
        raise TimeoutError("no answer to POST /login?password=hunter2")

    with caplog.at_level(logging.INFO, "redouble"), pytest.raises(TimeoutError):
        Policy(attempts=2, clock=clock, sleep=clock.sleep).call(login)
    assert {record.error_message for record in caplog.records} == {"no answer to POST /login?password=***"}


def test_log_records_can_be_written_as_json(caplog, correlating, quiet):
    correlating(lambda: {"trace_id": "4bf9"})
    for record in logged(caplog, quiet):
        standard = vars(logging.makeLogRecord({}))
        extra = {key: value for key, value in record.items() if key not in standard}
        assert json.loads(json.dumps(extra))["policy"] == "fetch"


def test_a_dead_letter_is_told_to_the_policys_listeners_with_what_belongs_together(
    flavour, clock, heard, correlating, tmp_path
):
    correlating(lambda: {"correlation_id": "order 7"})
    letters = DeadLetters(tmp_path / "letters.db")
    policy = Policy(
        attempts=1, dead_letters=letters, listeners=[heard.append], clock=clock, sleep=clock.sleep
    )
    with pytest.raises(TimeoutError):
        flavour.call(policy, flavour.scripted(TimeoutError()))
    (letter,) = letters.list()
    letters.close()
    assert letter.correlation_id == "order 7"
    told = [event for event in heard if type(event) is DeadLettered]
    assert [(event.letter, dict(event.correlation)) for event in told] == [
        (letter.id, {"correlation_id": "order 7"})
    ]


def test_partials_and_methods_hear_as_well_as_functions(clock):
    class Listener:
        def __init__(self):
            self.heard = []

        def hear(self, prefix, event=None):
            self.heard.append((prefix, event))

    listener = Listener()
    policy = Policy(
        listeners=[with_successes(functools.partial(listener.hear, "p")), with_successes(listener.hear)]
    )
    policy.call(str)
    assert [type(one).__name__ for pair in listener.heard for one in pair] == [
        "str",
        "Succeeded",
        "Succeeded",
        "NoneType",
    ]


def test_a_scope_tells_of_its_calls(heard, clock):
    with retrying(counting(clock, heard)) as call:
        call(str)
        call(str)
    assert kinds(heard) == ["Succeeded", "Succeeded"]
