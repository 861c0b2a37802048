"""Headers are found in whatever a client library keeps them in."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from email.message import Message
from types import MappingProxyType
from unittest.mock import AsyncMock, MagicMock, Mock

import pytest

from redouble._base import headers as _headers
from redouble._base.headers import header
from redouble.classify import _retry_after as _hints
from redouble.classify._retry_after import INTERESTING, hint, shows_limit


def headers_hint(headers, *, status=None, now=None):
    return hint(_headers.read_headers(headers, INTERESTING), status, now)


def limited(headers):
    return shows_limit(_headers.read_headers(headers, INTERESTING))


def should_retry(headers):
    return _hints.should_retry(_headers.read_headers(headers, INTERESTING))


IN_2026 = 1785000000  # 25 July 2026


def label(value):
    return ascii(value)[:40] if isinstance(value, (str, bytes, int, float)) else type(value).__name__


# Looking a header up


class CaseSensitive:
    """Has ``get`` and nothing else."""

    def __init__(self, **headers):
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def get(self, name):
        return self.headers.get(name)


class OnlyItems:
    def __init__(self, *pairs):
        self.pairs = pairs

    def items(self):
        return iter(self.pairs)


class Rows:
    """Like h11's headers: a sequence of pairs of bytes, without ``get`` or ``items``."""

    def __init__(self, *pairs):
        self.pairs = pairs

    def __getitem__(self, index):
        return self.pairs[index]


def message(name, value):
    made = Message()
    made[name] = value
    return made


@pytest.mark.parametrize(
    "headers",
    [
        {"retry-after": "7"},
        {"Retry-After": "7"},
        {"reTRY-after": "7"},
        {"RETRY-AFTER": b"7"},
        {"Retry-After": 7},
        {"Retry-After": ["7", "9"]},
        {"Retry-After": ("7",)},
        {b"retry-after": b"7"},
        {5: "x", None: "y", "Retry-After": "7"},
        {"retry-after": None, "Retry-After": "7"},
        {"retry-after": object(), "RETRY-AFTER": "7"},
        OrderedDict({"Retry-After": "7"}),
        UserDict({"Retry-After": "7"}),
        MappingProxyType({"Retry-After": "7"}),
        message("RETRY-after", "7"),
        CaseSensitive(retry_after="7"),
        CaseSensitive(Retry_After="7"),
        CaseSensitive(rETRY_after="7"),
        OnlyItems(("X", "y"), ("Retry-After", "7")),
        Rows((b"X", b"y"), (b"Retry-After", b"7")),
        [("Retry-After", "7"), ("Retry-After", "9")],
        (("retry-after", "7"),),
        [["Retry-After", "7"]],
        [("x",), ("a", "b", "c"), "ab", None, (None, "1"), ("Retry-After", None), ("Retry-After", "7")],
    ],
)
def test_a_header_is_found_in_every_shape_that_clients_keep_headers_in(headers):
    assert header(headers, "rETRY-after") == "7"


@pytest.mark.parametrize(
    ("value", "text"), [("7", "7"), (b"\xe4", "\xe4"), (7, "7"), (1.5, "1.5"), (1e-05, "0.000010"), ("", "")]
)
def test_a_value_comes_back_as_text(value, text):
    assert header({"x": value}, "x") == text


@pytest.mark.parametrize(
    "value", [None, True, False, object(), {}, [], (), [None], Mock(), bytearray(b"5")], ids=label
)
def test_a_value_that_no_client_would_store_is_absent(value):
    assert header({"x": value}, "x") is None


class Raises:
    def __init__(self, *methods):
        self.methods = methods

    def __raise(self, name):
        if name in self.methods:
            raise RuntimeError(name)

    def get(self, name):
        self.__raise("get")
        return {"retry-after": "7"}.get(name)

    def items(self):
        self.__raise("items")
        yield "Retry-After", "7"
        self.__raise("later")

    def __iter__(self):
        raise RuntimeError("iter")


class NeedsDefault:
    def get(self, name, default):
        return "7"


class AnswersAll:
    def __getattr__(self, name):
        return lambda *args: "503"


class Endless:
    def __iter__(self):
        while True:
            yield "X", "y"


def every_mock():
    return [Mock(), MagicMock(), AsyncMock(), MagicMock(spec=dict), Mock(spec=dict), AnswersAll()]


