"""The behaviour of a call, held on both drivers."""

from __future__ import annotations

import _thread
import asyncio
import time
import warnings
from typing import Any

import pytest

from conftest import Flavour
from redouble import Cause, Policy, ResultRejected, Rule, retry
from redouble._engine import flow as _flow
from redouble.backoff import exponential, fixed
from redouble.events import Expired, GaveUp, Reason, Recovered, Retrying
from redouble.testing import FakeClock
from support.errors import Nasty


def steady(clock: FakeClock, **fields: Any) -> Policy:
    return Policy(backoff=exponential, clock=clock, sleep=clock.sleep).replace(**fields)


def notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", []))


def test_a_success_is_returned_at_once(flavour: Flavour, clock: FakeClock) -> None:
    fetch = flavour.scripted("page")
    assert flavour.call(steady(clock), fetch, "/", retries=1) == "page"
    assert fetch.calls == [(("/",), {"retries": 1})]
    assert clock.waits == []


def test_a_transient_failure_is_retried_with_the_same_arguments(flavour: Flavour, clock: FakeClock) -> None:
    fetch = flavour.scripted(TimeoutError(), ConnectionResetError(), "page")
    assert flavour.call(steady(clock), fetch, "/", depth=2) == "page"
    assert fetch.calls == [(("/",), {"depth": 2})] * 3
    assert clock.waits == [1.0, 2.0]


def test_a_falsy_result_is_a_result(flavour: Flavour, clock: FakeClock) -> None:
    for value in (None, 0, "", [], False):
        assert flavour.call(steady(clock), flavour.scripted(TimeoutError(), value)) == value


def test_giving_up_raises_the_last_exception_itself(flavour: Flavour, clock: FakeClock) -> None:
    errors = [TimeoutError(f"slow {n}") for n in range(4)]
    cause = ValueError("why")
    errors[-1].__cause__ = cause
    with pytest.raises(TimeoutError) as caught:
        flavour.call(steady(clock), flavour.scripted(*errors))
    assert caught.value is errors[-1]
    assert caught.value.__cause__ is cause
    assert caught.value.__context__ is None
    assert clock.waits == [1.0, 2.0, 4.0]


def test_giving_up_tells_the_story_in_one_note(flavour: Flavour, clock: FakeClock) -> None:
    script = [
        TimeoutError("slow"),
        ConnectionResetError(104, "reset"),
        TimeoutError(),
        TimeoutError("slow again"),
    ]
    with pytest.raises(TimeoutError) as caught:
        flavour.call(steady(clock, name="fetch"), flavour.scripted(*script))
    assert notes(caught.value) == [
        "redouble: gave up on fetch after 4 attempts, 7.0 s after the first failure: no attempts left\n"
        "  attempt 1: TimeoutError: slow; waited 1.00 s\n"
        "  attempt 2: ConnectionResetError: [Errno 104] reset; waited 2.00 s\n"
        "  attempt 3: TimeoutError; waited 4.00 s\n"
        "  attempt 4: TimeoutError: slow again"
    ]


def test_under_a_deadline_the_story_counts_from_the_beginning(flavour: Flavour, clock: FakeClock) -> None:
    def slow() -> None:
        clock.advance(3.0)
        raise TimeoutError("slow")

    with pytest.raises(TimeoutError) as caught:
        flavour.call(steady(clock, attempts=2, deadline=60, name="fetch"), flavour.function(slow))
    first_line = notes(caught.value)[0].splitlines()[0]
    assert first_line == "redouble: gave up on fetch after 2 attempts in 7.0 s: no attempts left"


def test_a_long_story_keeps_its_beginning_and_its_end(flavour: Flavour, clock: FakeClock) -> None:
    with pytest.raises(TimeoutError) as caught:
        flavour.call(
            steady(clock, attempts=25), flavour.scripted(*[TimeoutError(str(n)) for n in range(1, 26)])
        )
    lines = notes(caught.value)[0].splitlines()[1:]
    told = [line.partition(":")[0].strip() for line in lines]
    assert told == [
        *(f"attempt {n}" for n in (1, 2, 3)), "(15 more)", *(f"attempt {n}" for n in range(19, 26)),
    ]  # fmt: skip


def test_a_failure_that_was_never_retryable_gets_no_note(flavour: Flavour, clock: FakeClock) -> None:
    with pytest.raises(ValueError, match="bad") as caught:
        flavour.call(steady(clock), flavour.scripted(ValueError("bad")))
    assert notes(caught.value) == []


