"""Compare redouble with other retry libraries by running them, and write the comparison page.

    pip install -e ".[bench,loops]"
    python tests/tools/benchmarks/compare.py            # writes docs/explanation/comparison.md, prints the short table
    python tests/tools/benchmarks/compare.py --print    # prints both, writes nothing
    python tests/tools/benchmarks/compare.py --quick    # fewer rounds: rougher figures

A `Library` has the code for each task with one library; if there are several ways, all are given, and the best one
counts. A probe takes a library, runs it, and returns what it saw as a `Cell`: a few words, and for "no" a note on the
nearest feature. Waits are skipped; attempts that take time take 0.15 s. Only the part between the two markers of the page
is written.
"""

from __future__ import annotations

import argparse
import platform
import sys
from pathlib import Path

if not __package__:  # run as a script: make the package findable, as pytest does
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import bench
from benchmarks.comparison.base import Cell, Library
from benchmarks.comparison.behaviour import PROBES, muted
from benchmarks.comparison.features import FEATURES
from benchmarks.comparison.figures import sizes, timings
from benchmarks.comparison.libraries import Backoff, Redouble, Stamina, Tenacity
from benchmarks.comparison.other_libraries import Opnieuw, Pyresilience, Redress

PAGE = Path(__file__).resolve().parents[3] / "docs" / "explanation" / "comparison.md"
MARK = "\\*"  # on a cell that has a note
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
SHORT = ("redouble", "tenacity", "stamina", "backoff")

LIBRARIES: list[type[Library]] = [Redouble, Tenacity, Stamina, Backoff, Opnieuw, Redress, Pyresilience]


def installed() -> list[Library]:
    found = []
    for kind in LIBRARIES:
        try:
            found.append(kind())
        except ImportError as error:
            print(f"missing, so not compared: {kind.name} ({error})", file=sys.stderr)
    return found


def table(head: str, names: list[str], rows: dict[str, list[str]]) -> str:
    lines = [[head, *names], ["---"] * (len(names) + 1), *([row, *cells] for row, cells in rows.items())]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def with_notes(probes: list[str], libraries: list[Library], cells: dict[tuple[str, str], Cell]) -> str:
    """Return a table, and below it the notes of its cells, by row; a note that several cells share is there once."""
    names = [library.name for library in libraries]
    lines: list[str] = []
    rows: dict[str, list[str]] = {}
    for probe in probes:
        found = {name: cells[probe, name] for name in names}
        rows[probe] = [f"{cell.text} {MARK}" if cell.note else cell.text for cell in found.values()]
        notes = dict.fromkeys(cell.note for cell in found.values() if cell.note)
        lines += [f"- {probe}:"] if notes else []
        for note in notes:
            about = ", ".join(name for name, cell in found.items() if cell.note == note)
            lines.append(f"  - {about}: {note}")
    return "\n\n".join([table("", names, rows), "\n".join(lines)])


def strengths(libraries: list[Library]) -> str:
    text = []
    for library in libraries:
        found = library.strengths()
        for sentence, check in found.items():
            if not check():
                raise AssertionError(f"{library.name}: not so: {sentence}")
        if found:
            text.append(f"### {library.name}\n\n" + "\n".join(f"- {sentence}" for sentence in found))
    return "\n\n".join(text)


def measured(libraries: list[Library], rounds: int, import_rounds: int) -> tuple[str, str]:
    """Return the text between the markers, and the short table."""
    with muted():
        cells = {
            (name, library.name): probe(library) for name, probe in PROBES.items() for library in libraries
        }
        praise = strengths(libraries)
    figures = sizes(libraries) | timings(libraries, rounds, import_rounds)
    names = [library.name for library in libraries]
    behaviour = [name for name in PROBES if name not in FEATURES]
    text = "\n\n".join(
        [
            "## What they do",
            with_notes(behaviour, libraries, cells),
            "## What they have",
            with_notes(list(FEATURES), libraries, cells),
            "## What they weigh and cost",
            f"{platform.python_implementation()} {platform.python_version()}, one machine; the best of {rounds} short "
            f"rounds, and of {import_rounds} new processes for the import.",
            table("", names, {row: [found[name] for name in names] for row, found in figures.items()}),
            "## What the others do well",
            praise,
        ]
    )
    return text, short(libraries, cells, figures)


def short(
    libraries: list[Library], cells: dict[tuple[str, str], Cell], figures: dict[str, dict[str, str]]
) -> str:
    names = [library.name for library in libraries if library.name in SHORT]
    probes = {
        "raised at the end": "raised at the end",
        "Ctrl-C under a catch-all": "Ctrl-C under the broadest setting",
        "`Retry-After` waited for": "`Retry-After` of a 503 is waited for",
        "conditions joined by operators": "conditions joined by operators",
        "Prometheus with no set-up": "Prometheus with no set-up",
    }
    by_default = ("with nothing configured, retries", "at most, by default")
    rows = {
        "by default, retries": [", ".join(cells[probe, name].text for probe in by_default) for name in names]
    }
    rows |= {row: [cells[probe, name].text for name in names] for row, probe in probes.items()}
    for row in ("a sync success, ns", "three failures, then a success, µs", "lines of Python"):
        rows[row] = [figures[row][name] for name in names]
    return table("", names, rows)


def told(page: str) -> dict[tuple[str, str], Cell]:
    """Read the cells back from the tables and notes of the page."""
    inside = page.partition(BEGIN)[2].partition(END)[0].partition("## What they weigh")[0]
    found: dict[tuple[str, str], Cell] = {}
    for section in inside.split("\n## "):
        notes = noted(section)
        rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
        for probe, *texts in rows[2:]:
            for name, text in zip(rows[0], texts, strict=True):
                words = text.removesuffix(f" {MARK}")
                found[probe, name] = Cell(words, notes[probe, name] if words != text else "")
    return found


def noted(section: str) -> dict[tuple[str, str], str]:
    notes, probe = {}, ""
    for line in section.splitlines():
        if line.startswith("- "):
            probe = line[2:-1]
        elif line.startswith("  - "):
            names, _, note = line[4:].partition(": ")
            notes |= {(probe, name): note for name in names.split(", ")}
    return notes


def replaced(page: str, text: str) -> str:
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{PAGE.name} has no markers for the tables: put {BEGIN} and {END} into it")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--print", action="store_true", help="print the tables, write nothing")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    arguments = parser.parse_args(argv)
    rounds = (
        (bench.QUICK_ROUNDS, bench.QUICK_IMPORT_ROUNDS)
        if arguments.quick
        else (bench.ROUNDS, bench.IMPORT_ROUNDS)
    )
    libraries = installed()
    text, readme = measured(libraries, *rounds)
    if arguments.print:
        print(text)
    elif len(libraries) < len(LIBRARIES):
        raise SystemExit("the page is written only where all libraries are installed")
    else:
        PAGE.write_text(replaced(PAGE.read_text("utf-8"), text), encoding="utf-8")
    print(readme)


if __name__ == "__main__":
    main()
