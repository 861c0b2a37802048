"""Random policies against random faults, sync and async, and what must hold for every call.

    python tests/fuzzing.py 1234            the scenario of seed 1234 once more, told step by step
    python tests/fuzzing.py 1234 50000      so many steps from that seed on, and what they reached

A scenario is a policy with its guards, drawn from a seed, and some calls under it. What an attempt does, how
long it takes and which callback misbehaves is drawn on the way, from the same generator, so the seed tells it
all. It runs three times: sync on a clock of its own; async on an event loop with virtual time, which must
leave the same trace; and, if the policy has guards, with a crowd of tasks that call at once.

A step is one attempt or one wait. What does not hold is `Found`, with the way to see it again.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import sys
import time
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from decimal import Decimal
from email.utils import formatdate
from functools import partial
from math import isfinite
from random import Random
from types import CoroutineType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from conftest import VirtualLoop
from redouble import (
    BulkheadFull,
    Cause,
    CircuitOpen,
    DeadlineExceeded,
    Policy,
    RedoubleError,
    ResultRejected,
    Rule,
    Verdict,
    _async,
    backoff,
    history,
    retrying,
)
from redouble.breaker import TRANSITIONS, Breaker, CircuitBreaker, State
from redouble.budget import Budget, RatioBudget, TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.classify import Classifier
from redouble.context import current, current_attempt, incoming, outgoing_headers, running_in
from redouble.events import (
    CircuitChanged,
    Event,
    Expired,
    GaveUp,
    Reason,
    Recovered,
    Refused,
    Retrying,
    Succeeded,
    with_successes,
)
from redouble.testing import capped, retries_disabled
from redouble.throttle import AdaptiveThrottle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Outcome = tuple[str, Any, float | None]

TERMINAL = (Recovered, GaveUp, Expired, Refused)
# The reasons for which a call is kept, and for which its fallback answers.
LOST = frozenset(Reason) - {Reason.disabled, Reason.not_retryable, Reason.nested, Reason.callback}
WAYS = {(before, after) for (before, _), after in TRANSITIONS.items()}
WALL = 1_790_000_000.0
STAND_IN = object()
INF, NAN = float("inf"), float("nan")

# Whose call is running, for the callbacks that many share.
who: ContextVar[Caller] = ContextVar("who")


class Found(AssertionError):
    """Something that must hold for every call does not."""


# Faults


class Odd(Exception):
    """Known to nobody."""


class Bye(BaseException):
    """An interrupt of the user's own."""


class Answer(Exception):
    """An HTTP answer, as clients report it."""

    def __init__(self, status: Any, headers: Any, method: str) -> None:
        super().__init__(f"HTTP {status if type(status) is int and status < 600 else '?'}")
        request = SimpleNamespace(method=method, headers={})
        self.response = SimpleNamespace(status_code=status, headers=headers, request=request)


def refuse(*_: object) -> Any:
    raise RuntimeError("not for you")


class Unprintable(TimeoutError):
    __str__ = __repr__ = __eq__ = __hash__ = __bool__ = refuse


class Thorny(ConnectionError):
    response = status = status_code = retry_after = headers = code = request = property(refuse)


class Noteless(TimeoutError):
    add_note = refuse
    __notes__ = property(refuse)


class Mute(TimeoutError):
    __getattribute__ = refuse


class Frozen(TimeoutError):
    __setattr__ = refuse


class Everything(TimeoutError):
    def __getattr__(self, name: str) -> Any:
        return self


class Particular(ConnectionResetError):
    __slots__ = ()

    def __init__(self, one: object, two: object, three: object) -> None:
        super().__init__(one, two)


class Suspicious(type):
    __instancecheck__ = refuse


class Unaskable(Exception, metaclass=Suspicious):
    """For ``on``: to ask whether something is one raises."""


HOSTILE = [
    Unprintable, Thorny, Noteless, Mute, Frozen, Everything, lambda: Particular(1, 2, 3),
    lambda: TimeoutError("x" * 5000), OSError, lambda: Answer("503", [("Retry-After", object())], "GET"),
    lambda: Answer(True, Everything(), "get"), lambda: Answer(10**400, {1: 2}, "POST"),
]  # fmt: skip
TRANSIENT = [
    lambda: TimeoutError("slow"), lambda: ConnectionResetError(104, "reset"), ConnectionRefusedError,
    lambda: BrokenPipeError("pipe"),
]  # fmt: skip
PERMANENT = [lambda: ValueError("bad"), lambda: KeyError("id"), Odd]
INTERRUPTS = [
    KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, Bye,
    lambda: BaseExceptionGroup("both", [TimeoutError(), BaseExceptionGroup("deep", [KeyboardInterrupt()])]),
]  # fmt: skip
OWN = [
    *[partial(CircuitOpen, "of others", name="other", retry_after=wait) for wait in (0.5, None, NAN, INF, -1, "soon")],
    partial(DeadlineExceeded, "of others", attempts=1, elapsed=0.0),
    partial(BulkheadFull, "of others", name="other", limit=1),
    partial(ResultRejected, "of others", result=None, attempts=1),
]  # fmt: skip
# A Retry-After, and the seconds that it asks for; None where it asks for nothing.
HINTS: list[tuple[Any, float | None]] = [
    ("1", 1.0), ("2.5", 2.5), ("7", 7.0), (b"3", 3.0), (4, 4.0), ("60", 60.0), ("500", 500.0), ("0", 0.0),
    ("1000000000", 1e9), ("1,9", 9.0), ("-1", None), ("soon", None), ("", None), ("1e3", None), ("nan", None),
    ("\u0663", None), ("9" * 400, None), (NAN, None), (INF, None), (object(), None),
]  # fmt: skip
STATUSES = [429, 429, 429, 503, 503, 503, 503, 500, 502, 504, 408, 529, 599, 409, 403, 401, 404, 200]
# How often each fault comes, by the mood that a scenario is in.
KINDS = [
    "result",
    "transient",
    "http",
    "permanent",
    "refused",
    "hostile",
    "group",
    "same",
    "own",
    "interrupt",
    "stop",
]
MOODS = [
    [kind for kind, often in zip(KINDS, mood, strict=True) for _ in range(often)]
    for mood in (
        [30, 50, 10, 1, 4, 3, 2, 2, 1, 1, 1],
        [2, 80, 20, 0, 4, 5, 2, 3, 0, 1, 0],
        [5, 90, 5, 0, 0, 0, 0, 1, 0, 0, 0],
        [10, 30, 50, 1, 8, 3, 2, 2, 1, 1, 0],
        [4, 6, 4, 1, 2, 2, 1, 1, 1, 1, 1],
        [50, 45, 5, 0, 0, 0, 0, 0, 0, 0, 0],
    )
]


