"""Find the lines that changed since a git revision."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

HUNK = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", re.MULTILINE)


class Unknown(Exception):
    """There is no git, no repository, or no such revision."""


def changed_lines(root: Path, path: Path, revision: str) -> set[int]:
    """Return the changed lines of a file, and both neighbours of deleted lines."""
    base = _base(root, revision)
    relative = path.relative_to(root).as_posix()
    if _git(root, "ls-files", "--others", "--exclude-standard", "--", relative):
        return set(range(1, path.read_bytes().count(b"\n") + 2))
    text = _git(root, "diff", "--unified=0", "--no-color", "--no-ext-diff", base, "--", relative)
    return lines_of(text)


def lines_of(diff: str) -> set[int]:
    """Return the changed lines of a diff without context."""
    lines: set[int] = set()
    for first, count in HUNK.findall(diff):
        begin, length = int(first), int(count or 1)
        lines.update(range(begin, begin + (length or 2)))
    return lines


def _base(root: Path, revision: str) -> str:
    """Return the merge base with the revision; in a shallow clone, the revision itself."""
    _git(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    try:
        return _git(root, "merge-base", revision, "HEAD").strip()
    except Unknown:
        return revision


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unknown(f"git cannot be run: {error}") from error
    if done.returncode:
        raise Unknown(f"git {arguments[0]} says: {done.stderr.strip() or done.returncode}")
    return done.stdout
