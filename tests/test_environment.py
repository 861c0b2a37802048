"""Where redouble runs: other processes and interpreters, odd switches, patched clocks; and how it is layered."""

from __future__ import annotations

import ast
import functools
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import redouble
from redouble import DeadlineExceeded, Policy, retry, retrying
from redouble.backoff import fixed
from redouble.testing import scripted

PACKAGE = Path(redouble.__file__).parent
ROOT = str(PACKAGE.parent)


def run(code, *switches, cwd=None, **environment):
    """Runs a program in a new interpreter that finds this redouble, installed or not; gives its output.

    Whatever it writes to stderr is a failure: noise at shutdown shows only there.
    """
    done = subprocess.run(
        [sys.executable, *switches, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": ROOT, **environment},
        capture_output=True,
        cwd=cwd,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout.strip()


# Processes


PROCESSES = """
import multiprocessing, os, sys

from redouble import Policy, retry


def no_wait(seconds):
    pass


POLICY = Policy(attempts=3, on=OSError, sleep=no_wait, name="in the child")


@POLICY
def work(path):
    if path is None:
        return os.getpid()
    return os.stat(path)


def child(policy, pipe):
    try:
        policy.call(os.stat, "/nowhere/at all")
    except OSError as error:
        pipe.send((policy, error.__notes__[0].splitlines()[0]))


def main():
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        here, there = context.Pipe()
        process = context.Process(target=child, args=(POLICY, there))
        process.start()
        policy, note = here.recv()
        process.join()
        assert process.exitcode == 0
        assert policy == POLICY
        assert "gave up on in the child after 3 attempts" in note, note
        with context.Pool(1) as pool:
            assert pool.apply(work, (None,)) != os.getpid()
            try:
                pool.apply(work, ("/nowhere/at all",))
            except FileNotFoundError as error:
                assert "after 3 attempts" in error.__notes__[0]
            else:
                raise SystemExit("no error came back")
            pool.close()
            pool.join()
    print("done")


if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_policies_and_decorated_functions_work_in_forked_and_spawned_processes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(PROCESSES)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("done", "")


def test_a_call_may_be_retried_in_a_child_that_was_forked_during_its_wait():
    code = """
        import os
        from redouble import retry

        calls, parent = [], os.getpid()

        def sleep(seconds):
            if os.fork():
                os.wait()

        @retry(attempts=2, sleep=sleep, deadline=60.0)
        def fetch():
            calls.append(1)
            if len(calls) < 2:
                raise TimeoutError
            return "page"

        print(fetch(), "child" if os.getpid() != parent else "parent", flush=True)
        os._exit(0)
    """
    assert run(code).split("\n") == ["page child", "page parent"]


# The end of an interpreter


@pytest.mark.slow
def test_a_decorated_function_works_in_atexit():
    code = """
        import atexit
        from redouble import retry

        calls = []

        @atexit.register
        @retry(base=0.01, deadline=60.0)
        def flush():
            calls.append(1)
            if len(calls) < 3:
                raise TimeoutError("slow")
            print("flushed after", len(calls))
    """
    assert run(code) == "flushed after 3"


@pytest.mark.slow
def test_a_daemon_thread_that_waits_at_shutdown_is_silent():
    code = """
        import threading
        from redouble import retry, retrying

        started = threading.Barrier(3)

        @retry(attempts=9, base=30.0, backoff=lambda *args, **kwargs: 30.0)
        def fetch(calls=[]):
            if not calls:
                calls.append(1)
                started.wait()
            raise TimeoutError("slow")

        def block():
            for attempt in retrying(attempts=9, backoff=lambda *args, **kwargs: 30.0):
                with attempt:
                    if attempt.number == 1:
                        started.wait()
                    raise TimeoutError("slow")

        threading.Thread(target=fetch, daemon=True).start()
        threading.Thread(target=block, daemon=True).start()
        started.wait()
        print("main ends")
    """
    began = time.monotonic()
    assert run(code) == "main ends"
    assert time.monotonic() - began < 20


@pytest.mark.slow
def test_what_comes_out_while_modules_are_torn_down_is_the_result_or_the_error_of_the_function():
    code = """
        from redouble import retry

        @retry(base=0.0)
        def fetch(calls=[]):
            calls.append(1)
            if len(calls) < 3:
                raise TimeoutError("slow")
            return "page"

        class Late:
            def __del__(self, fetch=fetch, print=print, TimeoutError=TimeoutError):
                try:
                    print(fetch())
                except TimeoutError as error:
                    print(error)

        import builtins
        builtins.late = Late()  # outlives every module
    """
    # Nothing can be imported by then, random not either: how far such a call comes is Python's to say.
    assert run(code) in ("page", "slow")


# Interpreters within a process

INTERPRETERS = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"


def test_redouble_works_in_subinterpreters():
    inner = """
from redouble import retry, retrying, current_attempt
calls = []

@retry(attempts=3, base=0.0, deadline=60.0)
def fetch():
    calls.append(current_attempt().number)
    if len(calls) < 3:
        raise TimeoutError("slow")
    return "page"

assert fetch() == "page"
assert calls == [1, 2, 3]
for attempt in retrying(base=0.0):
    with attempt:
        if attempt.number == 1:
            raise TimeoutError("slow")
assert attempt.number == 2
print("worked", flush=True)
"""
    code = f"""
import {INTERPRETERS} as interpreters
import redouble
for _ in range(2):
    made = interpreters.create()
    trouble = interpreters.run_string(made, {inner!r})
    assert trouble is None, trouble
    interpreters.destroy(made)
assert redouble.retry(lambda: 1)() == 1
"""
    assert run(code).split() == ["worked"] * 2


# What an import does

BEFORE = """
    import sys
    sys.path.insert(0, {root!r})
    before = set(sys.modules)
"""

# fmt: off
UNWANTED = {
    "asyncio", "ssl", "sqlite3", "email", "http", "logging", "typing", "dataclasses", "inspect",
    "random", "re", "threading", "signal", "socket", "datetime", "uuid", "pickle",
    "json", "multiprocessing", "concurrent.futures", "typing_extensions", "difflib", "warnings",
}
# fmt: on


@pytest.mark.slow
@pytest.mark.parametrize("switches", [["-I", "-S"], ["-S", "-E"]], ids=" ".join)
def test_importing_redouble_imports_nothing_that_is_slow(switches):
    code = (
        BEFORE.format(root=ROOT)
        + """
    import redouble
    print(*sorted(set(sys.modules) - before))
    """
    )
    new = set(run(code, *switches).split())
    assert "redouble._sync" in new
    assert new & UNWANTED == set()
    assert {name.partition(".")[0] for name in new} <= {"redouble", *sys.stdlib_module_names}


@pytest.mark.slow
@pytest.mark.parametrize("fields", ["", "attempts=3, deadline=60.0, timeout=5.0, until=len"])
def test_decorating_and_calling_a_plain_function_imports_nothing_more(fields):
    code = f"""
        import sys
        sys.path.insert(0, {ROOT!r})
        import redouble
        before = set(sys.modules)

        @redouble.retry({fields})
        def fetch(url):
            return url

        assert fetch("page") == "page"
        for attempt in redouble.retrying():
            with attempt:
                pass
        print(*sorted(set(sys.modules) - before))
    """
    assert run(code, "-I", "-S") == ""


@pytest.mark.slow
def test_retrying_a_plain_function_does_not_import_an_event_loop_or_logging():
    code = f"""
        import sys
        sys.path.insert(0, {ROOT!r})
        import redouble

        @redouble.retry(base=0.0, deadline=60.0)
        def fetch(calls=[]):
            calls.append(1)
            if len(calls) < 3:
                raise TimeoutError("slow")
            return "page"

        assert fetch() == "page"
        print(*sorted({{"asyncio", "logging", "inspect", "typing", "trio"}} & set(sys.modules)))
    """
    assert run(code, "-I", "-S") == ""


def test_decorating_an_async_function_does_not_import_asyncio():
    code = f"""
        import sys
        sys.path.insert(0, {ROOT!r})
        import redouble

        @redouble.retry
        async def fetch():
            return "page"

        try:
            fetch().send(None)
        except StopIteration as end:
            assert end.value == "page"
        print("asyncio" in sys.modules)
    """
    assert run(code, "-I", "-S") == "False"


@pytest.mark.slow
def test_importing_redouble_starts_nothing_and_changes_nothing():
    code = """
        import gc, locale, logging, signal, sys, threading, warnings, random, asyncio, atexit, os

        def state():
            return {
                "threads": threading.active_count(),
                "handlers": [signal.getsignal(number) for number in signal.valid_signals()],
                "root logger": (list(logging.root.handlers), logging.root.level, logging.root.disabled),
                "logger": "redouble" in logging.root.manager.loggerDict,
                "warnings": list(warnings.filters),
                "hooks": (sys.excepthook, sys.unraisablehook, threading.excepthook, list(sys.meta_path)),
                "asyncgen": sys.get_asyncgen_hooks(),
                "random": random.getstate(),
                "collector": (gc.isenabled(), gc.get_threshold()),
                "trace": (sys.gettrace(), sys.getprofile(), sys.getswitchinterval()),
                "policy": asyncio.get_event_loop_policy,
                "exits": atexit._ncallbacks(),
                "environment": dict(os.environ),
                "limits": (sys.getrecursionlimit(), locale.setlocale(locale.LC_ALL)),
            }

        before = state()
        import redouble
        import redouble.presets, redouble.testing
        after = state()
        print([key for key in before if before[key] != after[key]])
    """
    assert run(code) == "[]"


# Odd switches

SMOKE = """
import asyncio
from redouble import DeadlineExceeded, Policy, ResultRejected, current_attempt, retry, retrying
from redouble.testing import FakeClock, no_waits, scripted


def check(condition, what):
    if not condition:
        raise SystemExit(what)  # not an assert: -O takes those away


clock = FakeClock()
policy = Policy(attempts=3, clock=clock, sleep=clock.sleep, name="caf\\xe9")

check(policy.call(scripted(TimeoutError(), "page")) == "page", "retry")

try:
    policy.call(scripted(*[TimeoutError("slow \\u20ac")] * 3))
except TimeoutError as error:
    check("gave up on caf\\xe9 after 3 attempts" in error.__notes__[0], "note")
else:
    raise SystemExit("no error")

try:
    policy.replace(deadline=0.5, backoff=lambda *args, **kwargs: 1.0).call(scripted(TimeoutError()))
except DeadlineExceeded as error:
    check(error.attempts == 1 and isinstance(error.last_error, TimeoutError), "deadline")
else:
    raise SystemExit("no deadline")

try:
    policy.replace(until=bool).call(scripted(0, 0, 0))
except ResultRejected as error:
    check(error.result == 0, "result")
else:
    raise SystemExit("no rejection")

runs = []
for attempt in retrying(policy):
    with attempt:
        runs.append(attempt.number)
        if attempt.number < 3:
            raise TimeoutError
check(runs == [1, 2, 3], "block")


@retry(attempts=3, base=0.0, timeout=60.0)
async def fetch(seen):
    seen.append(current_attempt().number)
    await asyncio.sleep(0)
    if len(seen) < 3:
        raise ConnectionResetError("peer")
    return seen


check(asyncio.run(fetch([])) == [1, 2, 3], "async")


@policy
async def items(outcome):
    outcome()
    yield 1


async def main():
    return [item async for item in items(scripted(TimeoutError(), None))]


check(asyncio.run(main()) == [1], "stream")

header = {"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}
from redouble.classify import parse_retry_after

check(parse_retry_after(header["Retry-After"], now=946684739.0) == 60.0, "date in any zone")
with no_waits() as waits:
    retry(scripted(TimeoutError(), 1))()
check(len(waits) == 1, "no_waits")
check("Calls up to 4 times" in Policy().describe(), "describe")
try:
    Policy(attempts=0)
except ValueError:
    print("fine")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("switches", "environment"),
    [
        (["-O"], {}),
        (["-OO"], {}),
        (["-W", "error"], {}),
        (["-X", "dev", "-W", "error"], {}),
        (["-bb", "-W", "error"], {}),
        ([], {"PYTHONHASHSEED": "1"}),
        ([], {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
        ([], {"TZ": "America/St_Johns"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "-".join(value),
)
def test_it_works_under_odd_switches(switches, environment):
    assert run(SMOKE, *switches, **environment) == "fine"


# Patched time


def test_the_monotonic_clock_is_looked_up_late(monkeypatch):
    decorated = retry(deadline=10.0, attempts=9, backoff=fixed, base=1.0, sleep=lambda seconds: None)
    fetch = decorated(scripted(TimeoutError("1"), TimeoutError("2"), "page"))
    now = iter([100.0, 105.0, 105.0, *[120.0] * 9])
    # As freezegun does: the attribute of the time module is another function from here on.
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    with pytest.raises(redouble.DeadlineExceeded) as caught:
        fetch()
    assert caught.value.elapsed == 20.0


def test_under_a_frozen_clock_the_waits_count_against_a_deadline(flavour, monkeypatch):
    waits = []
    policy = Policy(attempts=None, deadline=31.0, backoff=fixed, sleep=waits.append)
    if not flavour.is_async:
        monkeypatch.setattr(time, "monotonic", lambda: 1_000.0)
    else:
        # An event loop reads time.monotonic itself, so the clock that stands still is the policy's.
        policy = policy.replace(clock=lambda: 1_000.0)
    with pytest.raises(DeadlineExceeded) as caught:
        flavour.call(policy, flavour.scripted(*[TimeoutError("slow")] * 40))
    assert waits == [1.0] * 30
    assert caught.value.elapsed == 30.0


def test_under_a_frozen_clock_a_block_and_a_scope_end_too(flavour):
    waits = []
    policy = Policy(attempts=None, deadline=5.0, backoff=fixed, clock=lambda: 1_000.0, sleep=waits.append)
    with pytest.raises(DeadlineExceeded):
        flavour.block(policy, lambda attempt: scripted(then=TimeoutError("slow"))())
    with pytest.raises(DeadlineExceeded), retrying(policy) as call:
        flavour.run(call, flavour.scripted(*[TimeoutError("slow")] * 40))
    assert waits == [1.0] * 8


def test_a_clock_that_goes_back_makes_no_time_negative(flavour):
    times = iter(range(1_000, 0, -100))
    policy = Policy(attempts=2, backoff=fixed, clock=lambda: next(times), sleep=lambda seconds: None)
    seen = []
    with pytest.raises(TimeoutError):
        flavour.call(policy.replace(listeners=[seen.append]), flavour.scripted(*[TimeoutError("slow")] * 2))
    assert [event.elapsed for event in seen] == [0.0, 1.0]


def test_sleep_is_looked_up_late(monkeypatch):
    fetch = retry(backoff=fixed)(scripted(TimeoutError("1"), TimeoutError("2"), "page"))
    waits = []
    # As gevent does, possibly after the function was decorated.
    monkeypatch.setattr(time, "sleep", waits.append)
    assert fetch() == "page"
    assert waits == [1.0, 1.0]


def test_the_sleep_of_asyncio_is_looked_up_late(monkeypatch):
    import asyncio

    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    fetch = retry(backoff=fixed)(scripted(TimeoutError("1"), "page", asynchronous=True))
    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert asyncio.run(fetch()) == "page"
    assert waits == [1.0]


def test_the_wall_clock_is_never_asked_by_a_call(flavour, monkeypatch, clock):
    def forbidden(*_args):
        raise AssertionError("the wall clock was read")

    for name in ("time", "time_ns", "localtime", "gmtime"):
        monkeypatch.setattr(time, name, forbidden)
    policy = Policy(attempts=2, deadline=60.0, clock=clock, sleep=lambda seconds: None)
    if flavour.is_async:
        assert flavour.call(policy, flavour.scripted(TimeoutError("slow"), "page")) == "page"
    else:
        # Not through pytest's log capture, whose records carry a date.
        monkeypatch.setattr("redouble.events._logger", lambda: None)
        assert policy.call(scripted(TimeoutError("slow"), "page")) == "page"


# Layers

# Reading order is data order: each module imports only from those before it.
# fmt: off
ORDER = [
    "_secret_table", "_sanitize", "_text", "_record", "errors", "_numbers", "_traces", "_trouble", "_callables",
    "backoff",
    "_headers", "_hints", "_catalogue", "_codebook", "_classes", "_shapes", "_exchange", "_grpc", "_codes",
    "_database_codes", "_names",
    "_kinds", "_doubts", "_questions", "_inquiry", "_explain", "classify", "_request_tables", "_requests",
    "_time", "_loops", "_awaitables", "context", "_checks", "_happenings", "events",
    "_window", "_guard", "budget", "_tripping", "_circuit", "breaker", "throttle", "_turns", "bulkhead",
    "registry",
    "_store", "_redis", "_budget_file", "_shared_budget", "_circuit_copy", "_shared_breaker", "shared",
    "_config", "_describe", "_waiting", "_objections", "_rule", "_guard_fields", "policy", "presets",
    "_decide", "_guarding", "_story", "_account", "_keeping", "_call", "_cancelling",
    "_async", "_async_first", "_sync", "_sync_first", "_streams", "_decorate", "_runs", "_blocks",
    "_latencies", "_race", "_tasks", "_threads", "hedging",
    "_plain", "_letters", "_compose", "_letters_file", "_letters_sqlite", "_letters_scripts",
    "_letters_redis",
    "_letter_box", "_leases", "_replay_run", "_replay", "deadletter", "_columns", "_terminal", "_letters_replaying", "_letters_cli",
    "_tables", "_tally", "_gauges", "_figures", "_prometheus", "_opentelemetry", "metrics",
    "testing._clock", "testing._switches", "testing._script", "testing._response", "testing._recording",
    "testing._assertions", "testing", "testing.plugin",
    "_virtual", "_contention", "_open_loop", "_crowd", "_outage", "_layers", "simulate",
    "_scale", "_svg_page", "_svg", "_chart",
    "_herd", "_demo", "_flags", "_forecast", "_preview", "_child", "_run_command",
    "_simulate_views", "_simulate_outage", "_simulate_models", "_simulate_cli", "__init__", "__main__",
]
# fmt: on

# The one way back up: a policy reaches the drivers when it is used, and so does `classify.repeatable`. Objections are
# loaded when they are asked for.
LATE = {("policy", "_decorate"), ("policy", "_objections"), ("classify", "_requests")}
# Nobody else imports late, but for the command line, which loads a command when it is asked for, and for guards,
# which are loaded when a policy has one, and for the traceback of an error that is logged.
LATE_DOWNWARDS = {"__main__", "_config", "_guard_fields", "_trouble"}


def is_type_checking(node):
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def path_of(module):
    """The file of a module, or of a package within the package: ``testing._clock``, ``testing``."""
    path = PACKAGE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@functools.cache
def tree_of(module):
    return ast.parse(path_of(module).read_text(encoding="utf-8"))


@functools.cache
def imports(module):
    """(imported name, inside a function?, a module of redouble?) of each import that runs."""
    found = []
    package = module if path_of(module).parent.name == module else module.rpartition(".")[0]
    here = f"{package}." if package else ""

    def visit(node, inside):
        if is_type_checking(node):
            for child in node.orelse:
                visit(child, inside)
            return
        if isinstance(node, ast.Import):
            found.extend((alias.name, inside, alias.name.startswith("redouble")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0:
                name = node.module.removeprefix("redouble.")
                found.append((name, inside, node.module.startswith("redouble")))
            elif node.module:
                found.append((here + node.module, inside, True))
            else:
                names = [here + alias.name for alias in node.names]
                found.extend((name if name in ORDER else "__init__", inside, True) for name in names)
        inside = inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(tree_of(module), False)
    return found


def test_every_module_has_its_place_in_the_order():
    assert sorted(PACKAGE.rglob("*.py")) == sorted(map(path_of, ORDER))


@pytest.mark.parametrize("module", ORDER)
def test_a_module_imports_only_from_those_before_it(module):
    before = ORDER[: ORDER.index(module)]
    upwards = {name for name, inside, ours in imports(module) if ours and not inside and name not in before}
    assert upwards == set()


@pytest.mark.parametrize("module", ORDER)
def test_only_the_policy_imports_late_what_stands_above_it(module):
    before = ORDER[: ORDER.index(module)] if module in LATE_DOWNWARDS else []
    late = {
        (module, name) for name, inside, ours in imports(module) if ours and inside and name not in before
    }
    assert late == {pair for pair in LATE if pair[0] == module}


# What is of use only together with a package of somebody else's, and imports it when it is asked for.
WITH_OTHERS = {
    "testing.plugin": {"pytest"},
    "_prometheus": {"prometheus_client"},
    "_opentelemetry": {"opentelemetry"},
}


@pytest.mark.parametrize("module", ORDER)
def test_a_module_imports_the_standard_library_and_nothing_else(module):
    foreign = {
        name.partition(".")[0] for name, _, ours in imports(module) if not ours
    } - sys.stdlib_module_names
    assert foreign == WITH_OTHERS.get(module, set())


@pytest.mark.parametrize("module", ORDER)
def test_no_module_imports_by_a_name_that_is_made_at_run_time(module):
    # But for the command line, which is told the name of a handler.
    by_name = {"importlib", "pkgutil", "runpy"} - ({"pkgutil"} if module == "_letters_replaying" else set())
    assert by_name.isdisjoint(name for name, _, _ in imports(module))
    nodes = ast.walk(tree_of(module))
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and hasattr(node.func, "id")}
    assert called & {"__import__", "exec", "eval", "compile"} == set()


@pytest.mark.slow
def test_modules_of_others_are_never_imported_even_where_they_are_installed(tmp_path):
    # Traps: each of these is what a call might be tempted to import, and ends the process if it is.
    for name in ("trio", "anyio", "httpx", "requests", "urllib3", "grpc", "botocore", "typing_extensions"):
        (tmp_path / f"{name}.py").write_text("import os, sys\nprint(__name__, flush=True)\nos._exit(3)\n")
    code = """
        import asyncio, sys
        import redouble, redouble.testing, redouble.presets
        from redouble import retry, retrying
        from redouble.testing import scripted

        class RateLimitError(Exception):
            status_code = 429
        RateLimitError.__module__ = "httpx"

        assert retry(base=0.0)(scripted(TimeoutError(), RateLimitError(), "page"))() == "page"
        fetch = retry(base=0.0, timeout=9.0)(scripted(TimeoutError(), "page", asynchronous=True))
        assert asyncio.run(fetch()) == "page"
        print("fine")
    """
    # Before redouble's own directory, which may be one with installed packages in it.
    assert run(code, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}") == "fine"


def test_trio_is_taken_from_where_it_was_imported_already(monkeypatch):
    waits = []

    class Lowlevel:
        @staticmethod
        def current_task():
            return "a task"

    class Trio:
        lowlevel = Lowlevel

        @staticmethod
        async def sleep(seconds):
            waits.append(seconds)

    fetch = retry(backoff=fixed)(scripted(TimeoutError("1"), "page", asynchronous=True))
    monkeypatch.setitem(sys.modules, "trio", Trio)
    with pytest.raises(StopIteration) as end:
        fetch().send(None)
    assert end.value.value == "page"
    assert waits == [1.0]
