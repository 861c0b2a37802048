"""Token budgets, in a policy and alone; priorities; subclasses; arguments of all budgets."""

from __future__ import annotations

import contextlib
import inspect
import math
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

import pytest

from redouble import Policy
from redouble.backoff import fixed
from redouble.budget import Budget, RatioBudget, TokenBudget
from redouble.events import GaveUp
from redouble.testing import scripted

NAN, INF = math.nan, math.inf


def test_the_defaults_are_those_of_the_aws_sdks():
    purse = TokenBudget()
    assert (purse.capacity, purse.cost, purse.timeout_cost, purse.refund, purse.earn) == (500, 5, 10, None, 1)
    assert purse.tokens == 500


def test_a_retry_takes_its_cost_and_gives_it():
    purse = TokenBudget(capacity=500)
    assert purse.acquire() == 5.0
    assert purse.acquire(timeout=True) == 10.0
    assert purse.tokens == 485.0


def test_a_refused_acquire_takes_nothing():
    purse = TokenBudget(capacity=50, cost=49, timeout_cost=10)
    assert purse.acquire() == 49.0
    assert purse.acquire(timeout=True) == 0.0
    assert purse.tokens == 1.0


def test_a_retry_is_allowed_as_long_as_there_is_exactly_enough():
    purse = TokenBudget(capacity=10)
    assert [purse.acquire() for _ in range(3)] == [5.0, 5.0, 0.0]


def test_a_success_after_retries_gives_back_the_last_cost_only():
    purse = TokenBudget(capacity=100)
    purse.acquire()
    purse.success(purse.acquire(timeout=True))
    assert purse.tokens == 95.0


def test_a_refund_of_ones_own_is_given_back_instead_of_the_last_cost():
    purse = TokenBudget(capacity=100, refund=2)
    purse.success(purse.acquire())
    assert purse.tokens == 97.0


def test_a_refund_of_zero_gives_nothing_back():
    purse = TokenBudget(capacity=100, refund=0)
    purse.success(purse.acquire())
    assert purse.tokens == 95.0


def test_a_success_at_the_first_try_earns_a_little():
    purse = TokenBudget(capacity=100, earn=3)
    purse.acquire()
    purse.success()
    assert purse.tokens == 98.0


def test_a_first_attempt_that_fails_changes_nothing_in_a_token_budget():
    purse = TokenBudget(capacity=100)
    purse.acquire()
    purse.failure()
    assert purse.tokens == 95.0


def test_a_token_budget_never_holds_more_than_its_capacity():
    purse = TokenBudget(capacity=10)
    purse.success()
    assert purse.tokens == 10.0
    purse.acquire()
    purse.success(1_000_000.0)
    assert purse.tokens == 10.0


def test_a_token_budget_of_nothing_allows_no_retry_ever():
    purse = TokenBudget(capacity=0)
    purse.success()
    assert (purse.acquire(), purse.tokens, purse._full) == (0.0, 0.0, True)


def test_a_full_token_budget_says_so_and_need_not_be_told_of_a_clean_success():
    purse = TokenBudget(capacity=10)
    assert purse._full
    assert purse.at_rest
    purse.acquire()
    assert not purse._full
    assert not purse.at_rest
    purse.success(5.0)
    assert purse._full
    assert purse.at_rest


def test_a_refused_acquire_leaves_the_word_on_whether_it_is_full_true():
    purse = TokenBudget(capacity=2)
    assert purse.acquire() == 0.0
    assert purse._full
    other = TokenBudget(capacity=8)
    other.acquire()
    assert other.acquire() == 0.0
    assert not other._full


def test_at_every_step_a_token_budget_that_says_it_is_full_is_full():
    class Watched(TokenBudget):
        def __setattr__(self, name, value):
            super().__setattr__(name, value)
            assert not self._full or self.tokens == self.capacity

    purse = Watched(capacity=10)
    purse.success(purse.acquire())
    assert purse._full


@pytest.mark.parametrize("stored", [NAN, INF, -INF, -1.0])
def test_what_is_no_amount_is_reset_to_zero_and_not_spread(stored):
    purse = TokenBudget(capacity=10)
    purse._tokens = stored
    assert purse.acquire() == 0.0
    assert (purse.tokens, purse._full) == (0.0, False)
    purse.success()
    assert purse.tokens == 1.0


