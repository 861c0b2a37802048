"""What can be decorated: every kind of callable keeps its looks and is retried, the rest is refused."""

from __future__ import annotations

import abc
import asyncio
import functools
import inspect
import logging
import pickle
import re
import sys
import warnings
import xmlrpc.client
from unittest import mock

import pytest

from redouble import (
    BulkheadFull,
    Policy,
    ResultRejected,
    Rule,
    _sync,
    _trouble,
    current_attempt,
    retry,
    retrying,
)
from redouble.backoff import exponential, fixed
from redouble.budget import TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.testing import no_waits, scripted


@pytest.fixture
def quick(clock):
    """Three attempts, with waits of 1 and 2 seconds that take none."""
    return Policy(attempts=3, backoff=exponential, clock=clock, sleep=clock.sleep)


@pytest.fixture
def nothing_said_yet():
    """What is said once in a process may be said in this test, and again in the next."""
    _sync._warned.clear()
    _trouble._told.clear()
    yield
    _sync._warned.clear()
    _trouble._told.clear()


def is_coroutine_function(function):
    """By the word of the standard library of this version: inspect learned to read marks in 3.12."""
    if sys.version_info >= (3, 12):
        return inspect.iscoroutinefunction(function)
    return asyncio.iscoroutinefunction(function)


def await_all(awaitable):
    async def main():
        return await awaitable

    return asyncio.run(main())


class Failing:
    """Counts its calls and fails the first two of them: what stands behind everything decorated here."""

    def __init__(self):
        self.calls = []

    def __call__(self, *seen):
        self.calls.append(seen)
        if len(self.calls) < 3:
            raise TimeoutError(f"failure {len(self.calls)}")
        return seen


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


# What stays as it was


def test_the_looks_of_a_function_are_kept(flavour):
    def fetch(url: str, *, times: int = 3) -> str:
        """Fetches."""
        return url * times

    fetch.colour = "red"
    plain = fetch
    if flavour.is_async:
        plain = functools.update_wrapper(flavour.function(fetch), fetch)
    decorated = retry(plain)
    assert decorated.__wrapped__ is plain
    assert decorated.__name__ == "fetch"
    assert decorated.__qualname__ == fetch.__qualname__
    assert decorated.__doc__ == "Fetches."
    assert decorated.__module__ == __name__
    assert decorated.__annotations__ == {"url": "str", "times": "int", "return": "str"}
    assert decorated.colour == "red"
    assert inspect.signature(decorated) == inspect.signature(fetch)


@pytest.mark.parametrize(
    "plain",
    [
        lambda a, /, b, *c, d=1, **e: None,
        functools.partial(lambda a, b: None, 1),
        len,
        mock.create_autospec(lambda a, b: None),
        {}.get,
    ],
    ids=["lambda", "partial", "builtin", "autospec", "builtin method"],
)
def test_the_signature_of_any_callable_is_kept(plain):
    assert inspect.signature(retry(plain)) == inspect.signature(plain)


def test_the_signature_of_a_callable_object_is_kept():
    class Fetch:
        """Fetches things."""

        def __init__(self):
            self.colour = "red"

        def __call__(self, url: str) -> str:
            return url

    plain = Fetch()
    decorated = retry(plain)
    assert inspect.signature(decorated) == inspect.signature(plain)
    assert decorated.__doc__ == "Fetches things."
    assert decorated.colour == "red"


def test_methods_keep_their_signature_with_and_without_self():
    class Things:
        @retry
        def method(self, a, b=2): ...

        @retry
        @classmethod
        def make(cls, a): ...

        @retry
        @staticmethod
        def sum(a): ...

    assert str(inspect.signature(Things.method)) == "(self, a, b=2)"
    assert str(inspect.signature(Things().method)) == "(a, b=2)"
    assert str(inspect.signature(Things.make)) == "(a)"
    assert str(inspect.signature(Things.sum)) == "(a)"


def test_decorating_does_not_touch_the_function():
    def fetch():
        return "page"

    before = dict(fetch.__dict__)
    retry(fetch)
    assert fetch.__dict__ == before


@retry
def at_module_level(value):
    return value


def test_a_decorated_function_pickles_by_its_name():
    sys.modules.setdefault(__name__, inspect.getmodule(test_a_decorated_function_pickles_by_its_name))
    with mock.patch.dict(sys.modules, {__name__: sys.modules[__name__]}):
        assert pickle.loads(pickle.dumps(at_module_level)) is at_module_level


