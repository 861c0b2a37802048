"""Breakers: subclasses, in a policy, as shared objects, and their arguments."""

from __future__ import annotations

import copy
import inspect
import pickle
from datetime import timedelta

import pytest

from redouble import Policy, retrying
from redouble.backoff import fixed
from redouble.breaker import Breaker, CircuitBreaker
from redouble.classify import Classifier
from redouble.errors import CircuitOpen
from support.breakers import CLOSED, HALF_OPEN, Way, fail, half_opened, make, opened, raising, succeed


class Remote(Breaker):
    """A breaker whose answers must be awaited."""

    is_async = True

    def __init__(self):
        super().__init__("remote")
        self.told = []

    async def enter(self, listeners=()):
        return "ticket"

    async def success(self, ticket=None, listeners=()):
        self.told.append(("success", ticket))

    async def failure(self, ticket=None, error=None, listeners=()):
        self.told.append(("failure", ticket, error))

    async def release(self, ticket=None):
        self.told.append(("release", ticket))


@pytest.mark.parametrize("name", ["async decorator", "async with"])
def test_a_breaker_whose_answers_are_awaited_is_told_how_each_call_ended(name):
    breaker, error = Remote(), TimeoutError()
    Way(name).run(breaker, lambda: None)
    with pytest.raises(TimeoutError):
        Way(name).run(breaker, raising(error))
    with pytest.raises(KeyboardInterrupt):
        Way(name).run(breaker, raising(KeyboardInterrupt()))
    assert breaker.told == [("success", "ticket"), ("failure", "ticket", error), ("release", "ticket")]
    breaker._clean = True
    Way(name).run(breaker, lambda: None)
    assert len(breaker.told) == 3


def test_a_breaker_whose_answers_are_awaited_refuses_sync_code():
    with pytest.raises(TypeError, match="async with"), Remote():
        pass
    with pytest.raises(TypeError, match="is sync"):
        Remote()(lambda: None)


def test_what_a_breaker_must_do_is_left_to_its_class_and_asked_with_the_same_words():
    breaker = Breaker("mine")
    for name in ("enter", "success", "failure", "release", "refuses", "refusal"):
        with pytest.raises(NotImplementedError):
            getattr(breaker, name)()
        ours, theirs = (
            inspect.signature(getattr(kind, name)).parameters for kind in (Breaker, CircuitBreaker)
        )
        assert [(part.name, part.default) for part in ours.values()] == [
            (part.name, part.default) for part in theirs.values()
        ]


def test_a_sync_breaker_of_ones_own_is_always_asked_and_told_and_its_answers_are_not_awaited():
    class Talkative(Breaker):
        told = ()

        def enter(self, listeners=()):
            return "ticket"

        def success(self, ticket=None, listeners=()):
            self.told = (*self.told, ticket)
            return "thanks"

    breaker = Talkative("mine")
    assert (breaker._ticket, breaker._clean, breaker.is_async) == (None, False, False)
    assert Way("async with").run(breaker, lambda: "page") == "page"
    assert breaker.told == ("ticket",)


def test_an_open_circuit_before_the_first_attempt_is_the_error_that_comes_out(clock, flavour):
    breaker, script = opened(clock), flavour.scripted()
    with pytest.raises(CircuitOpen) as caught:
        flavour.call(Policy(breaker=breaker, clock=clock, sleep=clock.sleep), script)
    assert caught.value.retry_after == 30.0
    assert (script.calls, clock.waits) == ([], [])


def test_a_circuit_that_opens_ends_the_call_at_once_with_its_own_last_error(clock, flavour):
    breaker, last = make(clock, failures=2), TimeoutError("the second")
    script = flavour.scripted(TimeoutError("the first"), last)
    policy = Policy(breaker=breaker, attempts=9, backoff=fixed, clock=clock, sleep=clock.sleep)
    with pytest.raises(TimeoutError) as caught:
        flavour.call(policy, script)
    assert caught.value is last
    assert "the circuit of shop is open for another 30.0 s" in last.__notes__[0]
    assert clock.waits == [1.0]  # none after the failure that opened it


def test_inside_a_retry_every_attempt_counts(clock, flavour):
    breaker = make(clock, failures=9)
    policy = Policy(breaker=breaker, attempts=3, clock=clock, sleep=clock.sleep)
    with pytest.raises(TimeoutError):
        flavour.call(policy, flavour.scripted(*[TimeoutError()] * 3))
    assert breaker.counted == (3, 3)
    assert flavour.call(policy, flavour.scripted(TimeoutError(), "page")) == "page"
    assert breaker.counted == (0, 0)


