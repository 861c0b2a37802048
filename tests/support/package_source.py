"""Read the source of the package: aliases for type checkers, overloads, attributes of instances, public names."""

from __future__ import annotations
import __future__

import ast
import functools
import importlib.util
import pkgutil
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redouble

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Its names are fixtures, which pytest finds by itself.
PLUGIN = "redouble.testing.plugin"


@functools.cache
def all_modules() -> list[str]:
    return ["redouble", *(found.name for found in pkgutil.walk_packages(redouble.__path__, "redouble."))]


def is_importable(module: str) -> bool:
    """Return whether the client library of a module of `redouble.clients` is installed; true for other modules."""
    package, _, client = module.rpartition(".")
    client = {"_httpx": "anyio"}.get(client, client)
    if package != "redouble.clients" or client in ("asgi", "wsgi") or client.startswith("_"):
        return True
    return importlib.util.find_spec(client) is not None


def public_modules() -> list[str]:
    """Return the modules without an underscore at the beginning of any part of their name that can be imported."""
    return sorted(module for module in all_modules() if "._" not in module and is_importable(module))


def exported(module: str) -> list[str]:
    """Return the public names of a module, sorted."""
    if module == PLUGIN:
        return sorted(node.name for node in tree(module).body if isinstance(node, ast.FunctionDef))
    return sorted(importlib.import_module(module).__all__)


def thing(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "redouble"


@functools.cache
def text(module: str) -> str:
    found: Any = importlib.util.find_spec(module)
    return Path(found.origin).read_text("utf-8")


@functools.cache
def tree(module: str) -> ast.Module:
    return ast.parse(text(module))


IMPORT = re.compile(r"^ *(?:>>> |\.\.\. )?from ([\w.]+) import (\([^)]*\)|.+)$", re.MULTILINE)


def imports_of(code: str) -> set[tuple[str, str]]:
    """Return the imports of a text as (module, name)."""
    return {
        (module, name.split()[0])
        for module, names in IMPORT.findall(code)
        for name in re.sub("#.*", "", names).strip("()\n ").split(",")
        if name.strip()
    }


def absolute(home: str, module: str) -> str:
    """Return the full name of a module that `module` imports relatively."""
    found: Any = importlib.util.find_spec(module)
    return importlib.util.resolve_name(home, found.parent)


@functools.cache
def for_checkers(module: str) -> dict[str, ast.stmt]:
    """Return the aliases, classes and imports of a module that only a type checker sees, by name."""
    found: dict[str, ast.stmt] = {}
    blocks: list[ast.If] = [node for node in tree(module).body if is_type_checking(node)]  # type: ignore[misc]
    for node in [inner for block in blocks for inner in block.body]:
        if isinstance(node, ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign) and not is_type_variable(node.value):
            found[ast.unparse(node.targets[0])] = node
        elif isinstance(node, ast.ImportFrom):
            found.update(dict.fromkeys([alias.asname or alias.name for alias in node.names], node))
    return found


def is_type_checking(node: ast.stmt) -> Any:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def is_type_variable(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func) in ("TypeVar", "ParamSpec")


@functools.cache
def source_of(cls: type) -> tuple[str, ast.ClassDef]:
    """Return the module that defines a class, whatever its `__module__`, and its node."""
    for module in [cls.__module__, *all_modules()]:
        if f"class {cls.__name__}" in text(module):
            for node in tree(module).body:
                for inner in [node, *getattr(node, "orelse", ())]:
                    if isinstance(inner, ast.ClassDef) and inner.name == cls.__name__:
                        return module, inner
    raise LookupError(cls)


def overloads(body: Iterable[ast.stmt], name: str) -> Iterator[Any]:
    """Yield a function for each overload of a name."""
    for node in body:
        of_that_name = isinstance(node, ast.FunctionDef) and node.name == name
        if of_that_name and "overload" in map(ast.unparse, node.decorator_list):  # type: ignore[attr-defined]
            yield as_function(node)  # type: ignore[arg-type]


def as_function(node: ast.FunctionDef) -> Any:
    """Return a function with this signature that does nothing."""
    plain = ast.FunctionDef(**{**dict(ast.iter_fields(node)), "decorator_list": []})
    module = ast.fix_missing_locations(ast.Module([ast.copy_location(plain, node)], []))
    namespace: dict[str, Any] = {}
    exec(compile(module, "<signature>", "exec", __future__.annotations.compiler_flag), namespace)
    return namespace[node.name]


def attributes(node: ast.ClassDef) -> dict[str, str]:
    """Return the attributes that a class declares or that `__init__` sets: name -> annotation, or an empty text."""
    made = [inner for inner in node.body if isinstance(inner, ast.FunctionDef) and inner.name == "__init__"]
    found: dict[str, str] = {}
    for statement in [*node.body, *(inner for init in made for inner in ast.walk(init))]:
        if not isinstance(statement, (ast.Assign, ast.AnnAssign)):
            continue
        prefix = "" if statement in node.body else "self."
        annotation = ast.unparse(statement.annotation) if isinstance(statement, ast.AnnAssign) else ""
        for target in map(ast.unparse, getattr(statement, "targets", None) or [statement.target]):  # type: ignore[union-attr]
            name = target.removeprefix(prefix)
            if target.startswith(prefix) and name.isidentifier() and not name.startswith("_"):
                found.setdefault(name, annotation)
    return found
