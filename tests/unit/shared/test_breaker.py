"""A shared breaker: what it learns from the store, and probes over all processes."""

from __future__ import annotations

import asyncio

import pytest

from conftest import loop_time
from redouble import CircuitOpen, Policy
from redouble.breaker import State
from redouble.shared import RedisBreaker, RedisBudget
from redouble.testing import FakeClock
from support.stores import REFUSED, AsyncClient, Client, Interrupt, changes, left, said, transitions


def test_a_call_asks_nobody_while_the_circuit_was_closed_a_moment_ago(store, clock):
    here = store(said())
    breaker = here.breaker(refresh_interval=0.5)
    assert breaker._ticket is None
    assert here.run(breaker.enter) == 7
    assert (breaker._ticket, breaker._clean, len(here.client.asked)) == (7, True, 1)
    assert [here.run(breaker.enter) for _ in range(9)] == [7] * 9
    assert here.run(breaker.success, 7) is None
    clock.advance(0.49)
    assert breaker._ticket == 7
    assert len(here.client.asked) == 1
    clock.advance(0.01)
    assert breaker._ticket is None
    here.run(breaker.enter)
    assert len(here.client.asked) == 2


def test_one_caller_asks_again_and_the_others_go_by_what_is_known():
    clock, inner = FakeClock(), []
    client = Client(
        said(), lambda: inner.append((breaker._ticket, breaker.enter())) or said("open", admitted=0)
    )
    breaker = RedisBreaker(client, "key", clock=clock)
    breaker.enter()
    clock.advance(0.5)
    with pytest.raises(CircuitOpen):
        breaker.enter()
    assert (inner, len(client.asked)) == ([(7, 7)], 2)


def test_what_was_heard_long_ago_is_not_gone_by():
    clock, inner = FakeClock(), []
    client = Client(said(), lambda: inner.append(breaker.enter()) or said(generation=9), said(generation=8))
    breaker = RedisBreaker(client, "key", clock=clock)
    breaker.enter()
    clock.advance(60.0)
    breaker.enter()
    assert (inner, len(client.asked)) == ([8], 3)


def test_nothing_is_gone_by_before_anything_was_heard():
    inner = []
    client = Client(lambda: inner.append(breaker.enter()) or said(generation=9), said(generation=8))
    breaker = RedisBreaker(client, "key", clock=FakeClock())
    breaker.enter()
    assert (inner, len(client.asked)) == ([8], 2)


def test_a_probe_of_another_process_is_waited_for_as_long_as_is_left(store):
    here = store(said("half-open", admitted=0, probes=1, age=10_000))
    breaker = here.breaker(open_for=30.0)
    with pytest.raises(CircuitOpen) as caught:
        here.run(breaker.enter)
    assert caught.value.retry_after == breaker.retry_after == 20.0


def test_a_probe_that_was_replaced_counts_at_the_local_guard_too(store):
    here = store(said("half-open", probes=1, oldest=5, generation=9), REFUSED)
    breaker = here.breaker()
    here.run(breaker.refresh)
    here.run(breaker.success, 4)
    assert breaker.state is State.half_open
    here.run(breaker.success, 5)
    assert breaker.state is State.closed


def test_the_store_is_told_the_rules_and_what_happened(store):
    here = store(said(failures=1))
    breaker = here.breaker(failures=3, successes=2, open_for=10.0, probes=4, ttl=60.0)
    ticket = here.run(breaker.enter)
    place = here.client.asked[0][2]
    here.run(breaker.failure, ticket, TimeoutError("sl\N{EURO SIGN}w"))
    here.run(breaker.success, ticket)
    here.run(breaker.failure)
    here.run(breaker.open)
    here.run(breaker.close)
    rules = ("3", "2", "10000.0", "4", "60000.0", "")
    assert here.client.asked == [
        ("enter", "", place, "", *rules),
        ("failure", "7", "", r"TimeoutError: sl\u20acw", *rules),
        ("success", "7", "", "", *rules),
        ("failure", "", "", "", *rules),
        ("open", "", "", "", *rules),
        ("close", "", "", "", *rules),
    ]
    assert len(bytes.fromhex(place)) == 8


def test_times_that_redis_does_not_take_are_made_such_that_it_does(store):
    here = store(said())
    here.run(here.breaker(open_for=1e300, ttl=1e-9).refresh)
    assert (here.client.asked[0][6], here.client.asked[0][8]) == ("1000000000000.0", "1.0")


