"""The public interface is that of public_api.txt, and every public name is documented."""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import write_public_api as api

from redouble.breaker import State
from support import package_source as source

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").glob("*.py")),
]

every_module = pytest.mark.parametrize("module", source.public_modules())


# The file


def unreviewed(reviewed: str, found: str) -> str:
    """Return the changes and how to accept them; an empty text if there are none."""
    lines = difflib.unified_diff(
        reviewed.splitlines(), found.splitlines(), "tests/tools/public_api.txt", "the code", lineterm="", n=1
    )
    changes = "\n".join(lines)
    if not changes:
        return ""
    return (
        f"the public interface has changed:\n{changes}\n"
        "If that is meant, accept it with: python tests/tools/write_public_api.py (needs the extra clients)\n"
        "and say in docs/changelog.md what it means for users. A name that goes away breaks their code."
    )


@cache
def found() -> str:
    return api.public_api()


def reviewed() -> str:
    """Return the text of the file, without the modules whose client library is not installed."""
    parts = api.FILE.read_text("utf-8").split("\n## ")
    return "\n## ".join(part for part in parts if source.is_importable(part.partition("\n")[0]))


def test_the_public_interface_is_the_one_that_was_reviewed():
    trouble = unreviewed(reviewed(), found())
    if trouble:
        pytest.fail(trouble, pytrace=False)


def test_an_unreviewed_change_is_shown_with_the_way_to_accept_it():
    changed = found().replace("Policy.attempts: float | None = 4", "Policy.attempts: float | None = 5")
    trouble = unreviewed(found(), changed)
    assert "\n-  Policy.attempts: float | None = 4\n+  Policy.attempts: float | None = 5\n" in trouble
    assert "python tests/tools/write_public_api.py" in trouble
    assert "changelog" in trouble


@pytest.mark.parametrize("module", ["redouble.clients.grpc", "redouble.clients.httpx"])
def test_the_file_is_not_written_where_a_client_library_is_missing(module, monkeypatch, tmp_path):
    text = api.FILE.read_text("utf-8")
    monkeypatch.setattr(api, "FILE", tmp_path / "public_api.txt")
    api.FILE.write_text(text, "utf-8")
    monkeypatch.setattr(api, "is_importable", lambda name: name != module)
    with pytest.raises(SystemExit, match=rf"would lose {module}, .*'\.\[clients\]'"):
        api.main()
    assert api.FILE.read_text("utf-8") == text


def test_the_file_is_written_where_every_module_can_be_imported(monkeypatch, tmp_path):
    monkeypatch.setattr(api, "FILE", tmp_path / "public_api.txt")
    monkeypatch.setattr(api, "is_importable", lambda name: True)
    api.main()
    assert api.FILE.read_text("utf-8") == found()


def test_no_line_tells_of_addresses_of_this_machine():
    assert re.findall(r"0x[0-9a-f]{6,}", found()) == []
    assert str(ROOT) not in found()


@pytest.mark.slow
def test_the_file_does_not_depend_on_the_order_of_sets():
    code = "import write_public_api; print(write_public_api.public_api(), end='')"
    path = os.pathsep.join(
        [str(api.FILE.parent), str(Path(sys.modules["redouble"].__file__ or "").parent.parent)]
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert texts == {found()}


# What a line says


def a_function(a: int, /, b: str = "x", *, c: float | None = None, **rest: object) -> list[int]:
    raise NotImplementedError


async def an_async_function(*args: int, only: Any = State.open) -> None:
    raise NotImplementedError


def positional(a: int, /) -> None:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (
            a_function,
            "def f(a: int, /, b: str = 'x', *, c: float | None = None, **rest: object) -> list[int]",
        ),
        (an_async_function, "async def f(*args: int, only: Any = State.open) -> None"),
        (positional, "def f(a: int, /) -> None"),
    ],
)
def test_a_signature_is_shown_as_it_is_written(function, line):
    assert api.ways_to_call("f", function, [], bound=False) == [line]


def test_every_signature_of_which_a_type_checker_takes_one_has_a_line():
    assert sum(line.startswith("def retry(") for line in found().splitlines()) == 3


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({3, 1, 2}, "{1, 2, 3}"),
        ({"a": (1.5, None)}, "{'a': (1.5, None)}"),
        (State.half_open, "State.half_open"),
        (positional, "positional"),
        (object(), "..."),
        (..., "..."),
    ],
    ids=str,
)
def test_a_value_is_shown_alike_everywhere(value, text):
    assert api.shown(value) == text


@pytest.mark.parametrize(
    "line",
    [
        "class DeadlineExceeded(RedoubleError, TimeoutError)",
        "  DeadlineExceeded.last_error: BaseException | None (property)",
        "  classmethod def Policy.from_mapping(mapping: Mapping[str, Any]) -> Policy",
        "  Policy.nested: Literal['stop', 'independent', 'defer'] = 'stop'",
        "  PolicyFields.deadline: Seconds | None",
        "  Cause.rate_limited = 'rate_limited'",
        "  TokenBudget.capacity: attribute",
        "  async def DeadLetters.aput(**fields: Unpack[Fields]) -> DeadLetter",
        "  def CircuitBreaker.open() -> None",
        "  def Breaker.__call__(function: F, /) -> F",
        "  def RedisBreaker.success(ticket: int | None = None, listeners: Listeners = ()) -> Any",
        "  def BlockAttempt.again(reason: str = 'asked to run again', after: float | timedelta | None = None) -> None",
        "  def Backoff.__call__(attempt: int, base: float = ..., cap: float = ..., *, previous: float | None = ..., rng: Random | None = ...) -> float",
        "alias Seconds = float | timedelta",
        "alias State = Literal['waiting', 'leased', 'parked']",
        "StoreError: from redouble.errors",
        "fixture redouble_clock -> Iterator[FakeClock]",
    ],
)
def test_everything_that_users_meet_has_a_line(line):
    assert line in found().splitlines()