# Where code of the user's runs, and may raise, take its time or be interrupted.
PLACES = [
    "listener", "on", "until", "backoff", "enabled", "recover", "fallback", "payload", "letters", "sleep", "budget",
    "breaker", "key", "ignore",
]  # fmt: skip


# Guards of the user's own, which misbehave


class Moody(Budget):
    """Says yes and no as it likes, and sometimes raises."""

    def __init__(self, world: World) -> None:
        super().__init__(name="moody")
        self._world = world

    def acquire(self, *, timeout: bool = False, priority: int = 0) -> float:
        self._world.hazard("budget")
        return self._world.pick([0.0, 1.0, 1.0, 1.0])

    def success(self, cost: float = 0.0) -> None:
        self._world.hazard("budget")

    failure = success


class Grumpy(Breaker):
    """Lets everybody through, and sometimes raises."""

    def __init__(self, world: World) -> None:
        super().__init__("grumpy")
        self._world = world

    def enter(self, *_: Any) -> int:
        self._world.hazard("breaker")
        return 1

    def success(self, *_: Any) -> None:
        self._world.hazard("breaker")

    failure = release = success

    def refuses(self) -> bool:
        self._world.hazard("breaker")
        return False


class Letters:
    """Where dead letters go, and sometimes do not."""

    def __init__(self, world: World) -> None:
        self._world = world

    def put(self, **fields: Any) -> Any:
        who.get().letters += 1
        self._world.hazard("letters")
        given = {"function": "call", "queue": "dead", "id": "1", "error_type": "", "error_message": ""}
        return SimpleNamespace(**given, attempts=fields["attempts"])

    async def aput(self, **fields: Any) -> Any:
        return self.put(**fields)


# Time


