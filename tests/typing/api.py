"""What type checkers see. Checked by mypy and pyright, strict; never run."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, assert_type

from redouble import (
    BulkheadFull,
    Cause,
    CircuitOpen,
    DeadlineExceeded,
    Policy,
    ResultRejected,
    Rule,
    Verdict,
    current_attempt,
    history,
    presets,
    retry,
    retrying,
)
from redouble.backoff import delays, full_jitter, immediately_once
from redouble.breaker import CircuitBreaker, State
from redouble.budget import RatioBudget, TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.classify import Classifier, accepted, is_retryable, parse_retry_after, retry_after, verdict
from redouble.context import Attempt, carried, incoming, outgoing_headers
from redouble.dead_letters import DeadLetter, DeadLetters, Replayed
from redouble.errors import History
from redouble.events import CircuitChanged, Event, Retrying, log_to, subscribe, with_successes
from redouble.hedging import hedge, quantile
from redouble.metrics import Counters, Counts, Prometheus, Snapshot
from redouble.policy import LintWarning, RetriedCall
from redouble.presets import standard
from redouble.registry import Registry
from redouble.testing import FakeClock, fake_time, no_waits, scripted
from redouble.throttle import AdaptiveThrottle

# The decorator keeps signatures, sync and async


@retry
def bare(url: str, *, depth: int = 0) -> bytes:
    return b""


assert_type(bare("/", depth=1), bytes)
bare(5)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


@retry(attempts=6, base=0.2, cap=5.0, deadline=timedelta(seconds=20))
async def with_fields(url: str) -> bytes:
    return b""


policy = Policy(attempts=3)


@retry(policy)
def with_policy(number: int) -> str:
    return str(number)


@retry(policy, attempts=2)
def with_both(number: int) -> str:
    return str(number)


@policy
def by_policy(number: int) -> str:
    return str(number)


@retry()
def empty(number: int) -> str:
    return str(number)


for decorated in (with_policy, with_both, by_policy, empty):
    assert_type(decorated(1), str)


class Client:
    @retry
    def get(self, path: str) -> bytes:
        return b""

    @retry(deadline=5)
    async def aget(self, path: str) -> bytes:
        return b""

    @retry
    @classmethod
    def make(cls) -> "Client":
        return cls()

    @staticmethod
    @retry
    def parse(text: str) -> int:
        return int(text)

    @property
    @retry
    def size(self) -> int:
        return 0

    @retry
    def stream(self) -> Iterator[int]:
        yield 1

    @retry
    async def astream(self) -> AsyncIterator[int]:
        yield 1


assert_type(Client().get("/"), bytes)
assert_type(Client.parse("1"), int)
assert_type(Client().size, int)
assert_type(Client().stream(), Iterator[int])
assert_type(Client().astream(), AsyncIterator[int])

retry(attemps=3)  # type: ignore[call-overload] # pyright: ignore[reportCallIssue]
Policy(idempotent="maybe")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
Policy(nested="stop").replace(nested="independent")
Policy(nested="both")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


# Policies


def by_status(error: Exception) -> bool | float | timedelta | Verdict:
    return verdict(error)


full = Policy(
    on=by_status,
    until=accepted,
    rules={Cause.unauthorized: Rule(attempts=2), 429: Rule(base=5), TimeoutError: Rule()},
    backoff=immediately_once(full_jitter),
    listeners=[lambda event: None],
    idempotency_key=str,
    enabled=lambda: True,
)
assert_type(full.attempts, float | None)
assert_type(full.base, float)
assert_type(full.deadline, float | None)
assert_type(full.replace(attempts=2), Policy)
assert_type(policy.call(bare, "/", depth=2), bytes)
policy.call(bare, 5)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
assert_type(list(policy.delays()), list[float])
assert_type(policy.describe(), str)
assert_type(policy.lint(), tuple[LintWarning, ...])
assert_type(Policy.from_mapping({"attempts": 3}), Policy)
assert_type(Policy.from_env("APP_RETRY"), Policy)
assert_type(standard(deadline=5), Policy)
Policy(on=(OSError, KeyError))
Policy(on=OSError)
Policy(on=Classifier(transient=(KeyError,)))


# Blocks and scopes

for attempt in retrying(policy, attempts=4):
    with attempt:
        assert_type(attempt.number, int)
        assert_type(attempt.remaining, float | None)
        attempt.again("not ready", after=timedelta(seconds=1))
        attempt.reset()

with retrying(deadline=5) as call:
    assert_type(call(bare, "/"), bytes)


async def awaited() -> None:
    assert_type(await with_fields("/"), bytes)
    assert_type(await Client().aget("/"), bytes)
    assert_type(await policy.call(with_fields, "/"), bytes)


async def blocks() -> None:
    async for attempt in retrying(policy):
        async with attempt:
            assert_type(attempt.idempotency_key, str | None)
        with attempt:
            pass
    async with retrying(policy) as call:
        assert_type(await call(with_fields, "/"), bytes)


# The rest

assert_type(current_attempt(), Attempt | None)
assert_type(outgoing_headers(), dict[str, str])
assert_type(carried(bare)("/", depth=1), bytes)
carried(bare)(5)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
with incoming({"X-Retry-Attempt": "2"}):
    pass
assert_type(full_jitter(attempt=3, base=0.5, cap=30), float)
assert_type(next(delays(attempts=3)), float)
assert_type(verdict(OSError()), Verdict)
assert_type(verdict(OSError()).cause, Cause)
assert_type(is_retryable(OSError(), idempotent=False), bool)
assert_type(retry_after({"Retry-After": "1"}), float | None)
assert_type(parse_retry_after("1"), float | None)


def listener(event: Event) -> None:
    if isinstance(event, Retrying):
        assert_type(event.delay, float | None)
    assert_type(event.error, BaseException | None)
    assert_type(event.args, tuple[Any, ...] | None)
    assert_type(event.kwargs, Mapping[str, Any] | None)
    assert_type(event.as_dict(), dict[str, Any])


def errors(deadline: DeadlineExceeded, rejected: ResultRejected) -> None:
    assert_type(deadline.last_error, BaseException | None)
    assert_type(deadline.attempts, int)
    assert_type(rejected.attempts, int)


clock = FakeClock()
Policy(clock=clock, sleep=clock.sleep)
with no_waits() as waits:
    assert_type(waits[0], float)
with no_waits(seed=7) as waits, fake_time(clock, seed=7, everywhere=True) as faked:
    assert_type(faked, FakeClock)
fetch: Callable[..., Any] = scripted(TimeoutError(), "page")
pending: Awaitable[Any] = scripted("page", asynchronous=True)()

# What runs before a retry


def reconnect(error: Exception) -> None: ...


def smaller(error: Exception, call: RetriedCall) -> None:
    assert_type(call.function, Callable[..., Any] | None)
    assert_type(call.args, tuple[Any, ...])
    assert_type(call.attempt, int)
    call.kwargs["batch"] = 10
    call.kwargs = {}  # type: ignore[misc] # pyright: ignore[reportAttributeAccessIssue]


async def smaller_async(error: Exception, call: RetriedCall) -> None: ...


Policy(recover=reconnect, rules={401: Rule(recover=smaller)})
Policy(recover=smaller, rules={401: Rule(recover=smaller_async)})
Policy(recover=lambda error, call: call.kwargs.clear())
Policy(recover=lambda error: print(error))
retry(recover=smaller_async)
Policy(recover=len)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]

# Guards

budget = TokenBudget(capacity=100, cost=5, name="upstream")
breaker = CircuitBreaker(failures=3, open_for=timedelta(seconds=10), ignore=KeyError, listeners=[listener])
bulkhead, throttle = Bulkhead(10, queue=5), AdaptiveThrottle()
guarded = Policy(
    budget=budget,
    breaker=breaker,
    bulkhead=bulkhead,
    throttle=throttle,
    fallback=b"",
    priority=-1,
)
assert_type(budget.acquire(timeout=True, priority=-1), float)
assert_type(budget.tokens, float)
assert_type(RatioBudget(ratio=0.1).acquire(), float)
assert_type(breaker.state, State)
assert_type(breaker.retry_after, float | None)
assert_type(breaker.enter(), int)
assert_type(bulkhead.acquire(timeout=1.0), bool)
assert_type(throttle.acquire(), float)
assert_type(presets.breaker("cache"), CircuitBreaker)
assert_type(presets.standard(budget=None), Policy)


@guarded
@breaker
@bulkhead
@throttle
@hedge(after=quantile(0.95, initial=0.5), budget=budget)
def protected(url: str) -> bytes:
    return url.encode()


assert_type(protected("/"), bytes)


@breaker
async def protected_async(url: str) -> bytes:
    async with bulkhead, throttle:
        return url.encode()


async def protected_awaited() -> None:
    assert_type(await protected_async("/"), bytes)


with breaker, bulkhead, throttle:
    pass


def make(host: str) -> CircuitBreaker:
    return CircuitBreaker(name=host)


breakers = Registry(make, limit=100)
assert_type(breakers["example.org"], CircuitBreaker)


def host_of(url: str, *, tries: int = 1) -> str | None: ...


def tenant_budget(url: str) -> TokenBudget | None: ...


by_host = breakers.by(host_of)
assert_type(by_host("https://example.org", tries=2), CircuitBreaker | None)


@retry(breaker=by_host, budget=tenant_budget, bulkhead=lambda *_: bulkhead, throttle=lambda *_: throttle)
def fetch_by_host(url: str) -> bytes:
    return url.encode()


assert_type(fetch_by_host("/"), bytes)
Policy(breaker=tenant_budget)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def refused(circuit: CircuitOpen, full: BulkheadFull, changed: CircuitChanged) -> None:
    assert_type(circuit.retry_after, float | None)
    assert_type(full.limit, int)
    assert_type(changed.before, str)


# Dead letters

letters = DeadLetters("letters.db", queue="critical", ttl=timedelta(days=14))
kept = letters.put(payload={"order": 7}, error=TimeoutError(), attempts=4)
assert_type(kept, DeadLetter)
assert_type(kept.replayable, bool)
assert_type(letters.depth(), int)
assert_type(letters.get("01J8"), DeadLetter | None)
assert_type(letters.queue("bulk"), DeadLetters)


def send_again(letter: DeadLetter) -> None: ...


async def send_again_async(letter: DeadLetter) -> None: ...


assert_type(letters.replay(send_again, policy).replayed, int)


def order_of(order: int) -> dict[str, int]:
    return {"order": order}


Policy(dead_letters=letters, payload=order_of)


async def replayed() -> None:
    assert_type(await letters.areplay(send_again_async), Replayed)
    assert_type(await letters.aput(payload=7), DeadLetter)


# Seen from outside


def hear(event: Event) -> None: ...


counters = Counters(successes=True)
Policy(listeners=[counters, with_successes(hear), Prometheus()])
unsubscribe = subscribe(hear)
assert_type(unsubscribe(), None)
Policy(logger=False, listeners=[log_to("app", level=logging.INFO, template="%(name)s")])
Policy(logger=logging.getLogger("app"), listeners=[log_to(logging.getLogger("app"), {Retrying: 20})])
Policy(logger="app")
Policy(logger=True)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
assert_type(counters.snapshot(), Snapshot)
assert_type(counters.snapshot().policies["fetch"], Counts)
assert_type(counters.table(), str)
assert_type(history(TimeoutError()), History | None)
subscribe("hear")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