def test_arguments_may_have_any_name(flavour):
    def fetch(**fields):
        return fields

    fields = {"self": 1, "policy": 2, "function": 3, "args": 4, "kwargs": 5, "name": 6, "call": 7}

    async def async_fetch(**fields):
        return fields

    plain = async_fetch if flavour.is_async else fetch
    assert flavour.run(lambda: retry(plain)(**fields)) == fields
    assert flavour.run(lambda: retry(deadline=9.0)(plain)(**fields)) == fields
    assert flavour.run(lambda: Policy().call(plain, **fields)) == fields


# Methods, classes, descriptors


def test_a_decorated_method_binds_as_any_other():
    class Things:
        @retry
        def method(self):
            return self

    things = Things()
    assert things.method() is things
    assert things.method == things.method
    assert things.method != Things().method
    assert things.method.__self__ is things
    assert things.method.__func__ is Things.method
    assert Things.method is Things.__dict__["method"]
    assert inspect.ismethod(things.method)
    assert inspect.isfunction(Things.method)


def test_a_classmethod_sees_the_class_it_was_called_on():
    class Base:
        @retry
        @classmethod
        def make(cls):
            return cls

    class Child(Base):
        pass

    assert Child.make() is Child
    assert isinstance(Base.__dict__["make"], classmethod)


def test_a_staticmethod_stays_one():
    class Things:
        @retry
        @staticmethod
        def sum(a, b):
            return a + b

    assert isinstance(Things.__dict__["sum"], staticmethod)
    assert Things().sum(1, 2) == 3


def test_a_subclass_of_staticmethod_or_classmethod_stays_itself():
    class Marked(classmethod):
        pass

    class Things:
        @retry
        @Marked
        def make(cls):  # noqa: N805 - a classmethod, though the linter cannot see that
            return cls

    assert type(Things.__dict__["make"]) is Marked
    assert Things.make() is Things


def test_an_overridden_method_may_call_the_decorated_one_it_replaces(quick):
    failing = Failing()

    class Base:
        @quick
        def fetch(self, a):
            return failing(a)

    class Child(Base):
        def fetch(self, a):
            return super().fetch(a)

    assert Child().fetch(1) == (1,)
    assert len(failing.calls) == 3


@pytest.mark.parametrize("above", [True, False], ids=["retry above", "retry below"])
@pytest.mark.parametrize("kind", [None, classmethod, staticmethod], ids=["method", "classmethod", "static"])
def test_an_abstract_method_stays_abstract(above, kind):
    def fetch(*args):
        return "page"

    def made():
        function = abc.abstractmethod(fetch)
        if kind is None:
            return retry(function) if above else abc.abstractmethod(retry(fetch))
        return retry(kind(function)) if above else kind(retry(function))

    base = abc.ABCMeta("Base", (), {"fetch": made()})
    with pytest.raises(TypeError, match="abstract"):
        base()
    assert type("Child", (base,), {"fetch": lambda self: "page"})().fetch() == "page"


def test_a_descriptor_that_wants_its_name_may_stand_above_retry(quick):
    failing = Failing()

    class Named:
        def __init__(self, function):
            self.function = function

        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, instance, owner=None):
            return functools.partial(self.function, instance, self.name)

    class Things:
        @Named
        @quick
        def method(self, name):
            return failing(type(self), name)

    assert Things().method() == (Things, "method")
    assert len(failing.calls) == 3


def test_a_cached_property_above_retry_is_computed_once(quick):
    failing = Failing()

    class Things:
        @functools.cached_property
        @quick
        def page(self):
            return failing("page")

    things = Things()
    assert things.page is things.page
    assert len(failing.calls) == 3


def test_retried_functions_may_be_cached_and_cached_ones_retried(quick):
    failing = Failing()
    cached = functools.lru_cache(quick(lambda a: failing(a)))
    assert (cached(1), cached(1)) == ((1,), (1,))
    assert len(failing.calls) == 3
    failing = Failing()
    retried = quick(functools.lru_cache(lambda a: failing(a)))
    assert (retried(1), retried(1)) == ((1,), (1,))
    assert len(failing.calls) == 3
    assert retried.__wrapped__.cache_info().hits == 1


