"""One policy, one decorated function, one block object: shared by threads and tasks, with no state of a call."""

from __future__ import annotations

import asyncio
import collections
import contextvars
import itertools
import os
import random
import signal
import threading
import time
from contextlib import contextmanager

import pytest

from conftest import not_under_coverage
from redouble import Policy, current_attempt, retry, retrying
from redouble.backoff import decorrelated_jitter, delays, fixed
from redouble.events import GaveUp, Recovered, Retrying
from support.threads import in_threads

THREADS = 64

pytestmark = pytest.mark.usefixtures("frequent_switches")


class Tally:
    """Counts that are exact under threads."""

    def __init__(self):
        self._lock = threading.Lock()
        self.counts = collections.Counter()

    def add(self, what):
        with self._lock:
            self.counts[what] += 1
            return self.counts[what]


def no_wait(seconds):
    pass


FIELDS = [
    {},
    {"deadline": 600.0},
    {"until": bool, "idempotency_key": True, "timeout": 600.0},
]


@pytest.mark.slow
@not_under_coverage
@pytest.mark.parametrize("fields", FIELDS, ids=["bare", "deadline", "context"])
def test_64_threads_share_one_decorated_function(fields):
    calls, told = Tally(), Tally()
    policy = Policy(attempts=3, sleep=no_wait, listeners=[lambda event: told.add(type(event))], **fields)

    @policy
    def fetch(key, failures):
        if calls.add(key) <= failures:
            raise TimeoutError(f"{key}")
        return key

    def body(number):
        got = []
        for turn in range(5):
            got.append(fetch((number, turn, "ok"), turn % 3))
            try:
                fetch((number, turn, "bad"), 9)
            except TimeoutError as error:
                got.append((str(error), len(error.__notes__)))
        return got

    for number, got in enumerate(in_threads(body)):
        assert got == [
            expected
            for turn in range(5)
            for expected in ((number, turn, "ok"), (str((number, turn, "bad")), 1))
        ]
    # Of 5 turns: 2 succeed at once, 2 after one failure, 1 after two; all 5 bad ones fail three times.
    assert sum(calls.counts.values()) == THREADS * (2 * 1 + 2 * 2 + 1 * 3 + 5 * 3)
    assert told.counts == {
        Retrying: THREADS * (2 * 1 + 1 * 2 + 5 * 2),
        Recovered: THREADS * 3,
        GaveUp: THREADS * 5,
    }


@pytest.mark.slow
def test_notes_of_threads_that_fail_at_once_tell_each_their_own_story():
    @retry(attempts=3, sleep=no_wait)
    def fetch(number):
        raise TimeoutError(f"of thread {number}")

    for number, error in enumerate(in_threads(fetch)):
        (note,) = error.__notes__
        assert note.count("\n") == 3
        assert note.count(f"TimeoutError: of thread {number}") == 3


def test_50_tasks_share_one_policy_and_each_has_its_own_attempts():
    calls, waits = collections.Counter(), collections.defaultdict(list)

    async def sleep(seconds):
        waits[asyncio.current_task().get_name()].append(seconds)
        await asyncio.sleep(0)

    @retry(attempts=4, backoff=fixed, base=2.0, sleep=sleep)
    async def fetch(number):
        calls[number] += 1
        await asyncio.sleep(0)
        if calls[number] <= number % 5:
            raise TimeoutError(str(number))
        return number

    async def main():
        tasks = [asyncio.create_task(fetch(number), name=str(number)) for number in range(50)]
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(main())
    for number, result in enumerate(results):
        if number % 5 == 4:
            assert isinstance(result, TimeoutError)
            assert "after 4 attempts" in result.__notes__[0]
        else:
            assert result == number
        assert calls[number] == min(number % 5 + 1, 4)
        assert waits[str(number)] == [2.0] * min(number % 5, 3)


class Highest(random.Random):
    """Always draws the upper end."""

    def uniform(self, a, b):
        return b