def test_what_users_never_make_is_not_told_how_to_be_made():
    assert re.findall(r"^ +(?:Attempt|Scope|Counts)\(.*", found(), flags=re.MULTILINE) == []


# The names


@every_module
def test_every_public_module_says_what_it_is_for_and_what_it_exports(module):
    found = importlib.import_module(module)
    assert found.__doc__
    # Of the plugin pytest takes the fixtures, by whatever name they have.
    assert hasattr(found, "__all__") or module == source.PLUGIN


@every_module
def test_what_a_module_exports_can_be_imported_all_at_once(module):
    namespace: dict[str, Any] = {}
    exec(f"from {module} import *", namespace)
    assert set(source.exported(module)) <= set(namespace)


def undocumented(module: str, name: str) -> list[str]:
    """Return what has no docstring: an exported object, or its public members."""
    it = source.thing(module, name)
    if not callable(it):
        return []  # a constant: the page of the module tells of it
    if not isinstance(it, type):
        return [] if it.__doc__ else [name]
    methods = {
        member: vars(owner).get(member) for member, (owner, _) in api.members(it).items() if member[0] != "_"
    }
    return [name] * (not vars(it).get("__doc__")) + [
        f"{name}.{member}"
        for member, value in methods.items()
        if inspect.isfunction(value) or isinstance(value, (property, classmethod))
        if not inspect.getdoc(getattr(it, member))
    ]


@every_module
def test_every_exported_name_is_documented_in_the_code(module):
    assert [found for name in source.exported(module) for found in undocumented(module, name)] == []


# Modules that are documented on the page of another one.
ELSEWHERE = {"presets": "policy", "registry": "guards"}


def place_of(module: str) -> str:
    """Return the path of the page about a module, as a pattern; for the package itself, that of all pages."""
    if module.startswith("redouble.clients"):
        name = module.removeprefix("redouble.clients").lstrip(".")
        return f"clients/{name or 'index'}.md"
    name = module.removesuffix(".plugin").rpartition(".")[2]
    name = ELSEWHERE.get(name, name)
    return "*.md" if module == "redouble" else f"{name.replace('_', '-')}.md"


@cache
def page_of(module: str) -> str:
    return "\n".join(page.read_text("utf-8") for page in REFERENCE.glob(place_of(module)))


def is_on_its_page(module: str, name: str) -> bool:
    # A constant may be there as it prints itself.
    shown = {name, repr(source.thing(module, name))} if name.isupper() else {name}
    return any(re.search(rf"(?<!\w){re.escape(text)}(?!\w)", page_of(module)) for text in shown)


@every_module
def test_every_exported_name_is_on_the_page_of_its_module(module):
    missing = [name for name in source.exported(module) if not is_on_its_page(module, name)]
    if missing:
        pytest.fail(
            f"{module} exports {', '.join(missing)}: describe it in docs/reference/{place_of(module)}",
            pytrace=False,
        )


# The errors of redouble as errors of a client library: users catch them by the names of either.
OF_CLIENTS = {"AttemptTimeout", "BulkheadFull", "CircuitOpen", "DeadlineExceeded", "ResultRejected"}
# Not exported, as nothing outside needs them; apart, so that the tests can look at them by themselves.
BY_THEMSELVES = {
    "redouble.policy": {"Unset"},
    "redouble.throttle": {"cubic", "measure", "plateau"},
}


@cache
def shared_within() -> set[tuple[str, str]]:
    """Return the names that modules of the package import from each other."""
    return {
        (source.absolute(home, module), name)
        for module in source.all_modules()
        for home, name in source.imports_of(source.text(module))
        if home.startswith((".", "redouble"))
    }


@every_module
def test_what_is_not_exported_and_has_no_underscore_is_shared_within_the_package(module):
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = {node.name for node in source.tree(module).body if isinstance(node, definitions)}
    hidden = {name for name in names if not name.startswith("_")} - set(source.exported(module))
    forgotten = {name for name in hidden if (module, name) not in shared_within()}
    own = OF_CLIENTS if module.startswith("redouble.clients.") else set()
    assert forgotten - own == BY_THEMSELVES.get(module, set())


# What a page looks at to show how something works.
LOOKED_AT = {("redouble.throttle", "cubic")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_and_examples_import_what_is_exported(page):
    modules = source.public_modules()
    hidden = {
        (module, name)
        for module, name in source.imports_of(page.read_text("utf-8"))
        if module.partition(".")[0] == "redouble" and source.is_importable(module)
        if module not in modules
        or (name not in source.exported(module) and f"{module}.{name}" not in modules)
    }
    assert hidden - LOOKED_AT == set()


def test_imports_of_every_form_are_found():
    text = (
        "from redouble import Policy, retry  # both\n"
        "    from redouble.budget import (\n  TokenBudget,  # one\n  RatioBudget as R,\n)\n"
        ">>> from ._call import Call\n"
    )
    assert source.imports_of(text) == {
        ("redouble", "Policy"),
        ("redouble", "retry"),
        ("redouble.budget", "TokenBudget"),
        ("redouble.budget", "RatioBudget"),
        ("._call", "Call"),
    }
