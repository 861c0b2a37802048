"""Delay functions and random sources for their tests."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from redouble.backoff import (
    additive_jitter,
    decorrelated_jitter,
    equal_jitter,
    exponential,
    fixed,
    full_jitter,
    linear,
    proportional_jitter,
)

INF = float("inf")
NAN = float("nan")
PLAIN = [fixed, linear, exponential]
JITTERED = [full_jitter, equal_jitter, decorrelated_jitter, proportional_jitter, additive_jitter]
EVERY = [*PLAIN, *JITTERED]
names = [function.__name__ for function in EVERY]


class Pinned(random.Random):
    """A random source that always draws the same."""

    def __init__(self, u: float) -> None:
        super().__init__(0)
        self.u = u

    def random(self) -> float:
        return self.u


attempts = st.one_of(
    st.integers(0, 2000), st.integers(0, 10**9), st.just(10**400), st.sampled_from([1023, 1024, 1025])
)
