"""``redouble dead-letters --redis``: letters in Redis instead of a file, with a client that needs no server."""

from __future__ import annotations

import sys
import types

import pytest

from redouble._cli import main
from support.fake_redis import FakeRedis
from support.letters_command import PREFIX

URL = "redis://:hunter2@127.0.0.1:6379/0"
COMMANDS = [
    ["list"],
    ["show", "1"],
    ["replay", "os:getpid"],
    ["unpark", "1"],
    ["discard", "1"],
    ["purge", "--yes"],
]

every_command = pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: arguments[0])


@pytest.fixture
def redis(monkeypatch):
    """Stands in for the package redis; ``answers`` are those of the client, ``asked`` is what it was asked for."""
    module = types.ModuleType("redis")
    module.made = []
    module.client = FakeRedis([], repeat=True)

    class Redis:
        @staticmethod
        def from_url(url, **options):
            module.made.append((url, options))
            return module.client

    module.Redis = Redis
    monkeypatch.setitem(sys.modules, "redis", module)
    monkeypatch.delenv("REDISCLI_AUTH", raising=False)
    return module


@pytest.fixture
def command(capsys):
    def run(*arguments):
        status = main(["dead-letters", *arguments])
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return run


def test_letters_are_read_from_redis_under_a_key(redis, command):
    assert command("list", "--redis", URL) == (0, "There are no letters in Redis under 'letters'.\n", "")
    assert {request[3:6] for request in redis.client.asked} == {
        ("{letters}:letters", "{letters}:index", "{letters}:tallies")
    }
    assert redis.made == [(URL, {"password": None, "socket_connect_timeout": 10, "socket_timeout": 30})]
    command("list", f"--redis={URL}", "--redis-key", "shop")
    assert redis.client.asked[-1][3] == "{shop}:letters"


def test_the_password_may_be_in_the_environment_as_for_redis_cli(redis, command, monkeypatch):
    monkeypatch.setenv("REDISCLI_AUTH", "hunter2")
    command("list", "--redis", "redis://127.0.0.1")
    assert redis.made[0][1]["password"] == "hunter2"


@every_command
def test_every_command_takes_redis_instead_of_a_path_and_one_that_is_down_is_status_3(
    redis, command, arguments
):
    redis.client = FakeRedis(ConnectionError("Connection refused"), repeat=True)
    status, out, err = command(*arguments, "--redis", URL)
    assert (status, out) == (3, "")
    assert err == (
        f"{PREFIX}dead letters in Redis under 'letters' cannot be used (ConnectionError: Connection refused): "
        "check that the server runs and can be reached\n"
    )


def test_the_advice_after_an_error_that_speaks_of_passwords_is_printed(redis, command):
    redis.client = FakeRedis(ConnectionError("NOAUTH HELLO AUTH <user> <pass> option"), repeat=True)
    assert command("list", "--redis", URL)[2].endswith("check that the server runs and can be reached\n")


def test_options_may_stand_before_and_between_the_arguments(redis, command):
    for arguments in (["--redis", URL, "7ZZZ", "--json"], ["7ZZZ", "--json", "--redis", URL]):
        redis.client = FakeRedis(None, [])
        assert command("show", *arguments) == (1, "", f"{PREFIX}there is no letter with the id 7ZZZ\n")


@every_command
def test_without_the_package_redis_the_error_says_how_to_install_it(command, monkeypatch, arguments):
    monkeypatch.setitem(sys.modules, "redis", None)
    text = "--redis needs the package redis: install it with 'python -m pip install redis'"
    assert command(*arguments, "--redis", URL) == (3, "", f"{PREFIX}{text}\n")


def test_a_wrong_url_is_status_2_and_is_not_printed(redis, command, monkeypatch):
    def refuse(url, **options):
        raise ValueError(f"Port could not be cast: {url}")

    monkeypatch.setattr(redis.Redis, "from_url", refuse)
    status, out, err = command("list", "--redis", "http://ada:hunter2")
    assert (status, out) == (2, "")
    assert (
        err
        == f"{PREFIX}--redis must be a URL such as redis://localhost:6379/0, rediss://host or unix:///path\n"
    )


def test_a_key_that_cannot_be_used_is_status_2(redis, command):
    status, _, err = command("list", "--redis", URL, "--redis-key", "a{b}")
    assert status == 2
    assert "key must be without braces" in err


def test_an_empty_key_is_wrong_usage(redis, command, capsys):
    with pytest.raises(SystemExit) as left:
        command("list", "--redis", URL, "--redis-key", "")
    assert left.value.code == 2
    assert "argument --redis-key: must not be empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--redis", URL, "list"], ["list", URL], ["list", "a.db", "--reddis", URL]]
)
def test_the_password_of_a_misplaced_url_is_not_printed(redis, capsys, arguments):
    try:
        main(["dead-letters", *arguments])
    except SystemExit:
        pass
    said = capsys.readouterr().err
    assert "redis://***@127.0.0.1:6379/0" in said
    assert "hunter2" not in said


def test_a_path_beside_redis_is_refused(redis, command, capsys):
    with pytest.raises(SystemExit) as left:
        command("list", "letters.db", "--redis", URL)
    assert left.value.code == 2
    assert "unrecognized arguments: letters.db" in capsys.readouterr().err


def test_without_redis_the_path_is_required(capsys):
    with pytest.raises(SystemExit):
        main(["dead-letters", "list"])
    assert "the following arguments are required: PATH" in capsys.readouterr().err
