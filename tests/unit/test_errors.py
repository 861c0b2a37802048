"""The exception tree, and that its members travel between processes."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest

import redouble
from redouble import DeadlineExceeded, Policy, RedoubleError, ResultRejected, errors
from redouble._base.text import brief, one_line, safe_str
from redouble.backoff import exponential
from support.errors import Nasty

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


class NastyResult:
    def __repr__(self):
        raise RuntimeError("leave me alone")

    def __reduce__(self):
        raise RuntimeError("leave me alone")


class Slotted:
    """Pickles from protocol 2 on only."""

    __slots__ = ("value",)


class OneWay(Exception):
    """Pickles, but cannot be unpickled: its arguments are not what __init__ takes."""

    def __init__(self, code, text):
        super().__init__(f"{code} {text}")


class MyDeadline(DeadlineExceeded):
    """A subclass with a constructor of its own."""

    def __init__(self, host):
        super().__init__(f"{host} took too long", attempts=3, elapsed=9.5)
        self.host = host


class MyRejected(ResultRejected):
    pass


def there_and_back(error, protocol):
    return pickle.loads(pickle.dumps(error, protocol))


# The tree


def test_everything_of_ours_is_a_redouble_error():
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BaseException)
    ]
    assert {kind.__name__ for kind in kinds} >= {"RedoubleError", "DeadlineExceeded", "ResultRejected"}
    assert all(issubclass(kind, RedoubleError) for kind in kinds)
    assert issubclass(RedoubleError, Exception)
    assert not issubclass(RedoubleError, (OSError, ValueError, TypeError))


def test_the_tree_is_drawn_at_the_head_of_the_file_and_open_to_users():
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, BaseException):
            assert kind.__name__ in errors.__doc__
            assert getattr(redouble, kind.__name__) is kind


def test_a_deadline_is_a_timeout():
    error = DeadlineExceeded("too late", attempts=2, elapsed=4.9)
    assert isinstance(error, TimeoutError)
    assert not isinstance(ResultRejected("no", result=1, attempts=1), TimeoutError)
    assert (str(error), error.attempts, error.elapsed) == ("too late", 2, 4.9)


def test_a_rejected_result_carries_the_result():
    result = object()
    error = ResultRejected("refused", result=result, attempts=4)
    assert (str(error), error.attempts) == ("refused", 4)
    assert error.result is result


def test_the_figures_of_an_error_are_given_by_name():
    with pytest.raises(TypeError):
        DeadlineExceeded("too late", 2, 4.9)
    with pytest.raises(TypeError):
        ResultRejected("refused", None, 4)


def test_the_last_error_of_a_deadline_is_its_cause():
    cause = OSError("no route")
    error = DeadlineExceeded("too late", attempts=2, elapsed=4.9)
    assert error.last_error is None
    error.__cause__ = cause
    assert error.last_error is cause
    with pytest.raises(AttributeError):
        error.last_error = cause


def test_a_deadline_that_came_true_tells_its_figures(flavour, clock):
    failure = TimeoutError("slow")
    policy = Policy(backoff=exponential, deadline=5.0, attempts=9, clock=clock, sleep=clock.sleep)
    with pytest.raises(DeadlineExceeded) as caught:
        flavour.call(policy, flavour.scripted(TimeoutError(), TimeoutError(), failure))
    error = caught.value
    assert (error.attempts, error.elapsed) == (3, 3.0)
    assert error.last_error is error.__cause__ is failure
    assert clock.waits == [1.0, 2.0]  # the third wait, 4 s, would end at 7 s


def test_a_refused_result_comes_out_in_an_error(flavour, clock):
    policy = Policy(until=bool, backoff=exponential, attempts=3, clock=clock, sleep=clock.sleep)
    with pytest.raises(ResultRejected) as caught:
        flavour.call(policy, flavour.scripted(0, "", []))
    assert (caught.value.result, caught.value.attempts) == ([], 3)
    assert caught.value.__cause__ is None


# Pickling


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_deadline_survives_pickling_with_its_notes_and_without_its_cause(protocol):
    error = DeadlineExceeded("too late", attempts=2, elapsed=4.9)
    error.__cause__ = OneWay(1, "x")
    error.add_note("redouble: the story")
    error.host = "db"
    again = there_and_back(error, protocol)
    assert type(again) is DeadlineExceeded
    assert (str(again), again.args, again.attempts, again.elapsed) == ("too late", ("too late",), 2, 4.9)
    assert again.__notes__ == ["redouble: the story"]
    assert again.host == "db"
    assert again.last_error is None


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_rejected_result_survives_pickling_with_its_notes(protocol):
    error = ResultRejected("refused", result={"state": ["pending"]}, attempts=4)
    error.add_note("redouble: the story")
    again = there_and_back(error, protocol)
    assert type(again) is ResultRejected
    assert (str(again), again.result, again.attempts) == ("refused", {"state": ["pending"]}, 4)
    assert again.__notes__ == ["redouble: the story"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_bare_error_survives_pickling(protocol):
    again = there_and_back(RedoubleError("one", 2), protocol)
    assert (type(again), again.args) == (RedoubleError, ("one", 2))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_result_that_does_not_pickle_travels_as_its_repr(protocol):
    result = threading.Lock()
    error = ResultRejected("refused", result=result, attempts=4)
    assert there_and_back(error, protocol).result == repr(result)
    assert error.result is result


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_result_that_can_neither_be_pickled_nor_printed_travels_as_a_placeholder(protocol):
    error = ResultRejected("refused", result=NastyResult(), attempts=4)
    assert there_and_back(error, protocol).result == "<unprintable NastyResult>"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_result_that_pickles_by_some_protocols_only_travels_by_all(protocol):
    result = Slotted()
    result.value = 3
    again = there_and_back(ResultRejected("refused", result=result, attempts=4), protocol)
    assert again.attempts == 4
    assert getattr(again.result, "value", None) == 3 or again.result == repr(result)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_result_that_does_not_survive_pickling_travels_as_its_repr(protocol):
    result = OneWay(404, "gone")
    again = there_and_back(ResultRejected("refused", result=result, attempts=4), protocol)
    assert again.result == repr(result)


@pytest.mark.parametrize("kind", ["deadline", "rejected", "bare"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_else_hangs_on_an_error_and_does_not_pickle_does_not_keep_it_from_travelling(kind, protocol):
    error = {
        "deadline": DeadlineExceeded("no", attempts=2, elapsed=4.9),
        "rejected": ResultRejected("no", result=1, attempts=2),
        "bare": RedoubleError("no"),
    }[kind]
    error.connection = threading.Lock()
    error.host = "db"
    again = there_and_back(error, protocol)
    assert (str(again), again.host) == ("no", "db")
    assert getattr(again, "connection", None) in (None, repr(error.connection))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_subclasses_survive_pickling_whatever_their_constructor_takes(protocol):
    mine = there_and_back(MyDeadline("db"), protocol)
    assert type(mine) is MyDeadline
    assert (str(mine), mine.host, mine.attempts, mine.elapsed) == ("db took too long", "db", 3, 9.5)
    rejected = there_and_back(MyRejected("no", result=lambda: 1, attempts=2), protocol)
    assert type(rejected) is MyRejected
    assert "<lambda>" in rejected.result


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_errors_can_be_copied(copied):
    again = copied(MyDeadline("db"))
    assert (type(again), str(again), again.host) == (MyDeadline, "db took too long", "db")
    assert copied(ResultRejected("no", result=[1], attempts=2)).result == [1]


def test_what_came_out_of_a_call_survives_pickling(flavour, clock):
    policy = Policy(until=bool, attempts=2, name="poll", clock=clock, sleep=clock.sleep)
    with pytest.raises(ResultRejected) as caught:
        flavour.call(policy, flavour.scripted(None, None))
    again = there_and_back(caught.value, pickle.HIGHEST_PROTOCOL)
    assert str(again) == str(caught.value)
    assert again.__notes__ == caught.value.__notes__
    assert len(again.__notes__) == 1


# Text


def test_an_error_that_cannot_be_printed_is_shown_by_a_placeholder():
    assert safe_str(Nasty()) == "<unprintable Nasty>"
    assert safe_str(Nasty(), repr) == "<unprintable Nasty>"
    assert brief(Nasty()) == "Nasty: <unprintable Nasty>"


def test_a_str_that_gives_no_text_is_shown_by_a_placeholder():
    class Odd(Exception):
        def __str__(self):
            return 3

    assert brief(Odd()) == "Odd: <unprintable Odd>"


def test_an_interrupt_while_printing_is_not_held_back():
    class Interrupted(Exception):
        def __str__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        safe_str(Interrupted())


def test_shown_is_what_an_object_prints():
    assert safe_str(ValueError("no")) == "no"
    assert safe_str("text", repr) == "'text'"


def test_brief_is_one_line_of_bounded_length():
    assert brief(ValueError("first\n  second\tthird ")) == "ValueError: first second third"
    assert brief(ValueError()) == "ValueError"
    assert brief(ValueError(" \n ")) == "ValueError"
    assert brief(ValueError("x" * 200)) == "ValueError: " + "x" * 200
    assert brief(ValueError("x" * 201)) == "ValueError: " + "x" * 199 + "…"
    assert brief(ValueError("x" * 10**6)) == "ValueError: " + "x" * 199 + "…"


def test_one_line_does_without_a_type_or_without_a_message():
    assert one_line("", "refused") == "refused"
    assert one_line("ValueError", "") == "ValueError"
    assert one_line("", "") == ""


def test_an_error_that_cannot_be_printed_is_retried_and_raised_all_the_same(flavour, clock):
    error = Nasty()
    policy = Policy(on=Nasty, attempts=2, name="fetch", clock=clock, sleep=clock.sleep)
    decorated = policy(flavour.scripted(error, error))

    # Caught right here: neither pytest nor asyncio.run can bear to print it.
    def outcome():
        try:
            return decorated()
        except Nasty as raised:
            return [raised]

    async def awaited():
        try:
            return await decorated()
        except Nasty as raised:
            return [raised]

    (caught,) = flavour.run(awaited if flavour.is_async else outcome)
    assert (caught is error) is True
    assert "attempt 2: Nasty: <unprintable Nasty>" in error.__notes__[0]