@pytest.mark.parametrize("stored", [NAN, INF, -INF])
def test_a_success_resets_what_is_no_amount_as_well(stored):
    purse = TokenBudget(capacity=10)
    purse._tokens = stored
    purse.success()
    assert purse.tokens == 0.0


@pytest.mark.parametrize("given_back", [NAN, INF, -INF, -1e308])
def test_a_cost_that_is_no_amount_never_gets_into_the_token_budget(given_back):
    purse = TokenBudget(capacity=10)
    purse.acquire()
    purse.success(given_back)
    assert purse.tokens == 0.0


def test_a_token_budget_shows_what_is_left():
    purse = TokenBudget(capacity=10, name="payments")
    purse.acquire()
    assert repr(purse) == "<payments: 5 of 10 tokens>"


def test_a_first_attempt_is_never_held_against_a_budget(flavour):
    empty = TokenBudget(capacity=0)
    fetch = flavour.scripted("page", TimeoutError("slow"))
    policy = Policy(budget=empty)
    assert flavour.call(policy, fetch) == "page"
    with pytest.raises(TimeoutError):
        flavour.call(policy, fetch)
    assert len(fetch.calls) == 2


def test_a_call_that_the_budget_ends_does_not_wait_and_says_why(flavour, clock):
    events = []
    policy = Policy(
        budget=TokenBudget(capacity=0, name="payments"),
        clock=clock,
        sleep=clock.sleep,
        listeners=[events.append],
    )
    with pytest.raises(TimeoutError) as raised:
        flavour.call(policy, flavour.scripted(TimeoutError("slow")))
    assert clock.waits == []
    assert [(type(event), event.reason) for event in events] == [(GaveUp, "budget")]
    assert "payments" in raised.value.__notes__[0]


def test_a_timeout_costs_more_than_another_failure(flavour, clock):
    purse = TokenBudget(capacity=100)
    policy = Policy(attempts=2, budget=purse, clock=clock, sleep=clock.sleep)
    with pytest.raises(TimeoutError):
        flavour.call(policy, flavour.scripted(TimeoutError(), TimeoutError()))
    assert purse.tokens == 90.0
    with pytest.raises(ConnectionResetError):
        flavour.call(policy, flavour.scripted(ConnectionResetError(), ConnectionResetError()))
    assert purse.tokens == 85.0


def test_a_call_that_cannot_be_retried_costs_nothing(flavour):
    purse = TokenBudget(capacity=100)
    for policy, error in [
        (Policy(budget=purse), ValueError()),
        (Policy(budget=purse, attempts=1), TimeoutError()),
        (Policy(budget=purse, enabled=False), TimeoutError()),
        (Policy(budget=purse, deadline=1.0, base=5.0, backoff=fixed), TimeoutError()),
    ]:
        with pytest.raises((type(error), TimeoutError)):
            flavour.call(policy, flavour.scripted(error))
    assert purse.tokens == 100.0


def test_a_ratio_counts_each_call_of_a_policy_once(flavour, clock):
    budget = RatioBudget(ratio=1.0, floor_per_second=0, clock=clock)
    policy = Policy(attempts=3, backoff=fixed, base=0, budget=budget, clock=clock, sleep=clock.sleep)
    flavour.call(policy, flavour.scripted("page"))
    flavour.call(policy, flavour.scripted(TimeoutError(), TimeoutError(), "page"))
    assert budget._reckon(clock.now) == (2.0, 2)


def test_a_policy_gives_its_priority_to_the_budget(flavour, clock):
    purse = TokenBudget(capacity=100)
    for _ in range(11):
        purse.acquire()
    for priority, calls in [(0, 2), (-1, 1)]:
        fetch = flavour.scripted(TimeoutError(), TimeoutError())
        policy = Policy(attempts=2, budget=purse, priority=priority, clock=clock, sleep=clock.sleep)
        with pytest.raises(TimeoutError):
            flavour.call(policy, fetch)
        assert len(fetch.calls) == calls


def test_a_spent_budget_leaves_the_users_own_error(flavour):
    error = TimeoutError("slow")
    with pytest.raises(TimeoutError) as raised:
        flavour.call(Policy(budget=TokenBudget(capacity=0)), flavour.scripted(error))
    assert raised.value is error


