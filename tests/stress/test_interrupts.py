"""Interrupts at any moment, and a stack that is nearly full: a call leaves nothing behind."""

from __future__ import annotations

import contextvars
import gc
import inspect
import os
import sys
import textwrap
import time

import pytest

from conftest import not_under_coverage
from redouble import Policy, retry, retrying
from redouble.bulkhead import Bulkhead
from redouble.testing import scripted
from support.interrupted_calls import PACKAGE, TIMERS, guarded, page, run, unsound

LONG = os.environ.get("REDOUBLE_LONG") == "1"


# Interrupts wherever Python lets one in: at the start of a function, and when one written in C returns.


class Moment(KeyboardInterrupt):
    pass


class Interrupting:
    """Raises at one such moment within redouble: at the so-many-th, or at the first of a kind."""

    def __init__(self, number=0, kind=None):
        self.number, self.kind, self.count, self.raised = number, kind, 0, None

    def __call__(self, frame, event, arg):
        if event not in ("call", "c_return") or not frame.f_code.co_filename.startswith(PACKAGE):
            return
        generates = frame.f_code.co_flags & inspect.CO_GENERATOR and frame.f_code.co_name != "wrapper"
        if generates or in_finalizer(frame):
            return
        self.count += 1
        moment = event, frame.f_code.co_qualname, getattr(arg, "__qualname__", None)
        if self.count == self.number or moment == self.kind:
            sys.setprofile(None)
            self.raised = moment
            raise Moment


def in_finalizer(frame):
    """Whether an object goes: what is raised then is printed and lost, whoever raises it."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def third_time():
    return scripted(TimeoutError("slow"), TimeoutError("slow"), "page")


def stepped(coroutine):
    """Runs a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    finally:
        coroutine.close()
    raise AssertionError("it waits for something")


def by_call(policy):
    return policy(third_time())()


def by_known_call(policy):
    """A first attempt in its own surroundings, with nothing else to do."""
    return policy.replace(breaker=None, budget=None, throttle=None, bulkhead=None)(third_time())()


def by_deadline(policy):
    """Under a policy that asks for a deadline and nothing else, which has a way of its own."""
    return Policy(deadline=policy.deadline, clock=policy.clock, sleep=policy.sleep)(third_time())()


def by_async_call(policy):
    fetch = third_time()

    async def fetch_async():
        return fetch()

    return stepped(policy.replace(deadline=None)(fetch_async)())


def by_block(policy):
    fetch = third_time()
    for attempt in retrying(policy):
        with attempt:
            page = fetch()
    return page


def by_async_block(policy):
    fetch = third_time()

    async def main():
        async for attempt in retrying(policy.replace(deadline=None)):
            async with attempt:
                page = fetch()
        return page

    return stepped(main())


def by_generator(policy):
    fetch = third_time()

    @policy.replace(bulkhead=None)
    def pages():
        yield fetch()

    return next(pages())


def by_async_generator(policy):
    fetch = third_time()

    @policy.replace(bulkhead=None, deadline=None)
    async def pages():
        yield fetch()

    return stepped(anext(pages()).__await__())


def by_scope(policy):
    # Not while it opens and closes: what comes between a with and its __exit__ is beyond any library.
    interrupting = sys.getprofile()
    sys.setprofile(None)
    with retrying(policy) as call:
        pass
    sys.setprofile(interrupting)
    return call(third_time())  # after the scope its deadline is set for the call alone


def by_probe(policy):
    for _ in range(3):
        policy.breaker.failure(None, TimeoutError())
    policy.clock.advance(6.0)
    return policy(lambda: "page")()


WAYS = [by_call, by_deadline, by_async_call, by_block, by_async_block, by_scope, by_probe]


def interrupted(way, interrupting):
    """What came out of a call with such an interrupt, and what it has left behind."""
    policy, context = guarded(), contextvars.Context()

    def watched():
        sys.setprofile(interrupting)
        try:
            return way(policy)
        finally:
            sys.setprofile(None)

    try:
        outcome = context.run(watched)
    except Moment:
        outcome = "interrupted"
    gc.collect()
    return outcome, context.run(unsound, policy)


