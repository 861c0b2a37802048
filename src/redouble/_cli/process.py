"""Run a command as a child process, and pass on the signals that this process receives meanwhile.

Signals are not handled when they arrive: a wakeup descriptor writes them to a pipe, which is read where the
code waits. So nothing is interrupted between the start of a child and the assignment of its process id.

A child has its own process group, so that its descendants can be terminated with it. In the foreground of a
terminal it shares the group of this process instead: otherwise it could not read from the terminal. There,
Ctrl-C reaches both at once.
"""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from subprocess import Popen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

TERMINATING = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name)
]

# Signals that a terminal sends to the whole group, and seconds after which one is sent to a child that still
# runs, because it may have been sent to this process alone.
_FROM_TERMINAL = [number for number in TERMINATING if number.name in ("SIGINT", "SIGQUIT")]
_RESEND_AFTER = 1.0

# Seconds between checks of a process group: no signal tells when a grandchild ends.
_POLL_INTERVAL = 0.02


class Signalled(BaseException):
    """This process received a terminating signal. Not an `Exception`, so that nothing retries it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """A context manager that queues terminating signals and ``SIGCHLD`` until they are read.

    Signals that were ignored when this process started, as under ``nohup``, stay ignored.
    """

    def __enter__(self) -> Signals:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        heeded = [number for number in TERMINATING if signal.getsignal(number) is not signal.SIG_IGN]
        self._wakeup = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        # Python writes to the descriptor only signals that have a handler.
        self._before: dict[Any, Any] = {
            number: signal.signal(number, _ignore) for number in (*heeded, signal.SIGCHLD)
        }
        # The parent process may have blocked it; then the end of a child would go unnoticed.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        self._poll = select.poll()
        self._poll.register(self._reading, select.POLLIN)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._reading)
        os.close(self._writing)

    def wait(self, seconds: float | None) -> list[int]:
        """Wait for a signal or the end of a child; return the terminating signals.

        May return early, with an empty list: after a day, or after the end of any child.
        """
        if not self._poll.poll(None if seconds is None else min(max(0.0, seconds), 86400.0) * 1000):
            return []
        return [number for number in os.read(self._reading, 1000) if number in TERMINATING]

    def sleep(self, seconds: float) -> None:
        """Wait between attempts; raise `Signalled` if a terminating signal arrives."""
        ends = time.monotonic() + seconds
        while True:
            for number in self.wait(ends - time.monotonic()):
                raise Signalled(number)
            if time.monotonic() >= ends:
                return


def _ignore(number: int, frame: object) -> None:
    """Do nothing: the signal is read from the pipe. Without a handler it would end this process."""


class Child:
    """One run of a command, which is started by the constructor.

    ``grace`` is the time in seconds from TERM to KILL. Raises what ``Popen`` raises if the command cannot be
    started.
    """

    def __init__(
        self, command: Sequence[str], signals: Signals, *, environment: Mapping[str, str], grace: float
    ) -> None:
        self._signals = signals
        self._grace = grace
        self._shares_group = in_foreground()
        self._received: list[int] = []
        # All inherited descriptors are passed on, not only the standard ones.
        self._process = Popen(  # noqa: S603 - runs the command of the user
            command, env=environment, close_fds=False, process_group=None if self._shares_group else 0
        )

    def run(self, timeout: float | None) -> int | None:
        """Return the exit status, negative for a signal, or ``None`` if the command was ended by the timeout.

        Raise `Signalled` if this process received a terminating signal, after the command has ended.
        """
        in_time = self._wait(timeout)
        if not in_time:
            self._terminate()
        # After Ctrl-C the end of the command may be noticed before the signal to this process.
        self._received += self._signals.wait(0.0)
        if self._received:
            self._wait_for_group()
            raise Signalled(self._received[0])
        return self._process.returncode if in_time else None

    def _wait(self, timeout: float | None) -> bool:
        """Wait for the end of the command, and pass signals on; return False if the time is up first.

        In a shared group the terminal has sent Ctrl-C to the command too, so the first one is sent again only
        if the command still runs after `_RESEND_AFTER` seconds.
        """
        ends = None if timeout is None else time.monotonic() + timeout
        resend_at: float | None = None
        while self._process.poll() is None:
            limits = [limit for limit in (ends, resend_at) if limit is not None]
            received = self._signals.wait(min(limits) - time.monotonic() if limits else None)
            for number in received:
                if self._shares_group and number in _FROM_TERMINAL and not self._received:
                    resend_at = time.monotonic() + _RESEND_AFTER
                else:
                    self._send(number)
            self._received += received
            if resend_at is not None and time.monotonic() >= resend_at:
                resend_at = None
                self._send(self._received[0])
            if ends is not None and time.monotonic() >= ends and self._process.poll() is None:
                return False
        return True

    def _terminate(self) -> None:
        """Send TERM, and KILL after the grace period; return when the command and its group have ended."""
        self._send(signal.SIGTERM)
        self._send(signal.SIGCONT)  # a stopped process would not receive TERM
        if not self._wait(self._grace):
            self._send(signal.SIGKILL)
            self._process.wait()
        self._wait_for_group()

    def _wait_for_group(self) -> None:
        """Wait for the descendants of the command, and kill them after the grace period.

        A zombie that another process does not reap counts as alive, and takes the whole grace period.
        """
        ends = time.monotonic() + self._grace
        while not self._shares_group and self._send(0):
            # As process 1 of a container this process inherits orphans, and has to reap them.
            with suppress(ChildProcessError):
                os.waitpid(-self._process.pid, os.WNOHANG)
            if time.monotonic() >= ends:
                self._send(signal.SIGKILL)
                return
            self._signals.wait(_POLL_INTERVAL)

    def _send(self, number: int) -> bool:
        """Send a signal to the command, and to its group if it has its own; return False if there is none."""
        try:
            if self._shares_group:
                self._process.send_signal(number)
            else:
                os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):  # ended, or running as another user
            return False
        return True


def in_foreground() -> bool:
    """Return whether this process is in the foreground of a terminal; False if it has none."""
    try:
        with open(os.ctermid(), "rb", buffering=0) as terminal:  # noqa: PTH123 - pathlib is slow to import
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:  # there is no terminal, or it was closed
        return False


def die_by(number: int) -> int:
    """End this process by a signal, so that its parent sees which one; leave no core file."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number  # reached if the signal is blocked
