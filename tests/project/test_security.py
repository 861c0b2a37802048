"""The promises of docs/SECURITY.md that no other test is about."""

from __future__ import annotations

import os
import re

import pytest

from redouble import retry
from redouble.dead_letters import DeadLetters
from redouble.testing import no_waits
from support import package_source as source

# Modules that run or load foreign code or reach another machine, and where they are used.
POWERFUL = {
    "ctypes": set(),
    "marshal": set(),
    "multiprocessing": set(),
    "shelve": set(),
    "xml": set(),
    "ssl": set(),
    # To see whether an error survives pickling, on what was pickled a moment ago.
    "pickle": {"redouble.errors"},
    # `redouble run`
    "subprocess": {"redouble._cli.process"},
    # The demo, with a server of its own.
    "http": {"redouble._cli.demo"},
    "urllib": {"redouble._cli.demo", "redouble.clients.requests"},
    # `redouble dead-letters replay --handler`, and the class that `redouble explain` is asked about
    "pkgutil": {"redouble._cli.failures", "redouble._cli.replay"},
}


def imported(module: str) -> set[str]:
    """Return the packages that a module imports, at module level or later."""
    return set(re.findall(r"^\s*(?:from|import) (\w+)", source.text(module), flags=re.MULTILINE))


def test_what_can_run_or_load_code_is_used_only_where_that_is_meant():
    users: dict[str, set[str]] = {name: set() for name in POWERFUL}
    for module in source.all_modules():
        for name in imported(module) & set(POWERFUL):
            users[name].add(module)
    assert users == POWERFUL


def test_no_program_is_started_through_a_shell():
    text = "\n".join(source.text(module) for module in source.all_modules())
    assert "shell=" not in text
    assert "os.system" not in text
    assert "os.popen" not in text


def test_arguments_are_in_no_note_and_no_log_record(caplog):
    @retry(attempts=2)
    def fetch(account, password):
        raise TimeoutError("slow")

    with no_waits(), pytest.raises(TimeoutError) as caught:
        fetch("ada", password="hunter2")
    told = [*caught.value.__notes__, *(str(vars(record)) for record in caplog.records)]
    assert len(told) == 3
    assert [text for text in told if "ada" in text or "hunter2" in text] == []


@pytest.mark.skipif(os.name != "posix", reason="there are no modes here")
def test_the_files_beside_a_file_of_dead_letters_are_their_owners_alone_too(tmp_path):
    with DeadLetters(tmp_path / "letters.db") as letters:
        before = os.umask(0)
        try:
            letters.put(payload=1)
        finally:
            os.umask(before)
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {f"letters.db{ending}": 0o600 for ending in ("", "-shm", "-wal", "-reserve")}


@pytest.mark.skipif(os.name != "posix", reason="there are no modes here")
def test_a_file_that_is_there_already_keeps_its_permissions(tmp_path):
    path = tmp_path / "letters.db"
    path.touch()
    path.chmod(0o640)
    with DeadLetters(path) as letters:
        letters.put(payload=1)
    assert path.stat().st_mode & 0o777 == 0o640
