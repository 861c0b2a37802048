"""Hedging: another attempt when the first is slow, the first success wins, nothing is left running."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
import warnings
import weakref
from contextvars import ContextVar
from datetime import timedelta
from functools import partial, partialmethod, wraps
from pathlib import Path

import pytest

import redouble
from conftest import loop_time
from redouble import DeadlineExceeded, Policy, _tasks, retry
from redouble.backoff import fixed
from redouble.budget import Budget, RatioBudget, TokenBudget
from redouble.context import incoming
from redouble.events import Hedged
from redouble.hedging import hedge, quantile
from redouble.testing import FakeClock, retries_disabled, scripted

ROOT = str(Path(redouble.__file__).parent.parent)


class Told(ConnectionError):
    """A failure with an answer of the server."""

    def __init__(self, message="busy", **headers):
        super().__init__(message)
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.status_code = 503


class Script:
    """An async function whose attempts take and give what the script says; knows when each began and ended."""

    def __init__(self, *lines):
        self.lines = lines
        self.starts = []
        self.ends = []
        self.cancelled = []

    async def __call__(self, *args):
        number = len(self.starts) + 1
        seconds, outcome = self.lines[number - 1]
        self.starts.append(loop_time())
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        finally:
            self.ends.append(loop_time())
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


def hedged(script, **fields):
    async def fetch(*args):
        return await script(*args)

    return hedge(**{"after": 1.0, **fields})(fetch)


async def ours():
    """The tasks that are left, but for the one of the test."""
    return asyncio.all_tasks() - {asyncio.current_task()}


# Timing


def test_a_quick_first_attempt_is_the_only_one(virtual):
    async def main():
        script = Script((0.5, "page"))
        assert await hedged(script)() == "page"
        assert (script.starts, loop_time()) == ([0.0], 0.5)

    virtual(main)


def test_the_first_answer_wins_and_the_others_are_cancelled_and_awaited_before_it_comes_out(virtual):
    async def main():
        script = Script((9.0, "late"), (0.5, "page"))
        assert await hedged(script)() == "page"
        assert script.starts == [0.0, 1.0]
        assert script.cancelled == [1]
        assert loop_time() == 1.5
        assert await ours() == set()

    virtual(main)


def test_the_first_attempt_may_still_win_after_a_hedge_was_started(virtual):
    async def main():
        script = Script((1.5, "first"), (9.0, "second"))
        assert await hedged(script)() == "first"
        assert script.cancelled == [2]
        assert await ours() == set()

    virtual(main)


def test_each_hedge_starts_one_delay_after_the_attempt_before_it(virtual):
    # gRPC's example: four attempts at 1, 501, 1001 and 1501 ms.
    async def main():
        await asyncio.sleep(0.001)
        script = Script(*[(60.0, "page")] * 4)
        assert await hedged(script, after=0.5, attempts=4)() == "page"
        assert script.starts == pytest.approx([0.001, 0.501, 1.001, 1.501])
        assert script.cancelled == [2, 3, 4]
        assert loop_time() == pytest.approx(60.001)

    virtual(main)


def test_a_delay_of_nothing_starts_all_at_once(virtual):
    async def main():
        script = Script((5.0, "slow"), (3.0, "quick"), (4.0, "middle"))
        assert await hedged(script, after=0, attempts=3)() == "quick"
        assert script.starts == [0.0, 0.0, 0.0]
        assert loop_time() == 3.0

    virtual(main)


def test_a_single_attempt_is_never_hedged(virtual):
    async def main():
        script = Script((60.0, "page"))
        assert await hedged(script, attempts=1)() == "page"
        assert script.starts == [0.0]

    virtual(main)


def test_a_failure_starts_the_next_attempt_at_once_and_those_after_it_follow_that_one(virtual):
    async def main():
        script = Script((0.25, TimeoutError("slow")), (60.0, "second"), (0.5, "third"))
        assert await hedged(script, attempts=3)() == "third"
        assert script.starts == [0.0, 0.25, 1.25]

    virtual(main)


def test_a_failure_while_another_attempt_runs_starts_the_next_too(virtual):
    async def main():
        script = Script((60.0, "first"), (0.25, TimeoutError("slow")), (0.5, "third"))
        assert await hedged(script, attempts=3)() == "third"
        assert script.starts == [0.0, 1.0, 1.25]

    virtual(main)


def test_when_all_attempts_are_used_the_running_ones_are_waited_for(virtual):
    async def main():
        script = Script((30.0, "first"), (0.5, TimeoutError("slow")))
        assert await hedged(script)() == "first"
        assert loop_time() == 30.0

    virtual(main)


LATE = (60.0, "late")


@pytest.mark.parametrize(
    ("lines", "starts"),
    [
        ([(0.25, "page")], [0.0]),
        ([(0.75, "page"), LATE], [0.0, 0.5]),
        ([LATE] * 4, [0.0, 0.5, 1.0, 1.5]),
        ([(0.25, TimeoutError("slow")), LATE, LATE, LATE], [0.0, 0.25, 0.75, 1.25]),
        ([LATE, (0.125, TimeoutError("slow")), LATE, LATE], [0.0, 0.5, 0.625, 1.125]),
        ([(0.25, Told(Retry_After="3")), LATE, LATE, LATE], [0.0, 3.25, 3.75, 4.25]),
        ([LATE, (0.125, ValueError("no")), LATE, LATE], [0.0, 0.5]),
    ],
)
def test_attempts_start_when_the_table_on_the_page_says(lines, starts, virtual):
    async def main():
        script = Script(*lines)
        with contextlib.suppress(ValueError):
            await hedged(script, after=0.5, attempts=4)()
        assert script.starts == starts

    virtual(main)


def test_the_delay_may_be_a_timedelta(virtual):
    async def main():
        script = Script((9.0, "late"), (0.5, "page"))
        assert await hedged(script, after=timedelta(seconds=2))() == "page"
        assert script.starts == [0.0, 2.0]

    virtual(main)


# Failures


def test_where_all_fail_the_exception_of_the_first_attempt_comes_out_with_a_note_about_the_others(virtual):
    async def main():
        first = TimeoutError("first")
        script = Script((3.0, first), (0.5, ConnectionResetError("second")), (0.5, TimeoutError("third")))
        with pytest.raises(TimeoutError) as caught:
            await hedged(script, attempts=3, name="fetch")()
        assert caught.value is first
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None
        assert first.__notes__ == [
            "redouble: 3 attempts of fetch failed; this was attempt 1\n"
            "  attempt 2: ConnectionResetError: second\n"
            "  attempt 3: TimeoutError: third"
        ]
        assert loop_time() == 3.0

    virtual(main)


def test_a_failure_that_will_not_pass_is_the_result_and_the_others_are_cancelled(virtual):
    async def main():
        script = Script((9.0, "late"), (0.5, ValueError("no such page")))
        with pytest.raises(ValueError, match="no such page") as caught:
            await hedged(script, attempts=3)()
        assert not hasattr(caught.value, "__notes__")
        assert script.cancelled == [1]
        assert loop_time() == 1.5
        assert await ours() == set()

    virtual(main)


def test_a_failure_for_good_tells_of_those_before_it(virtual):
    async def main():
        script = Script((0.5, TimeoutError("slow")), (0.5, ValueError("no such page")))
        with pytest.raises(ValueError) as caught:
            await hedged(script, name="fetch")()
        assert caught.value.__notes__ == [
            "redouble: 2 attempts of fetch failed; this was attempt 2\n  attempt 1: TimeoutError: slow"
        ]

    virtual(main)


def test_a_failure_of_a_single_attempt_gets_no_note(virtual):
    async def main():
        with pytest.raises(TimeoutError) as caught:
            await hedged(Script((0.5, TimeoutError("slow"))), attempts=1)()
        assert not hasattr(caught.value, "__notes__")

    virtual(main)


def test_a_hedge_that_fails_as_a_whole_is_one_failed_attempt_of_a_retry_around_it(virtual):
    async def main():
        script = Script((0.5, TimeoutError("1")), (0.5, TimeoutError("2")), (0.5, "page"))
        fetch = retry(backoff=fixed, base=10.0)(hedged(script))
        assert await fetch() == "page"
        assert script.starts == [0.0, 0.5, 11.0]

    virtual(main)


# What the server says


def test_a_server_that_says_when_is_not_asked_before(virtual):
    async def main():
        script = Script((0.5, Told(Retry_After="7")), (0.5, "second"))
        assert await hedged(script)() == "second"
        assert script.starts == [0.0, 7.5]

    virtual(main)


def test_a_server_that_names_a_short_time_is_asked_then_and_not_later(virtual):
    async def main():
        script = Script((0.5, Told(retry_after_ms="250")), (0.5, "second"))
        assert await hedged(script, after=60.0)() == "second"
        assert script.starts == [0.0, 0.75]

    virtual(main)


def test_a_failure_that_says_nothing_does_not_shorten_the_wait_that_another_asked_for(virtual):
    async def main():
        script = Script((2.0, TimeoutError("slow")), (0.5, Told(Retry_After="7")), (0.5, "third"))
        assert await hedged(script, attempts=3)() == "third"
        assert script.starts == [0.0, 1.0, 8.5]

    virtual(main)


def test_a_hedge_that_is_due_waits_for_the_server_too(virtual):
    async def main():
        script = Script((60.0, "first"), (0.5, Told(Retry_After="7")), (60.0, "third"), (0.5, "fourth"))
        assert await hedged(script, attempts=4)() == "fourth"
        assert script.starts == [0.0, 1.0, 8.5, 9.5]

    virtual(main)


def test_a_server_that_refuses_a_retry_gets_no_more_hedges(virtual):
    async def main():
        script = Script((0.5, Told(x_should_retry="false")), (0.5, "second"))
        with pytest.raises(Told):
            await hedged(script)()
        assert script.starts == [0.0]

    virtual(main)


def test_a_wait_beyond_patience_is_not_made(virtual):
    async def main():
        script = Script((0.5, Told(Retry_After="3600")), (0.5, "second"))
        with pytest.raises(Told):
            await hedged(script)()
        assert (script.starts, loop_time()) == ([0.0], 0.5)

    virtual(main)


def test_running_attempts_are_waited_for_when_patience_is_at_its_end(virtual):
    async def main():
        script = Script((5.0, "first"), (0.5, Told(Retry_After="10")), (0.5, "third"))
        assert await hedged(script, attempts=3, patience=9)() == "first"
        assert script.starts == [0.0, 1.0]

    virtual(main)


# The budget


class Ledger(Budget):
    """A budget that writes down what it is told, and allows so many hedges."""

    def __init__(self, allowed=9, *, is_async=False, trouble=None):
        super().__init__(name="ledger")
        self.allowed = allowed
        self.is_async = is_async
        self.trouble = trouble
        self.log = []

    def _answer(self, entry, value=None):
        self.log.append(entry)
        if self.trouble is not None:
            raise self.trouble
        if not self.is_async:
            return value

        async def later():
            await asyncio.sleep(0.25)
            return value

        return later()

    def acquire(self, *, timeout=False, priority=0):
        self.allowed -= 1
        return self._answer(("acquire", priority), 5.0 if self.allowed >= 0 else 0.0)

    def success(self, cost=0.0):
        return self._answer(("success", cost))

    def failure(self):
        return self._answer("failure")


def test_first_attempts_are_never_charged_to_the_budget(virtual):
    async def main():
        budget = TokenBudget(capacity=0)
        assert await hedged(Script((0.5, "page")), budget=budget)() == "page"

    virtual(main)


def test_a_success_without_a_hedge_is_told_unless_the_budget_is_full(virtual):
    async def main():
        budget = Ledger()
        await hedged(Script((0.5, "page")), budget=budget)()
        assert budget.log == [("success", 0.0)]
        budget = Ledger()
        budget.full = True
        await hedged(Script((0.5, "page")), budget=budget)()
        assert budget.log == []

    virtual(main)


def test_a_hedge_that_wins_gives_its_cost_back(virtual):
    async def main():
        budget = TokenBudget(capacity=10)
        await hedged(Script((9.0, "late"), (0.5, "page")), budget=budget)()
        assert budget.tokens == 10

    virtual(main)


def test_a_hedge_that_is_overtaken_is_paid_for(virtual):
    async def main():
        budget = TokenBudget(capacity=10)
        await hedged(Script((1.5, "first"), (9.0, "second")), budget=budget)()
        assert budget.tokens == 6  # 5 for the hedge, and 1 earned by the call

    virtual(main)


def test_a_hedge_that_the_budget_refuses_is_not_made_and_the_first_attempt_goes_on(virtual):
    async def main():
        script = Script((9.0, "first"))
        events = []
        assert await hedged(script, budget=TokenBudget(capacity=0), listeners=[events.append])() == "first"
        assert script.starts == [0.0]
        assert events == []

    virtual(main)


def test_a_refused_hedge_is_skipped_and_the_next_is_asked_for_at_its_own_time(virtual):
    async def main():
        budget = TokenBudget(capacity=5)
        budget.acquire()
        script = Script((9.0, "first"), (0.5, "second"))
        events = []
        call = asyncio.create_task(hedged(script, attempts=3, budget=budget, listeners=[events.append])())
        await asyncio.sleep(1.5)
        budget.success(5.0)
        assert await call == "second"
        assert script.starts == [0.0, 2.0]
        assert [event.attempt for event in events] == [2]

    virtual(main)


def test_where_nothing_runs_and_the_budget_refuses_the_failure_comes_out_at_once(virtual):
    async def main():
        script = Script((0.5, TimeoutError("slow")))
        with pytest.raises(TimeoutError, match="slow"):
            await hedged(script, attempts=4, budget=TokenBudget(capacity=0))()
        assert loop_time() == 0.5

    virtual(main)


def test_the_priority_is_given_to_the_budget(virtual):
    async def main():
        budget = Ledger()
        await hedged(Script((9.0, "late"), (0.5, "page")), budget=budget, priority=-1)()
        assert budget.log == [("acquire", -1), ("success", 5.0)]

    virtual(main)


def test_the_budget_hears_of_a_failed_first_attempt_before_it_is_asked_for_the_next(virtual):
    async def main():
        budget = Ledger()
        script = Script((0.5, TimeoutError("1")), (0.5, TimeoutError("2")), (0.5, "page"))
        await hedged(script, attempts=3, budget=budget)()
        assert budget.log == ["failure", ("acquire", 0), ("acquire", 0), ("success", 5.0)]
        budget = RatioBudget(ratio=1.0, floor_per_second=0, clock=loop_time)
        script = Script((0.5, TimeoutError("1")), (0.5, "page"))
        assert await hedged(script, budget=budget)() == "page"

    virtual(main)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (((0.5, "page"),), None),
        (((9.0, "late"), (0.5, "page")), None),
        (((0.5, TimeoutError("1")), (0.5, "page")), None),
        (((0.5, ValueError("no")),), ValueError),
        (((9.0, "late"), (0.5, ValueError("no"))), ValueError),
    ],
    ids=["first", "hedge", "failed", "refused", "hedge refused"],
)
def test_every_hedged_call_is_counted_once(virtual, script, error):
    async def main():
        budget = RatioBudget(ratio=1.0, floor_per_second=0.1, clock=loop_time)
        with contextlib.nullcontext() if error is None else pytest.raises(error):
            await hedged(Script(*script), budget=budget)()
        calls, hedges = budget._counts.read(loop_time())
        assert (calls, hedges) == (1, len(script) - 1)

    virtual(main)


def test_a_call_that_is_cancelled_is_not_counted(virtual):
    async def main():
        budget = RatioBudget(ratio=1.0, floor_per_second=0.1, clock=loop_time)
        task = asyncio.ensure_future(hedged(Script((9.0, "late"), (9.0, "late")), budget=budget)())
        await asyncio.sleep(2.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert budget._counts.read(loop_time())[0] == 0

    virtual(main)


def test_a_hedge_that_was_paid_for_too_late_is_given_back(virtual):
    class Slow(TokenBudget):
        is_async = True

        async def acquire(self, *, timeout=False, priority=0):
            cost = super().acquire(timeout=timeout, priority=priority)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(5.0)
            return cost

    class Stubborn(Slow):
        def give_back(self, cost):
            raise RuntimeError("no refunds")

    async def main():
        for kind, left in ((Slow, 100.0), (Stubborn, 95.0)):
            budget = kind(capacity=100, earn=0)
            assert await hedged(Script((2.0, "page")), budget=budget)() == "page"
            assert budget.tokens == left

    virtual(main)


def test_cancelled_losers_count_neither_as_failure_nor_as_success(virtual):
    async def main():
        budget = Ledger()
        await hedged(Script((9.0, "late"), (9.0, "late"), (0.5, "page")), attempts=3, budget=budget)()
        assert budget.log == [("acquire", 0), ("acquire", 0), ("success", 5.0)]

    virtual(main)


def test_a_call_that_fails_at_its_only_attempt_is_told_to_the_budget(virtual):
    async def main():
        budget = Ledger()
        with pytest.raises(ValueError):
            await hedged(Script((0.5, ValueError("no"))), budget=budget)()
        assert budget.log == ["failure"]

    virtual(main)


def test_an_async_budget_is_awaited_and_does_not_keep_a_result_from_coming_out(virtual):
    async def main():
        budget = Ledger(is_async=True)
        script = Script((9.0, "late"), (0.5, "page"))
        assert await hedged(script, budget=budget)() == "page"
        assert script.starts == [0.0, 1.25]
        assert budget.log == [("acquire", 0), ("success", 5.0)]
        # The first attempt wins while the budget is being asked.
        start = loop_time()
        budget.full = True
        script = Script((1.125, "first"))
        assert await hedged(script, budget=budget)() == "first"
        assert loop_time() - start == 1.125
        assert await ours() == set()

    virtual(main)


def test_a_budget_that_answers_when_the_race_is_over_starts_nothing(virtual):
    async def main():
        script = Script((1.25, "first"), (0.5, "second"))
        events = []
        budget = Ledger(is_async=True)
        budget.full = True
        assert await hedged(script, budget=budget, listeners=[events.append])() == "first"
        assert len(script.starts) == 1
        assert events == []

    virtual(main)


def test_a_budget_that_fails_allows_no_hedge_and_hides_nothing(virtual, caplog):
    async def main():
        budget = Ledger(trouble=RuntimeError("the store is away"))
        assert await hedged(Script((9.0, "first")), budget=budget)() == "first"
        with pytest.raises(TimeoutError, match="slow"):
            await hedged(Script((0.5, TimeoutError("slow"))), budget=budget)()

    virtual(main)
    assert "the budget ledger failed" in caplog.text


# Recent latencies


def test_the_initial_delay_holds_until_enough_latencies_are_known(virtual):
    async def main():
        script = Script(*[(0.1 * n, n) for n in range(1, 21)], (9.0, "late"), (0.5, "page"))
        fetch = hedged(script, after=quantile(0.95, initial=5.0))
        for n in range(1, 21):
            assert await fetch() == n
        start = loop_time()
        assert await fetch() == "page"
        assert script.starts[-2:] == pytest.approx([start, start + 1.9])  # 19 of 20 took no longer

    virtual(main)


def test_the_window_forgets_what_is_old(virtual):
    async def main():
        script = Script(*[(3.0, "slow")] * 4, *[(0.5, "quick")] * 4, (9.0, "late"), (0.5, "page"))
        fetch = hedged(script, after=quantile(0.9, initial=5.0, of_last=4))
        for _ in range(8):
            await fetch()
        assert await fetch() == "page"
        assert script.starts[-1] - script.starts[-2] == pytest.approx(0.5)

    virtual(main)


def test_the_latencies_of_failures_are_not_counted(virtual):
    async def main():
        script = Script(*[(0.01, ValueError("no"))] * 20, (9.0, "late"), (0.5, "page"))
        fetch = hedged(script, after=quantile(0.5, initial=5.0))
        for _ in range(20):
            with pytest.raises(ValueError):
                await fetch()
        assert await fetch() == "page"
        assert script.starts[-1] - script.starts[-2] == 5.0

    virtual(main)


def test_a_failed_attempt_does_not_count_where_another_succeeds(virtual):
    async def main():
        script = Script(
            (2.0, "page"), (0.5, TimeoutError("slow")), (2.75, "page"), (9.0, "late"), (0.5, "page")
        )  # fmt: skip
        fetch = hedged(script, after=quantile(0.9, initial=3.0, of_last=2))
        for _ in range(3):
            await fetch()
        assert script.starts[-1] - script.starts[-2] == 2.75  # not the 3.25 s since the failed one began

    virtual(main)


def test_an_attempt_that_was_overtaken_counts_with_the_time_it_had_taken(virtual):
    # One in four is slow. If it did not count, the median of the rest would be 1 s, not 2.5.
    async def main():
        script = Script((9.0, "late"), (0.5, "page"), (9.0, "late"), (0.5, "page"))
        fetch = hedged(script, after=quantile(0.75, initial=2.0, of_last=4))
        await fetch()
        await fetch()
        script.lines += ((9.0, "late"), (0.5, "page"))
        await fetch()
        assert script.starts[-1] - script.starts[-2] == 2.5  # of 0.5, 2.5, 0.5 and 2.5 s

    virtual(main)


def test_a_hedge_that_was_overtaken_says_nothing_about_latencies(virtual):
    async def main():
        script = Script(*[(2.1, "first"), (9.0, "second")] * 4, (9.0, "late"), (0.5, "page"))
        fetch = hedged(script, after=quantile(0.1, initial=2.0, of_last=4))
        for _ in range(4):
            assert await fetch() == "first"
        await fetch()
        assert script.starts[-1] - script.starts[-2] == pytest.approx(2.1)

    virtual(main)


def test_a_quantile_is_never_shorter_than_a_millisecond(virtual):
    async def main():
        script = Script(*[(0.0, "at once")] * 10, (9.0, "late"), (0.5, "page"))
        fetch = hedged(script, after=quantile(0.9, initial=1.0))
        for _ in range(10):
            await fetch()
        await fetch()
        assert script.starts[-1] - script.starts[-2] == pytest.approx(0.001)

    virtual(main)


def test_functions_that_share_a_decorator_do_not_share_their_latencies(virtual):
    async def main():
        decorator = hedge(after=quantile(0.5, initial=5.0, of_last=1))
        quick, slow = Script((0.5, "quick")), Script((9.0, "late"), (0.5, "page"))

        @decorator
        async def first():
            return await quick()

        @decorator
        async def second():
            return await slow()

        await first()
        await second()
        assert slow.starts[1] - slow.starts[0] == 5.0

    virtual(main)


def test_a_quantile_is_a_value():
    assert quantile(0.9, initial=timedelta(seconds=2)) == quantile(0.9, initial=2.0, of_last=100)
    assert pickle.loads(pickle.dumps(quantile(0.9, initial=2.0))) == quantile(0.9, initial=2.0)
    assert repr(quantile(0.9, initial=2)) == "quantile(q=0.9, initial=2.0, of_last=100)"


# Events


def test_each_hedge_is_told_to_the_listeners_and_logged(virtual, caplog):
    async def main():
        events = []
        script = Script((9.0, "late"), (0.5, TimeoutError("slow")), (0.5, "page"))
        with caplog.at_level(logging.INFO, "redouble"):
            await hedged(script, attempts=3, listeners=[events.append], name="fetch")()
        assert events == [
            Hedged("fetch", attempt=2, elapsed=1.0, delay=1.0),
            Hedged(
                "fetch", attempt=3, elapsed=1.5, delay=1.0, cause="timeout",
                error_type="TimeoutError", error_message="slow",
            ),
        ]  # fmt: skip

    virtual(main)
    told = [(record.message, record.policy, record.attempt) for record in caplog.records]
    assert told == [("started another attempt beside a slow one", "fetch", n) for n in (2, 3)]


def test_an_event_names_the_failure_that_made_the_hedge_due_and_no_older_one(virtual):
    async def main():
        events = []
        budget = TokenBudget(capacity=5)
        script = Script((60.0, "late"), (0.5, TimeoutError("slow")), (0.5, "page"))
        fetch = hedged(script, attempts=4, budget=budget, listeners=[events.append])
        call = asyncio.create_task(fetch())
        await asyncio.sleep(2.0)  # the hedge that the failure made due was refused
        budget.success(5.0)
        assert await call == "page"
        assert [(event.attempt, event.elapsed, event.error_type) for event in events] == [
            (2, 1.0, None),
            (3, 2.5, None),
        ]
        events.clear()
        script = Script((0.5, TimeoutError("slow")), (60.0, "late"), (0.5, "page"))
        await hedged(script, attempts=3, listeners=[events.append])()
        assert [event.error_type for event in events] == ["TimeoutError", None]

    virtual(main)


def test_no_event_is_made_while_nobody_listens(virtual, monkeypatch):
    monkeypatch.setattr("redouble.events._logger", lambda: None)
    monkeypatch.setattr("redouble._race.Hedged", None)

    async def main():
        assert await hedged(Script((9.0, "late"), (0.5, "page")))() == "page"

    virtual(main)


def test_a_listener_that_fails_hides_nothing(virtual):
    async def main():
        def fail(event):
            raise RuntimeError("listener")

        assert await hedged(Script((9.0, "late"), (0.5, "page")), listeners=[fail])() == "page"

    virtual(main)


def test_the_name_is_that_of_the_function_unless_it_is_given(virtual):
    async def main():
        events = []

        @hedge(after=1.0, listeners=[events.append])
        async def fetch():
            await asyncio.sleep(1.5)

        await fetch()
        assert events[0].name.endswith("<locals>.fetch")

    virtual(main)


# Context and deadlines

where = ContextVar("where", default="nowhere")


def test_each_attempt_has_a_copy_of_the_context_of_the_call(virtual):
    async def main():
        seen = []

        @hedge(after=1.0)
        async def fetch():
            seen.append(where.get())
            where.set("in an attempt")
            await asyncio.sleep(9.0)

        where.set("at the caller")
        await fetch()
        assert seen == ["at the caller", "at the caller"]
        assert where.get() == "at the caller"

    virtual(main)


def test_all_attempts_end_at_the_deadline_that_is_set_further_out(virtual):
    async def main():
        script = Script(*[(60.0, "late")] * 9)
        fetch = Policy(deadline=2.5, clock=loop_time)(hedged(script, attempts=9))
        with pytest.raises(DeadlineExceeded):
            await fetch()
        assert script.starts == [0.0, 1.0, 2.0]
        assert script.ends == [2.5, 2.5, 2.5]
        assert await ours() == set()

    virtual(main)


def test_no_hedge_is_started_at_the_deadline_or_after_it(virtual):
    async def main():
        script = Script((60.0, "late"), (60.0, "later"))
        with incoming({"x-request-timeout-ms": "1000"}, clock=loop_time):
            assert await hedged(script)() == "late"
        assert script.starts == [0.0]

    virtual(main)


def test_a_wait_that_would_pass_the_deadline_is_never_begun(virtual):
    async def main():
        script = Script((0.5, Told(Retry_After="9")), (0.5, "page"))
        with incoming({"x-request-timeout-ms": "5000"}, clock=loop_time):
            with pytest.raises(Told):
                await hedged(script)()
        assert loop_time() == 0.5

    virtual(main)


def test_the_deadline_is_asked_again_when_the_hedge_is_due(virtual):
    async def main():
        clock = FakeClock()
        script = Script((60.0, "late"))
        with incoming({"x-request-timeout-ms": "5000"}, clock=clock):
            call = asyncio.create_task(hedged(script, attempts=3)())
            await asyncio.sleep(0.5)
            clock.advance(6.0)
            assert await call == "late"
        assert script.starts == [0.0]

    virtual(main)


def test_where_retries_are_switched_off_nothing_is_hedged(virtual):
    async def main():
        script = Script((60.0, "page"))
        with retries_disabled():
            assert await hedged(script)() == "page"
        assert script.starts == [0.0]

    virtual(main)
    names = []
    with retries_disabled():
        hedge(after=0.0)(lambda: names.append(threading.current_thread().name))()
    assert names == [threading.current_thread().name]


# Cancellation


def test_a_cancellation_from_outside_cancels_and_awaits_all_attempts_and_comes_out(virtual):
    async def main():
        script = Script(*[(60.0, "late")] * 3)
        task = asyncio.create_task(hedged(script, attempts=3)())
        await asyncio.sleep(1.5)
        task.cancel("enough")
        with pytest.raises(asyncio.CancelledError, match="enough"):
            await task
        assert task.cancelled()
        assert script.cancelled == [1, 2]
        assert loop_time() == 1.5
        assert await ours() == set()

    virtual(main)


def test_a_timeout_around_a_hedge_is_a_timeout(virtual):
    async def main():
        script = Script(*[(60.0, "late")] * 2)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await hedged(script)()
        assert asyncio.current_task().cancelling() == 0
        assert await ours() == set()

    virtual(main)


def test_a_task_group_whose_other_member_fails_ends_the_hedge(virtual):
    async def main():
        async def sibling():
            await asyncio.sleep(1.5)
            raise ValueError("sibling")

        script = Script(*[(60.0, "late")] * 2)
        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.TaskGroup() as group:
                group.create_task(hedged(script)())
                group.create_task(sibling())
        assert [str(error) for error in caught.value.exceptions] == ["sibling"]
        assert script.cancelled == [1, 2]
        assert await ours() == set()

    virtual(main)


def test_a_cancellation_in_an_attempt_comes_out_and_ends_the_others(virtual):
    async def main():
        script = Script((9.0, "late"), (0.5, asyncio.CancelledError("inside")))
        task = asyncio.create_task(hedged(script, attempts=3)())
        with pytest.raises(asyncio.CancelledError, match="inside"):
            await task
        assert task.cancelled()
        assert len(script.starts) == 2
        assert script.cancelled == [1]
        assert await ours() == set()

    virtual(main)


def test_a_cancellation_during_the_wait_for_a_server_comes_out(virtual):
    async def main():
        script = Script((0.5, Told(Retry_After="60")), (0.5, "page"))
        task = asyncio.create_task(hedged(script)())
        await asyncio.sleep(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(script.starts) == 1

    virtual(main)


def test_a_cancellation_while_the_losers_end_comes_out_though_there_is_a_result(virtual):
    async def main():
        ended = []

        @hedge(after=1.0)
        async def fetch():
            try:
                await asyncio.sleep(1.5)
            except asyncio.CancelledError:
                await asyncio.sleep(0.5)
                ended.append(loop_time())
                raise

        task = asyncio.create_task(fetch())
        await asyncio.sleep(1.75)
        task.cancel("too late")
        with pytest.raises(asyncio.CancelledError, match="too late"):
            await task
        assert ended == [2.0]
        assert await ours() == set()

    virtual(main)


def test_an_attempt_that_somebody_else_cancels_before_it_begins_is_a_cancellation(virtual):
    async def main():
        script = Script((9.0, "late"))
        task = asyncio.create_task(hedged(script)())
        await asyncio.sleep(0)
        (attempt,) = asyncio.all_tasks() - {asyncio.current_task(), task}
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert script.starts == []

    virtual(main)


async def stubborn(log, seconds, raises=None):
    """Ignores its cancellation for so long."""
    ends = loop_time() + seconds
    while (left := ends - loop_time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            log.append("ignored")
    log.append("ended")
    if raises is not None:
        raise raises


@pytest.mark.slow
def test_a_loser_that_ignores_its_cancellation_is_left_behind_after_the_grace(virtual, caplog):
    async def main():
        log, calls = [], []

        @hedge(after=1.0, grace=0.5, name="fetch")
        async def fetch():
            calls.append(1)
            if len(calls) == 2:
                return "page"
            return await stubborn(log, 9.0, ValueError("nobody asks for this any more"))

        noise = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: noise.append(context))
        assert await fetch() == "page"
        assert loop_time() == 1.5
        assert log == ["ignored"]
        gc.collect()
        assert len(_tasks._stragglers) == 1
        await asyncio.sleep(9.0)
        assert log == ["ignored", "ended"]
        assert _tasks._stragglers == set()
        assert await ours() == set()
        gc.collect()
        assert noise == []

    virtual(main)
    assert "a cancelled attempt of fetch still runs after 0.5 s" in caplog.text


def test_a_cancellation_that_is_repeated_does_not_cut_the_grace_short_nor_make_it_longer(virtual):
    async def main():
        log = []

        @hedge(after=9.0, grace=1.0)
        async def fetch():
            await stubborn(log, 30.0)

        task = asyncio.create_task(fetch())
        for _ in range(9):
            await asyncio.sleep(0.25)
            if not task.done():
                task.cancel()
        assert task.cancelled()
        assert log == ["ignored"]  # the attempt itself hears of it once
        (straggler,) = await ours()
        await straggler

    virtual(main)


def test_a_cancellation_that_is_repeated_without_end_does_not_hold_a_call_up(virtual):
    # As anyio does: at every turn of the loop, until the task has ended.
    async def main():
        log = []

        @hedge(after=9.0, grace=1.0)
        async def fetch():
            await stubborn(log, 30.0)

        task = asyncio.create_task(fetch())
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.sleep(1.0)
        for _ in range(10):
            task.cancel()
            await asyncio.sleep(0)
        assert task.cancelled()
        (straggler,) = await ours()
        await straggler

    virtual(main)


def test_a_hedged_call_that_is_closed_and_not_awaited_cancels_its_attempts(virtual):
    async def main():
        script = Script((60.0, "late"))
        coroutine = hedged(script)()
        coroutine.send(None)
        (attempt,) = await ours()
        await asyncio.sleep(0.5)
        coroutine.close()
        await asyncio.wait([attempt])
        assert script.cancelled == [1]

    virtual(main)


def test_a_hedged_call_may_be_closed_after_its_loop():
    script = Script((60.0, "late"))
    calls = []

    async def main():
        calls.append(hedged(script)())
        calls[0].send(None)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    pending = asyncio.all_tasks(loop)
    loop.close()
    calls[0].close()
    for task in pending:
        task._log_destroy_pending = False
        task.get_coro().close()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="there are no eager tasks")
def test_tasks_that_start_eagerly_are_hedged_alike(virtual):
    async def main():
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        script = Script((9.0, "late"), (0.5, "page"))
        assert await hedged(script)() == "page"
        assert script.starts == [0.0, 1.0]

        @hedge(after=0.0)
        async def at_once():
            return "at once"

        assert await at_once() == "at once"
        assert await ours() == set()

    virtual(main)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupt_in_an_attempt_passes_out_and_ends_the_others(interrupt, virtual):
    async def main():
        script = Script((9.0, "late"), (0.5, interrupt("stop")))
        with pytest.raises(interrupt, match="stop"):
            await hedged(script, attempts=3)()
        assert script.cancelled == [1]
        assert await ours() == set()

    virtual(main)


def test_the_end_of_an_iterator_comes_out_as_it_is(virtual):
    async def main():
        async def end():
            raise StopAsyncIteration("no more")

        with pytest.raises(StopAsyncIteration, match="no more"):
            await hedge(after=1.0)(end)()

    virtual(main)

    def stop():
        raise StopIteration("no more")

    with pytest.raises(StopIteration, match="no more"):
        hedge(after=1.0)(stop)()


# Threads


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
        assert self.go[number - 1].wait(10)
        return number


@pytest.fixture
def no_thread_is_left():
    """Waits a moment for losers that were told to end."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
    assert set(threading.enumerate()) <= before  # of those before, some may have ended, too


