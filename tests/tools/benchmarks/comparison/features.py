"""Features: how the source of a library shows that it has none, and what comes nearest."""

from __future__ import annotations

import re

from .base import Cell, Library
from .figures import source

# For each feature a pattern that the source of a library with that feature must have. If a library has no run that
# shows the feature, its source must not match.
FEATURES = {
    "block form": r"def __iter__",
    "retry on a result": r"retry_if_result|on_predicate|result_classifier|retry_on_result",
    "fallback value": r"retry_error_callback|raise_on_giveup|FallbackConfig",
    "retry budget": r"[Bb]udget",
    "circuit breaker": r"[Cc]ircuit",
    "bulkhead": r"[Bb]ulkhead",
    "rate limit": r"[Tt]hrottle\b|[Rr]ate_?[Ll]imiter",
    "hedging": r"[Hh]edg(e|ing)",
    "dead letters": r"[Dd]ead.?[Ll]etter",
    "switch for tests": r"def (set_testing|retries_disabled|retry_immediately)",
    "conditions joined by operators": r"def __r?or__",
    "async hooks": r"await \w*(hook|before_sleep|callback|listener)",
    "Prometheus with no set-up": r"get_default_hooks",
    "result cache": r"ResultCache",
    "cuts off a sync attempt": r"SetAsyncExc",
}

NEAREST = {
    ("story", "tenacity"): "`before_sleep_log`, in the log",
    ("story", "stamina"): "its log, which has a line for each retry by default",
    ("story", "backoff"): "its log, which has a line for each retry by default",
    ("story", "redress"): "`execute(..., capture_timeline=True)`, in the outcome",
    ("story", "pyresilience"): "listeners, which receive each retry",
    ("fallback value", "redress"): "`execute`, which gives an outcome and does not raise",
    ("conditions joined by operators", "stamina"): "`on`, one function",
    ("conditions joined by operators", "backoff"): "`giveup`, one function",
    ("conditions joined by operators", "redress"): "`classifier`, one function",
    ("Prometheus with no set-up", "tenacity"): "`before_sleep` and `after`, with custom functions",
    (
        "Prometheus with no set-up",
        "backoff",
    ): "`on_backoff`, `on_success` and `on_giveup`, with custom functions",
    ("block form", "redress"): "`policy.context()`, a block in which several calls share hooks",
    ("retry on a result", "stamina"): "raise an exception for the result yourself",
    ("retry on a result", "opnieuw"): "raise an exception for the result yourself",
    ("fallback value", "backoff"): "`raise_on_giveup=False` returns only `None`",
    (
        "rate limit",
        "redouble",
    ): "a throttle that follows the server's answers; there is no fixed number for a period",
    ("switch for tests", "tenacity"): "`fetch.retry.wait = wait_none()`, function by function",
    ("switch for tests", "backoff"): "patch `time.sleep`",
    ("switch for tests", "redress"): "`redress.testing.instant_retries`, a strategy to be passed in",
    ("switch for tests", "pyresilience"): "patch `time.sleep`",
    ("conditions joined by operators", "redouble"): "functions: `on=lambda error: a(error) or b(error)`",
    ("async hooks", "redouble"): "listeners are plain functions; `recover` and `fallback` may be async",
    ("Prometheus with no set-up", "redouble"): "`redouble.metrics`, one line",
    ("Prometheus with no set-up", "redress"): "`redress.contrib.prometheus`, passed as a hook",
    ("Prometheus with no set-up", "pyresilience"): "`pyresilience.contrib.prometheus`, passed as a listener",
    ("cuts off a sync attempt", "redouble"): "`current_attempt().timeout` says how long the attempt may take",
    ("cuts off a sync attempt", "redress"): "`attempt_timeout_s`, for async attempts",
}


def feature(name: str, library: Library) -> Cell:
    check = library.checks().get(name)
    note = NEAREST.get((name, library.name), "")
    if check is None:
        if re.search(FEATURES[name], source(library)):
            raise AssertionError(f"{library.name}: {name} may be there: its source has /{FEATURES[name]}/")
        return Cell("no", f"Nearest: {note}." if note else "")
    if not check():
        raise AssertionError(f"{library.name}: {name} was not seen")
    return (
        Cell("in part", f"{note[0].upper() if note[0].isalpha() else note[0]}{note[1:]}.")
        if note
        else Cell("yes")
    )
