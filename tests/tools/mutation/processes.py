"""Run tasks in forked processes that report results, and kill those that take too long."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import tempfile
import time
import traceback
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Tell = Callable[[dict[str, Any]], None]

STARTING = 60.0
"""Seconds that a process has until it reports its own time limit."""
MEMORY = 4 << 30


class Outcome(NamedTuple):
    """How a process ended, and what it reported."""

    ended: str
    """``done``, ``died`` or ``timeout``."""
    told: dict[str, Any]


class _Process:
    """A forked process that works on one task, in its own session."""

    def __init__(self, task: Any, work: Callable[[Any, Tell], None]) -> None:
        self.task = task
        self.told: dict[str, Any] = {}
        self.pid = 0
        self._allow(STARTING)
        self.directory = tempfile.mkdtemp(prefix="redouble-trial-")
        self.pipe, there = os.pipe()
        self._unread = b""
        self.pid = os.fork()
        if not self.pid:
            os.close(self.pipe)
            _be_child(task, work, there, self.directory)
        os.close(there)

    def read(self) -> None:
        """Read the reports that have arrived."""
        while select.select([self.pipe], [], [], 0)[0]:
            text = os.read(self.pipe, 1 << 16)
            if not text:
                return
            *lines, self._unread = (self._unread + text).split(b"\n")
            for line in lines:
                self._hear(json.loads(line))

    def _hear(self, message: dict[str, Any]) -> None:
        if "within" in message:
            self._allow(message.pop("within"))
        self.told.update(message)

    def _allow(self, seconds: float) -> None:
        self._allowed = seconds
        self._ends = time.monotonic() + seconds
        self._used = self._used_since = _cpu_seconds(self.pid) if self.pid else 0.0

    def _hangs(self) -> bool:
        """Return whether its time is used up. On a busy machine the processor time counts."""
        if time.monotonic() < self._ends:
            return False
        used = _cpu_seconds(self.pid)
        if used - self._used >= self._allowed / 2 or used - self._used_since < self._allowed / 100:
            return True
        self._used_since = used
        self._ends = time.monotonic() + self._allowed
        return False

    def ended(self) -> Outcome | None:
        """Return how it ended; ``None`` while it is running."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        self.read()
        if pid:
            return self._buried("done" if status == 0 else "died")
        return self.killed() if self._hangs() else None

    def killed(self) -> Outcome:
        """Kill it and all processes that it started."""
        # It may not yet have a session of its own.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        return self._buried("timeout")

    def _buried(self, ended: str) -> Outcome:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # what it has left behind
        os.close(self.pipe)
        shutil.rmtree(self.directory, ignore_errors=True)
        return Outcome(ended, self.told)


def _cpu_seconds(pid: int) -> float:
    """Return the processor time of a process; 0 if the system does not report it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _be_child(task: Any, work: Callable[[Any, Tell], None], pipe: int, directory: str) -> None:
    """Work on the task and exit."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nothing, standard)
        os.environ["PYTEST_DEBUG_TEMPROOT"] = os.environ["TMPDIR"] = tempfile.tempdir = directory
        _bound_memory()

        def tell(message: dict[str, Any]) -> None:
            os.write(pipe, json.dumps(message).encode() + b"\n")

        try:
            work(task, tell)
            code = 0
        except BaseException:
            tell({"error": traceback.format_exc()})
    finally:
        os._exit(code)


def _bound_memory() -> None:
    """Limit the memory: a mutant may allocate without end."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def pool(tasks: Iterable[Any], jobs: int, work: Callable[[Any, Tell], None]) -> Iterator[tuple[Any, Outcome]]:
    """Work on all tasks, `jobs` at a time. Tasks may be added to a deque meanwhile."""
    waiting = tasks if isinstance(tasks, deque) else deque(tasks)
    running: list[_Process] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(_Process(waiting.popleft(), work))
            select.select([process.pipe for process in running], [], [], 0.02)
            for process in running[:]:
                outcome = process.ended()
                if outcome is not None:
                    running.remove(process)
                    yield process.task, outcome
    finally:
        for process in running:
            process.killed()