pytestmark = pytest.mark.usefixtures("no_thread_is_left")


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
        assert fetch.begun[1].wait(10)
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
        assert go.wait(10)
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
    assert "the budget of fetch must be awaited" in caplog.text


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
    assert hedge(after=1e300)(lambda: go.wait(10))() is True


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
    fetch = hedge(after=0.01, attempts=5, listeners=[events.append])(lambda: go.wait(10))
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

    results, errors = [], []

    def work(number):
        try:
            results.append(fetch(number))
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=[number]) for number in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert errors == []
    assert sorted(results) == list(range(64))
    assert budget.tokens > 9_000


# Functions of every kind


def test_a_plain_function_that_stands_in_for_an_async_one_is_hedged_as_async(virtual):
    async def main():
        script = Script((9.0, "late"), (0.5, "page"))

        async def fetch():
            return await script()

        @hedge(after=1.0)
        @wraps(fetch)
        def passing():
            return fetch()

        assert await passing() == "page"

    virtual(main)


def test_a_plain_function_that_turns_out_to_be_async_is_hedged_from_there_on(virtual):
    async def main():
        script = Script((9.0, "late"), (0.5, "page"))
        budget = Ledger()

        @hedge(after=1.0, budget=budget)
        def fetch():
            return script()

        assert await fetch() == "page"
        assert script.starts == [0.0, 1.0]
        assert budget.log == [("acquire", 0), ("success", 5.0)]

    virtual(main)


