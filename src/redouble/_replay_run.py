"""The state of one replay: which letter is next, which is in hand, what became of the others.

A letter is claimed before its handler runs and deleted after it has succeeded, so a crash in between leaves
it to be replayed when the lease is over.
"""

from __future__ import annotations

import os

from ._callables import told
from ._leases import Renewal
from ._record import Record, assign
from ._text import kind_of, one_line, shown
from ._trouble import report, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ._letters import DeadLetter, Letters, Store
    from ._plain import Masking

    Progress = Callable[[DeadLetter, str], object]

# How many letters are looked at ahead, and how long the text of an error may be.
_AHEAD, _ERROR = 50, 1000


class Replayed(Record):
    """What a replay has done, in letters: each that it came across is counted once.

    ``replayed`` ones are done; ``failed`` ones wait for another replay; ``parked`` ones have failed too
    often to be tried again; ``skipped`` ones were not to be replayed, or somebody else had a lease on them.

    >>> Replayed(replayed=3, failed=1)
    Replayed(replayed=3, failed=1, parked=0, skipped=0)
    """

    __slots__ = ("replayed", "failed", "parked", "skipped")  # noqa: RUF023 - in the order in which it reads
    replayed: int
    failed: int
    parked: int
    skipped: int

    def __init__(self, replayed: int = 0, failed: int = 0, parked: int = 0, skipped: int = 0) -> None:
        assign(self, "replayed", replayed)
        assign(self, "failed", failed)
        assign(self, "parked", parked)
        assign(self, "skipped", skipped)


class Run:
    """The state of one replay. Belongs to one thread or task; it is the drivers below that call it."""

    def __init__(
        self,
        store: Store,
        queue: str,
        *,
        now: Callable[[], float],
        owner: str | None,
        masking: Masking,
        limit: int | None,
        lease: float,
        park_after: int | None,
        include_unreplayable: bool,
        progress: Progress | None,
    ) -> None:
        self.store = store
        self._queue = queue
        self._now = now
        self._owner = owner
        self._masking = masking
        self._limit = limit
        self._lease = lease
        self._park_after = park_after
        self._everything = include_unreplayable
        self._progress = progress
        self._counts = {"replayed": 0, "failed": 0, "parked": 0, "skipped": 0}
        self._untold: list[tuple[DeadLetter, str]] = []
        self._ahead: Letters = []
        self._after = ""
        # Letters that come meanwhile are for the next replay: a handler may put one for each it is given.
        self._left: int | None = None
        self._held: tuple[str, str] | None = None
        self._renewal = Renewal(store, lease, now)
        self._warned = False

    def next(self) -> tuple[DeadLetter, str] | None:
        """Claims the next letter, and gives it with the owner of the lease; ``None`` if there is none."""
        if self._left is None:
            self._left = self.store.depths().get(self._queue, (0, 0))[0]
        while self._left > 0 and self._limit != 0:
            letter = self._look()
            if letter is None:
                break
            self._left -= 1
            if (letter.replayable or self._everything) and (claimed := self._claim(letter.id)) is not None:
                self._limit = None if self._limit is None else self._limit - 1
                return claimed
            self._count(letter, "skipped")
        return None

    def _look(self) -> DeadLetter | None:
        if not self._ahead:
            self._ahead = self.store.list(
                self._queue, now=self._now(), state="waiting", limit=_AHEAD, after=self._after
            )
            self._ahead.reverse()
        if not self._ahead:
            return None
        letter = self._ahead.pop()
        self._after = letter.id
        return letter

    def _claim(self, id: str) -> tuple[DeadLetter, str] | None:  # noqa: A002
        owner = f"{self._owner or _this_process()}/{os.urandom(6).hex()}"
        now = self._now()
        letter = self.store.claim(id, owner=owner, now=now, until=now + self._lease)
        if letter is None:
            return None
        self._held = letter.id, owner
        self._renewal.hold(letter.id, owner)
        self._warn_of_masks(letter)
        return letter, owner

    def _warn_of_masks(self, letter: DeadLetter) -> None:
        """Warn, once in a replay, that a payload is not what the call was given."""
        if letter.payload_masked and not self._warned:
            self._warned = True
            say(
                f"the payload of dead letter {letter.id} was masked when it was stored: "
                "the handler must look up the secrets itself"
            )

    def done(self, letter: DeadLetter, owner: str) -> None:
        """The handler has succeeded."""
        self.store.settle(letter, owner=owner)
        self._let_go(letter, "replayed")

    def failed(self, letter: DeadLetter, owner: str, error: Exception) -> None:
        """The handler has failed, and its policy has given up."""
        text = one_line(kind_of(error), self._masking.whole("last_replay_error", shown(error), _ERROR))
        park = self._park_after is not None and letter.replays + 1 >= self._park_after
        self.store.release(letter.id, owner=owner, error=text, park=park)
        self._let_go(letter, "parked" if park else "failed")

    def _let_go(self, letter: DeadLetter, outcome: str) -> None:
        self._held = None
        self._renewal.let_go()
        self._count(letter, outcome)

    def _count(self, letter: DeadLetter, outcome: str) -> None:
        self._counts[outcome] += 1
        self._untold.append((letter, outcome))

    def tell(self) -> None:
        """Calls the user's function, if there is one, with what has become of letters since."""
        untold, self._untold = self._untold, []
        progress = self._progress
        for letter, outcome in untold:
            try:
                if progress is not None:
                    told(progress(letter, outcome))
            except Exception as error:  # noqa: BLE001 - as for listeners
                report(progress, "the function given as progress= failed", error)

    def end(self) -> None:
        """The replay is over, or was interrupted: a letter that is still in hand is given back."""
        self._renewal.stop()
        if self._held is None:
            return
        (letter, owner), self._held = self._held, None
        try:
            self.store.release(letter, owner=owner)
        except Exception as error:  # noqa: BLE001 - what comes out already is worth more; the lease ends by itself
            report(self.store, "the lease of a dead letter could not be given back", error)

    def summary(self) -> Replayed:
        return Replayed(**self._counts)


def _this_process() -> str:
    import socket

    return f"{socket.gethostname()}:{os.getpid()}"
