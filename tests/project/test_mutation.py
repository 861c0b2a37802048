"""Tests of the mutation tool: its mutants, their names, and its report."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import ClassVar

import pytest
from mutation import accepted, changed, planting, run
from mutation.mutants import mutants_of
from mutation.plan import Plan, Uses
from mutation.planting import file_of

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]
PACKAGE = ROOT / "src" / "redouble"
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")


def mutated(source: str, module: str = "m") -> dict[str, str]:
    """Return the mutants of a source: names without the module, and the changed line."""
    text = textwrap.dedent(source).encode()
    return {mutant.name.partition(":")[2]: mutant.diff(text)[1] for mutant in mutants_of(text, module)}


def inside(line: str) -> dict[str, str]:
    """Return the mutants of one line of a function."""
    found = mutated(f"def f(a, b):\n    {line}\n")
    return {name.removeprefix("f:"): text for name, text in found.items()}


@pytest.mark.parametrize(
    ("line", "operators"),
    [
        ("return a < b", {"return->None:1", "lt->le:1", "lt->ge:1"}),
        ("if a <= b: g()", {"if->True:1", "if->False:1", "le->lt:1", "call->pass:1"}),
        ("if a is None: g()", {"if->True:1", "if->False:1", "call->pass:1"}),
        ("x = a is not b", {"isnot->is:1"}),
        ("x = a not in b", {"notin->in:1"}),
        ("x = a == b != a", {"eq->ne:1", "ne->eq:1"}),
        ("x = a + b", {"add->sub:1"}),
        ("x = a ** b // a", {"pow->mul:1", "floordiv->div:1"}),
        ("x = a and b", {"and->or:1", "and-operand->True:1", "and-operand->True:2"}),
        (
            "if a or b: g()",
            {"or->and:1", "or-operand->False:1", "or-operand->False:2", "if->True:1", "call->pass:1"},
        ),
        ("x = not a", {"not->none:1"}),
        ("if not a: g()", {"if->True:1", "if->False:1", "call->pass:1"}),
        ("x = -a", {"minus->none:1"}),
        ("while a: g()", {"while->False:1", "call->pass:1"}),
        ("x = a if b else 7", {"ifelse->True:1", "ifelse->False:1", "number:1"}),
        ("x = [y for y in a if y]", {"for-if->True:1", "for-if->False:1"}),
        ("x = 1", {"number:1", "number:2"}),
        ("x = 'text' 'more'", {"string:1"}),
        ("x = f'{a + b} text' 'more'", {"string:1"}),
        ("x = None, True", {"None->True:1", "True->False:1"}),
        ("return 5", {"number:1"}),
        ("yield a", {"yield->None:1"}),
        ("a.x = b", {"assign->pass:1"}),
        ("a[b] = b", {"assign->pass:1"}),
        ("a += b", {"augassign->pass:1", "add->sub:1"}),
        ("raise a", {"raise->pass:1"}),
        ("del a.b", {"del->pass:1"}),
        ("await a()", {"call->pass:1"}),
        ("x = max(a, key=b)", {"max->min:1", "keyword->none:1"}),
        ("for x in a: continue", {"continue->break:1", "continue->pass:1"}),
        ("for x in a: break", {"break->continue:1"}),
    ],
)
def test_each_kind_of_code_has_its_mutants(line: str, operators: set[str]) -> None:
    prefix = "async def" if "await" in line else "def"
    found = mutated(f"{prefix} f(a, b):\n    {line}\n")
    assert {name.removeprefix("f:") for name in found} == operators


def test_a_mutant_is_the_line_with_one_thing_changed() -> None:
    assert inside("x = (a) < (b) + 2  # a < b")["lt->le:1"] == "x = (a) <= (b) + 2  # a < b"
    assert inside('x = rb"text" b"more"')["string:1"] == 'x = rb"XXtext" b"more"'
    assert inside("g(a, key=b)")["keyword->none:1"] == "g(a, **{})"
    assert inside('x = a.strip(" .")')["string:1"] == "x = a.strip('XX')"
    assert inside("x = 1.0")["number:1"] == "x = 0.0"
    assert inside("x = 1e300")["number:1"] == "x = 2e+300"


def test_exceptions_are_caught_more_widely() -> None:
    source = """\
        def f():
            try:
                g
            except (OSError, ValueError):
                h
            except Exception:
                h
            except BaseException:
                h
    """
    assert mutated(source) == {
        "f:except->Exception:1": "except Exception:",
        "f:except->BaseException:1": "except BaseException:",
    }


def test_decorators_and_defaults_belong_to_the_function_and_are_outside_of_it() -> None:
    source = b"class C:\n    @wraps\n    @final\n    def f(self, a=1, b=x): ...\n"
    found = mutants_of(source, "m")
    assert {mutant.name: mutant.inside for mutant in found} == {
        "m:C.f:decorator->none:1": False,
        "m:C.f:number:1": False,
        "m:C.f:number:2": False,
        "m:C.f:default->None:1": False,
    }
    assert b"@wraps" not in found[0].applied(source)
    compile(found[0].applied(source), "m", "exec")


def test_what_only_readers_and_type_checkers_see_is_left_alone() -> None:
    source = '''\
        """Text."""
        from __future__ import annotations
        TYPE_CHECKING = False
        if TYPE_CHECKING:
            import typing
            X = 1
        __all__ = ["f"]
        class C:
            """Text."""
            __slots__ = ("a",)
            a: "int | str"
            """Text."""
        @overload
        def f(a: int = 1) -> "x": ...
        def g(a: "b < c") -> "x":
            """Text."""
            x: "y < z"
    '''
    assert mutated(source) == {}


def test_a_name_does_not_depend_on_the_lines_above() -> None:
    source = "class C:\n    def f(self):\n        return 1 < 2 < 3\n"
    before = mutated(source)
    assert "C.f:lt->le:2" in before
    assert mutated(f"import x\n\n\ndef other():\n    return 1 < 2\n\n\n{source}").items() > before.items()


def test_names_at_the_top_of_a_module_are_those_of_what_is_defined() -> None:
    assert mutated("A = {'x': 1}\nclass C:\n    b = False\n") == {
        "A:string:1": "A = {'XXx': 1}",
        "A:number:1": "A = {'x': 0}",
        "A:number:2": "A = {'x': 2}",
        "C.b:False->True:1": "b = True",
    }


def test_a_mutant_has_as_many_lines_as_the_original_and_compiles() -> None:
    source = textwrap.dedent("""\
        @wraps(
            a,
        )
        def f(ä):
            x = g(
                "ü", key=(
                    1
                )
            )
            if h(
                x
            ) and (
                x <
                1
            ):
                raise ValueError(
                    "text"
                    f"{x}"
                )
            return [
                x
            ]
    """).encode()
    found = mutants_of(source, "m")
    assert len(found) == 15
    for mutant in found:
        changed_source = mutant.applied(source)
        assert changed_source.count(b"\n") == source.count(b"\n"), mutant.name
        compile(changed_source, "m", "exec")


def test_all_names_of_a_real_module_differ() -> None:
    source = file_of(PACKAGE, "_engine.decide").read_bytes()
    found = mutants_of(source, "_decide")
    assert len({mutant.name for mutant in found}) == len(found) > 200


# Planting


def test_functions_that_exist_get_the_code_of_the_mutant() -> None:
    source = b"def f(x):\n    def g():\n        return x + 1\n    return g\n"
    namespace: dict[str, object] = {}
    exec(planting.compiled(source, HERE), namespace)
    function = namespace["f"]
    made = function(1)  # type: ignore[operator]
    functions = {each.__code__: [each] for each in (function, made)}
    mutant = next(mutant for mutant in mutants_of(source, "m") if "add->sub" in mutant.name)
    new = planting.compiled(mutant.applied(source), HERE)
    assert planting.exchange(functions, planting.compiled(source, HERE), new)  # type: ignore[arg-type]
    assert (made(), function(5)()) == (0, 4)  # type: ignore[operator]
    # Or else a test that looks for the package's files would fail whatever the mutant is.
    assert made.__code__.co_filename == str(HERE)


def test_code_that_does_not_fit_is_not_exchanged() -> None:
    source = b"def f(x):\n    def g():\n        return x\n    return g\n"
    namespace: dict[str, object] = {}
    exec(planting.compiled(source, HERE), namespace)
    made = namespace["f"](1)  # type: ignore[operator]
    new = planting.compiled(source.replace(b"return x", b"return None"), HERE)
    assert not planting.exchange({made.__code__: [made]}, planting.compiled(source, HERE), new)
    assert made() == 1


def test_users_of_a_name_are_found_by_way_of_other_names(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("A = 1\nB = [A]\ndef f():\n    return B\n")
    (tmp_path / "b.py").write_text("from .a import A\ndef g():\n    return A\n")
    (tmp_path / "c.py").write_text("A = 2\ndef h():\n    return A\n")
    assert sorted(Uses(tmp_path).of("a", "A")) == [("a", (4, 4)), ("b", (3, 3))]


def test_the_body_of_a_function_is_known_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("class A:\n    def f(\n        self, x=1\n    ):\n        return x\n")
    assert Uses(tmp_path).body("a", "A.f") == (5, 5)
    assert Uses(tmp_path).body("a", "A") is None


class Ran:
    """A coverage in which one test runs the line of a definition, as it imports the module, and two run its functions."""

    seconds: ClassVar = {"imports": 0.1, "looks": 0.1, "looks_closer": 0.1}

    def imported(self, module: str, span: tuple[int, int]) -> bool:
        return True

    def tests(self, module: str, span: tuple[int, int] | None = None) -> set[str]:
        return {"imports"} if span else set(self.seconds)


def test_a_definition_that_nobody_is_known_to_use_faces_all_tests_of_its_module(tmp_path: Path) -> None:
    (tmp_path / "rates.py").write_text("class Rate:\n    counts = True\n")
    mutant = mutants_of(b"class Rate:\n    counts = True\n", "rates")[0]
    assert Plan(Ran(), Uses(tmp_path)).tests(mutant) == set(Ran.seconds)  # type: ignore[arg-type]


# What is accepted, and what has changed


def test_names_above_a_reason_share_it(tmp_path: Path) -> None:
    path = tmp_path / "accepted.txt"
    path.write_text("# For people.\na:f:x:1\na:f:x:2\n    Because\n    of this.\n\nb:g:y:1\n  That.\n")
    assert accepted.read(path) == {
        "a:f:x:1": "Because of this.",
        "a:f:x:2": "Because of this.",
        "b:g:y:1": "That.",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:f:x:1\n", "a:f:x:1 has no reason"),
        ("  Because.\n", ":1: a reason without a mutant"),
        ("a:f:x:1\n  Because.\na:f:x:1\n  Because.\n", "a:f:x:1 is there twice"),
    ],
)
def test_an_entry_needs_a_name_and_a_reason(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "accepted.txt"
    path.write_text(text)
    with pytest.raises(accepted.Unreadable, match=message):
        accepted.read(path)


@pytest.mark.slow
def test_the_file_of_accepted_mutants_is_readable_and_names_mutants_that_there_are() -> None:
    names = set(accepted.read(ROOT / "tests" / "tools" / "mutation" / "accepted.txt"))
    modules = {name.partition(":")[0] for name in names}
    found = set()
    for module in modules:
        source = file_of(PACKAGE, module).read_bytes()
        found |= {mutant.name for mutant in mutants_of(source, module)}
    assert names <= found


def test_changed_lines_are_those_of_the_new_file_and_the_neighbours_of_what_is_gone() -> None:
    diff = "--- a\n+++ b\n@@ -1 +1 @@\n-a\n+b\n@@ -5,0 +6,3 @@ def f():\n+a\n@@ -9,2 +12,0 @@\n-a\n"
    assert changed.lines_of(diff) == {1, 6, 7, 8, 12, 13}


def test_what_has_changed_is_unknown_without_a_repository(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("x = 1\n")
    with pytest.raises(changed.Unknown, match="git"):
        changed.changed_lines(tmp_path, file, "HEAD")


def test_without_a_known_revision_a_sample_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code = run.main(["--changed-since", "no-such-revision", "--sample", "3", "--list", "_guards.window"])
    told = capsys.readouterr()
    assert (code, len(told.out.splitlines())) == (0, 3)
    assert "the changed lines are unknown" in told.err


def test_a_mutant_is_shown_as_a_diff(capsys: pytest.CaptureFixture[str]) -> None:
    name = next(iter(mutants_of(file_of(PACKAGE, "_guards.window").read_bytes(), "_guards.window"))).name
    assert run.main(["--show", name]) == 0
    place, before, after = capsys.readouterr().out.splitlines()
    assert place.startswith("_guards.window:")
    assert place.endswith(name)
    assert before.strip()[0] + after.strip()[0] == "-+"
    assert run.main(["--show", "_guards.window:nothing:lt->le:1"]) == 2


def test_the_modules_that_are_tried_exist() -> None:
    assert [module for module in run.DEFAULT if not file_of(PACKAGE, module).exists()] == []


# From one end to the other

TINY = """\
LIMIT = 3
UNUSED = 5