def test_a_plain_function_that_gives_another_awaitable_is_hedged_from_there_on(virtual):
    class Request:
        def __init__(self, coroutine):
            self.coroutine = coroutine

        def __await__(self):
            return self.coroutine.__await__()

    async def main():
        script = Script((9.0, "late"), (0.5, "page"))
        assert await hedge(after=1.0)(lambda: Request(script()))() == "page"
        assert script.starts == [0.0, 1.0]

    virtual(main)


def test_methods_of_every_kind_are_hedged():
    class Client:
        @hedge(after=60.0)
        def method(self, page):
            return "method", type(self).__name__, page

        @hedge(after=60.0)
        @classmethod
        def of_class(cls, page):
            return "class", cls.__name__, page

        @staticmethod
        @hedge(after=60.0)
        def below(page):
            return "below", page

        @hedge(after=60.0)
        @staticmethod
        def above(page):
            return "above", page

        @property
        @hedge(after=60.0)
        def name(self):
            return "property"

        home = hedge(after=60.0)(partialmethod(method, "home"))

    client = Client()
    assert client.method("a") == ("method", "Client", "a")
    assert client.of_class("a") == Client.of_class("a") == ("class", "Client", "a")
    assert client.below("a") == ("below", "a")
    assert client.above("a") == ("above", "a")
    assert client.name == "property"
    assert client.home() == ("method", "Client", "home")
    assert hedge(after=60.0)(partial(client.method, "b"))() == ("method", "Client", "b")


