"""Every kind of callable can be retried: what stays as it was, methods, classes, descriptors."""

from __future__ import annotations

import abc
import functools
import inspect
import pickle
import sys
from unittest import mock

import pytest

from redouble import Policy, retry
from redouble.backoff import exponential
from redouble.testing import scripted


@pytest.fixture
def quick(clock):
    """Three attempts, with waits of 1 and 2 seconds that take none."""
    return Policy(attempts=3, backoff=exponential, clock=clock, sleep=clock.sleep)


class Failing:
    """Counts its calls and fails the first two of them: what stands behind everything decorated here."""

    def __init__(self):
        self.calls = []

    def __call__(self, *seen):
        self.calls.append(seen)
        if len(self.calls) < 3:
            raise TimeoutError(f"failure {len(self.calls)}")
        return seen


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
    policy = Policy(attempts=2, base=0.0, nested="independent", clock=clock, sleep=clock.sleep)
    failing = scripted(*[TimeoutError("slow")] * 3, "page")
    assert policy(policy(failing))() == "page"
    assert len(failing.calls) == 4


# What is refused, and what the message says


class Fetch:
    """A class, for the tests below."""
