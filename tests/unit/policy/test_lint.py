"""Lint warnings: rare, with a reason, and with a remedy that helps."""

from __future__ import annotations

import functools
import pickle
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redouble import Cause, Policy, Rule, backoff, presets
from redouble._policy.describe import retries
from redouble._policy.lint import CHECKS, TEXTS
from redouble.backoff import (
    additive_jitter,
    decorrelated_jitter,
    equal_jitter,
    exponential,
    fixed,
    full_jitter,
    immediately_once,
    linear,
    proportional_jitter,
)
from redouble.breaker import CircuitBreaker
from redouble.budget import Budget, RatioBudget, TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.classify import RETRYABLE_STATUSES, Classifier, accepted
from redouble.dead_letters import DeadLetters
from redouble.policy import LintWarning
from redouble.throttle import AdaptiveThrottle

INF = float("inf")
NAMES = [check.__name__ for check in CHECKS]
PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "policy.md"


def three(attempt, base=1.0, cap=30.0, *, previous=None, rng=None):
    return 3.0


@functools.wraps(fixed)
def like_fixed(*args, **kwargs):
    return 3.0


def renew(error):
    pass


async def sleep(seconds):
    pass


def names(policy: Policy) -> list[str]:
    return [warning.name for warning in policy.lint()]