@pytest.mark.parametrize(
    ("way", "kind"),
    [
        (by_call, ("c_return", "drive", "ContextVar.set")),
        (by_known_call, ("c_return", "_timed.<locals>.wrapper", "ContextVar.set")),
        (by_deadline, ("c_return", "_timed.<locals>.wrapper", "ContextVar.set")),
        (by_async_call, ("c_return", "drive_async", "ContextVar.set")),
        (by_generator, ("c_return", "wrap_generator.<locals>.wrapper", "ContextVar.set")),
        (by_async_generator, ("c_return", "wrap_async_generator.<locals>.wrapper", "ContextVar.set")),
        (by_scope, ("c_return", "Scope.__call__", "ContextVar.set")),
        (by_block, ("c_return", "BlockAttempt.__enter__", "ContextVar.set")),
        (by_block, ("call", "BlockAttempt.__exit__", None)),
        (by_block, ("call", "leave", None)),
    ],
    ids=lambda value: value.__name__ if callable(value) else value[1],
)
def test_an_interrupt_on_the_way_into_or_out_of_an_attempt_leaves_no_deadline_behind(way, kind):
    interrupting = Interrupting(kind=kind)
    assert interrupted(way, interrupting) == ("interrupted", [])
    assert interrupting.raised == kind


@pytest.mark.parametrize("way", [by_call, by_async_call, by_block], ids=lambda way: way.__name__)
@pytest.mark.parametrize("where", ["Call.release", "Bulkhead._release"])
def test_an_interrupt_before_a_place_is_given_back_does_not_keep_it(way, where):
    interrupting = Interrupting(kind=("call", where, None))
    assert interrupted(way, interrupting) == ("interrupted", [])
    assert interrupting.raised


def test_a_place_is_given_back_once_however_often_that_is_tried():
    bulkhead = Bulkhead(2)
    assert bulkhead.acquire()
    assert bulkhead.acquire()
    claim = bulkhead._permit()
    for give_back in (bulkhead._release, bulkhead._release, bulkhead._hand_over):
        give_back(claim)
        assert bulkhead.snapshot() == (1, 0)


def test_an_interrupt_when_an_async_loop_is_made_leaves_nothing_to_complain_about(recwarn):
    interrupting = Interrupting(kind=("call", "AsyncBlocks.__init__", None))
    unraisable, before = [], sys.unraisablehook
    sys.unraisablehook = unraisable.append
    try:
        assert interrupted(by_async_block, interrupting) == ("interrupted", [])
    finally:
        sys.unraisablehook = before
    assert interrupting.raised
    assert unraisable == []


@pytest.mark.slow
@not_under_coverage
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_an_interrupt_at_any_moment_leaves_nothing_behind(way):
    assert interrupted(way, Interrupting()) == ("page", [])
    number, found = 0, {}
    while True:
        number += 1
        interrupting = Interrupting(number)
        outcome, left = interrupted(way, interrupting)
        if interrupting.raised is None:
            break
        if outcome != "interrupted" or left:
            found[number, *interrupting.raised] = outcome, left
    assert found == {}
    assert number > 250


@TIMERS
@pytest.mark.slow
def test_real_interrupts_at_random_moments_leave_nothing_behind():
    code = """
        import gc

        gc.freeze()
        gc.disable()  # what is raised while the collector is at work is printed and lost
        interrupts, found, rng = 0, [], random.Random(1)
        while interrupts < int(sys.argv[1]):
            gc.collect()
            policy = guarded()
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 8e-4))
                    policy(scripted(TimeoutError("slow"), TimeoutError("slow"), "page"))()
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupts += 1
            found += unsound(policy)
        print(found)
    """
    handler = "signal.signal(signal.SIGALRM, signal.default_int_handler)\n"
    assert run(handler + textwrap.dedent(code), "5000" if LONG else "200", timeout=600) == ["[]"]


@pytest.mark.slow
def test_threads_that_are_ended_at_random_moments_keep_no_permit_of_a_policy():
    code = """
        import ctypes

        class Killed(BaseException):
            pass

        policy = guarded(
            clock=None, sleep=None, base=0.0, budget=TokenBudget(capacity=1e9), bulkhead=Bulkhead(3, queue=20),
            breaker=CircuitBreaker(failures=10**9), throttle=AdaptiveThrottle(),
        )
        over, inside = False, [False] * 4

        def work(number):
            rng = random.Random(number)

            def fetch():
                if rng.random() < 0.5:
                    raise TimeoutError("slow")

            decorated, inside[number] = policy(fetch), True
            while not over:
                try:
                    decorated()
                except TimeoutError:
                    pass

        def begun(number):
            thread = threading.Thread(target=work, args=(number,), daemon=True)
            thread.start()
            return thread

        threading.excepthook = lambda told: None if told.exc_type is Killed else sys.__excepthook__(*told[:3])
        sys.setswitchinterval(1e-6)
        threads, rng, kills = [begun(number) for number in range(4)], random.Random(7), 0
        while kills < int(sys.argv[1]):
            number = rng.randrange(4)
            if not inside[number]:
                time.sleep(0)
                continue
            ident = ctypes.c_ulong(threads[number].ident)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(Killed))
            threads[number].join(60)  # only then the next: not two at once in one thread
            assert not threads[number].is_alive()
            inside[number] = False
            threads[number] = begun(number)
            kills += 1
        over = True
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        print(unsound(policy))
    """
    assert run(code, "5000" if LONG else "200", timeout=600) == ["[]"]


