"""Any value becomes masked, JSON-safe data of bounded length."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import json
import pathlib
import types
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redouble._base.json_safe import MASK, JSONCopy, Masking, masked


def test_values_under_telling_names_are_masked_at_any_depth():
    value = {"a": [{"b": ({"password": "hunter2", "n": 1},)}], "token": {"deep": ["x"]}, "user": "bob"}
    assert masked(value) == {"a": [{"b": [{"password": MASK, "n": 1}]}], "token": MASK, "user": "bob"}


def test_headers_are_masked_in_every_shape_they_come_in():
    class Headers(collections.abc.Mapping):
        def __getitem__(self, key):
            return {"Authorization": "Bearer abc", "Accept": "x"}[key]

        def __iter__(self):
            return iter(["Authorization", "Accept"])

        def __len__(self):
            return 2

    hidden = {"Authorization": MASK, "Accept": "x"}
    assert masked(Headers()) == hidden
    assert masked(types.MappingProxyType({"Authorization": "abc", "Accept": "x"})) == hidden
    assert masked([("Authorization", "abc"), ("Accept", "x")]) == [["Authorization", MASK], ["Accept", "x"]]
    assert masked([{"name": "Cookie", "value": "abc"}, {"key": "n", "value": 1}]) == [
        {"name": "Cookie", "value": MASK},
        {"key": "n", "value": 1},
    ]
    assert masked("Authorization: Bearer abc") == "Authorization: ***"
    assert masked(b'{"token": "abc"}') == '{"token": "***"}'


def test_named_tuples_and_dataclasses_are_masked_by_their_fields():
    @dataclasses.dataclass
    class User:
        name: str
        password: str

    Login = collections.namedtuple("Login", "user, password")
    assert masked(User("bob", "hunter2")) == {"name": "bob", "password": MASK}
    assert masked(Login("bob", "hunter2")) == {"user": "bob", "password": MASK}
    assert masked(types.SimpleNamespace(password="hunter2")) == "namespace(password='***')"


def test_numbers_of_tokens_are_no_secret_but_texts_are():
    value = {"max_tokens": 1024, "tokens": "abc", "token": 7, "password": None, "pin": 1234}
    assert masked(value) == {"max_tokens": 1024, "tokens": MASK, "token": MASK, "password": None, "pin": MASK}


def test_what_json_cannot_say_becomes_text():
    class Colour(enum.Enum):
        red = 1

    class Mine:
        def __repr__(self):
            return "<mine token=abc>"

    day = datetime.datetime(2024, 1, 2, 3, 4, tzinfo=datetime.UTC)
    value = {
        "nan": float("nan"), "inf": float("-inf"), "float": 0.5, "int": 3, "huge": 1 << 5000, "bool": True,
        "bytes": b"caf\xc3\xa9 \xff", "array": bytearray(b"x"), "view": memoryview(b"abc")[::2],
        "set": {1}, "day": day, "money": decimal.Decimal("1.50"), "id": uuid.UUID(int=7),
        "path": pathlib.PurePosixPath("/a/b"), "enum": Colour.red, "mine": Mine(), "surrogate": "a\ud800b",
        1: "one", (1, 2): "two", "lambda": print, "str": type("S", (str,), {})("x"),
    }  # fmt: skip
    plain = masked(value)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain == {
        "nan": "nan", "inf": "-inf", "float": 0.5, "int": 3, "huge": "<int of 5001 bits>", "bool": True,
        "bytes": "café \\xff", "array": "x", "view": "ac", "set": [1], "day": "2024-01-02 03:04:00+00:00",
        "money": "1.50", "id": "00000000-0000-0000-0000-000000000007", "path": "/a/b",
        "enum": "<Colour.red: 1>", "mine": "<mine token=***", "surrogate": "a\\ud800b",
        "1": "one", "(1, 2)": "two", "lambda": "<built-in function print>", "str": "x",
    }  # fmt: skip


def test_keys_that_look_alike_as_text_stay_apart():
    assert masked({1: "a", "1": "b"}) == {"1": "a", "1 #1": "b"}
    long = "k" * 500
    assert [len(key) for key in masked({long: 1})] == [201]


def test_a_circle_is_cut_and_a_value_used_twice_is_not():
    circle = [1]
    circle.append(circle)
    shared = {"a": 1}
    assert masked({"circle": circle, "x": shared, "y": shared}) == {
        "circle": [1, "… (circular)"],
        "x": {"a": 1},
        "y": {"a": 1},
    }


@pytest.mark.slow
def test_what_is_nested_too_deep_is_cut():
    deep = value = []
    for _ in range(100_000):
        value.append([])
        value = value[0]
    assert "nested deeper than 32" in json.dumps(masked(deep))
    while deep:  # taken apart by hand: the interpreter would do it recursively
        deep = deep.pop()


def test_objects_that_raise_when_they_are_looked_at_do_no_harm():
    class Hostile:
        def __repr__(self):
            raise RuntimeError("no")

    class BadMapping(dict):
        def items(self):
            yield "a", 1
            raise RuntimeError("changed")

    class BadList(list):
        def __iter__(self):
            raise RuntimeError("no")

    assert masked([Hostile()]) == ["<unprintable Hostile>"]
    assert masked([BadMapping(x=1)]) == [{"a": 1, "…": "cut: RuntimeError"}]
    assert masked([BadList([1]), 2, 3]) == ["<BadList that cannot be stored: RuntimeError>", 2, 3]


def size(plain):
    return len(json.dumps(plain, ensure_ascii=False).encode())


def test_a_long_text_is_cut_early_and_says_how_long_it_was():
    text = "x" * 10_000_000
    plain = JSONCopy(limit=1000).copy({"a": text, "b": text})
    assert size(plain) < 1300
    assert plain["a"].endswith("… (cut, of 10000000 characters)")
    assert plain["…"] == "cut, of 2 items"
    assert JSONCopy(limit=100).copy(b"x" * 10_000).endswith("… (cut, of 10000 characters)")
    assert size(JSONCopy(limit=100).copy("\x00" * 1000)) < 200
    assert JSONCopy(limit=0).copy("abc") == "… (cut, of 3 characters)"


class Undecoded(bytes):
    def decode(self, *_):
        raise AssertionError("decoded as a whole")


@pytest.mark.parametrize(
    "payload",
    [
        {"body": Undecoded(b"x" * 9)},
        [Undecoded(b"x" * 9999), "next"],
        [1, Undecoded(b"x")],
        [Undecoded(b"x" * 9999), "next", "last"],
    ],
)
def test_bytes_that_no_name_hides_are_not_decoded_as_a_whole(payload):
    assert "cannot be stored" not in json.dumps(masked(payload))


def test_long_containers_are_cut_and_say_how_long_they_were():
    plain = JSONCopy(limit=100).copy(list(range(1000)))
    assert plain[:3] == [0, 1, 2]
    assert plain[-1] == "… (cut, of 1000 items)"
    assert size(plain) < 200
    plain = JSONCopy(limit=100).copy({str(n): n for n in range(1000)})
    assert plain["…"] == "cut, of 1000 items"


def test_a_secret_at_the_seam_does_not_leak_its_beginning():
    text = "x" * 80 + " password=" + "s" * 150
    assert "s" not in JSONCopy(limit=110).copy(text).replace("password", "").replace("characters", "")
    assert "ssss" not in Masking().mask_field("error_message", text, 110)
    assert Masking().mask_field("error_message", text, 110).endswith("… (cut, of 240 characters)")


@pytest.mark.parametrize("limit", range(85, 120))
def test_a_key_at_the_seam_is_seen_whole(limit):
    text = "x" * 90 + " AKIAIOSFODNN7EXAMPLE" + " y" * 1000
    assert "AKIA" not in JSONCopy(limit=limit).copy(text)
    assert "AKIA" not in Masking().mask_field("error_message", text, limit)


def test_masking_can_be_switched_off():
    masking = Masking(off=True)
    value = {"password": "hunter2", "text": "token=abc"}
    assert JSONCopy(masking=masking).copy(value) == value
    assert masking.mask_field("error_message", "token=abc", 100) == "token=abc"


def test_a_function_of_the_users_is_asked_about_every_name_that_is_not_masked_already():
    asked = []

    def hook(name, value):
        asked.append(name)
        return "hidden" if name == "email" else value

    plain = JSONCopy(masking=Masking(hook=hook)).copy({"email": "a@b", "password": "x", "n": [("k", 1)]})
    assert plain == {"email": "hidden", "password": MASK, "n": [["k", 1]]}
    assert asked == ["email", "n", "k"]


def test_a_function_of_the_users_that_fails_masks_and_is_reported_once(caplog):
    def hook(name, value):
        raise ValueError("broken")

    assert JSONCopy(masking=Masking(hook=hook)).copy({"a": 1, "b": 2}) == {"a": MASK, "b": MASK}
    assert [record.message.partition(" (")[0] for record in caplog.records] == [
        "the function given as mask= failed, so values were masked"
    ]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.integers() | st.none(), inner)
        | st.tuples(inner, inner)
        | st.frozensets(st.integers())
    ),
)


@pytest.mark.slow
@given(ANYTHING, st.integers(0, 500))
def test_anything_becomes_json_of_bounded_length(value, limit):
    plain = JSONCopy(limit=limit).copy(value)
    text = json.dumps(plain, ensure_ascii=False, allow_nan=False)
    assert json.loads(text) == plain
    # What says that something was cut comes on top, once for each container that is open.
    assert len(text.encode()) <= limit + 40 * 34 + 400


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, min_size=3) | st.dictionaries(st.sampled_from("abcdef"), inner),
)


@pytest.mark.slow
@given(JSON)
def test_plain_data_without_secrets_comes_out_as_it_went_in(value):
    assert masked(value) == value


NAMES = [
    "password",
    "db_passwd",
    "clientSecret",
    "token",
    "X-API-Key",
    "authorization",
    "Set-Cookie",
    "session",
]


@pytest.mark.slow
@given(st.sampled_from(NAMES), st.text(min_size=8), st.integers(0, 5))
def test_no_secret_survives_in_a_payload_however_deep(name, secret, depth):
    value = {name: secret}
    for level in range(depth):
        value = {"a": value} if level % 2 else [value, 1, 2]
    assert secret not in str(masked(value)).replace(name, "")


def test_values_are_copied_to_a_bounded_depth():
    value = "bottom"
    for _ in range(40):
        value = [value]
    text = json.dumps(masked(value))
    assert "nested deeper than 32" in text
    assert "bottom" not in text