def test_one_function_may_be_decorated_twice_with_policies_of_their_own(clock):
    policy = Policy(attempts=2, base=0.0, clock=clock, sleep=clock.sleep)
    failing = scripted(*[TimeoutError("slow")] * 3, "page")
    assert policy(policy(failing))() == "page"
    assert len(failing.calls) == 4


# Async


def async_kinds():
    async def fetch():
        return "page"

    class Fetch:
        async def __call__(self): ...

        async def method(self): ...

    wrapped = functools.wraps(fetch)(lambda: fetch())
    return {
        "function": fetch,
        "bound method": Fetch().method,
        "callable object": Fetch(),
        "partial": functools.partial(fetch),
        "partial of a callable object": functools.partial(Fetch()),
        "partial of a bound method": functools.partial(Fetch().method),
        "wraps around it": wrapped,
        "wraps around a wraps around it": functools.wraps(wrapped)(lambda: wrapped()),
        "partial of a wraps around it": functools.partial(wrapped),
        "AsyncMock": mock.AsyncMock(),
        "retried already": retry(fetch),
    }


@pytest.mark.parametrize("kind", async_kinds())
def test_what_is_async_stays_async_to_those_who_ask(kind):
    assert is_coroutine_function(retry(async_kinds()[kind]))
    assert is_coroutine_function(retry(deadline=5.0)(async_kinds()[kind]))


def test_methods_that_are_async_are_seen_as_such():
    class Things:
        @retry
        async def method(self): ...

        @retry
        @classmethod
        async def make(cls): ...

        @retry
        @staticmethod
        async def sum(): ...

    for method in (Things.method, Things().method, Things.make, Things.sum):
        assert inspect.iscoroutinefunction(method)


def test_a_sync_function_is_not_taken_for_an_async_one():
    assert not is_coroutine_function(retry(lambda: None))
    assert not is_coroutine_function(retry(mock.MagicMock()))
    assert not is_coroutine_function(retry(functools.wraps(len)(lambda a: a)))


def test_a_mark_of_the_standard_library_makes_a_function_async():
    async def fetch():
        return "page"

    def stands_in():
        return fetch()

    if sys.version_info >= (3, 12):
        decorated = retry(inspect.markcoroutinefunction(stands_in))
        assert inspect.iscoroutinefunction(decorated)
    else:
        stands_in._is_coroutine = asyncio.coroutines._is_coroutine
        decorated = retry(stands_in)
        assert asyncio.iscoroutinefunction(decorated)
    assert await_all(decorated()) == "page"


def test_a_callable_object_with_a_mark_is_async():
    async def fetch():
        return "page"

    class Compiled:
        def __call__(self):
            return fetch()

    compiled = Compiled()
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(compiled)
        assert inspect.iscoroutinefunction(retry(compiled))
    assert await_all(retry(compiled)()) == "page"


def wrapped_around_async(*outcomes):
    """A plain function around an async one, as other decorators make them; it may itself raise."""
    before = scripted(*outcomes)

    async def fetch():
        return "page"

    @functools.wraps(fetch)
    def stands_in():
        before()
        return fetch()

    stands_in.before = before
    return stands_in


def test_wraps_around_async_gives_a_coroutine_before_anything_runs(quick, clock):
    stands_in = wrapped_around_async(TimeoutError("no pool"), None)

    async def main():
        # What says that it is a coroutine function neither raises nor waits when it is only called.
        coroutine = quick(stands_in)()
        assert inspect.iscoroutine(coroutine)
        assert clock.waits == []
        return await coroutine

    assert asyncio.run(main()) == "page"
    assert clock.waits == [1.0]
    assert len(stands_in.before.calls) == 2


def test_wraps_around_async_waits_without_blocking_the_event_loop(nothing_said_yet):
    stands_in = wrapped_around_async(TimeoutError("no pool"), None)

    async def main():
        return await retry(base=0.0)(stands_in)()

    assert asyncio.run(main()) == "page"
    # Warnings are errors in these tests, so that a sync wait in the loop would be logged, and remembered:
    assert _sync._warned == set()


def test_wraps_around_async_may_have_an_async_sleep_and_an_async_recover():
    waits, recovered = [], []

    async def sleep(seconds):
        waits.append(seconds)

    async def recover(error):
        recovered.append(str(error))

    policy = Policy(backoff=fixed, sleep=sleep, rules={TimeoutError: Rule(recover=recover)})
    assert await_all(policy(wrapped_around_async(TimeoutError("no pool"), None))()) == "page"
    assert waits == [1.0]
    assert recovered == ["no pool"]


