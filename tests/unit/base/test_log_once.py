"""Warnings about errors of user code, logged once."""

from __future__ import annotations

import pytest

from redouble._base import log_once


def told(caplog):
    return [record for record in caplog.records if "(said once)" in record.getMessage()]


def test_trouble_without_end_is_forgotten_rather_than_kept_without_end(caplog):
    culprits = [lambda event: None for _ in range(log_once._MOST_WARNED + 1)]
    for culprit in culprits:
        log_once.warn_once(culprit, "trouble")
    assert len(told(caplog)) == len(culprits)
    assert len(log_once._warned) == 1
    log_once.warn_once(culprits[0], "trouble")  # forgotten, so said again
    log_once.warn_once(culprits[0], "trouble")
    assert len(told(caplog)) == len(culprits) + 1


def test_an_object_without_a_name_is_reported_too(caplog):
    class Sink:
        def __call__(self, event):
            raise LookupError

    sinks = [Sink(), Sink()]
    for sink in (*sinks, *sinks):
        log_once.warn_once(sink, "sink failed", LookupError("x"))
    assert [record.getMessage() for record in told(caplog)] == ["sink failed (said once)"] * 2


def test_a_shielded_call_returns_its_result_or_logs_its_error_once(caplog):
    def broken(number):
        raise LookupError(number)

    assert log_once.shielded(broken, "it failed", int, "5") == 5
    for _ in range(2):
        assert log_once.shielded(broken, "it failed", broken, 5) is None
    assert [record.getMessage() for record in told(caplog)] == ["it failed (said once)"]


def test_a_shielded_call_lets_interrupts_through():
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        log_once.shielded(None, "it failed", interrupted)
