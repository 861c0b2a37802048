"""Imports have no side effects, and the archives of a release hold the right files.

``.ci/package`` builds the archives, and runs these tests with their folder as ``REDOUBLE_DIST`` and the wheel installed.
Without it only the tests of imports run.
"""

from __future__ import annotations

import base64
import csv
import email
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import textwrap
import tomllib
import zipfile
from pathlib import Path

import pytest

import redouble

ROOT = Path(__file__).resolve().parents[2]
DIST = os.environ.get("REDOUBLE_DIST")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


# What an import does

WATCHED = """
    import _thread, importlib, os, sys, types

    names = {names!r}
    # Events of finding, reading and running a module. Any other event is a side effect, or a question to the system.
    IMPORTING = {{
        "import", "open", "compile", "exec", "marshal.loads", "code.__new__", "function.__new__", "os.listdir", "os.scandir",
        "builtins.id", "object.__getattr__", "object.__setattr__", "object.__delattr__", "sys._getframe",
        "sys._getframemodulename",
    }}
    CHANGING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    noticed = []

    def hook(event, args):
        if event not in IMPORTING or (event == "open" and args[2] & CHANGING):
            noticed.append(event)

    if sys.version_info < (3, 12):  # which has no audit event for threads
        start = _thread.start_new_thread
        _thread.start_new_thread = lambda *args: sys.audit("_thread.start_new_thread") or start(*args)
    # For the plugin: the import of pytest is not watched.
    sys.modules["pytest"] = types.SimpleNamespace(fixture=lambda function: function)

    sys.addaudithook(hook)
    {act}
    print(*noticed)
"""


