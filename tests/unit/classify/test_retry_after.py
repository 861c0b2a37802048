"""Server hints: what each header means, in which order, and that nothing a server sends can raise."""

from __future__ import annotations

import ast
import re
import time
from http import HTTPStatus
from pathlib import Path
from unittest.mock import MagicMock, Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redouble._base import headers as _headers
from redouble._base.headers import header
from redouble.classify import _retry_after as _hints
from redouble.classify._retry_after import INTERESTING, hint, parse_retry_after, shows_limit


def headers_hint(headers, *, status=None, now=None):
    return hint(_headers.read_headers(headers, INTERESTING), status, now)


def limited(headers):
    return shows_limit(_headers.read_headers(headers, INTERESTING))


def should_retry(headers):
    return _hints.should_retry(_headers.read_headers(headers, INTERESTING))


PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "classify.md"
JUNE_2019 = 1559559600  # Mon, 03 Jun 2019 11:00:00 GMT
IN_2026 = 1785000000  # 25 July 2026


def label(value):
    return ascii(value)[:40] if isinstance(value, (str, bytes, int, float)) else type(value).__name__


# One value: numbers


@pytest.mark.parametrize(
    ("value", "delay"),
    [
        ("120", 120.0),  # RFC 9110 10.2.3
        ("0", 0.0),
        ("1000", 1000.0),
        ("\t42 ", 42.0),
        ("  5  ", 5.0),
        ("5\t", 5.0),
        ("007", 7.0),
        ("21601", 21601.0),  # urllib3 cuts at 6 h, envoy ignores above 5 min: here the policy decides
        ("99999999999", 99999999999.0),
        ("1.0", 1.0),  # urllib3 and envoy refuse fractions; Discord sends them, and the meaning is plain
        ("1.5", 1.5),
        ("2.5", 2.5),
        (".5", 0.5),
        ("5.", 5.0),
        ("9" * 32, float("9" * 32)),
        ("9" * 31 + ".", float("9" * 31)),
        (b"7", 7.0),
        (7, 7.0),
        (0, 0.0),
        (1.5, 1.5),
        (0.00001, 0.00001),
        (1e16, 1e16),
        (HTTPStatus.OK, 200.0),
        (["120", "60"], 120.0),
        ((b"3",), 3.0),
    ],
)
def test_a_plain_number_is_seconds(value, delay):
    assert parse_retry_after(value) == delay


@pytest.mark.parametrize(
    "value",
    [
        "", " ", "\t", ".", "..", "1.2.3", "1. 5", "1 2", "-1", "-5", "+1", "+5", "1e3", "0x10", "1_0",
        "1_000", "5s", "soon", "NaN", "nan", "inf", "Infinity", "-inf", "\u00b2", "1\u00b2",
        "\u0663", "\u0661\u0660", "\uff15", "\xe4", "\udce4", "5\udce4", "\x00", "5\x00", "5\n", "\xa05",
        "9" * 33, "9" * 400, "9" * 5000, " " * 600 + "5",
        "9" * 32 + ".",
        b"\xe4", b"\xd9\xa3", b"", b"\x00",
        True, False, None, -1, -0.5, float("nan"), float("inf"), float("-inf"), 10**400, 1e300,
        [], (), [None], [[5]], [True], {}, {"a": 1}, {5}, object(), 5j, bytearray(b"5"), Mock(), MagicMock(),
        "120,", ",", ",120", "120, soon", "120;60", "1,-1",
    ],
    ids=label,
)  # fmt: skip
def test_garbage_is_no_hint_and_no_exception(value):
    assert parse_retry_after(value) is None


@pytest.mark.parametrize("text", ["120, 60", "60, 120", "60,120", "60 ,\t120", "1.5, 120, 7"])
def test_of_repeated_lines_joined_by_the_client_the_longest_wait_counts(text):
    assert parse_retry_after(text) == 120.0