def small(x):
    return x < LIMIT


def never():
    return 1
"""
TINY_TESTS = """\
import redouble.inner.tiny as tiny

def test_small():
    assert tiny.small(0) is True
    assert tiny.small(9) is False
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    package = tmp_path / "src" / "redouble" / "inner"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "tiny.py").write_text(TINY)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_tiny.py").write_text(TINY_TESTS)
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (tmp_path / "accepted.txt").write_text(
        "inner.tiny:UNUSED:number:1\n  Nobody uses it.\n"
        "inner.tiny:small:lt->ge:1\n  Wrongly accepted.\n"
        "inner.tiny:small:lt->gt:7\n  There is none.\n"
    )
    return tmp_path


@forks
@pytest.mark.slow
def test_a_run_tells_who_survived_and_what_is_wrong_with_the_accepted_ones(tiny: Path) -> None:
    pytest.importorskip("coverage")
    script = ROOT / "tests" / "tools" / "mutation" / "run.py"
    before = sorted(path.name for path in tiny.rglob("*"))
    done = subprocess.run(
        [sys.executable, str(script), "inner.tiny", f"--root={tiny}", f"--accepted={tiny / 'accepted.txt'}"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = done.stdout.splitlines()
    survived = sorted(line.split("  ")[1:] for line in lines if line.startswith("inner.tiny:"))
    assert survived == [
        ["inner.tiny:LIMIT:number:1", "survived"],
        ["inner.tiny:never:number:1", "uncovered"],
        ["inner.tiny:never:number:2", "uncovered"],
        ["inner.tiny:small:lt->le:1", "survived"],
    ], done.stderr
    assert "accepted.txt names a mutant that is killed: inner.tiny:small:lt->ge:1" in lines
    assert "accepted.txt names a mutant that does not exist: inner.tiny:small:lt->gt:7" in lines
    assert done.returncode == 1
    assert sorted(path.name for path in tiny.rglob("*")) == before


@pytest.mark.slow
@forks
def test_what_does_not_end_is_ended_and_what_crashes_is_told() -> None:
    script = """
        import os, time
        from mutation.processes import pool
        def work(task, tell):
            tell({"within": 0.05 if task == "sleeps" else 9.0, "at": task})
            if task == "sleeps":
                time.sleep(60)
            elif task == "crashes":
                os._exit(7)
            elif task == "raises":
                raise KeyboardInterrupt
        told = {task: (outcome.ended, outcome.told["at"], "error" in outcome.told)
                for task, outcome in pool(["sleeps", "crashes", "raises", "ends"], 2, work)}
        print(told)
    """
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests" / "tools")},
        timeout=60,
    )
    assert done.stderr == ""
    assert eval(done.stdout) == {
        "sleeps": ("timeout", "sleeps", False),
        "crashes": ("died", "crashes", False),
        "raises": ("died", "raises", True),
        "ends": ("done", "ends", False),
    }
    assert time.monotonic() - began < 30.0
