"""The one decision as a table: outcome and limits in, wait or stop with its reason out. No clock, no loop."""

from __future__ import annotations

import datetime
import math
from concurrent.futures import CancelledError
from random import Random
from typing import Any
from unittest import SkipTest

import pytest

from redouble import Cause, Policy, Rule, Verdict
from redouble._engine.decide import Progress, RejectedResult, Stop, Wait, decide
from redouble._engine.guarding import GuardPass
from redouble._engine.note import write_note
from redouble.backoff import decorrelated_jitter, exponential, fixed, immediately_once
from redouble.breaker import Breaker
from redouble.budget import Budget
from redouble.classify import Classifier
from redouble.errors import ResultRejected
from redouble.events import Reason
from redouble.testing import capped, retries_disabled
from support.errors import HTTPError


class Pinned(Random):
    """Draws the same number always."""

    def __init__(self, u: float) -> None:
        super().__init__()
        self.u = u

    def random(self) -> float:
        return self.u


class Bundle(ExceptionGroup):
    """A group with a class of its own."""


class Shop:
    """A class that has an error of its own inside."""

    class Closed(Exception):
        pass


def group(*errors: Exception, cls: type[ExceptionGroup] = ExceptionGroup) -> ExceptionGroup:
    return cls("several", errors)


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def retried(error: Exception) -> Exception:
    """The error, after a call has retried it and given up."""
    write_note(error, "", ((2, "", "", None),), "fetch", 0.0, "", None, final=True)
    return error


def for_ever(policy: Policy) -> Policy:
    object.__setattr__(policy, "attempts", math.inf)
    return policy


STEADY = Policy(backoff=exponential)

