"""Run Lua scripts through the user's Redis client, sync or asyncio.

A script is sent by its digest, and as text to a server that does not know it yet. The client's own package
is never imported.
"""

from __future__ import annotations

from functools import lru_cache

from .callables import is_async
from .checks import INF, has_methods

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# In milliseconds, about 30 years: Redis rejects longer times.
_LONGEST = 1e12


class RedisLink:
    """A key of a Redis, and the script that reads and writes it."""

    def __init__(self, client: Any, key: str, script: str) -> None:
        self.client = checked_client(client)
        self.key = key
        self.is_async = self.can_cancel = is_async(client.execute_command)
        self._script = script

    async def run(self, request: tuple[Any, ...], patience: float) -> Any:
        """Run the script and return its answer. With a sync client this never suspends."""
        words = [word if isinstance(word, str) else repr(word) for word in request]
        return await run_script(self.client, self._script, [self.key], words, self.is_async)


async def run_script(client: Any, script: str, keys: list[str], words: list[Any], is_async: bool) -> Any:
    """Run a script, as text if its digest is unknown. With a sync client this never suspends."""
    sent = len(keys), *keys, *words
    try:
        answer = client.evalsha(_digest(script), *sent)
        return (await answer) if is_async else answer
    except Exception as error:
        if type(error).__name__ != "NoScriptError" and not str(error).startswith("NOSCRIPT"):
            raise
    answer = client.eval(script, *sent)
    return (await answer) if is_async else answer


@lru_cache(None)
def _digest(script: str) -> str:
    """Return the SHA-1 of a script, by which a server knows it."""
    import hashlib

    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()


def checked_client(client: Any, kinds: str = "a redis.Redis or a redis.asyncio.Redis") -> Any:
    """Return the client, or raise `TypeError` if it cannot run scripts."""
    if not has_methods(client, "execute_command", "evalsha", "eval"):
        raise TypeError(f"client must be {kinds}, got {client!r}")
    return client


def warn_if_slow(link: RedisLink, name: str, timeout: float) -> None:
    """Warn if a sync client may block for longer than ``timeout``. An asyncio client is cancelled instead."""
    waits, repeats = _waits_and_repeats(link.client)
    if link.is_async or (waits <= timeout and not repeats):
        return
    import warnings

    found = [f"waits {waits:g} s for an answer"] if waits > timeout else []
    found += [f"repeats a command {repeats} times"] if repeats else []
    warnings.warn(
        f"the client of {name} {' and '.join(found)}, so a server that hangs blocks a call for longer than "
        f"timeout={timeout:g}: make the client with socket_timeout={timeout:g}, "
        f"socket_connect_timeout={timeout:g} and retry=None",
        RuntimeWarning,
        stacklevel=3,
    )


def _waits_and_repeats(client: Any) -> tuple[float, int]:
    """Return the longest timeout of a client, and how often it repeats a command; zeros if unknown."""
    try:
        pool = getattr(client, "connection_pool", None) or client.nodes_manager
        settings = pool.connection_kwargs
        timeout = settings.get("socket_timeout")
        timeouts = [timeout, settings.get("socket_connect_timeout") or timeout]
        waits = max([INF if seconds is None else float(seconds) for seconds in timeouts])
        retry = settings.get("retry") or getattr(client, "retry", None)
        return waits, int(getattr(retry, "_retries", 0))
    except Exception:  # noqa: BLE001 - a client that is made otherwise; this is only a warning
        return 0.0, 0


def milliseconds(seconds: float) -> float:
    """Return a time in milliseconds, within the limits of Redis."""
    return max(1.0, min(seconds * 1000, _LONGEST))


def packed(text: str) -> str:
    """Return a text as ASCII, which a client of any encoding sends unchanged."""
    return text.encode("unicode_escape").decode("ascii")


def unpacked(text: str | bytes) -> str:
    """Return the text that was `packed`, whether or not the client has decoded it."""
    return (text.encode("ascii") if isinstance(text, str) else text).decode("unicode_escape")