def test_a_permanent_failure_after_retries_tells_what_came_before(flavour: Flavour, clock: FakeClock) -> None:
    with pytest.raises(ValueError) as caught:
        flavour.call(steady(clock, name="fetch"), flavour.scripted(TimeoutError(), ValueError("bad")))
    assert "after 2 attempts" in notes(caught.value)[0]
    assert "attempt 1: TimeoutError; waited 1.00 s" in notes(caught.value)[0]


def test_a_note_is_replaced_not_stacked(flavour: Flavour, clock: FakeClock) -> None:
    error = TimeoutError("always the same")
    inner = steady(clock, attempts=2, name="inner")(flavour.scripted(*[error] * 8))
    with pytest.raises(TimeoutError) as caught:
        flavour.call(steady(clock, attempts=2, name="outer", nested="independent"), inner)
    assert len(notes(caught.value)) == 1
    assert notes(caught.value)[0].startswith("redouble: gave up on outer after 2 attempts")


def test_notes_of_others_stay(flavour: Flavour, clock: FakeClock) -> None:
    error = TimeoutError()
    error.add_note("seen at the gateway")
    with pytest.raises(TimeoutError) as caught:
        flavour.call(steady(clock, attempts=1), flavour.scripted(error))
    assert notes(caught.value)[0] == "seen at the gateway"
    assert len(notes(caught.value)) == 2


def test_an_error_that_takes_no_note_is_still_raised(flavour: Flavour, clock: FakeClock) -> None:
    class Stubborn(TimeoutError):
        def add_note(self, note: str) -> None:
            raise RuntimeError("no notes")

    class Strange(TimeoutError):
        __notes__ = "not a list"  # type: ignore[assignment]

    for error in (Stubborn(), Strange()):
        with pytest.raises(TimeoutError) as caught:
            flavour.call(steady(clock, attempts=1, on=TimeoutError), flavour.scripted(error))
        assert caught.value is error


def test_one_attempt_is_one_call_and_the_error_itself(flavour: Flavour, clock: FakeClock) -> None:
    fetch = flavour.scripted(error := TimeoutError("slow"))
    with pytest.raises(TimeoutError) as caught:
        flavour.call(steady(clock, attempts=1), fetch)
    assert caught.value is error
    assert len(fetch.calls) == 1
    assert clock.waits == []


def test_an_exception_that_cannot_print_itself_is_told_by_a_placeholder(
    flavour: Flavour, clock: FakeClock
) -> None:
    told: list[Any] = []
    policy = steady(clock, attempts=2, on=Nasty, listeners=[told.append], name="fetch")
    fetch = policy(flavour.scripted(Nasty(), Nasty()))
    story: list[str] = []

    # Caught close by: pytest and asyncio would print and compare what refuses to be.
    def sync_call() -> None:
        try:
            fetch()
        except Nasty as error:
            story.extend(notes(error))

    async def async_call() -> None:
        try:
            await fetch()
        except Nasty as error:
            story.extend(notes(error))

    flavour.run(async_call if flavour.is_async else sync_call)
    assert "attempt 1: Nasty: <unprintable Nasty>" in story[0]
    assert [event.error_message for event in told] == ["<unprintable Nasty>"] * 2


def test_an_exception_that_cannot_be_copied_is_raised_as_the_same_object(
    flavour: Flavour, clock: FakeClock
) -> None:
    class Demanding(ConnectionError):
        __slots__ = ("a", "b", "c")

        def __init__(self, a: int, b: int, c: int) -> None:
            self.a, self.b, self.c = a, b, c

        def __reduce__(self) -> Any:
            raise TypeError("not to be pickled")

    error = Demanding(1, 2, 3)
    with pytest.raises(Demanding) as caught:
        flavour.call(steady(clock, attempts=2), flavour.scripted(Demanding(1, 2, 3), error))
    assert caught.value is error


def test_a_predicate_that_raises_lets_the_calls_own_error_out_and_is_named(
    flavour: Flavour, clock: FakeClock
) -> None:
    error = TimeoutError("slow")

    def broken(error: Exception) -> bool:
        raise KeyError("broken predicate")

    with pytest.raises(TimeoutError) as caught:
        flavour.call(steady(clock, on=broken), flavour.scripted(error))
    assert caught.value is error
    assert "KeyError: 'broken predicate'" in notes(caught.value)[0]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_an_interrupt_is_never_retried_whatever_the_predicate_says(
    flavour: Flavour, clock: FakeClock, interrupt: type[BaseException]
) -> None:
    told: list[object] = []
    fetch = flavour.scripted(interrupt())
    policy = steady(clock, on=lambda error: True, listeners=[told.append])
    with pytest.raises(interrupt):
        flavour.call(policy, fetch)
    assert len(fetch.calls) == 1
    assert (clock.waits, told) == ([], [])


