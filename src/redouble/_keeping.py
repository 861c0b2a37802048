"""What is kept of a call that was given up on, and what is said where it could not be stored."""

from __future__ import annotations

import time

from ._account import Account
from ._callables import plain
from ._numbers import INF
from ._text import kind_of, one_line, shown
from ._time import real_now
from ._trouble import say
from .context import BEYOND, replay_here, store_until
from .events import DeadLettered, Reason, correlated, subscribed, tell, without

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextvars import Token
    from typing import Any

    from .classify import Verdict


# Seconds that a call waits at most until its dead letter is stored, with a deadline or without.
_AT_MOST = 5.0


class Keeping(Account):
    """A call that may be kept."""

    lost: Exception | None = None
    """What the call was given up on for, until its dead letter is written."""
    _code = _once = ""

    def lose(self, error: Exception, verdict: Verdict | None, reason: Reason) -> None:
        """The call is given up on: if its policy keeps dead letters, the driver is to write one."""
        letters, replay = self.policy.dead_letters, replay_here()
        if letters is None:
            return
        if replay is not None and replay.is_of(letters, self.name):
            replay.again = self._brief(error)  # its letter is there already
            return
        self.lost = error
        self._code = str(reason if verdict is None else verdict.status or verdict.cause)
        self._once = self.why if reason is Reason.not_idempotent else ""

    def limit_storing(self) -> Token[float | None]:
        """Set how long the dead letter may take: what the call has left, and a little more."""
        left = INF if self.ends is None else max(0.0, self.ends - self.clock())
        return store_until.set(real_now() + min(left + BEYOND, _AT_MOST))

    def letter(self) -> dict[str, Any]:
        """What is kept of the call. Arguments only as the policy says."""
        wall, about = time.time(), correlated()
        return {
            **self._payload(),
            "function": self.name,
            "error": self.lost,
            "failure_code": self._code,
            "attempts": self.attempt,
            "first_attempt_at": wall - self.elapsed(),
            "last_attempt_at": wall,
            # Not a key of the call around it, of which this may be one of several.
            "idempotency_key": self.key.value() if self.key and self.policy.idempotency_key else None,
            "correlation_id": about.get("correlation_id") or about.get("trace_id"),
        }

    def _payload(self) -> dict[str, Any]:
        payload, (args, kwargs) = self.policy.payload, self.given
        instructions = {"replayable": False, "replay_instructions": self._once} if self._once else {}
        try:
            return {
                "payload": None if payload is None else plain("it", payload(*args, **kwargs)),
                **instructions,
            }
        except Exception as trouble:  # noqa: BLE001 - the user's code; the rest is kept all the same
            text = f"its payload could not be made: {self._brief(trouble)}"
            say(f"{self.name} was given up on, and {text}", trouble)
            return {"replayable": False, "replay_instructions": text}

    def kept(self, letter: Any) -> None:
        """A dead letter was written; the policy's own listeners hear of it, too."""
        self.lost = None
        theirs = getattr(self.policy.dead_letters, "listeners", ())
        heard = without(self.policy.listeners, (*theirs, *subscribed()))
        if heard:
            tell(DeadLettered(letter), heard)

    def unkept(self, trouble: Exception) -> None:
        """A dead letter could not be written: that is said on the error, and in the log, every time."""
        text = f"its dead letter could not be stored: {self._brief(trouble)}"
        error: Any = self.lost
        self.tell_story(error, f"{self.why}; {text}" if self.why else text)
        say(f"{self.name} was given up on, and {text}", trouble)

    def _brief(self, error: Exception) -> str:
        return one_line(kind_of(error), self.line(shown(error)))