# policy, progress, failure, now -> the delay, or the reason to stop
TABLE: list[tuple[str, Policy, Progress, Any, float, float | Reason]] = [
    ("a transient failure waits", STEADY, Progress(1), ConnectionResetError(), 0.0, 1.0),
    ("the wait grows with the attempt", STEADY, Progress(3), ConnectionResetError(), 0.0, 4.0),
    ("the first wait follows none", STEADY.replace(backoff=decorrelated_jitter, base=2.0, rng=Pinned(1.0)), Progress(1), TimeoutError(), 0.0, 6.0),
    ("an unknown failure stops", STEADY, Progress(1), ValueError(), 0.0, Reason.not_retryable),
    ("the last attempt stops", STEADY, Progress(4), TimeoutError(), 0.0, Reason.attempts),
    ("without a limit it goes on", STEADY.replace(attempts=None, deadline=9e9), Progress(400), TimeoutError(), 0.0, 30.0),
    ("one attempt is one attempt", STEADY.replace(attempts=1), Progress(1), TimeoutError(), 0.0, Reason.attempts),
    ("switched off", STEADY.replace(enabled=False), Progress(1), TimeoutError(), 0.0, Reason.disabled),
    ("switched off by a flag", STEADY.replace(enabled=lambda: 0), Progress(1), TimeoutError(), 0.0, Reason.disabled),
    ("left on by a flag", STEADY.replace(enabled=lambda: 1), Progress(1), TimeoutError(), 0.0, 1.0),
    ("off comes before the verdict", STEADY.replace(enabled=False), Progress(1), ValueError(), 0.0, Reason.disabled),
    ("a hint is waited for", STEADY.replace(rng=Pinned(0.0)), Progress(1), HTTPError(503, {"Retry-After": "7"}), 0.0, 7.0),
    ("a hint gets jitter above it", STEADY.replace(rng=Pinned(0.5)), Progress(1), HTTPError(503, {"Retry-After": "7"}), 0.0, 7.5),
    ("a short hint is waited for too", STEADY.replace(base=0.1, rng=Pinned(0.0)), Progress(1), HTTPError(503, {"Retry-After": "0.5"}), 0.0, 0.5),
    ("a short hint does not shorten the backoff", STEADY.replace(rng=Pinned(0.5)), Progress(3), HTTPError(503, {"retry-after-ms": "1"}), 0.0, 4.0),
    ("the backoff yields to a hint that alone fits the deadline", STEADY.replace(rng=Pinned(0.0)), Progress(3, ends=3.0), HTTPError(503, {"Retry-After": "2"}), 0.0, 2.0),
    ("the backoff ends at the deadline, and yields too", STEADY.replace(rng=Pinned(0.0)), Progress(3, ends=4.0), HTTPError(503, {"Retry-After": "2"}), 0.0, 2.0),
    ("neither fits the deadline", STEADY, Progress(3, ends=3.0), HTTPError(503, {"Retry-After": "6"}), 0.0, Reason.deadline),
    ("a hint may pass the cap", STEADY.replace(cap=2, rng=Pinned(0.0)), Progress(1), HTTPError(429, {"Retry-After": "9"}), 0.0, 9.0),
    ("a hint of 0 leaves it to the backoff", STEADY, Progress(2), HTTPError(503, {"Retry-After": "0"}), 0.0, 2.0),
    ("a hint of 0 makes no wait longer", STEADY.replace(backoff=immediately_once(exponential)), Progress(1), HTTPError(503, {"Retry-After": "0"}), 0.0, 0.0),
    ("a date in the past leaves it to the backoff", STEADY, Progress(1), HTTPError(503, {"Retry-After": "Sun, 06 Nov 1994 08:49:37 GMT"}), 0.0, 1.0),
    ("a hint at the max_retry_after is waited for", STEADY.replace(rng=Pinned(0.0)), Progress(1), HTTPError(503, {"Retry-After": "120"}), 0.0, 120.0),
    ("a hint above the max_retry_after stops", STEADY, Progress(1), HTTPError(503, {"Retry-After": "120.5"}), 0.0, Reason.retry_after),
    ("an absurd hint stops", STEADY, Progress(1), HTTPError(503, {"Retry-After": "1000000000"}), 0.0, Reason.retry_after),
    ("attempts are asked before the hint", STEADY, Progress(4), HTTPError(503, {"Retry-After": "999"}), 0.0, Reason.attempts),
    ("a wait that fits the deadline", STEADY, Progress(1, ends=11.5), TimeoutError(), 10.0, 1.0),
    ("a wait that ends at the deadline", STEADY, Progress(1, ends=11.0), TimeoutError(), 10.0, Reason.deadline),
    ("a wait that would pass it", STEADY, Progress(1, ends=10.5), TimeoutError(), 10.0, Reason.deadline),
    ("a deadline that has passed", STEADY, Progress(1, ends=9.0), TimeoutError(), 10.0, Reason.deadline),
    ("a hint that would pass the deadline", STEADY, Progress(1, ends=15.0), HTTPError(503, {"Retry-After": "30"}), 10.0, Reason.deadline),
    ("max_retry_after is asked before the deadline", STEADY, Progress(1, ends=15.0), HTTPError(503, {"Retry-After": "300"}), 10.0, Reason.retry_after),
    ("jitter is clipped so that a hint fits", STEADY.replace(rng=Pinned(0.999)), Progress(1, ends=15.0), HTTPError(503, {"Retry-After": "4.5"}), 10.0, 4.9995),
    ("a hint that fits is not pushed onto the deadline by rounding", STEADY.replace(rng=Pinned(1 - 2**-53)), Progress(1, ends=5.0), HTTPError(503, {"Retry-After": "4.5"}), 0.0, 4.5),
    ("a permanent failure past the deadline stays itself", STEADY, Progress(1, ends=9.0), ValueError(), 10.0, Reason.not_retryable),
    ("deferring while a call further out retries", STEADY.replace(nested="defer"), Progress(1, outer_retrying=True), TimeoutError(), 0.0, Reason.nested),
    ("what an inner call has retried", STEADY, Progress(1, last_note=0), retried(TimeoutError()), 0.0, Reason.already_retried),
    ("unless a policy retries for ever", for_ever(Policy(backoff=exponential)), Progress(1, last_note=0), retried(TimeoutError()), 0.0, 1.0),
    ("nesting is asked before idempotency and attempts", STEADY.replace(idempotent=False, attempts=1), Progress(1, last_note=0), retried(TimeoutError()), 0.0, Reason.already_retried),
    ("nesting is asked after the verdict", STEADY, Progress(1, last_note=0), retried(ValueError()), 0.0, Reason.not_retryable),
    ("deferring only then", STEADY.replace(nested="defer"), Progress(1), TimeoutError(), 0.0, 1.0),
    ("independent of what is further out", STEADY, Progress(1, outer_retrying=True), TimeoutError(), 0.0, 1.0),
    ("the deadline is asked before nesting", STEADY.replace(nested="defer"), Progress(1, ends=1.0, outer_retrying=True), TimeoutError(), 0.0, Reason.deadline),
    ("a POST that may have acted stops", STEADY, Progress(1), HTTPError(500, method="POST"), 0.0, Reason.not_idempotent),
    ("a POST that was refused before acting waits", STEADY, Progress(1), HTTPError(429, method="POST"), 0.0, 1.0),
    ("a GET waits", STEADY, Progress(1), HTTPError(500, method="GET"), 0.0, 1.0),
    ("a POST that may be repeated waits", STEADY.replace(idempotent=True), Progress(1), HTTPError(500, method="POST"), 0.0, 1.0),
    ("a GET that may not be repeated stops", STEADY.replace(idempotent=False), Progress(1), HTTPError(500, method="GET"), 0.0, Reason.not_idempotent),
    ("a refused connection never acted", STEADY.replace(idempotent=False), Progress(1), ConnectionRefusedError(), 0.0, 1.0),
    ("idempotency is asked before attempts", STEADY.replace(attempts=1), Progress(1), HTTPError(500, method="POST"), 0.0, Reason.not_idempotent),
    ("a refused result waits", STEADY, Progress(1), RejectedResult(None), 0.0, 1.0),
    ("a refused response gives its hint", STEADY.replace(rng=Pinned(0.0)), Progress(1), RejectedResult(HTTPError(503, {"Retry-After": "3"}).response), 0.0, 3.0),
    ("a refused 404 gives its hint too", STEADY.replace(rng=Pinned(0.0)), Progress(1), RejectedResult((404, {"Retry-After": "3"}, b"")), 0.0, 3.0),
    ("refused headers give their hint too", STEADY.replace(rng=Pinned(0.0)), Progress(1), RejectedResult({"Retry-After": "3"}), 0.0, 3.0),
    ("a refused result of a POST stops", STEADY, Progress(1), RejectedResult(HTTPError(500, method="POST").response), 0.0, Reason.not_idempotent),
    ("a block sets its own wait", STEADY, Progress(1), RejectedResult(None, "later", 2.25), 0.0, 2.25),
    ("the last refused result stops", STEADY, Progress(4), RejectedResult(None), 0.0, Reason.attempts),
    ("types that are named", STEADY.replace(on=ValueError), Progress(1), ValueError(), 0.0, 1.0),
    ("types that are not", STEADY.replace(on=(KeyError, OSError)), Progress(1), ValueError(), 0.0, Reason.not_retryable),
    ("no types at all", STEADY.replace(on=()), Progress(1), TimeoutError(), 0.0, Reason.not_retryable),
    ("a type that all in a group are", STEADY.replace(on=ValueError), Progress(1), group(ValueError(), group(UnicodeError())), 0.0, 1.0),
    ("a type that not all in a group are", STEADY.replace(on=ValueError), Progress(1), group(ValueError(), KeyError()), 0.0, Reason.not_retryable),
    ("types that together are all of a group", STEADY.replace(on=(ValueError, KeyError)), Progress(1), group(ValueError(), KeyError()), 0.0, 1.0),
    ("the type of a group itself", STEADY.replace(on=ExceptionGroup), Progress(1), group(ValueError(), KeyError()), 0.0, 1.0),
    ("a group of a named type gives its largest hint", STEADY.replace(on=HTTPError, rng=Pinned(0.0)), Progress(1), group(HTTPError(404, {"Retry-After": "3"}), HTTPError(404, {"Retry-After": "9"})), 0.0, 9.0),
    ("types narrow the default", STEADY.replace(on=KeyError), Progress(1), TimeoutError(), 0.0, Reason.not_retryable),
    ("a named type still gives its hint", STEADY.replace(on=HTTPError, rng=Pinned(0.0)), Progress(1), HTTPError(404, {"Retry-After": "3"}), 0.0, 3.0),
    ("a named type still needs to be repeatable", STEADY.replace(on=HTTPError), Progress(1), HTTPError(500, method="PATCH"), 0.0, Reason.not_idempotent),
    ("a named type that was turned away at the door too", STEADY.replace(on=HTTPError), Progress(1), HTTPError(401, method="POST"), 0.0, Reason.not_idempotent),
    ("control flow is no failure, whatever on says", STEADY.replace(on=Exception), Progress(1), SkipTest(), 0.0, Reason.not_retryable),
    ("control flow is no failure, whatever a predicate says", STEADY.replace(on=lambda e: True), Progress(1), CancelledError(), 0.0, Reason.not_retryable),
    ("control flow is no failure, whatever rules say", STEADY.replace(rules={Exception: Rule(), "permanent": Rule()}), Progress(1), StopIteration(), 0.0, Reason.not_retryable),
    ("control flow in a group", STEADY.replace(on=Exception), Progress(1), group(TimeoutError(), SkipTest()), 0.0, Reason.not_retryable),
    ("control flow that is named", STEADY.replace(on=(Exception, SkipTest)), Progress(1), SkipTest(), 0.0, 1.0),
    ("control flow that a rule names", STEADY.replace(rules={StopIteration: Rule()}), Progress(1), StopIteration(), 0.0, 1.0),
    ("other control flow than is named", STEADY.replace(on=(Exception, SkipTest)), Progress(1), group(SkipTest(), CancelledError()), 0.0, Reason.not_retryable),
    ("control flow that a classifier names", STEADY.replace(on=Classifier(transient=(SkipTest,))), Progress(2), SkipTest(), 0.0, 2.0),
    ("control flow that an error has caused", STEADY, Progress(1), caused(SkipTest(), TimeoutError()), 0.0, Reason.not_retryable),
    ("a rule without a floor keeps that of the policy", STEADY.replace(floor=3.0, rules={TimeoutError: Rule(base=0.5)}), Progress(1), TimeoutError(), 0.0, 3.0),
    ("a rule for the lowest 4xx lets a POST be repeated", STEADY.replace(rules={400: Rule()}), Progress(1), HTTPError(400, method="POST"), 0.0, 1.0),
    ("a rule for the highest 4xx too", STEADY.replace(rules={499: Rule()}), Progress(1), HTTPError(499, method="POST"), 0.0, 1.0),
    ("a rule for the lowest 5xx does not", STEADY.replace(rules={500: Rule()}), Progress(1), HTTPError(500, method="POST"), 0.0, Reason.not_idempotent),
    ("a rule for all in a group before one of a wider type", STEADY.replace(rules={Exception: Rule(base=9.0), TimeoutError: Rule(base=5.0)}), Progress(1), group(TimeoutError(), TimeoutError()), 0.0, 5.0),
    ("a predicate says yes", STEADY.replace(on=lambda e: True), Progress(1), ValueError(), 0.0, 1.0),
    ("a predicate says no", STEADY.replace(on=lambda e: False), Progress(1), TimeoutError(), 0.0, Reason.not_retryable),
    ("a predicate says nothing", STEADY.replace(on=lambda e: None), Progress(1), TimeoutError(), 0.0, Reason.not_retryable),
    ("a predicate says something", STEADY.replace(on=lambda e: "yes"), Progress(1), ValueError(), 0.0, 1.0),
    ("a predicate says how long", STEADY.replace(on=lambda e: 7), Progress(1), ValueError(), 0.0, 7.0),
    ("a predicate says how long, below a second", STEADY.replace(on=lambda e: 0.5), Progress(1), ValueError(), 0.0, 0.5),
    ("a predicate says how long, whatever the server asks for", STEADY.replace(on=lambda e: 7), Progress(1), HTTPError(503, {"Retry-After": "999"}), 0.0, 7.0),
    ("a predicate says how long, past the max_retry_after", STEADY.replace(on=lambda e: 500.0), Progress(1), ValueError(), 0.0, 500.0),
    ("a predicate gives a timedelta", STEADY.replace(on=lambda e: datetime.timedelta(seconds=3)), Progress(1), ValueError(), 0.0, 3.0),
    ("a predicate says 0: the backoff applies", STEADY.replace(on=lambda e: 0), Progress(2), ValueError(), 0.0, 2.0),
    ("a predicate says 0 against a hint: the backoff applies", STEADY.replace(on=lambda e: 0), Progress(1), HTTPError(503, {"Retry-After": "9"}), 0.0, 1.0),
    ("a predicate's delay that cannot be waited for", STEADY.replace(on=lambda e: float("inf")), Progress(1), ValueError(), 0.0, 1.0),
    ("a predicate's NaN", STEADY.replace(on=lambda e: float("nan")), Progress(1), ValueError(), 0.0, 1.0),
    ("a predicate's negative delay", STEADY.replace(on=lambda e: -3), Progress(1), ValueError(), 0.0, 1.0),
    ("a predicate gives a verdict", STEADY.replace(on=lambda e: Verdict(True, retry_after=2.0), rng=Pinned(0.0)), Progress(1), ValueError(), 0.0, 2.0),
    ("a verdict whose hint is no number", STEADY.replace(on=lambda e: Verdict(True, retry_after=float("nan"))), Progress(1), ValueError(), 0.0, 1.0),
    ("a verdict whose hint is garbage", STEADY.replace(on=lambda e: Verdict(True, retry_after="soon")), Progress(1), ValueError(), 0.0, Reason.callback),
    ("a predicate that raises", STEADY.replace(on=lambda e: 1 / 0), Progress(1), TimeoutError(), 0.0, Reason.callback),
    ("a flag that raises", STEADY.replace(enabled=lambda: 1 / 0), Progress(1), TimeoutError(), 0.0, Reason.callback),
    ("a classifier of one's own", STEADY.replace(on=Classifier(transient=(ValueError,))), Progress(2), ValueError(), 0.0, 2.0),
    ("our own errors are permanent", STEADY, Progress(1), ResultRejected("no", result=None, attempts=1), 0.0, Reason.not_retryable),
    ("our own errors may be named", STEADY.replace(on=ResultRejected), Progress(1), ResultRejected("no", result=None, attempts=1), 0.0, 1.0),
]  # fmt: skip


