"""``python -m redouble run``: a command that is run again while it fails."""

from __future__ import annotations

import errno
import os
import signal
from argparse import REMAINDER, ArgumentTypeError
from shlex import join

from ._child import Child, Signalled, Signals, die_by
from ._config import duration
from ._flags import add_policy_flags, policy_of
from ._numbers import number
from ._plain import masked
from ._terminal import DONE, Parser, Unable, complain, speak_as
from .context import current_attempt
from .errors import DeadlineExceeded
from .events import GaveUp, Reason, Recovered, Retrying

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .events import Event
    from .policy import Policy

TIMED_OUT, OWN_TROUBLE, NOT_RUN, NOT_FOUND = 124, 125, 126, 127

_EPILOG = """examples:
  redouble run -- curl -fsS https://example.com/health
  redouble run --attempts 8 --base 500ms --on-exit 7,28 -- curl -fsS URL
  redouble run --timeout 30s --deadline 5m -- rsync -a here/ host:there/
  redouble run --attempts none --deadline 1m --backoff fixed -- pg_isready -q

what is retried:
  Every exit status but 0, 126 and 127 (the command cannot be run, or is not
  there); with --on-exit only those. A command that died by a signal is not run
  again, unless --on-exit names 128 and the number of the signal, such as 137
  for KILL. An attempt that --timeout has ended always counts as a failure that
  may be retried.

  Output goes where it always goes, so that of failed attempts is there too.
  Standard input is what the first attempt leaves of it: a command that reads
  it all leaves nothing to the second. REDOUBLE_ATTEMPT in the environment of
  the command is the number of the attempt, from 1.

signals:
  INT, TERM, HUP and QUIT are passed on to the command; when it has ended, this
  program dies by the same signal. The command and all that it starts are ended
  together. In the foreground of a terminal it is only the command itself that
  is ended when its time is up; Ctrl-C reaches all of them from the terminal.

exit status:
  that of the last attempt, 128 and the number if it died by a signal; but
  124  the last attempt was ended by --timeout, or the deadline left no time
  125  wrong usage, or trouble of this program itself
  126  the command cannot be run
  127  the command is not there"""


class Failed(Exception):  # noqa: N818 - says what happened
    """A run of the command that did not end with status 0."""

    def __init__(self, what: str, exit_status: int, *, may_be_retried: bool) -> None:
        super().__init__(what)
        self.exit_status = exit_status
        self.may_be_retried = may_be_retried


def run(arguments: Sequence[str]) -> int:
    """Runs the command that the arguments name until it succeeds or is given up on; gives the exit status."""
    options: Any = _parse(arguments)
    if os.name != "posix":
        raise Unable("run needs the signals of a POSIX system", OWN_TROUBLE)
    try:
        with Signals() as signals:
            running = Runs(options, signals)
            return running.until_the_end()
    except Signalled as caught:
        return die_by(caught.number)


def _parse(arguments: Sequence[str]) -> Any:
    parser = Parser(
        prog=speak_as("run"),
        usage="%(prog)s [OPTIONS] -- COMMAND [ARGUMENT ...]",
        description="Runs a command, and runs it again while it fails, with waits between.",
        epilog=_EPILOG,
    )
    parser.status_of_wrong_use = OWN_TROUBLE
    add_policy_flags(parser)
    parser.add_argument(
        "--timeout", metavar="S", help="for each attempt: then TERM, and KILL after the grace (no limit)"
    )
    parser.add_argument("--grace", type=_seconds, default=5.0, metavar="S", help="from TERM to KILL (5s)")
    parser.add_argument(
        "--on-exit", type=_statuses, metavar="N,N", help="retry only these exit statuses, such as 7,28"
    )
    says = parser.add_mutually_exclusive_group()
    says.add_argument("--quiet", action="store_true", help="say nothing of failures and waits")
    says.add_argument(
        "--verbose", action="store_true", help="say also when an attempt starts, and of success"
    )
    parser.add_argument(
        "command", nargs=REMAINDER, metavar="COMMAND", help="and its arguments; no shell is used"
    )
    options = parser.parse_args(arguments)
    options.command = options.command[options.command[:1] == ["--"] :]
    if not options.command:
        parser.error("there is no command: it stands behind --, such as run -- make test")
    return options