def test_a_budget_ends_many_calls_of_one_policy_together(clock):
    purse = TokenBudget(capacity=100)
    policy = Policy(attempts=4, budget=purse, clock=clock, sleep=clock.sleep)
    calls = 0
    for _ in range(50):
        fetch = scripted(*[TimeoutError()] * 4)
        with pytest.raises(TimeoutError):
            policy.call(fetch)
        calls += len(fetch.calls)
    assert calls == 50 + 10  # ten retries of 10 tokens each, whoever asked first


def test_a_low_priority_is_refused_while_less_than_half_is_left():
    purse = TokenBudget(capacity=20)
    assert [purse.acquire(priority=-1) for _ in range(4)] == [5.0, 5.0, 5.0, 0.0]
    assert purse.tokens == 5.0
    assert purse.acquire() == 5.0


def test_a_reserve_counts_for_its_priority_and_all_below_it():
    purse = TokenBudget(capacity=100, reserves={5: 0.2, 0: 0.5, -5: 0.9})
    for priority, share in [(6, 0.0), (5, 0.2), (1, 0.2), (0, 0.5), (-4, 0.5), (-5, 0.9), (-99, 0.9)]:
        assert purse._reserve(priority) == share


def test_the_largest_reserve_that_applies_is_the_one_that_holds():
    assert TokenBudget(reserves={5: 0.9, 0: 0.1})._reserve(-1) == 0.9


def test_a_reserve_of_everything_allows_a_retry_only_while_nothing_was_taken():
    purse = TokenBudget(capacity=100, reserves={0: 1.0})
    assert [purse.acquire(), purse.acquire()] == [5.0, 0.0]
    assert purse.acquire(priority=1) == 5.0


def test_a_ratio_keeps_a_share_of_what_is_allowed_for_the_others(clock):
    budget = RatioBudget(ratio=0.0, floor_per_second=1, window=10.0, clock=clock)
    assert sum(budget.acquire(priority=-1) for _ in range(10)) == 6.0  # the sixth finds exactly half
    assert budget.tokens == 4.0
    assert sum(budget.acquire() for _ in range(10)) == 4.0


def test_no_reserves_treat_all_priorities_alike():
    purse = TokenBudget(capacity=10, reserves={})
    assert [purse.acquire(priority=-9) for _ in range(3)] == [5.0, 5.0, 0.0]


def test_reserves_cannot_be_changed_from_outside():
    mine = {-1: 0.5}
    purse = TokenBudget(reserves=mine)
    mine[-1] = 0.0
    assert purse.reserves == {-1: 0.5}
    with pytest.raises(TypeError):
        purse.reserves[-1] = 0.0


def test_a_budget_of_ones_own_answers_two_questions(flavour, clock):
    class Three(Budget):
        left = 3.0

        def acquire(self, *, timeout=False, priority=0):
            if self.left:
                self.left -= 1.0
                return 1.0
            return 0.0

        @property
        def tokens(self):
            return self.left

    budget = Three()
    policy = Policy(attempts=9, budget=budget, clock=clock, sleep=clock.sleep)
    with pytest.raises(TimeoutError):
        flavour.call(policy, flavour.scripted(*[TimeoutError()] * 9))
    assert (len(clock.waits), budget.tokens, budget.at_rest, budget.name) == (3, 0.0, False, "Three")
    assert budget.success() is budget.failure() is None


def test_the_base_of_all_budgets_has_no_answers_of_its_own():
    with pytest.raises(NotImplementedError):
        Budget().acquire()
    with pytest.raises(NotImplementedError):
        _ = Budget().tokens


@pytest.mark.parametrize("kind", [Budget, TokenBudget, RatioBudget])
def test_every_budget_is_asked_and_told_in_the_same_way(kind):
    def defaults(question):
        return {name: part.default for name, part in inspect.signature(question).parameters.items()}

    nothing = inspect.Parameter.empty
    assert defaults(kind.acquire) == {"self": nothing, "timeout": False, "priority": 0}
    assert defaults(kind.success) == {"self": nothing, "cost": 0.0}
    assert defaults(kind.failure) == {"self": nothing}
    budget = kind()
    assert budget.success() is budget.failure() is None
    with contextlib.nullcontext() if kind is not Budget else pytest.raises(NotImplementedError):
        assert budget.acquire() == budget.acquire(timeout=False, priority=0) > 0.0