@pytest.mark.parametrize(("policy", "progress", "failure", "now", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])  # fmt: skip
def test_a_failure_and_its_limits_decide_between_a_wait_and_a_reason_to_stop(
    policy: Policy, progress: Progress, failure: Any, now: float, expected: float | Reason
) -> None:
    outcome = decide(policy, progress, failure, now)
    if isinstance(expected, Reason):
        assert isinstance(outcome, Stop)
        assert outcome.reason is expected
    else:
        assert isinstance(outcome, Wait)
        assert outcome.delay == pytest.approx(expected)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("celery.exceptions", "TaskPredicate"), ("airflow.exceptions", "AirflowSkipException"),
        ("arq.worker", "Retry"), ("bdb", "BdbQuit"), ("click.exceptions", "Exit"), ("dramatiq.errors", "Retry"),
        ("huey.exceptions", "CancelExecution"), ("scrapy.exceptions", "DropItem"), ("taskiq.exceptions", "NoResultError"),
        ("tornado.gen", "Return"), ("unittest.case", "SkipTest"), ("concurrent.futures._base", "CancelledError"),
        ("billiard.exceptions", "SoftTimeLimitExceeded"), ("rq.timeouts", "BaseTimeoutException"),
    ],
)  # fmt: skip
def test_control_flow_of_frameworks_is_known_by_name(module: str, name: str) -> None:
    known = type(name, (Exception,), {"__module__": module})
    derived = type("Derived", (known,), {"__module__": "app"})
    for kind in (known, derived):
        outcome = decide(STEADY.replace(on=Exception), Progress(1), kind(), 0.0)
        assert isinstance(outcome, Stop)
        assert outcome.reason is Reason.not_retryable
        assert isinstance(decide(STEADY.replace(on=kind), Progress(1), kind(), 0.0), Wait)