def test_the_decorated_function_looks_like_the_function():
    def fetch(url: str) -> str:
        """Fetches."""
        return url

    decorated = hedge(after=1.0)(fetch)
    assert (decorated.__name__, decorated.__doc__, decorated.__wrapped__) == ("fetch", "Fetches.", fetch)
    assert decorated("a") == decorated(url="a") == "a"


def generator():
    yield 1


async def async_generator():
    yield 1


@pytest.mark.parametrize(
    ("thing", "advice"),
    [
        (generator, "cannot hedge generator: a generator is not over when it is called; hedge a function"),
        (async_generator, "cannot hedge async_generator: a async generator is not over"),
        (Gates, "cannot hedge the class Gates: decorate the method that is slow"),
        (property(lambda self: 1), "put @hedge below @property"),
        (5, "cannot hedge 5: it is not callable; decorate a function"),
        (None, "cannot hedge None: it is not callable"),
    ],
)
def test_what_cannot_be_hedged_is_refused_with_what_to_do(thing, advice):
    with pytest.raises(TypeError) as caught:
        hedge(after=1.0)(thing)
    assert advice in str(caught.value)


def test_a_sync_function_cannot_have_an_async_budget():
    with pytest.raises(TypeError, match="the budget ledger must be awaited, and <lambda> is sync"):
        hedge(after=1.0, budget=Ledger(is_async=True), name="<lambda>")(lambda: None)