def interleaved(policy, count=50):
    """The waits of so many calls that fail side by side, in turns."""
    waits = collections.defaultdict(list)

    async def sleep(seconds):
        waits[asyncio.current_task().get_name()].append(seconds)
        await asyncio.sleep(0)

    @policy.replace(sleep=sleep)
    async def fail():
        await asyncio.sleep(0)
        raise TimeoutError

    async def main():
        tasks = [asyncio.create_task(fail(), name=str(number)) for number in range(count)]
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    return list(waits.values())


def test_50_interleaved_decorrelated_calls_each_start_from_base():
    policy = Policy(attempts=5, base=1.0, cap=50.0, backoff=decorrelated_jitter, rng=Highest())
    alone = list(delays(decorrelated_jitter, attempts=5, base=1.0, cap=50.0, rng=Highest()))
    assert alone == [3.0, 9.0, 27.0, 50.0]
    assert interleaved(policy) == [alone] * 50


@pytest.mark.slow
def test_50_interleaved_decorrelated_calls_wait_like_50_separate_ones():
    policy = Policy(attempts=4, base=1.0, cap=1000.0, backoff=decorrelated_jitter)
    together = interleaved(policy.replace(rng=random.Random(7)), 400)
    apart = random.Random(8)
    separate = [
        list(delays(decorrelated_jitter, attempts=4, base=1.0, cap=1000.0, rng=apart)) for _ in range(400)
    ]
    for place in range(3):
        # Uniform between base and three times the one before: the first has a mean of 2, the next of 3.5.
        one, other = (sum(waits[place] for waits in all_) / 400 for all_ in (together, separate))
        assert one == pytest.approx(other, rel=0.15)
        assert all(1.0 <= waits[place] <= 3 ** (place + 1) for waits in together)
    assert all(
        following <= 3 * before for waits in together for before, following in itertools.pairwise(waits)
    )


@pytest.mark.slow
def test_threads_share_one_retrying_object_in_a_for_and_in_a_with_at_once():
    calls = Tally()
    shared = retrying(attempts=3, deadline=600.0, sleep=no_wait)

    def loop(number):
        numbers = []
        for attempt in shared:
            with attempt:
                numbers.append((attempt.number, current_attempt().number))
                if calls.add(number) < 3:
                    raise TimeoutError
        return numbers

    def scope(number):
        def fetch():
            seen = calls.add(number), current_attempt().number
            if seen[0] < 3:
                raise TimeoutError
            return seen

        with shared as call:
            seen = call(fetch)
        return seen, current_attempt()

    def body(number):
        return loop(number) if number % 2 else scope(number)

    for number, got in enumerate(in_threads(body)):
        assert got == ([(1, 1), (2, 2), (3, 3)] if number % 2 else ((3, 3), None))
        assert calls.counts[number] == 3


def test_tasks_share_one_retrying_object():
    shared = retrying(attempts=3, deadline=600.0, base=0.0)

    async def loop():
        numbers = []
        async for attempt in shared:
            async with attempt:
                await asyncio.sleep(0)
                numbers.append((attempt.number, current_attempt().number))
                if attempt.number < 3:
                    raise TimeoutError
        return numbers

    async def scope():
        numbers = []

        async def fetch():
            await asyncio.sleep(0)
            numbers.append((len(numbers) + 1, current_attempt().number))
            if len(numbers) < 3:
                raise TimeoutError

        async with shared as call:
            await asyncio.sleep(0)
            await call(fetch)
        assert current_attempt() is None
        return numbers

    async def main():
        return await asyncio.gather(*(loop() if number % 2 else scope() for number in range(50)))

    assert asyncio.run(main()) == [[(1, 1), (2, 2), (3, 3)]] * 50