def test_a_group_that_holds_an_interrupt_is_never_retried(flavour: Flavour, clock: FakeClock) -> None:
    inner = BaseExceptionGroup("inner", [asyncio.CancelledError(), TimeoutError()])
    fetch = flavour.scripted(BaseExceptionGroup("outer", [TimeoutError(), inner]))
    with pytest.raises(BaseExceptionGroup):
        flavour.call(steady(clock, on=lambda error: True), fetch)
    assert len(fetch.calls) == 1


def test_an_interrupt_during_the_wait_is_not_reported_as_caused_by_the_failure(flavour: Flavour) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        flavour.call(Policy(sleep=interrupted), flavour.scripted(TimeoutError()))
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None


# Results


def test_a_result_that_until_refuses_is_retried(flavour: Flavour, clock: FakeClock) -> None:
    poll = flavour.scripted(None, None, "ready")
    assert flavour.call(steady(clock, until=bool), poll) == "ready"
    assert clock.waits == [1.0, 2.0]


def test_a_result_refused_to_the_end_is_rejected_with_the_result(flavour: Flavour, clock: FakeClock) -> None:
    with pytest.raises(ResultRejected) as caught:
        flavour.call(steady(clock, attempts=2, until=bool, name="poll"), flavour.scripted(0, []))
    assert caught.value.result == []
    assert caught.value.attempts == 2
    assert str(caught.value) == (
        "gave up on poll after 2 attempts, 1.0 s after the first failure: no attempts left; the result was refused"
    )
    assert notes(caught.value) == [
        "redouble: gave up on poll, attempt by attempt:\n"
        "  attempt 1: the result was refused; waited 1.00 s\n"
        "  attempt 2: the result was refused"
    ]


def test_a_refused_response_is_waited_for_as_its_server_asks(flavour: Flavour, clock: FakeClock) -> None:
    from redouble.classify import accepted

    busy = (503, {"Retry-After": "5"}, b"")
    fetch = flavour.scripted(busy, (404, {}, b"not here"))
    assert flavour.call(steady(clock, until=accepted), fetch) == (404, {}, b"not here")
    assert len(clock.waits) == 1
    assert 5.0 <= clock.waits[0] <= 6.0


def test_an_error_in_until_propagates_unretried(flavour: Flavour, clock: FakeClock) -> None:
    def broken(result: object) -> bool:
        raise TimeoutError("in until")

    fetch = flavour.scripted("page", "page")
    with pytest.raises(TimeoutError, match="in until"):
        flavour.call(steady(clock, until=broken), fetch)
    assert len(fetch.calls) == 1


def test_an_error_in_until_of_a_later_attempt_propagates_too(flavour: Flavour, clock: FakeClock) -> None:
    fetch = flavour.scripted(TimeoutError(), "page")
    with pytest.raises(ZeroDivisionError):
        flavour.call(steady(clock, until=lambda result: 1 / 0), fetch)
    assert len(fetch.calls) == 2


def test_failures_and_refused_results_share_the_attempts(flavour: Flavour, clock: FakeClock) -> None:
    fetch = flavour.scripted(TimeoutError(), None, TimeoutError(), None)
    with pytest.raises(ResultRejected) as caught:
        flavour.call(steady(clock, until=bool), fetch)
    assert caught.value.attempts == 4


def test_switched_off_by_a_flag_failures_and_results_pass_through(flavour: Flavour, clock: FakeClock) -> None:
    off = steady(clock, enabled=lambda: False, until=bool)
    with pytest.raises(TimeoutError) as caught:
        flavour.call(off, flavour.scripted(TimeoutError()))
    assert notes(caught.value) == []
    assert flavour.call(off, flavour.scripted("")) == ""


def test_switched_off_in_the_middle_the_last_result_passes(flavour: Flavour, clock: FakeClock) -> None:
    switch = iter([True, False])
    policy = steady(clock, enabled=lambda: next(switch), until=bool)
    assert flavour.call(policy, flavour.scripted(0, "")) == ""


# Rules


