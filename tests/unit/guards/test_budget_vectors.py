"""The published test cases of the AWS SDKs."""

from __future__ import annotations

import pytest

from redouble import Policy
from redouble.backoff import exponential
from redouble.budget import TokenBudget
from redouble.testing import FakeClock

# Vectors of the AWS SDKs, standard retry mode 2.0 (smithy-kotlin, aws-sdk-java-v2, smithy-rs).
# Per case: attempts, tokens, cap, calls; per call: for each answer its status and the tokens after it,
# then the waits.

AWS = {
    "a retry eventually succeeds": (3, 500, 20, [([(500, 495), (500, 490), (200, 495)], [1, 2])]),
    "attempts run out": (3, 500, 20, [([(502, 495), (502, 490), (502, 490)], [1, 2])]),
    "the quota is reached after one retry": (3, 5, 20, [([(500, 0), (502, 0)], [1])]),
    "no quota, no retry": (3, 0, 20, [([(500, 0)], [])]),
    "waits grow": (5, 500, 20, [([(500, 495), (500, 490), (500, 485), (500, 480), (500, 480)], [1, 2, 4, 8])]),
    "waits are capped": (5, 500, 3, [([(500, 495), (500, 490), (500, 485), (500, 480), (500, 480)], [1, 2, 3, 3])]),
    "the quota runs out": (5, 10, 20, [([(500, 5), (502, 0), (503, 0)], [1, 2])]),
    "the quota recovers": (
        5, 15, 20,
        [([(500, 10), (502, 5), (200, 10)], [1, 2]), ([(500, 5), (200, 10)], [1])],
    ),
}  # fmt: skip


class Answered(Exception):
    """A server has answered with an error."""

    def __init__(self, status):
        super().__init__(status)
        self.status_code = status


@pytest.mark.parametrize("case", AWS, ids=str)
def test_a_policy_with_a_token_budget_does_what_the_aws_sdks_do(case, flavour):
    attempts, tokens, cap, calls = AWS[case]
    purse = TokenBudget(capacity=tokens)
    for answers, waits in calls:
        clock, seen, statuses = FakeClock(), [], iter(answers)

        def answer(statuses=statuses, seen=seen):
            seen.append(purse.tokens)
            status = next(statuses)[0]
            if status != 200:
                raise Answered(status)

        policy = Policy(
            attempts=attempts, cap=cap, backoff=exponential, budget=purse, clock=clock, sleep=clock.sleep
        )
        if answers[-1][0] == 200:
            flavour.call(policy, flavour.function(answer))
        else:
            with pytest.raises(Answered):
                flavour.call(policy, flavour.function(answer))
        assert [*seen[1:], purse.tokens] == [tokens for _, tokens in answers]
        assert clock.waits == waits


def test_two_retries_after_timeouts_and_a_success_cost_one_of_them():
    purse, after = TokenBudget(capacity=100), []
    for _ in range(2):
        cost = purse.acquire(timeout=True)
        after.append(purse.tokens)
    purse.success(cost)
    assert [*after, purse.tokens] == [90, 80, 90]


def test_twenty_clean_successes_fill_what_two_timeouts_have_emptied():
    purse = TokenBudget(capacity=20)
    assert [purse.acquire(timeout=True) for _ in range(2)] == [10.0, 10.0]
    filled = [purse.success() or purse.tokens for _ in range(20)]
    assert filled == list(range(1, 21))
    assert purse._full
