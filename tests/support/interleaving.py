"""Run a few threads in every possible order of the sections of a guard's lock.

    def check(budget, results):
        assert results.count(5.0) == 1

    explore(lambda: TokenBudget(capacity=5), [TokenBudget.acquire, TokenBudget.acquire], check)

``setup()`` makes the guard (or a tuple of several), anew for every order; its ``_lock`` is replaced. Each body is called
with the guards in its own thread; ``results`` has what it returns, or the exception that it raises. One thread runs at a
time, until it is about to take the lock, has released it, or ends; then the scheduler chooses the next thread. The choices
are enumerated depth first until all are tried, so a run that passes is a proof for these bodies at this granularity.

- ``check(*guards, results)`` is called at the end of each order, ``always(*guards)`` after every step. ``always`` must not
  take the lock. Exceptions of both get a note with the schedule: the numbers of the threads, step by step.
- ``modules`` makes the granularity finer: every line of these modules is a step, inside of sections, too. Use it for
  state that is read or counted without a lock.
- ``preemptions`` limits how often a thread that could continue has to wait. Most faults need one or two; without a limit
  three threads of two sections each have 756,756 orders, with a limit of 2 some hundreds.
- A thread may call `pause` itself, for example from an injected clock, to add a step.

Threads that wait for each other raise `Deadlock` with their numbers. The threads are real, so this works for any code, but
nothing may sleep.
"""

from __future__ import annotations

import _thread
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import FrameType, ModuleType


class Deadlock(AssertionError):
    """No thread can continue."""


class Abandoned(BaseException):
    """Ends a thread of a run that is over. Not an `Exception`, so that nothing swallows it."""


_here = threading.local()


def pause() -> None:
    """Let another thread of the exploration run; do nothing outside of one."""
    worker = getattr(_here, "worker", None)
    if worker is not None:
        worker.pause()


def explore(
    setup: Callable[[], Any],
    bodies: Sequence[Callable[..., Any]],
    check: Callable[..., Any] | None = None,
    *,
    always: Callable[..., Any] | None = None,
    preemptions: int | None = None,
    modules: Iterable[ModuleType] = (),
) -> int:
    """Run the bodies in every possible order; return the number of orders."""
    files = frozenset(str(module.__file__) for module in modules)
    runs, choices = 0, _Choices(preemptions)
    while True:
        guards = setup()
        guards = guards if isinstance(guards, tuple) else (guards,)
        run = _Run(guards, bodies, files)
        try:
            results = run.to_the_end(choices, always)
            if check is not None:
                check(*guards, results)
        except Exception as error:
            error.add_note(f"schedule: {' '.join(map(str, run.schedule))}")
            raise
        runs += 1
        if not choices.go_back():
            return runs


class TurnLock:
    """A reentrant lock at which the scheduler switches threads."""

    def __init__(self) -> None:
        self.owner: object = None
        self.depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        worker = getattr(_here, "worker", None)
        if worker is not None and self.owner is not worker:
            worker.pause(self if blocking else None)
        if self.owner is not None and self.owner is not worker:
            if blocking:
                raise Deadlock("a thread that the scheduler does not know asks for the lock")
            return False
        self.owner, self.depth = worker, self.depth + 1
        return True

    def release(self) -> None:
        self.depth -= 1
        if self.depth == 0:
            worker, self.owner = self.owner, None
            if isinstance(worker, _Worker):
                worker.pause()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _Choices:
    """One path through the tree of choices, and the step to the next path."""

    def __init__(self, preemptions: int | None) -> None:
        self._bound = preemptions
        self._path: list[tuple[int, int]] = []  # (choice, number of options)
        self.start()

    def start(self) -> None:
        self._step, self._spent, self._last = 0, 0, -1

    def choose(self, able: list[int]) -> int:
        goes_on = self._last in able
        if goes_on:
            able = [self._last, *[number for number in able if number != self._last]]
            if self._spent == self._bound:
                able = able[:1]
        if self._step == len(self._path):
            self._path.append((0, len(able)))
        chosen = able[self._path[self._step][0]]
        self._spent += goes_on and chosen != self._last
        self._step, self._last = self._step + 1, chosen
        return chosen

    def go_back(self) -> bool:
        """Go back to the last choice with an option left; return false if there is none."""
        while self._path and self._path[-1][0] + 1 == self._path[-1][1]:
            self._path.pop()
        if self._path:
            place, count = self._path.pop()
            self._path.append((place + 1, count))
        self.start()
        return bool(self._path)


class _Run:
    """One order of the bodies."""

    def __init__(
        self, guards: tuple[Any, ...], bodies: Sequence[Callable[..., Any]], files: frozenset[str]
    ) -> None:
        self.guards = guards
        self.schedule: list[int] = []
        self.over = False
        self.back = _closed()
        for guard in guards:
            guard._lock = TurnLock()
        self.workers = [_Worker(self, body, files) for body in bodies]

    def to_the_end(self, choices: _Choices, always: Callable[..., Any] | None) -> list[Any]:
        try:
            while any(not worker.done for worker in self.workers):
                able = [number for number, worker in enumerate(self.workers) if worker.is_able()]
                if not able:
                    waiting = [number for number, worker in enumerate(self.workers) if not worker.done]
                    raise Deadlock(f"threads {waiting} wait for each other")
                number = choices.choose(able)
                self.schedule.append(number)
                self.workers[number].step()
                if always is not None:
                    always(*self.guards)
        finally:
            self.over = True
            for worker in self.workers:
                worker.end()
        return [worker.result for worker in self.workers]


class _Worker:
    """A thread that runs one step at a time."""

    def __init__(self, run: _Run, body: Callable[..., Any], files: frozenset[str]) -> None:
        self.result: Any = None
        self.done = False
        self._run, self._body, self._files = run, body, files
        self._wants: TurnLock | None = None
        self._go = _closed()
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def is_able(self) -> bool:
        return not self.done and (self._wants is None or self._wants.owner is None)

    def step(self) -> None:
        self._go.release()
        self._run.back.acquire()

    def pause(self, wants: TurnLock | None = None) -> None:
        """Return control to the scheduler until the next step; with `wants`, until that lock is free."""
        if self._run.over:
            return
        self._wants = wants
        self._run.back.release()
        self._go.acquire()
        self._wants = None
        if self._run.over:
            raise Abandoned

    def end(self) -> None:
        while self._thread.is_alive():
            if self._go.locked():
                self._go.release()
            self._thread.join(0.01)

    def _main(self) -> None:
        self._go.acquire()
        _here.worker = self
        try:
            if not self._run.over:
                sys.settrace(self._watch if self._files else None)
                self.result = self._body(*self._run.guards)
        except Abandoned:
            return
        except BaseException as error:
            self.result = error
        finally:
            sys.settrace(None)
            self.done = True
            if not self._run.over:
                self._run.back.release()

    def _watch(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._at_line if frame.f_code.co_filename in self._files else None

    def _at_line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self.pause()
        return self._at_line


def _closed() -> _thread.LockType:
    lock = _thread.allocate_lock()
    lock.acquire()
    return lock
