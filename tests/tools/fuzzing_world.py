"""The scenarios of the fuzzer: a policy with its guards, and a caller that runs under it."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from decimal import Decimal
from email.utils import formatdate
from functools import partial
from math import isfinite
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fuzzing_faults import (
    HINTS,
    HOSTILE,
    INF,
    INTERRUPTS,
    MOODS,
    NAN,
    OWN,
    PERMANENT,
    PLACES,
    STAND_IN,
    STATUSES,
    TRANSIENT,
    WALL,
    WAYS,
    Answer,
    Bye,
    Clock,
    Found,
    Grumpy,
    Letters,
    Loop,
    Moody,
    Unaskable,
    give_up_inside,
    who,
)

from redouble import Cause, Policy, Rule, Verdict, backoff
from redouble._engine.drivers import timed_out
from redouble.breaker import Breaker, CircuitBreaker, State
from redouble.budget import RatioBudget, TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.classify import Classifier
from redouble.context import current, current_attempt, outgoing_headers, running_in, time_limit_of
from redouble.events import CircuitChanged, Event, Retrying, with_successes
from redouble.throttle import AdaptiveThrottle

if TYPE_CHECKING:
    from collections.abc import Callable

    Outcome = tuple[str, Any, float | None]


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
            "idempotent": pick(["by_method"] * 3 + [True] * 6 + [False]),
            "nested": pick(["stop", "independent", "defer", "defer"]),
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
            ("give_up_after", 0.15, lambda: pick([0.5, 3.0, 20.0, 60.0])),
            ("max_retry_after", 0.3, lambda: pick([0.0, 2.0, 8.0, 600.0])),
            ("on", 0.5, self.draw_on),
            ("rules", 0.3, self.draw_rules),
            ("priority", 0.2, lambda: pick([-1, 5])),
            ("enabled", 0.06, lambda: pick([False, partial(self.callback, "enabled", True)])),
            ("idempotency_key", 0.15, lambda: pick([True, partial(self.callback, "key", "k-1")])),
            ("dead_letters", 0.2, lambda: Letters(self)),
            ("until", 0.35, lambda: self.until),
            ("fallback", 0.25, self.draw_fallback),
            ("recover", 0.2, self.draw_recover),
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
        return self.pick(
            [Exception] * 6 + [some] * 3 + [own, self.judge, self.judge, self.judge, (), Unaskable]
        )

    def draw_rules(self) -> dict[Any, Rule]:
        pick = self.pick
        keys = [TimeoutError, ConnectionError, Answer, Exception, 503, 429, *Cause]
        return {
            key: Rule(
                attempts=pick([None, 1, 2, 3, 5]),
                base=pick([None, 0.0, 0.7]),
                cap=pick([None, 1.5]),
                backoff=pick([None, backoff.fixed, self.odd_backoff]),
                recover=self.draw_recover() if self.maybe(0.6) else None,
            )
            for key in (pick(keys), pick(keys))
        }

    def draw_recover(self) -> Any:
        return self.in_its_way(partial(self.callback, "recover", None))

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
            return  # an error of a custom sleep is raised as it is: that is a way to leave
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
                f"the last steps:\n  {steps}\nagain: python tests/tools/fuzzing.py {self.seed}"
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
        self.longest = min(max(self.cap, policy.max_retry_after + self.base, 5.0), backoff.LONGEST)
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
        self.check_soft_limit(now + seconds)
        if self.interrupted is not None or self.cancelled:
            world.fault("a wait after an interrupt")
        world.stop_if_wrong()
        world.hazard("sleep")

    def check_soft_limit(self, now: float) -> None:
        if now >= (self.starts or [INF])[0] + (self.policy.give_up_after or INF) + self.slack:
            self.world.fault(f"it went on until {now}, past give_up_after")

    def check_retry(self, event: Event) -> None:
        """A hint is never undercut, and the attempts of a rule are never exceeded."""
        world, policy, (_, failure, hint) = self.world, self.policy, self.last
        if hint and policy.on != world.judge:
            # The backoff's own wait, where that is longer, is no longer than the cap.
            most = min(max(hint + self.base, self.cap), backoff.LONGEST) * (1 + 1e-9)
            if hint > policy.max_retry_after or not hint <= event.delay <= most:
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
        limit = None if around is None else time_limit_of(around)
        if around is None or limit is None:
            return
        if abs(cost - limit) < 1e-6 or (self.world.around and cost >= limit):
            self.world.cuts += 1  # who is cut off by what is not the same there
        if cost >= limit:
            self.world.clock.now += limit
            self.last = "cut", None, None
            raise timed_out(around, limit)

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
        bound = number > 1 or policy._in_context or policy._variant == "full"
        if bound and self.ends is not None and now >= self.ends + self.slack:
            world.fault(f"attempt {number} began at {now}, and the deadline was at {self.ends}")
        self.check_soft_limit(now)
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
        error = self.world.pick(makers[kind])()
        if kind == "transient" and self.world.maybe(0.03):
            give_up_inside(error)
        return "error", error, None

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
        method = pick(["GET", "GET", "GET", "HEAD", "PUT", "POST"])
        return "error", Answer(pick(STATUSES), headers, method), hint

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
