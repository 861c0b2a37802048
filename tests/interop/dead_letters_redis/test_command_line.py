"""``redouble dead-letters --redis URL`` on letters in a real Redis."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from interop.processes import Server
from redouble._cli import main
from redouble.dead_letters import DeadLetters
from redouble.dead_letters._redis import RedisStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def command(
    client: Any, redis_server: Server, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Runs a command on the letters; gives its status and its output."""

    def run(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        url = f"redis://127.0.0.1:{redis_server.port}/0"
        status = main(["dead-letters", *arguments, "--redis", url, "--redis-key", "shop"])
        return status, capsys.readouterr().out

    return run


@pytest.fixture
def letters(client: Any) -> DeadLetters:
    return DeadLetters(RedisStore(client, "shop"))


def ids(listed: tuple[int, str]) -> list[str]:
    return [json.loads(line)["id"] for line in listed[1].splitlines()]


def test_letters_in_redis_are_listed_shown_replayed_and_deleted(
    letters: DeadLetters,
    command: Callable[..., tuple[int, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = letters.put(payload="slow", function="shop.ship", error=TimeoutError("no answer"))
    wrong = letters.put(payload="wrong", function="shop.pay", error=ValueError("no such account"))
    third = letters.put(queue="bulk", function="shop.ship")
    assert ids(command("list", "--json")) == [slow.id, wrong.id, third.id]
    assert ids(command("list", "--json", "--function", "ship", "--error", "timeout")) == [slow.id]
    assert "bulk: 1 waiting or leased, 0 parked" in command("list")[1]
    assert json.loads(command("show", wrong.id, "--json")[1])["payload"] == "wrong"

    (tmp_path / "handlers_of_redis.py").write_text(
        "def handle(letter):\n    assert letter.payload == 'slow'\n    print('again', letter.payload)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert command("replay", "handlers_of_redis:handle", "--error", "timeout") == (
        0,
        "again slow\n1 replayed, 0 failed, 0 parked, 0 skipped\n",
    )
    assert command("replay", "handlers_of_redis:handle", "--park-after", "1")[0] == 1
    sys.modules.pop("handlers_of_redis")
    assert letters.list()[0].state == "parked"
    assert command("unpark", wrong.id[:24]) == (0, f"unparked {wrong.id}\n")

    status, shown = command("purge", "--older-than", "0s", "--error", "account", "--dry-run")
    assert (status, shown.splitlines()[-1]) == (0, "1 letter of the queue default would be deleted")
    assert command("purge", "--older-than", "0s", "--error", "disk", "--yes")[1].startswith(
        "purged 0 letters"
    )
    assert command("purge", "--older-than", "0s", "--error", "account", "--yes")[1].startswith(
        "purged 1 letter "
    )
    assert command("discard", third.id) == (0, f"discarded {third.id}\n")
    assert letters.depths() == {}
    assert command("list") == (0, "There are no letters in Redis under 'shop'.\n")


def test_a_server_that_wants_a_password_is_told_it_from_the_environment(
    client: Any,
    letters: DeadLetters,
    command: Callable[..., tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    letter = letters.put()
    client.config_set("requirepass", "correct horse")
    try:
        monkeypatch.delenv("REDISCLI_AUTH", raising=False)
        assert command("list", "--json") == (3, "")
        monkeypatch.setenv("REDISCLI_AUTH", "correct horse")
        assert ids(command("list", "--json")) == [letter.id]
    finally:
        client.config_set("requirepass", "")
