"""What is remembered about a class."""

from __future__ import annotations

import warnings
from datetime import timedelta
from types import SimpleNamespace as Thing

import pytest

from redouble.classify import (
    _judge,
    explain,
    retry_after,
    verdict,
)
from redouble.classify import _table_statuses as _catalogue
from support.failures import (
    NO,
    SAFE,
    failure,
    safety,
    stand_in,
)

# What is remembered about classes


def test_a_class_that_is_gone_is_not_mistaken_for_another_at_its_place(monkeypatch):
    monkeypatch.setattr(_judge, "_known", {})
    kind = stand_in("httpx.ReadTimeout")
    _judge._known[id(kind)] = (lambda: None), _judge.ClassInfo(ValueError)
    assert verdict(kind()).retryable


def test_classes_made_at_run_time_are_not_kept_alive_nor_remembered_without_end(monkeypatch):
    monkeypatch.setattr(_judge, "_MOST_CLASSES", 10)
    monkeypatch.setattr(_judge, "_known", {})
    for _ in range(35):
        verdict(stand_in("botocore.errorfactory.Made")())
        assert len(_judge._known) <= 10


def test_the_tables_hold_rows_of_every_kind_apart():
    rows = [value for value in vars(_catalogue).values() if isinstance(value, _catalogue.Meaning)]
    assert len(rows) == len(set(rows)), "two names for one row would overwrite each other's lines"


def test_the_text_of_an_error_is_its_first_argument_that_is_a_text():
    assert safety(failure("httpx.ConnectError", object(), "CERTIFICATE_VERIFY_FAILED")) == NO
    assert safety(failure("httpx.ConnectError", object())) == SAFE


class RetryAfter(Exception):
    """As that of python-telegram-bot, whose attribute warns when it is read."""

    __slots__ = ("_retry_after",)

    @property
    def retry_after(self):
        warnings.warn("retry_after will be a timedelta", DeprecationWarning, stacklevel=2)
        return 7


@pytest.mark.parametrize("action", ["error", "always"])
def test_the_delay_of_an_attribute_that_warns_is_read_without_the_warning(action):
    error = RetryAfter()
    error._retry_after = timedelta(seconds=7)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(action)
        for found in (error, ExceptionGroup("g", [error])):
            assert verdict(found).retry_after == retry_after(found) == 7
            assert "retry after 7 s" in explain(found)
    assert caught == []


def test_attributes_of_a_closed_websocket_that_warn_are_not_read():
    read = []
    kind = stand_in("websockets.exceptions.ConnectionClosed", code=property(read.append))
    closed = stand_in("websockets.exceptions.ConnectionClosedError", kind)()
    closed.rcvd = Thing(code=1013)
    assert verdict(closed).retryable
    assert read == []