def test_hedging_must_be_asked_for_by_name_and_with_a_delay():
    with pytest.raises(TypeError, match="after"):
        hedge()
    with pytest.raises(TypeError):
        hedge(lambda: None)
    assert not [field for field in Policy._fields if "hedg" in field]
    assert not hasattr(redouble, "hedge")
    assert "idempotent" in hedge.__doc__.splitlines()[0]


WRONG = [
    ({"after": -1}, ValueError, "after must be finite and not negative, got -1"),
    ({"after": float("nan")}, ValueError, "after must be finite"),
    ({"after": float("inf")}, ValueError, "after must be finite"),
    ({"after": True}, ValueError, "after must be a number, not a bool"),
    ({"after": "1"}, TypeError, "after must be a number, got '1'"),
    ({"after": 1, "attempts": 0}, ValueError, "attempts must be at least 1 (the first call counts), got 0"),
    ({"after": 1, "attempts": True}, ValueError, "attempts must be a whole number"),
    ({"after": 1, "budget": 5}, TypeError, "budget must be a budget such as TokenBudget(), got 5"),
    ({"after": 1, "priority": 0.5}, ValueError, "priority must be a whole number"),
    ({"after": 1, "listeners": print}, TypeError, "listeners must be a list of functions"),
    ({"after": 1, "name": ""}, TypeError, "name must be a text"),
    ({"after": 1, "grace": -1}, ValueError, "grace must be finite"),
    ({"after": 1, "patience": float("nan")}, ValueError, "patience must be finite"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "kind", "message"), WRONG)
