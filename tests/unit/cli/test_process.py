"""Signals that wait to be read, the foreground of a terminal, and the end of this process by a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from redouble._cli import process

if os.name != "posix":
    pytest.skip("there are no such signals", allow_module_level=True)


def test_a_wait_of_nothing_still_notices_a_signal():
    with process.Signals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(process.Signalled):
            signals.sleep(0.0)


@pytest.mark.slow
def test_a_wait_goes_on_after_an_end_of_a_child():
    with process.Signals() as signals:
        began = time.monotonic()
        child = subprocess.Popen(["true"])
        signals.sleep(0.2)
        child.wait()
    assert time.monotonic() - began >= 0.2


def test_the_foreground_is_where_the_group_of_the_terminal_is_ours(monkeypatch):
    monkeypatch.setattr(os, "ctermid", lambda: "/nowhere")
    assert not process.in_foreground()
    monkeypatch.setattr(os, "ctermid", lambda: os.devnull)
    assert not process.in_foreground()
    monkeypatch.setattr(os, "tcgetpgrp", lambda terminal: os.getpgrp())
    assert process.in_foreground()


def test_to_die_by_a_signal_is_to_have_no_handler_no_core_file_and_to_send_it(monkeypatch):
    import resource

    done = []
    monkeypatch.setattr(resource, "setrlimit", lambda *given: done.append(given))
    monkeypatch.setattr(signal, "signal", lambda *given: done.append(given))
    monkeypatch.setattr(os, "kill", lambda *given: done.append(given))
    assert process.die_by(signal.SIGQUIT) == 131
    monkeypatch.undo()
    assert done == [
        (resource.RLIMIT_CORE, (0, 0)),
        (signal.SIGQUIT, signal.SIG_DFL),
        (os.getpid(), signal.SIGQUIT),
    ]
