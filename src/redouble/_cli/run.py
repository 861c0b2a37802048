"""``redouble run``: run a command, and run it again while it fails.

Each run of the command is an attempt of one call under a policy: the engine decides about retries, waits,
deadline and timeout, as for a function. `process` starts the command and passes signals on. The output of the
command is not touched; messages of this program go to stderr.
"""

from __future__ import annotations

import errno
import os
import signal
from argparse import REMAINDER
from shlex import join

from .._base.checks import INF
from .._base.json_safe import masked
from ..context import current_attempt
from ..errors import DeadlineExceeded
from ..events import GaveUp, Reason, Recovered, Retrying
from .options import add_policy_flags, policy_of
from .output import DONE, CommandError, command_parser, print_error, seconds, whole_number
from .process import Child, Signalled, Signals, die_by

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..events import Event
    from ..policy import Policy

TIMED_OUT, OWN_FAILURE, NOT_RUNNABLE, NOT_FOUND = 124, 125, 126, 127

_EPILOG = """examples:
  redouble run -- curl -fsS https://example.com/health
  redouble run --attempts 8 --base 500ms --on-exit 7,28 -- curl -fsS URL
  redouble run --timeout 30s --deadline 5m -- rsync -a here/ host:there/
  redouble run --attempts none --deadline 1m --backoff fixed -- pg_isready -q

what is retried:
  Every exit status except 0, 126 and 127 (the command cannot be run, or was not found). With --on-exit only \
the given ones. A command that was killed by a signal is not retried, unless --on-exit has 128 plus the \
number of the signal, such as 137 for KILL. An attempt that --timeout has ended is always retried.

output and input:
  Output is not captured: that of failed attempts is shown too. All attempts share standard input: a command \
that reads it to the end leaves nothing for the next attempt. REDOUBLE_ATTEMPT in the environment of the \
command is the number of the attempt, from 1.

signals:
  INT, TERM, HUP and QUIT are passed on to the command; when it has ended, this program dies by the same \
signal. The command and its child processes are ended together. In the foreground of a terminal a timeout \
ends only the command itself; Ctrl-C reaches all of them from the terminal.

exit status:
  that of the last attempt, 128 plus the number if a signal killed it; but
  124  the last attempt was ended by --timeout, or the deadline has passed
  125  wrong usage, or this program itself failed
  126  the command cannot be run
  127  the command was not found"""


class AttemptFailed(Exception):  # noqa: N818 - says what happened
    """A run of the command that did not end with status 0.

    ``exit_status`` is that of ``redouble run`` if this was the last attempt: the status of the command, 128
    plus the number of the signal that killed it, or 124 to 127 as in the help.
    """

    def __init__(self, message: str, exit_status: int, *, retryable: bool) -> None:
        super().__init__(message)
        self.exit_status = exit_status
        self.retryable = retryable


def run(arguments: Sequence[str]) -> int:
    """Run the command until it succeeds or no attempt is left; return the exit status.

    If this process receives a terminating signal, the command is ended first, and then this process dies by
    the same signal. Raise `CommandError` with status 125 on a system that is not POSIX.
    """
    options: Any = _parse(arguments)
    if os.name != "posix":
        raise CommandError("run needs the signals of a POSIX system", OWN_FAILURE)
    try:
        with Signals() as signals:
            return Runner(options, signals).run()
    except Signalled as received:
        return die_by(received.number)


def _parse(arguments: Sequence[str]) -> Any:
    """Return the options; everything after the first argument that is no option is the command.

    ``--`` in front of the command is not part of it. Wrong usage exits with 125, since 2 may be the status of
    the command.
    """
    about = "Run a command, and run it again while it fails, with waits between."
    usage = "%(prog)s [OPTIONS] -- COMMAND [ARGUMENT ...]"
    parser = command_parser("run", about, _EPILOG, usage=usage)
    parser.usage_status = OWN_FAILURE
    add_policy_flags(parser)
    add = parser.add_argument
    add("--timeout", metavar="S", help="for each attempt: then TERM, and KILL after the grace (no limit)")
    add("--grace", type=seconds(0, 86400), default=5.0, metavar="S", help="from TERM to KILL (5s)")
    add("--on-exit", type=_statuses, metavar="N,N", help="retry only these exit statuses, such as 7,28")
    volume = parser.add_mutually_exclusive_group()
    volume.add_argument("--quiet", action="store_true", help="print nothing about failures and waits")
    volume.add_argument("--verbose", action="store_true", help="print also starts and successes of attempts")
    add("command", nargs=REMAINDER, metavar="COMMAND", help="with its arguments; no shell is used")
    options = parser.parse_args(arguments)
    options.command = options.command[options.command[:1] == ["--"] :]
    if not options.command:
        parser.error("there is no command: write it after --, such as run -- make test")
    return options


def _statuses(text: str) -> frozenset[int]:
    """Read exit statuses, separated by commas; an argparse type.

    >>> sorted(_statuses("7,28"))
    [7, 28]
    """
    return frozenset(map(whole_number(1, 255), text.split(",")))