def _statuses(text: str) -> frozenset[int]:
    parts = text.split(",")
    if not all(
        part.isascii() and part.isdigit() and len(part) <= 3 and 0 < int(part) < 256 for part in parts
    ):
        raise ArgumentTypeError(f"must be exit statuses from 1 to 255, such as 7,28, got {text!r}")
    return frozenset(map(int, parts))


def _seconds(text: str) -> float:
    try:
        return number("grace", duration("grace", text))
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


class Runs:
    """All runs of one command: each of them an attempt of one call under a policy."""

    def __init__(self, options: Any, signals: Signals) -> None:
        self._options = options
        self._signals = signals
        self._attempt = 0
        self._policy: Policy = policy_of(
            options,
            status=OWN_TROUBLE,
            on=_may_be_retried,
            listeners=[self._tell],
            sleep=signals.sleep,
            name=options.command[0],
            # Whether the command may be run twice is for whoever asks for it.
            idempotent=True,
        )

    def until_the_end(self) -> int:
        try:
            self._policy.call(self._once)
        except Failed as failure:
            return failure.exit_status
        except DeadlineExceeded as late:
            self._say(str(late), "red")
            return TIMED_OUT
        return DONE

    def _once(self) -> None:
        self._attempt += 1
        if self._options.verbose:
            complain(f"attempt {self._of_all()}: {_told(self._options.command)}", "dim")
        limit = current_attempt()
        seconds = None if limit is None else limit.timeout
        status = self._child().run(seconds)
        if status is None:
            raise Failed(f"ended after {seconds:.4g} s", TIMED_OUT, may_be_retried=True)
        if status < 0:
            what, status = f"died by {_name_of(-status)}", 128 - status
            raise Failed(what, status, may_be_retried=status in (self._options.on_exit or ()))
        if status:
            raise Failed(f"exit status {status}", status, may_be_retried=self._asked_for(status))

    def _child(self) -> Child:
        environment = {**os.environ, "REDOUBLE_ATTEMPT": str(self._attempt)}
        options = self._options
        try:
            return Child(options.command, self._signals, environment=environment, grace=options.grace)
        except (OSError, ValueError) as error:
            status = _status_of(error)
            what = getattr(error, "strerror", None) or str(error)
            complain(f"cannot run {options.command[0]}: {what}", "red")
            raise Failed(f"cannot be run: {what}", status, may_be_retried=self._asked_for(status)) from error

    def _asked_for(self, status: int) -> bool:
        named = self._options.on_exit
        return status not in (NOT_RUN, NOT_FOUND) if named is None else status in named

    # What is said

    def _of_all(self) -> str:
        return f"{self._attempt} of {self._policy.attempts}" if self._policy.attempts else str(self._attempt)

    def _tell(self, event: Event) -> None:
        if isinstance(event, Retrying):
            wait = f"the next in {event.delay or 0.0:.2f} s"
            self._say(f"attempt {self._of_all()}: {event.error_message}; {wait}", "yellow")
        elif isinstance(event, GaveUp) and event.reason is Reason.attempts:
            self._say(f"attempt {self._of_all()}: {event.error_message}; no attempts left", "red")
        elif isinstance(event, GaveUp) and self._options.verbose:
            complain(f"attempt {self._of_all()}: {event.error_message}; not retried", "red")
        elif isinstance(event, Recovered) and self._options.verbose:
            complain(f"attempt {self._of_all()}: succeeded", "green")

    def _say(self, text: str, style: str) -> None:
        if not self._options.quiet:
            complain(text, style)


def _told(command: list[str]) -> str:
    """The command as one would write it, without its secrets."""
    return join(masked(command))


def _may_be_retried(error: Exception) -> bool:
    return isinstance(error, Failed) and error.may_be_retried


def _status_of(error: OSError | ValueError) -> int:
    """As other programs that run commands: one for what is not there, one for what cannot be run."""
    reason = getattr(error, "errno", None)
    if reason in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):  # there is no room for a process
        return OWN_TROUBLE
    return NOT_FOUND if reason == errno.ENOENT else NOT_RUN


def _name_of(signal_number: int) -> str:
    try:
        return signal.Signals(signal_number).name
    except ValueError:  # a real-time one
        return f"signal {signal_number}"
