"""When each attempt of a hedged call starts, how the call ends, and which events it sends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from datetime import timedelta

import pytest

from conftest import loop_time
from redouble import retry
from redouble.backoff import fixed
from redouble.budget import TokenBudget
from redouble.events import Hedged, log_to
from redouble.hedging import hedge
from support.hedging import Script, Told, hedged, ours


def test_a_quick_first_attempt_is_the_only_one(virtual):
    async def main():
        script = Script((0.5, "page"))
        assert await hedged(script)() == "page"
        assert (script.starts, loop_time()) == ([0.0], 0.5)

    virtual(main)


def test_the_first_answer_wins_and_the_others_are_cancelled_and_awaited_before_it_is_returned(virtual):
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


def test_where_all_fail_the_exception_of_the_first_attempt_is_raised_with_a_note_about_the_others(virtual):
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


def test_a_wait_beyond_max_retry_after_is_not_made(virtual):
    async def main():
        script = Script((0.5, Told(Retry_After="3600")), (0.5, "second"))
        with pytest.raises(Told):
            await hedged(script)()
        assert (script.starts, loop_time()) == ([0.0], 0.5)

    virtual(main)


def test_running_attempts_are_waited_for_when_a_server_asks_for_too_long_a_wait(virtual):
    async def main():
        script = Script((5.0, "first"), (0.5, Told(Retry_After="10")), (0.5, "third"))
        assert await hedged(script, attempts=3, max_retry_after=9)() == "first"
        assert script.starts == [0.0, 1.0]

    virtual(main)


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
    assert told == [
        ("hedging fetch with attempt 2 after 1.00 s", "fetch", 2),
        ("hedging fetch with attempt 3 after 1.50 s: TimeoutError: slow", "fetch", 3),
    ]


def test_a_hedge_carries_the_arguments_and_the_failure_that_made_it_due(virtual):
    seen, kept = [], []

    def look(event):
        seen.append((event.attempt, event.error, event.args, event.kwargs))
        kept.append(event)

    async def main():
        slow = TimeoutError("slow")
        script = Script((9.0, "late"), (0.5, slow), (0.5, "page"))

        @hedge(after=1.0, attempts=3, listeners=[look])
        async def fetch(*args, **kwargs):
            return await script()

        await fetch("a", user=7)
        assert seen == [(2, None, ("a",), {"user": 7}), (3, slow, ("a",), {"user": 7})]
        assert [(event.error, event.args, event.kwargs) for event in kept] == [(None, None, None)] * 2

    virtual(main)


def test_a_template_may_say_how_many_attempts_a_hedge_made_and_may_make(virtual, caplog):
    async def main():
        script = Script((9.0, "late"), (0.5, "page"))
        told = log_to("app", template="%(name)s %(attempt_of)s, %(attempts)s")
        await hedged(script, attempts=3, listeners=[told], name="fetch")()

    with caplog.at_level(logging.INFO, "app"):
        virtual(main)
    assert [record.message for record in caplog.records if record.name == "app"] == [
        "fetch 2 of 3, 2 attempts in 1.0 s"
    ]


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
    monkeypatch.setattr("redouble.events.logger_for", lambda chosen: None)
    monkeypatch.setattr("redouble.hedging._race.Hedged", None)

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