def test_one_scope_object_may_be_open_twice_in_one_thread():
    shared = retrying(attempts=2, deadline=600.0, sleep=no_wait)
    with shared as outer:
        with shared as inner:
            assert inner(lambda: current_attempt().number) == 1
        assert outer(lambda: current_attempt().number) == 1
    assert current_attempt() is None


# Contexts


def test_the_context_of_an_attempt_stays_in_its_thread():
    inside, checked = threading.Event(), threading.Event()
    seen = []

    @retry(deadline=60.0)
    def fetch():
        inside.set()
        checked.wait(60)
        return current_attempt().number

    thread = threading.Thread(target=lambda: seen.append(fetch()))
    thread.start()
    inside.wait(60)
    assert current_attempt() is None
    checked.set()
    thread.join()
    assert seen == [1]


def test_a_thread_started_in_an_attempt_without_its_context_knows_nothing_of_it():
    @retry(deadline=60.0)
    def fetch():
        seen = []
        bare = threading.Thread(
            target=lambda: contextvars.Context().run(lambda: seen.append(current_attempt()))
        )
        context = contextvars.copy_context()
        copied = threading.Thread(target=lambda: context.run(lambda: seen.append(current_attempt().number)))
        for thread in (bare, copied):
            thread.start()
            thread.join()
        return seen

    assert fetch() == [None, 1]


def test_the_context_of_an_attempt_stays_in_its_task():
    async def main():
        inside, checked = asyncio.Event(), asyncio.Event()

        @retry(deadline=60.0)
        async def fetch():
            inside.set()
            await checked.wait()
            return current_attempt().number

        task = asyncio.create_task(fetch())
        await inside.wait()
        assert current_attempt() is None
        checked.set()
        return await task

    assert asyncio.run(main()) == 1


@pytest.mark.parametrize(
    "outcomes",
    [
        ("page",),
        (TimeoutError(), "page"),
        (TimeoutError(), TimeoutError()),
        (ValueError(),),
        (KeyboardInterrupt(),),
        (TimeoutError(), KeyboardInterrupt()),
    ],
    ids=str,
)
def test_nothing_is_left_in_the_context_after_a_call_whatever_its_end(flavour, outcomes):
    policy = Policy(attempts=2, deadline=60.0, idempotency_key=True, sleep=no_wait)
    function = policy(flavour.scripted(*outcomes))

    async def main():
        before = dict(contextvars.copy_context())
        try:
            outcome = function()
            if flavour.is_async:
                await outcome
        except BaseException as error:
            assert error is outcomes[-1]
        assert current_attempt() is None
        return before, dict(contextvars.copy_context())

    before, after = contextvars.Context().run(asyncio.run, main())
    assert after == before


@pytest.mark.parametrize("fields", [{"idempotency_key": True}, {}], ids=str)
def test_a_context_is_as_empty_after_a_call_as_it_was(flavour, fields):
    function = Policy(sleep=no_wait, **fields)(flavour.scripted(TimeoutError(), "page"))
    context = contextvars.Context()
    outcome = context.run(function)
    if flavour.is_async:
        with pytest.raises(StopIteration):  # it has nothing to wait for
            context.run(outcome.send, None)
    assert list(context) == []


@pytest.mark.slow
def test_numbers_of_attempts_are_right_in_64_threads_at_once():
    @retry(attempts=4, sleep=no_wait, deadline=600.0)
    def fetch(seen):
        seen.append(current_attempt().number)
        if len(seen) < 4:
            raise TimeoutError
        return seen

    assert in_threads(lambda _: fetch([])) == [[1, 2, 3, 4]] * THREADS


@pytest.mark.slow
def test_an_idempotency_key_is_one_for_each_call_and_never_shared_by_two():
    @retry(attempts=3, sleep=no_wait, idempotency_key=True)
    def fetch(keys):
        keys.append(current_attempt().idempotency_key)
        if len(keys) < 3:
            raise TimeoutError
        return keys

    results = in_threads(lambda _: fetch([]))
    assert all(len(set(keys)) == 1 for keys in results)
    assert len({keys[0] for keys in results}) == THREADS