def test_recover_runs_after_the_wait_and_before_the_next_attempt(flavour: Flavour, clock: FakeClock) -> None:
    order: list[object] = []

    def refresh(error: Exception) -> None:
        order.append(("recover", str(error), clock.now))

    def fetch() -> str:
        order.append(("fetch", clock.now))
        if len(order) == 1:
            raise PermissionError("token expired")
        return "page"

    policy = steady(clock, rules={PermissionError: Rule(recover=refresh)})
    assert flavour.call(policy, flavour.function(fetch)) == "page"
    assert order == [("fetch", 0.0), ("recover", "token expired", 1.0), ("fetch", 1.0)]


def test_an_async_recover_is_awaited(clock: FakeClock) -> None:
    done: list[str] = []

    async def refresh(error: Exception) -> None:
        await asyncio.sleep(0)
        done.append(str(error))

    flavour = Flavour("async")
    policy = steady(clock, rules={Cause.timeout: Rule(recover=refresh)})
    assert flavour.call(policy, flavour.scripted(TimeoutError("slow"), "page")) == "page"
    assert done == ["slow"]


def test_a_coroutine_out_of_recover_in_a_sync_call_is_named_not_lost(clock: FakeClock) -> None:
    async def refresh(error: Exception) -> None: ...

    policy = steady(clock, rules={TimeoutError: Rule(recover=lambda error: refresh(error))})
    with pytest.raises(TimeoutError) as caught:
        policy.call(Flavour("sync").scripted(TimeoutError("slow"), "page"))
    assert (
        notes(caught.value)[0]
        .splitlines()[0]
        .endswith(" after 1 attempt: recover is async, which a sync call cannot await")
    )


def test_recover_that_raises_lets_the_calls_own_error_out_and_is_named(
    flavour: Flavour, clock: FakeClock
) -> None:
    error = TimeoutError("slow")
    told: list[Any] = []

    def refresh(error: Exception) -> None:
        raise LookupError("no token")

    policy = steady(clock, rules={TimeoutError: Rule(recover=refresh)}, listeners=[told.append], name="fetch")
    with pytest.raises(TimeoutError) as caught:
        flavour.call(policy, flavour.scripted(error, "page"))
    assert caught.value is error
    assert caught.value.__context__ is None
    assert notes(caught.value)[0].splitlines()[0] == (
        "redouble: gave up on fetch after 1 attempt: recover raised LookupError: no token"
    )
    assert [type(event) for event in told] == [Retrying, GaveUp]
    assert told[-1].reason is Reason.callback
    assert (told[-1].error_type, told[-1].error_message) == ("TimeoutError", "slow")


def test_recover_gets_a_refused_result_as_an_error(flavour: Flavour, clock: FakeClock) -> None:
    seen: list[Any] = []
    policy = steady(clock, until=lambda r: r[0] < 400, rules={401: Rule(attempts=2, recover=seen.append)})
    fetch = flavour.scripted((401, {}, b""), (200, {}, b"page"))
    assert flavour.call(policy, fetch)[2] == b"page"
    assert isinstance(seen[0], ResultRejected)
    assert seen[0].result == (401, {}, b"")


def test_a_rules_attempts_count_the_failures_of_that_rule(flavour: Flavour, clock: FakeClock) -> None:
    policy = steady(clock, attempts=9, backoff=fixed, rules={PermissionError: Rule(attempts=2)})
    script = [TimeoutError(), PermissionError("1"), TimeoutError(), PermissionError("2"), "page"]
    with pytest.raises(PermissionError, match="2") as caught:
        flavour.call(policy, flavour.scripted(*script))
    assert "no attempts left for PermissionError: its rule allows 2" in notes(caught.value)[0]


def test_recover_of_one_failure_is_not_run_for_the_next(flavour: Flavour, clock: FakeClock) -> None:
    seen: list[Any] = []
    policy = steady(clock, rules={PermissionError: Rule(recover=seen.append)})
    flavour.call(policy, flavour.scripted(PermissionError("expired"), TimeoutError(), "page"))
    assert [str(error) for error in seen] == ["expired"]


# Events


