"""What `import redouble` loads and does, and what the first calls import."""

from __future__ import annotations

import os
import sys

import pytest

from support.programs import ROOT, run_program

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
    new = set(run_program(code, *switches).split())
    assert "redouble.policy" in new
    assert new & UNWANTED == set()
    assert {name.partition(".")[0] for name in new} <= {"redouble", *sys.stdlib_module_names}


@pytest.mark.slow
@pytest.mark.parametrize("fields", ["", "attempts=3, deadline=60.0, timeout=5.0, until=len"])
def test_decorating_and_calling_a_plain_function_imports_nothing_more(fields):
    code = f"""
        import sys
        sys.path.insert(0, {ROOT!r})
        import redouble
        from redouble import retrying
        before = set(sys.modules)

        @redouble.retry({fields})
        def fetch(url):
            return url

        assert fetch("page") == "page"
        for attempt in retrying():
            with attempt:
                pass
        print(*sorted(set(sys.modules) - before))
    """
    assert run_program(code, "-I", "-S") == ""


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
    assert run_program(code, "-I", "-S") == ""


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
    assert run_program(code, "-I", "-S") == "False"


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
    assert run_program(code) == "[]"


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
    assert run_program(code, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}") == "fine"