def test_a_wrong_value_is_refused_with_its_name_the_rule_and_the_value(fields, kind, message):
    with pytest.raises(kind) as caught:
        hedge(**fields)
    assert message in str(caught.value)


@pytest.mark.parametrize("q", [0, 1, 1.5, -0.5, float("nan"), True, "0.9"])
def test_a_quantile_takes_a_share_between_0_and_1(q):
    with pytest.raises((ValueError, TypeError), match="q must be"):
        quantile(q, initial=1.0)


@pytest.mark.parametrize(
    "fields",
    [
        {"initial": -1},
        {"initial": float("inf")},
        {"initial": 1, "of_last": 0},
        {"initial": 1, "of_last": 2.5},
    ],
)
def test_a_quantile_refuses_a_window_or_a_delay_that_cannot_be(fields):
    with pytest.raises(ValueError, match="must be"):
        quantile(0.9, **fields)


# What is left behind


class Payload:
    """An argument that can be watched."""


class Failure(TimeoutError):
    """An exception that can be watched."""


class Refusal(ValueError):
    """The same, for good."""


def failure(watched, kind=Failure):
    """An exception that is watched, and that no frame holds by a name."""
    error = kind("slow")
    watched.append(weakref.ref(error))
    return error


@contextlib.contextmanager
def without_collector():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.fixture
def nobody_logs(monkeypatch):
    monkeypatch.setattr(logging.getLogger("redouble"), "disabled", True)


