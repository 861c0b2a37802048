"""The state of one replay: which letter is next, which is in hand, what became of the others.

A letter is claimed before its handler runs and deleted after it has succeeded, so a crash in between leaves
it to be replayed when the lease is over.
"""

from __future__ import annotations

import os

from ._callables import told
from ._leases import Renewal
from ._letters import UnreadableLetter, importing, iso
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

_NEVER_ENDED = "its last replay never ended: the process was killed, or the handler outlived its lease"


class Replayed(Record):
    """What a replay has done, in letters: each that it came across is counted once.

    ``replayed`` ones are done; ``failed`` ones wait for another replay; ``parked`` ones have failed too
    often to be tried again; ``skipped`` ones were not to be replayed, were too old or could not be read, or
    somebody else had a lease on them, perhaps one taken when this replay's own was over.

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
        ttl: float | None,
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
        self._ttl = ttl
        self._park_after = park_after
        self._everything = include_unreplayable
        self._progress = progress
        self._counts = {"replayed": 0, "failed": 0, "parked": 0, "skipped": 0}
        self._untold: list[tuple[DeadLetter, str]] = []
        self._ahead: Letters = []
        self._after = ""
        # Letters that come meanwhile are for the next replay: a handler may put one for each it is given.
        self._left: int | None = None
        self._held: tuple[DeadLetter, str] | None = None
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
            if not self._is_due(letter):
                self._count(letter, "skipped")
            elif (claimed := self._claim(letter)) is not None:
                self._limit = None if self._limit is None else self._limit - 1
                return claimed
        return None

    def _is_due(self, letter: DeadLetter) -> bool:
        if isinstance(letter, UnreadableLetter) or not (letter.replayable or self._everything):
            return False
        # Such times compare as texts.
        return self._ttl is None or letter.dead_lettered_at >= iso(self._now() - self._ttl)

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

    def _claim(self, letter: DeadLetter) -> tuple[DeadLetter, str] | None:
        owner = f"{self._owner or _this_process()}/{os.urandom(6).hex()}"
        now = self._now()
        claimed = self.store.claim(letter.id, owner=owner, now=now, until=now + self._lease)
        if claimed is None:
            self._count(letter, "skipped")
            return None
        if self._park_after is not None and claimed.replays > self._park_after:
            # As many replays as are allowed have begun, and the last of them told no end.
            self.store.release(claimed.id, owner=owner, error=_NEVER_ENDED, park=True, count=False)
            self._count(claimed, "parked")
            return None
        self._held = claimed, owner
        self._renewal.hold(claimed.id, owner, now + self._lease)
        self._warn_of_masks(claimed)
        return claimed, owner

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
        held = self.store.settle(letter, owner=owner)
        self._let_go(letter, "replayed", held=held)

    def failed(self, letter: DeadLetter, owner: str, error: BaseException) -> None:
        """The handler has failed, and its policy has given up."""
        text = one_line(kind_of(error), self._masking.whole("last_replay_error", shown(error), _ERROR))
        park = self._park_after is not None and letter.replays >= self._park_after
        held = self.store.release(letter.id, owner=owner, error=text, park=park)
        self._let_go(letter, "parked" if park else "failed", held=held)

    def _let_go(self, letter: DeadLetter, outcome: str, *, held: bool) -> None:
        """Count a letter, unless another has claimed it since: then the outcome is told by that one.

        Nobody can have, while the lease lasts. A store that was asked twice, because its first answer was
        lost, may say otherwise.
        """
        self._held = None
        self._renewal.let_go()
        self._count(letter, outcome if held or self._now() < self._renewal.until else "skipped")

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

    def end(self, error: BaseException | None = None) -> None:
        """The replay is over, or was interrupted: a letter that is still in hand is given back.

        The replay counts if the ``error`` is the handler's own way out, as by `sys.exit`. It does not if
        somebody interrupted it, or if the store failed.
        """
        self._renewal.stop()
        if self._held is None:
            return
        (letter, owner), self._held = self._held, None
        try:
            if error is None or isinstance(error, (Exception, KeyboardInterrupt)):
                self.store.release(letter.id, owner=owner, count=False)
            else:
                self.failed(letter, owner, error)
        except Exception as trouble:  # noqa: BLE001 - what comes out already is worth more; the lease ends by itself
            report(self.store, "the lease of a dead letter could not be given back", trouble)

    def summary(self) -> Replayed:
        return Replayed(**self._counts)


def _this_process() -> str:
    with importing:
        import socket

    return f"{socket.gethostname()}:{os.getpid()}"
