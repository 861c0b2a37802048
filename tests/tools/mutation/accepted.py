"""Read accepted.txt: mutants that behave as the original, each with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Unreadable(ValueError):
    """The file has a wrong format."""


def read(path: Path) -> dict[str, str]:
    """Return reasons by name. Names begin a line; the indented lines below them are the reason for all of them.

    Lines that begin with ``#`` are comments.
    """
    found: dict[str, str] = {}
    names: list[str] = []
    reason: list[str] = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line[0].isspace():
            if not names:
                raise Unreadable(f"{path.name}:{number}: a reason without a mutant")
            reason.append(line.strip())
            continue
        if reason:
            _close(found, names, reason, path, number)
            names, reason = [], []
        names.append(line.strip())
    if names:
        _close(found, names, reason, path, number + 1)
    return found


def _close(found: dict[str, str], names: list[str], reason: list[str], path: Path, number: int) -> None:
    if not reason:
        raise Unreadable(f"{path.name}:{number}: {names[-1]} has no reason; indent one below it")
    for name in names:
        if name in found:
            raise Unreadable(f"{path.name}:{number}: {name} is there twice")
        found[name] = " ".join(reason)