# (name of the check, field, fields of the policy, part of what it says)
OBJECTED: list[tuple[str, str, dict[str, Any], str]] = [
    ("no_jitter", "backoff", {"backoff": fixed}, "backoff=fixed waits the same for every client"),
    ("no_jitter", "backoff", {"backoff": linear}, "backoff=linear"),
    ("no_jitter", "backoff", {"backoff": exponential, "attempts": 2}, "backoff=exponential"),
    ("no_jitter", "backoff", {"backoff": functools.partial(exponential, factor=3.0)}, "backoff=exponential"),
    ("no_jitter", "backoff", {"backoff": immediately_once(linear)}, "backoff=immediately_once(linear)"),
    ("no_jitter", "backoff", {"backoff": functools.partial(proportional_jitter, spread=0.0)}, "proportional"),
    ("no_jitter", "backoff", {"backoff": additive_jitter, "cap": 0.5}, "additive"),
    ("no_jitter", "backoff", {"backoff": fixed, "until": accepted}, "backoff=fixed"),
    ("no_jitter", "backoff", {"backoff": fixed, "rules": {429: Rule(base=5.0)}}, "backoff=fixed"),
    ("no_jitter", "rules", {"rules": {429: Rule(backoff=fixed)}}, "in rules[429], backoff=fixed"),
    ("no_jitter", "rules", {"backoff": three, "rules": {429: Rule(backoff=linear)}}, "in rules[429], backoff=linear"),
    ("no_wait", "base", {"base": 0.0}, "base=0 makes more than one retry with hardly a wait"),
    ("no_wait", "base", {"base": 0.0, "attempts": 3, "backoff": immediately_once(fixed)}, "base=0"),
    ("no_wait", "base", {"base": 0.0, "until": bool}, "base=0"),
    ("no_wait", "cap", {"cap": 0.0}, "cap=0"),
    ("no_wait", "rules", {"rules": {503: Rule(base=0.0)}}, "in rules[503], base=0"),
    ("no_cap", "cap", {"cap": INF, "attempts": 8}, "cap=inf allows a single wait of 64 s"),
    ("no_cap", "cap", {"cap": 301.0, "base": 301.0}, "cap=301 allows a single wait of 301 s"),
    ("no_cap", "rules", {"rules": {Cause.rate_limited: Rule(base=400.0, cap=400.0)}}, "in rules[Cause.rate_limited], cap=400"),
    ("cap_below_base", "base", {"base": 60.0}, "base=60 is above the cap of 30 s"),
    ("cap_below_base", "base", {"base": 400.0, "cap": 20.0}, "base=400"),
    ("cap_below_base", "rules", {"rules": {429: Rule(base=60.0)}}, "in rules[429], base=60"),
    ("milliseconds", "base", {"base": 200.0, "cap": 5000.0}, "base=200 with a cap of 5000 is in seconds, and looks like milliseconds"),
    ("milliseconds", "base", {"base": 100.0, "cap": 1000.0, "deadline": 60.0}, "write base=0.1 for 100 ms"),
    ("milliseconds", "rules", {"rules": {429: Rule(base=1000.0, cap=30_000.0)}}, "in rules[429], base=1000"),
    ("floor_without_spread", "floor", {"floor": 4.0}, "floor=4 leaves full_jitter no spread: without it the wait is 1 s at most"),
    ("floor_without_spread", "floor", {"floor": 1.0}, "write base=2"),
    ("floor_without_spread", "floor", {"floor": 30.0}, "floor=30 leaves full_jitter no spread"),
    ("floor_without_spread", "floor", {"floor": 4.0, "base": 0.0}, "without it the wait is 0 s at most"),
    ("floor_without_spread", "floor", {"floor": 3.0, "backoff": decorrelated_jitter}, "without it the wait is 3 s"),
    ("floor_without_spread", "floor", {"floor": 2.0, "backoff": immediately_once(equal_jitter)}, "no spread"),
    ("floor_without_spread", "rules", {"rules": {429: Rule(floor=5.0)}}, "in rules[429], floor=5 leaves full_jitter"),
    ("no_jitter", "backoff", {"backoff": exponential, "floor": 40.0, "cap": 40.0}, "backoff=exponential"),
    ("no_jitter", "backoff", {"backoff": exponential, "floor": 4.0, "base": 0.0}, "backoff=exponential"),
    ("attempts_before_give_up_after", "attempts", {"give_up_after": 60.0}, "give_up_after=60 with the default of 4 attempts"),
    ("many_attempts", "attempts", {"attempts": None, "give_up_after": 182.0}, "attempts=None with a give_up_after of 182 s"),
    ("deadline_before_first_wait", "give_up_after", {"give_up_after": 0.5, "deadline": 5.0}, "give_up_after=0.5 is shorter than the first"),
    ("deadline_before_first_wait", "deadline", {"floor": 3.0, "base": 6.0, "deadline": 2.0}, "(3 to 6 s, 4.5 s on average): every"),
    ("rule_attempts_unreachable", "rules", {"rules": {429: Rule(attempts=INF)}}, "in rules[429], attempts=inf is above the 4"),
    ("many_attempts", "attempts", {"attempts": 11}, "attempts=11 allows more than 10"),
    ("many_attempts", "attempts", {"attempts": 11, "backoff": three}, "attempts=11"),
    ("many_attempts", "attempts", {"attempts": None, "deadline": 182.0}, "attempts=None with a deadline of 182 s"),
    ("many_attempts", "attempts", {"attempts": 99, "base": 0.01, "cap": 0.1, "deadline": 30.0}, "attempts=99 with"),
    ("long_without_deadline", "deadline", {"attempts": 10, "base": 60.0, "cap": 100.0}, "may add up to 860 s"),
    ("long_without_deadline", "deadline", {"rules": {429: Rule(base=201.0, cap=201.0)}}, "may add up to 603 s"),
    ("deadline_before_first_wait", "deadline", {"deadline": 0.9}, "(0 to 1 s, 0.5 s on average): some failures end"),
    ("deadline_before_first_wait", "deadline", {"deadline": 0.5}, "deadline=0.5 is shorter than the first wait can be (0 to 1 s, 0.5 s on average): most failures end"),
    ("deadline_before_first_wait", "deadline", {"deadline": 1.0, "backoff": fixed}, "(1 s): every failure ends"),
    ("deadline_before_first_wait", "deadline", {"deadline": 0.5, "backoff": equal_jitter}, "(0.5 to 1 s, 0.75 s on average): every"),
    ("deadline_before_first_wait", "deadline", {"deadline": 2.5, "backoff": decorrelated_jitter}, "(1 to 3 s, 2 s on average): some"),
    ("deadline_before_first_wait", "deadline", {"deadline": 0.5, "backoff": additive_jitter}, "(1 to 2 s"),
    ("deadline_before_first_wait", "rules", {"deadline": 4.0, "rules": {429: Rule(base=5.0)}}, "in rules[429], deadline=4"),
    ("deadline_before_first_wait", "rules", {"deadline": 0.5, "base": 0.1, "rules": {429: Rule(backoff=additive_jitter)}}, "in rules[429]"),
    ("timeout_not_below_deadline", "timeout", {"timeout": 5.0, "deadline": 5.0}, "timeout=5 is not shorter"),
    ("timeout_in_sync_code", "timeout", {"timeout": 5.0}, "timeout=5 is enforced in async code only"),
    ("timeout_in_sync_code", "timeout", {"timeout": 5.0, "attempts": 1}, "current_attempt().timeout"),
    ("retries_everything", "on", {"on": Exception}, "on=Exception retries every failure"),
    ("retries_everything", "on", {"on": (OSError, Exception)}, "on=Exception"),
    ("retries_everything", "on", {"on": Classifier(transient=[Exception])}, "on=Exception"),
    ("retries_everything", "rules", {"rules": {Exception: Rule()}}, "rules[Exception]"),
    ("retries_everything", "rules", {"rules": {Cause.unknown: Rule(attempts=3)}}, "rules[Cause.unknown]"),
    ("repeats_everything", "idempotent", {"idempotent": True, "on": Exception}, "idempotent=True"),
    ("repeats_everything", "idempotent", {"idempotent": True, "rules": {Exception: Rule()}}, "idempotent=True"),
    ("timeouts_not_repeated", "idempotent", {"idempotent": False, "timeout": 5.0}, "together with timeout=5"),
    ("timeouts_not_repeated", "idempotent", {"idempotent": False, "on": (KeyError, TimeoutError)}, "with on=TimeoutError"),
    ("timeouts_not_repeated", "idempotent", {"idempotent": False, "rules": {KeyError: Rule(), 504: Rule()}}, "with rules[504]"),
    ("timeouts_not_repeated", "idempotent", {"idempotent": False, "rules": {Cause.timeout: Rule()}}, "rules[Cause.timeout]"),
    ("timeouts_not_repeated", "idempotent", {"idempotent": False, "rules": {TimeoutError: Rule()}}, "rules[TimeoutError]"),
    ("rule_attempts_unreachable", "rules", {"rules": {429: Rule(attempts=9)}}, "in rules[429], attempts=9 is above the 4"),
    ("rule_attempts_unreachable", "rules", {"attempts": 1, "rules": {401: Rule(attempts=2)}}, "in rules[401], attempts=2"),
    ("permanent_retried", "rules", {"rules": {400: Rule()}}, "rules[400] retries permanent failures"),
    ("permanent_retried", "rules", {"rules": {404: Rule(base=5.0)}}, "rules[404]"),
    ("permanent_retried", "rules", {"rules": {501: Rule(attempts=3)}}, "rules[501]"),
    ("permanent_retried", "rules", {"rules": {Cause.permanent: Rule()}}, "rules[Cause.permanent]"),
    ("credentials_not_renewed", "rules", {"rules": {401: Rule()}}, "rules[401] retries without a recover"),
    ("credentials_not_renewed", "rules", {"rules": {Cause.unauthorized: Rule(attempts=3)}}, "rules[Cause.unauthorized]"),
    ("budget_too_small", "budget", {"budget": TokenBudget(capacity=4)}, "a capacity of 4, and a retry costs 5"),
    ("budget_floor_high", "budget", {"budget": RatioBudget(floor_per_second=10)},
     "4 x the load at 1 call/s, 2.1 x the load at 10 calls/s, 1.2 x the load at 100 calls/s when everything fails"),
    ("budget_floor_high", "budget", {"budget": RatioBudget(0.2, 2), "attempts": None, "deadline": 5.0},
     "2 retries a second in addition to 20% of calls: in a process with few calls the share has no effect: 3.2 x"),
]  # fmt: skip

