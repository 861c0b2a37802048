"""The budget of a hedged call."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from conftest import loop_time
from redouble.budget import RatioBudget, TokenBudget
from support.hedging import Ledger, Script, hedged, ours


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
        budget._full = True
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
        budget._full = True
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
        budget._full = True
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
