"""Write tests/tools/public_api.txt, the public interface: ``python tests/tools/write_public_api.py``.

Each line states one fact, so that a change of the interface changes one line. A name that several modules export is
described in one of them. Names that signatures use without exporting them (aliases for type checkers, classes of results)
are at the end. Annotations are those of the source, defaults are values, and nothing depends on the version of Python.

It imports every module, so it needs the extra ``clients``. Without it, it writes nothing.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from redouble import Policy
from redouble._base.record import Record
from redouble.policy import _FIELDS
from support.package_source import (
    PLUGIN,
    absolute,
    all_modules,
    as_function,
    attributes,
    exported,
    for_checkers,
    is_importable,
    is_ours,
    overloads,
    public_modules,
    source_of,
    thing,
    tree,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    # A text with annotations, and the module whose names it uses.
    Mention = tuple[str, str]

FILE = Path(__file__).resolve().parent / "public_api.txt"
HEAD = """\
# All that users of redouble may rely on, written by tests/tools/write_public_api.py. A line that changes is a change of
# the interface: it is reviewed, and told in the changelog.
"""

# Of the methods with underscores around them, those that are a way to use a thing.
SPOKEN = {
    "__aenter__", "__aiter__", "__anext__", "__await__", "__bool__", "__call__", "__contains__", "__enter__",
    "__getitem__", "__iter__", "__len__", "__next__",
}  # fmt: skip
# Users receive these and do not make them, so their constructors are not part of the interface.
GIVEN = {
    "AsyncBlockAttempt",
    "AsyncBlocks",
    "Attempt",
    "BlockAttempt",
    "Counts",
    "Distribution",
    "Scope",
    "Scripted",
}


# Values and signatures


def shown(value: Any) -> str:
    """Return a value as source code; ``...`` if it has none."""
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, (frozenset, set)):
        return f"{{{', '.join(sorted(map(shown, value)))}}}"
    if isinstance(value, (dict, MappingProxyType)):
        return f"{{{', '.join(f'{shown(key)}: {shown(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(shown, value))})"
    if inspect.isfunction(value) or isinstance(value, type):
        return value.__qualname__
    text = repr(value)
    return "..." if value is ... or isinstance(value, Record) or " at 0x" in text else text


def signature(function: Any, *, bound: bool) -> str:
    """Return the parameters, without ``self``, and the return type."""
    pieces: list[str] = []
    last = None
    for parameter in list(inspect.signature(function).parameters.values())[bound:]:
        if last is parameter.POSITIONAL_ONLY and parameter.kind is not last:
            pieces.append("/")
        if parameter.kind is parameter.KEYWORD_ONLY and last not in (
            parameter.VAR_POSITIONAL,
            parameter.kind,
        ):
            pieces.append("*")
        pieces.append(_parameter(parameter))
        last = parameter.kind
    if last is inspect.Parameter.POSITIONAL_ONLY:
        pieces.append("/")
    return f"({', '.join(pieces)}) -> {function.__annotations__.get('return')}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = f"{stars}{parameter.name}: {parameter.annotation}"
    return text if parameter.default is parameter.empty else f"{text} = {shown(parameter.default)}"


def ways_to_call(name: str, function: Any, body: list[ast.stmt], *, bound: bool) -> list[str]:
    """Return a line for each signature; several for overloads."""
    prefix = "async def" if inspect.iscoroutinefunction(function) else "def"
    functions = list(overloads(body, function.__name__)) or [function]
    return [f"{prefix} {name}{signature(one, bound=bound)}" for one in functions]


# Things


def lines_about(name: str, module: str, named: set[Mention]) -> list[str]:
    """Return the lines about one exported name, and collect the names in its annotations in ``named``."""
    it = thing(module, name)
    if isinstance(it, type):
        return about_class(name, it, named)
    if module == PLUGIN:
        function = next(node for node in tree(module).body if getattr(node, "name", "") == name)
        return [f"fixture {name} -> {ast.unparse(function.returns)}"]  # type: ignore[attr-defined]
    if inspect.isfunction(it):
        home = it.__globals__["__name__"]
        lines = ways_to_call(name, it, tree(home).body, bound=False)
        named.update((line, home) for line in lines)
        return lines
    text = shown(it)
    if len(text) > 300:  # of a long table, the keys
        text = f"{{{', '.join(f'{shown(key)}: ...' for key in it)}}}"
    return [f"{name}: {type(it).__name__} = {text}"]


@functools.cache
def exported_classes() -> frozenset[type]:
    things = (thing(module, name) for module in public_modules() for name in exported(module))
    return frozenset(it for it in things if isinstance(it, type))


def about_class(name: str, cls: type, named: set[Mention]) -> list[str]:
    lines = [f"{'record' if issubclass(cls, Record) else 'class'} {name}{_bases(cls)}"]
    base = next((base for base in cls.__mro__[1:] if base in exported_classes()), None)
    said_before = {} if base is None else {member: texts for member, (_, texts) in members(base).items()}
    own = members(cls)
    for member in sorted(own, key=lambda member: (member != "__init__", member)):
        owner, texts = own[member]
        if texts == said_before.get(member) or (member == "__init__" and name in GIVEN):
            continue
        said = [text.replace("%", name, 1) for text in texts]
        named.update((line, source_of(owner)[0]) for line in said)
        lines += [f"  {line}" for line in said]
    return lines


def _bases(cls: type) -> str:
    """Return the public bases: exported ones, and those of Python."""
    found = [base for base in cls.__mro__[1:] if base in exported_classes() or not is_ours(base)]
    own = [base for base in found if sum(issubclass(other, base) for other in found) == 1]
    names = [base.__name__ for base in own if base.__name__ not in ("object", "Generic")]
    return f"({', '.join(names)})" if names else ""


@functools.cache
def members(cls: type) -> dict[str, tuple[type, list[str]]]:
    """Return the members of a class: name -> (position, lines; ``%`` is the class)."""
    found: dict[str, tuple[type, list[str]]] = {}
    for owner in reversed([base for base in cls.__mro__ if is_ours(base)]):
        node = source_of(owner)[1]
        for name, annotation in attributes(node).items():
            found[name] = owner, [_attribute(name, annotation, _default(owner, name))]
        for name, value in vars(owner).items():
            if name == "__init__" or name in SPOKEN or not name.startswith("_"):
                texts = [text for text in _member(name, value, node.body) if "-> NoReturn" not in text]
                found.update({name: (owner, texts)} if texts else {})
    if cls is Policy:  # whose attributes are declared in a table
        for name, field in _FIELDS.items():
            found[name] = cls, [_attribute(name, field.stored or field.type, field.default)]
    if getattr(cls, "__init__", None) is Record.__init__:
        found["__init__"] = cls, [f"%{signature(cls, bound=False)}".removesuffix(" -> None")]
    return found


def _default(cls: type, name: str) -> Any:
    """Return the default of an attribute; ``...`` if it has none."""
    value = vars(cls).get(name, ...)
    return ... if inspect.ismemberdescriptor(value) else value


def _attribute(name: str, annotation: str, value: Any) -> str:
    if value is ...:
        return f"%.{name}: {annotation or 'attribute'}"
    return f"%.{name}: {annotation or type(value).__name__} = {shown(value)}"


def _member(name: str, value: Any, body: list[ast.stmt]) -> Iterator[str]:
    if isinstance(value, property):
        yield f"%.{name}: {signature(value.fget, bound=True).partition('-> ')[2]} (property)"
    elif isinstance(value, (classmethod, staticmethod)):
        bound = isinstance(value, classmethod)
        for line in ways_to_call(f"%.{name}", value.__func__, body, bound=bound):
            yield f"{type(value).__name__} {line}"
    elif inspect.isfunction(value) and name == "__init__":
        yield f"%{signature(value, bound=True)}".removesuffix(" -> None")
    elif inspect.isfunction(value):
        yield from ways_to_call(f"%.{name}", value, body, bound=True)
    elif isinstance(value, Enum):
        yield f"%.{name} = {value.value!r}"


# What signatures name


def lines_met(named: set[Mention]) -> list[str]:
    """Return the lines about names that are used and not exported, and those that they use in turn."""
    found: set[tuple[str, ...]] = set()
    todo, seen = list(named), set()
    while todo:
        text, module = todo.pop()
        for home in {_home(word, module) for word in re.findall(r"(?<![\w.'])[A-Za-z]\w*", text)} - seen:
            seen.add(home)
            more: set[Mention] = set()
            found.add(tuple(_about_met(*home, more)) if home else ())
            todo += more
    return [
        line for lines in sorted(found, key=lambda lines: "".join(lines[:1]).split()[1:]) for line in lines
    ]


def _home(word: str, module: str) -> tuple[str, str] | None:
    """Return the module that defines a name; ``None`` if it is not of the package, or exported."""
    node = for_checkers(module).get(word)
    if isinstance(node, ast.ImportFrom):
        home = absolute("." * node.level + (node.module or ""), module)
        return _home(word, home) if home.startswith("redouble") else None
    if node is not None:
        return module, word
    it = getattr(__import__(module, fromlist=["*"]), word, None)
    ours = isinstance(it, type) and is_ours(it) and it not in exported_classes()
    return (source_of(it)[0], word) if ours and not word.startswith("_") else None  # type: ignore[arg-type]


def _about_met(module: str, word: str, more: set[Mention]) -> list[str]:
    node = for_checkers(module).get(word)
    if node is None:
        return about_class(word, thing(module, word), more)
    if isinstance(node, ast.ClassDef):
        lines = [f"{ast.unparse(node.bases[0]).lower()} {word}"]
        lines += sorted(f"  {word}.{field}: {annotation}" for field, annotation in attributes(node).items())
        for method in [inner for inner in node.body if isinstance(inner, ast.FunctionDef)]:
            lines.append(f"  def {word}.{method.name}{signature(as_function(method), bound=True)}")
    else:
        lines = [f"alias {word} = {ast.unparse(node.value)}"]  # type: ignore[attr-defined]
    more.update((line, module) for line in lines)
    return lines


# The file


def homes() -> dict[int, str]:
    """Return the module in which each object is described, by its id."""
    found: dict[int, str] = {}
    # The package itself last: it takes most of what it exports from its modules.
    for module in [*public_modules()[1:], "redouble"]:
        for it in [thing(module, name) for name in exported(module)]:
            if getattr(it, "__module__", None) == module:
                found[id(it)] = module
            found.setdefault(id(it), module)
    return found


def public_api() -> str:
    """Return the text of the file."""
    where, named, parts = homes(), set(), [HEAD]
    for module in public_modules():
        lines = [f"## {module}"]
        for name in exported(module):
            home = where[id(thing(module, name))]
            lines += lines_about(name, module, named) if home == module else [f"{name}: from {home}"]
        parts.append("\n".join([*lines, ""]))
    parts.append("\n".join(["## named in signatures, not exported", *lines_met(named), ""]))
    return "\n".join(parts)


def main() -> None:
    """Write the file; exit without writing if the client library of a module is not installed."""
    unseen = [module for module in all_modules() if not is_importable(module)]
    if unseen:
        sys.exit(
            f"public_api.txt is not written: it would lose {', '.join(unseen)}, whose client libraries are not "
            "installed here. Install them: python -m pip install -e '.[clients]'"
        )
    FILE.write_text(public_api(), "utf-8")


if __name__ == "__main__":
    main()