def test_a_call_that_recovers_tells_of_each_retry_and_of_its_end(flavour: Flavour, clock: FakeClock) -> None:
    told: list[Any] = []
    policy = steady(clock, listeners=[told.append], name="fetch")
    flavour.call(policy, flavour.scripted(TimeoutError("slow"), ConnectionResetError("reset"), "page"))
    assert told == [
        Retrying("fetch", attempt=1, delay=1.0, elapsed=0.0, cause=Cause.timeout, error_type="TimeoutError", error_message="slow"),
        Retrying("fetch", attempt=2, delay=2.0, elapsed=1.0, cause=Cause.disconnected, error_type="ConnectionResetError", error_message="reset"),
        Recovered("fetch", attempt=3, elapsed=3.0, cause=Cause.disconnected, error_type="ConnectionResetError", error_message="reset"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("script", "fields", "kind", "reason"),
    [
        ([ValueError()], {}, GaveUp, Reason.not_retryable),
        ([TimeoutError()] * 4, {}, GaveUp, Reason.attempts),
        ([TimeoutError()], {"attempts": 1}, GaveUp, Reason.attempts),
        ([TimeoutError()], {"idempotent": False}, GaveUp, Reason.not_idempotent),
        ([TimeoutError()] * 4, {"deadline": 2.0}, Expired, Reason.deadline),
        ([TimeoutError()], {"enabled": False}, GaveUp, Reason.disabled),
        ([None] * 4, {"until": bool}, GaveUp, Reason.attempts),
        ([None] * 4, {"until": bool, "deadline": 2.0}, Expired, Reason.deadline),
    ],
)
def test_a_call_that_fails_ends_with_exactly_one_terminal_event(
    flavour: Flavour, clock: FakeClock, script: list[Any], fields: dict[str, Any], kind: type, reason: Reason
) -> None:
    told: list[Any] = []
    with pytest.raises(Exception):
        flavour.call(steady(clock, listeners=[told.append], **fields), flavour.scripted(*script))
    assert [type(event) for event in told[:-1]] == [Retrying] * (len(told) - 1)
    assert type(told[-1]) is kind
    assert told[-1].reason is reason


def test_a_first_try_success_tells_nothing(flavour: Flavour, clock: FakeClock) -> None:
    told: list[Any] = []
    flavour.call(steady(clock, listeners=[told.append]), flavour.scripted("page"))
    assert told == []


def test_a_listener_that_calls_the_same_function_does_no_harm(flavour: Flavour, clock: FakeClock) -> None:
    calls: list[str] = []

    def body(name: str) -> str:
        calls.append(name)
        if name == "outer" and calls.count("outer") == 1:
            raise TimeoutError
        return name

    def again(event: object) -> None:
        retry(body)("inner")

    assert flavour.call(steady(clock, listeners=[again]), flavour.function(body), "outer") == "outer"
    assert calls == ["outer", "inner", "outer", "inner"]


# Waits of sync calls where they cannot be made as asked for


def test_an_async_sleep_in_a_sync_call_is_replaced_by_a_real_one_and_named_in_the_log(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def sleep(seconds: float) -> None: ...

    monkeypatch.setattr(time, "sleep", clock.sleep)
    policy = Policy(backoff=exponential, sleep=lambda seconds: sleep(seconds))
    assert policy.call(Flavour("sync").scripted(TimeoutError(), TimeoutError(), "page")) == "page"
    assert clock.waits == [1.0, 2.0]
    said = "sleep is async, which a sync call cannot await; time.sleep stands in (said once)"
    assert caplog.messages.count(said) == 1


def test_a_thousand_functions_that_block_an_event_loop_are_remembered_and_then_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_flow, "_warned", {f"fetch {number}" for number in range(999)})
    with pytest.warns(RuntimeWarning, match="the thousandth waits"):
        _flow.warn_blocking("the thousandth")
    assert len(_flow._warned) == 1000
    with pytest.warns(RuntimeWarning, match="one more waits"):
        _flow.warn_blocking("one more")
    assert _flow._warned == {"one more"}


def test_an_interrupt_in_a_hook_for_warnings_passes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_flow, "_warned", set())
    monkeypatch.setattr(warnings, "warn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _flow.warn_blocking("fetch")


def test_a_warning_names_the_caller_and_the_function_itself_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    levels: list[int] = []
    monkeypatch.setattr(_flow, "_warned", set())
    monkeypatch.setattr(warnings, "warn", lambda text, kind, stacklevel: levels.append(stacklevel))
    _flow.warn_blocking("here")
    _thread.start_new_thread(_flow.warn_blocking, ("a thread with no caller",))
    give_up = time.monotonic() + 60.0
    while len(levels) < 2 and time.monotonic() < give_up:
        time.sleep(0.001)
    assert levels == [2, 1]