every_warning = pytest.mark.parametrize(
    ("name", "field", "fields", "says"),
    OBJECTED,
    ids=[f"{name}-{number}" for number, (name, *_) in enumerate(OBJECTED)],
)


def only(name: str, policy: Policy) -> LintWarning:
    """Return the only warning of a check; fail if it found nothing."""
    found = [warning for warning in policy.lint() if warning.name == name]
    if not found:
        hint = "" if retries(policy) else ": it makes no retries; does the check belong in WITHOUT_RETRIES?"
        pytest.fail(f"{name} found nothing in {policy!r}{hint}", pytrace=False)
    [warning] = found
    return warning


def test_every_check_has_its_texts_and_no_other_texts_are_there():
    assert set(TEXTS) == set(NAMES), "TEXTS and CHECKS of _policy/lint.py name different checks"


@every_warning
def test_a_probable_mistake_is_named_with_its_field_and_its_value(name, field, fields, says):
    found = only(name, Policy(**fields))
    assert found.field == field
    assert says in str(found)


@every_warning
def test_a_lint_warning_names_a_real_field_and_has_all_its_texts(name, field, fields, says):
    for found in Policy(**fields).lint():
        assert found.name in NAMES
        assert found.field in Policy._fields
        assert not found.field.startswith("_")
        assert str(found) == f"{found.what}: {found.why}; {found.remedy}"
        assert all(text and "\n" not in text for text in (found.what, found.why, found.remedy))
        assert not str(found).endswith(".")


