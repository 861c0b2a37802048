"""``python -m redouble preview``: the waits of a policy, before anybody has to live through them."""

from __future__ import annotations

import os

from ._flags import add_policy_flags, policy_of
from ._forecast import PERCENTILES, Forecast
from ._terminal import DONE, USAGE, Parser, Unable, complain, say, speak_as, to_json, wrapped
from .policy import Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

# How many attempts the table shows: the first ones, and the last.
_SHOWN = 12
_COLUMNS = ("shortest", "typical", "longest")

_EPILOG = """examples:
  redouble preview
  redouble preview --attempts 6 --base 200ms --cap 5s --deadline 20s
  redouble preview --backoff decorrelated --seed 7 --json
  redouble preview --file retry.toml --table payments
  redouble preview --env PAYMENTS_RETRY --attempts 8

Options are laid over what a file or the environment says. "typical" is the
median of many calls, drawn at random with a seed, so that a figure can be had
again. Attempts are taken to last no time, and no server to ask for a wait.

exit status:
  0    all done
  2    wrong usage, or the file or a value in it will not do
  130  interrupted (Ctrl-C)"""


def preview(arguments: Sequence[str]) -> int:
    """Shows the waits of the policy that the arguments describe; gives the exit status."""
    options: Any = _parser().parse_args(arguments)
    policy = policy_of(options, _beneath(options), status=USAGE)
    forecast = Forecast(policy, options.seed)
    if options.json:
        say(to_json(forecast.as_dict()))
    else:
        _show(forecast)
    return DONE


def _parser() -> Parser:
    parser = Parser(
        prog=speak_as("preview"),
        description="The waits of a policy, one by one and in total.",
        epilog=_EPILOG,
    )
    add_policy_flags(parser)
    source = parser.add_argument_group("where it is written").add_mutually_exclusive_group()
    source.add_argument("--file", metavar="PATH", help="a TOML or JSON file")
    source.add_argument("--env", metavar="PREFIX", help="environment variables such as PREFIX_ATTEMPTS")
    parser.add_argument(
        "--table", metavar="NAME", help="the table in the file, such as payments or tool.retry"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="for the draws (1)")
    parser.add_argument("--json", action="store_true", help="as a JSON object on one line")
    return parser


# Where a policy is written


def _beneath(options: Any) -> Policy:
    if options.table is not None and options.file is None:
        raise Unable("--table names a table in a file: --file is missing", USAGE)
    try:
        if options.file is not None:
            return Policy.from_mapping(_table(_read(options.file), options.table, options.file))
        if options.env is not None:
            return _from_environment(options.env)
    except (TypeError, ValueError) as error:
        raise Unable(f"{options.file or options.env}: {error}", USAGE) from error
    return Policy()


def _from_environment(prefix: str) -> Policy:
    beginning = prefix.removesuffix("_") + "_"
    if prefix and not any(name.startswith(beginning) for name in os.environ):
        complain(f"no environment variable begins with {beginning}, so these are the defaults")
    return Policy.from_env(prefix)


def _read(path: str) -> Any:
    """What is in the file, parsed; errors of the parsers are ``ValueError`` too."""
    import json
    import tomllib

    parse = json.loads if path.lower().endswith(".json") else tomllib.loads
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib is slow to import
            return parse(file.read())
    except OSError as error:
        raise Unable(f"cannot read {path}: {error.strerror}", USAGE) from error
    except RecursionError as error:
        raise Unable(f"{path} is nested too deeply to be read", USAGE) from error


def _table(data: Any, name: str | None, path: str) -> Any:
    for part in name.split(".") if name else ():
        if not _is_table(data) or part not in data:
            raise Unable(f"there is no table {name} in {path}: there are {_tables(data)}", USAGE)
        data = data[part]
    if name is None and _tables(data) != "none":
        raise Unable(f"{path} has tables: name one of them with --table ({_tables(data)})", USAGE)
    return data


def _tables(data: Any) -> str:
    """The names of the tables in a table, but for the one that belongs to a policy."""
    inside = data.items() if _is_table(data) else ()
    return ", ".join([key for key, value in inside if _is_table(value) and key != "rules"]) or "none"


def _is_table(data: Any) -> bool:
    return hasattr(data, "items")


# How it is shown


def _show(forecast: Forecast) -> None:
    rows = forecast.rows()
    if rows:
        has_deadline = forecast.policy.deadline is not None
        head = "".join([name.rjust(10) for name in (*_COLUMNS, *_COLUMNS, "reached")[: 6 + has_deadline]])
        say(" " * 9 + "wait before it, in seconds    waited so far, in seconds", "bold")
        say("attempt" + head, "bold")
        for row in rows[: _SHOWN - 1]:
            say(_line(row, has_deadline))
        if len(rows) > _SHOWN:
            say(f"{'...':>7}  {len(rows) - _SHOWN} more")
        for row in rows[_SHOWN - 1 :][-1:]:
            say(_line(row, has_deadline))
        say("")
    _sum_up(forecast)
    say("")
    say(wrapped(forecast.policy.describe()))


def _line(row: dict[str, Any], has_deadline: bool) -> str:
    figures = [*row["wait"].values(), *row["waited"].values()]
    share = f"{row['reached']:10.0%}" if has_deadline else ""
    return f"{row['attempt']:7}" + "".join([_seconds(figure).rjust(10) for figure in figures]) + share


def _sum_up(forecast: Forecast) -> None:
    if forecast.is_cut:
        say(f"Only the first {forecast.followed} waits are counted here.")
    say(f"Worst case:     {_seconds(forecast.worst)} s of waiting")
    totals = [f"p{percent} {_seconds(forecast.percentile(percent))} s" for percent in PERCENTILES]
    say(f"Total waiting:  {', '.join(totals)}")
    say(f"                of {forecast.calls} calls that never succeed (seed {forecast.seed})")


def _seconds(figure: float) -> str:
    """At most eight characters: three digits behind the point where they matter, powers where they do not."""
    if figure < 100:
        return f"{figure:.3f}" if figure < 1 else f"{figure:.2f}"
    return f"{figure:.0f}" if figure < 1e7 else f"{figure:.1e}"
