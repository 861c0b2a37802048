"""Budgets and breakers that several processes or machines share.

`FileBudget` is shared by the processes of one machine, `RedisBudget` and `RedisBreaker` by any number of
machines. They work as `TokenBudget` and `CircuitBreaker` do. While the store is down or slow, a local guard
takes over, a `BackendChanged` event is emitted, and no call fails because of it.
"""

from __future__ import annotations

import os
from functools import partial

from .._base import checks as check
from .._base.redis import RedisLink, warn_if_slow
from .._base.sqlite import file_path
from ..breaker import CircuitBreaker
from ..budget import RESERVES, TokenBudget
from ._breaker import SharedBreaker
from ._budget import BudgetFile, SharedBudget
from ._scripts import BUDGET, CIRCUIT

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

    from ..breaker import Ignored
    from ..events import Listener


class RedisBudget(SharedBudget):
    """A `TokenBudget` in a key of a Redis, shared by any number of machines.

    ``client`` is your own `redis.Redis` or `redis.asyncio.Redis`; with the latter ``is_async`` is true, and
    `acquire`, `success`, `failure` and `refresh` return awaitables. Give a sync client a short
    ``socket_timeout`` and no retries. A key that is not used for ``ttl`` seconds expires: the budget is
    full again.

    A retry costs one round trip. A first-try success costs none while the budget is known to be full;
    otherwise its earnings are sent with the next request, or once per ``refresh_interval``. A store that
    does not answer within ``timeout`` seconds is down, and is tried again every ``retry_interval`` seconds.

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
        refresh_interval: float | timedelta = 1.0,
        timeout: float | timedelta = 0.25,
        retry_interval: float | timedelta = 1.0,
        name: str | None = None,
        listeners: Iterable[Listener] = (),
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.key = check.text("key", key)
        link = RedisLink(client, self.key, BUDGET)
        name = self.key if name is None else name
        local = TokenBudget(capacity, cost, timeout_cost, refund, earn, reserves=reserves, name=name)
        super().__init__(local, clock)
        self._connect(link, listeners, ttl, refresh_interval, timeout, retry_interval)
        warn_if_slow(link, self.name, self.timeout)


class RedisBreaker(SharedBreaker):
    """A `CircuitBreaker` in a key of a Redis, shared by any number of machines.

    Opens after ``failures`` in a row, in whichever processes; half-open, it admits ``probes`` at a time
    over all processes together. The slot of a probe with no result after ``open_for`` seconds is freed.
    There is no failure rate: it would need a request for every success.

    With a `redis.asyncio.Redis` ``is_async`` is true, and methods that may send a request return
    awaitables. ``state``, ``retry_after`` and `refuses` are as of the last answer. While the circuit is
    closed, calls cost one round trip per ``refresh_interval`` seconds together, and successes none unless
    there were failures. A circuit that others open is seen after at most ``refresh_interval + timeout``
    seconds.

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
        refresh_interval: float | timedelta = 0.5,
        timeout: float | timedelta = 0.25,
        retry_interval: float | timedelta = 1.0,
        name: str | None = None,
        listeners: Iterable[Listener] = (),
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.key = check.text("key", key)
        link = RedisLink(client, self.key, CIRCUIT)
        limit = check.whole("failures", failures, at_least=1)
        name = self.key if name is None else name
        rules = limit, successes, open_for, probes
        local = CircuitBreaker(*rules, ignore=ignore, name=name, listeners=listeners, clock=clock)
        super().__init__(local, limit)
        self._connect(link, listeners, ttl, refresh_interval, timeout, retry_interval)
        warn_if_slow(link, self.name, self.timeout)


class FileBudget(SharedBudget):
    """A `TokenBudget` in a SQLite file, shared by the processes of one machine.

    The file is created on first use, must be on a local disk, and stays consistent if a process is killed.
    A request blocks for a fraction of a millisecond, in an event loop too. A first-try success needs none
    while the budget is known to be full; otherwise it is written with the next retry, or once per
    ``refresh_interval``. After ``ttl`` seconds without use the budget is full.

    Unlike other guards it can be pickled: the path and the settings are.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     budget, other = (FileBudget(f"{folder}/retries", capacity=10) for _ in range(2))
    ...     budget.acquire(), other.acquire(), budget.acquire(), other.refresh()
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
        refresh_interval: float | timedelta = 1.0,
        timeout: float | timedelta = 0.25,
        retry_interval: float | timedelta = 1.0,
        name: str | None = None,
        listeners: Iterable[Listener] = (),
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.path = file_path("path", path)
        """The file, as an absolute path."""
        name = os.path.basename(self.path) if name is None else name  # noqa: PTH119 - pathlib is slow
        local = TokenBudget(capacity, cost, timeout_cost, refund, earn, reserves=reserves, name=name)
        super().__init__(local, clock)
        self._connect(BudgetFile(self.path), listeners, ttl, refresh_interval, timeout, retry_interval)

    def __reduce_ex__(self, protocol: Any) -> Any:
        settings = {name: getattr(self, name) for name in _SETTINGS}
        return partial(type(self), reserves=dict(self.reserves), clock=self._clock, **settings), ()


# fmt: off
_SETTINGS = (
    "path", "capacity", "cost", "timeout_cost", "refund", "earn",
    "ttl", "refresh_interval", "timeout", "retry_interval", "name", "listeners",
)
# fmt: on
