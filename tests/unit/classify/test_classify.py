"""Builtin errors are judged once, and known again by their class and errno."""

from __future__ import annotations

import errno

import pytest

from redouble import classify
from redouble.classify import verdict


@pytest.mark.parametrize(
    "made",
    [
        lambda: ConnectionResetError(),
        lambda: ConnectionResetError("reset by peer"),
        lambda: ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
        lambda: OSError(errno.EHOSTUNREACH, "no route to host"),
        lambda: ValueError("wrong"),
        lambda: KeyError(),
    ],
)
def test_a_builtin_error_without_other_evidence_is_judged_once(made, monkeypatch):
    monkeypatch.setattr(classify, "_judged", {})
    found = verdict(made())
    assert verdict(made()) is found
    assert classify.plain_verdict(made()) is found


@pytest.mark.parametrize("error", [ValueError(5), OSError("x", "y")])
def test_a_builtin_error_that_may_hold_other_evidence_is_judged_anew(error):
    assert verdict(error) is not verdict(error)
    assert classify.plain_verdict(error) is None


def test_an_errno_that_no_table_has_is_judged_anew():
    error = OSError(99999, "unknown number")
    assert verdict(error) is not verdict(error)


def test_the_class_of_a_timeout_decides_whatever_it_holds():
    assert verdict(TimeoutError(5)) is verdict(TimeoutError(6))


def test_the_verdict_on_a_builtin_error_is_known_by_its_class_and_errno():
    assert verdict(ConnectionRefusedError()).reason == "ConnectionRefusedError"
    refused = verdict(ConnectionRefusedError(errno.ECONNREFUSED, "refused"))
    assert refused.reason == "ConnectionRefusedError (ECONNREFUSED)"
    assert classify._builtin_key(ConnectionRefusedError("refused")) == (ConnectionRefusedError, None)


def test_a_plain_verdict_is_made_where_there_is_none_yet(monkeypatch):
    monkeypatch.setattr(classify, "_judged", {})
    assert classify.plain_verdict(TimeoutError("slow")).retryable