# A stack that is nearly full


def depth():
    frame, count = sys._getframe(1), 0
    while frame is not None:
        frame, count = frame.f_back, count + 1
    return count


def sunk(frames, function):
    """Calls a function with so many frames more on the stack."""
    return function() if frames <= 0 else sunk(frames - 1, function)


def with_room_for(frames, function):
    """What a function gives that may go no deeper than so many frames."""
    try:
        return sunk(sys.getrecursionlimit() - depth() - frames - 3, function)
    except RecursionError:
        return "too deep"
    except TimeoutError:
        return "not retried"  # it was too deep to decide about it


untraced = pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer takes part of the stack")


@untraced
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_call_whose_stack_is_nearly_full_gives_its_result_or_a_recursion_error_and_keeps_nothing(way):
    assert way(guarded()) == "page"  # whatever is imported late is there
    outcomes = []
    for frames in range(2, 40):
        policy, context = guarded(), contextvars.Context()
        outcomes.append(with_room_for(frames, lambda: context.run(way, policy)))  # noqa: B023 - called at once
        assert context.run(unsound, policy) == []
    assert {"page", "too deep"} <= set(outcomes) <= {"page", "too deep", "not retried"}


def by_hand(bulkhead):
    bulkhead.acquire()
    try:
        return "page"
    finally:
        bulkhead.release()


def by_with(bulkhead):
    with bulkhead:
        return "page"


async def by_async_with(bulkhead):
    async with bulkhead:
        return "page"


@untraced
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # where there was no room to await it
@pytest.mark.parametrize(
    "way",
    [
        by_hand,
        by_with,
        lambda bulkhead: stepped(by_async_with(bulkhead)),
        lambda bulkhead: bulkhead(lambda: "page")(),
        lambda bulkhead: stepped(bulkhead(page)()),
        lambda bulkhead: Policy(bulkhead=bulkhead)(lambda: "page")(),
        lambda bulkhead: stepped(Policy(bulkhead=bulkhead)(page)()),
    ],
    ids=["by hand", "with", "async with", "decorator", "async decorator", "policy", "async policy"],
)
def test_a_place_that_could_be_taken_on_a_nearly_full_stack_can_be_given_back(way):
    outcomes = []
    for frames in range(1, 30):
        bulkhead = Bulkhead(1)
        outcomes.append(with_room_for(frames, lambda: way(bulkhead)))  # noqa: B023 - called at once
        assert bulkhead.snapshot() == (0, 0)
    assert "page" in outcomes


def test_a_predicate_without_end_is_asked_once_and_the_error_of_the_function_comes_out(flavour):
    asked, error = [], TimeoutError("slow")

    def endless():
        return endless()

    def predicate(failure):
        asked.append(failure)
        return endless()

    fetch = flavour.scripted(error, "page")
    with pytest.raises(TimeoutError) as caught:
        flavour.call(Policy(on=predicate, base=0.0), fetch)
    assert caught.value is error
    assert len(asked) == 1
    assert "RecursionError" in error.__notes__[0]


def test_a_listener_without_end_takes_no_part_in_the_call(flavour, clock):
    def listener(event):
        return listener(event)

    policy = Policy(listeners=[listener], clock=clock, sleep=clock.sleep)
    assert flavour.call(policy, flavour.scripted(TimeoutError(), "page")) == "page"


def test_a_decorated_function_that_calls_itself_without_end_is_not_retried_at_every_level():
    calls = []

    @retry(base=0.0)
    def endless():
        calls.append(1)
        return endless()

    began = time.monotonic()
    with pytest.raises(RecursionError):
        endless()
    assert len(calls) < sys.getrecursionlimit()
    assert time.monotonic() - began < 10
