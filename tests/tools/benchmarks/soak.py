"""Run redouble at scale: many calls at once, one call with a million retries, many threads for an hour.

    pip install -e ".[bench]"
    python tests/tools/benchmarks/soak.py            # three tables, in a few minutes
    python tests/tools/benchmarks/soak.py --check    # the same, exit status 1 if a goal is missed
    python tests/tools/benchmarks/soak.py --quick    # a tenth of everything

The first table is about 100,000 asyncio tasks that all wait for their next attempt (`memory.py` measures them). "with
its task" is all memory that one waiting call adds; "over a bare task" leaves out what `asyncio.sleep` in a task takes
without any library. The goal is about the first of the two.

The other two are in virtual time: one call that is retried a million times, and 64 threads that share one policy and its
guards for an hour with faults, outages and interrupts. At the end the invariants are checked, and violations are listed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import threading
import tracemalloc
from collections import Counter
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from random import Random
from time import perf_counter
from typing import TYPE_CHECKING, Any

if not __package__:  # run as a script: make the package findable, as pytest does
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.cases import GOALS, MEMORY
from benchmarks.memory import BARE, CONTESTANTS, REDOUBLE, TENACITY, measure_apart, traced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

CALLS, RETRIES, MINUTES, THREADS = 100_000, 1_000_000, 60, 64
# Memory of a waiting call, times tenacity's, as in cases.py; bytes that a long run may grow by.
SHARE, FLAT = next(goal.limit for goal in GOALS if goal.path == MEMORY), 64_000


# Many calls in backoff at once


def calls_in_backoff(calls: int) -> Iterator[str]:
    """Print the table; yield the goals that are missed."""
    print(
        f"\n{f'{calls:,} calls in backoff at once, bytes each':<46}{'with its task':>14}{'over a bare one':>17}"
    )
    for how in ("resident", "traced"):
        sizes = {name: measure_apart(name, calls, how) for name in CONTESTANTS}
        floor = sizes[BARE] or 0.0
        for name, size in sizes.items():
            shown = "not installed" if size is None else f"{size:>14,.0f}{size - floor:>17,.0f}"
            print(f"  {f'{name}, {how}':<44}{shown}", flush=True)
        own, other = sizes[REDOUBLE], sizes[TENACITY]
        if own is None or other is None:
            yield "tenacity is not installed, and the goal is about it: pip install -e '.[bench]'"
            continue
        ratio, over = own / other, (own - floor) / (other - floor)
        verdict = "ok" if ratio <= SHARE else "MISSED"
        print(
            f"  redouble takes {ratio:.2f} x of tenacity (goal <= {SHARE} x: {verdict}), {over:.2f} x over a bare task"
        )
        if ratio > SHARE:
            yield f"a call in backoff, {how}: {ratio:.3f} x of tenacity's, the goal is {SHARE} x"


# One call for long


@dataclass
class Lasting:
    """How much memory one long call grew by, and the shape of the error that it raised."""

    grown: int
    chain: int
    trace: int
    notes: int

    def problems(self) -> list[str]:
        found = [f"grew by {self.grown:,} bytes, {FLAT:,} are allowed"] if self.grown >= FLAT else []
        found += [f"is chained to {self.chain} errors before it"] if self.chain else []
        found += [f"has {self.trace} frames in its traceback"] if self.trace > 10 else []
        return found + ([f"has {self.notes} notes"] if self.notes != 1 else [])


def every_field(clock: Callable[[], float]) -> dict[str, Any]:
    """Return the fields of a policy that keeps as much of its failures as possible."""
    from redouble import Rule
    from redouble.breaker import CircuitBreaker
    from redouble.budget import TokenBudget
    from redouble.throttle import AdaptiveThrottle

    return {
        "deadline": 1e12,
        "rules": {TimeoutError: Rule(recover=lambda error: None)},
        "budget": TokenBudget(capacity=1e12),
        "breaker": CircuitBreaker(failures=10**12, clock=clock),
        "throttle": AdaptiveThrottle(clock=clock),
        "idempotency_key": True,
        "listeners": [lambda event: None],
    }


def lasting(retries: int, *, since: int, asynchronous: bool, full: bool) -> Lasting:
    """Make one call with `retries` retries; return how much memory it grew by after the first `since`."""
    from redouble import Policy

    now, waits, sizes = [0.0], [0], []

    def sleep(seconds: float) -> None:
        now[0] += seconds
        waits[0] += 1
        if waits[0] in (since, retries):
            gc.collect()
            sizes.append(traced())

    async def sleep_async(seconds: float) -> None:
        sleep(seconds)
        await asyncio.sleep(0)  # as any wait does: a loop that gets no turn keeps its timers

    def clock() -> float:
        return now[0]

    fields = every_field(clock) if full else {}
    fields["sleep"] = sleep_async if asynchronous else sleep
    policy = Policy(attempts=retries + 1, clock=clock, name="fetch", **fields)
    tracemalloc.start()
    try:
        error = _outcome(policy, asynchronous)
    finally:
        tracemalloc.stop()
    early, late = sizes
    return Lasting(late - early, _chain(error), _frames(error), len(error.__notes__))


def _outcome(policy: Any, asynchronous: bool) -> Any:
    def fetch() -> None:
        raise TimeoutError("slow")

    async def fetch_async() -> None:
        raise TimeoutError("slow")

    try:
        if asynchronous:
            asyncio.run(policy(fetch_async)())
        else:
            policy(fetch)()
    except TimeoutError as error:
        return error
    raise AssertionError("no error was raised")


def _chain(error: BaseException | None) -> int:
    length = -1
    while error is not None:
        length, error = length + 1, error.__cause__ or error.__context__
    return length


def _frames(error: BaseException) -> int:
    length, trace = 0, error.__traceback__
    while trace is not None:
        length, trace = length + 1, trace.tb_next
    return length


def one_long_call(retries: int) -> Iterator[str]:
    since = retries // 100
    print(f"\n{f'one call, from {since:,} retries on, bytes':<46}{'grew by':>14}{'frames':>17}")
    for asynchronous in (False, True):
        for full in (False, True):
            count = retries // 10 if full else retries
            fields = "every field" if full else "default policy"
            what = f"{'async' if asynchronous else 'sync'}, {fields}, {count:,} retries"
            found = lasting(count, since=since, asynchronous=asynchronous, full=full)
            print(f"  {what:<44}{found.grown:>14,}{found.trace:>17}", flush=True)
            yield from [f"one long call, {what}: {problem}" for problem in found.problems()]


# Many threads for an hour


class VirtualTime:
    """A clock for threads that stands still while any of them works, and then jumps to the next wake-up time.

    Waits end at whole ticks, so that many threads wake at the same time and really run side by side.
    """

    TICK = 0.25

    def __init__(self) -> None:
        self.now = 0.0
        self._lock = threading.Lock()
        self._working = 0
        self._sleepers: list[tuple[float, int, Any]] = []
        self._count = 0

    def __call__(self) -> float:
        return self.now

    def begin(self, threads: int) -> None:
        self._working += threads

    def leave(self) -> None:
        with self._lock:
            self._working -= 1
            self._move_on()

    def sleep(self, seconds: float) -> None:
        asleep = threading.Lock()
        asleep.acquire()
        with self._lock:
            wakes = ((self.now + seconds) // self.TICK + 1) * self.TICK
            self._count += 1
            heappush(self._sleepers, (wakes, self._count, asleep))
            self._working -= 1
            self._move_on()
        asleep.acquire()

    def _move_on(self) -> None:
        if self._working or not self._sleepers:
            return
        self.now = self._sleepers[0][0]
        while self._sleepers and self._sleepers[0][0] <= self.now:
            heappop(self._sleepers)[2].release()
            self._working += 1


class Interrupt(BaseException):
    """Stands for `KeyboardInterrupt` in an attempt or a wait; not an `Exception`."""


class Throttled(Exception):
    """An error with the status 429."""

    status_code = 429


@dataclass
class Workers:
    """Threads that share one policy, its guards and a service with faults and outages."""

    threads: int
    seed: int = 1
    time: VirtualTime = field(default_factory=VirtualTime)
    made: Counter[str] = field(default_factory=Counter)
    told: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        from redouble import Policy
        from redouble.breaker import CircuitBreaker
        from redouble.budget import TokenBudget
        from redouble.bulkhead import Bulkhead
        from redouble.events import with_successes
        from redouble.metrics import Counters
        from redouble.throttle import AdaptiveThrottle

        self._lock = threading.Lock()
        self._mine = threading.local()
        self.budget = TokenBudget(capacity=200)
        self.breaker = CircuitBreaker(
            failure_rate=0.5, window=10, open_for=5, probes=3, successes=2, clock=self.time
        )
        self.throttle = AdaptiveThrottle(min_rate=2.0, clock=self.time)
        self.bulkhead = Bulkhead(max(2, self.threads * 3 // 4))
        self.counters = Counters(successes=True)
        self.policy = Policy(
            attempts=5, base=0.5, cap=8.0, deadline=20.0, clock=self.time, sleep=self._wait,
            budget=self.budget, breaker=self.breaker, throttle=self.throttle, bulkhead=self.bulkhead,
            listeners=[self.counters, with_successes(self._hear)], name="fetch",
        )  # fmt: skip
        self.fetch = self.policy(self._fetch)

    def run(self, seconds: float) -> None:
        """Let all threads make calls for `seconds` of virtual time."""
        ends = self.time.now + seconds
        self.time.begin(self.threads)
        workers = [
            threading.Thread(
                target=self._work, args=(Random(f"{self.seed} {number} {ends}"), ends), daemon=True
            )
            for number in range(self.threads)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(600)
        alive = sum(worker.is_alive() for worker in workers)
        self.wrong += [f"{alive} threads never ended"] if alive else []

    def _work(self, rng: Random, ends: float) -> None:
        self._mine.rng, made = rng, Counter[str]()
        try:
            while self.time.now < ends:
                self.time.sleep(rng.uniform(0.0, 3.0))
                self._call(rng, made)
        except BaseException as error:
            self.wrong.append(f"a thread ended with {error!r}")
        finally:
            with self._lock:
                self.made += made
            self.time.leave()

    def _call(self, rng: Random, made: Counter[str]) -> None:
        attempts = [0]
        try:
            outcome = "returned" if self.fetch(rng, attempts) is attempts else "given something else"
        except Interrupt:
            outcome = "interrupted"
            made["attempts, then interrupted"] += attempts[0]
        except Exception:
            outcome = "raised"
        made[outcome] += 1
        made["calls"] += 1
        made["attempts"] += attempts[0]

    def _fetch(self, rng: Random, attempts: list[int]) -> list[int]:
        attempts[0] += 1
        self.time.sleep(rng.expovariate(4.0))
        tenth, chance = self.time.now % 100 // 10, rng.random()  # ten seconds of each hundred are an outage
        if chance < 0.01:
            raise Interrupt
        if chance < 0.02:
            raise ValueError("never retried")
        if tenth == 4 and chance < 0.4:
            raise Throttled("slow down")
        if chance < (0.9 if tenth == 2 else 0.12):
            raise TimeoutError("slow")
        return attempts

    def _wait(self, seconds: float) -> None:
        if self._mine.rng.random() < 0.005:
            raise Interrupt
        self.time.sleep(seconds)

    def _hear(self, event: Any) -> None:
        kind, tokens = type(event).__name__, self.budget.tokens
        with self._lock:
            self.told[kind] += 1
            if kind in ENDINGS:
                self.told["attempts"] += event.attempt
            if not 0.0 <= tokens <= self.budget.capacity:
                self.wrong.append(f"{tokens} tokens in the budget")

    def problems(self) -> Iterator[str]:
        """Yield the invariants that do not hold once all calls have ended."""
        made, told = self.made, self.told
        ended = sum(told[kind] for kind in ENDINGS)
        counts = self.counters.snapshot().policies["fetch"]
        for what, one, other in (
            ("calls, and endings reported or interrupts", made["calls"], ended + made["interrupted"]),
            (
                "calls that returned, and successes reported",
                made["returned"],
                told["Succeeded"] + told["Recovered"],
            ),
            ("calls that raised, and failures reported", made["raised"], sum(told[kind] for kind in LOST)),
            (
                "attempts, and attempts reported",
                made["attempts"],
                told["attempts"] + made["attempts, then interrupted"],
            ),
            ("endings counted, and reported", counts.calls, ended),
            ("retries counted, and reported", counts.retries, told["Retrying"]),
            ("slots taken in the bulkhead", self.bulkhead.snapshot(), (0, 0)),
            ("probes in flight", self.breaker._circuit.phase.probes, 0),
            ("results of another call", made["given something else"], 0),
        ):
            if one != other:
                yield f"{what}: {one} and {other}"
        if self.throttle.rate is not None and self.throttle.rate < self.throttle.min_rate:
            yield f"the throttle allows {self.throttle.rate} calls a second"
        yield from self.wrong

    def summary(self) -> str:
        names = ("Succeeded", "Recovered", "GaveUp", "Expired", "Refused", "Retrying", "CircuitChanged")
        told = ", ".join(f"{self.told[name]:,} {name}" for name in names)
        return f"{self.made['calls']:,} calls: {told}, {self.made['interrupted']:,} interrupted"


LOST = ("GaveUp", "Expired", "Refused")
ENDINGS = ("Succeeded", "Recovered", *LOST)


def run_workers(threads: int, seconds: float, *, parts: int = 10) -> tuple[Workers, int, list[str]]:
    """Run the threads in parts; return them, the bytes they grew by since the second part, and violated invariants."""
    before, interval = threading.active_count(), sys.getswitchinterval()
    workers, sizes = Workers(threads), []
    sys.setswitchinterval(1e-5)
    tracemalloc.start()
    try:
        for _ in range(parts):
            workers.run(seconds / parts)
            workers.counters.snapshot()
            gc.collect()
            sizes.append(traced())
    finally:
        tracemalloc.stop()
        sys.setswitchinterval(interval)
    grown, found = sizes[-1] - sizes[1], list(workers.problems())
    found += [f"grew by {grown:,} bytes, {FLAT:,} are allowed"] if grown >= FLAT else []
    found += ["threads are left"] if threading.active_count() != before else []
    return workers, grown, found


def threads_for_long(minutes: int) -> Iterator[str]:
    print(
        f"\n{minutes} minutes of virtual time, {THREADS} threads, one policy with budget, breaker, throttle, bulkhead"
    )
    workers, grown, found = run_workers(THREADS, minutes * 60.0)
    print(
        f"  {workers.summary()}\n  grew by {grown:,} bytes; violated invariants: {len(found)}",
        flush=True,
    )
    yield from [f"{THREADS} threads: {problem}" for problem in found]


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parsed(argv)
    share, began = 10 if arguments.quick else 1, perf_counter()
    print(f"Python {sys.version.split()[0]}")
    found = [
        *calls_in_backoff(CALLS // share),
        *one_long_call(RETRIES // share),
        *threads_for_long(MINUTES // share),
    ]
    print(f"\nin {perf_counter() - began:.0f} s")
    if found:
        print("\n".join(f"MISSED  {problem}" for problem in found))
    return 1 if found and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