class Runner:
    """Run the command as the attempts of one call under a policy.

    The policy classifies failures by `AttemptFailed.retryable`, waits with `Signals.sleep`, so that a signal
    ends the wait, and reports to `_report`.
    """

    def __init__(self, options: Any, signals: Signals) -> None:
        self._options = options
        self._signals = signals
        self._attempt = 0
        self._policy: Policy = policy_of(
            options,
            status=OWN_FAILURE,
            on=_is_retryable,
            listeners=[self._report],
            sleep=signals.sleep,
            name=options.command[0],
            # The user decides whether the command may run twice.
            idempotent=True,
        )

    def run(self) -> int:
        """Run the attempts and return the exit status: that of the last one, or 124 after the deadline."""
        try:
            self._policy.call(self._run_once)
        except AttemptFailed as failure:
            return failure.exit_status
        except DeadlineExceeded as error:
            self._print(str(error), "red")
            return TIMED_OUT
        return DONE

    def _run_once(self) -> None:
        """Make one attempt; raise `AttemptFailed` unless the exit status is 0.

        The timeout is what the policy leaves to this attempt, also by its deadline. An attempt that it ended
        can always be retried, one that a signal killed only if ``--on-exit`` names 128 plus the signal.
        """
        self._attempt += 1
        if self._options.verbose:
            self._print_attempt(join(masked(self._options.command)), "dim")
        attempt = current_attempt()
        timeout = None if attempt is None else attempt.timeout
        status = self._start().run(timeout)
        if status is None:
            raise AttemptFailed(f"timed out after {timeout:.4g} s", TIMED_OUT, retryable=True)
        if status < 0:
            message, status = f"killed by {_signal_name(-status)}", 128 - status
            raise AttemptFailed(message, status, retryable=status in (self._options.on_exit or ()))
        if status:
            raise AttemptFailed(f"exit status {status}", status, retryable=self._is_retried(status))

    def _start(self) -> Child:
        """Start the command; if that fails, print why, also with ``--quiet``, and raise `AttemptFailed`."""
        environment = {**os.environ, "REDOUBLE_ATTEMPT": str(self._attempt)}
        options = self._options
        try:
            return Child(options.command, self._signals, environment=environment, grace=options.grace)
        except (OSError, ValueError) as error:
            reason, status = getattr(error, "strerror", None) or str(error), _status_of(error)
            print_error(f"cannot run {options.command[0]}: {reason}", "red")
            retryable = self._is_retried(status)
            raise AttemptFailed(f"cannot be run: {reason}", status, retryable=retryable) from error

    def _is_retried(self, status: int) -> bool:
        """Return whether an exit status is retried: by ``--on-exit``, or unless the command cannot be run."""
        statuses = self._options.on_exit
        return status not in (NOT_RUNNABLE, NOT_FOUND) if statuses is None else status in statuses

    def _report(self, event: Event) -> None:
        """Print an event of the call; a listener.

        Successes, and failures that are not retried, are printed only with ``--verbose``: the output of the
        command shows them. A deadline is printed by `run`.
        """
        if isinstance(event, Retrying):
            message = f"{event.error_message}; next attempt in {event.delay or 0.0:.2f} s"
            self._print_attempt(message, "yellow")
        elif isinstance(event, GaveUp) and event.reason is Reason.attempts:
            self._print_attempt(f"{event.error_message}; no attempts left", "red")
        elif isinstance(event, GaveUp) and event.reason is Reason.give_up_after:
            limit = f"give_up_after is {self._policy.give_up_after:g} s"
            self._print_attempt(f"{event.error_message}; no time left: {limit}", "red")
        elif isinstance(event, GaveUp) and self._options.verbose:
            self._print_attempt(f"{event.error_message}; not retried", "red")
        elif isinstance(event, Recovered) and self._options.verbose:
            self._print_attempt("succeeded", "green")

    def _print_attempt(self, text: str, style: str) -> None:
        """Print a line on stderr that begins with the number of the attempt: ``attempt 1 of 4: ...``."""
        attempts = self._policy.attempts
        limit = "" if attempts in (None, INF) else f" of {attempts}"
        self._print(f"attempt {self._attempt}{limit}: {text}", style)

    def _print(self, text: str, style: str) -> None:
        """Print a line on stderr, unless ``--quiet`` was given."""
        if not self._options.quiet:
            print_error(text, style)


def _is_retryable(error: Exception) -> bool:
    """Return whether the policy retries an error: only runs of the command that failed are."""
    return isinstance(error, AttemptFailed) and error.retryable


def _status_of(error: OSError | ValueError) -> int:
    """Return the exit status for a command that cannot be started, as a shell would: 127 if it is missing.

    Without resources for a process it is 125, which is retried: there may be some later.
    """
    reason = getattr(error, "errno", None)
    if reason in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):  # no resources for a process
        return OWN_FAILURE
    return NOT_FOUND if reason == errno.ENOENT else NOT_RUNNABLE


def _signal_name(number: int) -> str:
    """Return the name of a signal, such as ``SIGTERM``; real-time signals have only a number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
