"""Callables: which kind they are, how they are called, and what they may return."""

from __future__ import annotations

import functools
from unittest import mock

import pytest

from redouble._base.callables import (
    claims_async,
    close,
    decorate,
    flavour,
    is_async,
    is_plain,
    look_like,
    name_of,
    reject_coroutine,
    require_callable,
    sync_result,
    truth,
)


def sync():
    """Do nothing."""


async def coroutine():
    pass


def generator():
    yield


async def async_generator():
    yield


@functools.wraps(coroutine)
def wrapping(*args, **kwargs):
    return coroutine(*args, **kwargs)


class Callable:
    def __call__(self):
        pass

    async def method(self):
        pass


class AsyncCallable:
    async def __call__(self):
        pass


class Raising:
    """A proxy without an object behind it."""

    def __getattr__(self, name):
        raise RuntimeError("unbound")

    def __call__(self):
        pass


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (sync, "sync"),
        (coroutine, "async"),
        (generator, "generator"),
        (async_generator, "async generator"),
        (functools.partial(functools.partial(coroutine)), "async"),
        (Callable().method, "async"),
        (Callable(), "sync"),
        (AsyncCallable(), "async"),
        (AsyncCallable, "sync"),
        (mock.AsyncMock(), "async"),
        (mock.Mock(), "sync"),
        (len, "sync"),
        (3, "sync"),
    ],
    ids=repr,
)
def test_the_flavour_of_a_callable_is_known_without_calling_it(function, kind):
    assert flavour(function) == kind
    assert is_async(function) == (kind == "async")


@pytest.mark.parametrize(
    ("function", "plain"),
    [
        (sync, True),
        (Callable().__call__, True),
        (functools.partial(functools.partial(sync)), True),
        (functools.partial(Callable().__call__), True),
        (coroutine, False),
        (generator, False),
        (async_generator, False),
        (functools.partial(coroutine), False),
        (Callable().method, False),
        (wrapping, False),
        (Callable(), False),
        (Callable, False),
        (len, False),
    ],
)
def test_a_plain_function_is_known_at_first_sight(function, plain):
    assert is_plain(function) is plain
    assert not plain or (flavour(function), claims_async(function)) == ("sync", False)


@pytest.mark.parametrize(
    ("function", "claims"),
    [(wrapping, True), (functools.partial(wrapping), True), (sync, False)],
)
def test_a_sync_function_may_wrap_an_async_one(function, claims):
    assert claims_async(function) is claims


def test_something_whose_attributes_raise_is_a_sync_function():
    assert flavour(Raising()) == "sync"
    assert claims_async(Raising()) is False


def test_a_circle_of_wrappers_ends():
    def circular():
        pass

    circular.__wrapped__ = circular
    assert claims_async(circular) is False


@pytest.mark.parametrize(
    ("function", "name", "short"),
    [
        (sync, "sync", "sync"),
        (Callable.method, "Callable.method", "method"),
        (functools.partial(functools.partial(Callable.method)), "Callable.method", "method"),
        (len, "len", "len"),
    ],
)
def test_a_callable_is_named_through_partials(function, name, short):
    assert name_of(function) == name
    assert name_of(function, short=True) == short


def test_an_object_without_a_name_goes_by_its_class_or_its_repr():
    assert name_of(Callable()) == "Callable"
    assert name_of(Callable(), short=True).startswith("<")
    assert name_of(Raising()) == "Raising"


def test_a_wrapper_gets_the_name_the_docstring_and_the_attributes():
    def target():
        """Say it."""

    target.mark = 3
    wrapper = look_like(lambda: None, target)
    assert (wrapper.__name__, wrapper.__doc__, wrapper.mark, wrapper.__wrapped__) == (
        "target",
        target.__doc__,
        3,
        target,
    )


def test_a_wrapper_of_something_whose_attributes_raise_still_knows_it():
    proxy = Raising()
    assert look_like(lambda: None, proxy).__wrapped__ is proxy


def test_a_result_that_must_be_awaited_is_an_error_and_is_closed():
    assert sync_result("until", 3) == 3
    assert truth("until", []) is False
    with pytest.raises(TypeError, match=r"^until returned an awaitable: it must be a plain function$"):
        truth("until", coroutine())


def test_a_listener_may_return_anything_but_a_coroutine():
    reject_coroutine(mock.Mock())
    with pytest.raises(TypeError, match=r"^it returned an awaitable"):
        reject_coroutine(coroutine())


def test_only_coroutines_are_closed():
    close(3)
    unused = coroutine()
    close(unused)
    assert unused.cr_frame is None


def test_what_cannot_be_called_is_refused_with_what_to_do():
    require_callable("retry", sync)
    with pytest.raises(TypeError, match=r"^cannot retry 3: it is not callable; decorate a function$"):
        require_callable("retry", 3)
    with pytest.raises(TypeError, match=r"called already; give the function itself, and then its arguments$"):
        require_callable("hedge", coroutine())
    with pytest.raises(TypeError, match=r"^cannot hedge a property: "):
        require_callable("hedge", property(sync))


def test_every_kind_of_method_is_decorated_and_stays_what_it_is():
    def wrap(function):
        return lambda *args: ("wrapped", function(*args))

    class Client:
        static = decorate("retry", wrap, staticmethod(lambda: 1))
        of_class = decorate("retry", wrap, classmethod(lambda cls: cls.__name__))
        partial = decorate("retry", wrap, functools.partialmethod(lambda self, number: number, 3))

        @functools.partial(decorate, "retry", wrap)
        def method(self):
            return 2

    assert Client.static() == ("wrapped", 1)
    assert Client.of_class() == ("wrapped", "Client")
    assert Client().partial() == ("wrapped", 3)
    assert Client().method() == ("wrapped", 2)
    assert Client.method.__name__ == "method"


def test_a_class_is_not_decorated():
    with pytest.raises(TypeError, match=r"^cannot retry the class Callable: decorate the method itself"):
        decorate("retry", sync, Callable)
