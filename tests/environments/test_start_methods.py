"""Policies, budgets and dead letters in processes, with each start method.

.ci/environments runs this: starting processes by spawn is slow.
"""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pytest

from redouble import Policy, ResultRejected, retry
from redouble.breaker import CircuitBreaker
from redouble.dead_letters import DeadLetters
from redouble.shared import FileBudget
from redouble.testing import no_waits, scripted

pytestmark = pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())


def pool(method, workers=1):
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context(method))


def calls_until(policy, good):
    """Return the number of calls that a policy makes in this process until it succeeds, and the process id."""
    calls = iter(range(1, 100))
    with no_waits():
        return policy.replace(until=lambda number: number == good).call(lambda: next(calls)), os.getpid()


def test_a_policy_that_is_sent_to_a_process_works_there(method):
    with pool(method) as processes:
        number, process = processes.submit(calls_until, Policy(attempts=5), 4).result(60)
    assert number == 4
    assert process != os.getpid()


def test_an_error_comes_back_with_its_story(method):
    with pool(method) as processes, pytest.raises(ResultRejected) as caught:
        processes.submit(calls_until, Policy(attempts=3), 4).result(60)
    assert (caught.value.attempts, caught.value.result) == (3, 3)


@retry(attempts=3, base=0.0)
def decorated(path):
    with path.open("a") as calls:
        calls.write(".")
    if path.stat().st_size < 3:
        raise TimeoutError
    return path.stat().st_size


def test_a_decorated_function_is_sent_by_its_name(method, tmp_path):
    with pool(method) as processes:
        assert processes.submit(decorated, tmp_path / "calls").result(60) == 3


def test_a_policy_with_a_guard_of_one_process_is_not_sent_and_says_why(method):
    policy = Policy(breaker=CircuitBreaker())
    with pool(method) as processes, pytest.raises(TypeError, match=r"send policy\.replace\(breaker=None\)"):
        processes.submit(calls_until, policy, 1).result(60)


def spend(path, retries):
    budget = FileBudget(path, capacity=50)
    return sum(1 for _ in range(retries) if budget.acquire())


def test_processes_share_a_budget_to_the_last_token(method, tmp_path):
    path = str(tmp_path / "budget.db")
    with pool(method, 2) as processes:
        spent = list(processes.map(spend, [path] * 4, [6] * 4))
    assert sum(spent) == 10
    assert not FileBudget(path, capacity=50).acquire()


def lose(path, number):
    with DeadLetters(path) as letters, no_waits():
        policy = Policy(attempts=2, on=OSError, dead_letters=letters)
        try:
            policy.call(scripted(OSError("lost"), OSError("lost")), number)
        except OSError as error:
            return error.__notes__[0].partition("\n")[0]


def test_processes_write_their_dead_letters_to_one_file(method, tmp_path):
    path = str(tmp_path / "letters.db")
    with pool(method, 2) as processes:
        told = list(processes.map(lose, [path] * 4, range(4)))
    assert all("after 2 attempts" in line for line in told)
    with DeadLetters(path) as letters:
        assert letters.depth() == 4


def inherited(breaker, answers):
    """Return, in a child process, the state of a guard of the parent, and whether its lock is free."""
    with breaker:
        answers.put(breaker.counted)


def test_a_guard_is_inherited_by_a_fork_and_by_nothing_else(method):
    context = multiprocessing.get_context(method)
    breaker = CircuitBreaker(failures=5)
    breaker.failure()
    answers = context.SimpleQueue()
    process = context.Process(target=inherited, args=(breaker, answers))
    if method != "fork":
        with pytest.raises(TypeError, match="cannot be pickled"):
            process.start()
        return
    process.start()
    assert answers.get() == (1, 1)
    process.join(60)
    assert process.exitcode == 0
