"""Writes docs/reference/what-is-retried.md from the tables: `python tests/generate_what_is_retried.py`.

The page is generated so that it cannot drift from the code; a test fails when it is stale.
"""

from __future__ import annotations

import sys
from pathlib import Path

from redouble import _catalogue, _classes, _codebook, _hints
from redouble.classify import verdict

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "what-is-retried.md"

INTRODUCTION = """\
# What is retried: the tables

Look up here what redouble makes of a status, a number, a code or a class. The page is generated from the tables
in the source, so it is what the code does; [classify](classify.md) explains how they are used.

"Unprocessed" means that the failure itself shows that the call had no effect, so even a call that is not
idempotent is repeated. A "wrapper" is judged by what it wraps, and as shown here where nothing is found inside.
What is in no table is not retried.
"""


def yes(value: bool) -> str:
    return "yes" if value else "no"


def meaning(row: _catalogue.Row) -> list[str]:
    return [yes(row.retryable), yes(row.retryable and row.unprocessed), f"`{row.cause}`"]


def table(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def codes(title: str, what: str, known: dict, note: str = "") -> str:
    """One table: codes that mean the same in one line."""
    by_row: dict = {}
    for code, row in known.items():
        by_row.setdefault(row, []).append(f"`{code}`")
    rows = [[", ".join(names), *meaning(row)] for row, names in by_row.items()]
    return "\n\n".join(
        filter(None, [f"## {title}", note, table([what, "retried", "unprocessed", "cause"], rows)])
    )


def statuses() -> str:
    rows = []
    for status in range(400, 600):
        bare, hinted = (
            verdict((status, headers, b""))
            for headers in ({}, {"Retry-After": "5", "x-ratelimit-remaining": "0"})
        )
        if status in _catalogue.STATUS_CAUSES or hinted.retryable != (status >= 500):
            retried = "yes" if bare.retryable else "with a hint" if hinted.retryable else "no"
            safe = "yes" if bare.unprocessed else "with a hint" if hinted.unprocessed else "no"
            rows.append(
                [str(status), retried, safe, f"`{(hinted if retried == 'with a hint' else bare).cause}`"]
            )
    known = [row for row in rows if row[1:] != ["no", "no", "`permanent`"]]
    rest = ", ".join(row[0] for row in rows if row not in known)
    note = (
        "A 4xx without a line is not retried, a 5xx without a line is treated as 500. Not retried either: "
        f"{rest}."
        if rest
        else ""
    )
    return "\n\n".join(
        ["## HTTP statuses", table(["status", "retried", "unprocessed", "cause"], known), note]
    )


def errno_lines() -> str:
    named = {name: row for row, names in _catalogue.ERRNO_NAMES.items() for name in names.split()}
    return codes(
        "The operating system",
        "errno",
        named,
        "By name, where the platform has it. Other numbers are not retried.",
    )


def dns_lines() -> str:
    named = {name: row for row, names in _catalogue.DNS_NAMES.items() for name in names.split()}
    return codes("Name resolution", "number", named)


def headers() -> str:
    rows = [
        [str(order), ", ".join(f"`{name}`" for name in names), "403, 429, 503" if reset else "any"]
        for order, (_, reset, names) in enumerate(_hints._ROWS, start=1)
    ]
    verdicts = ", ".join(f"`{name}`" for name in _hints._SHOULD_RETRY)
    note = (
        f"The first that gives a delay counts. {verdicts}: `true` or `false` overrules the table of statuses."
    )
    return "\n\n".join(["## Headers", note, table(["order", "header", "on status"], rows)])


def libraries() -> str:
    rows = []
    for package in sorted(_classes.PACKAGES, key=str.lower):
        for row, names in _classes.PACKAGES[package].items():
            classes = ", ".join(f"`{name}`" for name in names.split())
            rows.append([f"`{package}`", classes, *meaning(row), yes(row.inside)])
    aliases = ", ".join(f"`{fork}` as `{package}`" for fork, package in sorted(_classes.ALIASES.items()))
    columns = ["package", "classes", "retried", "unprocessed", "cause", "wrapper"]
    note = (
        "Classes that neither a number nor a shape tells apart, and all that derive from them. "
        f"Forks and successors count as the original: {aliases}."
    )
    return "\n\n".join(["## Classes by library", note, table(columns, rows)])


def control_flow() -> str:
    rows = [
        [f"`{package}`", ", ".join(f"`{name}`" for name in names.split())]
        for package, names in _classes._CONTROL_FLOW.items()
    ]
    note = (
        "These, all that derive from them, `StopIteration` and `StopAsyncIteration` steer a framework or a loop. They "
        "are not retried, whatever `on` and `rules` say, unless a policy names the class."
    )
    return "\n\n".join(["## Control flow", note, table(["package", "classes"], rows)])


def texts(title: str, lines: tuple) -> str:
    rows = [[f"`{text}`", *meaning(row)] for text, row in lines]
    return f"## {title}\n\n" + table(["text", "retried", "unprocessed", "cause"], rows)


def page() -> str:
    book = _codebook
    smtp = "## SMTP\n\nReplies from 400 to 499 are retried and unprocessed, those from 500 are not retried."
    return (
        "\n\n".join(
            [
                INTRODUCTION.strip(),
                statuses(),
                headers(),
                errno_lines(),
                dns_lines(),
                codes(
                    "SQLSTATE", "code", book.SQLSTATES, "Of any driver. Every other SQLSTATE is not retried."
                ),
                texts("PostgreSQL without SQLSTATE", book.LIBPQ),
                codes("MySQL and MariaDB", "number", book.MYSQL),
                codes("SQL Server", "number", book.SQLSERVER),
                codes("Oracle", "code", book.ORACLE),
                codes(
                    "SQLite", "primary code", dict.fromkeys(sorted(book.SQLITE_LOCKED), _catalogue.LOCKED_OUT)
                ),
                codes("MongoDB", "label or code", {**dict(book.MONGODB_LABELS), **book.MONGODB}),
                codes("Redis", "first word of the reply", book.REDIS),
                codes(
                    "gRPC", "code", book.GRPC, "`grpc-retry-pushback-ms` and RetryInfo are read as delays."
                ),
                codes(
                    "AWS",
                    "`Error.Code`",
                    book.AWS,
                    "These beat the HTTP status; every other code is judged by it.",
                ),
                codes("Kafka (librdkafka)", "name", book.KAFKA),
                codes("AMQP", "reply code", book.AMQP),
                codes("LDAP", "result", book.LDAP),
                smtp,
                codes("libcurl", "code", book.CURL),
                codes("WebSocket", "close code", book.WEBSOCKET_CLOSES),
                libraries(),
                control_flow(),
            ]
        )
        + "\n"
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}", file=sys.stderr)
