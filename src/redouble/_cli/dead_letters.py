"""``redouble dead-letters``: list, show, replay and delete dead letters in a file or in Redis.

Each subcommand is a function of the letters and the options; `_each` makes it from a function of one id. It
prints to stdout, raises `CommandError` if it cannot do what was asked, and returns the exit status, ``None``
for 0. `_parser` says which options they have. `letters` selects and prints letters, `replay` replays them.
"""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentTypeError
from functools import partial
from itertools import islice

from .._base.masking import masked_text
from ..dead_letters import DeadLetters, RedisStore, StoreError
from .letters import (
    SOME_ID,
    add_filters,
    field_text,
    find,
    is_given,
    letter_id,
    print_letters,
    selected,
    selector,
    some_text,
)
from .output import (
    FAILURE,
    INCOMPLETE,
    CommandError,
    Parser,
    command_parser,
    print_error,
    print_text,
    seconds,
    to_json,
    whole_number,
)
from .replay import replay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

# Seconds to wait for Redis: for a connection, and for an answer.
_TIMEOUTS = {"socket_connect_timeout": 10, "socket_timeout": 30}

_EXAMPLES = """examples:
  redouble dead-letters list letters.db
  redouble dead-letters list --redis redis://localhost:6379/0 --state parked
  redouble dead-letters show letters.db 01M7EV6VCM
  redouble dead-letters replay letters.db shop.repair:ship_again --error timeout
  redouble dead-letters purge letters.db --older-than 30d --dry-run

"redouble dead-letters COMMAND --help" shows the options of a command.

"""

STATUSES = """exit status:
  0    success
  1    letters failed or were parked in a replay, there is no such letter, or the purge was declined
  2    wrong usage, or the handler cannot be imported
  3    the file or Redis cannot be used
  130  interrupted (Ctrl-C); the letter in hand was released"""


def dead_letters(arguments: Sequence[str]) -> int | None:
    """Run one subcommand and return the exit status, ``None`` for 0.

    The store is open as long as the subcommand runs, and programs may use it meanwhile. Raise `CommandError`
    with status 3 if the file or Redis cannot be used. A missing file is not created.
    """
    # With --redis there is no PATH. An optional argument would take the place of the one that follows it.
    in_file = not any(word.partition("=")[0] == "--redis" for word in arguments)
    options: Any = _parser(in_file=in_file).parse_args(arguments)
    try:
        # Letters of any age are replayed and kept: the ttl of the program is not known here.
        with DeadLetters(_file(options.path) if in_file else _redis(options), ttl=None) as letters:
            status: int | None = options.run(letters, options)
    except StoreError as error:
        raise CommandError(str(error), FAILURE) from error
    return status


