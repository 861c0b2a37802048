"""What holds for every policy and every script of failures, on both drivers."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redouble import DeadlineExceeded, Policy, ResultRejected, Rule, backoff
from redouble.events import Event, Expired, GaveUp, Recovered, Retrying
from redouble.testing import FakeClock

seconds = st.floats(min_value=0.0, max_value=50.0, allow_nan=False)


class Busy(Exception):
    """A failure with a hint."""

    def __init__(self, after: float) -> None:
        super().__init__(f"come back in {after}")
        self.status_code = 503
        self.headers = {"Retry-After": f"{after:.3f}"}


steps = st.one_of(
    st.tuples(st.just("fail"), seconds),
    st.tuples(st.just("busy"), seconds),
    st.tuples(st.just("refuse"), seconds),
    st.tuples(st.just("permanent"), seconds),
    st.tuples(st.just("succeed"), seconds),
)

policies = st.builds(
    lambda attempts, base, cap, kind, deadline, seed, rules: Policy(
        attempts=attempts,
        base=base,
        cap=cap,
        backoff=kind,
        deadline=deadline,
        rng=Random(seed),
        until=lambda result: result != "refused",
        rules={TimeoutError: Rule(attempts=2, recover=lambda error: None)} if rules else {},
    ),
    attempts=st.integers(1, 8),
    base=seconds,
    cap=seconds,
    kind=st.sampled_from([backoff.fixed, backoff.linear, backoff.exponential, backoff.full_jitter, backoff.equal_jitter, backoff.decorrelated_jitter, backoff.proportional_jitter, backoff.additive_jitter, backoff.immediately_once(backoff.decorrelated_jitter)]),
    deadline=st.one_of(st.none(), st.floats(0.001, 200.0)),
    seed=st.integers(0, 2**32),
    rules=st.booleans(),
)  # fmt: skip


class Run:
    """One call on fake time: what it did, when, and how it ended."""

    def __init__(self, policy: Policy, script: list[tuple[str, float]], *, is_async: bool) -> None:
        self.clock = FakeClock()
        self.script = iter(script)
        self.starts: list[float] = []
        self.events: list[Event] = []
        rng = Random()
        rng.setstate(policy.rng.getstate())  # type: ignore[union-attr]
        self.policy = policy.replace(
            clock=self.clock, sleep=self.clock.sleep, listeners=[self.events.append], name="call", rng=rng
        )
        self.result: Any = None
        self.error: Exception | None = None
        self.errors: list[Exception] = []
        try:
            self.result = (
                asyncio.run(self.policy(self.attempt_async)()) if is_async else self.policy(self.attempt)()
            )
        except Exception as error:
            self.error = error

    def attempt(self) -> str:
        self.starts.append(self.clock.now)
        kind, cost = next(self.script, ("succeed", 0.0))
        self.clock.advance(cost)
        if kind == "succeed":
            return "page"
        if kind == "refuse":
            return "refused"
        error = {"fail": TimeoutError("slow"), "busy": Busy(cost), "permanent": ValueError("bad")}[kind]
        self.errors.append(error)
        raise error

    async def attempt_async(self) -> str:
        return self.attempt()


@given(policy=policies, script=st.lists(steps, max_size=10))
def test_every_call_keeps_its_limits_and_ends_once(policy: Policy, script: list[tuple[str, float]]) -> None:
    run = Run(policy, script, is_async=False)
    assert 1 <= len(run.starts) <= (policy.attempts or 99)
    if policy.deadline is not None:
        assert all(start < policy.deadline for start in run.starts)
    costs = sum(cost for _, cost in script[: len(run.starts)])
    assert run.clock.now == pytest.approx(sum(run.clock.waits) + costs)
    assert [event.delay for event in run.events if isinstance(event, Retrying)] == run.clock.waits
    assert len(run.clock.waits) == len(run.starts) - 1

    terminal = [event for event in run.events if isinstance(event, (Recovered, GaveUp, Expired))]
    if run.error is None and len(run.starts) == 1:
        assert run.events == []
    else:
        assert len(terminal) == 1
        assert run.events[-1] is terminal[0]
    if isinstance(run.error, DeadlineExceeded):
        assert isinstance(terminal[0], Expired)
        assert isinstance(run.error.__cause__, (TimeoutError, Busy, ResultRejected))
    elif isinstance(run.error, ResultRejected):
        assert run.error.result == "refused"
    elif run.error is not None:
        assert run.error is run.errors[-1]


@given(policy=policies, script=st.lists(steps, max_size=10))
def test_both_drivers_tell_the_same_story(policy: Policy, script: list[tuple[str, float]]) -> None:
    sync, asynchronous = Run(policy, script, is_async=False), Run(policy, script, is_async=True)
    assert sync.starts == asynchronous.starts
    assert sync.clock.waits == asynchronous.clock.waits
    assert sync.events == asynchronous.events
    assert sync.result == asynchronous.result
    assert type(sync.error) is type(asynchronous.error)
    assert str(sync.error) == str(asynchronous.error)
    assert getattr(sync.error, "__notes__", None) == getattr(asynchronous.error, "__notes__", None)


@given(
    hint=st.floats(0.001, 120.0), base=seconds, deadline=st.floats(0.001, 200.0), seed=st.integers(0, 2**32)
)
def test_a_hint_is_never_undercut_and_a_hint_that_fits_still_fits(
    hint: float, base: float, deadline: float, seed: int
) -> None:
    clock = FakeClock()
    calls = iter([Busy(hint)])
    hint = round(hint, 3)

    def fetch() -> str:
        for error in calls:
            raise error
        return "page"

    policy = Policy(base=base, deadline=deadline, rng=Random(seed), clock=clock, sleep=clock.sleep)
    if hint <= 0.0:
        return
    try:
        assert policy.call(fetch) == "page"
    except DeadlineExceeded:
        assert hint >= deadline
        assert clock.waits == []
    else:
        assert hint < deadline
        assert hint <= clock.waits[0] <= hint + base
        assert clock.waits[0] < deadline