def test_a_circuit_that_others_have_opened_refuses_with_their_failure_and_the_time_left(store, clock):
    here = store(said("open", admitted=0, ends_in=b"12500", last=rb"TimeoutError: sl\u20acw"))
    breaker = here.breaker(name="payments")
    with pytest.raises(CircuitOpen) as caught:
        here.run(breaker.enter)
    error = caught.value
    assert (error.name, error.retry_after) == ("payments", 12.5)
    assert error.last_failure == "TimeoutError: sl\N{EURO SIGN}w"
    assert (breaker.state, breaker.retry_after, breaker.refuses()) == (State.open, 12.5, True)
    assert str(breaker.refusal()) == str(error)
    assert transitions(here.events) == []  # whoever opened it told of it
    for _ in range(5):
        with pytest.raises(CircuitOpen):
            here.run(breaker.enter)
    assert len(here.client.asked) == 1


def test_a_circuit_that_refuses_is_looked_at_again_in_case_somebody_closed_it(store, clock):
    here = store(said("open", admitted=0, ends_in=b"30000"), said(generation=9))
    breaker = here.breaker(refresh_interval=0.5)
    with pytest.raises(CircuitOpen):
        here.run(breaker.enter)
    clock.advance(0.5)
    assert here.run(breaker.enter) == 9


def test_when_the_time_is_over_the_store_is_asked_whether_this_call_may_try(store, clock):
    here = store(
        said("open", admitted=0, ends_in=b"200"),
        said("half-open", before="open", generation=8, probes=1),
        said("closed", before="half-open", generation=9),
    )
    breaker = here.breaker(open_for=0.2)
    with pytest.raises(CircuitOpen):
        here.run(breaker.enter)
    clock.advance(0.2)
    assert (breaker.state, breaker.refuses()) == (State.half_open, False)
    ticket = here.run(breaker.enter)
    assert ticket == 8
    with pytest.raises(CircuitOpen, match="at most 1 at a time"):
        here.run(breaker.enter)
    here.run(breaker.success, ticket)
    place = here.client.asked[1][2]
    assert here.client.asked[2][:3] == ("success", "8", place)
    assert transitions(here.events) == [("open", "half-open"), ("half-open", "closed")]
    assert (breaker.state, breaker._ticket) == (State.closed, 9)


def test_whoever_changes_the_circuit_tells_of_it(store):
    here = store(said("open", before="closed", ends_in=b"30000", last=b"OSError: off"))
    others = []
    here.run(here.breaker().failure, 7, OSError("off"), (others.append,))
    (event,) = here.events
    assert others == [event]
    assert (event.before, event.after, event.delay) == ("closed", "open", 30.0)
    assert event.error_message == "OSError: off"


def test_a_circuit_that_is_held_open_by_hand_has_no_end(store):
    here = store(said("open", before="closed"))
    breaker = here.breaker()
    here.run(breaker.open)
    assert (breaker.retry_after, breaker.refuses()) == (None, True)
    assert here.events[0].delay is None
    with pytest.raises(CircuitOpen, match="held open by hand"):
        here.run(breaker.enter)


def test_an_answer_to_an_earlier_question_does_not_undo_a_later_one(virtual):
    async def main():
        async def slowly():
            await asyncio.sleep(0.1)
            return said()

        breaker = RedisBreaker(AsyncClient(slowly, said("open", ends_in=b"30000")), "key", clock=loop_time)
        early = asyncio.ensure_future(breaker.refresh())
        await asyncio.sleep(0)
        await breaker.failure(None, OSError())
        assert breaker.state is State.open
        await early
        assert breaker.state is State.open

    virtual(main)


def test_an_error_that_says_nothing_about_health_is_not_told(store):
    here = store(said())
    breaker = here.breaker(ignore=[KeyError])
    ticket = here.run(breaker.enter)
    here.run(breaker.failure, ticket, KeyError("id"))
    here.run(breaker.failure, ticket, FileNotFoundError(2, "no such file"))
    assert len(here.client.asked) == 1


def test_a_probe_that_ends_with_such_an_error_gives_its_slot_back(store):
    here = store(said("half-open", probes=1), said("half-open", probes=0))
    breaker = here.breaker(ignore=lambda error: isinstance(error, KeyError))
    ticket = here.run(breaker.enter)
    place = here.client.asked[0][2]
    here.run(breaker.failure, ticket, KeyError("id"))
    assert (here.client.asked[1][0], here.client.asked[1][-1]) == ("refresh", place)
    assert breaker.at_rest


