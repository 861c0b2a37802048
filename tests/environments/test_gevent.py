"""Under gevent, with the standard library patched: waits, queues and races do not block other greenlets.

.ci/environments runs this in an interpreter that is patched before anything else is imported.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time

import gevent
import gevent.event
import pytest
from gevent import monkey

from conftest import watchdog
from redouble import DeadlineExceeded, Policy, current_attempt, retry, retrying
from redouble.backoff import fixed
from redouble.breaker import CircuitBreaker
from redouble.budget import TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.dead_letters import DeadLetters
from redouble.errors import CircuitOpen
from redouble.hedging import hedge
from redouble.testing import no_waits, scripted
from redouble.throttle import AdaptiveThrottle


@pytest.fixture(autouse=True)
def no_blocked_hub():
    """Fail a test that blocks the hub: it would wait for ever."""
    assert monkey.is_module_patched("threading")
    with watchdog():
        yield


def all_of(*greenlets):
    """Run greenlets to their end; raise the first error."""
    gevent.joinall(greenlets, raise_error=True)
    return [greenlet.value for greenlet in greenlets]


def test_a_wait_lets_other_greenlets_run():
    order = []

    def listener(event):
        order.append("waits")

    @retry(attempts=2, base=0.01, backoff=fixed, listeners=[listener])
    def fetch():
        if not order:
            raise TimeoutError
        order.append("fetched")

    def other():
        order.append("ran")

    all_of(gevent.spawn(fetch), gevent.spawn(other))
    assert order == ["waits", "ran", "fetched", "waits"]  # the last is told that the call recovered


def test_a_wait_of_a_block_lets_other_greenlets_run():
    ran, seen = gevent.event.Event(), []

    def block():
        for attempt in retrying(attempts=2, base=0.01, backoff=fixed):
            with attempt:
                if attempt.number == 1:
                    raise TimeoutError
                seen.append(ran.is_set())

    all_of(gevent.spawn(block), gevent.spawn(ran.set))
    assert seen == [True]


def test_the_waits_of_many_greenlets_pass_side_by_side():
    policy = Policy(attempts=3, base=0.05, backoff=fixed)
    began = time.monotonic()
    calls = [scripted(TimeoutError(), OSError("lost"), number) for number in range(100)]
    assert all_of(*(gevent.spawn(policy.replace(on=OSError).call, call) for call in calls)) == list(
        range(100)
    )
    assert time.monotonic() - began < 5.0  # one after the other they would take 10 s


def test_a_greenlet_that_waits_for_a_place_is_handed_it_by_another():
    bulkhead = Bulkhead(1, queue=1)
    inside = []

    @bulkhead
    def fetch(name):
        inside.append(bulkhead.under_way)
        gevent.sleep(0.001)
        return name

    assert all_of(gevent.spawn(fetch, "first"), gevent.spawn(fetch, "second")) == ["first", "second"]
    assert inside == [1, 1]
    assert bulkhead.at_rest


def test_a_wait_for_a_place_ends_in_time():
    bulkhead = Bulkhead(1, queue=1)
    assert bulkhead.acquire()
    assert all_of(gevent.spawn(bulkhead.acquire, 0.01)) == [False]
    assert bulkhead.snapshot() == (1, 0)


def test_a_greenlet_that_is_killed_in_a_queue_leaves_the_line():
    bulkhead = Bulkhead(1, queue=1)
    assert bulkhead.acquire()
    waiting = gevent.spawn(bulkhead.acquire)
    gevent.sleep(0)
    assert bulkhead.waiting == 1
    waiting.kill()
    assert bulkhead.snapshot() == (1, 0)


def test_a_greenlet_that_is_killed_in_its_wait_gives_back_what_it_held():
    bulkhead, breaker = Bulkhead(1), CircuitBreaker(failures=9)
    policy = Policy(base=60.0, backoff=fixed, on=OSError, bulkhead=bulkhead, breaker=breaker)
    calling = gevent.spawn(policy.call, scripted(OSError("lost"), "never"))
    gevent.sleep(0)
    assert bulkhead.under_way == 1
    calling.kill()
    assert isinstance(calling.value, gevent.GreenletExit)
    assert bulkhead.at_rest


def test_a_timeout_of_gevent_is_no_failure():
    calls = []

    @retry(on=Exception, base=0.0)
    def fetch():
        calls.append(1)
        gevent.sleep(60)

    with gevent.Timeout(0.01, exception=False) as timeout:
        fetch()
    assert (calls, timeout.pending) == ([1], False)


def test_of_64_greenlets_one_probes_a_half_open_breaker(clock):
    breaker = CircuitBreaker(failures=1, open_for=30.0, probes=1, clock=clock)
    with pytest.raises(TimeoutError), breaker:
        raise TimeoutError
    clock.advance(30.0)
    all_have_asked, refused = gevent.event.Event(), []

    def call():
        try:
            with breaker:
                return all_have_asked.wait(60)
        except CircuitOpen:
            refused.append(1)
            if len(refused) == 63:
                all_have_asked.set()

    answers = all_of(*(gevent.spawn(call) for _ in range(64)))
    assert (answers.count(True), len(refused)) == (1, 63)


def test_a_throttle_holds_back_one_greenlet_and_not_the_others():
    throttle = AdaptiveThrottle()
    order = []

    @throttle
    def fetch():
        order.append("fetched")

    for _ in range(3):
        throttle.throttled()
    while throttle.retry_after == 0.0:
        throttle.acquire()
    all_of(gevent.spawn(fetch), gevent.spawn(order.append, "ran"))
    assert order == ["ran", "fetched"]


def test_a_slow_greenlet_is_overtaken_by_its_hedge():
    began = []

    @hedge(after=0.01, attempts=2)
    def fetch():
        began.append(threading.current_thread().name)
        if len(began) == 1:
            time.sleep(5.0)
        return "second"

    now = time.monotonic()
    assert all_of(gevent.spawn(fetch)) == ["second"]
    assert len(set(began)) == 2
    assert time.monotonic() - now < 4.0


def test_each_greenlet_has_its_own_attempt_and_deadline():
    seen = []

    @retry(attempts=3, base=0.001, backoff=fixed, deadline=50.0)
    def with_deadline(name):
        gevent.sleep(0)
        seen.append((name, current_attempt().number))
        if current_attempt().number < 3:
            raise TimeoutError

    def without():
        for _ in range(4):
            gevent.sleep(0.001)
            seen.append(("none", current_attempt()))

    all_of(gevent.spawn(with_deadline, "a"), gevent.spawn(without), gevent.spawn(with_deadline, "b"))
    for name in "ab":
        assert [number for who, number in seen if who == name] == [1, 2, 3]
    assert [number for who, number in seen if who == "none"] == [None] * 4


def test_a_deadline_ends_a_call_whose_greenlet_was_kept_waiting():
    policy = Policy(deadline=0.05, base=0.03, backoff=fixed, attempts=9)

    def fetch():
        gevent.sleep(0.02)
        raise TimeoutError

    with pytest.raises(DeadlineExceeded):
        all_of(gevent.spawn(policy.call, fetch))


def test_greenlets_share_a_budget_to_the_last_token():
    budget = TokenBudget(capacity=50, cost=5)
    policy = Policy(attempts=2, base=0.001, backoff=fixed, on=OSError, budget=budget)

    def call():
        with pytest.raises(OSError, match="lost"):
            policy.call(scripted(OSError("lost"), OSError("lost")))

    all_of(*(gevent.spawn(call) for _ in range(30)))
    assert budget.tokens == 0


def test_waits_are_left_out_where_a_greenlet_says_so_and_nowhere_else():
    def without_waiting():
        with no_waits() as waits:
            gevent.sleep(0.001)
            retry(base=30.0, backoff=fixed)(scripted(TimeoutError(), 1))()
            return list(waits)

    order = []
    waiting = gevent.spawn(retry(base=0.02, backoff=fixed)(scripted(TimeoutError(), 2)))
    waiting.link(lambda _: order.append("waited"))
    at_once = gevent.spawn(without_waiting)
    at_once.link(lambda _: order.append("at once"))
    assert all_of(waiting, at_once) == [2, [30.0]]
    assert order == ["at once", "waited"]


def test_greenlets_write_dead_letters_side_by_side(tmp_path):
    with DeadLetters(tmp_path / "letters.db") as letters:
        policy = Policy(attempts=2, base=0.001, backoff=fixed, on=OSError, dead_letters=letters)

        def call(number):
            with pytest.raises(OSError, match="lost"):
                policy.call(scripted(OSError("lost"), OSError("lost")), number)

        all_of(*(gevent.spawn(call, number) for number in range(20)))
        assert letters.depth() == 20


def test_a_library_that_is_patched_after_its_import_is_patched_all_the_same():
    code = """
        from redouble import retry
        from redouble.backoff import fixed
        from redouble.bulkhead import Bulkhead
        from redouble.testing import scripted

        before = Bulkhead(1, queue=1)
        fetch = retry(base=0.01, backoff=fixed)(scripted(TimeoutError(), "fetched"))
        from gevent import monkey
        monkey.patch_all()
        import gevent

        order = []
        calls = gevent.spawn(lambda: order.append(fetch())), gevent.spawn(order.append, "ran")
        gevent.joinall(calls, raise_error=True)

        def enter(name):
            with before:
                gevent.sleep(0.001)
                order.append(name)

        gevent.joinall([gevent.spawn(enter, 1), gevent.spawn(enter, 2)], raise_error=True)
        print(order)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=20, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("['ran', 'fetched', 1, 2]", "")
