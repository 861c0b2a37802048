"""Compare the time and memory of redouble with other retry libraries, and with no library.

    pip install -e ".[bench]"
    python tests/tools/benchmarks/bench.py            # the table, in half a minute or so
    python tests/tools/benchmarks/bench.py --check    # the same, exit status 1 if a goal is missed
    python tests/tools/benchmarks/bench.py --quick    # fewer rounds: rougher numbers, a few seconds

How to read a row:

    case         ns    redouble takes    goal       verdict
    tenacity  6,500    1/81              <= 1/60    ok

One call through tenacity took 6,500 ns; redouble needed 1/81 of that on the same path; the goal was at most 1/60.
`0.70 x` is less time than the case of that row, `1.20 x` is more. A goal of `+3.0 us` is the time above the case of its row.
The figures are minima; `timing.py` says why.

Verdicts: `ok`; `ok (tolerance)`, if the goal is missed by at most 15 %, which is how much machines differ; `MISSED`;
`not measured`, if the library to compare with is not installed. A path with a missed goal is measured again, up to four times,
and the minima of all measurements count. Memory does not vary, so it has no tolerance. The goals are in `cases.py`;
`../structure.py` has those that are not about time or memory.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:  # run as a script: make the package findable, as pytest does
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import memory
from benchmarks.cases import (
    ASYNC_PATHS,
    BLOCK,
    CLIENT_PEERS,
    CONTESTANTS,
    FAILING,
    FASTEST_PEER,
    GOALS,
    IMPORT,
    MEMORY,
    PATHS,
    PEERS,
    REDOUBLE,
    TENACITY,
    UNWANTED_MODULES,
    Case,
    Goal,
    time_sleep_skipped,
)
from benchmarks.timing import (
    Sampler,
    async_sampler,
    best_of,
    cold,
    coldest_of,
    merged,
    sync_sampler,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

TOLERANCE = 1.15
REPEATS_WHEN_MISSED = 4
ROUNDS, QUICK_ROUNDS = 100, 15
IMPORT_ROUNDS, QUICK_IMPORT_ROUNDS = 12, 3
WAITING_CALLS = 5_000

OK, TOLERATED, MISSED, NOT_MEASURED = "ok", "ok (tolerance)", "MISSED", "not measured"
USED = "used once"  # import and decorate a function: lazy imports are counted, too

Times = dict[str, float]


@dataclass(frozen=True)
class Row:
    """One line of the table; `ratio` is redouble's time divided by this case's."""

    case: str
    ns: float | None = None
    ratio: float | None = None
    goal: str = ""
    verdict: str = ""


@dataclass(frozen=True)
class Contest:
    """The cases of the libraries that are installed, and why others are missing."""

    cases: dict[str, list[Case]]
    missing: dict[str, str]

    def on(self, path: str) -> dict[str, Case]:
        """Return the cases of one path by the name of their row."""
        return {
            f"{name}, {case.variant}" if case.variant else name: case
            for name, cases in self.cases.items()
            for case in cases
            if case.path == path
        }


def assemble() -> Contest:
    cases: dict[str, list[Case]] = {}
    missing: dict[str, str] = {}
    for name, build in CONTESTANTS.items():
        try:
            cases[name] = build()
        except ImportError as error:
            if name not in PEERS:
                raise
            missing[name] = str(error)
    return Contest(cases, missing)


def samplers_for(path: str, cases: dict[str, Case], stack: ExitStack) -> dict[str, Sampler]:
    """Return a sampler for each case, after one call that shows that the case works."""
    if path not in ASYNC_PATHS:
        for name, case in cases.items():
            insist(name, path, case.call(1))
        return {name: sync_sampler(case.call) for name, case in cases.items()}
    import asyncio

    runner = stack.enter_context(asyncio.Runner())
    for name, case in cases.items():
        insist(name, path, runner.run(case.call(1)))
    return {name: async_sampler(case.call, runner) for name, case in cases.items()}


def insist(name: str, path: str, result: object) -> None:
    expected = None if path == BLOCK else 1  # a block has no result
    if result != expected:
        raise AssertionError(f"{name}, {path}: gave {result!r} instead of {expected!r}")


def judge(path: str, times: Times) -> list[Row]:
    """Return the rows of one path: redouble first, the rest from fast to slow."""
    goals = {goal.against: goal for goal in GOALS if goal.path == path}
    own = {name: Row(name, ns) for name, ns in times.items() if library(name) == REDOUBLE}
    others = sorted(times.keys() - own.keys(), key=times.__getitem__)
    rows = [compare(name, counterpart(name, times), times[name], goals.get(name)) for name in others]
    return [*own.values(), *rows, *rows_without_case(times, goals)]


def library(name: str) -> str:
    return name.partition(", ")[0]


def counterpart(name: str, times: Times) -> float:
    """Return redouble's figure for the same variant, or for the plain case if it has no such variant."""
    return times.get(name.replace(library(name), REDOUBLE), times[REDOUBLE])


def rows_without_case(times: Times, goals: dict[str, Goal]) -> Iterator[Row]:
    """Yield rows for goals against the fastest library, and against libraries that were not measured."""
    for against, goal in goals.items():
        peers = [name for name in times if name in PEERS]
        if against == FASTEST_PEER and peers:
            fastest = min(peers, key=times.__getitem__)
            yield compare(f"{against}: {fastest}", times[REDOUBLE], times[fastest], goal)
        elif against not in times:
            yield Row(against, goal=f"<= {allowed(goal)}", verdict=NOT_MEASURED)