def _parser(*, in_file: bool) -> Parser:
    """Return the parser of all subcommands. Each sets ``run`` to the function that carries it out.

    With ``in_file`` they take PATH, the file of the letters. Options that select letters are those of
    `add_filters`; their defaults are those of the subcommand. To add a subcommand, add it here, and to the
    page about the command line, whose options a test compares.
    """
    about = "List, show, replay and delete dead letters in a file or in Redis."
    parser = command_parser("dead-letters", about, _EXAMPLES + STATUSES)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[DeadLetters, Any], int | None], text: str) -> Parser:
        """Add a subcommand with the arguments that all of them have."""
        made = commands.add_parser(name, help=text, description=text.capitalize() + ".", epilog=STATUSES)
        if in_file:
            made.add_argument("path", metavar="PATH", help="the file of the letters; none with --redis")
        made.add_argument("--redis", metavar="URL", help="letters in Redis, such as redis://localhost:6379/0")
        made.add_argument("--redis-key", type=some_text, default="letters", metavar="KEY",
                          help="their key in Redis (letters)")  # fmt: skip
        made.set_defaults(run=run)
        return made

    listed = command("list", _list, "list letters, the oldest first")
    option = listed.add_argument
    option("--limit", type=whole_number(), default=100, metavar="N", help="at most N (100)")
    option("--json", action="store_true", help="one JSON object per line")
    add_filters(listed, queue=None).add_argument(
        "--state", choices=("waiting", "leased", "parked"), help="in this state"
    )

    option = command("show", _show, "show all fields of one letter").add_argument
    option("id", type=letter_id, metavar="ID", help=SOME_ID)
    option("--json", action="store_true", help="as a JSON object on one line")

    replayed = command(
        "replay", _replay, "call a function with each letter, and delete the letters for which it succeeds"
    )
    option = replayed.add_argument
    option("handler", type=handler_name, metavar="MODULE:FUNCTION", help="your function, sync or async")
    option("--limit", type=whole_number(), metavar="N", help="replay at most N letters (all)")
    option("--attempts", type=whole_number(), default=1, metavar="N", help="attempts for each letter (1)")
    option("--park-after", type=whole_number(), default=5, metavar="N",
           help="park a letter after N replays without success (5)")  # fmt: skip
    option("--lease", type=seconds(0.001, 86400), default=60.0, metavar="S",
           help="claim a letter for this time (60s), renewed while the function runs")  # fmt: skip
    option("--include-unreplayable", action="store_true", help="also those put with replayable=False")
    option("--json", action="store_true", help="a JSON object for each letter, and one for all")
    add_filters(replayed, by_id=True)

    option = command("unpark", partial(_each, _unpark), "let parked letters be replayed again").add_argument
    option("ids", type=letter_id, nargs="+", metavar="ID", help=SOME_ID)
    option = command("discard", partial(_each, _discard), "delete letters by their ids").add_argument
    option("ids", type=letter_id, nargs="+", metavar="ID", help="a whole id")

    purged = command("purge", _purge, "delete old letters of a queue; ask first")
    purged.add_argument("--dry-run", action="store_true", help="list the letters, and delete nothing")
    purged.add_argument("--yes", action="store_true", help="delete without a question")
    add_filters(purged, older_than="14d")
    return parser


# The store


def _file(path: str) -> str:
    """Return the absolute path of an existing file; raise `CommandError` with status 3 if it is missing.

    `DeadLetters` would create it, and a wrong path would look like an empty queue.
    """
    if not os.path.exists(path):  # noqa: PTH110 - pathlib is slow to import
        # It may be a URL with a password: --redis was forgotten.
        raise CommandError(f"there is no file {masked_text(path)}", FAILURE)
    return os.path.abspath(path)  # noqa: PTH100


def _redis(options: Any) -> RedisStore:
    """Return the store in Redis that the options name; nothing is sent yet.

    Raise `CommandError` with status 3 if the package ``redis`` is missing, and with 2 for a wrong URL or key.
    The password may be in the environment variable ``REDISCLI_AUTH``, as for ``redis-cli``, since arguments
    are visible to all users of the machine. A URL is never printed: it may contain the password.
    """
    try:
        import redis  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        text = "--redis needs the package redis: install it with 'python -m pip install redis'"
        raise CommandError(text, FAILURE) from error
    try:
        package: Any = redis
        password = os.environ.get("REDISCLI_AUTH")
        client = package.Redis.from_url(options.redis, password=password, **_TIMEOUTS)
        return RedisStore(client, options.redis_key)
    except ValueError as error:
        text = "--redis must be a URL such as redis://localhost:6379/0, rediss://host or unix:///path"
        raise CommandError(str(error) if str(error).startswith("key ") else text) from error


# Subcommands


def _list(letters: DeadLetters, options: Any) -> None:
    """Print the selected letters, the oldest first, and how many letters each queue has.

    With ``--json`` the letters alone are printed, one object on a line.
    """
    every = selected(letters, options)
    if options.state is not None:
        every = (letter for letter in every if letter.state == options.state)
    shown = list(islice(every, options.limit))
    if options.json:
        for letter in shown:
            print_text(to_json(letter.as_dict()))
        return
    print_letters(shown)
    if next(every, None) is not None:
        print_text(f"There are more than these {options.limit}; --limit shows them.")
    depths = letters.store.depths()
    if depths and not shown:
        print_text("No letter matches the options.\n")
    for queue, (depth, parked) in depths.items():
        print_text(f"{queue}: {depth} waiting or leased, {parked} parked")
    if not depths:
        print_text(f"There are no letters in {letters.store.name}.")


