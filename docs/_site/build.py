"""Builds the documentation as a site: ``python docs/_site/build.py [folder]``, by default in ``build/site``.

The pages in ``docs`` are written to be read as they are, on a code host or in an editor. What a site needs
besides is made here, in a copy, and never kept in the tree:

- the navigation, from the sections of ``docs/index.md``;
- a page for each public module, from its docstrings, and one for each example;
- links to what is outside of ``docs``: to the page of an example, or none where the site has nothing to show.

A warning is an error, and so is anything that a page would load from another host.
"""

from __future__ import annotations

import ast
import json
import os
import pkgutil
import re
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent
ROOT = DOCS.parent
TESTING_PLUGIN = "redouble.testing.plugin"
MODULES = sorted(
    f"redouble.{module.name}"
    for module in pkgutil.iter_modules([str(ROOT / "src" / "redouble")])
    if not module.name.startswith("_")
)

LINK = re.compile(
    r"(?P<image>!?)\[(?P<text>(?:[^\[\]\n]|\n(?!\n))*)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)"
)
CODE_OR_LINK = re.compile(rf"^(?P<fence>`{{3,}}).*?^(?P=fence)$|{LINK.pattern}", re.DOTALL | re.MULTILINE)
TRANSITION = re.compile(r"^ *(\w+) --> (\w+): (.+)$", re.MULTILINE)
DIAGRAM = re.compile(r"^```mermaid\n(stateDiagram.*?)^```\n", re.DOTALL | re.MULTILINE)
# Terms that people search for besides those of the map, by the page that answers them first.
SEARCH_TERMS = {
    "reference/what-is-retried.md": ["404", "429", "500", "503", "status", "SQLSTATE", "DNS"],
    "how-to/databases.md": ["psycopg", "deadlock"],
    "reference/breaker.md": ["circuit breaker", "CircuitOpen"],
    "reference/budget.md": ["retry budget"],
    "reference/policy.md": ["timeout", "attempts", "max attempts", "max retries"],
    "reference/backoff.md": ["exponential backoff"],
    "reference/command-line.md": ["CLI"],
    "reference/throttle.md": ["rate limit"],
    "reference/clients/botocore.md": ["boto3"],
    "reference/api-stability.md": ["version", "deprecation"],
    "explanation/amplification.md": ["retry storm"],
    "explanation/why-jitter.md": ["thundering herd"],
    "explanation/hints-and-deadlines.md": ["deadline", "Retry-After"],
    "explanation/idempotency.md": ["POST", "Idempotency-Key", "idempotency key"],
    "how-to/test-code-that-retries.md": ["mock sleep", "test"],
    "how-to/async.md": ["async", "cancel"],
    "reference/retry.md": ["KeyboardInterrupt", "Ctrl-C"],
    "installation.md": ["install"],
    "faq.md": ["not retried", "turn off", "disable", "retry forever"],
}
FROM_ELSEWHERE = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"(?:https?:)?//[^\"]*\"")


def main(arguments: list[str]) -> int:
    out = Path(arguments[0] if arguments else ROOT / "build" / "site").resolve()
    with tempfile.TemporaryDirectory() as work:
        pages = Path(work, "pages")
        stage(pages)
        failed = run_sphinx(pages, out, Path(work, "doctrees"))
    foreign = loaded_from_elsewhere(out)
    for line in foreign:
        print(line, file=sys.stderr)  # noqa: T201
    return int(failed or bool(foreign))


def run_sphinx(pages: Path, out: Path, doctrees: Path) -> int:
    from sphinx.cmd.build import build_main

    # Fresh each time: what was built before may be of a page that is gone.
    shutil.rmtree(out, ignore_errors=True)
    strict = ["--fail-on-warning", "--quiet", "--builder", "html"]
    return build_main(
        [*strict, "--conf-dir", str(HERE), "--doctree-dir", str(doctrees), str(pages), str(out)]
    )


def stage(pages: Path) -> None:
    """Puts all that the site is made of into one folder."""
    shutil.copytree(DOCS, pages, ignore=shutil.ignore_patterns(HERE.name))
    for page in pages.rglob("*.md"):
        original = DOCS / page.relative_to(pages)
        page.write_text(for_the_site(original), "utf-8")
    write_modules(pages / "api")
    write_examples(pages / "examples")
    with (pages / "index.md").open("a", encoding="utf-8") as index:
        index.write(navigation((DOCS / "index.md").read_text("utf-8")))


def for_the_site(page: Path) -> str:
    """The text of a page with links that the site can follow, and tables for diagrams."""
    text = page.read_text("utf-8")
    head = front_matter(text)
    text = CODE_OR_LINK.sub(
        lambda found: found[0] if found["fence"] else relinked(one_line(found), page), text
    )
    text = DIAGRAM.sub(lambda diagram: as_table(diagram[1]), text) + see_also(page)
    place = page.relative_to(DOCS).as_posix()
    terms = [*terms_of_the_map().get(place, []), *SEARCH_TERMS.get(place, [])]
    return head + with_search_terms(text, terms)


