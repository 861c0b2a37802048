"""Immutable values: fields, constructor, equality, pickling."""

from __future__ import annotations

import copy
import inspect
import pickle
import weakref
from functools import partial
from types import MappingProxyType

import pytest

from redouble._base.record import Record, assign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import KW_ONLY


class Point(Record):
    """A point."""

    x: int
    y: int = 0


class Named(Point):
    _: KW_ONLY
    name: str
    tags: object = ()

    def _check(self) -> None:
        if not self.name:
            raise ValueError("name must not be empty")
        assign(self, "tags", tuple(self.tags))


class Labelled(Named):
    label: str = ""


class Parsed(Record):
    number: int

    def __init__(self, text: str) -> None:
        assign(self, "number", int(text))


def test_each_annotation_is_a_field_in_that_order():
    assert Point._fields == ("x", "y")
    assert Labelled._fields == ("x", "y", "name", "tags", "label")


def test_fields_are_given_by_position_or_by_name():
    assert Point(1, 2) == Point(1, y=2) == Point(y=2, x=1)


def test_a_field_with_a_value_is_optional():
    assert Point(1).y == 0


def test_fields_below_the_mark_are_keyword_only():
    assert Named(1, 2, name="a").name == "a"
    with pytest.raises(TypeError, match=r"^Named takes 2 arguments by position, got 3$"):
        Named(1, 2, "a")


def test_a_subclass_adds_fields_by_position_before_those_of_keywords():
    assert Labelled(1, 2, "here", name="a") == Labelled(1, 2, name="a", label="here")


@pytest.mark.parametrize(
    ("args", "fields", "message"),
    [
        ((), {}, "Point: 'x' is missing"),
        ((1, 2, 3), {}, "Point takes 2 arguments by position, got 3"),
        ((1,), {"x": 1}, "Point: 'x' was given twice"),
        ((1,), {"z": 1}, "Point has no field 'z'"),
    ],
)
def test_the_wrong_arguments_are_a_type_error_that_names_them(args, fields, message):
    with pytest.raises(TypeError) as caught:
        Point(*args, **fields)
    assert str(caught.value) == message


def test_check_runs_last_and_may_raise_or_replace_a_field():
    assert Named(1, name="a", tags=[1]).tags == (1,)
    with pytest.raises(ValueError, match="must not be empty"):
        Named(1, name="")


def test_the_signature_shows_fields_annotations_and_defaults():
    assert str(inspect.signature(Point)) == "(x: 'int', y: 'int' = 0)"
    shown = "(x: 'int', y: 'int' = 0, label: 'str' = '', *, name: 'str', tags: 'object' = ())"
    assert str(inspect.signature(Labelled)) == shown
    assert str(inspect.signature(Parsed)) == "(text: 'str') -> 'None'"


def test_a_record_has_slots_and_no_dict():
    assert Point.__slots__ == ("x", "y")
    assert not hasattr(Point(1), "__dict__")
    with pytest.raises(TypeError):
        weakref.ref(Point(1))


def test_a_record_refuses_to_be_changed():
    point = Point(1)
    with pytest.raises(AttributeError, match=r"^Point is immutable: cannot set 'x'$"):
        point.x = 2
    with pytest.raises(AttributeError, match=r"^Point is immutable: cannot delete 'x'$"):
        del point.x


def test_records_are_equal_if_class_and_fields_are():
    assert Point(1) != Point(2)
    assert Point(1) != (1, 0)
    assert Named(1, name="a") != Labelled(1, name="a")
    assert len({Point(1), Point(1), Point(2)}) == 2


def test_a_record_prints_as_it_is_written():
    assert repr(Named(1, name="a")) == "Named(x=1, y=0, name='a', tags=())"


@pytest.mark.parametrize("record", [Point(1), Labelled(1, name="a", label="b"), Parsed("3")])
@pytest.mark.parametrize("through", [lambda it: pickle.loads(pickle.dumps(it)), copy.copy, copy.deepcopy])
def test_a_record_survives_pickling_and_copying(record, through):
    assert through(record) == record


def test_read_only_mappings_and_partials_are_compared_and_pickled():
    one, other = (Point(partial(int, base=2), MappingProxyType({"a": 1})) for _ in range(2))
    assert one == other == pickle.loads(pickle.dumps(one))
    assert hash(one) == hash(other)
    assert isinstance(pickle.loads(pickle.dumps(one)).y, MappingProxyType)


def test_values_that_cannot_be_compared_are_not_equal():
    class Vague:
        def __eq__(self, other):
            raise ValueError("ambiguous")

        __hash__ = None

    assert Point((Vague(),)) != Point((Vague(),))
