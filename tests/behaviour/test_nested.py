"""Calls inside of calls: with ``nested="stop"`` an error that an inner call has retried is not retried again."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from redouble import history
from redouble._engine import note as _note
from redouble.breaker import CircuitBreaker
from redouble.budget import TokenBudget
from redouble.events import GaveUp, Reason
from redouble.testing import scripted
from support.layers import STOPPED, down, failed, fetching, inside

# What is stopped


def test_an_error_that_an_inner_call_has_retried_is_not_retried_again(flavour, quick, heard):
    fetch, bottom = fetching(flavour, quick)
    failed(flavour, quick.replace(listeners=[heard.append]), inside(flavour, fetch))
    assert len(bottom.calls) == 4
    assert [(type(event), event.attempt, event.reason) for event in heard] == [
        (GaveUp, 1, Reason.already_retried)
    ]


@pytest.mark.parametrize(
    "fields", [{"deadline": 900.0}, {"until": bool}, {"idempotency_key": True}, {"timeout": 60.0}]
)
def test_every_kind_of_first_attempt_knows_when_it_began(flavour, quick, fields):
    fetch, bottom = fetching(flavour, quick)
    failed(flavour, quick.replace(**fields), inside(flavour, fetch))
    assert len(bottom.calls) == 4


def test_a_call_whose_guards_are_asked_first_knows_when_its_attempt_began(flavour, quick, clock):
    fetch, bottom = fetching(flavour, quick)
    breaker = CircuitBreaker(failure_rate=0.5, clock=clock)
    failed(flavour, quick.replace(breaker=breaker, budget=TokenBudget()), inside(flavour, fetch))
    assert len(bottom.calls) == 4


def test_a_later_attempt_is_stopped_as_the_first_is(flavour, quick):
    fetch, bottom = fetching(flavour, quick)
    own = [TimeoutError("own")]
    load = inside(flavour, fetch)

    def begin():
        if own:
            raise own.pop()

    if flavour.is_async:

        async def outer():
            begin()
            await load()
    else:

        def outer():
            begin()
            load()

    error = failed(flavour, quick, outer)
    assert len(bottom.calls) == 4
    assert error.__notes__ == [
        f"redouble: gave up on load after 2 attempts, 8.0 s after the first failure: {STOPPED}\n"
        "  attempt 1: TimeoutError: own; waited 1.00 s\n"
        "  attempt 2: ConnectionResetError: down (fetch gave up after 4 attempts)\n"
        "    attempt 1: ConnectionResetError: down; waited 1.00 s\n"
        "    attempt 2: ConnectionResetError: down; waited 2.00 s\n"
        "    attempt 3: ConnectionResetError: down; waited 4.00 s\n"
        "    attempt 4: ConnectionResetError: down"
    ]
    assert history(error).name == "load"
    assert history(error).attempts == 2


def test_the_note_keeps_what_the_inner_call_went_through_with_a_line_for_each_layer_around_it(flavour, quick):
    fetch, bottom = fetching(flavour, quick)
    middle = quick.replace(name="sync_all")(inside(flavour, fetch))
    error = failed(flavour, quick, inside(flavour, middle))
    assert len(bottom.calls) == 4
    assert error.__notes__ == [
        "redouble: gave up on fetch after 4 attempts, 7.0 s after the first failure: no attempts left\n"
        "  attempt 1: ConnectionResetError: down; waited 1.00 s\n"
        "  attempt 2: ConnectionResetError: down; waited 2.00 s\n"
        "  attempt 3: ConnectionResetError: down; waited 4.00 s\n"
        "  attempt 4: ConnectionResetError: down\n"
        f"  not retried by sync_all: {STOPPED}\n"
        f"  not retried by load: {STOPPED}"
    ]
    tried = history(error)
    assert (tried.name, tried.attempts, tried.why, len(tried.failures)) == ("fetch", 4, "no attempts left", 4)


@pytest.mark.parametrize("fields", [{"nested": "independent"}, {"on": OSError}], ids=repr)
def test_a_call_of_one_attempt_in_between_does_not_hide_it(flavour, quick, fields):
    fetch, bottom = fetching(flavour, quick)
    middle = quick.replace(name="sync_all", attempts=1, **fields)(inside(flavour, fetch))
    error = failed(flavour, quick, inside(flavour, middle))
    assert len(bottom.calls) == 4
    assert error.__notes__[0].splitlines()[5:] == [
        "  not retried by sync_all: no attempts left",
        f"  not retried by load: {STOPPED}",
    ]


def test_it_is_found_on_the_cause_of_an_error(flavour, quick):
    fetch, bottom = fetching(flavour, quick)
    middle = quick.replace(name="sync_all")(inside(flavour, fetch, TimeoutError("no page")))
    error = failed(flavour, quick, inside(flavour, middle), TimeoutError)
    assert len(bottom.calls) == 4
    assert error.__notes__ == [
        f"redouble: gave up on load after 1 attempt: {STOPPED}\n  attempt 1: TimeoutError: no page"
        " (sync_all gave up after 1 attempt)"
    ]
    assert "fetch after 4 attempts" in error.__cause__.__notes__[0]


@pytest.mark.parametrize("attribute", ["orig", "inner", "args"])
def test_it_is_found_in_a_wrapper(flavour, quick, attribute):
    fetch, bottom = fetching(flavour, quick)

    def wrapped(error):
        made = TimeoutError("wrapped", error) if attribute == "args" else TimeoutError("wrapped")
        if attribute != "args":
            setattr(made, attribute, error)
        return made

    if flavour.is_async:

        async def load():
            try:
                await fetch()
            except ConnectionResetError as error:
                found = wrapped(error)
            raise found
    else:

        def load():
            try:
                fetch()
            except ConnectionResetError as error:
                found = wrapped(error)
            raise found

    failed(flavour, quick, load, TimeoutError)
    assert len(bottom.calls) == 4


def test_it_is_never_found_through_the_context(quick):
    bottom = scripted(*[ConnectionResetError("down")] * 99)
    fetch = quick(bottom)

    def load():
        try:
            fetch()
        except ConnectionResetError:
            raise TimeoutError("cannot load: down")  # noqa: B904 - that is the point

    with pytest.raises(TimeoutError):
        quick.call(load)
    assert len(bottom.calls) == 16


def test_no_more_than_eight_errors_inside_errors_are_searched(quick):
    calls = []

    def load(depth):
        calls.append(1)
        try:
            quick.call(down)
        except ConnectionResetError as found:
            error: Exception = found
        for _ in range(depth):
            outer = TimeoutError("around")
            outer.__cause__, error = error, outer
        raise error

    for depth, expected in ((8, 1), (9, 4)):
        calls.clear()
        with pytest.raises(TimeoutError):
            quick.call(load, depth)
        assert len(calls) == expected


def test_a_cycle_of_causes_ends(quick):
    first, second = ConnectionResetError("first"), ConnectionResetError("second")
    first.__cause__, second.__cause__ = second, first

    def load():
        with pytest.raises(TimeoutError):
            quick.call(scripted(*[TimeoutError()] * 4))
        raise first

    with pytest.raises(ConnectionResetError):
        quick.call(load)
    assert history(first).attempts == 4


def test_an_error_that_cannot_be_examined_is_retried(quick):
    class Odd(ConnectionResetError):
        @property
        def args(self):
            raise RuntimeError("no arguments")

    calls = []

    def load():
        calls.append(1)
        with pytest.raises(TimeoutError):
            quick.call(scripted(*[TimeoutError()] * 4))
        raise Odd

    with pytest.raises(Odd):
        quick.call(load)
    assert len(calls) == 4


# Groups, tasks and threads


def test_a_group_is_stopped_if_every_error_in_it_was_retried(quick):
    async def fail():
        raise ConnectionResetError("down")

    calls = []

    async def load(*functions):
        calls.append(1)
        async with asyncio.TaskGroup() as group:
            for function in functions:
                group.create_task(function())

    one, other = quick.replace(name="fetch")(fail), quick.replace(name="other", attempts=2)(fail)
    for functions, expected, why in (
        ((one, one), 1, STOPPED),
        ((one, other), 1, "and 1 other call; say nested"),
        ((one, other, quick.replace(attempts=3)(fail)), 1, "and 2 other calls; say nested"),
        ((one, fail), 4, "no attempts left"),
    ):
        calls.clear()
        with pytest.raises(ExceptionGroup) as caught:
            asyncio.run(quick.replace(name="load")(load)(*functions))
        assert len(calls) == expected
        assert why in caught.value.__notes__[0]


def test_an_error_in_several_places_of_a_group_is_found_in_all_of_them(quick):
    calls = []

    def load():
        calls.append(1)
        try:
            quick.call(down)
        except ConnectionResetError as error:
            raise ExceptionGroup("both", [error, ExceptionGroup("again", [error])]) from None

    with pytest.raises(ExceptionGroup):
        quick.call(load)
    assert len(calls) == 1


def test_a_future_counts_if_its_call_ended_during_the_attempt(quick):
    calls = []
    with ThreadPoolExecutor(2) as pool:

        def load():
            calls.append(1)
            return pool.submit(quick.call, down).result()

        with pytest.raises(ConnectionResetError):
            quick.call(load)
        assert len(calls) == 1
        done = pool.submit(quick.call, down)
        assert isinstance(done.exception(), ConnectionResetError)
        bottom = scripted(*[ConnectionResetError("other")] * 4)
        with pytest.raises(ConnectionResetError):
            quick.call(bottom)

        calls.clear()

        @quick
        def kept():
            calls.append(1)
            return done.result()

        with pytest.raises(ConnectionResetError):
            kept()
        assert len(calls) == 4


def test_an_error_object_that_is_kept_is_retried_as_usual(flavour, quick):
    error = ConnectionResetError("kept")
    for _ in range(2):
        fetch = flavour.scripted(*[error] * 4)
        with pytest.raises(ConnectionResetError):
            flavour.call(quick, fetch)
        assert len(fetch.calls) == 4


def test_an_error_that_an_earlier_attempt_has_kept_is_retried_as_usual(flavour, quick):
    kept = []

    def load():
        if kept:
            raise kept[0]
        try:
            quick.call(down)
        except ConnectionResetError as error:
            kept.append(error)
        raise TimeoutError("own")

    error = failed(flavour, quick, flavour.function(load))
    assert history(error).attempts == 4
    assert "gave up after" not in error.__notes__[0]


def test_an_error_object_that_is_kept_is_retried_in_a_block(flavour, quick):
    with pytest.raises(ConnectionResetError) as caught:
        quick.call(down)
    runs = []

    def body(attempt):
        runs.append(attempt.number)
        raise caught.value

    with pytest.raises(ConnectionResetError):
        flavour.block(quick, body)
    assert runs == [1, 2, 3, 4]


def test_notes_of_many_threads_have_numbers_of_their_own():
    numbers, start = [], threading.Barrier(8)

    def run():
        start.wait()
        numbers.extend([_note._number() for _ in range(500)])

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(numbers)) == 4000
    assert _note.written.latest >= max(numbers)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_can_give_up_though_a_thread_was_giving_up_during_the_fork(quick):
    held, release = threading.Event(), threading.Event()

    def hold():
        with _note._lock:
            held.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if not child:
        try:
            quick.call(down)
        except ConnectionResetError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    _note._after_fork()  # as in a child
    with pytest.raises(ConnectionResetError):
        quick.call(down)
    release.set()
    thread.join()


def test_an_error_from_another_process_is_retried(quick):
    with pytest.raises(ConnectionResetError) as caught:
        quick.call(down)

    def load():
        raise pickle.loads(pickle.dumps(caught.value))

    with pytest.raises(ConnectionResetError) as caught_again:
        quick.call(load)
    assert history(caught_again.value).attempts == 4