def test_a_chain_of_wraps_that_leads_in_a_circle_ends():
    def fetch():
        return "page"

    fetch.__wrapped__ = fetch
    assert retry(fetch)() == "page"


# Plain functions that give coroutines


def test_a_coroutine_from_a_plain_function_is_driven_not_handed_back(quick, clock):
    failing = Failing()

    async def fetch(a):
        await asyncio.sleep(0)
        return failing(a)

    assert await_all(quick(lambda a: fetch(a))(1)) == (1,)
    assert clock.waits == [1.0, 2.0]


@pytest.mark.parametrize("fields", [{}, {"deadline": 60.0}, {"until": bool}], ids=str)
def test_a_coroutine_that_comes_only_at_a_later_attempt_is_driven_too(fields, quick, clock):
    sync, inner = scripted(TimeoutError("no pool"), None, None), scripted(TimeoutError("slow"), "page")

    async def fetch():
        return inner()

    def connect():
        sync()
        return fetch()

    assert await_all(quick.replace(**fields)(connect)()) == "page"
    assert clock.waits == [1.0, 2.0]
    assert (len(sync.calls), len(inner.calls)) == (3, 2)


def test_a_coroutine_that_comes_late_gives_up_with_the_whole_story(quick):
    outcomes = iter([TimeoutError("no pool")])

    async def fetch():
        raise TimeoutError("slow")

    def connect():
        for outcome in outcomes:
            raise outcome
        return fetch()

    with pytest.raises(TimeoutError, match="slow") as caught:
        await_all(quick(connect)())
    (note,) = caught.value.__notes__
    assert "after 3 attempts" in note
    assert "attempt 1: TimeoutError: no pool" in note
    assert "attempt 3: TimeoutError: slow" in note


def test_a_plain_function_may_give_a_coroutine_first_and_raise_or_return_later(quick):
    async def fetch():
        raise TimeoutError("slow")

    outcomes = iter([fetch, TimeoutError, "page"])

    def mixed():
        outcome = next(outcomes)
        if outcome is TimeoutError:
            raise TimeoutError("no pool")
        return outcome() if callable(outcome) else outcome

    assert await_all(quick(mixed)()) == "page"


def test_the_result_of_a_driven_coroutine_is_judged_by_until(quick, clock):
    pages = iter(["", "", "page"])

    async def fetch():
        return next(pages)

    assert await_all(quick.replace(until=bool)(lambda: fetch())()) == "page"
    assert clock.waits == [1.0, 2.0]


def test_a_driven_coroutine_that_until_never_accepts_is_a_rejected_result(quick):
    async def fetch():
        return ""

    with pytest.raises(ResultRejected) as caught:
        await_all(quick.replace(until=bool)(lambda: fetch())())
    assert caught.value.attempts == 3


def test_a_driven_coroutine_sees_its_attempt(quick):
    seen = []

    async def fetch():
        seen.append(current_attempt().number)
        raise TimeoutError("slow")

    with pytest.raises(TimeoutError):
        await_all(quick.replace(idempotency_key=True)(lambda: fetch())())
    assert seen == [1, 2, 3]


class Request:
    """Something to await that is no coroutine, as clients give it: aiohttp's ``session.get(url)``."""

    def __init__(self, outcome):
        self.outcome = outcome

    def __await__(self):
        yield from asyncio.sleep(0).__await__()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    async def __aenter__(self):
        return await self


def requests(*outcomes):
    """A plain function that gives one after the other."""
    left = iter(outcomes)
    return lambda *args: Request(next(left))


def futures(*outcomes):
    left = iter(outcomes)

    def run_in_executor(*args):
        def work():
            outcome = next(left)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        return asyncio.get_running_loop().run_in_executor(None, work)

    return run_in_executor


AWAITABLES = pytest.mark.parametrize("awaitables", [requests, futures])
NEEDS = [{}, {"deadline": 60.0}, {"until": bool}, {"budget": TokenBudget()}, {"bulkhead": Bulkhead(1)}]


@AWAITABLES
@pytest.mark.parametrize("fields", [*NEEDS, {"budget": TokenBudget(), "until": bool}])
def test_an_awaitable_from_a_plain_function_is_retried_when_it_is_awaited(quick, clock, awaitables, fields):
    async def main():
        get = awaitables(TimeoutError("slow"), "page")
        return await quick.replace(**fields)(get)("/")

    assert asyncio.run(main()) == "page"
    assert clock.waits == [1.0]


