"""The options that describe a policy, for every command that takes one."""

from __future__ import annotations

from ._config import read_mapping
from ._terminal import Unable
from .policy import Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser
    from typing import Any

# The jitters may be called without the word.
_SHORT = {name: f"{name}_jitter" for name in ("full", "equal", "decorrelated", "proportional", "additive")}

FIELDS = ("attempts", "base", "cap", "deadline", "timeout", "backoff")


def add_policy_flags(parser: ArgumentParser) -> None:
    """What a policy waits and when it ends. Read as text: the library's own readers know durations."""
    of = parser.add_argument_group("the policy", "Durations are seconds, or such as 200ms, 20s, 1.5m.")
    of.add_argument(
        "--attempts",
        metavar="N",
        help="how often at most, the first time included (4); none: as often as the deadline allows",
    )
    of.add_argument("--base", metavar="S", help="the size of the first wait (1s)")
    of.add_argument("--cap", metavar="S", help="no wait is longer (30s); inf: without limit")
    of.add_argument("--deadline", metavar="S", help="for everything together, waits included (no limit)")
    of.add_argument(
        "--backoff",
        metavar="NAME",
        help="full (the default), equal, decorrelated, proportional, additive (jitters), exponential, "
        "linear or fixed (without)",
    )


def policy_of(options: Any, beneath: Policy | None = None, *, status: int, **others: Any) -> Policy:
    """The policy that the options describe, on top of the one beneath; an `Unable` says what is wrong."""
    said = {field: text for field in FIELDS if (text := getattr(options, field, None)) is not None}
    if "backoff" in said:
        said["backoff"] = _SHORT.get(said["backoff"], said["backoff"])
    try:
        return (beneath or Policy()).replace(**read_mapping(said), **others)
    except (TypeError, ValueError) as error:
        raise Unable(str(error), status) from error