VALUE = r"\w+\([^()]*\)|\([^()]*\)|\"[^\"]*\"|[\w.+-]+"


def changes(remedy: str) -> list[tuple[str, str, Any]]:
    """Each change that a remedy writes out: for the policy or the rule, which field, what value."""
    known = {**vars(backoff), "RatioBudget": RatioBudget, "inf": INF}
    found, whose = [], "policy"
    for who, field, value in re.findall(rf"\b(?:the (rule|policy)\b|(\w+)=({VALUE}))", remedy):
        whose = who or whose
        if field:
            found.append((whose, field, eval(value, known)))
    return found


@every_warning
def test_each_change_that_a_remedy_writes_out_makes_the_warning_go_away(name, field, fields, says):
    policy = Policy(**fields)
    found = only(name, policy)
    for whose, changed, value in changes(found.remedy):
        if whose == "policy":
            better = policy.replace(**{changed: value})
        else:
            [(key, rule)] = policy.rules.items()
            said = {each: getattr(rule, each) for each in Rule._fields if each[0] != "_"}
            better = policy.replace(rules={key: Rule(**{**said, changed: value})})
        assert (name, field) not in [(other.name, other.field) for other in better.lint()]


def test_most_remedies_are_changes_that_can_be_written_down():
    written = {
        name
        for name, _, fields, _ in OBJECTED
        for found in Policy(**fields).lint()
        if found.name == name and changes(found.remedy)
    }
    # These two are mended elsewhere: in the attempt, and in the budget.
    assert set(NAMES) - written == {"timeout_in_sync_code", "budget_too_small"}


def test_every_check_is_tried_above():
    assert {name for name, *_ in OBJECTED} == set(NAMES), "OBJECTED needs a policy for each check"