@AWAITABLES
def test_an_awaitable_called_through_a_policy_or_a_scope_is_retried(quick, clock, awaitables):
    async def main():
        first = await quick.call(awaitables(TimeoutError("slow"), "page"), "/")
        with retrying(quick.replace(deadline=60.0)) as call:
            return first, await call(awaitables(TimeoutError("slow"), "page"), "/")

    assert asyncio.run(main()) == ("page", "page")
    assert clock.waits == [1.0, 1.0]


def test_an_awaitable_that_comes_after_a_failure_is_awaited_too(quick):
    get = requests(TimeoutError("slow"), "page")
    fails = iter([True, False, False])

    def connect():
        if next(fails):
            raise ConnectionResetError("lost")
        return get()

    async def main():
        return await quick.replace(sleep=None, base=0.0)(connect)()

    with pytest.warns(RuntimeWarning, match="blocks all tasks"):
        assert asyncio.run(main()) == "page"


def test_the_result_of_an_awaitable_is_judged_by_until(quick, clock):
    async def main():
        return await quick.replace(until=bool)(requests("", "page"))()

    assert asyncio.run(main()) == "page"
    assert clock.waits == [1.0]


def test_a_function_that_claims_to_be_async_may_give_a_future(quick, clock):
    run = futures(TimeoutError("slow"), "page")

    async def fetch(): ...

    async def main():
        return await quick(functools.wraps(fetch)(lambda: run()))()

    assert asyncio.run(main()) == "page"
    assert clock.waits == [1.0]


def test_an_awaitable_that_gives_itself_is_not_closed(quick):
    class Pool:
        closed = False

        def __await__(self):
            yield from asyncio.sleep(0).__await__()
            return self

        def close(self):
            self.closed = True

    pool = Pool()

    async def main():
        return await quick(lambda: pool)()

    assert asyncio.run(main()) is pool
    assert not pool.closed


def test_an_awaitable_whose_call_is_refused_by_a_guard_does_not_run(quick):
    async def main():
        guarded = quick.replace(bulkhead=Bulkhead(1))
        started, coroutine = asyncio.get_running_loop().create_future(), asyncio.sleep(0)
        for unawaited in (started, coroutine, Request("page")):
            function = guarded(lambda unawaited=unawaited: unawaited)
            given = function()
            with guarded.bulkhead:
                with pytest.raises(BulkheadFull):
                    await given
        assert started.cancelled()

    asyncio.run(main())


def test_where_no_event_loop_runs_an_awaitable_is_a_result(quick):
    request = Request("page")
    assert quick(lambda: request)() is request


def test_a_handle_of_work_elsewhere_is_a_result(quick):
    handle = type("Future", (Request,), {"__module__": "distributed.client"})("page")

    async def main():
        return quick(lambda: handle)()

    assert asyncio.run(main()) is handle


class Answering(type):
    """Makes classes that have every attribute one may ask for."""

    def __getattr__(cls, name):
        return lambda *args: None


@pytest.mark.parametrize(
    "odd",
    [mock.Mock(), mock.MagicMock(), mock.AsyncMock(), Answering("Odd", (), {})(), Answering("Odd", (), {})],
)
def test_an_object_with_every_attribute_is_a_result(quick, odd):
    async def main():
        return quick(lambda: odd)()

    assert asyncio.run(main()) is odd


def test_a_function_may_give_results_of_many_types(quick):
    class Page: ...

    results = [None, "page", Page(), 1, Page(), {}, Request("page"), Page()]
    given = iter(results)
    function = quick(lambda: next(given))
    assert [function() for _ in results] == results


# What is refused, and what the message says


class Fetch:
    """A class, for the tests below."""


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (Fetch, r"cannot retry the class Fetch: decorate the method .*, or a function that makes"),
        (property(lambda self: 1), r"property: put @retry below @property"),
        (42, r"cannot retry 42: it is not callable; decorate a function"),
        ("fetch", r"cannot retry 'fetch': it is not callable"),
        (functools.cached_property(len), r"it is not callable"),
        (staticmethod(Fetch), r"cannot retry the class Fetch"),
        (classmethod(property(lambda cls: 1)), r"property: put @retry below @property"),
    ],
    ids=["class", "property", "number", "text", "cached_property", "class in static", "class property"],
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
    assert _sync._warned == set()


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
