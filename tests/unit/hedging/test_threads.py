"""Hedging with threads."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
import traceback
from contextvars import ContextVar

import pytest

from redouble import DeadlineExceeded, retry
from redouble.backoff import fixed
from redouble.budget import Budget, TokenBudget
from redouble.context import incoming
from redouble.hedging import hedge, quantile
from redouble.testing import scripted
from support.threads import in_threads, switching_every

where = ContextVar("where", default="nowhere")


class Gates:
    """A sync function whose attempts wait until they are told to go on. Nothing here sleeps."""

    def __init__(self, count):
        self.begun = [threading.Event() for _ in range(count)]
        self.go = [threading.Event() for _ in range(count)]
        self.calls = 0
        self.lock = threading.Lock()

    def __call__(self):
        with self.lock:
            self.calls += 1
            number = self.calls
        self.begun[number - 1].set()
        assert self.go[number - 1].wait(60)
        return number


@pytest.fixture
def no_thread_is_left():
    """Waits a moment for losers that were told to end."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
    assert set(threading.enumerate()) <= before  # of those before, some may have ended, too


pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def test_a_hedge_in_a_thread_carries_the_arguments_and_the_failure_that_made_it_due():
    seen, slow = [], TimeoutError("slow")

    def look(event):
        seen.append((event.error, event.args, event.kwargs))

    fetch = hedge(after=60.0, listeners=[look])(scripted(slow, "page"))
    assert fetch("a", user=7) == "page"
    assert seen == [(slow, ("a",), {"user": 7})]


def test_a_quick_sync_call_leaves_no_thread_behind():
    before = threading.enumerate()
    assert hedge(after=5.0)(lambda: "page")() == "page"
    assert threading.enumerate() == before


def test_a_thread_that_has_answered_is_gone_when_the_call_returns(monkeypatch):
    run_it = threading.Thread.run

    def slow_to_end(self):
        run_it(self)
        time.sleep(0.02)

    monkeypatch.setattr(threading.Thread, "run", slow_to_end)
    before = threading.enumerate()
    assert hedge(after=5.0)(lambda: "page")() == "page"
    assert threading.enumerate() == before


def test_a_slow_sync_call_is_overtaken_and_not_waited_for():
    fetch = Gates(2)
    fetch.go[1].set()
    assert hedge(after=0.01)(fetch)() == 2
    assert fetch.begun[0].is_set()
    (loser,) = [thread for thread in threading.enumerate() if thread.name.startswith("redouble Gates")]
    assert loser.daemon
    fetch.go[0].set()


def test_a_slow_sync_call_may_still_win():
    fetch = Gates(2)

    def let_the_first_go():
        assert fetch.begun[1].wait(60)
        fetch.go[0].set()

    helper = threading.Thread(target=let_the_first_go)
    helper.start()
    assert hedge(after=0.01)(fetch)() == 1
    fetch.go[1].set()
    helper.join()


def test_sync_hedges_start_at_their_times_and_never_more_than_allowed():
    fetch = Gates(3)
    events = []

    def told(event):
        events.append(event)
        if event.attempt == 3:
            fetch.go[2].set()

    assert hedge(after=0.02, attempts=3, listeners=[told])(fetch)() == 3
    assert [event.attempt for event in events] == [2, 3]
    assert events[0].elapsed >= 0.02
    assert events[1].elapsed >= 0.04
    for gate in fetch.go:
        gate.set()


def test_sync_failures_start_the_next_at_once():
    fetch = scripted(TimeoutError("1"), TimeoutError("2"), "page")
    assert hedge(after=60.0, attempts=3)(fetch)() == "page"


def test_where_all_sync_attempts_fail_the_first_exception_comes_out_with_a_note():
    first = TimeoutError("first")
    with pytest.raises(TimeoutError) as caught:
        hedge(after=60.0, name="fetch")(scripted(first, ConnectionResetError("second")))()
    assert caught.value is first
    assert caught.value.__context__ is None
    assert first.__notes__ == [
        "redouble: 2 attempts of fetch failed; this was attempt 1\n  attempt 2: ConnectionResetError: second"
    ]


def test_an_exception_of_a_thread_keeps_its_traceback():
    def deep():
        raise ValueError("no such page")

    def fetch():
        deep()

    with pytest.raises(ValueError) as caught:
        hedge(after=60.0)(fetch)()
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[0].startswith("test_")
    assert names[-2:] == ["fetch", "deep"]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupt_in_a_thread_passes_out(interrupt):
    fetch = scripted(TimeoutError("slow"), interrupt("stop"), "page")
    with pytest.raises(interrupt, match="stop"):
        hedge(after=60.0, attempts=3)(fetch)()
    assert len(fetch.calls) == 2


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no timers that interrupt")
def test_an_interrupt_of_the_waiting_caller_comes_out_at_once():
    fetch = Gates(1)

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt):
            hedge(after=60.0)(fetch)()
    finally:
        signal.signal(signal.SIGALRM, before)
    fetch.go[0].set()


def test_the_late_failure_of_a_loser_is_silent(monkeypatch, capsys):
    noise = []
    monkeypatch.setattr(threading, "excepthook", noise.append)
    go, calls = threading.Event(), []

    @hedge(after=0.01)
    def fetch():
        calls.append(1)
        if len(calls) == 2:
            return "page"
        assert go.wait(60)
        raise SystemError("nobody asks for this any more")

    before = threading.enumerate()
    assert fetch() == "page"
    (loser,) = [thread for thread in threading.enumerate() if thread not in before]
    go.set()
    loser.join()
    assert noise == []
    assert capsys.readouterr().err == ""