def test_around_a_retry_whole_calls_count(clock, flavour):
    breaker = make(clock, failures=2)
    policy = Policy(attempts=3, clock=clock, sleep=clock.sleep)
    script = flavour.scripted(*[TimeoutError()] * 6)
    call = breaker(policy(script))
    for _ in range(2):
        assert breaker.state is CLOSED
        with pytest.raises(TimeoutError):
            flavour.run(call)
    with pytest.raises(CircuitOpen):
        flavour.run(call)
    assert len(script.calls) == 6


def test_between_a_retry_and_its_function_it_ends_the_retry_with_its_refusal(clock, flavour):
    breaker = make(clock, failures=2)
    script = flavour.scripted(*[TimeoutError()] * 2)
    policy = Policy(attempts=9, clock=clock, sleep=clock.sleep, backoff=fixed)
    with pytest.raises(CircuitOpen):
        flavour.call(policy, breaker(script))
    assert clock.waits == [1.0, 1.0]


def test_a_call_that_is_interrupted_in_a_policy_frees_the_slot_of_its_probe(clock, flavour):
    breaker = half_opened(clock)
    policy = Policy(breaker=breaker, clock=clock, sleep=clock.sleep)
    with pytest.raises(KeyboardInterrupt):
        flavour.call(policy, flavour.scripted(KeyboardInterrupt()))
    assert (breaker.state, breaker.retry_after) == (HALF_OPEN, 0.0)
    assert flavour.call(policy, flavour.scripted("page")) == "page"
    assert breaker.state is CLOSED


def test_a_block_of_a_policy_that_is_left_early_frees_the_slot_of_its_probe(clock):
    breaker = half_opened(clock, successes=2)
    for attempt in retrying(breaker=breaker, clock=clock, sleep=clock.sleep):
        with attempt:
            break
    for _ in retrying(breaker=breaker, clock=clock, sleep=clock.sleep):
        break
    assert breaker._circuit.phase.probes == 0


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_breaker_refuses_to_be_pickled(clock, protocol):
    with pytest.raises(TypeError, match=r"shop \(CircuitBreaker\) .* cannot be pickled"):
        pickle.dumps(make(clock), protocol)


def test_a_copy_is_the_breaker_itself(clock):
    breaker = make(clock)
    assert copy.copy(breaker) is copy.deepcopy(breaker) is breaker
    assert breaker != make(clock)
    assert hash(breaker) == hash(copy.copy(breaker))


def test_it_prints_its_name_and_state(clock):
    breaker = opened(clock)
    assert repr(breaker) == "<shop: open>"
    clock.advance(30)
    assert repr(breaker) == "<shop: half-open>"
    assert repr(CircuitBreaker()) == "<CircuitBreaker: closed>"


def test_a_breaker_is_at_rest_when_a_new_one_would_do_as_well(clock):
    breaker = make(clock, failures=2)
    assert breaker.at_rest
    fail(breaker)
    assert not breaker.at_rest
    succeed(breaker)
    assert breaker.at_rest
    fail(breaker, 2)
    assert not breaker.at_rest
    by_hand = make(clock)
    by_hand.open()
    assert not by_hand.at_rest  # although it has no failure to remember


@pytest.mark.parametrize("fields", [{}, {"failure_rate": 0.5}, {"failure_rate": 0.5, "last_calls": 20}])
def test_what_a_thread_that_was_ended_has_hidden_is_shown_by_the_next_call(clock, fields):
    breaker = make(clock, **fields)
    shown, rated = (breaker._ticket, breaker._clean), bool(fields)
    for tell in (breaker.enter, breaker.success, breaker.failure):
        breaker._hide()
        assert (breaker._ticket, breaker._clean) == (None, False)
        tell()
        assert (breaker._ticket, breaker._clean) == (shown if tell != breaker.failure else (shown[0], False))
    assert breaker.counted == (1 + rated, 1)


def test_a_clean_breaker_says_that_successes_need_not_be_told(clock):
    breaker = make(clock, failures=2)
    assert breaker._clean
    fail(breaker)
    assert not breaker._clean
    assert breaker._ticket is not None
    succeed(breaker)
    assert breaker._clean
    breaker.open()
    assert not breaker._clean
    assert breaker._ticket is None
    assert not make(clock, failure_rate=0.5)._clean