def one_line(link: re.Match[str]) -> re.Match[str]:
    """The link with its text in one line: Sphinx joins the lines of an image's text without blanks."""
    found = LINK.fullmatch(" ".join(link[0].split()))
    return link if found is None else found


def front_matter(text: str) -> str:
    """The description of a page for search engines: its first paragraph, without markup."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    paragraphs = [part for part in prose.split("\n\n") if part.strip() and part.strip()[0] not in "#|-!<"]
    first = described(LINK.sub(r"\g<text>", paragraphs[0])) if paragraphs else ""
    return f"---\nmyst:\n  html_meta:\n    description: {json.dumps(first)}\n---\n\n" if first else ""


def described(paragraph: str) -> str:
    """A paragraph as the description of a page: without markup, and cut where search engines cut it."""
    return textwrap.shorten(re.sub(r"[`*\\]", "", paragraph), 155, placeholder=" ...")


@cache
def terms_of_the_map() -> dict[str, list[str]]:
    """What ``docs/index.md`` calls each page, and what is in the cell before it."""
    terms: dict[str, list[str]] = {}
    for line in (DOCS / "index.md").read_text("utf-8").splitlines():
        links = [link for link in LINK.finditer(line) if not link["target"].startswith("../")]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        for link in links:
            row = cells[0] if len(cells) == 2 and len(links) == 1 else ""
            words = [word.strip() for word in f"{row},{link['text']}".split(",")]
            found = terms.setdefault(link["target"], [])
            found.extend(word for word in words if word and word not in found)
    return terms


def with_search_terms(text: str, terms: list[str]) -> str:
    """The page with main entries of the index below its title; search ranks pages with an entry first."""
    title, _, rest = text.partition("\n")
    entries = "".join([f"```{{index}} ! {term}\n```\n\n" for term in terms])
    return f"{title}\n\n{entries}{rest}"


def relinked(link: re.Match[str], page: Path) -> str:
    """The link itself if it stays in ``docs`` or leads to another host."""
    target = link["target"]
    found = (page.parent / target).resolve()
    if "://" in target or found.is_relative_to(DOCS) or not found.exists():
        return link[0]
    place = on_the_site(found.relative_to(ROOT).as_posix())
    if place is None:
        return link["text"]
    return (
        f"{link['image']}[{link['text']}]({os.path.relpath(DOCS / place, page.parent)}{link['anchor'] or ''})"
    )


def on_the_site(path: str) -> str | None:
    """Where the site shows what is at this path of the project, outside of ``docs``; ``None``: nowhere."""
    if path == "README.md":
        return "index.md"
    if path == "examples":
        return "examples/index.md"
    if path.startswith("examples/") and path.endswith(".py"):
        return path.removesuffix(".py") + ".md"
    return None


def as_table(diagram: str) -> str:
    """The ways of a state diagram, one in each row: drawing it would take a script."""
    rows = [f"| {start} | {end} | {when} |" for start, end, when in TRANSITION.findall(diagram)]
    return "\n".join(["| from | to | when |", "|---|---|---|", *rows, ""]).replace("half_open", "half-open")


def see_also(page: Path) -> str:
    """Below a reference page: the docstrings of the module that it is about."""
    module = f"redouble.{page.stem}"
    if page.parent.name != "reference" or module not in MODULES:
        return ""
    return f"\n## Docstrings\n\n[{module}](../api/{module}.rst), made from the source.\n"


def write_modules(folder: Path) -> None:
    sys.path.insert(0, str(ROOT / "src"))
    folder.mkdir()
    (folder / "redouble.rst").write_text(titled("redouble", front_door()), "utf-8")
    for module in MODULES:
        (folder / f"{module}.rst").write_text(titled(module, whole_module(module)), "utf-8")
    (folder / f"{TESTING_PLUGIN}.rst").write_text(titled(TESTING_PLUGIN, plugin()), "utf-8")


def whole_module(name: str) -> str:
    """The docstring of a module, and every public name, constants included."""
    module = import_module(name)
    names = getattr(module, "__all__", None) or [
        found
        for found, thing in vars(module).items()
        if not found.startswith("_") and getattr(thing, "__module__", None) == name
    ]
    # Of exceptions callers must know what else they are; of other classes the base is a private one.
    bases = "   :show-inheritance:\n" if name == "redouble.errors" else ""
    parts = [f".. automodule:: {name}\n"]
    for found in names:
        thing = getattr(module, found)
        if isinstance(thing, type):
            # The members of an enumeration have no docstrings of their own.
            every = "   :undoc-members:\n" if issubclass(thing, Enum) else ""
            parts.append(f".. autoclass:: {name}.{found}\n   :members:\n{every}{bases}")
        elif callable(thing):
            parts.append(f".. autofunction:: {name}.{found}\n")
        else:
            parts.append(f".. py:data:: {found}\n   :module: {name}\n\n   {constant(thing)}\n")
    return "\n".join(parts)


def constant(thing: object) -> str:
    """The type of a constant; its value, or its members where there are some."""
    kind = type(thing).__name__
    if isinstance(thing, Mapping | frozenset | set | tuple):
        return f"A {kind} with: " + ", ".join([f"``{one!r}``" for one in sorted(thing, key=str)]) + "."
    return f"A {kind}: ``{thing!r}``."


def plugin() -> str:
    """The fixtures for pytest, read from the source: the site is built without pytest."""
    tree = ast.parse((ROOT / "src" / "redouble" / "testing" / "plugin.py").read_text("utf-8"))
    text = (ast.get_docstring(tree) or "").replace("tests:\n\n", "tests::\n\n")
    parts = [f".. py:module:: {TESTING_PLUGIN}\n\n{text}\n"]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            said = textwrap.indent(ast.get_docstring(node) or "", "   ")
            parts.append(f".. py:function:: {node.name}\n\n{said}\n")
    return "\n".join(parts)


def titled(module: str, body: str) -> str:
    """The page of a module, with what its docstring says first as the description."""
    path = ROOT / "src" / module.replace(".", "/")
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    said = (ast.get_docstring(ast.parse(source.read_text("utf-8"))) or "").split("\n\n")
    prose = [part for part in said[:2] if not part.startswith(">>>") and not part.endswith(":")]
    about = described(f"{module}: " + " ".join(prose))
    return f".. meta::\n   :description: {about}\n\n{module}\n{'=' * len(module)}\n\n{body}"


def front_door() -> str:
    """The package itself: what it defines in full, and where to find what it takes from its modules."""
    homes = {name: module for module in MODULES for name in getattr(import_module(module), "__all__", ())}
    package = import_module("redouble")
    own = [name for name in package.__all__ if name not in homes]
    kinds = ["class" if isinstance(getattr(package, name), type) else "function" for name in own]
    shown = [f".. auto{kind}:: redouble.{name}\n" for kind, name in zip(kinds, own, strict=True)]
    others = [f"- :py:obj:`{name} <{homes[name]}.{name}>`" for name in package.__all__ if name in homes]
    return "\n".join(
        [".. automodule:: redouble\n", *shown, "Also importable from ``redouble``:\n", *others, ""]
    )


def write_examples(folder: Path) -> None:
    folder.mkdir()
    names = []
    for example in sorted((ROOT / "examples").glob("*.py")):
        names.append(example.stem)
        code = example.read_text("utf-8")
        head = front_matter((ast.get_docstring(ast.parse(code)) or "").partition("\n\n")[0])
        page = f"{head}# {example.name}\n\n````python\n{code}````\n"
        (folder / f"{example.stem}.md").write_text(page, "utf-8")
    text = "# Examples\n\nScripts that run by themselves, on loopback, in under two seconds.\n\n"
    (folder / "index.md").write_text(front_matter(text) + text + toctree(None, names, hidden=False), "utf-8")


def navigation(index: str) -> str:
    """A hidden table of contents for each section of the map, and one for the modules."""
    parts, placed = [], set[str]()
    for section in index.split("\n## ")[1:]:
        entries = {place: name for link in LINK.finditer(section) for place, name in entry_for(link)}
        new = [f"{name} <{place}>" for place, name in entries.items() if place not in placed]
        placed.update(entries)
        parts.append(toctree(section.partition("\n")[0].partition(":")[0], new))
    parts.append(toctree("API", [f"api/{module}" for module in ["redouble", *MODULES, TESTING_PLUGIN]]))
    return "\n" + "\n".join(parts)


def entry_for(link: re.Match[str]) -> Iterator[tuple[str, str]]:
    """Where a link of the map leads on the site, and the map's short name for it; nothing if elsewhere."""
    target, name = link["target"], link["text"][:1].upper() + link["text"][1:]
    if target.startswith("../examples"):
        yield "examples/index", "Examples"
    elif target.endswith(".md") and "://" not in target and not target.startswith("../"):
        yield target.removesuffix(".md"), name


def toctree(caption: str | None, places: list[str], *, hidden: bool = True) -> str:
    options = [":hidden:"] * hidden + [f":caption: {caption}"] * (caption is not None)
    return "\n".join(["```{toctree}", *options, "", *places, "```", ""])


def loaded_from_elsewhere(out: Path) -> list[str]:
    """What the pages would load from other hosts. Links that a reader may follow are none of it."""
    return [
        f"{page.relative_to(out)}: {found}"
        for page in sorted(out.rglob("*.html"))
        for found in FROM_ELSEWHERE.findall(page.read_text("utf-8"))
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