# What is refused at construction

TOKEN_NUMBERS = ["capacity", "cost", "timeout_cost", "refund", "earn"]


RATIO_NUMBERS = ["ratio", "floor_per_second", "window"]


NUMBERS = [*((TokenBudget, name) for name in TOKEN_NUMBERS), *((RatioBudget, name) for name in RATIO_NUMBERS)]


@pytest.mark.parametrize(("kind", "name"), NUMBERS)
@pytest.mark.parametrize("value", [NAN, INF, -INF, -1, -0.001, True, False, 10**400])
def test_what_is_no_finite_amount_is_refused_by_name(kind, name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be .*, got "):
        kind(**{name: value})


@pytest.mark.parametrize(("kind", "name"), NUMBERS)
@pytest.mark.parametrize("value", ["5", [], object(), float])
def test_what_is_no_number_is_refused_by_name(kind, name, value):
    with pytest.raises(TypeError, match=rf"^{name} must be a number, got "):
        kind(**{name: value})


@pytest.mark.parametrize(
    ("kind", "name"), [(TokenBudget, "cost"), (TokenBudget, "timeout_cost"), (RatioBudget, "window")]
)
def test_what_must_be_something_cannot_be_zero(kind, name):
    with pytest.raises(ValueError, match=rf"^{name} must be above 0"):
        kind(**{name: 0})


@pytest.mark.parametrize(
    ("kind", "name"), [item for item in NUMBERS if item[1] not in ("cost", "timeout_cost", "window")]
)
def test_zero_is_an_amount_elsewhere(kind, name):
    assert getattr(kind(**{name: 0}), name) == 0.0


@pytest.mark.parametrize("value", [3, 3.0, Decimal(3), Fraction(3)])
@pytest.mark.parametrize(("kind", "name"), NUMBERS)
def test_any_kind_of_number_is_stored_as_a_float(kind, name, value):
    stored = getattr(kind(**{name: value}), name)
    assert stored == 3.0
    assert type(stored) is float


def test_a_window_may_be_a_timedelta():
    assert RatioBudget(window=timedelta(minutes=1)).window == 60.0


@pytest.mark.parametrize("kind", [TokenBudget, RatioBudget])
@pytest.mark.parametrize(
    ("share", "rule"),
    [
        (NAN, "finite and not negative"),
        (INF, "finite and not negative"),
        (-0.1, "finite and not negative"),
        (1.01, "a share from 0 to 1"),
        (True, "a number, not a bool"),
    ],
)
def test_a_reserve_that_is_no_share_is_refused_by_its_priority(kind, share, rule):
    with pytest.raises(ValueError) as caught:
        kind(reserves={-1: share})
    assert str(caught.value) == f"reserves[-1] must be {rule}, got {share!r}"


@pytest.mark.parametrize("priority", [True, 0.5, NAN])
def test_a_priority_in_reserves_must_be_a_whole_number(priority):
    with pytest.raises(ValueError, match=r"^a priority in reserves must be a whole number"):
        TokenBudget(reserves={priority: 0.5})


@pytest.mark.parametrize("reserves", [None, 0.5, [(-1, 0.5)], "low"])
def test_reserves_must_be_a_mapping(reserves):
    with pytest.raises(TypeError) as caught:
        TokenBudget(reserves=reserves)
    assert str(caught.value) == f"reserves must map priorities to shares from 0 to 1, got {reserves!r}"


@pytest.mark.parametrize("clock", [5.0, "now", True])
def test_a_clock_must_be_a_function(clock):
    with pytest.raises(TypeError, match=r"^clock must be a function"):
        RatioBudget(clock=clock)


def test_a_clock_cannot_be_async():
    async def clock():
        return 0.0

    with pytest.raises(TypeError, match=r"^clock must be a plain function"):
        RatioBudget(clock=clock)


def test_an_unknown_keyword_is_refused():
    with pytest.raises(TypeError, match="capcity"):
        TokenBudget(capcity=5)
    with pytest.raises(TypeError, match="ratoi"):
        RatioBudget(ratoi=0.1)
