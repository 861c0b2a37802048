"""``python -m redouble deadletters``: dead letters in a file, looked at, replayed and thrown away by hand."""

from __future__ import annotations

import os

from ._columns import safe
from ._letters import STATES
from ._letters_replaying import find, replay
from ._terminal import (
    DONE,
    NOT_ALL,
    STATUSES,
    TROUBLE,
    Parser,
    Unable,
    age,
    complain,
    field,
    handler_name,
    lease,
    letter_id,
    number,
    say,
    since,
    some_text,
    speak_as,
    table,
    to_json,
)
from ._text import one_line
from .deadletter import DeadLetters, StoreTrouble

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    from ._letters import DeadLetter, State

_PAGE = 100  # letters read at once


def deadletters(arguments: Sequence[str]) -> int:
    """Runs one command; gives the exit status."""
    options: Any = _parser().parse_args(arguments)
    try:
        with _box(options.path) as letters:
            status: int = options.run(letters, options)
    except StoreTrouble as trouble:
        raise Unable(str(trouble), TROUBLE) from trouble
    return status


def _box(path: str) -> DeadLetters:
    if not os.path.exists(path):  # noqa: PTH110 - pathlib is slow to import
        raise StoreTrouble(f"there is no file {path}", where=path)
    return DeadLetters(os.path.abspath(path))  # noqa: PTH100


# What can be asked


def _parser() -> Parser:
    parser = Parser(
        prog=speak_as("deadletters"),
        description="Dead letters in a file: looked at, replayed and thrown away by hand.",
        epilog=STATUSES,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[DeadLetters, Any], int], text: str) -> Parser:
        made = commands.add_parser(name, help=text, description=text.capitalize() + ".", epilog=STATUSES)
        made.add_argument("path", metavar="PATH", help="the file that holds the letters")
        made.set_defaults(run=run)
        return made

    for add in (_add_list, _add_show, _add_replay, _add_unpark, _add_discard, _add_purge):
        add(command)
    return parser


def _add_list(command: Any) -> None:
    made = command("list", _list, "list letters, the oldest first")
    made.add_argument("--queue", type=some_text, metavar="Q", help="only those of this queue")
    made.add_argument("--state", choices=STATES, help="only those in this state")
    made.add_argument("--limit", type=number, default=100, metavar="N", help="at most that many (100)")
    made.add_argument("--json", action="store_true", help="one JSON object per line")


def _add_show(command: Any) -> None:
    made = command("show", _show, "show everything about one letter")
    made.add_argument("id", type=letter_id, metavar="ID", help="its id, or a beginning that no other has")
    made.add_argument("--json", action="store_true", help="as a JSON object on one line")


def _add_replay(command: Any) -> None:
    made = command("replay", replay, "hand letters to a function of yours; what it returns for is deleted")
    made.add_argument("handler", type=handler_name, metavar="MODULE:FUNCTION", help="sync or async")
    which = made.add_mutually_exclusive_group()
    which.add_argument("--queue", type=some_text, default="default", metavar="Q", help="(default)")
    which.add_argument("--id", type=letter_id, metavar="ID", help="only this letter, of whatever queue")
    made.add_argument("--limit", type=number, metavar="N", help="hand out at most that many (all)")
    made.add_argument("--attempts", type=number, default=1, metavar="N", help="for each letter (1)")
    made.add_argument(
        "--park-after",
        type=number,
        default=5,
        metavar="N",
        help="park after that many replays without success (5)",
    )
    made.add_argument(
        "--lease",
        type=lease,
        default=60.0,
        metavar="S",
        help="seconds, or such as 5m (60); renewed meanwhile",
    )
    made.add_argument(
        "--include-unreplayable", action="store_true", help="also those that are said not to be replayable"
    )
    made.add_argument("--json", action="store_true", help="a JSON object for each letter, and one for all")


def _add_unpark(command: Any) -> None:
    made = command("unpark", _unpark, "let parked letters be replayed again")
    made.add_argument(
        "ids", type=letter_id, nargs="+", metavar="ID", help="an id, or a beginning that no other has"
    )


def _add_discard(command: Any) -> None:
    made = command("discard", _discard, "throw letters away")
    made.add_argument("ids", type=letter_id, nargs="+", metavar="ID", help="a whole id")


def _add_purge(command: Any) -> None:
    made = command("purge", _purge, "throw away the letters of a queue that are old")
    made.add_argument("--older-than", type=age, metavar="AGE", help="such as 14d, 36h, 90m, 30s (14d)")
    made.add_argument("--queue", type=some_text, default="default", metavar="Q", help="(default)")


# Looking


def _list(letters: DeadLetters, options: Any) -> int:
    from heapq import merge
    from itertools import islice

    queues = list(letters.depths()) if options.queue is None else [options.queue]
    # Ids sort by time, so the queues together are in order too.
    every = merge(*[_all(letters, queue, options.state) for queue in queues], key=lambda letter: letter.id)
    if options.json:
        for letter in islice(every, options.limit):
            say(to_json(letter.as_dict()))
        return DONE
    rows = [_row(letter) for letter in islice(every, options.limit)]
    if rows:
        say(table(("id", "queue", "function", "error", "tries", "age", "state"), rows) + "\n")
    if next(every, None) is not None:
        say(f"There are more than these {options.limit}; --limit shows them.")
    say(_depths(letters))
    return DONE


def _all(letters: DeadLetters, queue: str, state: State | None) -> Iterator[DeadLetter]:
    after = ""
    while page := letters.list(queue=queue, state=state, limit=_PAGE, after=after):
        yield from page
        after = page[-1].id


def _row(letter: DeadLetter) -> tuple[str, ...]:
    return (
        letter.id,
        safe(letter.queue),
        safe(letter.function or "-"),
        safe(one_line(letter.error_type or "", letter.error_message or "") or "-"),
        str(letter.attempts),
        since(letter.dead_lettered_at),
        letter.state,
    )


def _depths(letters: DeadLetters) -> str:
    lines = [
        f"{safe(queue)}: {depth} waiting or leased, {parked} parked"
        for queue, (depth, parked) in letters.store.depths().items()
    ]
    return "\n".join(lines) or "There are no letters."


def _show(letters: DeadLetters, options: Any) -> int:
    letter = find(letters, options.id)
    if options.json:
        say(to_json(letter.as_dict()))
        return DONE
    for name, value in letter.as_dict().items():
        say(field(name, value))
    return DONE


# Throwing away


def _each(ids: Iterable[str], act: Callable[[str], str]) -> int:
    status = DONE
    for one in ids:
        try:
            say(act(one))
        except Unable as reason:
            complain(str(reason))
            status = NOT_ALL
    return status


def _discard(letters: DeadLetters, options: Any) -> int:
    def act(whole: str) -> str:
        if not letters.discard(whole):
            raise Unable(f"there is no letter with the id {whole}; only a whole id is enough to discard it")
        return f"discarded {whole}"

    return _each(options.ids, act)


def _unpark(letters: DeadLetters, options: Any) -> int:
    def act(beginning: str) -> str:
        letter = find(letters, beginning)
        if not letters.unpark(letter.id):
            raise Unable(f"{letter.id} is not parked: it is {letter.state}")
        return f"unparked {letter.id}"

    return _each(options.ids, act)


def _purge(letters: DeadLetters, options: Any) -> int:
    count = letters.purge(options.older_than, queue=options.queue)
    say(f"purged {count} {'letter' if count == 1 else 'letters'} of the queue {safe(options.queue)}")
    return DONE
