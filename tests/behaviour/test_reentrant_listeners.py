"""Listeners that call the function they listen to; interrupts, threads and forks."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path

import pytest

from redouble import Policy, events
from redouble.backoff import exponential
from redouble.events import (
    correlate,
    with_successes,
)


@pytest.fixture
def heard():
    return []


@pytest.fixture
def correlating():
    yield correlate
    correlate(None)


def kinds(events):
    return [type(event).__name__ for event in events]


def counting(clock, heard, **fields):
    fields = {"backoff": exponential, "name": "fetch", "clock": clock, "sleep": clock.sleep, **fields}
    return Policy(listeners=[with_successes(heard.append)], **fields)


def test_a_listener_that_calls_the_function_again_is_not_told_of_its_own_calls(flavour, clock):
    heard = []

    def listener(event):
        heard.append(type(event).__name__)
        with pytest.raises(TimeoutError):
            policy.call(_times_out)

    policy = Policy(attempts=3, base=0.0, listeners=[listener], clock=clock, sleep=clock.sleep)
    with pytest.raises(TimeoutError):
        flavour.call(policy, flavour.function(_times_out))
    assert heard == ["Retrying", "Retrying", "GaveUp"]


def _times_out():
    raise TimeoutError("slow")


def test_other_listeners_hear_of_the_calls_that_a_listener_makes(clock, heard):
    def again(event):
        with pytest.raises(TimeoutError):
            policy.replace(name="inner", attempts=1).call(_times_out)

    policy = Policy(attempts=1, name="outer", listeners=[again, heard.append])
    with pytest.raises(TimeoutError):
        policy.call(_times_out)
    assert [event.name for event in heard] == ["inner", "outer"]


def test_a_log_handler_that_calls_the_function_again_comes_to_an_end(clock):
    class Handler(logging.Handler):
        def emit(self, record):
            records.append(record.getMessage())
            with pytest.raises(TimeoutError):
                policy.call(_times_out)

    records, handler, logger = [], Handler(), logging.getLogger("redouble")
    policy = Policy(attempts=2, base=0.0, clock=clock, sleep=clock.sleep)
    logger.addHandler(handler)
    try:
        with pytest.raises(TimeoutError):
            policy.call(_times_out)
    finally:
        logger.removeHandler(handler)
    assert [record.partition(" ")[0] for record in records] == ["retrying", "gave"]


def test_a_correlate_hook_that_calls_a_retried_function_comes_to_an_end(clock, heard, correlating):
    @correlating
    def trace():
        with pytest.raises(TimeoutError):
            policy.call(_times_out)
        return {"trace_id": "1"}

    policy = Policy(attempts=1, listeners=[heard.append])
    with pytest.raises(TimeoutError):
        policy.call(_times_out)
    assert [dict(event.correlation) for event in heard] == [{}, {"trace_id": "1"}]


def test_a_listener_is_told_in_every_thread_at_once(clock):
    inside, heard = threading.Barrier(4, timeout=10), []

    def listener(event):
        inside.wait()
        heard.append(event)

    def call():
        with pytest.raises(TimeoutError):
            policy.call(_times_out)

    policy = Policy(attempts=1, listeners=[listener])
    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kinds(heard) == ["GaveUp"] * 4


def test_a_listener_that_was_interrupted_is_told_again(clock, heard):
    def listener(event):
        heard.append(event)
        if len(heard) == 1:
            raise KeyboardInterrupt

    policy = Policy(attempts=1, listeners=[listener])
    with pytest.raises(KeyboardInterrupt):
        policy.call(_times_out)
    with pytest.raises(TimeoutError):
        policy.call(_times_out)
    assert kinds(heard) == ["GaveUp", "GaveUp"]


# In a process of its own: an interrupt within the measurement of coverage would stop that for good.
INTERRUPTED = """
    import signal
    from redouble import Policy
    from redouble.events import with_successes

    class Interrupt(BaseException):
        pass

    def interrupt(*_):
        raise Interrupt

    heard = []
    policy = Policy(listeners=[with_successes(lambda event: heard.append(1))])
    signal.signal(signal.SIGALRM, interrupt)
    for delay in range(1, 1500):
        try:
            signal.setitimer(signal.ITIMER_REAL, delay * 2e-7 + 2e-5)
            while True:
                policy.call(str)
        except Interrupt:
            pass
    heard.clear()
    policy.call(str)
    print(heard)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no such signals here")
def test_an_interrupt_at_any_moment_leaves_no_listener_deaf():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(INTERRUPTED)],
        env={**os.environ, "PYTHONPATH": str(Path(events.__file__).parent.parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[1]\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_threads_of_a_forked_child_hear_of_their_own_calls():
    inside, go = threading.Event(), threading.Event()

    def listener(event):
        inside.set()
        go.wait(60)

    policy = Policy(listeners=[with_successes(listener)])
    thread = threading.Thread(target=policy.call, args=(str,))
    thread.start()
    inside.wait(60)
    assert len(events._running) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads, which is the point
        child = os.fork()
    if not child:
        os._exit(len(events._running))
    go.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
