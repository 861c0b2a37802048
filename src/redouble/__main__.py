"""The command line: ``python -m redouble demo``."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; gives the exit status."""
    import argparse

    from . import __version__

    parser = argparse.ArgumentParser(
        prog="python -m redouble",
        description="Retries that are right by default, seen from the command line.",
    )
    parser.add_argument("--version", action="version", version=f"redouble {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("demo", help="call a flaky server on loopback and watch the retries (a few seconds)")
    parser.parse_args(arguments)

    from ._demo import demo

    return demo()


if __name__ == "__main__":
    sys.exit(main())
