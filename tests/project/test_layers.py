"""The import rule: which package may import which. `docs/development/index.md` explains it."""

import ast
import functools
import sys
from pathlib import Path

import pytest

import redouble

PACKAGE = Path(redouble.__file__).parent

# Each line may import the lines above it, and nothing below it. Names on one line do not import each other, but for
# the pairs in BESIDE.
LAYERS = """
_base
errors
backoff
classify
context
events
_guards
budget breaker throttle bulkhead registry
_policy policy
_engine
presets hedging shared dead_letters metrics testing
clients
simulate
_cli
__main__
"""
BESIDE = {("policy", "_policy")}
# `redouble/__init__.py` holds names only, and stands above all that it names.
TOP = "__init__"

# Imports inside functions: only these, and below themselves. A policy loads the engine, its linter and its readers on first
# use, the command line loads a command when it is asked for, and the traceback of an error is formatted when it is logged.
LATE = {
    "__init__": {"_engine"},
    "_engine": {"_engine", "_policy"},
    "_base": {"_base"},
    "_cli": {"_cli", "__init__"},
    "_policy": {"_policy", "budget"},
    "classify": {"classify"},
    "events": {"events"},
    "policy": {"_engine", "_policy"},
}

# Modules for one other package, which they import when they are used.
WITH_OTHERS = {
    "testing.plugin": {"pytest"},
    "_cli.dead_letters": {"redis"},
    "metrics._prometheus": {"prometheus_client"},
    "metrics._opentelemetry": {"opentelemetry"},
    "clients._httpx": {"anyio"},  # which both depend on
    "clients.aiohttp": {"aiohttp"},
    "clients.botocore": {"botocore"},
    "clients.grpc": {"grpc"},
    "clients.httpx": {"httpx"},
    "clients.httpx2": {"httpx2"},
    "clients.requests": {"requests"},
    "clients.sqlalchemy": {"sqlalchemy"},
    "clients.urllib3": {"urllib3"},
}

MODULES = sorted(
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
)
ROWS = [set(line.split()) for line in LAYERS.split("\n") if line]
ROW = {name: number for number, row in enumerate(ROWS) for name in row}


def path_of(module):
    path = PACKAGE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@functools.cache
def tree_of(module):
    return ast.parse(path_of(module).read_text(encoding="utf-8"))


def is_type_checking(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


@functools.cache
def imports(module):
    """(dotted name below redouble or of another package, is it ours?, inside a function?) of each import that runs."""
    found = []
    package = module if path_of(module).name == "__init__.py" else module.rpartition(".")[0]
    package = "" if module == TOP else package

    def visit(node, inside):
        if is_type_checking(node):
            return
        if isinstance(node, ast.Import):
            found.extend((alias.name, alias.name.startswith("redouble"), inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.append((node.module, node.module.startswith("redouble"), inside))
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if package else []
            for alias in node.names:
                parts = [part for part in [*base, node.module, alias.name] if part]
                while parts and ".".join(parts) not in MODULES:
                    parts.pop()
                found.append((".".join(parts) or TOP, True, inside))
        inside = inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(tree_of(module), False)
    return found


def room(module):
    """The package or the module at the root that a module belongs to."""
    return module.partition(".")[0]


def test_every_package_has_its_line():
    assert {room(module) for module in MODULES} == {*ROW, TOP}


@pytest.mark.parametrize("module", [module for module in MODULES if module != TOP])
def test_a_module_imports_only_from_lines_above_its_own(module):
    here = room(module)
    others = {room(name) for name, ours, inside in imports(module) if ours and not inside} - {here}
    below = {
        name for name in others if name == TOP or (ROW[name] >= ROW[here] and (here, name) not in BESIDE)
    }
    assert below == set()


@pytest.mark.parametrize("module", MODULES)
def test_only_a_few_packages_import_inside_functions(module):
    late = {room(name) for name, ours, inside in imports(module) if ours and inside}
    assert late <= LATE.get(room(module), set())


@pytest.mark.parametrize("module", MODULES)
def test_a_private_module_is_imported_by_its_own_package_only(module):
    foreign = {name for name, ours, _ in imports(module) if ours and room(name) != room(module)}
    assert {name for name in foreign if "._" in name} == set()


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_the_standard_library_and_nothing_else(module):
    foreign = {room(name) for name, ours, _ in imports(module) if not ours} - sys.stdlib_module_names
    assert foreign == WITH_OTHERS.get(module, set())


@pytest.mark.parametrize("module", MODULES)
def test_no_module_imports_by_a_name_that_is_made_at_run_time(module):
    # But for the command line, which takes the name of a handler.
    by_name = {"importlib", "pkgutil", "runpy"} - ({"pkgutil"} if room(module) == "_cli" else set())
    assert by_name.isdisjoint(name for name, _, _ in imports(module))
    nodes = ast.walk(tree_of(module))
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and hasattr(node.func, "id")}
    assert called & {"__import__", "exec", "eval", "compile"} == set()
