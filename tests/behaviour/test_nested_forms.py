"""Forms of calls inside of calls, which inner calls count, and how a call that is stopped ends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from redouble import ResultRejected, Rule, history, retry, retrying
from redouble.breaker import CircuitBreaker
from redouble.budget import TokenBudget
from redouble.dead_letters import DeadLetters
from redouble.hedging import hedge
from redouble.testing import scripted
from support.layers import down, failed, fetching, inside

# Blocks, scopes, generators


def test_a_block_is_stopped_and_stops(flavour, quick):
    runs = []

    def body(attempt):
        runs.append(attempt.number)
        quick.call(down)

    with pytest.raises(ConnectionResetError):
        flavour.block(quick, body)
    assert runs == [1]

    def load():
        for attempt in retrying(quick):
            with attempt:
                runs.append(attempt.number)
                raise ConnectionResetError("down")

    runs.clear()
    with pytest.raises(ConnectionResetError):
        quick.call(load)
    assert runs == [1, 2, 3, 4]


def test_the_second_run_of_a_block_is_stopped_too(flavour, quick):
    runs = []

    def body(attempt):
        runs.append(attempt.number)
        if len(runs) == 1:
            raise TimeoutError("own")
        quick.call(down)

    with pytest.raises(ConnectionResetError):
        flavour.block(quick.replace(deadline=900.0), body)
    assert runs == [1, 2]


def test_a_call_of_a_scope_is_stopped_and_stops(quick):
    calls = []

    def load():
        calls.append(1)
        with retrying(quick) as call:
            call(down)

    with retrying(quick) as call, pytest.raises(ConnectionResetError):
        call(load)
    assert calls == [1]


def test_generators_are_stopped_and_stop(flavour, quick):
    calls = []
    if flavour.is_async:

        @quick
        async def inner():
            calls.append("inner")
            raise ConnectionResetError("down")
            yield

        @quick
        async def outer():
            calls.append("outer")
            async for item in inner():
                yield item

        async def consume():
            return [item async for item in outer()]
    else:

        @quick
        def inner():
            calls.append("inner")
            raise ConnectionResetError("down")
            yield

        @quick
        def outer():
            calls.append("outer")
            yield from inner()

        def consume():
            return list(outer())

    with pytest.raises(ConnectionResetError):
        flavour.run(consume)
    assert calls == ["outer", *["inner"] * 4]


def test_a_plain_function_that_returns_an_awaitable_is_stopped(quick):
    calls = []

    async def fail():
        raise ConnectionResetError("down")

    @quick
    def load():
        calls.append(1)
        return quick(fail)()

    async def main():
        await load()

    with pytest.raises(ConnectionResetError):
        asyncio.run(main())
    assert calls == [1]


def test_a_hedged_call_that_was_retried_inside_is_not_retried_around(quick):
    calls = []

    @quick
    @hedge(after=60.0, attempts=1)
    @quick
    def fetch():
        calls.append(1)
        raise ConnectionResetError("down")

    with pytest.raises(ConnectionResetError):
        fetch()
    assert len(calls) == 4


# Which calls count


@pytest.mark.parametrize(
    "fields",
    [
        {"attempts": 1},
        {"rules": {ConnectionResetError: Rule(attempts=1)}},
        {"idempotent": False},
        {"enabled": False},
    ],
    ids=repr,
)
def test_an_inner_call_that_made_one_attempt_leaves_retrying_to_the_outer_one(flavour, quick, fields):
    fetch, bottom = fetching(flavour, quick, **fields)
    failed(flavour, quick, inside(flavour, fetch))
    assert len(bottom.calls) == 4


def test_a_call_that_was_refused_a_retry_counts(flavour, quick, clock):
    for fields, why in (
        ({"budget": TokenBudget(capacity=1, cost=5, name="fetches")}, "the retry budget is spent (fetches)"),
        (
            {"breaker": CircuitBreaker(failures=1, clock=clock, name="fetches")},
            "the circuit of fetches is open",
        ),
    ):
        fetch, bottom = fetching(flavour, quick, **fields)
        error = failed(flavour, quick, inside(flavour, fetch))
        assert len(bottom.calls) == 1
        assert f"not retried by load: fetch was refused a retry ({why}" in error.__notes__[0]


def test_a_wait_above_max_retry_after_counts(flavour, quick):
    class Busy(Exception):
        status_code, headers = 503, {"Retry-After": "300"}

    bottom = flavour.scripted(*[Busy()] * 9)
    fetch = quick.replace(name="fetch")(bottom)
    error = failed(flavour, quick, inside(flavour, fetch), Busy)
    assert len(bottom.calls) == 1
    assert "fetch was refused a retry (the server asked for a wait of 300.0 s" in error.__notes__[0]


def test_a_breaker_that_opens_during_the_wait_counts(quick, clock):
    breaker = CircuitBreaker(clock=clock)
    bottom = scripted(*[ConnectionResetError("down")] * 9)

    def sleep(seconds):
        clock.sleep(seconds)
        breaker.open()

    with pytest.raises(ConnectionResetError):
        quick.call(quick.replace(breaker=breaker, sleep=sleep)(bottom))
    assert len(bottom.calls) == 1


def test_a_result_that_was_rejected_counts_where_it_is_the_cause(quick):
    bottom = scripted(*[None] * 99)

    def load():
        try:
            quick.call(bottom)
        except ResultRejected as error:
            raise TimeoutError("not there") from error

    quick = quick.replace(until=bool)
    with pytest.raises(TimeoutError):
        quick.call(load)
    assert len(bottom.calls) == 4


def test_a_response_may_carry_the_note_of_the_call_that_gave_up(quick):
    """As the response of an error, and as a result that is rejected."""
    calls = []

    def given_up():
        try:
            quick.call(down)
        except ConnectionResetError as error:
            return SimpleNamespace(status_code=503, headers={}, __notes__=error.__notes__)

    def load():
        calls.append(1)
        error = TimeoutError("503")
        error.response = given_up()
        raise error

    with pytest.raises(TimeoutError) as caught:
        quick.replace(name="load").call(load)
    assert "not retried by load: already retried by down (4 attempts)" in caught.value.__notes__[0]

    def ask():
        calls.append(1)
        return given_up()

    with pytest.raises(ResultRejected):
        quick.replace(until=lambda response: False).call(ask)
    assert calls == [1, 1]


# Who retries all the same


@pytest.mark.parametrize(
    "fields",
    [
        {"nested": "independent"},
        {"nested": "defer"},
        {"on": ConnectionError},
        {"on": lambda error: True},
        {"rules": {ConnectionResetError: Rule()}},
        {"rules": {"disconnected": Rule()}},
    ],
    ids=repr,
)
def test_a_policy_that_says_so_retries_what_was_retried(flavour, quick, fields):
    fetch, bottom = fetching(flavour, quick)
    failed(flavour, quick.replace(attempts=2, **fields), inside(flavour, fetch))
    assert len(bottom.calls) == 8


def test_a_rule_for_other_failures_does_not(flavour, quick):
    fetch, bottom = fetching(flavour, quick)
    failed(flavour, quick.replace(rules={429: Rule()}), inside(flavour, fetch))
    assert len(bottom.calls) == 4


# It is giving up like any other


def test_the_fallback_answers(flavour, quick):
    fetch, bottom = fetching(flavour, quick)
    assert flavour.call(quick.replace(fallback="old page"), inside(flavour, fetch)) == "old page"
    assert len(bottom.calls) == 4


def test_a_fallback_that_raises_keeps_the_lines_of_the_inner_call(flavour, quick):
    fetch, _ = fetching(flavour, quick)

    def fallback(error):
        raise KeyError("no old page")

    with pytest.raises((ConnectionResetError, KeyError)) as caught:
        flavour.call(quick.replace(fallback=fallback), inside(flavour, fetch))
    error = caught.value
    told = error.__notes__[0] if isinstance(error, ConnectionResetError) else error.__cause__.__notes__[0]
    assert told.count("not retried by") == 1
    assert "attempt 4: ConnectionResetError: down" in told


def test_a_dead_letter_is_stored_and_its_masks_hold_for_the_lines_of_the_inner_call(flavour, quick, tmp_path):
    bottom = flavour.scripted(*[ConnectionResetError("customer 4711")] * 9)
    fetch = quick.replace(name="fetch")(bottom)
    letters = DeadLetters(tmp_path / "letters.db", mask=lambda name, text: str(text).replace("4711", "####"))
    error = failed(flavour, quick.replace(dead_letters=letters), inside(flavour, fetch))
    assert [letter.function for letter in letters] == ["load"]
    assert "4711" not in error.__notes__[0]
    assert error.__notes__[0].splitlines()[4] == "  attempt 4: ConnectionResetError: customer ####"
    assert history(error).failures[0].error_message == "customer ####"


def test_the_bare_decorator_stops():
    calls = []

    @retry(base=0.0)
    def fetch():
        calls.append(1)
        raise ConnectionResetError("down")

    @retry
    def load():
        fetch()

    with pytest.raises(ConnectionResetError):
        load()
    assert len(calls) == 4


def test_an_error_that_was_retried_inside_two_hedged_attempts_is_not_retried_again(quick):
    """The note of the hedge used to replace that of the inner call."""
    bottom = scripted(*[ConnectionResetError("down") for _ in range(99)])
    fetch = quick.replace(name="fetch")(bottom)
    with pytest.raises(ConnectionResetError) as caught:
        quick.replace(name="load").call(hedge(after=60.0, name="hedged")(lambda: fetch()))
    assert len(bottom.calls) == 8
    note = caught.value.__notes__[0]
    assert note.startswith("redouble: gave up on fetch after 4 attempts")
    assert "\n  2 attempts of hedged failed; this was attempt 1\n    attempt 2: ConnectionResetError" in note
    assert note.endswith(
        'not retried by load: already retried by fetch (4 attempts); say nested="independent" to retry it here '
        "as well"
    )
    assert history(caught.value).name == "fetch"


def test_a_kept_error_that_two_hedged_attempts_raise_is_retried_as_usual(quick):
    with pytest.raises(ConnectionResetError) as caught:
        quick.call(down)
    bottom = scripted(*[caught.value] * 99)
    with pytest.raises(ConnectionResetError):
        quick.call(hedge(after=60.0)(lambda: bottom()))
    assert len(bottom.calls) == 8


def test_a_function_that_returns_a_coroutine_knows_what_it_called_before_that(quick, virtual):
    """The inner call has ended before there was anything to await."""
    calls = []

    def load():
        calls.append(1)
        with pytest.raises(ConnectionResetError) as caught:
            quick.replace(name="fetch").call(down)

        async def give_up():
            raise caught.value

        return give_up()

    with pytest.raises(ConnectionResetError):
        virtual(lambda: quick.call(load))
    assert calls == [1]
