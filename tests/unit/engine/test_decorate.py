"""What can be decorated: every kind of callable keeps its looks and is retried, the rest is refused."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import re
import sys
import warnings
import xmlrpc.client
from unittest import mock

import pytest

from redouble import Policy, Rule, retry, retrying
from redouble._base import log_once
from redouble._engine import flow as _flow
from redouble.backoff import exponential, fixed
from redouble.testing import no_waits, scripted
from support.decorated import Failing, Fetch, await_all


@pytest.fixture
def quick(clock):
    """Three attempts, with waits of 1 and 2 seconds that take none."""
    return Policy(attempts=3, backoff=exponential, clock=clock, sleep=clock.sleep)


@pytest.fixture
def nothing_said_yet():
    """What is said once in a process may be said in this test, and again in the next."""
    _flow._warned.clear()
    log_once._warned.clear()
    yield
    _flow._warned.clear()
    log_once._warned.clear()


def sync_table(failing, policy):  # noqa: C901 - a table, not a way with branches
    """Kind -> (a call without arguments that is retried, what it gives)."""

    def function(a, b=2):
        return failing(a, b)

    class Things:
        @policy
        def method(self, a):
            return failing(type(self), a)

        @classmethod
        @policy
        def below_classmethod(cls, a):
            return failing(cls, a)

        @policy
        @classmethod
        def above_classmethod(cls, a):
            return failing(cls, a)

        @staticmethod
        @policy
        def below_staticmethod(a):
            return failing(a)

        @policy
        @staticmethod
        def above_staticmethod(a):
            return failing(a)

        @property
        @policy
        def attribute(self):
            return failing(type(self))

        def _plain(self, a, b):
            return failing(type(self), a, b)

        partial_method = policy(functools.partialmethod(_plain, b=5))
        partial_of_retried = functools.partialmethod(policy(_plain), 4)
        partial_of_class_method = policy(functools.partialmethod(classmethod(lambda cls, a: failing(cls, a))))

        def bound(self, a):
            return failing(type(self), a)

    class CallMe:
        def __call__(self, a):
            return failing(a)

    class Slotted:
        __slots__ = ()

        def __call__(self, a):
            return failing(a)

    things = Things()
    return {
        "function": (lambda: policy(function)(1), (1, 2)),
        "keywords": (lambda: policy(function)(b=7, a=1), (1, 7)),
        "lambda": (lambda: policy(lambda a: failing(a))(1), (1,)),
        "method": (lambda: things.method(1), (Things, 1)),
        "method on the class": (lambda: Things.method(things, 1), (Things, 1)),
        "bound method": (lambda: policy(things.bound)(1), (Things, 1)),
        "classmethod outside": (lambda: Things.below_classmethod(1), (Things, 1)),
        "classmethod inside": (lambda: Things.above_classmethod(1), (Things, 1)),
        "classmethod on an instance": (lambda: things.above_classmethod(1), (Things, 1)),
        "staticmethod outside": (lambda: Things.below_staticmethod(1), (1,)),
        "staticmethod inside": (lambda: things.above_staticmethod(1), (1,)),
        "property": (lambda: things.attribute, (Things,)),
        "partial": (lambda: policy(functools.partial(function, 1, b=3))(), (1, 3)),
        "partial of a partial": (
            lambda: policy(functools.partial(functools.partial(function, 1)))(5),
            (1, 5),
        ),
        "partialmethod": (lambda: things.partial_method(1), (Things, 1, 5)),
        "partialmethod of the retried": (lambda: things.partial_of_retried(1), (Things, 4, 1)),
        "partialmethod of a classmethod": (lambda: things.partial_of_class_method(1), (Things, 1)),
        "callable object": (lambda: policy(CallMe())(1), (1,)),
        "callable object without a dict": (lambda: policy(Slotted())(1), (1,)),
        "MagicMock": (lambda: policy(mock.MagicMock(side_effect=failing))(1), (1,)),
        "Mock with a spec": (lambda: policy(mock.create_autospec(function, side_effect=failing))(1), (1,)),
    }


@pytest.mark.parametrize("kind", sync_table(Failing(), Policy()))
def test_every_kind_of_callable_is_retried(kind, quick, clock):
    failing = Failing()
    call, result = sync_table(failing, quick)[kind]
    assert call() == result
    assert failing.calls == [result] * 3
    assert clock.waits == [1.0, 2.0]


def async_table(failing, policy):  # noqa: C901 - a table, not a way with branches
    async def function(a, b=2):
        return failing(a, b)

    class Things:
        @policy
        async def method(self, a):
            return failing(type(self), a)

        @classmethod
        @policy
        async def below_classmethod(cls, a):
            return failing(cls, a)

        @policy
        @classmethod
        async def above_classmethod(cls, a):
            return failing(cls, a)

        @staticmethod
        @policy
        async def below_staticmethod(a):
            return failing(a)

        @policy
        @staticmethod
        async def above_staticmethod(a):
            return failing(a)

        @property
        @policy
        async def attribute(self):
            return failing(type(self))

        async def _plain(self, a, b):
            return failing(type(self), a, b)

        partial_method = policy(functools.partialmethod(_plain, b=5))

        async def bound(self, a):
            return failing(type(self), a)

    class CallMe:
        async def __call__(self, a):
            return failing(a)

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        return function(*args, **kwargs)

    @functools.wraps(wrapped)
    def wrapped_twice(*args, **kwargs):
        return wrapped(*args, **kwargs)

    def marked(a):
        return function(a)

    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(marked)

    things = Things()
    return {
        "function": (lambda: policy(function)(1), (1, 2)),
        "method": (lambda: things.method(1), (Things, 1)),
        "bound method": (lambda: policy(things.bound)(1), (Things, 1)),
        "classmethod outside": (lambda: Things.below_classmethod(1), (Things, 1)),
        "classmethod inside": (lambda: things.above_classmethod(1), (Things, 1)),
        "staticmethod outside": (lambda: Things.below_staticmethod(1), (1,)),
        "staticmethod inside": (lambda: Things.above_staticmethod(1), (1,)),
        "property": (lambda: things.attribute, (Things,)),
        "partial": (lambda: policy(functools.partial(function, 1, b=3))(), (1, 3)),
        "partialmethod": (lambda: things.partial_method(1), (Things, 1, 5)),
        "callable object": (lambda: policy(CallMe())(1), (1,)),
        "partial of a callable object": (lambda: policy(functools.partial(CallMe(), 1))(), (1,)),
        "wraps around it": (lambda: policy(wrapped)(1), (1, 2)),
        "wraps around a wraps around it": (lambda: policy(wrapped_twice)(1), (1, 2)),
        "marked": (lambda: policy(marked)(1), (1, 2)),
        "AsyncMock": (lambda: policy(mock.AsyncMock(side_effect=failing))(1), (1,)),
        "lambda that gives a coroutine": (lambda: policy(lambda: function(1))(), (1, 2)),
    }


@pytest.mark.parametrize("kind", async_table(Failing(), Policy()))
def test_every_kind_of_async_callable_is_retried(kind, quick, clock):
    failing = Failing()
    call, result = async_table(failing, quick)[kind]
    assert await_all(call()) == result
    assert failing.calls == [result] * 3
    assert clock.waits == [1.0, 2.0]


@pytest.mark.parametrize("kind", async_table(Failing(), Policy()))
def test_every_kind_of_async_callable_is_retried_under_a_policy_that_needs_a_context(kind, quick, clock):
    failing = Failing()
    call, result = async_table(failing, quick.replace(deadline=60.0, until=bool))[kind]
    assert await_all(call()) == result
    assert failing.calls == [result] * 3


def test_a_builtin_is_retried(quick, clock):
    with pytest.raises(FileNotFoundError) as caught:
        quick.replace(on=OSError)(open)("/nowhere/at all")
    assert len(clock.waits) == 2
    assert "gave up on open after 3 attempts" in caught.value.__notes__[0]


def test_a_builtin_method_of_an_object_is_retried(quick, clock):
    with pytest.raises(IndexError):
        quick.replace(on=IndexError)([].pop)()
    assert len(clock.waits) == 2


def test_a_callable_without_a_name_goes_by_the_name_of_its_class(quick):
    class Fetch:
        def __call__(self):
            raise TimeoutError("slow")

    decorated = quick(Fetch())
    with pytest.raises(TimeoutError) as caught:
        decorated()
    assert "gave up on " in caught.value.__notes__[0]
    assert "Fetch after 3 attempts" in caught.value.__notes__[0]


def test_a_proxy_that_has_every_attribute_is_retried(quick, clock):
    failing = Failing()
    # Such as the methods of an XML-RPC server: any attribute, __name__ included, is another proxy.
    method = xmlrpc.client._Method(lambda name, args: failing(name, args), "fetch")
    assert quick(method)(1) == ("fetch", (1,))
    assert len(clock.waits) == 2


class Wide:
    """Any attribute is an object of the same kind."""

    def __init__(self, call):
        object.__setattr__(self, "call", call)

    def __getattr__(self, name):
        return Wide(self.call)

    def __call__(self, *args):
        return self.call(*args)


def test_a_callable_whose_name_is_no_text_is_retried(quick):
    def fetch():
        return "page"

    strange = functools.partial(fetch)
    strange.__name__ = 42
    assert quick(strange)() == "page"
    assert quick(Wide(fetch))() == "page"


# What is refused, and what the message says


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (Fetch, r"cannot retry the class Fetch: decorate the method .*, or a function that makes"),
        (property(lambda self: 1), r"property: put @retry below @property"),
        (4.2, r"cannot retry 4.2: it is not callable; decorate a function"),
        (functools.cached_property(len), r"it is not callable"),
        (staticmethod(Fetch), r"cannot retry the class Fetch"),
        (classmethod(property(lambda cls: 1)), r"property: put @retry below @property"),
    ],
    ids=["class", "property", "number", "cached_property", "class in static", "class property"],
)
def test_what_cannot_be_retried_is_refused_at_decoration_with_what_to_do(thing, message):
    for decorate in (retry, retry(), retry(attempts=2), Policy()):
        with pytest.raises(TypeError, match=message):
            decorate(thing)


def test_fields_beside_a_function_are_refused_with_the_way_to_write_it():
    with pytest.raises(TypeError, match=re.escape("@retry(...)")):
        retry(lambda: None, attempts=2)


@pytest.mark.parametrize("fields", [{"sleep": 1}, {"recover": 1}], ids=["sleep", "recover"])
def test_what_is_async_in_the_policy_of_a_sync_function_is_refused_at_decoration(fields):
    async def asynchronous(argument): ...

    if "sleep" in fields:
        policy, word = Policy(sleep=asynchronous), "sleep"
    else:
        policy, word = Policy(rules={TimeoutError: Rule(recover=asynchronous)}), "recover"

    def fetch(): ...

    def items():
        yield

    for function in (fetch, items, functools.partial(fetch), mock.MagicMock(__qualname__="fetch")):
        with pytest.raises(TypeError, match=rf"is sync, so {word} must be sync too"):
            policy(function)
    with pytest.raises(TypeError, match=rf"fetch is sync, so {word} must be sync too"):
        policy.call(fetch)


def test_a_sync_sleep_suits_both_and_an_async_sleep_suits_async(flavour):
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    def plain_sleep(seconds):
        waits.append(seconds)

    policy = Policy(backoff=fixed, sleep=sleep if flavour.is_async else plain_sleep)
    assert flavour.call(policy, flavour.scripted(TimeoutError("slow"), "page")) == "page"
    assert flavour.call(Policy(backoff=fixed, sleep=plain_sleep), flavour.scripted(TimeoutError(), 1)) == 1
    assert waits == [1.0, 1.0]


def test_until_on_a_generator_is_refused_since_there_is_no_result_to_judge():
    def items():
        yield 1

    async def async_items():
        yield 1

    for function in (items, async_items):
        with pytest.raises(TypeError, match=rf"{function.__name__} is a generator.*until"):
            retry(until=bool)(function)


# The ways to write it


def test_every_way_to_write_it_means_the_same(flavour, clock):
    time = {"clock": clock, "sleep": clock.sleep}
    policy = Policy(attempts=2, backoff=fixed, **time)
    ways = [
        retry(attempts=2, backoff=fixed, **time),
        retry(policy),
        retry(policy.replace(attempts=9), attempts=2),
        policy,
        lambda function: functools.partial(policy.call, function),
    ]
    for way in ways:
        failing = flavour.scripted(TimeoutError("1"), TimeoutError("2"), "page")
        with pytest.raises(TimeoutError, match="2"):
            flavour.run(way(failing), "/", times=3)
        assert failing.calls == [(("/",), {"times": 3})] * 2
    assert clock.waits == [1.0] * len(ways)


def test_bare_retry_with_and_without_parentheses_is_the_default_policy(flavour):
    for way in (retry, retry(), retry(None), retry(Policy()), Policy()):
        failing = flavour.scripted(*[TimeoutError("slow")] * 5)
        with no_waits() as waits, pytest.raises(TimeoutError):
            flavour.run(way(failing))
        assert len(failing.calls) == 4
        assert len(waits) == 3


def test_retry_of_a_policy_without_fields_is_that_policy():
    policy = Policy(attempts=2)
    assert retry(policy) is policy
    assert retry(policy, attempts=3) == Policy(attempts=3)
    assert policy.attempts == 2


def test_a_wrong_field_is_refused_before_there_is_a_function():
    with pytest.raises(ValueError, match="attempts must be at least 1"):
        retry(attempts=0)
    with pytest.raises(TypeError, match="did you mean 'attempts'"):
        retry(atempts=3)
    with pytest.raises(TypeError, match="did you mean 'attempts'"):
        retry(Policy(), atempts=3)


def test_call_gives_an_awaitable_for_an_async_function(quick):
    async def fetch(a):
        return a

    coroutine = quick.call(fetch, 1)
    assert inspect.iscoroutine(coroutine)
    assert await_all(coroutine) == 1


def test_call_takes_a_class_as_the_function_it_is(quick, clock):
    failing = Failing()

    class Connection:
        def __init__(self, host):
            self.host = failing(host)

    connection = quick.call(Connection, "db")
    assert type(connection) is Connection
    assert connection.host == ("db",)
    assert len(clock.waits) == 2


def test_call_refuses_what_is_not_callable(quick):
    with pytest.raises(TypeError, match="not callable"):
        quick.call(42)


def test_retrying_is_not_a_decorator_and_says_so():
    with pytest.raises(TypeError, match=re.escape("@retry(...)")):
        retrying(attempts=2)(lambda: None)


# A sync wait in a running event loop


def waits_in_a_loop(*functions, times=1):
    async def main():
        return [function() for _ in range(times) for function in functions]

    return asyncio.run(main())


def fetch_page():
    return scripted(TimeoutError("slow"), *["page"] * 9)


def named(name):
    failing = Failing()

    def function():
        return failing()

    function.__qualname__ = name
    return retry(base=0.0)(function)


def test_a_sync_wait_in_a_running_loop_warns_once_and_names_the_function(nothing_said_yet):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        waits_in_a_loop(named("Api.fetch"))  # two waits
        waits_in_a_loop(named("Api.fetch"))
    assert [(w.category, w.filename) for w in seen] == [(RuntimeWarning, __file__)]
    assert str(seen[0].message).startswith("Api.fetch waits")
    assert "blocks" in str(seen[0].message)


def test_each_function_that_waits_in_a_running_loop_is_warned_about(nothing_said_yet):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        waits_in_a_loop(named("Api.fetch"), named("Api.store"))
    assert [str(w.message).split()[0] for w in seen] == ["Api.fetch", "Api.store"]


def test_a_warning_turned_into_an_error_is_logged_instead_and_the_retry_goes_on(nothing_said_yet, caplog):
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING, "redouble"):
        warnings.simplefilter("error")
        assert waits_in_a_loop(named("Api.fetch")) == [()]
    said = [record.getMessage() for record in caplog.records if "event loop" in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("Api.fetch waits")


def test_each_warning_turned_into_an_error_is_logged(nothing_said_yet, caplog):
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING, "redouble"):
        warnings.simplefilter("error")
        waits_in_a_loop(named("Api.fetch"), named("Api.store"))
    said = [record.getMessage() for record in caplog.records if "event loop" in record.getMessage()]
    assert [text.split()[0] for text in said] == ["Api.fetch", "Api.store"]


def test_a_hook_for_warnings_that_raises_does_not_end_the_call(nothing_said_yet, monkeypatch):
    def broken(*_args, **_kwargs):
        raise OSError("disk full")

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", broken)
        assert waits_in_a_loop(named("Api.fetch")) == [()]


def test_no_sync_wait_in_a_running_loop_means_no_warning(nothing_said_yet, quick):
    def main():
        return retry(base=0.0)(fetch_page())()

    assert main() == "page"  # no loop
    assert waits_in_a_loop(retry(fetch_page().__class__(("page",)))) == ["page"]  # no wait
    assert waits_in_a_loop(quick(fetch_page())) == ["page"]  # a sleep of the user's own

    async def threaded():
        return await asyncio.to_thread(main)

    assert asyncio.run(threaded()) == "page"  # not in the thread of the loop
    assert await_all(retry(base=0.0)(scripted(TimeoutError(), "page", asynchronous=True))()) == "page"
    assert _flow._warned == set()


def test_a_sync_block_in_a_running_loop_warns_where_the_loop_is_written(nothing_said_yet):
    async def main():
        for attempt in retrying(base=0.0):
            with attempt:
                if attempt.number == 1:
                    raise TimeoutError("slow")

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        asyncio.run(main())
    assert [(w.category, w.filename) for w in seen] == [(RuntimeWarning, __file__)]


def test_a_call_method_that_is_itself_a_proxy_is_taken_as_plain():
    class Callable:
        __call__ = Wide(lambda *args: "page")

    assert retry(Callable())() == "page"


def test_a_generator_based_coroutine_is_async(quick):
    import types

    calls = []

    @quick
    @types.coroutine
    def fetch():
        calls.append(1)
        if len(calls) == 1:
            raise TimeoutError
        return "page"
        yield

    assert await_all(fetch()) == "page"


def test_an_object_whose_attributes_raise_is_retried():
    class Closed:
        def __getattr__(self, name):
            raise RuntimeError(name)

        def __call__(self):
            return "page"

    assert retry(Closed())() == "page"
