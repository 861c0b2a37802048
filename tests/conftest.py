"""Settings of pytest and fixtures for all tests: fake time, sync and async flavours, a watchdog."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import tempfile
import types
from signal import SIG_DFL
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from redouble import Policy, retrying
from redouble._base import log_once
from redouble.testing import FakeClock, scripted
from redouble.testing._scripted import Scripted

# Before the first import of one: asserts in these helpers work under -O as well, as those in tests do.
pytest.register_assert_rewrite("support")

from support import network_guard  # noqa: E402
from support.network_guard import pytest_runtest_call  # noqa: E402, F401 - a hook of pytest
from support.threads import frequent_switches  # noqa: E402, F401 - a fixture for all tests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# No deadline: a random test must not fail because the machine is busy.
LONG = os.environ.get("REDOUBLE_LONG") == "1"
settings.register_profile("redouble", deadline=None, max_examples=1_000 if LONG else 50)
settings.load_profile("redouble")

# For tests that take several times as long while coverage is measured, and add nothing to it.
not_under_coverage = pytest.mark.skipif(sys.gettrace() is not None, reason="slow while coverage is measured")

network_guard.install()


@contextlib.contextmanager
def bytecode_in_temporary_folder() -> Iterator[None]:
    """If no bytecode may be written beside the sources, let programs that tests start share a cache elsewhere."""
    if not sys.dont_write_bytecode or sys.pycache_prefix is not None:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        yield
        del os.environ["PYTHONPYCACHEPREFIX"]
        if before is not None:
            os.environ["PYTHONDONTWRITEBYTECODE"] = before


def heed_signals() -> None:
    """Restore the default handlers of signals that a shell ignores in background processes and their children."""
    for name, action in [("SIGINT", signal.default_int_handler), ("SIGQUIT", SIG_DFL), ("SIGHUP", SIG_DFL)]:
        number = getattr(signal, name, None)  # Windows does not have all of them
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, action)


def pytest_configure(config: pytest.Config) -> None:
    heed_signals()
    stack = contextlib.ExitStack()
    stack.enter_context(bytecode_in_temporary_folder())
    config.add_cleanup(stack.close)


def freeze_garbage_collector() -> None:
    """Exclude all objects that exist now from garbage collection, so that collections in tests are fast."""
    gc.collect()
    if hasattr(gc, "freeze"):  # not in PyPy
        gc.freeze()


def pytest_collection_finish() -> None:
    freeze_garbage_collector()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Exclude the reports of finished tests, once per file."""
    if nextitem is not None and nextitem.path != item.path:
        freeze_garbage_collector()


@pytest.fixture
def clock() -> FakeClock:
    """A clock that advances only by `sleep`."""
    return FakeClock()


class Flavour:
    """Run the same test with sync or async functions."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_async = name == "async"

    def __repr__(self) -> str:
        return self.name

    def scripted(self, *outcomes: Any) -> Scripted:
        """Return a function of this flavour that returns or raises these outcomes in order."""
        return scripted(*outcomes, asynchronous=self.is_async)

    def function(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """Return a plain function, wrapped in a coroutine function in the async flavour."""
        if not self.is_async:
            return body

        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            return body(*args, **kwargs)

        coroutine.__qualname__ = body.__qualname__
        return coroutine

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function of this flavour and return its result."""
        if not self.is_async:
            return function(*args, **kwargs)

        async def main() -> Any:
            return await function(*args, **kwargs)

        return asyncio.run(main())

    def call(self, policy: Policy, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function of this flavour with a policy."""
        return self.run(policy(function), *args, **kwargs)

    def block(self, policy: Policy, body: Callable[[Any], Any]) -> Any:
        """Run ``body(attempt)`` as the block of a ``retrying`` loop."""
        if not self.is_async:
            result = None
            for attempt in retrying(policy):
                with attempt:
                    result = body(attempt)
            return result

        async def main() -> Any:
            result = None
            async for attempt in retrying(policy):
                async with attempt:
                    result = body(attempt)
            return result

        return asyncio.run(main())


@pytest.fixture(params=["sync", "async"])
def flavour(request: pytest.FixtureRequest) -> Flavour:
    """Run the test once with sync and once with async functions."""
    return Flavour(request.param)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time: it jumps to the next timer when nothing else is ready."""

    def __init__(self) -> None:
        super().__init__()
        self._virtual_now = 0.0

    def time(self) -> float:
        return self._virtual_now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self._virtual_now = max(self._virtual_now, self._scheduled[0]._when)  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


@pytest.fixture
def virtual() -> Callable[..., Any]:
    """Return a function that runs an async function in virtual time: ``virtual(main)``."""

    def run(main: Callable[..., Any]) -> Any:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(main())

    return run


def loop_time() -> float:
    """Return the time of the running loop, for policies in virtual time."""
    return asyncio.get_running_loop().time()


def pytest_runtest_setup() -> None:
    """Forget which warnings were logged, so that those logged once per process are logged in each test."""
    log_once._warned.clear()


class StillRunning(BaseException):
    """Raised by `watchdog`. Not an `Exception`, so that nothing swallows it."""


@contextlib.contextmanager
def watchdog(seconds: int = 120) -> Iterator[None]:
    """Raise `StillRunning` in a block that takes longer than `seconds`: for endless loops, whatever else runs."""
    if not hasattr(signal, "alarm"):  # Windows, WebAssembly: an endless block hangs there
        yield
        return

    def interrupt(*_: object) -> None:
        raise StillRunning

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def library(monkeypatch):
    """Return a function that makes classes of a module whose file is in `site-packages`."""

    def make(name: str, *bases: type, directory: str = "site-packages", **body: object) -> Any:
        package = f"library_in_{directory.replace('-', '_')}"
        module = types.ModuleType(package)
        module.__file__ = f"/env/lib/python3/{directory}/{package}/errors.py"
        monkeypatch.setitem(sys.modules, package, module)
        return type(name, bases or (Exception,), {"__module__": package, **body})

    return make