def test_a_value_of_256_characters_is_read_and_no_longer_one():
    assert parse_retry_after("7" + " " * 255) == 7.0
    assert parse_retry_after("7" + " " * 256) is None


class LoudText(str):
    def __str__(self):
        raise RuntimeError("no")

    def strip(self, *args):
        raise RuntimeError("no")


class LoudList(list):
    def __getitem__(self, index):
        raise RuntimeError("no")


class Masked:
    @property
    def __class__(self):
        raise RuntimeError("no")


def test_a_value_whose_own_methods_raise_is_read_by_its_base_type_or_not_at_all():
    assert parse_retry_after(LoudText("5")) == 5.0
    assert parse_retry_after(LoudList(["5"])) is None
    assert parse_retry_after(Masked()) is None
    assert parse_retry_after(MagicMock(spec=str)) is None


def test_a_number_type_that_prints_itself_otherwise_is_still_its_number():
    class Scalar(float):
        def __repr__(self):
            return f"np.float64({float(self)})"

    assert parse_retry_after(Scalar(1.5)) == 1.5


def test_an_integer_too_long_to_print_is_no_hint():
    assert parse_retry_after(10**5000) is None
    assert header({"x": 10**5000}, "x") is None


# All headers together


@pytest.mark.parametrize(
    ("headers", "delay"),
    [
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "1.5"}, 0.0015),
        ({"x-ms-retry-after-ms": "2500"}, 2.5),
        ({"x-amz-retry-after": "700"}, 0.7),
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "0"}, 0.0),
        ({"Retry-After": b"4"}, 4.0),
        ({"Retry-After": "120, 60"}, 120.0),
        ({"X-RateLimit-Reset-After": "4.25", "X-RateLimit-Remaining": "0"}, 4.25),
        ({"RateLimit": '"default";r=0;t=30', "RateLimit-Policy": '"default";q=100;w=60'}, 30.0),
        ({"RateLimit-Remaining": "0", "RateLimit-Reset": "17"}, 17.0),
        ({"RateLimit-Reset": str(IN_2026 + 17)}, 17.0),  # GitLab sends an epoch under the draft's name
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "45"}, 45.0),
        ({"X-RateLimit-Reset": "4.25"}, 4.25),
        ({"X-RateLimit-Reset": str(IN_2026 + 40)}, 40.0),
        ({"X-RateLimit-Reset": f"{IN_2026 + 40}.5"}, 40.5),  # envoy refuses; Discord sends it
        ({"X-RateLimit-Reset": f"{IN_2026 + 40}250"}, 40.25),
        ({"X-RateLimit-Reset": str(IN_2026 - 40)}, 0.0),  # envoy ignores the past; here it is zero everywhere
        ({"X-RateLimit-Reset": "1000000000"}, 0.0),
        ({"X-RateLimit-Reset": "999999999"}, 999999999.0),
        ({"X-RateLimit-Reset": "99999999999"}, 99999999999.0 - IN_2026),
        ({"X-RateLimit-Reset": "100000000000"}, 0.0),
        ({"X-RateLimit-Reset": "Sat, 25 Jul 2026 17:20:30 GMT"}, 30.0),
        ({"X-RateLimit-Reset": "2026-07-25T17:20:30Z"}, 30.0),
        ({"x-rate-limit-reset": str(IN_2026 + 9), "x-rate-limit-remaining": "0"}, 9.0),
        ({"x-ratelimit-reset-requests": "6m0s"}, 360.0),
        ({"x-ratelimit-reset-tokens": "1s"}, 1.0),
        ({"x-ratelimit-reset-requests": "30"}, 30.0),  # Azure OpenAI: bare seconds
        ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "6m0s"}, 360.0),
        ({"x-ratelimit-reset-requests": "6m0s", "x-ratelimit-reset-tokens": "1s"}, 360.0),
        ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "soon"}, 1.0),
        ({"anthropic-ratelimit-requests-reset": "2026-07-25T17:20:05Z"}, 5.0),
        ({"anthropic-ratelimit-tokens-reset": "2026-07-25T19:20:05.5+02:00"}, 5.5),
        ({"anthropic-ratelimit-input-tokens-reset": "2026-07-25T17:19:00Z"}, 0.0),
        (
            {
                "anthropic-ratelimit-tokens-reset": "2026-07-25T17:20:05Z",
                "anthropic-ratelimit-output-tokens-reset": "2026-07-25T17:20:09Z",
            },
            9.0,
        ),
    ],
)
def test_each_header_is_read_in_its_own_unit(headers, delay):
    assert headers_hint(headers, status=429, now=IN_2026) == pytest.approx(delay)