@pytest.mark.slow
def test_threads_that_ask_for_the_key_of_one_call_at_once_get_the_same():
    made = Tally()

    def slow_key():
        made.add("key")
        time.sleep(0)  # lets another thread in between
        return f"{threading.get_ident()}-{made.add('number')}"

    @retry(idempotency_key=slow_key)
    def fetch():
        context = contextvars.copy_context()
        ask = [context.copy() for _ in range(THREADS)]
        keys = in_threads(lambda number: ask[number].run(lambda: current_attempt().idempotency_key))
        return {*keys, current_attempt().idempotency_key}

    for _ in range(5):
        assert len(fetch()) == 1


# Interrupts: real signals and real, short waits


@contextmanager
def interrupt_after(seconds):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGINT, before)


def chain(error):
    found = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


@pytest.mark.slow
def test_an_interrupt_during_the_wait_ends_the_call_at_once_and_is_not_blamed_on_the_failure():
    calls = []

    @retry(backoff=fixed, base=30.0)
    def fetch():
        calls.append(1)
        raise TimeoutError("slow")

    began = time.monotonic()
    with interrupt_after(0.1), pytest.raises(KeyboardInterrupt) as caught:
        fetch()
    assert time.monotonic() - began < 10
    assert calls == [1]
    assert caught.value.__context__ is None
    assert not hasattr(caught.value, "__notes__")
    assert current_attempt() is None


@pytest.mark.slow
def test_an_interrupt_during_the_wait_of_a_block_ends_it_at_once():
    runs = []
    with interrupt_after(0.1), pytest.raises(KeyboardInterrupt) as caught:
        for attempt in retrying(backoff=fixed, base=30.0, deadline=600.0):
            with attempt:
                runs.append(attempt.number)
                raise TimeoutError("slow")
    assert runs == [1]
    assert caught.value.__context__ is None
    assert current_attempt() is None


def test_an_interrupt_during_a_later_wait_is_not_blamed_on_a_failure_either():
    calls = []

    def sleep(seconds):
        if len(calls) == 2:
            raise KeyboardInterrupt

    @retry(attempts=5, sleep=sleep, deadline=600.0)
    def fetch():
        calls.append(1)
        raise TimeoutError("slow")

    with pytest.raises(KeyboardInterrupt) as caught:
        fetch()
    assert calls == [1, 1]
    assert chain(caught.value) == [caught.value]


@pytest.mark.slow
def test_an_interrupt_while_an_event_loop_runs_ends_the_call():
    calls = []

    @retry(backoff=fixed, base=30.0)
    async def fetch():
        calls.append(1)
        raise TimeoutError("slow")

    began = time.monotonic()
    with interrupt_after(0.1), pytest.raises(KeyboardInterrupt) as caught:
        asyncio.run(fetch())
    assert time.monotonic() - began < 10
    assert calls == [1]
    assert [error for error in chain(caught.value) if isinstance(error, TimeoutError)] == []


def test_a_cancellation_during_the_wait_is_not_blamed_on_the_failure():
    @retry(backoff=fixed, base=30.0)
    async def fetch():
        raise TimeoutError("slow")

    async def main():
        task = asyncio.create_task(fetch())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert [error for error in chain(caught.value) if isinstance(error, TimeoutError)] == []
        assert task.cancelled()

    asyncio.run(main())


@pytest.mark.slow
def test_a_signal_that_is_handled_does_not_cut_the_wait_short():
    strikes = []
    calls = []

    @retry(attempts=2, backoff=fixed, base=0.2)
    def fetch():
        calls.append(time.monotonic())
        raise TimeoutError("slow")

    before = signal.signal(signal.SIGALRM, lambda *_: strikes.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.03, 0.03)
    try:
        with pytest.raises(TimeoutError):
            fetch()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(strikes) >= 2
    assert calls[1] - calls[0] >= 0.2
