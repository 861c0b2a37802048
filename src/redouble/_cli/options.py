"""Options that describe a policy, for commands that take one: ``explain``, ``preview`` and ``run``.

Values are read by the rules of `Policy.from_mapping`, so ``--base 200ms`` is what ``base = "200ms"`` is in a
file.
"""

from __future__ import annotations

from .. import backoff
from .._policy.config import read_mapping
from ..policy import Policy
from .output import USAGE, CommandError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser
    from typing import Any

# The options of a policy, with the name of the value and the help.
OPTIONS = {
    "attempts": (
        "N",
        "attempts, the first included (4); none: as many as the limits in time allow; inf: for ever",
    ),
    "base": ("S", "size of the first wait (1s)"),
    "cap": ("S", "longest wait (30s); inf: no limit"),
    "floor": ("S", "shortest wait (0s)"),
    "deadline": ("S", "time for the whole call, waits included (no limit)"),
    "give_up_after": ("S", "start no attempt later than this; a running one is not ended (no limit)"),
    "backoff": (
        "NAME",
        "full (default), equal, decorrelated, proportional, additive; no jitter: exponential, linear, fixed",
    ),
}


def add_policy_flags(parser: ArgumentParser) -> None:
    """Add the options. Their values stay text, for the readers of `Policy.from_mapping`."""
    group = parser.add_argument_group("the policy", "Durations are seconds, or such as 200ms, 20s, 1.5m.")
    for field, (metavar, text) in OPTIONS.items():
        group.add_argument(f"--{field.replace('_', '-')}", metavar=metavar, help=text)


def policy_of(options: Any, policy: Policy | None = None, *, status: int = USAGE, **fields: Any) -> Policy:
    """Return a policy with the options and ``fields`` set.

    ``policy`` has the values of options that are not given. Raise `CommandError` with ``status`` for a wrong
    value, and for limits that exclude each other.
    """
    of_call = (*OPTIONS, "timeout")
    given = {field: text for field in of_call if (text := getattr(options, field, None)) is not None}
    jitter = f"{given.get('backoff')}_jitter"
    if jitter in backoff.__all__:  # "full" is short for "full_jitter"
        given["backoff"] = jitter
    try:
        return (policy or Policy()).replace(**read_mapping(given), **fields)
    except (TypeError, ValueError) as error:
        raise CommandError(str(error), status) from error