def _show(letters: DeadLetters, options: Any) -> None:
    """Print all fields of a letter, one on a line; payload and traceback are below their names.

    Raise `CommandError` with status 1 if no letter, or more than one, has an id that begins so.
    """
    fields = find(letters, options.id).as_dict()
    text = to_json(fields) if options.json else "\n".join([field_text(*field) for field in fields.items()])
    print_text(text)


def _replay(letters: DeadLetters, options: Any) -> int | None:
    """Replay the selected letters of a queue, or the one with the id, as `replay` describes."""
    only = None if options.id is None else find(letters, options.id).id
    where = selector(options) if is_given(options, "older_than", "newer_than", "function", "error") else None
    return replay(letters.queue(options.queue), options, only=only, where=where)


def _each(act: Callable[[DeadLetters, str], str], letters: DeadLetters, options: Any) -> int | None:
    """Call ``act`` with each id of the options, and print the text that it returns.

    A `CommandError` is printed, and the next id follows. Return 1 if there was one.
    """
    status = None
    for one in options.ids:
        try:
            print_text(act(letters, one))
        except CommandError as error:
            print_error(str(error))
            status = INCOMPLETE
    return status


def _discard(letters: DeadLetters, whole: str) -> str:
    """Delete a letter by its whole id: a wrong beginning must not delete another letter."""
    if not letters.discard(whole):
        raise CommandError(f"there is no letter with the id {whole}; to discard, give the whole id")
    return f"discarded {whole}"


def _unpark(letters: DeadLetters, beginning: str) -> str:
    """Let a parked letter be replayed again."""
    letter = find(letters, beginning)
    if not letters.unpark(letter.id):
        raise CommandError(f"{letter.id} is not parked: it is {letter.state}")
    return f"unparked {letter.id}"


def _purge(letters: DeadLetters, options: Any) -> int | None:
    """Delete the selected letters of a queue, and print how many. Letters that are being replayed stay.

    Unless ``--yes`` is given, ask first, and return 1 if the answer is not yes. Where no terminal can be
    asked, as in cron, raise `CommandError` with status 2: a purge that nobody has confirmed deletes nothing.
    ``--dry-run`` prints the letters instead. Letters that are put before the answer stay: ages count from
    the question.
    """
    began = time.time()
    queue = f"of the queue {options.queue}"
    where = selector(options) if is_given(options, "function", "error", "newer_than") else None
    can_ask = sys.stdin is not None and sys.stdin.isatty()
    if not (options.yes or options.dry_run or can_ask):
        raise CommandError(
            "purge deletes letters, and there is no terminal to ask: "
            "add --yes to delete them, or --dry-run to list them"
        )
    if options.dry_run or not options.yes:
        old = [letter for letter in selected(letters, options) if letter.state != "leased"]
        if options.dry_run:
            print_letters(old)
            print_text(f"{_count(old)} {queue} would be deleted")
            return None
        if old and not _confirm(f"Delete {_count(old)} {queue}?"):
            print_text("nothing was deleted")
            return INCOMPLETE
    older_than = options.older_than + max(0.0, time.time() - began)
    purged = letters.purge(older_than, options.queue, where=where)
    print_text(f"purged {_count(range(purged))} {queue}")
    return None


def _count(letters: Sequence[object]) -> str:
    """Return the number of letters in words.

    >>> _count(["a"]), _count([])
    ('1 letter', '0 letters')
    """
    return f"{len(letters)} letter{'' if len(letters) == 1 else 's'}"


def _confirm(question: str) -> bool:
    """Ask on the terminal, and return whether the answer is ``y`` or ``yes``. The end of the input is no.

    The question goes to stderr, so that stdout has only the result.
    """
    print_text(f"{question} [y/N] ", file=sys.stderr, end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


# Argument types


def handler_name(text: str) -> str:
    """Read the name of a module and of a function in it; an argparse type.

    The function may be in a class: ``shop.repair:Orders.ship``.
    """
    module, _, name = text.partition(":")
    if not (module and name):
        raise ArgumentTypeError(f"must be written as module:function, got {text!r}")
    return text
