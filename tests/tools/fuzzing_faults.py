"""The faults, misbehaving guards and clocks that scenarios of the fuzzer are drawn from."""

from __future__ import annotations

import asyncio
import heapq
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

from conftest import VirtualLoop
from redouble import BulkheadFull, CircuitOpen, DeadlineExceeded, Policy, ResultRejected
from redouble.breaker import TRANSITIONS, Breaker
from redouble.budget import Budget
from redouble.events import Expired, GaveUp, Reason, Recovered, Refused

if TYPE_CHECKING:
    from fuzzing_world import Caller, World

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


def give_up_inside(error: Exception) -> None:
    """Let an inner call retry an error, and give up on it."""

    def fail() -> NoReturn:
        raise error

    with suppress(BaseException):
        Policy(on=Exception, attempts=2, base=0.0, sleep=lambda seconds: None, logger=False).call(fail)
