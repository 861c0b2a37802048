"""Load a mutant into a process, without writing a file.

`hook` is for modules that are not imported yet. `exchange` is for a module that is: its functions get other code, wherever
they are referred to. Code that ran at import is not run again.
"""

from __future__ import annotations

import gc
import importlib.abc
import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from pathlib import Path


def file_of(package: Path, module: str) -> Path:
    """Return the file of a module by its name below the package: ``budget``, ``_engine.decide``, ``classify``."""
    path = package.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def module_of(package: Path, path: Path) -> str:
    """Return the name of the module in a file; the inverse of `file_of`."""
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and parts[1:] else parts)


class _Finder(importlib.abc.MetaPathFinder, SourceFileLoader):
    """Find and load one module with another source than the one in its file."""

    def __init__(self, name: str, path: str, source: bytes) -> None:
        SourceFileLoader.__init__(self, name, path)
        self._source = source

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=self)

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec", dont_inherit=True)


def hook(name: str, path: Path, source: bytes) -> None:
    """Make importing this module run this source."""
    sys.meta_path.insert(0, _Finder(name, str(path), source))


def live_functions(package: Path) -> dict[CodeType, list[FunctionType]]:
    """Return the functions of the package that exist in this process, by their code."""
    found: dict[CodeType, list[FunctionType]] = {}
    gc.unfreeze()  # what is frozen is not listed
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename.startswith(str(package)):
            found.setdefault(each.__code__, []).append(each)
    return found


def compiled(source: bytes, path: Path) -> CodeType:
    """Compile a module with the file name of the original, which some tests check."""
    return compile(source, str(path), "exec", dont_inherit=True)


def exchange(functions: dict[CodeType, list[FunctionType]], old: CodeType, new: CodeType) -> bool:
    """Give live functions the code of another version of their module; return whether that was possible."""
    pairs: list[tuple[CodeType, CodeType]] = []
    if not _paired(old, new, pairs):
        return False
    exchanged = 0
    for was, becomes in pairs:
        for function in functions.get(was, ()):
            if function.__code__.co_freevars != becomes.co_freevars:
                return False
            function.__code__ = becomes
            exchanged += 1
    return exchanged > 0


def _paired(old: CodeType, new: CodeType, pairs: list[tuple[CodeType, CodeType]]) -> bool:
    """List the code objects that differ, with inner ones; return whether both have the same inner ones."""
    inner_old, inner_new = (
        [constant for constant in code.co_consts if isinstance(constant, CodeType)] for code in (old, new)
    )
    if [code.co_name for code in inner_old] != [code.co_name for code in inner_new]:
        return False
    if old != new:
        pairs.append((old, new))
    return all(_paired(*both, pairs) for both in zip(inner_old, inner_new, strict=True))