# Construction

NAN, INF = float("nan"), float("inf")


RATE = {"failure_rate": 0.5}


@pytest.mark.parametrize("value", [NAN, INF, -INF, -1, True], ids=repr)
@pytest.mark.parametrize(
    ("field", "others"),
    [("failures", {}), ("successes", {}), ("open_for", {}), ("probes", {}), ("failure_rate", {}), ("window", RATE), ("minimum_calls", {}), ("minimum_calls", RATE), ("last_calls", RATE)],
)  # fmt: skip
def test_a_wrong_number_is_refused_and_named(field, others, value):
    with pytest.raises(ValueError, match=f"^{field} must be .*got "):
        CircuitBreaker(**{field: value}, **others)


@pytest.mark.parametrize(
    "field", ["failures", "successes", "open_for", "probes", "failure_rate", "minimum_calls"]
)
def test_nothing_at_all_is_refused(field):
    with pytest.raises(ValueError, match=f"^{field} must be .*got 0"):
        CircuitBreaker(**{field: 0})


@pytest.mark.parametrize(
    "field", ["failures", "successes", "open_for", "probes", "failure_rate", "minimum_calls"]
)
def test_what_is_no_number_is_refused(field):
    with pytest.raises(TypeError, match=f"^{field} must be .*got 'many'"):
        CircuitBreaker(**{field: "many"})


@pytest.mark.parametrize("field", ["failures", "successes", "probes", "minimum_calls"])
def test_what_is_no_whole_number_is_refused(field):
    with pytest.raises(ValueError, match=f"^{field} must be a whole number, got 2.5"):
        CircuitBreaker(**{field: 2.5})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"failure_rate": 1.01}, "failure_rate must be a share above 0, at most 1, got 1.01"),
        ({"failure_rate": 50}, "failure_rate must be a share above 0, at most 1, got 50"),
        ({"window": 10.0}, "window and last_calls need a failure_rate"),
        ({"last_calls": 10}, "window and last_calls need a failure_rate"),
        ({"failures": 5, "failure_rate": 0.5}, "give failures or failure_rate, not both, got 5 and 0.5"),
        ({"window": 10, "last_calls": 100, **RATE}, "give window or last_calls, not both, got 10 and 100"),
        ({"window": 0, **RATE}, "window must be above 0"),
        ({"last_calls": 0, **RATE}, "last_calls must be at least 1, got 0"),
        ({"last_calls": 19, **RATE}, "last_calls must be at least minimum_calls, which is 20, got 19"),
        ({"minimum_calls": 0, **RATE}, "minimum_calls must be at least 1, got 0"),
        ({"open_for": timedelta(seconds=-1)}, "open_for must be finite and not negative"),
        ({"open_for": 10**400}, "open_for must be finite and not negative"),
        ({"window": 10**400, **RATE}, "window must be finite and not negative"),
    ],
    ids=lambda part: str(part)[:40],
)
def test_what_does_not_go_together_is_refused(fields, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        CircuitBreaker(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": 5}, "name must be a text"),
        ({"name": ""}, "name must be a text"),
        ({"clock": 5}, "clock must be a function"),
        ({"listeners": 5}, "listeners must be a list"),
        ({"listeners": print}, "listeners must be a list"),
        ({"listeners": [5]}, "listeners must be a function"),
        ({"ignore": "ValueError"}, "ignore must be"),
        ({"ignore": ValueError()}, "ignore must be"),
        ({"ignore": KeyboardInterrupt}, "ignore must not name KeyboardInterrupt"),
        ({"ignore": [int]}, "ignore must name exception types"),
        ({"ignore": Classifier()}, "ignore must be exception types or a predicate"),
        ({"failure": 5}, ".*unexpected keyword argument"),
    ],
    ids=lambda part: str(part)[:40],
)
def test_what_is_of_the_wrong_kind_is_refused(fields, message):
    with pytest.raises(TypeError, match=f"^{message}"):
        CircuitBreaker(**fields)


def test_async_functions_are_refused_where_plain_ones_are_called():
    async def later(*_):
        return 1.0

    for field, value in {"clock": later, "listeners": [later], "ignore": later}.items():
        with pytest.raises(TypeError, match=f"^{field} must be a plain function"):
            CircuitBreaker(**{field: value})