@pytest.mark.slow
@pytest.mark.usefixtures("nobody_logs")
@pytest.mark.parametrize(
    "outcomes", [["fail", "fail"], ["fail", "give"], ["give"], ["refuse"], ["fail", "refuse"]]
)
@pytest.mark.parametrize("kind", ["sync", "asyncio"])
def test_arguments_and_exceptions_die_by_reference_count(outcomes, kind, virtual):
    watched = []

    def body(script, payload):
        outcome = script.pop(0)
        if outcome == "give":
            return "page"
        raise failure(watched, Failure if outcome == "fail" else Refusal)

    async def coroutine(script, payload):
        await asyncio.sleep(0.5)
        return body(script, payload)

    def watch():
        payload = Payload()
        watched.append(weakref.ref(payload))
        return payload

    def sync():
        with contextlib.suppress(Failure, Refusal):
            hedge(after=60.0)(body)(list(outcomes), watch())

    async def main():
        with contextlib.suppress(Failure, Refusal):
            await hedge(after=60.0)(coroutine)(list(outcomes), watch())
        await asyncio.sleep(0)
        assert [ref() for ref in watched if ref() is not None] == []

    with without_collector():
        sync() if kind == "sync" else virtual(main)
        assert len(watched) >= 1
        assert [ref() for ref in watched if ref() is not None] == []


@pytest.mark.slow
@pytest.mark.usefixtures("nobody_logs")
def test_what_a_late_loser_held_dies_by_reference_count_when_it_ends():
    go, watched, calls = threading.Event(), [], []

    @hedge(after=0.01)
    def fetch(payload):
        calls.append(1)
        if len(calls) == 2:
            return "page"
        assert go.wait(10)
        raise failure(watched)

    with without_collector():
        before = threading.enumerate()
        payload = Payload()
        watched.append(weakref.ref(payload))
        assert fetch(payload) == "page"
        del payload
        (loser,) = [thread for thread in threading.enumerate() if thread not in before]
        go.set()
        loser.join()
        del loser
        assert len(watched) == 2
        assert [ref() for ref in watched if ref() is not None] == []


@pytest.mark.slow
@pytest.mark.usefixtures("nobody_logs")
def test_what_a_cancelled_call_held_dies_by_reference_count(virtual):
    async def main():
        watched = []

        @hedge(after=60.0)
        async def fetch(payload):
            if not watched:
                watched.append(weakref.ref(payload))
                raise failure(watched)
            await asyncio.sleep(60.0)

        task = asyncio.create_task(fetch(Payload()))
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.wait([task])
        del task
        await asyncio.sleep(0)
        assert [ref() for ref in watched if ref() is not None] == []

    with without_collector():
        virtual(main)


@pytest.mark.slow
def test_a_decorated_function_can_be_collected():
    def fetch():
        return "page"

    async def coroutine():
        return "page"

    decorated, decorated_coroutine = hedge(after=1.0)(fetch), hedge(after=1.0)(coroutine)
    decorated()
    refs = [weakref.ref(thing) for thing in (fetch, decorated, coroutine, decorated_coroutine)]
    del fetch, decorated, coroutine, decorated_coroutine
    gc.collect()
    assert [ref() for ref in refs if ref() is not None] == []


# Processes that end