RULES: dict[Any, Rule] = {
    OSError: Rule(base=0.25),
    TimeoutError: Rule(attempts=2, base=5.0),
    Bundle: Rule(base=7.0),
    429: Rule(base=3.0, cap=4.0, backoff=fixed),
    Cause.unauthorized: Rule(attempts=2),
    502: Rule(cap=0.5),
    503: Rule(backoff=fixed),
}
RULED = STEADY.replace(rules=RULES)

RULED_TABLE: list[tuple[str, Any, dict[Any, int], float | Reason]] = [
    ("the nearest type wins", TimeoutError(), {}, 5.0),
    ("a rule of a base class", ConnectionResetError(), {}, 0.25),
    ("a rule makes what it names retryable", FileNotFoundError(), {}, 0.25),
    ("a status before a cause", HTTPError(429), {}, 3.0),
    ("a cause", HTTPError(401), {}, 1.0),
    ("a rule's attempts are used up", HTTPError(401), {Cause.unauthorized: 1}, Reason.attempts),
    ("a rule that changes only the cap", HTTPError(502), {502: 2}, 0.5),
    ("a rule that changes only the backoff", HTTPError(503), {503: 2}, 1.0),
    ("a rule lets repeat what was turned away at the door", HTTPError(401, method="POST"), {}, 1.0),
    ("a rule lets repeat nothing else", HTTPError(503, method="POST"), {}, Reason.not_idempotent),
    ("others' failures do not count", HTTPError(401), {TimeoutError: 3}, 1.0),
    ("no rule, no change", ValueError(), {}, Reason.not_retryable),
    ("a rule that all in a group share", group(TimeoutError(), group(TimeoutError())), {}, 5.0),
    (
        "a rule for all in a group counts as one",
        group(TimeoutError(), TimeoutError()),
        {TimeoutError: 1},
        Reason.attempts,
    ),
    (
        "rules that not all in a group share",
        group(TimeoutError(), FileNotFoundError()),
        {},
        Reason.not_retryable,
    ),
    ("not a rule for some in a group", group(TimeoutError(), ValueError()), {}, Reason.not_retryable),
    ("a rule for the group itself", group(FileNotFoundError(), cls=Bundle), {}, 7.0),
]


