"""The command line: ``python -m redouble demo`` and ``python -m redouble deadletters``."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; gives the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if list(arguments[:1]) == ["deadletters"]:
        # It reads the rest itself, so that its modules are loaded only when it is asked for.
        from ._letters_cli import deadletters

        return deadletters(arguments[1:])
    _parse(arguments)

    from ._demo import demo

    return demo()


def _parse(arguments: Sequence[str]) -> None:
    import argparse

    from . import __version__

    parser = argparse.ArgumentParser(
        prog="python -m redouble",
        description="Retries that are right by default, seen from the command line.",
    )
    parser.add_argument("--version", action="version", version=f"redouble {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("demo", help="call a flaky server on loopback and watch the retries (a few seconds)")
    commands.add_parser("deadletters", help="look at dead letters in a file, replay them, throw them away")
    parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
