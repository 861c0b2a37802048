"""Calls with a fallback."""

from __future__ import annotations

import asyncio
import traceback

import pytest

from conftest import Flavour
from redouble import (
    CircuitOpen,
    Policy,
    retrying,
)
from redouble.breaker import CircuitBreaker
from redouble.bulkhead import Bulkhead
from redouble.dead_letters import DeadLetters
from redouble.policy import UNSET
from support.guarded import SLOW, BrokenBudget, Flavours, Interrupt, told


def test_a_fallback_stands_in_for_a_call_that_was_given_up_on(flavour, policy, heard):
    assert (
        flavour.call(policy.replace(fallback="old page", attempts=2), flavour.scripted(SLOW, SLOW))
        == "old page"
    )
    assert told(heard) == [("Retrying", None), ("GaveUp", "attempts")]


@pytest.mark.parametrize("value", [None, 0, "", False])
def test_any_value_may_be_a_fallback(flavour, policy, value):
    assert flavour.call(policy.replace(fallback=value, attempts=1), flavour.scripted(SLOW)) is value


def test_a_function_as_fallback_is_given_the_last_error_with_its_story(flavour, policy):
    last = ConnectionResetError("gone")
    given = []

    def fallback(error):
        given.append(error)
        return "old page"

    assert (
        flavour.call(policy.replace(fallback=fallback, attempts=2), flavour.scripted(SLOW, last))
        == "old page"
    )
    assert given == [last]
    assert "gave up on fetch after 2 attempts" in last.__notes__[0]


def test_a_function_as_fallback_may_answer_with_none(flavour, policy):
    assert (
        flavour.call(policy.replace(fallback=lambda error: None, attempts=1), flavour.scripted(SLOW)) is None
    )


def test_a_fallback_may_be_async_in_an_async_call(policy):
    async def fallback(error):
        await asyncio.sleep(0)
        return f"instead of {error}"

    async def fetch():
        raise SLOW

    guarded = policy.replace(fallback=fallback, attempts=1)
    assert asyncio.run(guarded.call(fetch)) == "instead of slow"
    with pytest.raises(TypeError, match=r"is sync, so fallback must be sync too"):
        guarded(lambda: "page")


def test_a_failure_that_was_never_retryable_has_no_fallback(flavour, policy):
    with pytest.raises(KeyError):
        flavour.call(policy.replace(fallback="old page"), flavour.scripted(KeyError("k")))


def test_a_fallback_stands_in_for_our_own_errors(flavour, policy, clock):
    guarded = policy.replace(fallback=lambda error: type(error).__name__)
    breaker = CircuitBreaker(clock=clock)
    breaker.open()
    assert flavour.call(guarded.replace(breaker=breaker), flavour.scripted("page")) == "CircuitOpen"
    full = Bulkhead(1)
    assert full.acquire()
    assert flavour.call(guarded.replace(bulkhead=full), flavour.scripted("page")) == "BulkheadFull"
    assert flavour.call(guarded.replace(deadline=0.5), flavour.scripted(SLOW)) == "DeadlineExceeded"
    assert flavour.call(guarded.replace(until=bool, attempts=1), flavour.scripted(0)) == "ResultRejected"
    assert (
        flavour.call(guarded, flavour.scripted(CircuitOpen("inner", name="x", retry_after=None)))
        == "CircuitOpen"
    )


def test_a_fallback_stands_in_where_time_was_up_before_the_first_attempt(flavour, policy, clock):
    with retrying(deadline=1.0, clock=clock, sleep=clock.sleep) as call:
        clock.advance(2.0)
        guarded = policy.replace(fallback=lambda error: type(error).__name__, deadline=9.0)
        assert call is not None
        if not flavour.is_async:
            assert guarded.call(flavour.scripted("page")) == "DeadlineExceeded"
        else:
            assert asyncio.run(guarded.call(flavour.scripted("page"))) == "DeadlineExceeded"


def test_a_fallback_stands_in_where_a_wait_takes_longer_than_it_said(flavour, policy, clock):
    def sleep(seconds):
        clock.advance(60.0)

    guarded = policy.replace(fallback=lambda error: type(error).__name__, deadline=9.0, sleep=sleep)
    assert flavour.call(guarded, flavour.scripted(SLOW)) == "DeadlineExceeded"


def test_a_fallback_stands_in_when_the_circuit_opens_during_the_wait(flavour, policy, clock):
    breaker = CircuitBreaker(clock=clock)

    def sleep(seconds):
        breaker.open()

    guarded = policy.replace(fallback=lambda error: type(error).__name__, breaker=breaker, sleep=sleep)
    assert flavour.call(guarded, flavour.scripted(SLOW)) == "TimeoutError"


@pytest.mark.parametrize(
    "fields", [{"enabled": False}, {"on": lambda error: 1 / 0}], ids=["switched off", "predicate"]
)
def test_what_passes_through_undecided_has_no_fallback(flavour, policy, fields):
    with pytest.raises(TimeoutError):
        flavour.call(policy.replace(fallback="old page", **fields), flavour.scripted(SLOW))