@pytest.mark.parametrize(("failure", "before", "expected"), [row[1:] for row in RULED_TABLE], ids=[row[0] for row in RULED_TABLE])  # fmt: skip
def test_a_rule_answers_for_what_it_names_by_type_then_status_then_cause(
    failure: Any, before: dict[Any, int], expected: float | Reason
) -> None:
    progress = Progress(1)
    progress.rule_failures = before or None
    outcome = decide(RULED, progress, failure, 0.0)
    if isinstance(expected, Reason):
        assert isinstance(outcome, Stop)
        assert outcome.reason is expected
    else:
        assert isinstance(outcome, Wait)
        assert outcome.delay == pytest.approx(expected)


def test_a_rules_attempts_never_pass_those_of_the_policy() -> None:
    policy = STEADY.replace(attempts=2, rules={TimeoutError: Rule(attempts=9)})
    outcome = decide(policy, Progress(2), TimeoutError(), 0.0)
    assert isinstance(outcome, Stop)
    assert outcome.why == "no attempts left"


@pytest.mark.parametrize(("status", "expected"), [
    (408, Stop), (425, Stop), (429, Stop), (409, Wait), (426, Wait), (430, Wait),
])  # fmt: skip
def test_a_rule_for_a_4xx_lets_a_call_be_repeated_unless_the_status_says_nothing_of_the_effect(
    status: int, expected: type
) -> None:
    policy = STEADY.replace(
        on=lambda e: Verdict(True, status=status), rules={status: Rule()}, idempotent=False
    )
    outcome = decide(policy, Progress(1), TimeoutError(), 0.0)
    assert type(outcome) is expected
    assert isinstance(outcome, Wait) or outcome.reason is Reason.not_idempotent


