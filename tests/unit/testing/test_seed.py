"""`no_waits(seed=...)` and `fake_time(seed=...)`: waits that are the same each time."""

from __future__ import annotations

import asyncio
import random
from functools import partial

import pytest

from redouble import Policy, retry, retrying
from redouble.backoff import equal_jitter, full_jitter
from redouble.testing import FakeClock, after, fake_time, no_waits, response, scripted
from support.threads import in_a_thread

pytest_plugins = ["redouble.testing.plugin"]


def drawn(seed: int, ends: tuple[float, ...] = (1.0, 2.0)) -> list[float]:
    """The waits of a call by full jitter from a base of 1 s."""
    rng = random.Random(seed)
    return [rng.uniform(0.0, end) for end in ends]


@retry
def fetch(get):
    return get()


def failing() -> object:
    return scripted(TimeoutError("slow"), TimeoutError("slow"), "page")


@pytest.mark.parametrize("switch", [no_waits, fake_time])
def test_the_waits_of_a_decorated_function_are_those_of_the_seed(switch):
    for _ in range(2):  # the stream begins anew with each `with`
        with switch(seed=7) as time:
            assert fetch(failing()) == "page"
        assert getattr(time, "waits", time) == drawn(7)


def test_it_is_so_for_async_functions_blocks_scopes_and_hints():
    with no_waits(seed=7) as waits:
        asyncio.run(retry(scripted(TimeoutError(), TimeoutError(), "page", asynchronous=True))())
    assert waits == drawn(7)
    get = failing()
    with no_waits(seed=7) as waits:
        for attempt in retrying():
            with attempt:
                get()
    assert waits == drawn(7)
    with no_waits(seed=7) as waits, retrying(Policy(deadline=60.0)) as call:
        call(failing())
    assert waits == drawn(7)
    busy = response(503, {"Retry-After": "20"}).error()
    with fake_time(seed=7) as clock:
        retry(scripted(busy, "page"))()
    assert clock.waits == [20.0 + drawn(7, (1.0, 1.0))[1]]  # the first is that of the backoff


def test_a_backoff_of_your_own_is_given_the_seeded_source():
    def spread(attempt, base=1.0, cap=30.0, *, previous=None, rng=None):
        return rng.uniform(5.0, 6.0)

    with no_waits(seed=7) as waits:
        retry(backoff=spread)(failing())()
    rng = random.Random(7)
    assert waits == [rng.uniform(5.0, 6.0), rng.uniform(5.0, 6.0)]


def test_a_policy_with_an_rng_of_its_own_keeps_it():
    with no_waits(seed=7) as waits:
        Policy(rng=random.Random(1)).call(failing())
    assert waits == drawn(1)


def test_a_delay_function_by_itself_and_the_random_module_are_left_alone():
    random.seed(3)
    expected = [random.random(), random.random()]
    random.seed(3)
    with no_waits(seed=7):
        assert full_jitter(0) == expected[0]
        fetch(failing())
        assert random.random() == expected[1]


def test_several_calls_go_on_in_the_same_stream():
    with no_waits(seed=7) as waits:
        fetch(failing())
        fetch(failing())
    assert waits == drawn(7, (1.0, 2.0, 1.0, 2.0))


def test_of_nested_seeds_the_innermost_holds_and_one_without_keeps_that_around_it():
    with no_waits(seed=1) as outer:
        with fake_time(seed=7) as inner:
            fetch(failing())
        with fake_time() as inherited:
            fetch(failing())
        fetch(failing())
    assert inner.waits == drawn(7)
    assert inherited.waits + outer == drawn(1, (1.0, 2.0, 1.0, 2.0))


def test_one_clock_under_two_seeds_has_the_waits_of_both():
    clock = FakeClock()
    with fake_time(clock, seed=1), fake_time(clock, seed=7) as given:
        assert given is clock
        retry(deadline=60.0)(scripted(after(0.5, TimeoutError()), TimeoutError(), "page"))()
    assert clock.waits == drawn(7)
    assert clock.now == 0.5 + sum(clock.waits)


def test_a_seed_holds_in_this_context_unless_it_holds_everywhere():
    with no_waits(everywhere=True) as waits, no_waits(seed=7):
        in_a_thread(partial(fetch, failing()))
    assert waits != drawn(7)
    with no_waits(seed=7, everywhere=True) as waits:
        in_a_thread(partial(fetch, failing()))
    assert waits == drawn(7)


def test_it_is_a_decorator_too():
    waits = []

    @no_waits(seed=7)
    def test():
        retry(listeners=[lambda event: waits.append(getattr(event, "delay", None))])(failing())()

    test()
    test()
    assert [wait for wait in waits if wait is not None] == drawn(7) * 2


@pytest.mark.parametrize("switch", [no_waits, fake_time])
@pytest.mark.parametrize("seed", ["seven", 1.5, True])
def test_a_seed_is_a_whole_number(switch, seed):
    with pytest.raises((TypeError, ValueError), match="seed must be a whole number"):
        switch(seed=seed)


def test_the_other_kinds_of_jitter_are_repeatable_too():
    with fake_time(seed=-3) as first:
        retry(backoff=equal_jitter)(failing())()
    with fake_time(seed=-3) as second:
        retry(backoff=equal_jitter)(failing())()
    assert first.waits == second.waits


@pytest.mark.parametrize("redouble_seed", [7])
def test_the_fixtures_of_the_plugin_take_a_seed(redouble_clock):
    fetch(failing())
    assert redouble_clock.waits == drawn(7)


@pytest.mark.parametrize("redouble_seed", [7])
def test_the_waits_of_the_plugin_take_a_seed(request, redouble_seed):
    waits = request.getfixturevalue("no_waits")
    fetch(failing())
    assert waits == drawn(redouble_seed)