def test_a_failure_before_a_broken_recover_has_no_fallback(flavour, policy):
    def recover(error):
        raise KeyError("bug")

    with pytest.raises(TimeoutError) as caught:
        flavour.call(policy.replace(fallback="old page", recover=recover), flavour.scripted(SLOW))
    assert "recover raised KeyError" in caught.value.__notes__[0]


def test_what_is_left_to_the_call_further_out_has_no_fallback(policy):
    inner = policy.replace(fallback="old page", nested="defer", name="inner")
    calls = []

    def fail():
        raise SLOW

    @policy.replace(attempts=2)
    def outer():
        calls.append(1)
        return fail() if len(calls) == 1 else inner.call(fail)

    with pytest.raises(TimeoutError):
        outer()
    assert len(calls) == 2


def raising(error):
    """Return a fallback that raises this error."""

    def fallback(own):
        raise error

    return fallback


def test_a_fallback_that_raises_translates_the_error(flavour, policy, heard):
    own, other = TimeoutError("slow"), KeyError("cache")
    with pytest.raises(KeyError) as caught:
        flavour.call(policy.replace(fallback=raising(other), attempts=1), flavour.scripted(own))
    assert caught.value is other
    assert other.__cause__ is own
    assert other.__context__ is None
    assert not hasattr(other, "__notes__")
    assert own.__notes__[0].startswith("redouble: gave up on fetch after 1 attempt: no attempts left")
    assert told(heard) == [("GaveUp", "attempts")]


def test_an_async_fallback_that_raises_translates_the_error(policy):
    own = TimeoutError("slow")

    async def fallback(error):
        await asyncio.sleep(0)
        raise LookupError("cache")

    with pytest.raises(LookupError) as caught:
        asyncio.run(policy.replace(fallback=fallback, attempts=1).call(Flavours.scripted(own)))
    assert caught.value.__cause__ is own


@pytest.mark.parametrize("cause", [None, ValueError("another")], ids=["None", "another"])
def test_a_fallback_may_raise_from_something_else(flavour, policy, cause):
    def fallback(error):
        raise LookupError("cache") from cause

    with pytest.raises(LookupError) as caught:
        flavour.call(policy.replace(fallback=fallback, attempts=1), flavour.scripted(TimeoutError("slow")))
    assert caught.value.__cause__ is cause
    assert caught.value.__suppress_context__


def test_our_own_errors_are_translated_too(flavour, policy, clock):
    breaker = CircuitBreaker(clock=clock)
    breaker.open()
    with pytest.raises(LookupError) as caught:
        flavour.call(
            policy.replace(fallback=raising(LookupError("cache")), breaker=breaker), flavour.scripted("page")
        )
    assert type(caught.value.__cause__) is CircuitOpen


def frames(error):
    return [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)]


def test_the_traceback_of_a_translated_error_has_two_frames_of_ours(flavour, policy):
    def fetch():
        raise TimeoutError("slow")

    def fallback(error):
        raise LookupError("cache")

    with pytest.raises(LookupError) as caught:
        flavour.call(policy.replace(fallback=fallback, attempts=2), flavour.function(fetch))
    driver = "drive_async" if flavour.is_async else "drive"
    shown = frames(caught.value)
    assert shown[shown.index("wrapper") :] == ["wrapper", driver, "fallback"]
    own = [name for name in frames(caught.value.__cause__) if name != "coroutine"]
    assert own == [driver, "fetch"]


@pytest.mark.parametrize("which", ["error", "cause"])
def test_a_fallback_that_raises_an_error_it_was_given_declines(flavour, policy, which):
    own = TimeoutError("slow")

    def fetch():
        raise own

    def fallback(error):
        raise error if which == "error" else error.last_error

    fields = {"attempts": 1} if which == "error" else {"deadline": 0.5}
    with pytest.raises(TimeoutError) as caught:
        flavour.call(policy.replace(fallback=fallback, **fields), flavour.function(fetch))
    assert caught.value is own
    assert own.__cause__ is None
    shown = frames(own)
    assert [name for name in shown[shown.index("wrapper") :] if name != "coroutine"] == [
        "wrapper",
        "drive_async" if flavour.is_async else "drive",
        "fetch",
    ]


def test_a_fallback_that_raises_what_was_handled_when_the_error_was_raised_declines(flavour, policy):
    before = KeyError("cache")

    def fetch():
        try:
            raise before
        except KeyError:
            raise TimeoutError("slow")  # noqa: B904 - a context and no cause

    def fallback(error):
        raise error.__context__

    with pytest.raises(KeyError) as caught:
        flavour.call(policy.replace(fallback=fallback, attempts=1), flavour.function(fetch))
    assert caught.value is before
    assert before.__cause__ is None


def test_a_fallback_may_raise_where_the_chain_of_causes_is_circular(flavour, policy):
    own, other = TimeoutError("slow"), ValueError("other")
    own.__cause__, other.__cause__ = other, own
    with pytest.raises(LookupError) as caught:
        flavour.call(
            policy.replace(fallback=raising(LookupError("cache")), attempts=1), flavour.scripted(own)
        )
    assert caught.value.__cause__ is own