def test_a_verdict_that_a_predicate_gives_keeps_its_hint_under_a_rule() -> None:
    policy = STEADY.replace(
        on=lambda e: Verdict(True, retry_after=9.0), rules={ValueError: Rule()}, rng=Pinned(0.0)
    )
    outcome = decide(policy, Progress(1), ValueError(), 0.0)
    assert isinstance(outcome, Wait)
    assert outcome.delay == 9.0


def test_a_rule_of_an_abstract_base_class_answers_for_what_is_registered() -> None:
    import abc

    class Flaky(Exception, metaclass=abc.ABCMeta):
        pass

    class Other(Exception):
        pass

    Flaky.register(Other)
    outcome = decide(STEADY.replace(rules={Flaky: Rule(base=0.5)}), Progress(1), Other(), 0.0)
    assert isinstance(outcome, Wait)
    assert outcome.delay == 0.5


def test_a_wait_remembers_the_backoffs_own_delay_not_the_servers() -> None:
    outcome = decide(STEADY, Progress(2), HTTPError(503, {"Retry-After": "50"}), 0.0)
    assert isinstance(outcome, Wait)
    assert outcome.delay >= 50.0
    assert outcome.previous == 2.0


@pytest.mark.parametrize("policy", [STEADY, RULED, STEADY.replace(on=HTTPError)])
def test_a_wait_without_a_rule_or_a_budget_names_no_rule_and_costs_nothing(policy: Policy) -> None:
    outcome = decide(policy, Progress(1), HTTPError(500), 0.0)
    assert isinstance(outcome, Wait)
    assert (outcome.rule, outcome.rule_key, outcome.cost) == (None, None, 0.0)


