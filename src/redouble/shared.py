"""Budget and breaker state beyond one process.

`FileBudget` is shared by the processes of one machine, `RedisBudget` and `RedisBreaker` by any number of
machines. They mean what `TokenBudget` and `CircuitBreaker` mean, and are used alike. When the store is
away, or slow, a local twin takes over, a `StoreChanged` event says so, and no call fails for it.
"""

from __future__ import annotations

import os

from . import _checks as check
from ._budget_file import BudgetFile
from ._numbers import whole
from ._redis import BUDGET, CIRCUIT, RedisLink, warn_of_patience
from ._shared_breaker import SharedBreaker
from ._shared_budget import SharedBudget
from .breaker import CircuitBreaker
from .budget import RESERVES, TokenBudget

__all__ = [
    "FileBudget",
    "RedisBreaker",
    "RedisBudget",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import timedelta
    from typing import Any

    from ._store import Listener
    from .breaker import Ignored


class RedisBudget(SharedBudget):
    """A `TokenBudget` that any number of machines share, under one key of a Redis.

    ``client`` is your own: with a `redis.asyncio.Redis` (``is_async`` is true) `acquire`, `success`,
    `failure` and `look` give something to await, with a `redis.Redis` they act at once. Give the client a
    short ``socket_timeout`` and no retries. A key that nobody used for ``ttl`` seconds is forgotten: the
    budget is full again.

    A retry costs one round trip. A success at the first try costs none while the budget is believed full;
    otherwise what it earns is sent with the next question, or once in ``refresh`` seconds.

    >>> class Nowhere:  # a client that has no server
    ...     def execute_command(self, *words): raise ConnectionError("refused")
    ...     eval = evalsha = execute_command
    >>> budget = RedisBudget(Nowhere(), "payments:retries", capacity=10)
    >>> budget.acquire(), budget.acquire(), budget.acquire(), budget.available
    (5.0, 5.0, 0.0, False)
    """

    def __init__(
        self,
        client: Any,
        key: str,
        capacity: float = 500,
        cost: float = 5,
        timeout_cost: float = 10,
        refund: float | None = None,
        earn: float = 1,
        *,
        reserves: Mapping[int, float] = RESERVES,
        ttl: float | timedelta = 3600.0,
        refresh: float | timedelta = 1.0,
        slow: float | timedelta = 0.25,
        retry_in: float | timedelta = 1.0,
        name: str | None = None,
        listeners: Iterable[Listener] = (),
        clock: Callable[[], float] | None = None,
    ) -> None:
        link = RedisLink(client, check.text("key", key), BUDGET)
        twin = TokenBudget(
            capacity,
            cost,
            timeout_cost,
            refund,
            earn,
            reserves=reserves,
            name=link.key if name is None else name,
        )
        super().__init__(
            twin,
            link,
            ttl=ttl,
            refresh=refresh,
            slow=slow,
            retry_in=retry_in,
            listeners=listeners,
            clock=clock,
        )
        self.key = link.key
        if not self.is_async:
            warn_of_patience(client, self.name, self.slow)


class RedisBreaker(SharedBreaker):
    """A `CircuitBreaker` that any number of machines share, under one key of a Redis.

    Opens after ``failures`` in a row, whichever process saw them; half-open, ``probes`` get through at
    once over all processes together. A probe that is not heard of for ``open_for`` seconds is given up.
    There is no rate-based kind: it would have to tell every success to Redis.

    With a `redis.asyncio.Redis` (``is_async`` is true) what asks or tells is awaited; ``state``,
    ``retry_after`` and `refuses` are what was heard last. While the circuit is closed a call costs no
    round trip but once in ``refresh`` seconds, a success none either unless there were failures. That
    others have opened the circuit is seen after at most ``refresh + slow`` seconds.

    >>> class Nowhere:  # a client that has no server
    ...     def execute_command(self, *words): raise ConnectionError("refused")
    ...     eval = evalsha = execute_command
    >>> breaker = RedisBreaker(Nowhere(), "payments:circuit", failures=1, name="payments")
    >>> breaker.failure(breaker.enter(), TimeoutError("slow"))
    >>> breaker.enter()
    Traceback (most recent call last):
    redouble.errors.CircuitOpen: the circuit of payments is open for another 30.0 s (TimeoutError: slow)
    """

    def __init__(
        self,
        client: Any,
        key: str,
        failures: int = 5,
        successes: int = 1,
        open_for: float | timedelta = 30.0,
        probes: int = 1,
        *,
        ignore: Ignored | None = None,
        ttl: float | timedelta = 3600.0,
        refresh: float | timedelta = 0.5,
        slow: float | timedelta = 0.25,
        retry_in: float | timedelta = 1.0,
        name: str | None = None,
        listeners: Iterable[Listener] = (),
        clock: Callable[[], float] | None = None,
    ) -> None:
        link = RedisLink(client, check.text("key", key), CIRCUIT)
        limit = whole("failures", failures, at_least=1)
        twin = CircuitBreaker(
            limit,
            successes,
            open_for,
            probes,
            ignore=ignore,
            name=link.key if name is None else name,
            listeners=listeners,
            clock=clock,
        )
        super().__init__(
            twin,
            link,
            limit,
            ttl=ttl,
            refresh=refresh,
            slow=slow,
            retry_in=retry_in,
        )
        self.key = link.key
        if not self.is_async:
            warn_of_patience(client, self.name, self.slow)


class FileBudget(SharedBudget):
    """A `TokenBudget` that the processes of one machine share, in a file.

    The file is made when it is first needed; SQLite keeps it whole, also when a process is killed in the
    middle. It must be on a local disk. Each use takes a fraction of a millisecond, in an event loop too;
    a success at the first try takes none while the budget is believed full, and otherwise is written
    with the next retry, or once in ``refresh`` seconds. After ``ttl`` seconds without any use it is full.

    Other than the guards of one process it pickles: the path and the settings travel.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     budget, other = (FileBudget(f"{folder}/retries", capacity=10) for _ in range(2))
    ...     budget.acquire(), other.acquire(), budget.acquire(), other.look()
    (5.0, 5.0, 0.0, 0.0)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        capacity: float = 500,
        cost: float = 5,
        timeout_cost: float = 10,
        refund: float | None = None,
        earn: float = 1,
        *,
        reserves: Mapping[int, float] = RESERVES,
        ttl: float | timedelta = 3600.0,
        refresh: float | timedelta = 1.0,
        slow: float | timedelta = 0.25,
        retry_in: float | timedelta = 1.0,
        name: str | None = None,
        listeners: Iterable[Listener] = (),
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.path = _file("path", path)
        """The file, as an absolute path."""
        twin = TokenBudget(
            capacity,
            cost,
            timeout_cost,
            refund,
            earn,
            reserves=reserves,
            name=os.path.basename(self.path) if name is None else name,  # noqa: PTH119 - pathlib is slow
        )
        super().__init__(
            twin,
            BudgetFile(self.path),
            ttl=ttl,
            refresh=refresh,
            slow=slow,
            retry_in=retry_in,
            listeners=listeners,
            clock=clock,
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        settings = {name: getattr(self, name) for name in _SETTINGS}
        return _rebuild, (type(self), {**settings, "reserves": dict(self.reserves), "clock": self._clock})


# fmt: off
_SETTINGS = (
    "path", "capacity", "cost", "timeout_cost", "refund", "earn",
    "ttl", "refresh", "slow", "retry_in", "name", "listeners",
)
# fmt: on


def _rebuild(cls: type[FileBudget], settings: dict[str, Any]) -> FileBudget:
    return cls(**settings)


def _file(name: str, value: Any) -> str:
    try:
        path = os.fsdecode(value)
    except TypeError:
        raise TypeError(f"{name} must be the path of a file, got {value!r}") from None
    if path in ("", ":memory:"):
        raise ValueError(f"{name} must be the path of a file: others cannot share {value!r}")
    return os.path.abspath(path)  # noqa: PTH100 - pathlib is slow to import
