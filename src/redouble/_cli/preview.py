"""``redouble preview``: print the waits of a policy, each of them and in total.

The policy comes from a file, from the environment or from the defaults, and options override its fields.
`forecast` calculates the figures, which are printed as a table or as JSON. Nothing waits.
"""

from __future__ import annotations

import os
from itertools import accumulate, islice
from random import Random

from .._base.callables import name_of
from .._base.checks import INF
from .._policy.describe import waits_at
from ..policy import Policy
from .options import OPTIONS, add_policy_flags, policy_of
from .output import CommandError, command_parser, print_error, print_text, text_width, to_json, wrap_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

# The waits of a call that are counted at most; random waits in total; and limits for the number of calls.
_COUNTED, _WAITS, _FEWEST_CALLS, _MOST_CALLS = 1000, 200_000, 200, 5000

# Rows of the table: the first ones, and the last. The columns that it takes, and its heads.
_ROWS, _TABLE = 12, 77
_HEADS = {"wait": "wait before it, in seconds", "waited": "waited so far, in seconds"}

_EPILOG = """examples:
  redouble preview
  redouble preview --attempts 6 --base 200ms --cap 5s --deadline 20s
  redouble preview --backoff decorrelated --seed 7 --json
  redouble preview --file retry.toml --table payments
  redouble preview --env PAYMENTS_RETRY --attempts 8

Options override the file or the environment. "typical" is the median of many calls with random waits; a \
fixed seed makes it reproducible. The preview assumes that attempts take no time and that no server sends \
Retry-After.

exit status:
  0    success
  2    wrong usage, or the file or a value in it is not valid
  130  interrupted (Ctrl-C)"""


def preview(arguments: Sequence[str]) -> None:
    """Print the waits of the policy that the arguments describe.

    Options override the fields of the file or the environment, which override the defaults.
    """
    parser = command_parser("preview", "Show the waits of a policy, one by one and in total.", _EPILOG)
    add_policy_flags(parser)
    source = parser.add_argument_group("source of the policy").add_mutually_exclusive_group()
    source.add_argument("--file", metavar="PATH", help="a TOML or JSON file")
    source.add_argument("--env", metavar="PREFIX", help="environment variables such as PREFIX_ATTEMPTS")
    parser.add_argument("--table", metavar="NAME", help="table in the file, such as payments or tool.retry")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the random numbers (1)")
    parser.add_argument("--json", action="store_true", help="as a JSON object on one line")
    options: Any = parser.parse_args(arguments)
    policy = policy_of(options, _base_policy(options))
    figures = forecast(policy, options.seed)
    if options.json:
        print_text(to_json(figures))
    else:
        _print(figures)


# Reading the policy


def _base_policy(options: Any) -> Policy:
    """Return the policy of the file or the environment, or the default one.

    Raise `CommandError` if the file cannot be read or a value is not valid.
    """
    if options.table is not None and options.file is None:
        raise CommandError("--table names a table in a file: --file is missing")
    try:
        if options.file is not None:
            return Policy.from_mapping(_table(_read(options.file), options.table, options.file))
        if options.env is not None:
            prefix = options.env.removesuffix("_") + "_"
            if options.env and not any(name.startswith(prefix) for name in os.environ):
                print_error(f"no environment variable begins with {prefix}, so these are the defaults")
            return Policy.from_env(options.env)
    except (TypeError, ValueError) as error:
        raise CommandError(f"{options.file or options.env}: {error}") from error
    return Policy()


def _read(path: str) -> Any:
    """Parse a file: JSON if its name ends with ``.json``, TOML otherwise.

    Raise `CommandError` with status 2 if it cannot be read. Syntax errors are ``ValueError`` in both parsers.
    """
    import json
    import tomllib

    parse = json.loads if path.lower().endswith(".json") else tomllib.loads
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib is slow to import
            return parse(file.read())
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from error
    except RecursionError as error:
        raise CommandError(f"{path} is nested too deeply to be read") from error


def _table(data: Any, name: str | None, path: str) -> Any:
    """Return the named table, or the whole file if it is a table of policy fields itself.

    ``name`` may be dotted, as ``tool.retry``. Raise `CommandError` with status 2 if there is no such table,
    or if none is named and the file has tables.
    """
    for part in name.split(".") if name else ():
        if not _is_table(data) or part not in data:
            raise CommandError(f"there is no table {name} in {path}: there are {_tables(data)}")
        data = data[part]
    if name is None and _tables(data) != "none":
        raise CommandError(f"{path} has tables: name one of them with --table ({_tables(data)})")
    return data


def _tables(data: Any) -> str:
    """Return the names of the tables in a table, without ``rules``, which is a field of a policy."""
    inside = data.items() if _is_table(data) else ()
    return ", ".join([key for key, value in inside if _is_table(value) and key != "rules"]) or "none"


def _is_table(data: Any) -> bool:
    """Return whether parsed data is a table. A function, so that the data stays untyped."""
    return isinstance(data, dict)


# Calculating the waits


