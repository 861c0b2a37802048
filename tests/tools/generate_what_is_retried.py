"""Write docs/reference/what-is-retried.md from the tables: `python tests/tools/generate_what_is_retried.py`.

The page is generated so that it cannot drift from the code; a test fails when it is stale.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from redouble.classify import _table_classes as _classes
from redouble.classify import _table_codes as _codebook
from redouble.classify import _table_statuses as _catalogue
from redouble.classify import verdict

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "what-is-retried.md"

INTRODUCTION = """\
# What is retried: the tables

Look up a status, an error number, a code or a class, and read whether redouble retries it. The tables are generated from
the source; [classify](classify.md) explains how redouble uses them.

| column | meaning |
| --- | --- |
| retried | redouble retries the failure; "with a hint" means only if the server also says when to come back |
| unprocessed | the failure shows that the request was not executed, so even a POST is repeated |
| cause | the [`Cause`](classify.md#the-verdict), also a key of [rules](policy.md#rules-some-failures-are-different) |
| wrapper | the error inside decides; the row applies if there is none |

An error that is in no table is judged [by shape](#by-shape). Without evidence it is not retried.
"""

REFUSED = "The request itself is the reason."
# Why a status is retried or not; statuses with the same reason share a row.
REASONS = {
    408: "The client may repeat it (RFC 9110 15.5.9), but gateways also use it for other timeouts.",
    421: "Sent to the wrong server; may be repeated whatever the method (RFC 9110 15.5.20).",
    425: "Refused because it came early (RFC 8470).",
    429: "Rejected before processing (RFC 6585).",
    500: "The server failed; how far it got is unknown.",
    **dict.fromkeys((502, 504), "The server behind the gateway may have acted."),
    503: "A server that says when to come back has not processed the request; a bare 503 does not show that.",
    **dict.fromkeys((520, 527, 530), "A CDN could not read the origin's response, or not reach the origin."),
    **dict.fromkeys((521, 523, 525), "A CDN got no connection to the origin."),
    **dict.fromkeys((522, 524), "The origin did not answer a CDN in time."),
    529: "Overloaded.",
    **dict.fromkeys((598, 599), "A proxy's timeout."),
    403: "Some APIs send it for a rate limit. The hint must be a delay, or a *remaining* header of 0.",
    409: "The state of the resource is the reason, which seldom changes by itself.",
    413: "Too large; temporary only if the server says so (RFC 9110 15.5.14).",
    423: "Locked.",
    **dict.fromkeys((401, 407), "A rule with `recover` can refresh a token."),
    **dict.fromkeys((400, 402, 404, 405, 406, 410, 411, 412, 414, 415, 416, 417), REFUSED),
    **dict.fromkeys((418, 422, 424, 426, 428, 431, 451, 499), REFUSED),
    **dict.fromkeys(
        (501, 505, 506, 507, 508, 509, 510, 511, 526), "The server cannot do this, now or later."
    ),
}


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
    """One row for statuses that mean the same for the same reason, those that are retried first."""
    grouped: dict[tuple[str, ...], list[str]] = {}
    for status in sorted({*REASONS, *_catalogue.STATUS_CAUSES}):
        bare, hinted = (
            verdict((status, headers, b""))
            for headers in ({}, {"Retry-After": "5", "x-ratelimit-remaining": "0"})
        )
        retried = "yes" if bare.retryable else "with a hint" if hinted.retryable else "no"
        safe = "yes" if bare.unprocessed else "with a hint" if hinted.unprocessed else "no"
        cause = (hinted if retried == "with a hint" else bare).cause
        grouped.setdefault((retried, safe, f"`{cause}`", REASONS[status]), []).append(str(status))
    order = ["yes", "with a hint", "no"]
    rows = sorted(
        ([", ".join(found), *key] for key, found in grouped.items()), key=lambda row: order.index(row[1])
    )
    note = "Other statuses count as the first of their class (RFC 9110 15): 4xx as 400, 5xx as 500. [Headers and codes](classify.md#http-statuses) can overrule the table."
    return "\n\n".join(
        ["## HTTP statuses", table(["status", "retried", "unprocessed", "cause", "reason"], rows), note]
    )


def errno_lines() -> str:
    named = {name: row for row, names in _catalogue.ERRNO_NAMES.items() for name in names.split()}
    return codes(
        "The operating system",
        "errno",
        named,
        "Windows numbers of the same failures count alike. Other numbers are not retried.",
    )


def dns_lines() -> str:
    named = {name: row for row, names in _catalogue.DNS_NAMES.items() for name in names.split()}
    note = (
        "Other numbers are not retried, and unprocessed: if a rule for `connection` retries them, even a POST is "
        "repeated, because nothing was sent."
    )
    return codes("Name resolution", "number", named, note)


def libraries() -> str:
    rows = []
    for package in sorted(_classes.PACKAGES, key=str.lower):
        for row, names in _classes.PACKAGES[package].items():
            classes = ", ".join(f"`{name}`" for name in names.split())
            rows.append([f"`{package}`", classes, *meaning(row), yes(row.inside)])
    aliases = ", ".join(f"`{fork}` as `{package}`" for fork, package in sorted(_classes.ALIASES.items()))
    columns = ["package", "classes", "retried", "unprocessed", "cause", "wrapper"]
    note = (
        "Classes that numbers and shapes do not tell apart, and their subclasses. "
        f"Forks and successors count as the original: {aliases}."
    )
    return "\n\n".join(["## Classes by library", note, table(columns, rows)])


def control_flow() -> str:
    rows = [
        [f"`{package}`", ", ".join(f"`{name}`" for name in names.split())]
        for package, names in _classes._CONTROL_FLOW.items()
    ]
    note = (
        "These classes, their subclasses, `StopIteration` and `StopAsyncIteration` control a framework or a loop. They "
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
            "a gRPC status",
            "`code`, `status` or `status_code` is a member of an enumeration with gRPC's names",
        ],
        [
            "an HTTP status",
            f"on the response ({attributes(_catalogue.RESPONSE_ATTRIBUTES)}), or in "
            f"{attributes(_catalogue.ERROR_STATUSES)}; headers in {attributes(_catalogue.HEADER_ATTRIBUTES)}",
        ],
        [
            "an HTTP status in `code`",
            "a number from 400 to 599, beside headers, or in a class of an installed package that has no codes of its "
            f"own and whose name has one of {attributes(_catalogue.HTTP_NAMES)}, and none of "
            f"{attributes(_catalogue.OTHER_CODES)}",
        ],
        [
            "a spent quota on a 429",
            f"the code is one of {attributes(tuple(_codebook.HOPELESS))}: not retried",
        ],
        [
            "throttling by 400 or 403",
            "the code, the body or the text says one of "
            + attributes(_catalogue.THROTTLING_TEXTS)
            + ", or has a code of [AWS](#aws)",
        ],
        [
            "a delay in seconds",
            attributes(_catalogue.DELAY_ATTRIBUTES) + "; 0 does not count: libraries set it by default",
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
            "a tunnel that a proxy refused",
            f"an `OSError` whose text begins with `{_catalogue.TUNNEL_REFUSED.strip()}`, or a `ProxyError` of httpx: "
            "by the status in it; nothing was sent",
        ],
        [
            "an error inside",
            f"`__cause__`; an exception as {attributes(_catalogue.INNER_ATTRIBUTES)}, in `errors` or among "
            "`args`; a `__context__` whose text the outer error quotes. Unprocessed only from `__cause__`. An explicit "
            "transient `__cause__` outranks the row of a base class",
        ],
        [
            "a code in words",
            "of installed packages only: in `code`, `error_code` or `error`, on the error or in its `body`, see below",
        ],
        ["the last word of the class name", "of installed packages only, see below"],
        ["a status in the text", f"of installed packages only, after {attributes(_catalogue.STATUS_TEXTS)}"],
        [
            "words in the text",
            "of installed packages only, if the name has no veto: "
            + attributes(tuple(words for words, _ in _catalogue.TRANSIENT_TEXTS)),
        ],
    ]
    named = [[", ".join(names), *meaning(row)] for row, names in words.items()]
    note = (
        "The last word counts after `Error`, `Exception` and the like are removed, and only if nothing above decides. "
        f"A name that contains one of these words is not evidence: {vetoes}. The same words make a "
        "`ConnectionError` of an installed package permanent if it has no errno."
    )
    coded: dict = {}
    for word, row in _codebook.WORDED.items():
        coded.setdefault(row, []).append(f"`{word}`")
    worded = [[", ".join(names), *meaning(row)] for row, names in coded.items()]
    doubts = (
        "A claim, a code in words, a name, words in the text, and a status from 500 without a response or headers are "
        "weak evidence. A bad certificate among the nearest eight errors in `__cause__` and `__context__` rules it out. "
        "So do the code of a spent quota and these words in the text of the error (for a status, only if it is 500): "
        f"`access denied`, {attributes(tuple(_codebook.DOUBTS))}."
    )
    return "\n\n".join(
        [
            "## By shape",
            "For classes that are in no table. redouble looks for this evidence from top to bottom.",
            table(["evidence", "where it is found"], rows),
            note,
            table(["last word", "retried", "unprocessed", "cause"], named),
            f"{attributes(_classes.ANYWHERE)} count anywhere in the name. Codes in words count in upper and lower case, with "
            "or without `_`, `-` and spaces:",
            table(["code", "retried", "unprocessed", "cause"], worded),
            doubts,
        ]
    )


def texts(title: str, lines: tuple) -> str:
    rows = [[f"`{text}`", *meaning(row)] for text, row in lines]
    return f"## {title}\n\n" + table(["text", "retried", "unprocessed", "cause"], rows)


def anchor(title: str) -> str:
    """Return the anchor of a heading, as code hosts make it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def page() -> str:
    book = _codebook
    smtp = (
        "## SMTP\n\nReplies from 400 to 499 are retried and unprocessed; a plain `SMTPResponseException` is not "
        "unprocessed, because it may follow a mail that was accepted. Replies from 500 are not retried; "
        f"{', '.join(map(str, sorted(book.SMTP_UNAUTHORIZED)))} are `unauthorized`."
    )
    tls = (
        "## TLS\n\nRetried, as `disconnected`: a connection that was closed, and the reasons "
        f"{attributes(tuple(sorted(_catalogue.TLS_TRANSIENT)))}. A bad certificate and other reasons are not retried."
    )
    sections = [
        statuses(),
        errno_lines(),
        dns_lines(),
        tls,
        codes("SQLSTATE", "code", book.SQLSTATES, "Of any driver. Every other SQLSTATE is not retried."),
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
        codes("gRPC", "code", book.GRPC, "`grpc-retry-pushback-ms` and RetryInfo are read as delays."),
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
        shapes(),
    ]
    titles = [section.partition("\n")[0].removeprefix("## ") for section in sections]
    jumps = ", ".join(f"[{title}](#{anchor(title)})" for title in titles)
    return "\n\n".join([INTRODUCTION.strip(), f"Tables: {jumps}.", *sections]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}", file=sys.stderr)