def test_a_refused_result_that_says_nothing_takes_the_reason_it_was_refused_for() -> None:
    outcome = decide(STEADY, Progress(1), RejectedResult(None, "still pending"), 0.0)
    assert isinstance(outcome, Wait)
    assert outcome.verdict == Verdict(True, reason="still pending")


def test_a_result_that_until_refuses_has_that_as_its_reason() -> None:
    outcome = decide(STEADY, Progress(1), RejectedResult(None), 0.0)
    assert isinstance(outcome, Wait)
    assert outcome.verdict.reason == "the result was refused"


def test_what_is_not_to_be_retried_tells_no_hint() -> None:
    outcome = decide(STEADY.replace(on=()), Progress(1), HTTPError(503, {"Retry-After": "3"}), 0.0)
    assert isinstance(outcome, Stop)
    assert outcome.verdict is not None
    assert outcome.verdict.retry_after is None


def test_what_is_remembered_for_the_next_wait_is_at_least_the_base() -> None:
    outcome = decide(Policy(base=2.0, rng=Pinned(0.0)), Progress(1), TimeoutError(), 0.0)
    assert isinstance(outcome, Wait)
    assert (outcome.delay, outcome.previous) == (0.0, 2.0)


class Troubled(Budget):
    """A budget that raises."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(name="troubled")
        self.error = error

    def acquire(self, *, timeout: bool = False, priority: int = 0) -> float:
        raise self.error


class Unsure(Breaker):
    """A breaker that raises."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(name="unsure")
        self.error = error

    def refuses(self) -> bool:
        raise self.error


@pytest.mark.parametrize(
    ("policy", "progress", "failure", "why"),
    [
        (STEADY, Progress(3, ends=5.0, limit="the deadline of 5 s"), TimeoutError(), "the next wait (4.0 s) would pass the deadline of 5 s"),
        (STEADY, Progress(3, ends=5.0), TimeoutError(), "the next wait (4.0 s) would pass the deadline of the enclosing call"),
        (STEADY, Progress(1, ends=1.0, limit="the deadline of 1 s"), TimeoutError(), "the deadline of 1 s has passed"),
        (STEADY, Progress(1, ends=2.0, limit="the deadline of 2 s"), TimeoutError(), "the deadline of 2 s has passed"),
        (STEADY.replace(on=lambda e: 7), Progress(1, ends=5.0), TimeoutError(), "the next wait (7.0 s) would pass the deadline of the enclosing call"),
        (STEADY, Progress(1, ends=9.0, limit="the deadline of 9 s"), HTTPError(429, {"Retry-After": "30"}), "the server asked for a wait of 30.0 s, which would pass the deadline of 9 s"),
        (STEADY, Progress(1), HTTPError(429, {"Retry-After": "200"}), "the server asked for a wait of 200.0 s, above the max_retry_after of 120 s"),
        (STEADY, Progress(1), HTTPError(500, method="POST"), "repeating this POST might act twice; if it may be repeated, say idempotent=True or send an Idempotency-Key"),
        (STEADY.replace(idempotent=False), Progress(1), TimeoutError(), "the call may have had an effect, and the policy says idempotent=False"),
        (STEADY.replace(rules={KeyError: Rule(attempts=1)}), Progress(1), KeyError(), "no attempts left for KeyError: its rule allows 1"),
        (STEADY.replace(rules={Bundle: Rule(attempts=1)}), Progress(1), group(KeyError(), cls=Bundle), "no attempts left for Bundle: its rule allows 1"),
        (STEADY.replace(rules={Shop.Closed: Rule(attempts=1)}), Progress(1), Shop.Closed(), "no attempts left for Closed: its rule allows 1"),
        (STEADY.replace(rules={429: Rule(attempts=1)}), Progress(1), HTTPError(429), "no attempts left for 429: its rule allows 1"),
        (STEADY.replace(rules={Cause.unauthorized: Rule(attempts=1)}), Progress(1), HTTPError(401), "no attempts left for unauthorized: its rule allows 1"),
        (STEADY, Progress(1), ValueError(), "not retryable (ValueError: nothing is known about it)"),
        (STEADY.replace(enabled=False), Progress(1), TimeoutError(), "retries are switched off"),
        (STEADY.replace(nested="defer"), Progress(1, outer_retrying=True), TimeoutError(), "left to the enclosing call, which is already retrying"),
        (STEADY, Progress(1, guards=GuardPass(STEADY.replace(budget=Troubled(OSError("store"))))), TimeoutError(), "the retry budget failed with OSError: store"),
        (STEADY, Progress(1, last_note=0), retried(TimeoutError()), 'already retried by fetch (2 attempts); say nested="independent" to retry it here as well'),
        (STEADY.replace(on=lambda e: {}["x"]), Progress(1), TimeoutError(), "deciding failed with KeyError: 'x'"),
    ],
)  # fmt: skip
def test_a_stop_says_which_limit_and_which_value(
    policy: Policy, progress: Progress, failure: Any, why: str
) -> None:
    outcome = decide(policy, progress, failure, 2.0)
    assert isinstance(outcome, Stop)
    assert outcome.why == why