def test_ignore_is_asked_once_of_each_error(store):
    asked = []
    here = store(REFUSED)
    breaker = here.breaker(failures=9, ignore=lambda error: asked.append(error))
    here.run(breaker.failure, None, KeyError("id"))
    assert len(asked) == 1
    assert breaker.counted == (1, 1)


def test_an_interrupt_in_ignore_gives_the_slot_of_the_probe_back(store):
    def ignore(error):
        raise Interrupt

    here = store(said("half-open", probes=1), said())
    breaker = here.breaker(ignore=ignore)
    ticket = here.run(breaker.enter)
    with pytest.raises(Interrupt):
        here.run(breaker.failure, ticket, KeyError("id"))
    here.run(breaker.enter)
    assert here.client.asked[1][-1] == here.client.asked[0][2]


def test_an_interrupt_in_a_listener_gives_the_slot_of_the_probe_back(store):
    def listen(event):
        raise Interrupt

    here = store(said("half-open", before="open", probes=1), said())
    breaker = here.breaker()
    with pytest.raises(Interrupt):
        here.run(breaker.enter, (listen,))
    here.run(breaker.enter)
    assert here.client.asked[1][-1] == here.client.asked[0][2]


def test_a_slot_that_may_have_been_taken_is_given_back_with_the_next_question(store, clock):
    here = store(REFUSED, Interrupt(), said(), said())
    breaker = here.breaker()
    here.run(breaker.enter)  # the twin lets it through
    clock.advance(1.0)
    with pytest.raises(Interrupt):
        here.run(breaker.enter)
    assert not breaker.at_rest
    here.run(breaker.enter)
    here.run(breaker.refresh)
    first, second = (words[2] for words in here.client.asked[:2])
    assert [words[-1] for words in here.client.asked] == ["", first, f"{first} {second}", ""]
    assert breaker.at_rest


def test_only_so_many_slots_are_remembered(store, clock):
    here = store(REFUSED)
    breaker = here.breaker()
    for _ in range(100):
        here.run(breaker.enter)
        clock.advance(1.0)
    assert len(here.client.asked[-1][-1].split()) == 64


def test_a_cancelled_probe_is_not_lost(virtual):
    async def main():
        async def slowly():
            await asyncio.sleep(0.2)
            return said("half-open", probes=1)

        client = AsyncClient(slowly, said("half-open", probes=1))
        breaker = RedisBreaker(client, "key", clock=loop_time)
        task = asyncio.ensure_future(breaker.enter())
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await breaker.enter()
        assert client.asked[1][-1] == client.asked[0][2]

    virtual(main)


def test_a_guarded_call_that_is_interrupted_gives_its_slot_back_and_counts_as_nothing(store):
    here = store(said("half-open", probes=1), said("half-open", probes=0))
    breaker = here.breaker()
    guarded = breaker(here.flavour.scripted(Interrupt()))
    with pytest.raises(Interrupt):
        here.run(guarded)
    assert [words[0] for words in here.client.asked] == ["enter", "refresh"]
    assert here.client.asked[1][-1] == here.client.asked[0][2]


def test_a_guarded_coroutine_that_is_closed_waits_for_nobody(clock):
    class Forever:
        def __await__(self):
            yield

    async def fetch():
        await Forever()

    client = AsyncClient(said("half-open", probes=1))
    breaker = RedisBreaker(client, "key", clock=clock)
    client._later = lambda method, args: _plain(method, args)
    with asyncio.Runner() as runner:
        coroutine = breaker(fetch)()

        async def start():
            # Stepped by hand, on a running loop: its time limit needs one.
            coroutine.send(None)

        runner.run(start())
        coroutine.close()
    assert len(client.asked) == 1
    assert not breaker.at_rest  # it goes with the next question


async def _plain(method, args):
    return method(*args)


def test_a_result_told_by_hand_needs_no_ticket(store):
    here = store(said("half-open", probes=1), said("half-open", probes=0))
    breaker = here.breaker()
    here.run(breaker.refresh)
    here.run(breaker.release)
    assert here.client.asked[1][:3] == ("release", "", "")
    assert here.run(here.breaker().release) is None