# A header of each row of _ROWS, in that order, and how it says a number of seconds.
HEADERS = [
    ("retry-after-ms", "{}000"),
    ("x-ms-retry-after-ms", "{}000"),
    ("x-amz-retry-after", "{}000"),
    ("Retry-After", "{}"),
    ("X-RateLimit-Reset-After", "{}"),
    ("RateLimit", '"a";r=0;t={}'),
    ("RateLimit-Reset", "{}"),
    ("X-RateLimit-Reset", "{}"),
    ("X-Rate-Limit-Reset", "{}"),
    ("x-ratelimit-reset-tokens", "{}s"),
    ("anthropic-ratelimit-requests-reset", "{}"),
]
# The same with values: the first says 1 second, the second 2, and so on.
BY_RANK = [(name, text.format(rank)) for rank, (name, text) in enumerate(HEADERS, start=1)]
RESETS = {name for _, reset, names in _hints._ROWS if reset for name in names}
RESETS_BY_RANK = [(name, value) for name, value in BY_RANK if name.lower() in RESETS]


def test_the_documentation_has_the_headers_that_are_read_row_by_row():
    table = PAGE.read_text("utf-8").partition("## Hints")[2].partition("\n- ")[0]
    cells = re.findall(r"^\| (`[^|]+) \|", table, flags=re.MULTILINE)
    in_docs = [tuple(re.findall("`([^`]+)`", cell.lower())) for cell in cells]
    assert in_docs == [names for _, _, names in _hints._ROWS], "docs/reference/classify.md and _ROWS differ"


def test_a_header_of_each_row_is_tried():
    tried = {name.lower() for name, _ in HEADERS}
    found = [[name for name in names if name in tried] for _, _, names in _hints._ROWS]
    assert found == [[name.lower()] for name, _ in HEADERS], (
        "HEADERS needs one header of each row of _ROWS, in the order of the rows"
    )


@pytest.mark.parametrize("rank", range(len(BY_RANK)))
def test_the_first_readable_header_in_order_of_precedence_wins(rank):
    better = [(name, "soon") for name, _ in BY_RANK[:rank]]
    assert headers_hint([*reversed(BY_RANK[rank:]), *better], status=429) == rank + 1
    assert headers_hint(dict(BY_RANK[rank:]) | dict(better), status=429) == rank + 1


@pytest.mark.parametrize("status", [200, 202, 302, 400, 404, 408, 500, 502, 504, 529])
def test_reset_headers_ride_on_every_answer_and_delay_none_but_the_limited(status):
    assert headers_hint(dict(RESETS_BY_RANK), status=status) is None
    for rank, (name, _) in enumerate(BY_RANK):
        if name.lower() not in RESETS:
            assert headers_hint(dict(BY_RANK[rank:]), status=status) == rank + 1


@pytest.mark.parametrize("status", [403, 429, 503, HTTPStatus.TOO_MANY_REQUESTS, None])
@pytest.mark.parametrize(("name", "value"), RESETS_BY_RANK)
def test_reset_headers_count_where_a_limit_may_be_the_reason_or_no_status_is_known(status, name, value):
    assert headers_hint({name: value}, status=status) is not None