class Clock:
    """Time of the sync flavour."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Loop(VirtualLoop):
    """A loop whose time can be set, and never jumps to a timer that was cancelled."""

    def _run_once(self) -> None:
        timers = self._scheduled
        while timers and timers[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(timers)._scheduled = False
        if not timers and not self._ready:
            raise Found("all tasks wait for each other")
        if timers:  # in some centuries from now, a nanosecond is nothing to a float
            self._clock_resolution = max(1e-9, 1e-15 * timers[0]._when)
        super()._run_once()

    @property
    def now(self) -> float:
        return self._virtual_now

    @now.setter
    def now(self, now: float) -> None:
        self._virtual_now = now

    __call__ = VirtualLoop.time


# Scenarios


class World:
    """One scenario in one flavour: what was drawn, the time, and the trace."""

    def __init__(self, seed: int, loop: Loop | None, tally: Counter[str], *, crowd: bool = False) -> None:
        self.seed, self.loop, self.tally, self.crowd = seed, loop, tally, crowd
        self.rng = Random(seed)
        self.random = self.rng.random
        # For what may differ between the flavours.
        self.own = Random(2 * seed + (loop is not None)).random
        self.clock: Any = Clock() if loop is None else loop
        self.clock.now = self.pick([0.0, 12.345, 1e6])
        self.trace: list[tuple[Any, ...]] = []
        self.wrong: list[str] = []
        self.steps = self.cuts = self.in_flight = self.held = 0
        self.jump = 0.0
        self.circuit = State.closed
        self.outer_ends: float | None = None
        self.outer_number = 1
        self.over = self.awaited = False
        self.draw()

    def pick(self, choices: Any) -> Any:
        return choices[int(self.random() * len(choices))]

    def maybe(self, share: float) -> bool:
        return self.random() < share

    def seconds(self) -> float:
        if self.random() < 0.5:
            return self.pick([0.0, 0.0, 1e-9, 0.001, 0.1, 0.5, 1.0, 2.0, 5.0, 30.0])
        return self.random() * 5

    def draw(self) -> None:
        pick, maybe = self.pick, self.maybe
        self.mood = pick(MOODS)
        self.dates = maybe(0.3)
        risky = maybe(0.35)
        self.hazards = {place for place in PLACES if risky and maybe(0.4)}
        self.form = pick(
            ["decorated", "decorated", "called", "block", "block", "scope", "scope block", "generator"]
        )
        self.around = pick([None] * 12 + ["nested", "nested", "incoming"])
        if self.crowd:
            self.around = None
        self.cap = pick([1, 2, 3]) if maybe(0.05) else None
        self.off = maybe(0.03)
        self.guards = {field: make() for field, share, make in self.possible_guards() if maybe(share)}
        self.fields = {**self.draw_fields(), **self.guards}

    def possible_guards(self) -> list[tuple[str, float, Callable[[], Any]]]:
        pick, clock = self.pick, self.clock
        tokens = partial(
            TokenBudget, pick([0, 5, 12, 30.5, 100]), pick([1, 5]), pick([2, 10]), pick([None, 0, 3, 100])
        )
        ratio = partial(
            RatioBudget, pick([0, 0.1, 0.5, 2]), pick([0, 0.2, 1]), pick([1.0, 10.0]), clock=clock
        )
        throttle = partial(
            AdaptiveThrottle, min_rate=pick([0.1, 0.5, 5.0]), beta=pick([0.3, 0.7]), clock=clock
        )
        # A sync call in line would wait for real.
        bulkhead = partial(Bulkhead, pick([1, 1, 2]), pick([0, 1, 5]) if self.crowd else 0)
        return [
            ("budget", 0.25, pick([tokens, tokens, ratio, partial(Moody, self)])),
            ("breaker", 0.35, self.draw_breaker),
            ("throttle", 0.15, throttle),
            ("bulkhead", 0.2 if self.form != "generator" else 0.0, bulkhead),
        ]

    def draw_breaker(self) -> Breaker:
        pick = self.pick
        if self.maybe(0.1):
            return Grumpy(self)
        how = pick([
            {"failures": pick([1, 3, 5, 10])},
            {"failure_rate": pick([0.3, 0.5, 1.0]), "minimum_calls": pick([1, 8]), "window": pick([5.0, 60.0])},
            {"failure_rate": 0.5, "minimum_calls": 2, "last_calls": pick([2, 5])},
        ])  # fmt: skip
        if self.maybe(0.3):
            how["ignore"] = pick([ValueError, lambda error: self.hazard("ignore")])
        times = {"successes": pick([1, 1, 2]), "probes": pick([1, 2]), "open_for": pick([0.01, 0.5, 4.0])}
        return CircuitBreaker(**how, **times, clock=self.clock)

    def draw_fields(self) -> dict[str, Any]:
        pick, maybe = self.pick, self.maybe
        fields = {
            "attempts": pick([1, 2, 3, 4, 4, 5, 6, 8, 8, 12, 12, 15]),
            "base": self.seconds(),
            "cap": pick([0.0, 0.5, 5.0, 30.0, 30.0, INF]),
            "backoff": self.draw_backoff(),
            "idempotent": pick(
                ["by_method", "by_method", "by_method", True, True, True, True, True, True, False]
            ),
            "nested": pick(["independent", "defer"]),
        }
        if maybe(0.4):
            fields["deadline"] = pick([0.001, 2.0, 10.0, 60.0, 60.0, 300.0, 300.0, self.random() * 30])
            if maybe(0.2):
                fields["attempts"] = None
        for field, share, draw in self.possible_fields():
            if maybe(share):
                fields[field] = draw()
        if "dead_letters" in fields and maybe(0.3):
            fields["payload"] = partial(self.callback, "payload", {})
        if self.form == "generator":
            fields.pop("until", None)
        if self.form == "generator" or "block" in self.form:
            fields.pop("fallback", None)
        return fields

    def possible_fields(self) -> list[tuple[str, float, Callable[[], Any]]]:
        pick = self.pick
        return [
            ("timeout", 0.2, lambda: pick([0.1, 1.0, 3.0, 20.0])),
            ("patience", 0.3, lambda: pick([0.0, 2.0, 8.0, 600.0])),
            ("on", 0.5, self.draw_on),
            ("rules", 0.3, self.draw_rules),
            ("priority", 0.2, lambda: pick([-1, 5])),
            ("enabled", 0.06, lambda: pick([False, partial(self.callback, "enabled", True)])),
            ("idempotency_key", 0.15, lambda: pick([True, partial(self.callback, "key", "k-1")])),
            ("dead_letters", 0.2, lambda: Letters(self)),
            ("until", 0.35, lambda: self.until),
            ("fallback", 0.25, self.draw_fallback),
        ]

    def draw_backoff(self) -> Any:
        return self.pick([
            backoff.fixed, backoff.linear, backoff.exponential, backoff.full_jitter, backoff.full_jitter,
            backoff.equal_jitter, backoff.decorrelated_jitter, partial(backoff.exponential, factor=1.0),
            partial(backoff.proportional_jitter, spread=1.0), partial(backoff.additive_jitter, spread=0.3),
            backoff.immediately_once(backoff.decorrelated_jitter), self.odd_backoff,
        ])  # fmt: skip

    def draw_on(self) -> Any:
        own = Classifier(statuses={404, 503}, transient=[ValueError, Answer], permanent=[KeyError])
        some = (TimeoutError, (ConnectionError, Answer))
        choices = [Exception] * 6 + [some] * 3 + [own, self.judge, self.judge, self.judge, (), Unaskable]
        return self.pick(choices)

    def draw_rules(self) -> dict[Any, Rule]:
        pick = self.pick
        keys = [TimeoutError, ConnectionError, Answer, Exception, 503, 429, *Cause]
        return {
            key: Rule(
                attempts=pick([None, 1, 2, 3, 5]),
                base=pick([None, 0.0, 0.7]),
                cap=pick([None, 1.5]),
                backoff=pick([None, backoff.fixed, self.odd_backoff]),
                recover=self.in_its_way(partial(self.callback, "recover", None)) if self.maybe(0.6) else None,
            )
            for key in (pick(keys), pick(keys))
        }

    def draw_fallback(self) -> Any:
        return STAND_IN if self.maybe(0.4) else self.in_its_way(partial(self.callback, "fallback", STAND_IN))

    def in_its_way(self, function: Callable[..., Any]) -> Any:
        """The same function; in the async flavour, half of the time, one to be awaited."""
        if self.loop is None or self.own() < 0.5:
            return function
        self.awaited = True

        async def awaited(*args: Any) -> Any:
            return function(*args)

        return awaited

    # What the policies call

    def hazard(self, place: str) -> None:
        """Now and then a callback raises, takes its time, or is interrupted."""
        if place not in self.hazards:
            return
        draw = self.random()
        if place == "sleep" and draw < 0.25:
            return  # an error of one's own sleep comes out as it is: that is a way to leave
        if draw < 0.15:
            self.tally[f"trouble in {place}"] += 1
            raise RuntimeError(f"trouble in {place}")
        if draw < 0.25:
            who.get().spend(self.seconds())
        elif draw < 0.28:
            self.tally[f"interrupt in {place}"] += 1
            raise who.get().interrupt()

    def callback(self, place: str, answer: Any, *_: object) -> Any:
        self.hazard(place)
        return self.random() < 0.8 if place == "enabled" else answer

    def until(self, result: Any) -> bool:
        who.get().judging = True
        self.hazard("until")
        who.get().judging = False
        return not getattr(result, "refused", False)

    def judge(self, error: Exception) -> Any:
        self.hazard("on")
        return self.pick([
            True, True, True, True, True, True, 0, 0.5, 3, timedelta(seconds=2), NAN, INF, -1, None, "yes", False,
            Verdict(True), Verdict(True, Cause.timeout, retry_after=1.5), Verdict(True, retry_after=NAN),
            Verdict(True, retry_after=INF),
        ])  # fmt: skip

    def odd_backoff(self, attempt: int, base: float, cap: float, **_: Any) -> Any:
        self.hazard("backoff")
        return self.pick([0.25, 0.25, Decimal("0.5"), NAN, INF, -1, 1e308, 10**400, True, "1", None])

    def wall(self) -> float:
        return WALL + self.clock.now + self.jump

    def fault(self, what: str) -> None:
        """Notes what does not hold. Told after the call, since its driver might swallow it now."""
        self.wrong.append(what)

    def stop_if_wrong(self) -> None:
        """Ends a call in which something went wrong, and which might have no end by itself."""
        if self.wrong:
            raise Bye(self.wrong[0])

    def settle(self) -> None:
        """Tells what was found, if anything was."""
        if self.wrong:
            flavour = "sync" if self.loop is None else "a crowd" if self.crowd else "async"
            steps = "\n  ".join([str(step) for step in self.trace[-30:]])
            raise Found(
                f"{self.wrong[0]}\n{flavour}, {self.form}, {self.around or 'alone'}, {self.fields}\n"
                f"the last steps:\n  {steps}\nagain: python tests/fuzzing.py {self.seed}"
            )


class Caller:
    """Calls under one policy: what they do, and what they went through."""

    def __init__(self, world: World) -> None:
        self.world = world
        fields, is_async = world.fields, world.loop is not None
        self.successes = world.maybe(0.2)
        listener = with_successes(self.hear) if self.successes else self.hear
        listeners = [listener, self.trouble] if "listener" in world.hazards else [listener]
        # A plain function that turns out to give a coroutine cannot await what it waits with.
        self.plain = is_async and world.form == "decorated" and world.own() < 0.25
        self.plain = self.plain and not world.awaited and "throttle" not in fields
        waits = is_async and not self.plain and world.own() < 0.75
        sleep = self.sleep_async if waits else self.sleep
        own = {
            "name": "call",
            "listeners": listeners,
            "clock": world.clock,
            "sleep": sleep,
            "rng": Random(world.seed),
        }
        self.policy = policy = Policy(**fields, **own)
        self.decorated = policy(self.function())
        rules = list(policy.rules.values())
        self.base = max([policy.base, *[rule.base or 0.0 for rule in rules]])
        self.cap = max([policy.cap, *[rule.cap or 0.0 for rule in rules]])
        self.longest = min(max(self.cap, policy.patience + self.base, 5.0), backoff.LONGEST)
        self.same = TimeoutError("again and again")
        self.fresh()

    def function(self) -> Any:
        if self.world.loop is None:
            return self.stream if self.world.form == "generator" else self.attempt
        if self.world.form == "generator":
            return self.stream_async
        return (lambda: self.attempt_async()) if self.plain else self.attempt_async

    def fresh(self) -> None:
        """Before each call."""
        self.began = self.world.clock.now
        self.starts: list[float] = []
        self.waits: list[float] = []
        self.events: list[Event] = []
        self.last: Outcome = "nothing", None, None
        self.interrupted: BaseException | None = None
        self.late: BaseException | None = None
        self.judging = self.until_error = self.left = self.cancelled = False
        self.letters = 0
        self.keys: set[Any] = set()
        self.ruled: dict[Any, int] = {}
        self.spent = self.before = 0.0
        self.same.__notes__ = []
        own, outer = self.policy.deadline, self.world.outer_ends
        self.ends = outer if own is None else min(self.began + own, INF if outer is None else outer)
        # Of a deadline that is handed on, the last bit of a float may be lost on the way.
        self.slack = 0.0 if outer is None and "scope" not in self.world.form else 1e-9 * max(1.0, self.began)

    # What the policy tells, and how it waits

    def hear(self, event: Event) -> None:
        self.events.append(event)
        self.world.trace.append((type(event).__name__, vars(event)))
        try:
            if isinstance(event, Retrying):
                self.check_retry(event)
            elif isinstance(event, CircuitChanged):
                self.check_change(event)
        except Exception as trouble:  # which the policy would swallow
            self.world.fault(f"{event} cannot be checked: {trouble!r}")

    def check_change(self, event: CircuitChanged) -> None:
        world = self.world
        if (event.before, event.after) not in WAYS or event.before != world.circuit:
            world.fault(f"the circuit went from {event.before} to {event.after}, and was {world.circuit}")
        world.circuit = State(event.after)
        world.tally[f"circuit {event.before} -> {event.after}"] += 1

    def trouble(self, event: Event) -> None:
        self.world.hazard("listener")

    def interrupt(self) -> BaseException:
        self.interrupted = self.world.pick(INTERRUPTS)()
        return self.interrupted

    def spend(self, seconds: float) -> None:
        """Time that passes while nobody can do anything about it."""
        self.world.clock.now += seconds
        self.spent += seconds

    def sleep(self, seconds: float) -> None:
        self.check_wait(seconds)
        self.world.clock.now += seconds

    async def sleep_async(self, seconds: float) -> None:
        self.check_wait(seconds)
        await asyncio.sleep(seconds)

    def check_wait(self, seconds: float) -> None:
        world, now = self.world, self.world.clock.now
        world.trace.append(("wait", seconds, now))
        world.steps += 1
        self.waits.append(seconds)
        if not (type(seconds) is float and isfinite(seconds) and 0.0 <= seconds <= self.longest):
            world.fault(f"a wait of {seconds!r} s, where at most {self.longest} s are allowed")
        if self.ends is not None and now + seconds >= self.ends + self.slack:
            world.fault(f"a wait of {seconds} s at {now}, past the deadline at {self.ends}")
        if self.interrupted is not None or self.cancelled:
            world.fault("a wait after an interrupt")
        world.stop_if_wrong()
        world.hazard("sleep")

    def check_retry(self, event: Event) -> None:
        """A hint is never undercut, and the attempts of a rule are never exceeded."""
        world, policy, (_, failure, hint) = self.world, self.policy, self.last
        if hint and policy.on != world.judge:
            # The backoff's own wait, where that is longer, is no longer than the cap.
            most = min(max(hint + self.base, self.cap), backoff.LONGEST) * (1 + 1e-9)
            if hint > policy.patience or not hint <= event.delay <= most:
                world.fault(f"a wait of {event.delay} s, where the server asked for {hint} s")
        key = next((kind for kind in type(failure).__mro__ if kind in policy.rules), None)
        if key is not None:
            self.ruled[key] = count = self.ruled.get(key, 0) + 1
            if count >= (policy.rules[key].attempts or 99):
                world.fault(f"a retry too many after {count} failures under {policy.rules[key]}")

    # Attempts

    def attempt(self) -> Any:
        cost, sleeps, outcome = self.begin()
        try:
            if sleeps:
                self.give_way(cost)
            self.world.clock.now += cost
            return self.end(outcome)
        finally:
            self.leave()

    async def attempt_async(self) -> Any:
        cost, sleeps, outcome = self.begin()
        try:
            if sleeps:
                await asyncio.sleep(cost)
            else:
                self.world.clock.now += cost
            return self.end(outcome)
        except asyncio.CancelledError:
            if self.interrupted is None:
                self.last = "cut", None, None
                self.world.tally["cut off"] += 1
            raise
        finally:
            self.leave()

    def give_way(self, cost: float) -> None:
        """Ends an attempt where an async one would be cut off."""
        around = running_in(current.get())
        limit = None if around is None else _async.time_limit_of(around)
        if around is None or limit is None:
            return
        if abs(cost - limit) < 1e-6 or (self.world.around and cost >= limit):
            self.world.cuts += 1  # who is cut off by what is not the same there
        if cost >= limit:
            self.world.clock.now += limit
            self.last = "cut", None, None
            raise _async.timed_out(around, limit)

    def stream(self) -> Any:
        yield self.attempt()
        if self.late is not None:
            raise self.late

    async def stream_async(self) -> Any:
        yield await self.attempt_async()
        if self.late is not None:
            raise self.late

    def begin(self) -> tuple[float, bool, Outcome]:
        world, now = self.world, self.world.clock.now
        world.trace.append(("attempt", now))
        world.steps += 1
        world.in_flight += 1
        if not self.starts:
            self.before = sum(self.waits)
        self.starts.append(now)
        self.check_attempt(len(self.starts), now)
        world.stop_if_wrong()
        if world.dates or world.own() < 0.1:
            draw = world.random() if world.dates else world.own()
            world.jump = [0.0, 3600.0, -3600.0, 1e9][int(draw * 4)]
        cost = world.seconds() if world.maybe(0.3) else 0.0
        return cost, world.maybe(0.5), self.draw()

    def leave(self) -> None:
        self.world.in_flight -= 1
        self.spent += self.world.clock.now - self.starts[-1]

    def check_attempt(self, number: int, now: float) -> None:
        world, policy = self.world, self.policy
        if self.interrupted is not None or self.cancelled:
            world.fault("an attempt after an interrupt")
        if number > self.most():
            world.fault(f"attempt {number}, where {self.most()} are allowed")
        # The first attempt under a policy that asks for nothing looks at no clock.
        bound = number > 1 or policy._in_context or policy._way == "full"
        if bound and self.ends is not None and now >= self.ends + self.slack:
            world.fault(f"attempt {number} began at {now}, and the deadline was at {self.ends}")
        breaker, bulkhead = policy.breaker, policy.bulkhead
        if isinstance(breaker, CircuitBreaker):
            phase = breaker._circuit.phase
            if phase.state is State.open or not 0 <= phase.probes <= breaker._circuit.probes:
                world.fault(f"attempt {number} was let through by {phase}")
        if bulkhead is not None and not world.in_flight <= bulkhead.under_way <= bulkhead.limit:
            world.fault(f"{world.in_flight} attempts at once in {bulkhead}")
        if number > 1 or policy._in_context:
            self.check_context(number)

    def check_context(self, number: int) -> None:
        around = current_attempt()
        if around is None or around.number != number or (around.remaining or 0.0) < 0.0:
            self.world.fault(f"attempt {number} was told that it is {around!r}")
        if self.policy.idempotency_key is not False and "key" not in self.world.hazards:
            self.keys.add(outgoing_headers().get("Idempotency-Key"))
            if len(self.keys) != 1 or None in self.keys:
                self.world.fault(f"one call sent the keys {self.keys}")

    def most(self) -> int:
        world, policy = self.world, self.policy
        if world.off or policy.enabled is False or (policy.nested == "defer" and world.outer_number > 1):
            return 1
        return min(policy.attempts or 99, world.cap or 99)

    def draw(self) -> Outcome:
        """What comes of an attempt: a result, an error or a wish to run again, and the hint that it carries."""
        world = self.world
        kind = world.pick(world.mood)
        if len(self.starts) > 15:  # or there might be no end where only the deadline is one
            kind = "result"
        if kind == "stop" and world.form == "generator":
            kind = "transient"
        world.tally[kind] += 1
        return getattr(self, f"draw_{kind}", self.draw_error)(kind)

    def draw_error(self, kind: str) -> Outcome:
        makers = {
            "transient": TRANSIENT, "permanent": PERMANENT, "hostile": HOSTILE, "own": OWN, "stop": [StopAsyncIteration],
            "same": [lambda: self.same],
        }  # fmt: skip
        return "error", self.world.pick(makers[kind])(), None

    def draw_result(self, kind: str) -> Outcome:
        return "result", self.world.pick([None, 0, "", object(), [0]]), None

    def draw_refused(self, kind: str) -> Outcome:
        pick = self.world.pick
        if "block" in self.world.form:
            return "again", pick([None, 0.0, 1.25]), None
        headers = {"Retry-After": pick(HINTS)[0]}
        return (
            "result",
            SimpleNamespace(refused=True, status_code=pick([200, 429, 503, None]), headers=headers),
            None,
        )

    def draw_http(self, kind: str) -> Outcome:
        pick, maybe = self.world.pick, self.world.maybe
        given, hint = pick(HINTS)
        name = (
            "Retry-After"
            if maybe(0.6)
            else pick(["retry-after-ms", "x-ratelimit-reset", "RateLimit", "date"])
        )
        if self.world.dates and maybe(0.3):
            given, hint = formatdate(self.world.wall() + pick([-50, 3, 90]), usegmt=True), None
        headers = {name: given} if maybe(0.7) else {}
        hint = hint if headers and name == "Retry-After" else None
        return (
            "error",
            Answer(pick(STATUSES), headers, pick(["GET", "GET", "GET", "HEAD", "PUT", "POST"])),
            hint,
        )

    def draw_group(self, kind: str) -> Outcome:
        pick = self.world.pick
        makers = pick([TRANSIENT, TRANSIENT, [*TRANSIENT, *PERMANENT], HOSTILE])
        return "error", ExceptionGroup("several", [pick(makers)() for _ in range(pick([1, 2, 3]))]), None

    def draw_interrupt(self, kind: str) -> Outcome:
        return "interrupt", self.world.pick(INTERRUPTS)(), None

    def end(self, outcome: Outcome) -> Any:
        kind, value, _ = self.last = outcome
        if kind == "interrupt":
            self.interrupted = value
        if kind in ("interrupt", "error"):
            raise value
        if self.world.form == "generator" and self.world.maybe(0.1):
            self.late = TimeoutError("too late")
        return value


# What must hold when a call is over


def check(caller: Caller, kind: str, value: Any) -> None:
    world = caller.world
    world.trace.append((kind, *described(value)))
    told: list[Event] = [event for event in caller.events if type(event) in (Retrying, *TERMINAL)]
    terminal = [event for event in told if type(event) is not Retrying]
    reason = terminal[0].reason if terminal else None
    if not right_outcome(caller, kind, value, reason):
        world.fault(f"{kind} {described(value)} came out, after {caller.last[0]} {described(caller.last[1])}")
    if caller.interrupted is None and not (caller.left or caller.cancelled or is_cancelled(value)):
        check_events(caller, kind, value, told)
        check_lost(caller, value, reason)
    elif len(terminal) > 1 or caller.letters > 1:
        world.fault(f"an interrupted call ended {len(terminal)} times and left {caller.letters} letters")
    check_waits(caller, value, [event.delay for event in told if type(event) is Retrying])
    if current.get() is not None and world.around is None:
        world.fault("the context of the call is still there")
    if not world.crowd:
        check_guards(world, caller.policy)
    ending = type(terminal[0]).__name__ if terminal else "succeeded" if kind == "value" else "passed"
    world.tally[f"{ending} ({reason})" if reason else ending] += 1
    world.tally[f"{kind} {type(value).__name__}" if kind == "error" else "value"] += 1


def right_outcome(caller: Caller, kind: str, value: Any, reason: Reason | None) -> bool:
    """Whether what came out is what the last attempt gave, or one of our own errors about it."""
    what, last, _ = caller.last
    if caller.cancelled:
        return is_cancelled(value)
    if caller.interrupted is not None:
        return value is caller.interrupted
    if caller.late is not None:
        return value is caller.late
    if caller.left:
        return kind == "value"
    if kind == "error":
        return right_error(caller, value, reason)
    if value is STAND_IN:
        return is_lost(caller, reason)
    return value is last and (what == "result" or (what == "again" and reason is Reason.disabled))


def right_error(caller: Caller, value: BaseException, reason: Reason | None) -> bool:
    what, last, _ = caller.last
    if value is last and what == "error":
        return True
    if type(value) is DeadlineExceeded:
        return reason is Reason.deadline and right_cause(caller, value.__cause__)
    if type(value) is ResultRejected:
        return what == "again" or (what == "result" and value.result is last)
    if type(value) in (CircuitOpen, BulkheadFull):
        return not caller.starts
    if type(value) is RuntimeError and str(value) == "trouble in until":
        caller.until_error = True
        return what == "result" and caller.judging
    if type(value) is RuntimeError and value.__cause__ is last and type(last) is StopAsyncIteration:
        caller.world.cuts += 1  # what comes out of an async loop must not end it
        return "block" in caller.world.form
    # By its own timeout, or by a limit further out.
    return what == "cut" and type(value) in (TimeoutError, asyncio.CancelledError)


def right_cause(caller: Caller, cause: BaseException | None) -> bool:
    what, last, _ = caller.last
    if not caller.starts or what == "error":
        return cause is last
    return isinstance(cause, TimeoutError if what == "cut" else ResultRejected)


def is_cancelled(value: Any) -> bool:
    return type(value) is asyncio.CancelledError


def is_lost(caller: Caller, reason: Reason | None) -> bool:
    """Whether a call is given up on; our own errors are, though they are not retried."""
    return reason in LOST or (
        reason is Reason.not_retryable and issubclass(type(caller.last[1]), RedoubleError)
    )


def check_events(caller: Caller, kind: str, value: Any, told: list[Event]) -> None:
    """One ending, and one retry before each further attempt."""
    count = len(caller.starts)
    retries = [event.attempt for event in told if type(event) is Retrying]
    last = told[-1] if told and type(told[-1]) is not Retrying else None
    successes = sum([type(event) is Succeeded for event in caller.events])
    reason = None if last is None else last.reason
    succeeded = (kind == "value" and value is not STAND_IN and reason is None) or caller.late is not None
    if count == 1 and not retries and (succeeded or (caller.until_error and not caller.successes)):
        right = not told and successes == (succeeded and caller.successes)
    else:
        right = last is not None and len(told) == len(retries) + 1 and last.attempt == count and not successes
        right = right and (type(last) is Recovered) is succeeded
    # What ends a call between two attempts: too late, refused, not recovered.
    between = reason in (Reason.deadline, Reason.circuit, Reason.callback) and len(retries) == count
    if not right or retries != [*range(1, count + between)]:
        shown = [(type(event).__name__, event.attempt, event.reason) for event in caller.events]
        caller.world.fault(f"{count} attempts ended with {kind}, and were told as {shown}")


def check_lost(caller: Caller, value: Any, reason: Reason | None) -> None:
    """A dead letter for each call that was given up on, and a fallback that answers for it."""
    world, policy = caller.world, caller.policy
    lost = is_lost(caller, reason)
    # A recover that fails is the end of a call, a predicate that fails is none of its business. And what has
    # no key cannot be kept under it.
    unsure = reason is Reason.callback or "key" in world.hazards
    if caller.letters != (lost and policy.dead_letters is not None) and not (unsure and caller.letters < 2):
        world.fault(f"{caller.letters} dead letters after {reason}")
    answers = policy._falls_back and lost
    if (value is STAND_IN) != answers and not (answers and "fallback" in world.hazards):
        world.fault(f"{described(value)} came out after {reason}, with the fallback {policy.fallback}")
    world.tally["letters"] += caller.letters
    world.tally["fallbacks"] += value is STAND_IN


def check_waits(caller: Caller, value: Any, told: list[float]) -> None:
    """Every wait that was told was made, and all time is accounted for."""
    world = caller.world
    if caller.policy.throttle is None and caller.waits not in (told, told[:-1]):
        world.fault(f"waits of {told} s were told, and of {caller.waits} s made")
    world.tally["waits of a throttle"] += len(caller.waits) > len(told)
    made = sum(caller.waits)
    passed = world.clock.now - caller.began
    exact = not (world.crowd or caller.cancelled or is_cancelled(value) or caller.interrupted)
    if exact and abs(passed - made - caller.spent) > 1e-6 * max(1.0, passed) + 1e-14 * world.clock.now:
        world.fault(f"{passed} s have passed, {made} s of them waiting and {caller.spent} s in attempts")
    story = history(value) if isinstance(value, Exception) and type(value) is not Mute else None
    if story is not None and exact and caller.starts and not (story.left_out or caller.late):
        waited = sum([failure.delay or 0.0 for failure in story.failures])
        if abs(waited + caller.before - made) > 1e-6 * max(1.0, made):
            world.fault(f"the story tells of {waited} s of waits, and they were {caller.waits}")


def check_guards(world: World, policy: Policy) -> None:
    """While no call is under way, all places are free, and all numbers within bounds."""
    breaker, budget, throttle, bulkhead = policy.breaker, policy.budget, policy.throttle, policy.bulkhead
    if isinstance(breaker, CircuitBreaker):
        phase = breaker._circuit.phase
        world.trace.append(("circuit", phase.state, breaker.counted))
        if phase.probes or phase.state is not world.circuit:
            world.fault(f"{phase} after the call, where {world.circuit} was told")
    if isinstance(budget, TokenBudget):
        tokens = budget.tokens
        world.trace.append(("tokens", tokens))
        if not 0.0 <= tokens <= budget.capacity or budget.full is not (tokens == budget.capacity):
            world.fault(f"{budget}, full={budget.full}")
    if isinstance(budget, RatioBudget):
        most = budget.floor_per_second * budget.window + budget.ratio * world.steps
        if not 0.0 <= budget.tokens <= most + 1e-6:
            world.fault(f"{budget.tokens} retries allowed by {budget}")
    if throttle is not None and not throttle.min_rate <= (throttle.rate or 1e9) <= 1e9:
        world.fault(f"{throttle}")
    if bulkhead is not None and bulkhead.snapshot() != (world.held, 0):
        world.fault(f"{bulkhead} after the call, where {world.held} should be")


def described(value: Any) -> tuple[Any, ...]:
    """A result or an error as text, whatever it does when it is asked."""
    name = type(value).__name__
    if not issubclass(type(value), BaseException):
        return (name,)
    try:
        return name, str(value), *getattr(value, "__notes__", ())
    except Exception:
        return (name,)


# The forms of a call


def call_sync(caller: Caller) -> Any:
    world, policy = caller.world, caller.policy
    if world.form == "generator":
        return list(caller.decorated())[-1]
    if world.form == "called":
        return policy.call(caller.attempt)
    if world.form == "block":
        return block_sync(caller, retrying(policy))
    if world.form == "decorated":
        return caller.decorated()
    with retrying(policy) as scope:
        open_scope(caller)
        return scope(caller.attempt) if world.form == "scope" else block_sync(caller, scope)


def block_sync(caller: Caller, blocks: Any) -> Any:
    result = None
    for attempt in blocks:
        with attempt:
            result = caller.attempt()
            if ask_again(caller, attempt):
                break
        if leave_early(caller):
            break
    return result


async def call_async(caller: Caller) -> Any:
    world, policy = caller.world, caller.policy
    if world.form == "generator":
        return [item async for item in caller.decorated()][-1]
    if world.form == "called":
        return await policy.call(caller.attempt_async)
    if world.form == "block":
        return await block_async(caller, retrying(policy))
    if world.form == "decorated":
        given = caller.decorated()  # of a plain function that was never called, a fallback is no coroutine
        return await given if type(given) is CoroutineType else given
    async with retrying(policy) as scope:
        open_scope(caller)
        return await (scope(caller.attempt_async) if world.form == "scope" else block_async(caller, scope))


async def block_async(caller: Caller, blocks: Any) -> Any:
    result = None
    async for attempt in blocks:
        if caller.world.own() < 0.5:
            async with attempt:
                result = await caller.attempt_async()
                if ask_again(caller, attempt):
                    break
        else:
            with attempt:
                result = await caller.attempt_async()
                if ask_again(caller, attempt):
                    break
        if leave_early(caller):
            break
    return result


def open_scope(caller: Caller) -> None:
    """Time passes between the opening of a scope, when its deadline begins, and the call in it."""
    if caller.world.maybe(0.3):
        caller.spend(caller.world.seconds())


def ask_again(caller: Caller, attempt: Any) -> bool:
    """Asks for another run, where that was drawn; whether the loop is to be left from within."""
    kind, after, _ = caller.last
    if kind == "again":
        attempt.again("not yet", after)
        return False
    return caller.world.maybe(0.05)


def leave_early(caller: Caller) -> bool:
    """Whether the loop is left before another attempt, though one would come."""
    caller.left = bool(caller.events) and isinstance(caller.events[-1], Retrying) and caller.world.maybe(0.02)
    return caller.left


# What is around a call


def outer(world: World) -> Policy:
    """A policy around the one that is looked at."""
    deadline, clock = world.pick([None, None, 1.0, 20.0]), world.clock

    def sleep(seconds: float) -> None:
        clock.now += seconds

    world.outer_ends = None if deadline is None else clock.now + deadline
    world.outer_number = 0
    limits = {"attempts": world.pick([1, 2, 3]), "deadline": deadline, "base": 0.3}
    return Policy(on=Exception, clock=clock, sleep=sleep, rng=world.rng, **limits)


def sent(world: World) -> incoming:
    """What a client further out has sent along."""
    milliseconds, number = world.pick([(0, 1), (700, 1), (9000, 2), (None, 3)])
    headers = {"X-Retry-Attempt": str(number)}
    if milliseconds is not None:
        headers["x-request-timeout-ms"] = f" {milliseconds}\t"
        world.outer_ends = world.clock.now + milliseconds / 1000
    world.outer_number = number
    return incoming(headers, clock=world.clock)


def around_sync(caller: Caller) -> None:
    world = caller.world

    def call() -> Any:
        world.outer_number += 1
        return once_sync(caller)

    with suppress(BaseException):
        if world.around == "nested":
            outer(world).call(call)
        elif world.around == "incoming":
            with sent(world):
                once_sync(caller)
        else:
            once_sync(caller)
    world.outer_ends, world.outer_number, world.over = None, 1, False


async def around_async(caller: Caller) -> None:
    world = caller.world

    async def call() -> Any:
        world.outer_number += 1
        return await once_async(caller)

    with suppress(BaseException):
        if world.around == "nested":
            await outer(world).call(call)
        elif world.around == "incoming":
            with sent(world):
                await once_async(caller)
        else:
            await once_async(caller)
    if not world.crowd:
        world.outer_ends, world.outer_number, world.over = None, 1, False


def once_sync(caller: Caller) -> Any:
    begin(caller)
    try:
        kind, value = "value", call_sync(caller)
    except BaseException as error:
        kind, value = "error", error
    return end(caller, kind, value)


async def once_async(caller: Caller) -> Any:
    begin(caller)
    world, task = caller.world, asyncio.current_task()
    often = 0.2 if world.crowd else 0.03
    timer = world.clock.call_later(world.own() * 9, cancel, caller, task) if world.own() < often else None
    try:
        kind, value = "value", await call_async(caller)
    except BaseException as error:
        kind, value = "error", error
    if timer is not None:
        timer.cancel()
    if caller.cancelled:
        task.uncancel()
    return end(caller, kind, value)


def cancel(caller: Caller, task: Any) -> None:
    caller.cancelled = True
    caller.world.cuts += 1
    caller.world.tally["cancelled from outside"] += 1
    task.cancel()


def begin(caller: Caller) -> None:
    if caller.world.over:
        caller.world.fault("a call further out went on after an interrupt")
    caller.fresh()
    who.set(caller)
    caller.world.tally[f"as {caller.world.form}"] += 1
    caller.world.tally[f"way {caller.policy._way}"] += 1


def end(caller: Caller, kind: str, value: Any) -> Any:
    """Checks the call, and hands on to the one around it what came out."""
    world = caller.world
    try:
        check(caller, kind, value)
    except Exception as trouble:  # which would be lost here
        world.fault(f"what came out cannot be checked: {trouble!r}")
    if caller.interrupted is not None or caller.cancelled:
        world.over = not world.crowd
    elif is_cancelled(value):
        world.cuts += 1
    if kind == "error" and world.around == "nested":
        raise value
    return value


# Running


@contextmanager
def settings(world: World) -> Iterator[None]:
    """Wall time as the scenario has it, which jumps; and what tests may switch on."""
    real, time.time = time.time, world.wall
    try:
        with ExitStack() as stack:
            if world.cap is not None:
                stack.enter_context(capped(world.cap))
            if world.off:
                stack.enter_context(retries_disabled())
            yield
    finally:
        time.time = real


def between(world: World) -> None:
    """Between two calls time passes, and hands are laid on guards."""
    breaker, bulkhead = world.guards.get("breaker"), world.guards.get("bulkhead")
    for _ in range(world.held):
        bulkhead.release()
    world.held = 0
    if world.maybe(0.4):
        world.clock.now += world.seconds()
    if isinstance(breaker, CircuitBreaker):
        if world.circuit is State.open and world.maybe(0.6):
            world.clock.now += breaker._circuit.open_for
        by_hand = breaker.retry_after is None
        if by_hand or world.maybe(0.02):
            world.circuit = State.closed if by_hand else State.open
            (breaker.close if by_hand else breaker.open)()
    while bulkhead is not None and (world.held or world.maybe(0.2)) and bulkhead.acquire():
        world.held += 1


def run_sync(seed: int, tally: Counter[str]) -> World:
    world = World(seed, None, tally)
    caller = Caller(world)
    with settings(world):
        for _ in range(world.pick([1, 10, 25, 40])):
            between(world)
            around_sync(caller)
            world.settle()
    return world


async def run_async(seed: int, loop: Loop, tally: Counter[str]) -> World:
    world = World(seed, loop, tally)
    caller = Caller(world)
    with settings(world):
        for _ in range(world.pick([1, 10, 25, 40])):
            between(world)
            await around_async(caller)
            world.settle()
    return world


def run_crowd(seed: int, loop: Loop, tally: Counter[str]) -> World:
    world = World(seed, loop, tally, crowd=True)
    crowd = loop.create_task(gathered(world))
    try:
        loop.run_until_complete(crowd)
    except Found as found:
        world.fault(str(found))
        crowd.cancel()
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(crowd)
    world.settle()
    return world


async def gathered(world: World) -> None:
    callers = [Caller(world) for _ in range(world.pick([2, 3, 7]))]

    async def calls(caller: Caller) -> None:
        for _ in range(world.pick([2, 6, 10])):
            if not world.wrong:
                await asyncio.sleep(world.pick([0.0, 0.0, 0.1, 2.0]))
                await around_async(caller)

    with settings(world):
        await asyncio.gather(*[calls(caller) for caller in callers])
    check_guards(world, callers[0].policy)


def run(seed: int, loop: Loop, tally: Counter[str]) -> list[World]:
    """One scenario in all flavours."""
    sync = run_sync(seed, tally)
    twin = loop.run_until_complete(run_async(seed, loop, tally))
    worlds = [sync, twin]
    if not (sync.cuts or twin.cuts):
        tally["compared"] += 1
        if sync.trace != twin.trace:
            pairs = zip([*sync.trace, None], [*twin.trace, None], strict=False)
            twin.fault(
                "sync went {}, and async {}".format(*next(pair for pair in pairs if pair[0] != pair[1]))
            )
        twin.settle()
    if sync.guards:
        tally["crowds"] += 1
        worlds.append(run_crowd(seed, loop, tally))
    return worlds


@contextmanager
def quiet() -> Iterator[None]:
    """Without logging, which has tests of its own, and would take most of the time."""
    logger = logging.getLogger("redouble")
    before = logger.propagate, logger.disabled
    logger.propagate, logger.disabled = False, True
    try:
        yield
    finally:
        logger.propagate, logger.disabled = before


def fuzz(first: int, count: int) -> Counter[str]:
    """So many steps, from a seed on; what was reached, and how often."""
    tally: Counter[str] = Counter()
    seed, loop = first, Loop()
    try:
        with quiet():
            while tally["steps"] < count:
                tally["steps"] += sum([world.steps for world in run(seed, loop, tally)])
                seed += 1
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
    tally["scenarios"] = seed - first
    return tally


def main(seed: int, count: int | None = None) -> None:
    if count is None:
        loop = Loop()
        with quiet():
            for world in run(seed, loop, Counter()):
                print(world.form, world.around or "alone", world.fields, *world.trace, "", sep="\n  ")
        loop.close()
        return
    began = time.process_time()
    tally = fuzz(seed, count)
    for what, often in sorted(tally.items()):
        print(f"{often:11,}  {what}")
    print(f"{tally['steps'] / (time.process_time() - began):,.0f} steps per second of CPU time")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
