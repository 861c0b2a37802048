"""Writes docs/reference/what-is-retried.md from the tables: `python tests/tools/generate_what_is_retried.py`.

The page is generated so that it cannot drift from the code; a test fails when it is stale.
"""

from __future__ import annotations

import sys
from pathlib import Path

from redouble.classify import _retry_after as _hints
from redouble.classify import _table_classes as _classes
from redouble.classify import _table_codes as _codebook
from redouble.classify import _table_statuses as _catalogue
from redouble.classify import verdict

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "what-is-retried.md"

INTRODUCTION = """\
# What is retried: the tables

Look up here what redouble makes of a status, a number, a code or a class. The page is generated from the tables
in the source, so it is what the code does; [classify](classify.md) explains how they are used.

"Unprocessed" means that the failure itself shows that the call had no effect, so even a call that is not
idempotent is repeated. A "wrapper" is judged by what it wraps, and as shown here where nothing is found inside.
What is in no table is judged [by shape](#by-shape); what has no shape that tells is not retried.
"""


def yes(value: bool) -> str:
    return "yes" if value else "no"


def meaning(row: _catalogue.Meaning) -> list[str]:
    return [yes(row.retryable), yes(row.unprocessed), f"`{row.cause}`"]


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
    note = (
        "Any other number is not retried, and unprocessed. Unprocessed matters even where the table says no: "
        "a rule for `connection` may retry it, and nothing was sent."
    )
    return codes("Name resolution", "number", named, note)


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


def attributes(names: tuple) -> str:
    return ", ".join(f"`{name.strip()}`" for name in names)


def shapes() -> str:
    """The rules for classes that have no line of their own."""
    words: dict = {}
    for word, row in _classes.LAST_WORDS.items():
        words.setdefault(row, []).append(f"`{word}`")
    vetoes = attributes(tuple(word for vetoed in _classes.VETOES.values() for word in vetoed))
    rows = [
        [
            "a status of gRPC",
            "`code`, `status` or `status_code` is a member of an enumeration with gRPC's names",
        ],
        [
            "an HTTP status",
            f"on the response ({attributes(_catalogue.RESPONSE_ATTRIBUTES)}), or as one of "
            f"{attributes(_catalogue.ERROR_STATUSES)}; headers are {attributes(_catalogue.HEADER_ATTRIBUTES)}; "
            "`code` from 400 to 599 beside headers, or in a class of an installed package that has no codes of its own "
            f"and one of {attributes(_catalogue.HTTP_NAMES)} in its name, and none of "
            f"{attributes(_catalogue.OTHER_CODES)}. Of a limit of money on a 429, "
            f"{attributes(tuple(_codebook.HOPELESS))}: not retried",
        ],
        [
            "throttling by 400 or 403",
            "the code, the body or the text says one of "
            + attributes(_catalogue.THROTTLING_TEXTS)
            + ", or has a code of [AWS](#aws)",
        ],
        [
            "a delay in seconds",
            attributes(_catalogue.DELAY_ATTRIBUTES) + "; 0 is what libraries set where nothing was said",
        ],
        ["a claim", f"{attributes(_catalogue.CLAIM_ATTRIBUTES)} that is `True`"],
        [
            "an errno on an error that is not an `OSError`",
            "a number of a refused, lost or timed-out connection",
        ],
        [
            "every address failed",
            f"an `OSError` without errno whose text begins with `{_catalogue.ALL_ADDRESSES_FAILED.strip()}`: "
            "transient if one of the numbers in it is",
        ],
        [
            "an error inside",
            f"`__cause__`; an exception as {attributes(_catalogue.INNER_ATTRIBUTES)}, in `errors` or among "
            "`args`; a `__context__` whose text the outer error quotes. Unprocessed only from `__cause__`. An explicit "
            "transient `__cause__` outranks the row of a base class",
        ],
        [
            "a code in words",
            "of installed packages only, as `code`, `error_code` or `error`, there or in `body`, see below",
        ],
        ["the last word of the class name", "of installed packages only, see below"],
        ["a status in the text", f"of installed packages only, behind {attributes(_catalogue.STATUS_TEXTS)}"],
        [
            "words in the text",
            "of installed packages only, if the name has no veto: "
            + attributes(tuple(words for words, _ in _catalogue.TRANSIENT_TEXTS)),
        ],
    ]
    named = [[", ".join(names), *meaning(row)] for row, names in words.items()]
    note = (
        "The last word counts after `Error`, `Exception` and the like are taken off, and only where nothing above told "
        f"anything. A name that contains one of these words is no evidence: {vetoes}. The same words make a "
        "`ConnectionError` of an installed package permanent if it has no errno."
    )
    coded: dict = {}
    for word, row in _codebook.WORDED.items():
        coded.setdefault(row, []).append(f"`{word}`")
    worded = [[", ".join(names), *meaning(row)] for row, names in coded.items()]
    doubts = (
        "A claim, a code in words, a name, words in the text, and a status from 500 without an answer or headers are "
        "weak evidence. A bad certificate among the errors that led to the error (`__cause__` and `__context__`, "
        "the nearest eight) rules it out. So do, for a status only if it is 500, the code of a limit of money, and these "
        f"words in the text of the error: `access denied`, {attributes(tuple(_codebook.DOUBTS))}."
    )
    return "\n\n".join(
        [
            "## By shape",
            "For classes that have no line below. Asked in this order, from top to bottom.",
            table(["evidence", "where it is found"], rows),
            note,
            table(["last word", "retried", "unprocessed", "cause"], named),
            f"{attributes(_classes.ANYWHERE)} count anywhere in the name. Codes in words count in any case, with or without "
            "`_`, `-` and spaces:",
            table(["code", "retried", "unprocessed", "cause"], worded),
            doubts,
        ]
    )


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
                shapes(),
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
                    "SQLite",
                    "primary code",
                    dict.fromkeys(sorted(book.SQLITE_LOCKED), _catalogue.CONFLICT_NOT_SENT),
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
                codes("MQTT, refused connections", "code", book.MQTT),
                texts("tornado, code 599", book.TORNADO),
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