REMAINING = [
    ("X-RateLimit-Reset-After", "5", "X-RateLimit-Remaining"),
    ("RateLimit-Reset", "5", "RateLimit-Remaining"),
    ("X-RateLimit-Reset", "5", "X-RateLimit-Remaining"),
    ("X-Rate-Limit-Reset", "5", "X-Rate-Limit-Remaining"),
    ("x-ratelimit-reset-requests", "5s", "x-ratelimit-remaining-requests"),
    ("x-ratelimit-reset-tokens", "5s", "x-ratelimit-remaining-tokens"),
    ("anthropic-ratelimit-requests-reset", "5", "anthropic-ratelimit-requests-remaining"),
    ("anthropic-ratelimit-tokens-reset", "5", "anthropic-ratelimit-tokens-remaining"),
    ("anthropic-ratelimit-input-tokens-reset", "5", "anthropic-ratelimit-input-tokens-remaining"),
    ("anthropic-ratelimit-output-tokens-reset", "5", "anthropic-ratelimit-output-tokens-remaining"),
]


def test_every_reset_header_is_tried_with_its_remaining_header():
    # RateLimit says itself how much remains.
    assert {reset.lower() for reset, *_ in REMAINING} == RESETS - {"ratelimit"}, "add the others to REMAINING"


@pytest.mark.parametrize("status", [403, 429, 503, None])
def test_a_reset_header_counts_only_while_nothing_remains(status):
    for reset, value, remaining in REMAINING:
        assert headers_hint({reset: value}, status=status) == 5.0
        assert headers_hint({reset: value, remaining: "0"}, status=status) == 5.0
        assert hint({remaining.lower(): "0", reset.lower(): value}, status, None) == 5.0
        assert headers_hint({reset: value, remaining: "unknown"}, status=status) == 5.0
        assert headers_hint({reset: value, remaining: "7"}, status=status) is None
        assert headers_hint({reset: value, remaining: "7", "Retry-After": "3"}, status=status) == 3.0


def test_of_two_buckets_only_the_empty_one_counts():
    headers = {
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-tokens": "6m0s",
        "x-ratelimit-remaining-tokens": "149984",
    }
    assert headers_hint(headers, status=429) == 1.0


def test_a_duration_is_the_sum_of_its_numbers_each_in_its_unit():
    for text, delay in {
        "1d": 86400.0, "1h2m3s": 3723.0, "2m59.56s": 179.56, "12ms": 0.012, "1s5us": 1.000005,
        "5ms250us": 0.00525, "2000ns": 0.000002,
    }.items():  # fmt: skip
        assert headers_hint({"x-ratelimit-reset-requests": text}, status=429) == pytest.approx(delay)


@pytest.mark.parametrize(
    "text", ["-1", "-1s", "s", "5x", "5m3", "5m 3s", "1..5s", "1h-2m", "", "\xb5s", "1e3s", "m5"]
)
def test_a_duration_that_is_none_is_ignored(text):
    assert headers_hint({"x-ratelimit-reset-requests": text}, status=429) is None


@pytest.mark.parametrize(
    "text",
    [
        "2026-07-25T17:20:05",
        "2026-07-25",
        "2026-02-31T00:00:00Z",
        "12:00",
        "-5",
        "soon",
        "\u0662026-07-25T17:20:05Z",
        "",
    ],
)
def test_a_reset_moment_that_is_none_is_ignored(text):
    assert headers_hint({"anthropic-ratelimit-requests-reset": text}, status=429, now=IN_2026) is None