def noticed(act: str) -> list[str]:
    """Return the audit events of a new process, but for those of importing."""
    package = Path(redouble.__file__).parent
    # By file name: walking the packages would import them before they are watched.
    paths = [path.relative_to(package.parent).with_suffix("") for path in sorted(package.rglob("*.py"))]
    names = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    # Modules of clients import a client library, which may be missing, and may do anything.
    clients = re.compile(r"redouble\.clients\.(?:_httpx$|(?!_|asgi$|wsgi$))")
    names = [name for name in names if not clients.match(name)]
    code = textwrap.dedent(WATCHED).format(names=names, act=act)
    environment = {**os.environ, "PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.slow
def test_no_module_opens_a_socket_starts_anything_or_writes_a_file_when_it_is_imported():
    assert noticed("[importlib.import_module(name) for name in names]") == []


@pytest.mark.slow
def test_what_an_import_must_not_do_would_be_noticed():
    act = """
import socket, sqlite3, subprocess, threading
socket.socket().close()
open(os.devnull, "w").close()
threading.Thread(target=int).start()
subprocess.run([sys.executable, "-S", "-c", ""])
sqlite3.connect(":memory:").close()
"""
    found = noticed(act.strip())
    assert "open" in found
    assert {"socket.__new__", "subprocess.Popen", "sqlite3.connect"} <= set(found)
    assert any(event.startswith("_thread.start") for event in found)


# The archives of a release

of_a_release = [
    pytest.mark.slow,
    pytest.mark.skipif(DIST is None, reason="no archives to look at: .ci/package builds them"),
]


def only(pattern: str) -> Path:
    [found] = Path(DIST or "").glob(pattern)
    return found


@pytest.fixture(scope="module")
def wheel():
    with zipfile.ZipFile(only("*.whl")) as archive:
        yield archive


@pytest.fixture(scope="module")
def sdist():
    with tarfile.open(only("*.tar.gz")) as archive:
        yield archive


@pytest.fixture(scope="module")
def metadata(wheel):
    return email.message_from_string(wheel.read(info("METADATA")).decode())


def info(name: str) -> str:
    return f"redouble-{redouble.__version__}.dist-info/{name}"


def body(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    read = archive.extractfile(member)
    assert read is not None
    return read.read()


class TestARelease:
    pytestmark = of_a_release

    def test_has_the_version_of_the_package_and_of_the_changelog(self, metadata):
        changelog = (ROOT / "docs" / "changelog.md").read_text("utf-8")
        newest = re.findall(r"^## \[?([\d.]+\w*)", changelog, flags=re.MULTILINE)[0]
        assert redouble.__version__ == metadata["Version"] == newest
        assert only("*.whl").name == f"redouble-{newest}-py3-none-any.whl"
        assert only("*.tar.gz").name == f"redouble-{newest}.tar.gz"

    def test_says_all_that_an_index_shows(self, metadata):
        assert metadata["Name"] == "redouble"
        assert metadata["Summary"] == PROJECT["description"]
        assert metadata["License-Expression"] == "MIT"
        assert metadata.get_all("License-File") == ["LICENSE"]
        assert metadata["Requires-Python"] == ">=3.11"
        assert metadata["Author"]
        assert "retry" in metadata["Keywords"].split(",")
        assert metadata["Description-Content-Type"] == "text/markdown"
        assert metadata.get_all("Project-URL") == [f"{name}, {url}" for name, url in PROJECT["urls"].items()]
        assert len({url.partition("/blob/")[0] for url in PROJECT["urls"].values()}) == 1

    def test_has_the_readme_with_links_that_work_on_an_index(self, metadata):
        readme, shown = (ROOT / "README.md").read_text("utf-8"), metadata.get_payload()
        address = PROJECT["urls"]["Source"]
        links = re.findall(r"(!?)\[[^\]]*\]\(([^)\s]+)\)", shown)
        assert len(links) == len(re.findall(r"\]\([^)\s]+\)", readme)) > 20
        kinds = {True: f"{address}/raw/main/docs/", False: f"{address}/blob/main/"}
        assert [url for image, url in links if not url.startswith(kinds[bool(image)])] == []
        back = shown.replace(f"{address}/raw/main/", "").replace(f"{address}/blob/main/", "")
        assert back.strip() == readme.strip()

    def test_names_the_python_that_it_is_tested_on(self, metadata):
        prefix = "Programming Language :: Python :: "
        named = {
            line.removeprefix(prefix) for line in metadata.get_all("Classifier") if line.startswith(prefix)
        }
        assert f"{sys.version_info.major}.{sys.version_info.minor}" in named
        assert "Typing :: Typed" in metadata.get_all("Classifier")

    def test_needs_nothing_unless_an_extra_is_asked_for(self, metadata):
        needed = metadata.get_all("Requires-Dist")
        assert needed
        assert [line for line in needed if not re.search(r"; extra == '\w+'$", line)] == []
        assert set(metadata.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])

    def test_has_the_command(self, wheel):
        assert wheel.read(info("entry_points.txt")).decode().split("\n")[:2] == [
            "[console_scripts]",
            "redouble = redouble._cli:main",
        ]

    def test_is_for_every_platform(self, wheel):
        about = email.message_from_bytes(wheel.read(info("WHEEL")))
        assert about.get_all("Tag") == ["py3-none-any"]
        assert about["Root-Is-Purelib"] == "true"

    def test_lists_every_file_with_its_true_hash_and_size(self, wheel):
        rows = list(csv.reader(wheel.read(info("RECORD")).decode().splitlines()))
        assert sorted(name for name, _, _ in rows) == sorted(wheel.namelist())
        for name, digest, size in rows:
            content = wheel.read(name)
            wanted = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            expected = ("", "") if name == info("RECORD") else (f"sha256={wanted}", str(len(content)))
            assert (digest, size) == expected, name

    def test_holds_the_package_and_nothing_else(self, wheel, sdist):
        start = f"redouble-{redouble.__version__}/src/"
        sources = {m.name.removeprefix(start): body(sdist, m) for m in sdist if m.name.startswith(start)}
        about = {
            info(name) for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
        }
        assert set(wheel.namelist()) == set(sources) | about
        assert all(wheel.read(name) == content for name, content in sources.items())
        assert {Path(name).suffix for name in sources} == {".py", ".typed"}
        assert "redouble/py.typed" in sources
        assert wheel.read(info("licenses/LICENSE")) == (ROOT / "LICENSE").read_bytes()

    def test_has_plain_files_with_plain_names_that_anybody_may_read(self, wheel, sdist):
        for name, mode in [(entry.filename, entry.external_attr >> 16) for entry in wheel.infolist()]:
            assert re.fullmatch(r"[\w./-]+", name)
            assert ".." not in name
            assert mode & 0o777 in (0o644, 0o664), name
        for member in sdist:
            assert member.isfile(), member.name
            assert re.fullmatch(rf"redouble-{redouble.__version__}/[\w./-]+", member.name)
            assert ".." not in member.name
            assert member.mode in (0o644, 0o755), member.name
            assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "", "")

    def test_has_in_its_source_all_that_the_tests_need(self, sdist):
        top = {member.name.split("/")[1] for member in sdist}
        needed = {"LICENSE", "PKG-INFO", "README.md", "docs", "examples", "pyproject.toml", "src", "tests"}
        assert needed <= top
        assert top - needed <= {".gitignore"}

    def test_says_the_same_in_both_archives(self, metadata, sdist):
        [about] = [body(sdist, member) for member in sdist if member.name.endswith("/PKG-INFO")]
        assert email.message_from_string(about.decode()).items() == metadata.items()