SENSIBLE: list[dict[str, Any]] = [
    {},
    {"attempts": 1},
    {"attempts": 10},
    {"attempts": 6, "base": 0.2, "cap": 5.0, "deadline": 20.0},
    {"attempts": None, "deadline": 20.0},
    {"attempts": None, "deadline": 180.0},
    {"attempts": None, "deadline": 3600.0, "backoff": three},
    {"attempts": 50, "deadline": 20.0},
    {"attempts": None, "give_up_after": 20.0},
    {"attempts": 6, "give_up_after": 20.0},
    {"attempts": INF},
    {"attempts": INF, "give_up_after": 3600.0},
    {"give_up_after": 20.0, "enabled": False},
    {"floor": 0.9},
    {"floor": 4.0, "base": 8.0},
    {"floor": 1.5, "backoff": additive_jitter},
    {"floor": 4.0, "backoff": three},
    {"floor": 4.0, "until": bool},
    {"base": 120.0, "cap": 3600.0, "deadline": 7200.0},
    {"base": 100.0, "cap": 1000.0, "backoff": three},
    {"attempts": 12, "budget": RatioBudget()},
    {"budget": RatioBudget(floor_per_second=1)},
    {"budget": RatioBudget(floor_per_second=10), "attempts": 1},
    {"attempts": 12, "breaker": CircuitBreaker()},
    *(
        {"backoff": kind}
        for kind in (equal_jitter, decorrelated_jitter, proportional_jitter, additive_jitter)
    ),
    {"backoff": immediately_once(full_jitter)},
    {"backoff": three},
    {"backoff": functools.partial(three)},
    {"backoff": like_fixed},
    {"backoff": three, "cap": INF},
    {"backoff": immediately_once(fixed), "attempts": 2},
    {
        "backoff": fixed,
        "base": 2.0,
        "attempts": 90,
        "until": bool,
    },  # a job that is asked for until it is done
    {"backoff": fixed, "attempts": 1},
    {"backoff": fixed, "enabled": False},
    {"base": 0.0, "attempts": 2},
    {"base": 0.0, "backoff": additive_jitter},
    {"cap": 0.5},
    {"cap": INF},
    {"cap": INF, "attempts": 9, "deadline": 600.0},
    {"cap": 600.0, "attempts": 4},
    {"cap": 300.0, "base": 150.0, "attempts": 3},
    {"cap": 400.0, "base": 400.0, "attempts": 2, "max_retry_after": 3600.0},
    {"deadline": 1.0},
    {"deadline": 0.1, "backoff": immediately_once(full_jitter)},
    {"deadline": 0.1, "attempts": 1},
    {"deadline": 60.0, "max_retry_after": 120.0},
    {"timeout": 5.0, "sleep": sleep},
    {"timeout": 2.0, "deadline": 5.0, "sleep": sleep},
    {"timeout": 5.0, "deadline": 5.0, "sleep": sleep, "attempts": 1},
    {"on": (ConnectionError, TimeoutError)},
    {"on": OSError, "idempotent": True},
    {"on": lambda error: True},
    {"on": Exception, "attempts": 1},
    {"on": Classifier(statuses=RETRYABLE_STATUSES | {404})},
    {"on": Classifier(transient=[Exception], permanent=[ValueError])},
    {"idempotent": True},
    {"idempotent": False},
    {"idempotent": False, "on": ConnectionError, "rules": {429: Rule(), 503: Rule()}},
    {"idempotent": False, "on": TimeoutError, "attempts": 1},
    {"idempotent": True, "idempotency_key": False},
    {"rules": {401: Rule(attempts=2, base=0.0, recover=renew), Cause.rate_limited: Rule(base=5.0)}},
    {"rules": {401: Rule(recover=renew), Cause.unauthorized: Rule(recover=renew)}},
    {"rules": {401: Rule(attempts=2)}},
    {"rules": {404: Rule(attempts=2), 400: Rule(attempts=1), 422: Rule(recover=renew)}},
    {"rules": {404: Rule()}, "attempts": 1},
    {"rules": {Exception: Rule(attempts=1)}},
    {"rules": {403: Rule(), 409: Rule(), 413: Rule(), 423: Rule()}},
    {"rules": {429: Rule(), 503: Rule(), 500: Rule(), 555: Rule(), 200: Rule(), KeyError: Rule()}},
    {"rules": {429: Rule(attempts=4), 503: Rule(attempts=1, backoff=fixed)}},
    {"rules": {429: Rule(backoff=three, base=60.0)}},
    {"rules": {429: Rule(attempts=9)}, "enabled": False},
    {"rules": {429: Rule(attempts=9)}, "attempts": None, "deadline": 20.0},
    {"rules": {429: Rule(base=290.0, cap=290.0, attempts=2)}},
    {"nested": "independent", "fallback": None, "enabled": lambda: True},
    {"breaker": CircuitBreaker(open_for=60.0), "deadline": 5.0},
    {"budget": TokenBudget()},
    {"budget": TokenBudget(capacity=5)},
    {"budget": TokenBudget(capacity=0)},
    {"budget": TokenBudget(capacity=4), "attempts": 1},
    {"rng": Random(7)},
]


@pytest.mark.parametrize("fields", SENSIBLE, ids=str)
def test_sensible_policies_and_custom_functions_get_no_warning(fields):
    assert Policy(**fields).lint() == ()


@pytest.mark.parametrize("preset", [presets.conservative, presets.standard, presets.aggressive])
def test_presets_get_no_warning(preset):
    assert preset().lint() == ()
    assert preset(deadline=20.0).lint() == ()
    assert "Warning" not in preset().describe()


def test_a_policy_that_can_only_be_awaited_gets_no_warning_about_sync_code():
    class Remote(Budget):
        is_async = True

    assert Policy(timeout=5.0, budget=Remote()).lint() == ()


def test_a_budget_of_ones_own_whose_attributes_raise_is_left_alone():
    class Broken(Budget):
        @property
        def capacity(self):
            raise RuntimeError("not now")

    assert Policy(budget=Broken()).lint() == ()


def test_warnings_come_in_the_order_of_the_table():
    policy = Policy(
        backoff=fixed, attempts=40, on=Exception, idempotent=True, timeout=2.0, rules={400: Rule()}
    )
    found = names(policy)
    assert found == sorted(found, key=NAMES.index)
    assert len(found) == 6


def test_a_description_ends_with_the_warnings_one_a_line():
    policy = Policy(backoff=exponential, on=Exception)
    lines = policy.describe().splitlines()
    assert lines[-2:] == [f"Warning: {warning}" for warning in policy.lint()]
    assert lines[-3].startswith("Takes at most")
    assert "Warning" not in Policy().describe()


