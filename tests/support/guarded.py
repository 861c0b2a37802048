"""Policies and guards for tests of calls with guards."""

from __future__ import annotations

import asyncio

from redouble import CircuitOpen
from redouble.breaker import Breaker, CircuitBreaker
from redouble.budget import Budget
from redouble.bulkhead import Bulkhead
from redouble.throttle import AdaptiveThrottle

SLOW = TimeoutError("slow")


class Response:
    def __init__(self, status, **headers):
        self.status_code = status
        self.headers = headers


class HTTPError(Exception):
    def __init__(self, status, **headers):
        super().__init__(f"status {status}")
        self.response = Response(status, **headers)


def told(heard):
    return [(type(event).__name__, event.reason) for event in heard]


class Interrupt(BaseException):
    pass


class Turnstile(AdaptiveThrottle):
    """A throttle whose waits are a script."""

    def __init__(self, *waits):
        super().__init__()
        self.waits = [*waits]
        self.outcomes = []

    def acquire(self):
        return self.waits.pop(0) if self.waits else 0.0

    def failure(self, error):
        self.outcomes.append(type(error).__name__)


class BrokenBudget(Budget):
    def acquire(self, *, timeout=False, priority=0):
        raise OSError("store")

    def success(self, cost=0.0):
        raise OSError("store")

    def failure(self):
        raise OSError("store")


class BrokenBreaker(Breaker):
    def __init__(self):
        super().__init__("broken")

    def enter(self, listeners=()):
        raise OSError("store")

    success = failure = release = enter

    def refuses(self):
        return False


class Flavours:
    """Scripts for async tests that need no fixture."""

    @staticmethod
    def scripted(*outcomes):
        from redouble.testing import scripted

        return scripted(*outcomes, asynchronous=True)


def half_open(clock, **settings):
    breaker = CircuitBreaker(failures=1, open_for=10.0, clock=clock, **settings)
    breaker.failure()
    clock.advance(10.0)
    return breaker


async def slow_page():
    return "page"


WATCHED = [{"deadline": 60.0}, {"until": bool}, {"idempotency_key": True}]


class SlowQueue(Bulkhead):
    """A bulkhead in whose queue time goes by; it notes how long it may take."""

    def __init__(self, clock, **settings):
        super().__init__(1, **settings)
        self.clock, self.limits = clock, []

    def acquire(self, timeout=None):
        self.clock.advance(9.0)
        self.limits.append(timeout)
        return super().acquire(timeout)

    async def acquire_async(self, timeout=None):
        return self.acquire(timeout)


class Generous(Budget):
    """A budget of the user's own that grants everything."""

    def acquire(self, *, timeout=False, priority=0):
        return 1.0


def broken(thing, method, trouble):
    """The thing, with one method that raises."""

    def raises(*args, **kwargs):
        raise trouble

    async def raises_later(*args, **kwargs):
        raise trouble

    setattr(thing, method, raises_later if getattr(thing, "is_async", False) else raises)
    return thing


class AsyncBudget(Budget):
    is_async = True

    def __init__(self, grants=1):
        super().__init__()
        self.grants = grants
        self.outcomes = []

    async def acquire(self, *, timeout=False, priority=0):
        await asyncio.sleep(0)
        self.grants -= 1
        return 1.0 if self.grants >= 0 else 0.0

    async def success(self, cost=0.0):
        self.outcomes.append(("success", cost))

    async def failure(self):
        self.outcomes.append("failure")


class AsyncBreaker(Breaker):
    is_async = True

    def __init__(self):
        super().__init__("remote")
        self.told = []

    async def enter(self, listeners=()):
        await asyncio.sleep(0)
        if "open" in self.told:
            raise self.refusal()
        return 7

    async def success(self, ticket=None, listeners=()):
        self.told.append(("success", ticket))

    async def failure(self, ticket=None, error=None, listeners=()):
        self.told.append(("failure", ticket))

    async def release(self, ticket=None):
        raise AssertionError("nobody awaits this")

    def refuses(self):
        return False

    def refusal(self):
        return CircuitOpen("the circuit of remote is open", name="remote", retry_after=1.0)
