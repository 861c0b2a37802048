"""``python -m redouble deadletters replay``: letters handed to a function, and what became of them."""

from __future__ import annotations

import os
import sys
import time

from ._callables import ASYNC, SYNC, claims_async, flavour
from ._columns import safe
from ._letters import Store
from ._terminal import DONE, NOT_ALL, USAGE, Unable, complain, silence, to_json
from ._text import brief
from .deadletter import DeadLetters
from .policy import Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ._letters import DeadLetter, Letters, State

# How many letters that failed are named after a replay; seconds between lines of progress, on a terminal and
# elsewhere.
_NAMED, _IN_PLACE, _BY_LINE = 20, 0.1, 10.0


def replay(letters: DeadLetters, options: Any) -> int:
    handler = _imported(options.handler)
    queue = options.queue
    # By hand, a letter of any age may be replayed; what the program keeps for how long is not known here.
    letters = DeadLetters(letters.store, ttl=None)
    if options.id is not None:
        letter = find(letters, options.id)
        letters, queue = DeadLetters(_Only(letters.store, letter), ttl=None), letter.queue
    depth = letters.depth(queue)
    if not depth:
        complain(f"no letter waits in the queue {queue}")
    report = Report(min(depth, options.limit or depth), as_json=options.json)
    fields: Any = {
        "queue": queue, "limit": options.limit, "lease": options.lease, "park_after": options.park_after,
        "include_unreplayable": options.include_unreplayable, "progress": report.tell,
    }  # fmt: skip
    try:
        with report:
            _run(letters, handler, Policy(attempts=options.attempts), fields)
    except TypeError as error:  # those of the handler do not come out
        raise Unable(f"{options.handler} gives something to be awaited: use async def", USAGE) from error
    report.name_failures(letters)
    unwell = report.counts["failed"] or report.counts["parked"]
    return NOT_ALL if unwell or (options.id is not None and not report.counts["replayed"]) else DONE


def find(letters: DeadLetters, beginning: str) -> DeadLetter:
    """The letter with this id, or the only one whose id begins with it."""
    letter = letters.get(beginning)
    if letter is not None:
        return letter
    found = [
        letter
        for queue in letters.depths()
        for letter in letters.list(queue=queue, after=beginning, limit=2)
        if letter.id.startswith(beginning)
    ]
    if len(found) == 1:
        return found[0]
    raise Unable(
        f"more than one letter has an id that begins with {beginning}: give more of it"
        if found
        else f"there is no letter with the id {beginning}"
    )


def _run(letters: DeadLetters, handler: Any, policy: Policy, fields: Any) -> None:
    if flavour(handler) == ASYNC or claims_async(handler):
        import asyncio

        asyncio.run(letters.areplay(handler, policy, **fields))
    else:
        letters.replay(handler, policy, **fields)


def _imported(name: str) -> Any:
    """The user's function; may be in the current directory, as for ``python -m``."""
    from pkgutil import resolve_name

    try:
        # The script that pip installs has its own directory there instead.
        if not sys.flags.safe_path and (here := os.getcwd()) not in sys.path:  # noqa: PTH109 - slow to import
            sys.path.insert(0, here)
        handler = resolve_name(name)
    except Exception as error:
        raise Unable(f"cannot import {name}: {brief(error)}", USAGE) from error
    if not callable(handler):
        raise Unable(f"{name} is not a function", USAGE)
    if flavour(handler) not in (SYNC, ASYNC):
        raise Unable(f"{name} is a generator: calling it would do nothing", USAGE)
    return handler


class _Only(Store):
    """A store, as if there were but one letter in it."""

    def __init__(self, store: Store, letter: DeadLetter) -> None:
        self._letter = letter
        for name in ("name", "get", "claim", "renew", "settle", "release"):
            setattr(self, name, getattr(store, name))

    def depths(self) -> dict[str, tuple[int, int]]:
        return {self._letter.queue: (1, 0)}

    def list(self, queue: str, *, now: float, state: State | None, limit: int, after: str) -> Letters:
        return [self._letter]


class Report:
    """What has become of the letters so far, told while it happens and when it is over.

    A handler that prints must not come between the lines of JSON: meanwhile its output goes to stderr.
    """

    def __init__(self, total: int, *, as_json: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts = {"replayed": 0, "failed": 0, "parked": 0, "skipped": 0}
        self._total = total
        self._json = as_json
        self._clock = clock
        self._failed: list[str] = []
        self._out: Any = sys.stdout
        self._error: Any = sys.stderr
        self._in_place = self._error.isatty() and not (as_json and self._out.isatty())
        self._every = _IN_PLACE if self._in_place else _BY_LINE
        self._due = clock() + (0.0 if self._in_place else _BY_LINE)
        self._width = 0

    def __enter__(self) -> None:
        if self._json:
            sys.stdout = self._error

    def __exit__(self, *_: object) -> None:
        sys.stdout = self._out
        self._clear()
        self._write(to_json(self.counts) if self._json else self._summary())

    def tell(self, letter: DeadLetter, outcome: str) -> None:
        self.counts[outcome] += 1
        if outcome in ("failed", "parked"):
            self._failed.append(letter.id)
        if self._json:
            self._write(to_json({"id": letter.id, "queue": letter.queue, "outcome": outcome}))
        if self._clock() >= self._due:
            self._due = self._clock() + self._every
            self._progress(f"{sum(self.counts.values())} of {self._total}: {self._summary()}")

    def _summary(self) -> str:
        return ", ".join([f"{count} {outcome}" for outcome, count in self.counts.items()])

    def _progress(self, line: str) -> None:
        if not self._in_place:
            self._write(line, self._error)
            return
        self._write("\r" + line.ljust(self._width), self._error, end="")
        self._width = len(line)

    def _clear(self) -> None:
        if self._width:
            self._write("\r" + " " * self._width + "\r", self._error, end="")

    def name_failures(self, letters: DeadLetters) -> None:
        """Says which letters failed, and why."""
        if self._json:
            return
        for one in self._failed[:_NAMED]:
            letter = letters.get(one)
            if letter is not None:
                self._write(safe(f"{one}: {letter.last_replay_error}"))
        if len(self._failed) > _NAMED:
            self._write(f"and {len(self._failed) - _NAMED} more")

    def _write(self, line: str, stream: Any = None, end: str = "\n") -> None:
        """A reader that has gone away is no reason to stop: letters are in hand."""
        stream = stream or self._out
        try:
            print(line, end=end, file=stream, flush=True)
        except BrokenPipeError:
            silence(stream)