def forecast(policy: Policy, seed: int) -> dict[str, Any]:
    """Return the shortest, typical and longest waits of a policy, and the totals of calls that never succeed.

    The figures are ready for JSON. Shortest and longest waits are exact: they are drawn with a random source
    that returns one end of each range. Typical waits and totals are statistics of many random calls. Attempts
    are taken to last no time. A wait that does not fit before the deadline or ``give_up_after`` is not made:
    it ends the call.
    """
    limit = min([end for end in (policy.deadline, policy.give_up_after) if end is not None], default=INF)
    waits = 0 if policy.enabled is False else (policy.attempts or INF) - 1
    counted = int(min(waits, _COUNTED))
    schedule: Any = (policy.backoff, counted + 1, policy.base, policy.cap, policy.floor)
    number = min(_MOST_CALLS, max(_FEWEST_CALLS, _WAITS // max(1, counted)))
    random = policy.replace(rng=Random(seed))
    calls = [list(islice(random.delays(), counted)) for _ in range(number)]
    sums = [list(accumulate(call)) for call in calls]
    # Sums only grow, so the last one before the deadline is the total.
    waited = [[total for total in call if total < limit] for call in sums]
    wait = {
        "shortest": waits_at(0.0, *schedule),
        "typical": _medians(calls),
        "longest": waits_at(1.0, *schedule),
    }
    so_far = {name: list(accumulate(column)) for name, column in wait.items()} | {"typical": _medians(sums)}
    fields = {name: getattr(policy, name) for name in OPTIONS} | {"backoff": name_of(policy.backoff)}
    return {
        # JSON has no infinity.
        "policy": {name: None if value == INF else value for name, value in fields.items()},
        "retries": [
            {
                "attempt": nth + 2,
                "wait": {name: column[nth] for name, column in wait.items()},
                "waited": {name: min(column[nth], limit) for name, column in so_far.items()},
                "reached": sum(len(call) > nth for call in waited) / number,
            }
            for nth in range(counted)
            if so_far["shortest"][nth] < limit
        ],
        "worst_case": min(sum(wait["longest"]), limit),
        "total": _percentiles([call[-1] if call else 0.0 for call in waited]),
        "calls_drawn": number,
        "seed": seed,
        "complete": waits <= _COUNTED,
        "description": policy.describe().split("\n"),
    }


def _medians(calls: Sequence[Sequence[float]]) -> list[float]:
    """Return the median of the first figures of all calls, of the second ones, and so on.

    >>> _medians([[1.0, 10.0], [2.0, 30.0], [9.0, 20.0]])
    [2.0, 20.0]
    """
    return [sorted(column)[len(calls) // 2] for column in zip(*calls, strict=True)]


def _percentiles(totals: Sequence[float]) -> dict[str, float]:
    """Return the totals that 50, 90 and 99 percent of calls do not exceed.

    >>> _percentiles(range(100))
    {'p50': 50, 'p90': 90, 'p99': 99}
    """
    return {f"p{percent}": sorted(totals)[percent * len(totals) // 100] for percent in (50, 90, 99)}


# Printing


def _print(figures: dict[str, Any]) -> None:
    """Print the table of waits, the totals, and the description of the policy.

    On a narrow terminal there are two tables: the waits, and the sums of them.
    """
    rows, policy, width = figures["retries"], figures["policy"], text_width()
    limited = policy["deadline"] is not None or policy["give_up_after"] is not None
    if rows and width > _TABLE:
        _print_table(rows, ["wait", "waited"], 10, limited)
    elif rows:
        _print_table(rows, ["wait"], 8, limited)
        _print_table(rows, ["waited"], 8, limited)
    if not figures["complete"]:
        print_text(f"Only the first {_COUNTED} waits are counted.")
    totals = [f"{name} {_seconds(total)} s" for name, total in figures["total"].items()]
    drawn = f"of {figures['calls_drawn']} calls that never succeed (seed {figures['seed']})"
    for line in (
        f"Worst case:     {_seconds(figures['worst_case'])} s of waiting",
        f"Total waiting:  {', '.join(totals)}, {drawn}",
        "",
        *figures["description"],
    ):
        print_text(wrap_text(line, width - 1))


def _print_table(rows: Sequence[Any], parts: Sequence[str], size: int, limited: bool) -> None:
    """Print shortest, typical and longest of each part, in columns of a size. Of many rows some are left out.

    The share of calls that reach an attempt is shown only with a limit in time: without one it is 100%.
    """
    names = [f"{name:>{size}}" for name in ("shortest", "typical", "longest")]
    space = " " * (size < 10)  # between "attempt" and "shortest"
    print_text(f"{'':9}{''.join([f'{_HEADS[part]:{3 * size}}' for part in parts])}".rstrip(), "bold")
    print_text(
        "attempt" + space + "".join(names * len(parts)) + (f"{'reached':>{size}}" if limited else ""), "bold"
    )
    lines: list[str] = []
    for row in rows:
        cells = [f"{_seconds(figure):>{size}}" for part in parts for figure in row[part].values()]
        share = f"{row['reached']:{size}.0%}" if limited else ""
        lines.append(f"{row['attempt']:7}{space}{''.join(cells)}{share}")
    if len(lines) > _ROWS:
        lines[_ROWS - 1 : -1] = [f"{'...':>7}  {len(lines) - _ROWS} more"]
    print_text("\n".join(lines) + "\n")


def _seconds(figure: float) -> str:
    """Return seconds in at most eight characters: with decimals if small, with an exponent if huge.

    >>> [_seconds(figure) for figure in (0.25, 12.5, 1200.0, 1e9)]
    ['0.250', '12.50', '1200', '1.0e+09']
    """
    if figure < 100:
        return f"{figure:.3f}" if figure < 1 else f"{figure:.2f}"
    return f"{figure:.0f}" if figure < 1e7 else f"{figure:.1e}"
