"""A command as a child process, and the signals that reach this process meanwhile.

Signals are not handled when they arrive but read from a pipe, one after the other, where the code waits: so
nothing of it is ever interrupted between the start of a child and the note of its id.

A child has a process group of its own, so that what it has started in turn can be ended with it. But not in
the foreground of a terminal: there it shares the group of this process, or it could not read from the
terminal, and Ctrl-C reaches both at once.
"""

from __future__ import annotations

import os
import select
import signal
import time
from subprocess import Popen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

ENDING = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name)
]

# Those that a terminal sends to the whole group; and how long a child may take about one before it is told
# again, since it may have come from somewhere else.
_OF_TERMINAL = [number for number in ENDING if number.name in ("SIGINT", "SIGQUIT")]
_TOLD_AGAIN = 1.0

# How often the rest of a group is looked at: nobody tells when a child's own child ends.
_LOOK = 0.02


class Signalled(BaseException):
    """A signal that ends this process has come. Not an Exception: nothing may retry it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """Within ``with``, signals that would end this process, and ends of children, wait to be read.

    What was ignored when this process was started, as under ``nohup``, stays so.
    """

    def __enter__(self) -> Signals:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        heeded = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
        self._before: dict[Any, Any] = {}
        self._wakeup = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        for number in (*heeded, signal.SIGCHLD):
            self._before[number] = signal.signal(number, _leave_it_to_the_pipe)
        # Whoever started this process may have blocked it; then no end of a child would wake us.
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
        """Waits for a signal, the end of a child, or the end of the time; gives what signals would end us."""
        # A day at most: whoever waits longer asks again.
        if not self._poll.poll(None if seconds is None else min(max(0.0, seconds), 86400.0) * 1000):
            return []
        return [number for number in os.read(self._reading, 1000) if number in ENDING]

    def sleep(self, seconds: float) -> None:
        """Waits between attempts, unless a signal comes."""
        ends = time.monotonic() + seconds
        left = seconds
        while True:
            for number in self.wait(left):
                raise Signalled(number)
            left = ends - time.monotonic()
            if left <= 0.0:
                return


def _leave_it_to_the_pipe(number: int, frame: object) -> None:
    """There has to be a handler, or Python writes nothing to the pipe."""


class Child:
    """One run of a command, from its start to its end."""

    def __init__(
        self, command: Sequence[str], signals: Signals, *, environment: Mapping[str, str], grace: float
    ) -> None:
        self._signals = signals
        self._grace = grace
        self._shared = in_foreground()
        self._caught: list[int] = []
        # The descriptors that this process was given are for the command too, not only the first three.
        self._process = Popen(  # noqa: S603 - to run what the user says is what this is for
            command, env=environment, close_fds=False, process_group=None if self._shared else 0
        )

    def run(self, seconds: float | None) -> int | None:
        """Its exit status, negative for a signal; ``None`` if it had to be ended when its time was up.

        Raises `Signalled` when it has ended after a signal to this process, which it was told of.
        """
        in_time = self._lasts(seconds)
        if not in_time:
            self._end()
        # Ctrl-C ends the command as well: its end may be seen before the signal to us is.
        self._caught += self._signals.wait(0.0)
        if self._caught:
            self._rest_ends()
            raise Signalled(self._caught[0])
        return self._process.returncode if in_time else None

    def _lasts(self, seconds: float | None) -> bool:
        """Waits for its end; whether that came in time. Signals of ours reach it meanwhile."""
        ends = None if seconds is None else time.monotonic() + seconds
        tell_again: float | None = None
        while self._process.poll() is None:
            limits = [limit for limit in (ends, tell_again) if limit is not None]
            caught = self._signals.wait(min(limits) - time.monotonic() if limits else None)
            for number in caught:
                if self._shared and number in _OF_TERMINAL and not self._caught:
                    tell_again = time.monotonic() + _TOLD_AGAIN
                else:
                    self._tell(number)
            self._caught += caught
            if tell_again is not None and time.monotonic() >= tell_again:
                tell_again = None
                self._tell(self._caught[0])
            if ends is not None and time.monotonic() >= ends and self._process.poll() is None:
                return False
        return True

    def _end(self) -> None:
        """TERM, then KILL after the grace."""
        self._tell(signal.SIGTERM)
        self._tell(signal.SIGCONT)  # one that is stopped would not hear of it
        if not self._lasts(self._grace):
            self._tell(signal.SIGKILL)
            self._process.wait()
        self._rest_ends()

    def _rest_ends(self) -> None:
        """What the command had started and is still there has the grace too, then it is killed."""
        ends = time.monotonic() + self._grace
        while not self._shared and self._tell(0) and _lives(self._process.pid):
            if time.monotonic() >= ends:
                self._tell(signal.SIGKILL)
                return
            self._signals.wait(_LOOK)

    def _tell(self, number: int) -> bool:
        """Sends a signal, to its group if it has one; whether there was anybody."""
        try:
            if self._shared:
                self._process.send_signal(number)
            else:
                os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):  # gone, or become somebody else's
            return False
        return True


def _lives(group: int) -> bool:
    """Whether a group that exists has more in it than zombies, which wait for a parent that may never look.

    Where that cannot be seen, it has.
    """
    try:
        states = [_state(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    except OSError:
        return True
    mine = [state for state, its_group in states if its_group == str(group)]
    return not mine or any(state not in "ZX" for state in mine)


def _state(process: str) -> tuple[str, str]:
    """The state of a process and its group, as Linux tells them."""
    try:
        with open(f"/proc/{process}/stat", errors="replace") as file:  # noqa: PTH123
            state, _, group = file.read().rpartition(")")[2].split()[:3]
    except (OSError, ValueError):  # it has ended meanwhile
        return "X", ""
    return state, group


def in_foreground() -> bool:
    """Whether this process is in the foreground of its terminal, if it has one."""
    try:
        terminal = os.open(os.ctermid(), os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:  # hung up
        return False
    finally:
        os.close(terminal)


def die_by(number: int) -> int:
    """Ends this process by the signal, so that whoever started it sees which; without leaving a core file."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number  # where the signal is blocked