def test_each_thread_runs_in_a_copy_of_the_context_of_the_caller():
    seen = []

    @hedge(after=0.0)
    def fetch():
        seen.append(where.get())
        where.set("in a thread")
        if len(seen) == 1:
            raise TimeoutError("slow")

    token = where.set("at the caller")
    fetch()
    assert seen == ["at the caller", "at the caller"]
    assert where.get() == "at the caller"
    where.reset(token)


def test_a_sync_hedge_shares_the_budget():
    budget = TokenBudget(capacity=10)
    assert hedge(after=60.0, budget=budget)(scripted(TimeoutError("slow"), "page"))() == "page"
    assert budget.tokens == 10
    with pytest.raises(TimeoutError):
        hedge(after=60.0, budget=budget)(scripted(TimeoutError("1"), TimeoutError("2")))()
    assert budget.tokens == 5
    empty = TokenBudget(capacity=0)
    fetch = scripted(TimeoutError("slow"), "page")
    with pytest.raises(TimeoutError):
        hedge(after=60.0, budget=empty)(fetch)()
    assert len(fetch.calls) == 1


def test_a_budget_that_must_be_awaited_though_it_says_otherwise_allows_no_sync_hedge(caplog):
    class Liar(Budget):
        async def acquire(self, *, timeout=False, priority=0):
            await asyncio.sleep(0)
            return 5.0

    with pytest.raises(TimeoutError):
        hedge(after=60.0, budget=Liar(), name="fetch")(scripted(TimeoutError("slow"), "page"))()
    assert "the budget Liar failed; there is no hedge without it" in caplog.text
    assert "returned an awaitable" in caplog.text


def test_a_sync_hedge_waits_no_longer_than_the_deadline_that_is_set_further_out():
    fetch = Gates(2)
    with pytest.raises(DeadlineExceeded, match=r"the deadline of 0\.02 s came during the attempt"):
        retry(deadline=0.02)(hedge(after=60.0)(fetch))()
    with (
        incoming({"x-request-timeout-ms": "20"}),
        pytest.raises(TimeoutError, match="cut off by the deadline"),
    ):
        hedge(after=60.0)(fetch)()
    assert fetch.calls == 2
    for gate in fetch.go:
        gate.set()


def test_a_delay_beyond_all_timeouts_is_no_error():
    go = threading.Event()
    threading.Timer(0.02, go.set).start()
    assert hedge(after=1e300)(lambda: go.wait(60))() is True


def test_a_retry_around_a_sync_hedge_retries_it_as_a_whole():
    fetch = scripted(TimeoutError("1"), TimeoutError("2"), "page")
    waits = []
    assert retry(backoff=fixed, sleep=waits.append)(hedge(after=60.0)(fetch))() == "page"
    assert waits == [1.0]


def test_where_no_thread_can_be_started_the_first_attempt_runs_in_the_thread_of_the_caller(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    names = []
    assert hedge(after=0.0)(lambda: names.append(threading.current_thread().name))() is None
    assert names == [threading.current_thread().name]
    with pytest.raises(ValueError, match="no such page") as caught:
        hedge(after=0.0)(scripted(ValueError("no such page")))()
    assert caught.value.__context__ is None
    fetch = scripted(TimeoutError("slow"), "page")
    with pytest.raises(TimeoutError):
        hedge(after=0.0)(fetch)()
    assert len(fetch.calls) == 1


def test_an_attempt_that_ran_in_the_thread_of_the_caller_is_over_before_any_other_begins(monkeypatch):
    start, tried = threading.Thread.start, []

    def refuse_the_first(self):
        tried.append(self)
        if len(tried) == 1:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse_the_first)
    assert hedge(after=0.0)(lambda: "page")() == "page"
    assert len(tried) == 1


@pytest.mark.slow
def test_where_no_second_thread_can_be_started_the_first_attempt_goes_on(monkeypatch):
    start, started = threading.Thread.start, []

    def refuse_the_second(self):
        started.append(self)
        if len(started) > 1:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse_the_second)
    events = []
    go = threading.Event()
    timer = threading.Timer(0.05, go.set)
    start(timer)
    fetch = hedge(after=0.01, attempts=5, listeners=[events.append])(lambda: go.wait(60))
    assert fetch() is True
    assert len(started) == 2  # it is not tried again
    assert events == []


def test_while_the_interpreter_goes_down_no_thread_is_started(monkeypatch):
    monkeypatch.setattr(sys, "is_finalizing", lambda: True)
    names = []
    hedge(after=0.0)(lambda: names.append(threading.current_thread().name))()
    assert names == [threading.current_thread().name]


@pytest.mark.slow
def test_many_threads_may_share_a_decorated_function():
    budget = TokenBudget(capacity=10_000, earn=0)
    counts = []

    @hedge(after=quantile(0.9, initial=60.0, of_last=20), budget=budget)
    def fetch(number):
        counts.append(number)
        if number % 2 and counts.count(number) == 1:
            raise TimeoutError("slow")
        return number

    with switching_every(1e-6):
        assert in_threads(fetch) == list(range(64))
    assert budget.tokens > 9_000
