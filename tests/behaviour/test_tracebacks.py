"""Tracebacks: your own frames, at most two of ours for each layer, and no context that was not there."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import traceback
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from conftest import Flavour, loop_time
from redouble import DeadlineExceeded, Policy, Rule, current_attempt, retry, retrying
from redouble._engine import first
from redouble.backoff import exponential
from redouble.breaker import CircuitBreaker
from redouble.context import outgoing_headers
from redouble.dead_letters import DeadLetters
from redouble.testing import FakeClock

if TYPE_CHECKING:
    from pathlib import Path


def steady(clock: FakeClock, **fields: Any) -> Policy:
    return Policy(backoff=exponential, clock=clock, sleep=clock.sleep).replace(**fields)


def notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", []))


# Tracebacks


def test_the_traceback_ends_in_the_users_own_line(flavour: Flavour, clock: FakeClock) -> None:
    def fetch() -> None:
        raise TimeoutError("here")

    with pytest.raises(TimeoutError) as caught:
        flavour.call(steady(clock, attempts=2), flavour.function(fetch))
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "fetch"


@pytest.mark.parametrize("fields", [{}, {"deadline": 1e9}, {"sleep": None, "base": 0}])
def test_one_exception_object_gathers_the_frames_of_a_few_attempts_and_not_of_all(
    flavour: Flavour, clock: FakeClock, fields: dict[str, Any]
) -> None:
    with pytest.raises(TimeoutError) as caught:
        flavour.call(steady(clock, attempts=30, **fields), flavour.scripted(*[TimeoutError("the same")] * 30))
    assert len(traceback.extract_tb(caught.value.__traceback__)) < 2 * 30


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{}, {"deadline": 1e9}])
def test_one_exception_object_raised_again_and_again_keeps_a_short_traceback(
    flavour: Flavour, clock: FakeClock, fields: dict[str, Any]
) -> None:
    def length_after(attempts: int, objects: int = 1) -> int:
        policy = steady(clock, attempts=attempts, **fields)
        errors = [TimeoutError("the same") for _ in range(objects)] * attempts
        with pytest.raises(TimeoutError) as caught:
            flavour.call(policy, flavour.scripted(*errors[:attempts]))
        return len(traceback.extract_tb(caught.value.__traceback__))

    assert length_after(400) < length_after(30) + 30
    assert length_after(400, objects=20) < 100


def test_a_call_inside_an_except_block_leaves_the_users_context_alone(
    flavour: Flavour, clock: FakeClock
) -> None:
    try:
        raise KeyError("outer")
    except KeyError as outer:
        with pytest.raises(TimeoutError) as caught:
            flavour.call(steady(clock, attempts=2), flavour.scripted(TimeoutError(), TimeoutError()))
        if not flavour.is_async:
            assert caught.value.__context__ is outer


def test_a_zero_base_never_waits_but_lets_the_loop_run() -> None:
    ticks: list[int] = []

    async def main() -> None:
        async def ticker() -> None:
            while True:
                ticks.append(1)
                await asyncio.sleep(0)

        task = asyncio.create_task(ticker())
        fetch = Flavour("async").scripted(*[TimeoutError()] * 5, "page")
        assert await Policy(base=0, attempts=6)(fetch)() == "page"
        task.cancel()

    asyncio.run(main())
    assert len(ticks) >= 5


def is_freed(watch: list[Any], flavour: Flavour, call: Any, *errors: type[BaseException]) -> bool:
    """Make a call that fails with one of these errors. Return whether the object is gone without the collector."""

    # Caught close by: asyncio's own frames hold an error that a task raises.
    async def async_call() -> None:
        with contextlib.suppress(*errors):
            await call()

    def sync_call() -> None:
        with contextlib.suppress(*errors):
            call()

    gc.disable()
    try:
        flavour.run(async_call if flavour.is_async else sync_call)
        return watch[0]() is None
    finally:
        gc.enable()


def failing_callback(error: Exception) -> None:
    raise LookupError("broken")


@pytest.mark.parametrize(
    "fields",
    [{"fallback": failing_callback}, {"rules": {TimeoutError: Rule(recover=failing_callback)}}],
    ids=["fallback", "recover"],
)
def test_nothing_of_a_call_outlives_it_where_a_callback_has_failed(
    flavour: Flavour, clock: FakeClock, fields: dict[str, Any]
) -> None:
    class Argument:
        pass

    def fail(argument: Argument) -> None:
        raise TimeoutError("slow")

    watch: list[weakref.ref[Argument]] = []

    def given() -> Argument:
        argument = Argument()
        watch.append(weakref.ref(argument))
        return argument

    decorated = steady(clock, attempts=2, **fields)(flavour.function(fail))

    assert is_freed(watch, flavour, lambda: decorated(given()), TimeoutError, LookupError)


@pytest.mark.parametrize("ends", ["in a block", "between two", "with a letter"])
def test_nothing_of_a_block_outlives_its_call(
    flavour: Flavour, clock: FakeClock, tmp_path: Path, ends: str
) -> None:
    class Local:
        pass

    watch: list[weakref.ref[Local]] = []

    def fail() -> None:
        local = Local()
        watch.append(weakref.ref(local))
        raise TimeoutError("slow")

    policy = steady(clock, deadline=5.0, sleep=lambda seconds: clock.advance(9.0))
    if ends == "in a block":
        policy = policy.replace(deadline=0.5)
    if ends == "with a letter":
        policy = policy.replace(attempts=1, dead_letters=DeadLetters(tmp_path / "letters.db"))

    async def async_block() -> None:
        async for attempt in retrying(policy):
            async with attempt:
                fail()

    def block() -> None:
        for attempt in retrying(policy):
            with attempt:
                fail()

    assert is_freed(
        watch, flavour, async_block if flavour.is_async else block, TimeoutError, DeadlineExceeded
    )


@pytest.mark.parametrize(
    "fields", [{}, {"breaker": CircuitBreaker()}, {"deadline": 9.0}], ids=["plain", "guarded", "timed"]
)
def test_no_frame_outlives_a_call_that_is_interrupted_right_after_its_first_failure(
    flavour: Flavour, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    class Local:
        """Lives as long as the frame that holds it."""

    watch: list[weakref.ref[Local]] = []

    def fail() -> None:
        local = Local()
        watch.append(weakref.ref(local))
        raise TimeoutError("slow")

    def interrupt(*args: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(first, "Call", interrupt)
    decorated = retry(**fields)(flavour.function(fail))

    assert is_freed(watch, flavour, decorated, KeyboardInterrupt)


@pytest.mark.slow
def test_fifteen_hundred_failures_with_a_zero_base_wait_zero_each_time(
    flavour: Flavour, clock: FakeClock
) -> None:
    policy = Policy(base=0, attempts=1501, clock=clock, sleep=clock.sleep)
    flavour.call(policy, flavour.scripted(*[TimeoutError()] * 1500, "page"))
    assert clock.waits == [0.0] * 1500


@pytest.mark.slow
def test_without_a_cap_the_wait_saturates_at_what_the_platform_can_sleep(
    flavour: Flavour, clock: FakeClock
) -> None:
    import threading

    policy = steady(clock, base=1e-9, cap=float("inf"), attempts=2001)
    flavour.call(policy, flavour.scripted(*[TimeoutError()] * 2000, "page"))
    assert max(clock.waits) == threading.TIMEOUT_MAX


def test_a_backoff_that_answers_nonsense_never_reaches_the_sleep(flavour: Flavour, clock: FakeClock) -> None:
    for nonsense in (float("nan"), float("inf"), -1.0, "soon", None):
        policy = Policy(backoff=lambda *a, answer=nonsense, **k: answer, clock=clock, sleep=clock.sleep)
        assert flavour.call(policy, flavour.scripted(TimeoutError(), "page")) == "page"
    assert all(0.0 <= wait <= 1.0 for wait in clock.waits)


def test_nothing_is_current_after_a_call(flavour: Flavour, clock: FakeClock) -> None:
    with pytest.raises(TimeoutError):
        flavour.call(steady(clock, deadline=100), flavour.scripted(*[TimeoutError()] * 4))
    assert current_attempt() is None


def test_a_first_attempt_under_a_deadline_sends_its_number_and_its_time(flavour: Flavour) -> None:
    headers = flavour.call(Policy(deadline=9.0, clock=lambda: 5.0), flavour.function(outgoing_headers))
    assert headers == {"X-Retry-Attempt": "1", "X-Request-Timeout-Ms": "9000"}


def test_an_attempt_is_cut_off_by_the_shorter_of_its_timeout_and_the_deadline(virtual: Any) -> None:
    async def main() -> None:
        policy = Policy(timeout=10.0, deadline=5.0, clock=loop_time)
        with pytest.raises(DeadlineExceeded) as caught:
            await policy.call(asyncio.sleep, 60.0)
        assert str(caught.value.__cause__) == "attempt 1 was cut off by the deadline after 5 s"

    virtual(main)


def test_a_call_through_a_scope_that_is_closed_leaves_no_deadline_behind(clock: FakeClock) -> None:
    async def main() -> dict[str, str]:
        with retrying(deadline=9.0, clock=clock) as call:
            pass
        assert await call(Flavour("async").scripted("page")) == "page"
        return outgoing_headers()

    assert asyncio.run(main()) == {}


def test_a_deadline_error_has_the_last_error_as_its_cause(flavour: Flavour, clock: FakeClock) -> None:
    last = TimeoutError("second")
    with pytest.raises(DeadlineExceeded) as caught:
        flavour.call(steady(clock, deadline=2.5, name="fetch"), flavour.scripted(TimeoutError(), last))
    assert caught.value.__cause__ is last
    assert caught.value.last_error is last
    assert (caught.value.attempts, caught.value.elapsed) == (2, 1.0)
    assert str(caught.value) == (
        "gave up on fetch after 2 attempts in 1.0 s: the next wait (2.0 s) would pass the deadline of 2.5 s"
    )


def test_switched_off_under_a_deadline_a_refused_result_passes(flavour: Flavour, clock: FakeClock) -> None:
    policy = steady(clock, enabled=False, until=bool, deadline=9.0)
    assert flavour.call(policy, flavour.scripted("")) == ""


def test_an_error_whose_notes_cannot_be_read_still_comes_out(flavour: Flavour, clock: FakeClock) -> None:
    class Secretive(TimeoutError):
        def __getattribute__(self, name: str) -> Any:
            if name == "__notes__":
                raise RuntimeError("no notes")
            return super().__getattribute__(name)

    error = Secretive()
    with pytest.raises(Secretive) as caught:
        flavour.call(steady(clock, attempts=1), flavour.scripted(error))
    assert caught.value is error


def test_an_exception_of_a_class_that_has_no_name_still_comes_out(clock: FakeClock) -> None:
    class Meta(type):
        @property
        def __name__(cls) -> str:  # type: ignore[override]
            raise RuntimeError("no name")

    class Nameless(TimeoutError, metaclass=Meta):
        pass

    error = Nameless("slow")
    caught: list[BaseException] = []
    try:
        steady(clock, attempts=2)(Flavour("sync").scripted(TimeoutError(), error))()
    except BaseException as out:
        caught.append(out)
    assert caught[0] is error
    assert "attempt 2: <unnamed>: slow" in notes(error)[0]


def test_an_exception_whose_attributes_raise_may_come_again_and_again(clock: FakeClock) -> None:
    class Closed(TimeoutError):
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(name)

        def __setattr__(self, name: str, value: object) -> None:
            raise RuntimeError(name)

    caught: list[BaseException] = []
    try:
        steady(clock, attempts=30)(Flavour("sync").scripted(*[Closed("slow")] * 30))()
    except BaseException as out:
        caught.append(out)
    assert type(caught[0]) is Closed


def test_the_waits_of_a_rule_begin_at_their_own_beginning(flavour: Flavour, clock: FakeClock) -> None:
    policy = steady(clock, attempts=6, rules={KeyError: Rule(base=10.0, cap=1000.0)})
    script = [TimeoutError(), TimeoutError(), KeyError(), KeyError(), "page"]
    assert flavour.call(policy, flavour.scripted(*script)) == "page"
    assert clock.waits == [1.0, 2.0, 10.0, 20.0]


def test_the_waits_of_a_rule_without_any_of_its_own_are_the_policys(
    flavour: Flavour, clock: FakeClock
) -> None:
    policy = steady(clock, attempts=6, rules={KeyError: Rule(attempts=3)})
    assert flavour.call(policy, flavour.scripted(TimeoutError(), KeyError(), KeyError(), "page")) == "page"
    assert clock.waits == [1.0, 2.0, 4.0]


def test_a_rule_for_an_expired_token_works_for_a_post_too(flavour: Flavour, clock: FakeClock) -> None:
    from types import SimpleNamespace

    class Unauthorized(Exception):
        request = SimpleNamespace(method="POST", headers={})
        response = SimpleNamespace(status_code=401, headers={})

    renewed: list[object] = []
    policy = steady(clock, rules={401: Rule(attempts=2, base=0.0, recover=renewed.append)})
    assert flavour.call(policy, flavour.scripted(Unauthorized(), "page")) == "page"
    assert len(renewed) == 1


def test_a_group_that_may_not_be_repeated_names_the_request_that_is_to_blame(
    flavour: Flavour, clock: FakeClock
) -> None:
    from types import SimpleNamespace

    class Broken(Exception):
        def __init__(self, method: str) -> None:
            super().__init__(method)
            self.request = SimpleNamespace(method=method, headers={})
            self.status_code = 500

    group = ExceptionGroup("both", [Broken("GET"), Broken("POST")])
    with pytest.raises(ExceptionGroup) as caught:
        flavour.call(steady(clock), flavour.scripted(group))
    assert "repeating this POST might act twice" in notes(caught.value)[0]


def test_a_wait_beyond_all_patience_ends_the_call_at_once_and_is_named(
    flavour: Flavour, clock: FakeClock
) -> None:
    class Busy(Exception):
        status_code = 503
        headers = {"Retry-After": "1000000000"}  # noqa: RUF012

    fetch = flavour.scripted(error := Busy("not today"), "page")
    with pytest.raises(Busy) as caught:
        flavour.call(steady(clock), fetch)
    assert caught.value is error
    assert (len(fetch.calls), clock.waits) == (1, [])
    assert "asked for a wait of 1000000000.0 s, above the max_retry_after of 120 s" in notes(error)[0]


def test_a_function_whose_module_has_no_name_raises_its_own_error():
    space = {"__name__": None}
    exec("def fetch():\n    raise ConnectionResetError('reset')", space)
    with pytest.raises(ConnectionResetError):
        retry(attempts=2, base=0.0)(space["fetch"])()