def test_where_nothing_is_said_of_a_call_its_first_attempt_has_failed() -> None:
    assert isinstance(decide(STEADY.replace(attempts=2), Progress(), TimeoutError(), 0.0), Wait)


def test_what_is_handled_around_a_call_is_no_request_of_it() -> None:
    error = HTTPError(500, method="GET")
    try:
        raise HTTPError(500, method="POST")
    except HTTPError as before:
        error.__context__ = before
        assert isinstance(decide(STEADY, Progress(1), error, 0.0), Wait)


class Sender:
    """A client library that has sent a POST."""

    remedy = "say idempotent=True"

    def unrepeatable(self) -> str:
        return ""

    def may_repeat(self) -> bool:
        return False

    def method_of(self) -> str:
        return "POST"


class Sending(Policy):
    """A policy for calls with such a library."""

    _client = Sender()


@pytest.mark.parametrize(
    ("failure", "expected"),
    [(TimeoutError(), Reason.not_idempotent), (ConnectionRefusedError(), Reason.attempts)],
    ids=repr,
)
def test_an_error_that_shows_no_request_is_of_the_request_that_the_client_has_sent(
    failure: Exception, expected: Reason
) -> None:
    outcome = decide(Sending(attempts=1), Progress(1), failure, 0.0)
    assert isinstance(outcome, Stop)
    assert outcome.reason is expected


def test_an_isinstance_check_that_raises_stops_and_is_named() -> None:
    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            raise RuntimeError("no questions")

    class Strange(Exception, metaclass=Meta):
        pass

    outcome = decide(STEADY.replace(on=Strange), Progress(1), TimeoutError(), 0.0)
    assert isinstance(outcome, Stop)
    assert outcome.reason is Reason.callback
    assert "no questions" in outcome.why


@pytest.mark.parametrize("field", ["on", "enabled"])
def test_a_function_of_the_policy_that_returns_a_coroutine_is_named(field: str) -> None:
    async def answer(*_: object) -> bool:
        return True

    given: Any = {field: lambda *error: answer(*error)}
    outcome = decide(STEADY.replace(**given), Progress(1), TimeoutError(), 0.0)
    assert isinstance(outcome, Stop)
    assert outcome.why.startswith(f"deciding failed with TypeError: {field} ")


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_test_may_switch_retries_off(everywhere: bool) -> None:
    with retries_disabled(everywhere=everywhere):
        outcome = decide(STEADY, Progress(1), TimeoutError(), 0.0)
    assert isinstance(outcome, Stop)
    assert (outcome.reason, outcome.verdict) == (Reason.disabled, None)


def test_a_stop_by_a_cap_of_a_test_says_so() -> None:
    with capped(2):
        outcome = decide(STEADY, Progress(2), TimeoutError(), 0.0)
    assert isinstance(outcome, Stop)
    assert outcome.why == "capped at 2 attempts by testing.capped"


def test_a_breaker_that_cannot_say_whether_it_refuses_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    guards = GuardPass(STEADY.replace(breaker=Unsure(OSError("store"))))
    outcome = decide(STEADY, Progress(1, guards=guards), TimeoutError(), 0.0)
    assert isinstance(outcome, Wait)
    assert caplog.messages == ["guard unsure failed (said once)"]


def _interrupted(_: object) -> bool:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "fields",
    [
        {"on": _interrupted},
        {"breaker": Unsure(KeyboardInterrupt())},
        {"budget": Troubled(KeyboardInterrupt())},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_an_interrupt_while_deciding_passes_through(fields: dict[str, Any]) -> None:
    policy = STEADY.replace(**fields)
    with pytest.raises(KeyboardInterrupt):
        decide(policy, Progress(1, guards=GuardPass(policy)), TimeoutError(), 0.0)
