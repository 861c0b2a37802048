"""What many tests share: fake time, and one fixture that runs a behaviour on both drivers."""

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

import network_guard
from network_guard import pytest_runtest_call  # noqa: F401 - pytest takes its hooks from here
from redouble import Policy, _trouble, retrying
from redouble.testing import FakeClock, Scripted, scripted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# How much is tried at random; a test fails for what it finds, never for being slow on a busy machine.
LONG = os.environ.get("REDOUBLE_LONG") == "1"
settings.register_profile("redouble", deadline=None, max_examples=1_000 if LONG else 50)
settings.load_profile("redouble")

# What shows nothing of coverage, and takes several times as long while that is measured.
where_nothing_is_traced = pytest.mark.skipif(
    sys.gettrace() is not None, reason="slow while coverage is measured"
)

network_guard.install()


@contextlib.contextmanager
def byte_code_out_of_the_tree() -> Iterator[None]:
    """Where no byte code may be written beside the sources, programs that tests start share it elsewhere."""
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
    """Who is started in the background of a script ignores interrupts, and so do all programs that it starts."""
    for name, action in [("SIGINT", signal.default_int_handler), ("SIGQUIT", SIG_DFL), ("SIGHUP", SIG_DFL)]:
        number = getattr(signal, name, None)  # Windows has not all of them
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, action)


def pytest_configure(config: pytest.Config) -> None:
    heed_signals()
    keeping = contextlib.ExitStack()
    keeping.enter_context(byte_code_out_of_the_tree())
    config.add_cleanup(keeping.close)


def set_apart() -> None:
    """What is there now is no garbage: collections in tests need not look at it, and are fast."""
    gc.collect()
    if hasattr(gc, "freeze"):  # PyPy has none
        gc.freeze()


def pytest_collection_finish() -> None:
    """The tests themselves."""
    set_apart()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """The reports of the tests that have been, file by file."""
    if nextitem is not None and nextitem.path != item.path:
        set_apart()


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands still until somebody sleeps."""
    return FakeClock()


class Flavour:
    """One way to write and to call things: sync or async."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_async = name == "async"

    def __repr__(self) -> str:
        return self.name

    def scripted(self, *outcomes: Any) -> Scripted:
        """A function of this flavour that gives or raises what the script says."""
        return scripted(*outcomes, asynchronous=self.is_async)

    def function(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """A plain function, made async in the async flavour."""
        if not self.is_async:
            return body

        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            return body(*args, **kwargs)

        coroutine.__qualname__ = body.__qualname__
        return coroutine

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a function of this flavour to its end."""
        if not self.is_async:
            return function(*args, **kwargs)

        async def main() -> Any:
            return await function(*args, **kwargs)

        return asyncio.run(main())

    def call(self, policy: Policy, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a function of this flavour under a policy."""
        return self.run(policy(function), *args, **kwargs)

    def block(self, policy: Policy, body: Callable[[Any], Any]) -> Any:
        """Runs ``body(attempt)`` as the block of a ``retrying`` loop."""
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
    """Runs the test once on each driver."""
    return Flavour(request.param)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on which time passes only by jumping to the next thing that is due."""

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
    """Runs an async function on virtual time: ``virtual(main, loop_is_wanted)``."""

    def run(main: Callable[..., Any]) -> Any:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(main())

    return run


def loop_time() -> float:
    """The clock of the running loop, for policies on virtual time."""
    return asyncio.get_running_loop().time()


def pytest_runtest_setup() -> None:
    """What is said once in a process is said once in a test."""
    _trouble._told.clear()


class StillRunning(BaseException):
    """Not an Exception: nothing may swallow it."""


@contextlib.contextmanager
def watchdog(seconds: int = 20) -> Iterator[None]:
    """Ends what does not end by itself."""
    if not hasattr(signal, "alarm"):  # Windows, WebAssembly: what has no end hangs there
        yield
        return

    def bark(*_: object) -> None:
        raise StillRunning

    before = signal.signal(signal.SIGALRM, bark)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def library(monkeypatch):
    """Makes classes of a module whose file is where packages are installed."""

    def make(name: str, *bases: type, directory: str = "site-packages", **body: object) -> Any:
        package = f"library_in_{directory.replace('-', '_')}"
        module = types.ModuleType(package)
        module.__file__ = f"/env/lib/python3/{directory}/{package}/errors.py"
        monkeypatch.setitem(sys.modules, package, module)
        return type(name, bases or (Exception,), {"__module__": package, **body})

    return make