@pytest.mark.parametrize(
    "headers",
    [
        None, "retry-after: 7", b"retry-after: 7", 7, object(), dict, {}, [], Endless(), NeedsDefault(),
        Raises("get", "items"), Raises("get", "later"), *every_mock(),
    ],
    ids=label,
)  # fmt: skip
def test_headers_that_answer_nothing_or_everything_or_raise_say_nothing(headers):
    assert header(headers, "Retry-After") is None
    assert headers_hint(headers, status=429) is None
    assert limited(headers) is False
    assert should_retry(headers) is None


@pytest.mark.parametrize("headers", [Raises("get"), Raises("items"), Raises("later")])
def test_one_way_in_is_enough(headers):
    assert header(headers, "Retry-After") == "7"
    assert headers_hint(headers) == 7.0


def test_no_mock_is_ever_called():
    for mock in every_mock()[:5]:
        header(mock, "Retry-After")
        headers_hint(mock, status=429)
        called = [name for name, _, _ in mock.mock_calls]
        assert set(called) <= {"__iter__"}


def test_an_iterator_is_left_to_its_owner():
    pairs = iter([("Retry-After", "7")])
    assert header(pairs, "Retry-After") is None
    assert next(pairs) == ("Retry-After", "7")


def test_at_most_200_headers_are_passed_over():
    pairs = [(f"X-{number}", "y") for number in range(199)]
    assert header([*pairs, ("Retry-After", "7")], "Retry-After") == "7"
    assert header([*pairs, ("x", "y"), ("Retry-After", "7")], "Retry-After") is None


def test_a_mapping_of_more_than_200_headers_is_asked_by_name():
    headers = {f"X-{number}": "y" for number in range(300)} | {"Retry-After": "7"}
    assert headers_hint(headers) == 7.0
    assert headers_hint({"X-None": None} | headers) == 7.0


def test_one_pair_that_cannot_be_read_does_not_hide_the_others():
    class LoudPair(tuple):
        def __iter__(self):
            raise RuntimeError("no")

    assert headers_hint([LoudPair(("x", "y")), ("Retry-After", "7")]) == 7.0


def test_a_mapping_that_can_only_be_walked_by_name_is_asked_by_name():
    class Keys(CaseSensitive):
        def __iter__(self):
            return iter(self.headers)

    assert headers_hint(Keys(Retry_After="7")) == 7.0


def test_interrupts_are_not_swallowed():
    class Interrupted:
        def get(self, name):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        header(Interrupted(), "Retry-After")


# The short ways to the headers that matter


class Raw:
    """Headers that keep pairs of bytes, as those of httpx do; nothing else of them may be asked."""

    def __init__(self, *pairs):
        self.raw = list(pairs)


def test_raw_pairs_are_read_as_they_are():
    plain = [(b"Server", b"x"), (b"Date", b"Mon, 03 Jun 2019 11:00:00 GMT")]
    assert headers_hint(Raw(*plain), status=503) is None
    assert headers_hint(Raw(*plain, (b"Retry-After", b"7"), (b"RETRY-AFTER", b"9")), status=503) == 9.0
    in_half_a_minute = (b"retry-after", b"Mon, 03 Jun 2019 11:00:30 GMT")
    assert headers_hint(Raw(*plain, in_half_a_minute), status=503, now=IN_2026) == 30.0
    assert should_retry(Raw((b"x-should-retry", b"false"))) is False


@pytest.mark.parametrize("pairs", [[("text", "7")], [(b"Retry-After", 7)], [7], [(b"retry-after",)]])
def test_raw_pairs_of_another_kind_are_left_alone(pairs):
    assert headers_hint(Raw(*pairs), status=503) is None


def test_a_mapping_that_is_an_iterator_too_is_not_used_up():
    class Odd(dict):
        left = 3

        def __iter__(self):
            return self

        def __next__(self):
            raise AssertionError("was walked")

    assert headers_hint(Odd({"Retry-After": "7"})) == 7.0


def test_of_one_header_in_two_spellings_the_longest_wait_counts():
    assert headers_hint({"Retry-After": "7", "retry-after": "9"}) == 9.0


def test_most_headers_are_not_even_looked_up():
    class Quiet(dict):
        def get(self, name, default=None):
            raise AssertionError("was asked")

        items = get

    assert headers_hint(Quiet({"Server": "x", "Date": "Mon, 03 Jun 2019 11:00:00 GMT"}), status=503) is None
