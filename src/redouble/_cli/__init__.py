"""The command line: the table of commands, and ``main``.

A command is a module of this package with a function that takes the arguments and returns the exit status,
or ``None`` for success. It is imported when it is called, so that each command pays only for what it uses.

To add a command: a module with that function, a line in `COMMANDS` for the help, a case in `_load`, and a
section in ``docs/reference/command-line.md``.
"""

from __future__ import annotations

import sys

from .output import (
    DONE,
    FAILURE,
    INTERRUPTED,
    CommandError,
    Parser,
    discard_output,
    print_error,
    set_program,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

COMMANDS = {
    "explain": "show whether a failure is retried, why, and what to change",
    "demo": "call a flaky server on loopback and show the retries (a few seconds)",
    "preview": "show the waits of a policy: each wait, the worst case, percentiles",
    "simulate": "compare retry strategies in a fleet of clients on virtual time",
    "run": "run a command, and run it again while it fails",
    "dead-letters": "list, show, replay and delete dead letters in a file or in Redis",
}

_EPILOG = """examples:
  redouble explain 503
  redouble demo
  redouble preview --attempts 6 --base 200ms --cap 5s --deadline 20s
  redouble simulate outage
  redouble run --attempts 5 --timeout 30s -- curl -fsS https://example.com/
  redouble dead-letters list letters.db

"redouble COMMAND --help" shows the options of a command. "python -m redouble" is the same as "redouble"."""


def _load(command: str) -> Callable[[Sequence[str]], int | None]:
    """Import the module of a command and return its function.

    Import statements, not names in a table: type checkers and packagers see them.
    """
    run: Callable[[Sequence[str]], int | None]
    match command:
        case "explain":
            from .explain import explain as run
        case "demo":
            from .demo import demo as run
        case "preview":
            from .preview import preview as run
        case "simulate":
            from .simulate import simulate as run
        case "run":
            from .run import run
        case _:
            from .dead_letters import dead_letters as run
    return run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status. ``arguments`` are those after the name of the program.

    An error is printed as one line on stderr: a `CommandError` with the status that it has, an error of the
    operating system, such as a full disk, with 3. Ctrl-C is 130. If the reader of stdout goes away, as
    ``head`` does, the command ends quietly with 0. ``--help`` and wrong usage raise ``SystemExit``, as
    argparse does. Other exceptions are defects, and are raised.
    """
    try:
        try:
            command, rest = _parse(sys.argv[1:] if arguments is None else arguments)
            return _load(command)(rest) or DONE
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except CommandError as error:
        print_error(str(error))
        return error.status
    except KeyboardInterrupt:
        print_error("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        discard_output(sys.stdout)
        return DONE
    except OSError as error:  # such as a full disk
        print_error(str(error))
        discard_output(sys.stdout)
        return FAILURE


def _parse(arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the command and its arguments; exit for ``--help``, ``--version`` and wrong usage.

    Without a command, print the help and exit with 0. The parser is made only if there is something to print:
    the commands parse their own arguments.
    """
    program, rest = set_program(""), list(arguments)
    while rest[:1] == ["--"]:
        del rest[0]
    if not rest or rest[0] not in COMMANDS:
        from .. import __version__

        text = "Show, simulate and run retries from the command line."
        parser = Parser(prog=program, description=text, epilog=_EPILOG)
        parser.add_argument("--version", action="version", version=f"redouble {__version__}")
        commands = parser.add_subparsers(metavar="COMMAND")
        for name, about in COMMANDS.items():
            commands.add_parser(name, help=about, add_help=False)
        if not rest:
            parser.print_help()
            sys.exit(DONE)
        parser.parse_args(rest)  # never returns
    return rest[0], rest[1:]