@pytest.mark.parametrize(
    ("text", "delay"),
    [
        ('"default";r=0;t=30', 30.0),
        ('"default"; r=0; t=30', 30.0),
        ('"default";t=30;r=0', 30.0),
        ('"default";r=0;t=30;pk=:cHsdsRa894==:', 30.0),
        ("default;r=0;t=30", 30.0),
        ('"default";r=0;t=0', 0.0),
        ('"a;r=9, b";r=0;t=30', 30.0),
        (r'"a\"b";r=0;t=30', 30.0),
        ('"hour";r=0;t=90, "day";r=0;t=4000', 4000.0),
        ('"hour";r=0;t=90, "day";r=5;t=4000', 90.0),
        ('"a";t=30', 30.0),
        ("limit=10, remaining=0, reset=5", 5.0),
        ("limit=10, remaining=3, reset=5", None),
        ("limit=10, remaining=0, reset=5, limit=99, remaining=3, reset=9", 9.0),  # two lines, joined
        ('default;r=0;t=30 "seconds"', 30.0),
        (r'"default";r=0;t=\"30\"', 30.0),
        ('"default";r=1;t=30', None),
        ('"default";r=0', None),
        ('"default";r=0;t=-30', None),
        ('"default";r=0;t=soon', None),
        ('"default";r=x;t=30', None),
        ('"default;r=0;t=30', None),
        ('"hour";r=0;t=30, "day', None),
        ('"default"', None),
        ("0", None),
        ("", None),
    ],
)
def test_the_ratelimit_field_gives_the_longest_reset_of_its_exhausted_policies(text, delay):
    assert headers_hint({"RateLimit": text}, status=429) == delay


def test_a_date_is_measured_from_the_answers_own_date_whatever_the_local_clock_says():
    headers = {"Date": "Mon, 03 Jun 2019 11:00:00 GMT", "Retry-After": "Mon, 03 Jun 2019 11:00:30 GMT"}
    assert headers_hint(headers, status=503, now=JUNE_2019 + 86400) == 30.0
    assert headers_hint(headers, status=503, now=JUNE_2019 - 86400) == 30.0
    reset = {"Date": headers["Date"], "X-RateLimit-Reset": str(JUNE_2019 + 30)}
    assert headers_hint(reset, status=429, now=JUNE_2019 + 86400) == 30.0


def test_an_unreadable_date_of_the_answer_leaves_the_local_clock():
    headers = {"Date": "yesterday", "Retry-After": "Mon, 03 Jun 2019 11:00:30 GMT"}
    assert headers_hint(headers, status=503, now=JUNE_2019) == 30.0


def test_the_answers_date_does_not_change_a_delay_in_seconds():
    assert headers_hint({"Date": "Mon, 03 Jun 2019 11:00:00 GMT", "Retry-After": "7"}, now=IN_2026) == 7.0


def test_digits_of_other_scripts_are_no_hint_in_headers_either():
    assert headers_hint({"Retry-After": "\u0663"}) is None
    assert headers_hint({"Retry-After": "1\u00b2"}) is None


def test_a_number_of_seconds_is_measured_from_nothing(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: pytest.fail("the clock was asked"))
    assert headers_hint({"Retry-After": "999999999"}) == 999999999.0


def test_repeated_lines_kept_apart_count_as_if_joined():
    assert headers_hint([("Retry-After", "60"), ("retry-after", "120")]) == 120.0
    date = "Mon, 03 Jun 2019 11:00:30 GMT"
    assert headers_hint([("Retry-After", date), ("Retry-After", date)], now=JUNE_2019) == 30.0


# Evidence of a limit, and the server's verdict


@pytest.mark.parametrize(
    ("headers", "evidence"),
    [
        ({"Retry-After": "60"}, True),
        ({"Retry-After": "0"}, True),
        ({"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}, True),
        ({"retry-after-ms": "60"}, True),
        ({"x-amz-retry-after": "60"}, True),
        ({"Retry": "0"}, False),
        ({"Retry-After": "soon"}, False),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "45"}, True),
        ({"X-RateLimit-Remaining": "7", "X-RateLimit-Reset": "45"}, False),
        ({"X-RateLimit-Reset": "45"}, False),
        ({"x-rate-limit-remaining": "0"}, True),
        ({"RateLimit-Remaining": "0"}, True),
        ({"RateLimit": '"a";r=0;t=30'}, True),
        ({"RateLimit": '"a";r=0'}, True),
        ({"RateLimit": '"a";r=4, "b";r=0'}, True),
        ({"RateLimit": '"a";r=4;t=30'}, False),
        ({"RateLimit": '"a";t=30'}, False),
        ({"anthropic-ratelimit-tokens-remaining": "0"}, True),
        ({}, False),
        (None, False),
    ],
)
def test_a_limit_shows_by_a_delay_or_by_nothing_remaining(headers, evidence):
    assert limited(headers) is evidence