def test_a_policy_with_every_guard_can_be_asked_and_described(tmp_path):
    policy = Policy(
        budget=RatioBudget(),
        breaker=CircuitBreaker(),
        throttle=AdaptiveThrottle(),
        bulkhead=Bulkhead(7),
        dead_letters=DeadLetters(tmp_path / "letters.db"),
        fallback=None,
        nested="defer",
    )
    assert policy.lint() == ()
    assert len(policy.describe().splitlines()) == 12


def test_a_description_says_how_a_timeout_is_enforced():
    assert "Cuts an async attempt off after 2 s." in Policy(timeout=2.0).describe().splitlines()
    assert "current_attempt().timeout" in Policy(timeout=2.0).describe().splitlines()[-1]


def test_a_lint_warning_is_a_value():
    [found] = Policy(backoff=fixed).lint()
    assert found == Policy(backoff=fixed).lint()[0]
    assert pickle.loads(pickle.dumps(found)) == found
    assert len({found, *Policy(backoff=fixed).lint()}) == 1
    assert repr(found).startswith("LintWarning(name='no_jitter', field='backoff', what=")
    with pytest.raises(AttributeError, match="immutable"):
        found.remedy = "none"  # type: ignore[misc]
    assert isinstance(found, LintWarning)


def test_the_table_in_the_reference_lists_every_check_with_its_setting_and_its_remedy():
    section = PAGE.read_text("utf-8").partition("## Lint warnings")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \|$", section, flags=re.MULTILINE)
    assert [name for name, *_ in rows] == NAMES
    assert all(cell.strip() for row in rows for cell in row)


# Any policy

seconds = st.one_of(st.floats(0.0, 50.0), st.sampled_from([0.0, 5e-324, 1e300]))
some_seconds = st.one_of(st.none(), st.floats(1e-6, 1e6), st.just(5e-324))
backoffs = st.sampled_from([
    fixed, linear, exponential, full_jitter, equal_jitter, decorrelated_jitter, proportional_jitter, additive_jitter,
    three, immediately_once(three), immediately_once(decorrelated_jitter), functools.partial(exponential, factor=1.0),
    functools.partial(proportional_jitter, spread=1.0), functools.partial(additive_jitter, spread=0.0),
])  # fmt: skip
attempts = st.one_of(st.integers(1, 20), st.sampled_from([999, 1000, 1001, 10**9]))
rule = st.builds(
    Rule,
    attempts=st.one_of(st.none(), attempts),
    base=st.one_of(st.none(), seconds),
    cap=st.one_of(st.none(), seconds, st.just(INF)),
    backoff=st.one_of(st.none(), backoffs),
    recover=st.sampled_from([None, renew]),
)
keys = st.one_of(
    st.sampled_from(list(Cause)), st.integers(100, 599), st.sampled_from([Exception, TimeoutError, KeyError])
)
kinds = st.lists(st.sampled_from([Exception, OSError, TimeoutError, KeyError]), max_size=3)
anything = st.fixed_dictionaries(
    {},
    optional={
        "attempts": attempts,
        "base": seconds,
        "cap": st.one_of(seconds, st.just(INF)),
        "backoff": backoffs,
        "on": st.one_of(
            st.none(), kinds, kinds.map(lambda some: Classifier(transient=some)), st.just(callable)
        ),
        "until": st.sampled_from([None, bool, accepted]),
        "deadline": some_seconds,
        "timeout": some_seconds,
        "max_retry_after": seconds,
        "idempotent": st.sampled_from([True, False, "by_method"]),
        "rules": st.dictionaries(keys, rule, max_size=3),
        "budget": st.sampled_from([None, TokenBudget(), TokenBudget(capacity=1), RatioBudget()]),
        "enabled": st.sampled_from([True, False, lambda: True]),
        "rng": st.builds(Random, st.integers()),
    },
)


@pytest.mark.slow
@given(fields=anything, endless=st.booleans())
def test_any_policy_can_be_asked_and_described(fields: dict[str, Any], endless: bool) -> None:
    if endless and fields.get("deadline") is not None:
        fields["attempts"] = None
    policy = Policy(**fields)
    found = policy.lint()
    assert {warning.name for warning in found} <= set(NAMES)
    assert "nan" not in " ".join(map(str, found))
    shown = [line for line in policy.describe().splitlines() if line.startswith("Warning: ")]
    assert shown == [f"Warning: {warning}" for warning in found]
