"""`quantile`: a delay taken from recent latencies."""

from __future__ import annotations

import pickle
from datetime import timedelta

import pytest

from conftest import loop_time
from redouble.hedging import hedge, quantile
from support.hedging import Script, hedged


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
