"""The command line: ``python -m redouble``, or ``redouble`` where the package is installed."""

from __future__ import annotations

import sys

from ._terminal import (
    DONE,
    INTERRUPTED,
    TROUBLE,
    Parser,
    Unable,
    complain,
    silence,
    speak_as,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


# Each command reads its own arguments, in a module that is loaded only when it is asked for.


def _demo(arguments: Sequence[str]) -> int:
    from ._demo import demo

    return demo(arguments)


def _preview(arguments: Sequence[str]) -> int:
    from ._preview import preview

    return preview(arguments)


def _run(arguments: Sequence[str]) -> int:
    from ._run_command import run

    return run(arguments)


def _simulate(arguments: Sequence[str]) -> int:
    from ._simulate_cli import simulate

    return simulate(arguments)


def _deadletters(arguments: Sequence[str]) -> int:
    from ._letters_cli import deadletters

    return deadletters(arguments)


_COMMANDS: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "demo": (_demo, "call a flaky server on loopback and watch the retries (a few seconds)"),
    "preview": (_preview, "show the waits of a policy: each of them, the worst case, percentiles"),
    "simulate": (_simulate, "let fleets of clients fail on virtual time, strategies side by side"),
    "run": (_run, "run a command, and run it again while it fails"),
    "deadletters": (_deadletters, "look at dead letters in a file, replay them, throw them away"),
}

_EPILOG = """examples:
  redouble demo
  redouble preview --attempts 6 --base 200ms --cap 5s --deadline 20s
  redouble simulate outage
  redouble run --attempts 5 --timeout 30s -- curl -fsS https://example.com/
  redouble deadletters list letters.db

"redouble COMMAND --help" tells all about a command. Without the script that
pip installs, write "python -m redouble" in the place of "redouble"."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; gives the exit status."""
    try:
        try:
            command, rest = _parse(sys.argv[1:] if arguments is None else arguments)
            return _COMMANDS[command][0](rest)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except Unable as reason:
        complain(str(reason))
        return reason.status
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # whoever reads this has seen enough
        silence(sys.stdout)
        return DONE
    except OSError as error:  # a full disk below the output
        complain(str(error))
        silence(sys.stdout)
        return TROUBLE


def _parse(arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The command, and what is left for it."""
    program, rest = speak_as(""), list(arguments)
    while rest[:1] == ["--"]:
        del rest[0]
    if not rest or rest[0] not in _COMMANDS:
        _help(program).parse_args(rest)  # which is help, the version or an error: it ends here
    return rest[0], rest[1:]


def _help(program: str) -> Parser:
    from . import __version__

    parser = Parser(
        prog=program,
        description="Retries that are right by default, seen from the command line.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"redouble {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (_, text) in _COMMANDS.items():
        commands.add_parser(name, help=text, add_help=False)
    return parser


if __name__ == "__main__":
    sys.exit(main())