def test_an_error_whose_attributes_raise_can_be_translated(policy):
    class Closed(LookupError):
        def __getattribute__(self, name):
            raise RuntimeError(name)

        def __setattr__(self, name, value):
            raise RuntimeError(name)

        def __bool__(self):
            raise RuntimeError("truth")

    own = TimeoutError("slow")
    caught = []
    try:
        policy.replace(fallback=raising(Closed()), attempts=1).call(Flavour("sync").scripted(own))
    except BaseException as error:
        caught.append(error)
    assert type(caught[0]) is Closed
    assert BaseException.__dict__["__cause__"].__get__(caught[0]) is own


def test_an_interrupt_in_a_fallback_passes_through(flavour, policy):
    with pytest.raises(Interrupt):
        flavour.call(
            policy.replace(fallback=raising(Interrupt()), attempts=1), flavour.scripted(TimeoutError("slow"))
        )


def test_the_dead_letter_is_stored_before_a_fallback_raises(flavour, policy, tmp_path):
    letters = DeadLetters(tmp_path / "letters.db")

    def fallback(error):
        assert letters.depth() == 1
        raise LookupError("cache")

    with pytest.raises(LookupError):
        flavour.call(
            policy.replace(fallback=fallback, attempts=1, dead_letters=letters),
            flavour.scripted(TimeoutError("slow")),
        )
    [letter] = letters
    assert letter.error_type == "TimeoutError"


def test_a_translated_error_is_not_taken_for_one_of_the_body_of_a_scope(policy):
    with pytest.raises(ConnectionError) as caught:
        with retrying(policy, fallback=raising(ConnectionError("translated")), attempts=1) as call:
            call(Flavour("sync").scripted(TimeoutError("slow")))
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize("value", [LookupError, LookupError("cache"), KeyboardInterrupt], ids=repr)
def test_an_exception_as_fallback_is_refused(value):
    with pytest.raises(TypeError) as caught:
        Policy(fallback=value)
    assert str(caught.value) == (
        f"fallback must not be an exception, got {value!r}: to raise another error, write a function of the "
        "last error that raises it"
    )


def test_a_sync_fallback_that_turns_out_to_be_async_is_trouble_that_is_noted(policy):
    async def later():
        return "page"

    with pytest.raises(TimeoutError) as caught:
        policy.replace(fallback=lambda error: later(), attempts=1).call(
            lambda: (_ for _ in ()).throw(TimeoutError())
        )
    assert caught.value.__notes__[0].splitlines()[0] == (
        "redouble: gave up on fetch after 1 attempt: no attempts left; "
        "fallback is async, which a sync call cannot await"
    )


def test_trouble_with_a_fallback_is_noted_alone_where_the_error_says_the_rest(policy, clock):
    async def later():
        return "page"

    breaker = CircuitBreaker(clock=clock)
    breaker.open()
    with pytest.raises(CircuitOpen) as caught:
        policy.replace(fallback=lambda error: later(), breaker=breaker).call(lambda: "page")
    assert caught.value.__notes__[0].splitlines()[0] == (
        "redouble: gave up on fetch before its first attempt: "
        "fallback is async, which a sync call cannot await"
    )


def test_a_generator_and_a_block_cannot_have_a_fallback(policy):
    guarded = policy.replace(fallback="old page")
    with pytest.raises(TypeError, match="a generator, and a fallback= cannot replace its items"):

        @guarded
        def items():
            yield 1

    with pytest.raises(TypeError, match="a block has no result that a fallback could replace"):
        for _ in retrying(guarded):
            raise AssertionError
    with retrying(guarded, attempts=1) as call:
        assert call(lambda: (_ for _ in ()).throw(TimeoutError())) == "old page"


class Odd:
    """Like an array: comparing it gives something that has no truth."""

    def __eq__(self, other):
        return self

    def __bool__(self):
        raise ValueError("ambiguous")

    __hash__ = None


def test_policies_with_a_fallback_that_cannot_be_compared_compare_by_its_identity():
    odd, nan = Odd(), float("nan")
    for value in (odd, nan):
        assert Policy(fallback=value) == Policy(fallback=value)
        assert Policy(fallback=value) != Policy()
    assert Policy(fallback=odd) != Policy(fallback=Odd())
    assert Policy(fallback=odd).replace(fallback=UNSET) == Policy()


def test_a_broken_budget_does_not_take_the_fallback_away(flavour, policy):
    assert (
        flavour.call(policy.replace(budget=BrokenBudget(), fallback="old"), flavour.scripted(SLOW)) == "old"
    )


def test_a_fallback_is_not_promised_where_retries_are_switched_off():
    assert "fallback" not in Policy(fallback=None, enabled=False).describe()
    assert "without server hints and guards" in Policy(bulkhead=Bulkhead(1)).describe()


def test_an_async_block_cannot_have_a_fallback_either(policy):
    async def main():
        async for _ in retrying(policy, fallback="old page"):
            raise AssertionError

    with pytest.raises(TypeError, match="a block has no result that a fallback could replace"):
        asyncio.run(main())