def test_the_local_guard_of_a_breaker_begins_where_the_store_was(store, clock):
    here = store(said("open", admitted=0, ends_in=b"30000", last=b"OSError: off"), REFUSED)
    breaker = here.breaker(probes=2)
    with pytest.raises(CircuitOpen):
        here.run(breaker.enter)
    clock.advance(1.0)
    with pytest.raises(CircuitOpen, match=r"for another 29\.0 s \(OSError: off\)"):
        here.run(breaker.enter)
    clock.advance(29.0)
    tickets = [here.run(breaker.enter) for _ in range(2)]
    with pytest.raises(CircuitOpen):
        here.run(breaker.enter)
    here.run(breaker.release, tickets[0])
    here.run(breaker.success, here.run(breaker.enter))
    assert breaker.state is State.closed
    assert transitions(here.events) == [("open", "half-open"), ("half-open", "closed")]


def test_a_breaker_is_opened_and_closed_by_hand_while_the_store_is_away(store):
    here = store(REFUSED)
    breaker = here.breaker()
    here.run(breaker.open)
    assert here.run(breaker.refresh) is State.open
    here.run(breaker.close)
    assert here.run(breaker.refresh) is State.closed
    assert repr(breaker) == "<circuit: closed>"


def test_when_the_store_is_back_its_circuit_counts(store, clock):
    here = store(REFUSED, said(failures=3))
    breaker = here.breaker(failures=1)
    here.run(breaker.failure, here.run(breaker.enter), OSError())
    assert breaker.state is State.open
    clock.advance(1.0)
    assert here.run(breaker.refresh) is State.closed
    assert (breaker.counted, breaker._clean) == ((3, 3), False)
    assert changes(here.events) == [False, True]


def test_a_breaker_is_a_decorator_and_a_context_manager():
    client = Client(said())
    breaker = RedisBreaker(client, "key")
    with breaker:
        pass
    assert breaker(lambda: "page")() == "page"

    async def main():
        asynchronous = RedisBreaker(AsyncClient(said()), "key")
        async with asynchronous:
            pass
        with pytest.raises(TypeError, match="async with"):
            asynchronous.__enter__()

    asyncio.run(main())
    assert len(client.asked) == 1


def test_a_policy_learns_within_refresh_that_others_have_closed_the_circuit(store, clock):
    here = store(said("open", ends_in=b"30000", admitted=0), said(generation=8))
    breaker = here.breaker(refresh_interval=0.5)
    policy = Policy(breaker=breaker, clock=clock, sleep=clock.sleep)
    page = here.flavour.scripted("page")
    with pytest.raises(CircuitOpen):
        here.flavour.call(policy, page)
    assert breaker.refuses()
    clock.advance(0.5)
    assert not breaker.refuses()  # nobody knows: so `enter` is reached, and asks
    assert here.flavour.call(policy, page) == "page"


def test_an_answer_that_the_store_gave_earlier_does_not_undo_a_later_generation(virtual):
    async def main():
        async def slowly():
            await asyncio.sleep(0.1)
            return said(generation=7)

        async def at_last():
            await asyncio.sleep(0.2)
            return said(generation=0)

        opened = said("open", ends_in=b"30000", generation=9)
        breaker = RedisBreaker(AsyncClient(opened, slowly, at_last), "key", clock=loop_time)
        telling = breaker.failure(None, OSError())
        later = asyncio.ensure_future(breaker.refresh())  # asked later, carried out earlier
        await telling
        assert breaker.state is State.open
        await later
        assert breaker.state is State.open
        # But a store that has lost its key begins anew, which whoever asks now is told.
        await breaker.refresh()
        assert breaker.state is State.closed

    virtual(main)


def test_what_the_local_guard_has_decided_is_not_undone_by_an_answer_to_an_earlier_question(virtual):
    async def main():
        async def slowly():
            await asyncio.sleep(0.1)
            return said()

        breaker = RedisBreaker(AsyncClient(said(), slowly, REFUSED), "key", failures=1, clock=loop_time)
        await breaker.enter()
        earlier = asyncio.ensure_future(breaker.refresh())
        await asyncio.sleep(0.01)
        await breaker.failure(None, OSError())
        assert (breaker.state, breaker.available) == (State.open, False)
        await earlier
        assert (breaker.state, breaker.available) == (State.open, False)

        async def full():
            await asyncio.sleep(0.1)
            return left(10.0)

        budget = RedisBudget(AsyncClient(full, REFUSED), "key", capacity=10, clock=loop_time)
        earlier = asyncio.ensure_future(budget.refresh())
        await asyncio.sleep(0.01)
        assert [await budget.acquire() for _ in range(3)] == [5.0, 5.0, 0.0]
        await earlier
        assert (budget.tokens, budget.available) == (0.0, False)

    virtual(main)
