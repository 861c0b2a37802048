"""Listeners: their order, their errors, and what they may do."""

from __future__ import annotations

import logging
from unittest import mock

import pytest

from conftest import watchdog
from redouble import DeadlineExceeded, Policy
from redouble.backoff import exponential
from redouble.events import Expired, GaveUp, Recovered, Retrying

TERMINAL = (Recovered, GaveUp, Expired)


@pytest.fixture
def heard():
    return []


@pytest.fixture
def policy(clock, heard):
    return Policy(backoff=exponential, name="fetch", listeners=[heard.append], clock=clock, sleep=clock.sleep)


def test_listeners_are_told_in_order(flavour, policy):
    order = []
    listeners = [lambda event, name=name: order.append((name, type(event))) for name in "abc"]
    flavour.call(policy.replace(listeners=listeners), flavour.scripted(TimeoutError(), "page"))
    assert order == [(name, kind) for kind in (Retrying, Recovered) for name in "abc"]


def told(caplog):
    return [record for record in caplog.records if "(said once)" in record.getMessage()]


def test_a_listener_that_raises_is_logged_once_and_hides_nothing(flavour, policy, caplog):
    first, last = [], []

    def broken(event):
        raise LookupError("no such metric")

    listening = policy.replace(listeners=[first.append, broken, last.append])
    with caplog.at_level(logging.WARNING, "redouble"):
        result = flavour.call(listening, flavour.scripted(TimeoutError(), TimeoutError(), "page"))
        assert result == "page"
        with pytest.raises(KeyError):
            flavour.call(listening, flavour.scripted(KeyError("own")))
    assert first == last
    assert [type(event) for event in first] == [Retrying, Retrying, Recovered, GaveUp]
    (record,) = told(caplog)
    assert record.name == "redouble"
    assert record.levelname == "WARNING"
    assert "broken" in record.getMessage()
    assert record.exc_text.endswith("\nLookupError: no such metric")


def test_each_listener_that_raises_is_told_of_once(policy, caplog, flavour):
    def made():
        def broken(event):
            raise LookupError

        return broken

    listening = policy.replace(listeners=[made(), made()])
    flavour.call(listening, flavour.scripted(TimeoutError(), TimeoutError(), "page"))
    assert len(told(caplog)) == 2


def test_a_listener_whose_very_name_raises_hides_nothing(flavour, policy, heard):
    class Nasty:
        def __getattr__(self, name):
            if name in ("__name__", "__qualname__", "func"):
                raise RuntimeError(name)
            raise AttributeError(name)

        def __call__(self, event):
            raise LookupError

    listening = policy.replace(listeners=[Nasty(), heard.append])
    assert flavour.call(listening, flavour.scripted(TimeoutError(), "page")) == "page"
    assert [type(event) for event in heard] == [Retrying, Recovered]


def test_a_mock_that_raises_is_a_listener_like_any_other(flavour, policy, heard):
    listening = policy.replace(listeners=[mock.Mock(side_effect=LookupError), heard.append])
    with watchdog():
        assert flavour.call(listening, flavour.scripted(TimeoutError(), "page")) == "page"
    assert [type(event) for event in heard] == [Retrying, Recovered]


@pytest.mark.parametrize("interrupt", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_an_interrupt_in_a_listener_is_not_held_back(flavour, policy, interrupt, clock):
    def interrupted(event):
        raise interrupt

    later = []
    listening = policy.replace(listeners=[interrupted, later.append])
    decorated = listening(flavour.scripted(TimeoutError(), "page"))
    caught = []

    # Caught inside: an event loop treats an interrupt of a task in a way of its own.
    def outcome():
        try:
            decorated()
        except interrupt as error:
            caught.append(error)

    async def awaited():
        try:
            await decorated()
        except interrupt as error:
            caught.append(error)

    flavour.run(awaited if flavour.is_async else outcome)
    assert [type(error) for error in caught] == [interrupt]
    assert later == []
    assert clock.waits == []


async def async_listener(event):
    return None


def generator_listener(event):
    yield event


@pytest.mark.parametrize("listener", [async_listener, generator_listener, mock.AsyncMock()])
def test_an_async_listener_is_refused_when_the_policy_is_built(listener):
    with pytest.raises(
        TypeError, match="listeners must be a plain function, not an async one or a generator"
    ):
        Policy(listeners=[listener])


def test_the_time_a_listener_takes_counts_against_the_deadline(flavour, clock):
    policy = Policy(
        deadline=5.0,
        backoff=exponential,
        listeners=[lambda event: clock.advance(10.0)],
        clock=clock,
        sleep=clock.sleep,
    )
    script = flavour.scripted(TimeoutError("slow"), "page")
    with pytest.raises(DeadlineExceeded):
        flavour.call(policy, script)
    assert len(script.calls) == 1


def test_a_listener_sees_no_arguments_and_cannot_change_the_next_wait(flavour, policy, clock, heard):
    def meddling(event):
        event.delay = 0.0

    listening = policy.replace(listeners=[meddling, heard.append])
    decorated = listening(flavour.scripted(TimeoutError("slow"), "page"))
    assert flavour.run(decorated, "s3cret", password="s3cret") == "page"
    assert clock.waits == [1.0]
    assert "s3cret" not in repr(heard)
