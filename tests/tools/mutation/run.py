"""Change the code in small ways, one at a time, and report the changes that no test notices.

    python tests/tools/mutation/run.py                         the modules in DEFAULT
    python tests/tools/mutation/run.py _engine.decide budget   these modules
    python tests/tools/mutation/run.py --changed-since origin/main
    python tests/tools/mutation/run.py --list _engine.decide   the names of the mutants
    python tests/tools/mutation/run.py --show NAME             one mutant, as a diff
    python tests/tools/mutation/run.py --only NAME ...         try these; print which test kills which

The first run measures which test executes which lines, which takes some minutes; the result is cached.
Exits with 1 if a mutant survived that is not in accepted.txt, or if an entry of that file is out of date.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mutation import accepted, changed, measure, trials
from mutation.mutants import Mutant, mutants_of
from mutation.plan import Plan, Uses
from mutation.planting import file_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HERE = Path(__file__).resolve().parent
DEFAULT = [
    "backoff",
    "classify",
    "classify._retry_after",
    "_engine.decide",
    "budget",
    "breaker",
    "_guards.window",
    "_engine.flow",
    "_engine.drivers",
    "_engine.first",
]
"""Modules whose mutants must all be killed or accepted. Other modules can be given as arguments."""
SAMPLE = 200
"""How many mutants are tried if the changed lines are unknown."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    project = measure.Project(options.root.resolve())
    modules = [module.removesuffix(".py") for module in options.modules or _mentioned(options) or DEFAULT]
    for module in modules:
        if not file_of(project.package, module).exists():
            print(f"there is no module {module} in {project.package}", file=sys.stderr)
            return 2
    sources = {module: project.source(module) for module in modules}
    mutants = [mutant for module in modules for mutant in mutants_of(sources[module], module)]
    if options.show:
        return _show(mutants, sources, options.show)
    chosen = _chosen(options, project, mutants)
    if options.list:
        return _list(chosen, sources)
    if not hasattr(os, "fork") or importlib.util.find_spec("coverage") is None:
        print("trying mutants needs os.fork and the package coverage", file=sys.stderr)
        return 2
    return Run(project, options, sources, mutants).whole(chosen)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS
    )
    add = parser.add_argument
    add("modules", nargs="*", metavar="MODULE", help="of the package, without .py")
    add("--changed-since", metavar="REV", help="only mutants of lines that are not as in this revision")
    add("--only", nargs="+", metavar="NAME", help="only these mutants; the beginning of a name will do")
    add("--sample", type=int, metavar="N", help="only N mutants, chosen at random")
    add("--seed", type=int, default=0, help="of that choice (default: 0)")
    add("--list", action="store_true", help="the mutants, without trying them")
    add("--show", metavar="NAME", help="a mutant as a diff")
    add("--jobs", type=int, default=2, help="how many trials at a time (default: 2)")
    add("--seconds", type=float, default=10.0, help="how long the tests of one trial may take (default: 10)")
    add("--tests", nargs="+", type=Path, metavar="FILE", help="only the tests in these files")
    add("--cold", action="store_true", help="import everything anew in every trial: slow, for comparison")
    add("--accepted", type=Path, default=HERE / "accepted.txt", help=argparse.SUPPRESS)
    add("--root", type=Path, default=HERE.parents[2], help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _mentioned(options: argparse.Namespace) -> list[str]:
    """Return the modules of the mutants in the options."""
    names = [*(options.only or ()), *([options.show] if options.show else ())]
    return sorted({name.partition(":")[0] for name in names})


# Which


def _chosen(options: argparse.Namespace, project: measure.Project, mutants: list[Mutant]) -> list[Mutant]:
    sample = options.sample
    if options.only:
        mutants = [mutant for mutant in mutants if _is_named(mutant, options.only)]
    if options.changed_since:
        try:
            mutants = _changed(project, mutants, options.changed_since)
        except changed.Unknown as unknown:
            sample = sample or SAMPLE
            print(f"the changed lines are unknown ({unknown}); trying {sample} at random", file=sys.stderr)
    if sample is not None and sample < len(mutants):
        wanted = set(random.Random(options.seed).sample(mutants, sample))
        mutants = [mutant for mutant in mutants if mutant in wanted]
    return mutants


def _is_named(mutant: Mutant, names: list[str]) -> bool:
    return any(mutant.name == name or mutant.name.startswith(f"{name.rstrip(':')}:") for name in names)


def _changed(project: measure.Project, mutants: list[Mutant], revision: str) -> list[Mutant]:
    lines = {
        module: changed.changed_lines(project.root, file_of(project.package, module), revision)
        for module in {mutant.module for mutant in mutants}
    }
    return [
        mutant
        for mutant in mutants
        if not lines[mutant.module].isdisjoint(range(mutant.line, mutant.last_line + 1))
    ]


def _show(mutants: list[Mutant], sources: dict[str, bytes], name: str) -> int:
    found = [mutant for mutant in mutants if _is_named(mutant, [name])]
    for mutant in found:
        print(_shown(mutant, sources))
    if not found:
        print(f"there is no mutant {name}", file=sys.stderr)
    return 0 if found else 2


def _list(mutants: list[Mutant], sources: dict[str, bytes]) -> int:
    for mutant in mutants:
        print(f"{mutant.name}  {mutant.diff(sources[mutant.module])[1]}")
    for module, count in Counter(mutant.module for mutant in mutants).items():
        print(f"{module}: {count}", file=sys.stderr)
    print(f"{len(mutants)} mutants", file=sys.stderr)
    return 0


def _shown(mutant: Mutant, sources: dict[str, bytes], status: str = "") -> str:
    before, after = mutant.diff(sources[mutant.module])
    place = f"{mutant.module}:{mutant.line}"
    return f"{place}  {mutant.name}  {status}".rstrip() + f"\n    - {before}\n    + {after}"


# Trying


class Run:
    """One run: measure, try mutants, report."""

    def __init__(
        self,
        project: measure.Project,
        options: argparse.Namespace,
        sources: dict[str, bytes],
        mutants: list[Mutant],
    ) -> None:
        self._project = project
        self._options = options
        self._sources = sources
        self._all = mutants
        self._counts: Counter[str] = Counter()
        self._killed: set[str] = set()
        self._survivors: list[tuple[Mutant, str]] = []

    def whole(self, chosen: list[Mutant]) -> int:
        """Try these mutants and report; return the exit status."""
        try:
            reasons = accepted.read(self._options.accepted)
        except (OSError, accepted.Unreadable) as error:
            print(error, file=sys.stderr)
            return 1
        began = time.monotonic()
        for number, result in enumerate(self._results(chosen) if chosen else (), 1):
            self._take(result, reasons)
            if number % 100 == 0:
                print(f"  {number} of {len(chosen)} after {time.monotonic() - began:.0f} s", file=sys.stderr)
        return self._report(time.monotonic() - began, reasons)

    def _results(self, chosen: list[Mutant]) -> Iterator[trials.Result]:
        signal.signal(signal.SIGTERM, _terminated)
        trials.prepare(self._project.root, measure.temporary())
        files = [file.resolve() for file in self._options.tests or self._project.test_files()]
        modules = {mutant.module for mutant in chosen}
        coverage = measure.coverage_of(self._project, modules, files, self._options.jobs)
        plan = Plan(coverage, Uses(self._project.package), at_most=self._options.seconds)
        bench = trials.Bench(self._project.package, self._sources, coverage.seconds)
        warm, cold = [], []
        for mutant in chosen:
            if not plan.tests(mutant):
                yield trials.Result(mutant, "uncovered", "")
            else:
                (cold if self._options.cold or plan.is_cold(mutant) else warm).append(mutant)
        print(f"trying {len(chosen)} mutants, {len(cold)} of them by a fresh import", file=sys.stderr)
        yield from self._warm(plan, bench, warm, cold)
        judge = trials.Judge(plan.cold, self._options.jobs)
        yield from judge.results(cold, lambda mutant, tests, tell: trials.cold(bench, mutant, tests, tell))

    def _warm(
        self, plan: Plan, bench: trials.Bench, mutants: list[Mutant], cold: list[Mutant]
    ) -> Iterator[trials.Result]:
        """Yield the results of warm trials; add the mutants that they cannot decide to `cold`."""
        files = sorted({test.partition("::")[0] for mutant in mutants for test in plan.warm(mutant)})
        if not files:
            return
        judge = trials.Judge(plan.warm, self._options.jobs)
        for result in trials.run_warm(bench, judge, mutants, files):
            doubtful = result.status == "survived" and plan.is_doubtful(result.mutant)
            if doubtful or result.status == "cold":
                cold.append(result.mutant)
            else:
                yield result

    def _take(self, result: trials.Result, reasons: dict[str, str]) -> None:
        mutant, status = result.mutant, result.status
        if status in ("killed", "timeout"):
            self._killed.add(mutant.name)
            if self._options.only:
                print(
                    f"{_shown(mutant, self._sources, status)}\n    {status} by {result.test or 'importing'}"
                )
        elif mutant.name in reasons:
            status = "accepted"
        else:
            self._survivors.append((mutant, status))
            print(f"{_shown(mutant, self._sources, status)}\n{result.detail}".rstrip(), flush=True)
        self._counts[status] += 1

    def _report(self, seconds: float, reasons: dict[str, str]) -> int:
        total = self._counts.total()
        counts = ", ".join(f"{count} {status}" for status, count in sorted(self._counts.items()))
        times = os.times()
        worked = times.user + times.system + times.children_user + times.children_system
        print(f"{total} mutants in {seconds:.0f} s, of the processor {worked:.0f} s: {counts}")
        by_module = Counter(mutant.module for mutant, _ in self._survivors)
        for module, count in by_module.most_common():
            print(f"  {module}: {count} survived")
        names = {mutant.name for mutant in self._all}
        stale = [name for name in reasons if name.partition(":")[0] in self._sources and name not in names]
        stale += [name for name in reasons if not self._module_exists(name)]
        for name in stale:
            print(f"accepted.txt names a mutant that does not exist: {name}")
        killed = sorted(self._killed & set(reasons))
        for name in killed:
            print(f"accepted.txt names a mutant that is killed: {name}")
        return 1 if self._survivors or stale or killed else 0

    def _module_exists(self, name: str) -> bool:
        return file_of(self._project.package, name.partition(":")[0]).exists()


def _terminated(*_: object) -> NoReturn:
    raise SystemExit(143)


if __name__ == "__main__":
    sys.exit(main())