def compare(name: str, own: float, other: float, goal: Goal | None) -> Row:
    ratio = own / other
    if goal is None:
        return Row(name, other, ratio)
    figure = own - other if goal.above else ratio
    tolerance = 1.0 if goal.path == MEMORY else TOLERANCE
    verdict = OK if figure <= goal.limit else TOLERATED if figure <= goal.limit * tolerance else MISSED
    return Row(name, other, ratio, f"<= {allowed(goal)}", verdict)


def settled(path: str, measure: Callable[[], Times]) -> list[Row]:
    """Measure, and measure again while a goal is missed; merge the minima, which removes noise."""
    times = measure()
    for _ in range(REPEATS_WHEN_MISSED):
        if not any(row.verdict == MISSED for row in judge(path, times)):
            break
        times = merged(times, measure())
    return judge(path, times)


def run_path(path: str, contest: Contest, rounds: int) -> list[Row]:
    with ExitStack() as stack:
        if path == FAILING:
            stack.enter_context(time_sleep_skipped())
        samplers = samplers_for(path, contest.on(path), stack)
        return settled(path, partial(best_of, samplers, rounds))


def run_imports(contest: Contest, rounds: int) -> list[Row]:
    libraries = [
        name for name in contest.cases if name == REDOUBLE or name in PEERS.keys() - CLIENT_PEERS.keys()
    ]
    statements = {name: f"import {name}" for name in libraries}
    for name in (REDOUBLE, TENACITY):
        if name in statements:
            statements[f"{name}, {USED}"] = f"from {name} import retry; retry(lambda: None)"
    rows = settled(IMPORT, partial(coldest_of, statements, rounds))
    return [*rows, unwanted_modules(statements[f"{REDOUBLE}, {USED}"])]


def run_memory() -> list[Row]:
    sizes = {name: memory.measure_apart(name, WAITING_CALLS, "traced") for name in memory.CONTESTANTS}
    return judge(MEMORY, {name: size for name, size in sizes.items() if size is not None})


def unwanted_modules(statement: str) -> Row:
    """Return a row about slow modules that are loaded by the import and a first use."""
    _, loaded = cold(statement)
    found = sorted({name.partition(".")[0] for name in loaded} & UNWANTED_MODULES)
    case = ", ".join(sorted(name for name in UNWANTED_MODULES if not name.startswith("_"))) + " loaded"
    return Row(case, goal="none", verdict=f"{MISSED}: {', '.join(found)}" if found else OK)


def share(ratio: float) -> str:
    """Format a ratio: 1.25 as `1.25 x`, a sixtieth as `1/60`."""
    return f"{ratio:.2f} x" if ratio > 0.26 else f"1/{1 / ratio:.0f}"


def allowed(goal: Goal) -> str:
    """Format a limit: a ratio, or the time above another case as `+3.0 us`."""
    return f"+{goal.limit / 1_000:.1f} us" if goal.above else share(goal.limit)


def lines(path: str, rows: Sequence[Row]) -> Iterator[str]:
    yield ""
    unit = "bytes" if path == MEMORY else "ns"
    yield f"{path:<44}{unit:>12}   {'redouble takes':<16}{'goal':<12}verdict"
    for row in rows:
        ns = "" if row.ns is None else f"{row.ns:,.0f}"
        ratio = "" if row.ratio is None else share(row.ratio)
        yield f"  {row.case:<42}{ns:>12}   {ratio:<16}{row.goal:<12}{row.verdict}".rstrip()


def version_of(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed as a distribution"


def versions(contest: Contest) -> dict[str, str]:
    return {name: version_of(name) for name in contest.cases if name == REDOUBLE or name in PEERS}


def interpreter() -> str:
    return f"{platform.python_implementation()} {platform.python_version()} on {platform.machine()}"


def report_header(contest: Contest) -> None:
    print(interpreter())
    print(", ".join(f"{name} {number}" for name, number in versions(contest).items()))
    for name, error in contest.missing.items():
        print(f"missing, so not compared: {name} ({error})")


def problems(table: dict[str, list[Row]], contest: Contest) -> Iterator[str]:
    """Yield what --check fails on: missed goals, and that tenacity is not installed."""
    for path, rows in table.items():
        for row in rows:
            if row.verdict.startswith(MISSED):
                measured = "" if row.ratio is None else f", measured {share(row.ratio)}"
                yield f"{path}: {row.case}: goal {row.goal}{measured}"
    if TENACITY in contest.missing:
        yield "tenacity is not installed, and most goals are about it: pip install -e '.[bench]'"


def write_json(file: Path, table: dict[str, list[Row]], contest: Contest) -> None:
    content = {
        "interpreter": interpreter(),
        "versions": versions(contest),
        "missing": contest.missing,
        "paths": {path: [asdict(row) for row in rows] for path, rows in table.items()},
    }
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"samples of each case (default {ROUNDS})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there too")
    arguments = parser.parse_args(argv)
    if arguments.rounds is not None and arguments.rounds < 1:
        parser.error(f"--rounds must be at least 1, not {arguments.rounds}")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parsed(argv)
    rounds = arguments.rounds or (QUICK_ROUNDS if arguments.quick else ROUNDS)
    import_rounds = QUICK_IMPORT_ROUNDS if arguments.quick else IMPORT_ROUNDS
    contest = assemble()
    report_header(contest)
    runs = {path: partial(run_path, path, contest, rounds) for path in PATHS}
    runs[IMPORT] = partial(run_imports, contest, import_rounds)
    runs[MEMORY] = run_memory
    table: dict[str, list[Row]] = {}
    for path, run in runs.items():
        table[path] = run()
        print("\n".join(lines(path, table[path])), flush=True)
    if arguments.json:
        write_json(arguments.json, table, contest)
    found = list(problems(table, contest))
    if found:
        print("\n" + "\n".join(f"{MISSED}  {problem}" for problem in found))
    return 1 if found and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