def run(code):
    """A program in a new interpreter; whatever it writes to stderr is a failure."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout.split()


@pytest.mark.slow
def test_losers_that_still_run_at_shutdown_are_silent_and_hold_nothing_up():
    code = """
        import time
        from redouble.hedging import hedge

        calls = []

        @hedge(after=0.0, attempts=4)
        def fetch():
            calls.append(1)
            if len(calls) == 4:
                return "page"
            while True:
                time.sleep(0.001)

        print(fetch())
    """
    start = time.monotonic()
    assert run(code) == ["page"]
    assert time.monotonic() - start < 30


@pytest.mark.slow
def test_a_hedged_function_works_in_atexit_and_while_modules_are_torn_down():
    code = """
        import atexit
        from redouble.hedging import hedge

        @hedge(after=0.0)
        def fetch(page):
            return page

        class Last:
            def __init__(self):
                self.fetch, self.print = fetch, print

            def __del__(self):
                self.print(self.fetch("del"))

        last = Last()
        atexit.register(lambda: print(fetch("atexit")))
        print(fetch("main"))
    """
    assert run(code) == ["main", "atexit", "del"]


@pytest.mark.slow
def test_a_loser_that_still_runs_when_its_loop_ends_is_silent():
    code = """
        import asyncio, logging
        from redouble.hedging import hedge

        logging.disable()  # that it is left behind is said there
        calls = []

        @hedge(after=0.0, grace=0.0)
        async def fetch():
            calls.append(1)
            if len(calls) == 2:
                return "page"
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await asyncio.sleep(60)

        print(asyncio.run(fetch()))
    """
    assert run(code) == ["page"]


# trio, and anyio on both


@pytest.fixture
def in_trio():
    """Runs an async function on trio's own virtual time."""
    trio = pytest.importorskip("trio", reason="the extra 'loops' is not installed")
    testing = pytest.importorskip("trio.testing")

    def run(main):
        return trio.run(main, clock=testing.MockClock(autojump_threshold=0))

    return run


class TrioScript:
    """As `Script`, on trio."""

    def __init__(self, *lines):
        self.lines = lines
        self.starts = []
        self.cancelled = []

    async def __call__(self):
        import trio

        number = len(self.starts) + 1
        seconds, outcome = self.lines[number - 1]
        self.starts.append(trio.current_time())
        try:
            await trio.sleep(seconds)
        except trio.Cancelled:
            self.cancelled.append(number)
            raise
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


def test_trio_tasks_are_hedged_alike(in_trio):
    import trio

    async def main():
        start = trio.current_time()
        script = TrioScript(*[(60.0, "late")] * 3, (0.25, "page"))
        assert await hedged(script, after=0.5, attempts=4)() == "page"
        assert [at - start for at in script.starts] == pytest.approx([0.0, 0.5, 1.0, 1.5])
        assert sorted(script.cancelled) == [1, 2, 3]
        assert trio.current_time() - start == pytest.approx(1.75)
        start = trio.current_time()
        script = TrioScript((0.25, TimeoutError("slow")), (60.0, "late"), (0.25, "page"))
        assert await hedged(script, attempts=3)() == "page"
        assert [at - start for at in script.starts] == pytest.approx([0.0, 0.25, 1.25])
        assert await hedged(TrioScript((0.5, "page")))() == "page"

    in_trio(main)


def test_on_trio_the_exception_that_comes_out_is_the_one_of_the_function(in_trio):
    async def main():
        first = TimeoutError("first")
        with pytest.raises(TimeoutError) as caught:
            await hedged(TrioScript((3.0, first), (0.5, TimeoutError("second"))), name="fetch")()
        assert caught.value is first
        assert caught.value.__context__ is None
        assert first.__notes__ == [
            "redouble: 2 attempts of fetch failed; this was attempt 1\n  attempt 2: TimeoutError: second"
        ]
        for error in (
            ExceptionGroup("many", [ValueError("no")]),
            StopAsyncIteration("end"),
            SystemExit("stop"),
        ):
            with pytest.raises(type(error)) as other:
                await hedged(TrioScript((9.0, "late"), (0.5, error)))()
            assert other.value is error

    in_trio(main)


def test_a_trio_cancellation_from_outside_ends_all_attempts_and_is_never_caught(in_trio):
    import trio

    async def main():
        script = TrioScript(*[(60.0, "late")] * 3)
        with trio.move_on_after(1.5) as scope:
            try:
                await hedged(script, attempts=3)()
            except trio.Cancelled as cancelled:
                assert cancelled.__context__ is None
                raise
        assert scope.cancelled_caught
        assert sorted(script.cancelled) == [1, 2]

    in_trio(main)


def test_an_interrupt_in_the_waiting_trio_task_comes_out_alone(in_trio, monkeypatch):
    import trio

    class Broken:
        async def wait(self):
            await trio.sleep(0.5)
            raise KeyboardInterrupt

    async def main():
        script = TrioScript((60.0, "late"))
        monkeypatch.setattr(trio, "Event", Broken)
        with pytest.raises(KeyboardInterrupt):
            await hedged(script)()
        assert script.cancelled == [1]

    in_trio(main)


def test_trio_tasks_wait_for_a_server_that_says_when(in_trio):
    import trio

    async def main():
        start = trio.current_time()
        script = TrioScript((0.5, Told(Retry_After="7")), (0.5, "page"))
        assert await hedged(script)() == "page"
        assert [at - start for at in script.starts] == pytest.approx([0.0, 7.5])

    in_trio(main)


def test_on_trio_each_attempt_has_a_copy_of_the_context_and_ends_at_the_deadline(in_trio):
    import trio

    async def main():
        seen = []

        @hedge(after=1.0, attempts=9)
        async def fetch():
            seen.append(where.get())
            where.set("in an attempt")
            await trio.sleep(60.0)

        where.set("at the caller")
        start = trio.current_time()
        with pytest.raises(DeadlineExceeded):
            await Policy(deadline=2.5, clock=trio.current_time)(fetch)()
        assert seen == ["at the caller"] * 3
        assert trio.current_time() - start == pytest.approx(2.5)

    in_trio(main)


@pytest.mark.usefixtures("nobody_logs")
def test_on_trio_arguments_and_exceptions_die_by_reference_count(in_trio):
    import trio

    async def main():
        watched = []

        @hedge(after=60.0)
        async def fetch(payload):
            await trio.sleep(0.5)
            raise failure(watched)

        payload = Payload()
        watched.append(weakref.ref(payload))
        with contextlib.suppress(Failure):
            await fetch(payload)
        del payload
        await trio.sleep(0.5)
        assert len(watched) == 3
        assert [ref() for ref in watched if ref() is not None] == []

        @hedge(after=0.5)
        async def slow(payload):
            await trio.sleep(60.0)

        payload = Payload()
        watched.append(weakref.ref(payload))
        with trio.move_on_after(1.5):
            await slow(payload)
        del payload
        await trio.sleep(0.5)
        assert watched[-1]() is None

    with without_collector():
        in_trio(main)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_anyio_cancel_scope_ends_a_hedge_on_either_loop(backend):
    pytest.importorskip(backend)
    anyio = pytest.importorskip("anyio", reason="the extra 'loops' is not installed")
    cleaned = []

    @hedge(after=0.01)
    async def fetch():
        try:
            await anyio.sleep(60)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.01)
            cleaned.append(1)

    async def main():
        with anyio.move_on_after(0.1) as scope:
            await fetch()
        assert scope.cancelled_caught
        assert cleaned == [1, 1]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        anyio.run(main, backend=backend)