@pytest.mark.parametrize(
    ("headers", "verdict"),
    [
        ({"x-should-retry": "true"}, True),
        ({"x-should-retry": "false"}, False),
        ({"X-Should-Retry": b" False\t"}, False),
        ({"Stripe-Should-Retry": "true"}, True),
        ({"Stripe-Should-Retry": "false"}, False),
        ({"x-should-retry": "true", "Stripe-Should-Retry": "false"}, True),
        ({"x-should-retry": "maybe", "Stripe-Should-Retry": "false"}, False),
        ({"x-should-retry": "true" + " " * 252}, True),
        ({"x-should-retry": "true" + " " * 253}, None),
        ({"x-should-retry": " " * 300, "Stripe-Should-Retry": "false"}, False),
        ({"x-should-retry": "1"}, None),
        ({"x-should-retry": ""}, None),
        ({"x-should-retry": True}, None),
        ({}, None),
        (None, None),
    ],
)
def test_the_servers_verdict_is_true_false_or_nothing(headers, verdict):
    assert should_retry(headers) is verdict


# Nothing raises, nothing is slow, nothing dear is imported

ANY_TEXT = st.text() | st.text('0123456789.,;:=-+ \trtRT"\\hmsdGMTSunNov', max_size=40)
ANY_VALUE = st.one_of(
    ANY_TEXT,
    st.binary(),
    st.integers(),
    st.floats(),
    st.none(),
    st.booleans(),
    st.lists(ANY_TEXT, max_size=2),
)
ANY_NAME = st.sampled_from([name for _, _, names in _hints._ROWS for name in names] + ["date"]) | st.text()


def is_a_delay_or_nothing(delay):
    return delay is None or (type(delay) is float and 0 <= delay < float("inf"))


@given(ANY_VALUE)
def test_no_value_makes_the_parser_raise_or_answer_anything_but_a_delay(value):
    assert is_a_delay_or_nothing(parse_retry_after(value, now=IN_2026))


@given(st.lists(st.tuples(ANY_NAME, ANY_VALUE), max_size=6), st.sampled_from([None, 403, 429, 500]))
def test_no_headers_make_the_readers_raise(pairs, status):
    for headers in (pairs, dict(pairs)):
        assert is_a_delay_or_nothing(headers_hint(headers, status=status, now=IN_2026))
        assert limited(headers) in (True, False)
        assert should_retry(headers) in (True, False, None)


@pytest.mark.parametrize(
    "filler", ["9", " ", ",", "1,", ";", "=", '"', "1s", "a", "\u0663", "Sun, ", ".", "-", "r=0;t=1,"]
)
def test_a_header_of_64_kib_costs_less_than_a_millisecond(filler):
    value = (filler * 65536)[:65536]

    def best(function, *args):
        times = []
        for _ in range(20):
            start = time.perf_counter()
            function(*args)
            times.append(time.perf_counter() - start)
        return min(times)

    assert best(parse_retry_after, value) < 0.001
    for name in ("retry-after", "ratelimit", "x-ratelimit-reset-tokens", "x-should-retry"):
        assert best(headers_hint, {name: value}) < 0.001
        # As long as is still read: 0.2 ms at worst, with room for coverage on a busy machine.
        assert best(headers_hint, {name: value[:256]}) < 0.005
        assert best(should_retry, {name: value}) < 0.001


def test_the_modules_import_nothing_dear():
    for module in (_headers, _hints):
        tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
        names = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
        assert names <= {"__future__", "functools", "itertools", "time", "_base.headers"}
