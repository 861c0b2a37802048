"""``redouble dead-letters replay``: call the function of the user with each letter, and report outcomes.

`DeadLetters.replay` does the work. Here are the import of the function, the progress and the summary.
"""

from __future__ import annotations

import os
import sys
import time

from .._base.callables import ASYNC, SYNC, claims_async, flavour
from .._base.table import safe
from .._base.text import brief
from ..policy import Policy
from .output import INCOMPLETE, CommandError, StatusLine, discard_output, print_error, to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..dead_letters import DeadLetter, DeadLetters

# How many letters that failed are named after a replay.
_NAMED = 20

# Seconds between two reports of progress: on a terminal, and elsewhere.
_ON_TERMINAL, _ELSEWHERE = 0.1, 10.0


def replay(
    letters: DeadLetters, options: Any, *, only: str | None, where: Callable[[DeadLetter], bool] | None
) -> int | None:
    """Pass the waiting letters of a queue to the function that the options name, and print the outcomes.

    ``only`` is the id of the one letter to replay; ``where`` selects letters. They are replayed in
    the order in which they were put, whatever their age.

    Return 1 if a letter failed or was parked, or if ``only`` was not replayed. Raise `CommandError` with
    status 2 if the function cannot be imported or called. After an interrupt the outcomes so far are printed.
    """
    handler = _imported(options.handler)
    total = letters.depth() if only is None else 1
    if not total:
        print_error(f"no letter waits in the queue {letters.name}")
    report = Report(None if where else min(total, options.limit or total), as_json=options.json)
    fields: Any = {
        "id": only, "where": where, "limit": options.limit, "lease": options.lease,
        "park_after": options.park_after, "include_unreplayable": options.include_unreplayable,
        "progress": report.add,
    }  # fmt: skip
    try:
        with report:
            if flavour(handler) == ASYNC or claims_async(handler):
                import asyncio

                asyncio.run(letters.areplay(handler, Policy(attempts=options.attempts), **fields))
            else:
                letters.replay(handler, Policy(attempts=options.attempts), **fields)
    except TypeError as error:  # not of the handler: its errors are stored
        raise CommandError(f"{options.handler} returns an awaitable: use async def") from error
    report.name_failures(letters)
    if total and where and not any(report.counts.values()):
        print_error(f"no waiting letter of the queue {letters.name} matches the options")
    failed = report.counts["failed"] or report.counts["parked"]
    return INCOMPLETE if failed or (only is not None and not report.counts["replayed"]) else None


def _imported(name: str) -> Any:
    """Import the user's function, also from the current directory, as ``python -m`` does.

    Raise `CommandError` with status 2 if that fails, or if it is not a function that runs when it is called.
    """
    from pkgutil import resolve_name

    try:
        # The script that pip installs has its own directory in sys.path instead.
        if not sys.flags.safe_path and (here := os.getcwd()) not in sys.path:  # noqa: PTH109 - slow to import
            sys.path.insert(0, here)
        handler = resolve_name(name)
    except Exception as error:
        raise CommandError(f"cannot import {name}: {brief(error)}") from error
    if not callable(handler):
        raise CommandError(f"{name} is not a function")
    if flavour(handler) not in (SYNC, ASYNC):
        raise CommandError(f"{name} is a generator: calling it would do nothing")
    return handler


class Report:
    """Counts the outcomes of a replay, and prints progress meanwhile and a summary at the end.

    Progress goes to stderr: one line that is overwritten on a terminal, elsewhere a line every ten seconds.
    With JSON, the output of the handler goes to stderr, so that it does not come between the lines.
    ``total`` is the number of letters, ``None`` if it is not known.
    """

    def __init__(
        self, total: int | None, *, as_json: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.counts = {"replayed": 0, "failed": 0, "parked": 0, "skipped": 0}
        self._total, self._json, self._clock = total, as_json, clock
        self._failed: list[str] = []
        self._out: Any = sys.stdout
        self._line = StatusLine(None if as_json and self._out.isatty() else sys.stderr)
        self._pause = _ON_TERMINAL if self._line.visible else _ELSEWHERE
        self._due = clock() + (0.0 if self._line.visible else _ELSEWHERE)

    def __enter__(self) -> None:
        """Send the output of the handler to stderr, if there is JSON on stdout."""
        if self._json:
            sys.stdout = sys.stderr

    def __exit__(self, *error: object) -> None:
        """Erase the progress, and print the counts, also after an interrupt."""
        sys.stdout = self._out
        self._line.__exit__(*error)
        self._print(to_json(self.counts) if self._json else self._summary())

    def add(self, letter: DeadLetter, outcome: str) -> None:
        """Count an outcome; print it as JSON if that was asked for, and progress if it is time for it."""
        self.counts[outcome] += 1
        if outcome in ("failed", "parked"):
            self._failed.append(letter.id)
        if self._json:
            self._print(to_json({"id": letter.id, "queue": letter.queue, "outcome": outcome}))
        if self._clock() >= self._due:
            self._due = self._clock() + self._pause
            total = "" if self._total is None else f" of {self._total}"
            text = f"{sum(self.counts.values())}{total}: {self._summary()}"
            if self._line.visible:
                self._line.show(text)
            else:
                self._print(text, sys.stderr)

    def _summary(self) -> str:
        """Return the counts in words.

        >>> Report(None, as_json=False)._summary()
        '0 replayed, 0 failed, 0 parked, 0 skipped'
        """
        return ", ".join([f"{count} {outcome}" for outcome, count in self.counts.items()])

    def name_failures(self, letters: DeadLetters) -> None:
        """Print the ids and the errors of letters that failed, at most `_NAMED`; nothing with JSON."""
        if self._json:
            return
        for failed in self._failed[:_NAMED]:
            letter = letters.get(failed)
            if letter is not None:
                self._print(safe(f"{failed}: {letter.last_replay_error}"))
        if len(self._failed) > _NAMED:
            self._print(f"and {len(self._failed) - _NAMED} more")

    def _print(self, line: str, stream: Any = None) -> None:
        """Print a line at once, to stdout unless another stream is given.

        A reader that closed the pipe is no reason to stop the replay: what follows is not printed.
        """
        stream = stream or self._out
        try:
            print(line, file=stream, flush=True)
        except BrokenPipeError:
            discard_output(stream)
