"""What a running attempt knows, and what travels with it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from conftest import Flavour
from redouble import Policy, current_attempt, retry
from redouble.backoff import exponential
from redouble.bulkhead import Bulkhead
from redouble.context import incoming, outgoing_headers
from redouble.testing import FakeClock, scripted


def steady(clock: FakeClock, **fields: Any) -> Policy:
    return Policy(backoff=exponential, clock=clock, sleep=clock.sleep).replace(**fields)


def watched(flavour: Flavour, failures: int, seen: list[Any], look: Any) -> Any:
    """A function that notes what it sees, and fails so many times first."""

    def body(*args: Any, **kwargs: Any) -> str:
        seen.append(look())
        if len(seen) <= failures:
            raise TimeoutError(f"slow {len(seen)}")
        return "page"

    return flavour.function(body)


def number() -> int | None:
    attempt = current_attempt()
    return None if attempt is None else attempt.number


def key() -> str | None:
    attempt = current_attempt()
    assert attempt is not None
    return attempt.idempotency_key


def test_outside_of_a_call_there_is_no_attempt() -> None:
    assert current_attempt() is None
    assert outgoing_headers() == {}


def test_a_first_attempt_that_asks_for_nothing_is_not_current_but_its_retries_are(
    flavour: Flavour, clock: FakeClock
) -> None:
    seen: list[Any] = []
    flavour.call(steady(clock), watched(flavour, 2, seen, number))
    assert seen == [None, 2, 3]
    assert current_attempt() is None


@pytest.mark.parametrize("field", [{"deadline": 60}, {"timeout": 5}, {"idempotency_key": True}])
def test_a_first_attempt_is_current_where_its_policy_needs_it(
    flavour: Flavour, clock: FakeClock, field: dict[str, Any]
) -> None:
    seen: list[Any] = []
    flavour.call(steady(clock, **field), watched(flavour, 1, seen, number))
    assert seen == [1, 2]


def test_an_inner_first_attempt_that_asks_for_nothing_shows_what_was_outside(clock: FakeClock) -> None:
    inner = steady(clock)(number)
    assert steady(clock, deadline=60).call(inner) == 1


def test_an_attempt_knows_its_number_its_failure_and_the_time_left(
    flavour: Flavour, clock: FakeClock
) -> None:
    def look() -> Any:
        attempt = current_attempt()
        assert attempt is not None
        return attempt.number, attempt.is_last, attempt.previous, attempt.remaining, attempt.timeout

    seen: list[Any] = []
    flavour.call(steady(clock, attempts=3, deadline=10, timeout=8), watched(flavour, 2, seen, look))
    assert seen == [
        (1, False, None, 10.0, 8.0),
        (2, False, "TimeoutError: slow 1", 9.0, 8.0),
        (3, True, "TimeoutError: slow 2", 7.0, 7.0),
    ]


def test_the_time_left_is_never_negative(clock: FakeClock) -> None:
    def late() -> Any:
        clock.advance(100)
        attempt = current_attempt()
        assert attempt is not None
        return attempt.remaining, attempt.timeout, outgoing_headers()["X-Request-Timeout-Ms"]

    assert steady(clock, deadline=5).call(late) == (0.0, 0.0, "0")


# Idempotency keys


def test_one_key_holds_for_all_attempts_of_a_call_and_no_other(flavour: Flavour, clock: FakeClock) -> None:
    first: list[Any] = []
    second: list[Any] = []
    policy = steady(clock, idempotency_key=True, name="charge")
    flavour.call(policy, watched(flavour, 2, first, key))
    flavour.call(policy, watched(flavour, 1, second, key))
    assert len(first) == 3
    assert len({*first}) == len({*second}) == 1
    assert {*first} != {*second}
    prefix, _, made = first[0].partition(":")
    assert prefix == "charge"
    assert len(made) == 36


def test_a_key_is_prefixed_with_the_functions_name_where_the_policy_has_none(clock: FakeClock) -> None:
    def charge() -> str | None:
        return key()

    charge.__qualname__ = "charge"
    assert str(steady(clock, idempotency_key=True).call(charge)).startswith("charge:")


def test_a_key_may_be_made_of_the_calls_arguments(flavour: Flavour, clock: FakeClock) -> None:
    made: list[Any] = []

    def by_order(order: int, *, currency: str = "EUR") -> str:
        made.append(order)
        return f"{order}-{currency}"

    seen: list[Any] = []
    policy = steady(clock, idempotency_key=by_order, name="charge")
    flavour.call(policy, watched(flavour, 2, seen, key), 42, currency="CHF")
    assert seen == ["charge:42-CHF"] * 3
    assert made == [42]  # once for the call, not for each attempt


def test_a_key_nobody_asks_for_is_never_made(clock: FakeClock) -> None:
    made: list[object] = []
    steady(clock, idempotency_key=lambda: made.append(1)).call(lambda: None)
    assert made == []


def test_a_key_is_fit_for_a_header(clock: FakeClock) -> None:
    policy = steady(clock, idempotency_key=lambda: "a b\r\nX-Evil: 1 ü", name="zahlung-ä")
    assert policy.call(key) == "zahlung-%C3%A4:a%20b%0D%0AX-Evil:%201%20%C3%BC"


def test_an_inner_call_without_keys_of_its_own_sends_that_of_the_call_around_it_on_every_attempt(
    clock: FakeClock,
) -> None:
    for fields in ({}, {"deadline": 60.0}, {"timeout": 5.0}):
        seen: list[Any] = []
        inner = steady(clock, **fields)(
            watched(Flavour("sync"), 1, seen, lambda: outgoing_headers().get("Idempotency-Key"))
        )
        steady(clock, idempotency_key=lambda: "7", name="outer").call(inner)
        assert seen == ["outer:7", "outer:7"]


def test_the_key_of_the_enclosing_call_is_not_the_inner_attempts_own(clock: FakeClock) -> None:
    seen: list[Any] = []
    inner = steady(clock, deadline=60.0)(watched(Flavour("sync"), 1, seen, key))
    steady(clock, idempotency_key=lambda: "7", name="outer").call(inner)
    assert seen == [None, None]


def test_threads_that_ask_for_the_key_at_once_get_the_same(clock: FakeClock) -> None:
    def body() -> set[Any]:
        attempt = current_attempt()
        assert attempt is not None
        seen: set[Any] = set()
        barrier = threading.Barrier(16)

        def ask() -> None:
            barrier.wait()
            seen.add(attempt.idempotency_key)

        threads = [threading.Thread(target=ask) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return seen

    assert len(steady(clock, idempotency_key=True).call(body)) == 1


# Headers out


def test_outgoing_headers_tell_number_time_and_key(flavour: Flavour, clock: FakeClock) -> None:
    seen: list[Any] = []
    policy = steady(clock, deadline=10, idempotency_key=lambda: "42", name="charge")
    flavour.call(policy, watched(flavour, 1, seen, outgoing_headers))
    assert seen == [
        {"Idempotency-Key": "charge:42", "X-Retry-Attempt": "1", "X-Request-Timeout-Ms": "10000"},
        {"Idempotency-Key": "charge:42", "X-Retry-Attempt": "2", "X-Request-Timeout-Ms": "9000"},
    ]


def test_outgoing_headers_say_only_what_is_known(flavour: Flavour, clock: FakeClock) -> None:
    seen: list[Any] = []
    flavour.call(steady(clock), watched(flavour, 1, seen, outgoing_headers))
    assert seen == [{}, {"X-Retry-Attempt": "2"}]


# Headers in


def test_an_incoming_deadline_binds_the_calls_below(flavour: Flavour, clock: FakeClock) -> None:
    from redouble import DeadlineExceeded

    def raises() -> None:
        raise TimeoutError

    with incoming({"x-request-timeout-ms": "2500"}, clock=clock):
        with pytest.raises(DeadlineExceeded):
            flavour.call(steady(clock, attempts=9), flavour.function(raises))
    assert clock.waits == [1.0]


def test_what_came_in_is_passed_on_with_the_time_that_is_left(clock: FakeClock) -> None:
    headers = {"X-Request-Timeout-Ms": "2500", "X-Retry-Attempt": "3", "Idempotency-Key": "theirs"}
    with incoming(headers, clock=clock):
        clock.advance(1.0)
        assert outgoing_headers() == {"X-Retry-Attempt": "3", "X-Request-Timeout-Ms": "1500"}
        assert current_attempt() is None
    assert outgoing_headers() == {}


def test_a_client_that_is_retrying_makes_deferring_calls_try_once(flavour: Flavour, clock: FakeClock) -> None:
    fetch = flavour.scripted(TimeoutError("slow"), "page")
    with incoming({"X-Retry-Attempt": "2"}, clock=clock):
        with pytest.raises(TimeoutError) as caught:
            flavour.call(steady(clock, nested="defer"), fetch)
    assert len(fetch.calls) == 1
    assert "left to the enclosing call" in caught.value.__notes__[0]


def test_a_clients_first_attempt_leaves_deferring_calls_alone(flavour: Flavour, clock: FakeClock) -> None:
    with incoming({"X-Retry-Attempt": "1"}, clock=clock):
        fetch = flavour.scripted(TimeoutError(), "page")
        assert flavour.call(steady(clock, nested="defer"), fetch) == "page"


@pytest.mark.parametrize(
    "garbage", ["", "soon", "-5", "1.5", "1e3", "٣", "9" * 400, "nan", None, b"\xff", 7.5, object()]
)
def test_garbage_in_headers_is_ignored(clock: FakeClock, garbage: Any) -> None:
    with incoming({"X-Request-Timeout-Ms": garbage, "X-Retry-Attempt": garbage}, clock=clock):
        assert outgoing_headers() == {}


@pytest.mark.parametrize("headers", [None, 5, [], {}, [("X-Retry-Attempt", "2")], {"X-RETRY-ATTEMPT": b"2"}])
def test_any_shape_of_headers_is_taken(headers: Any) -> None:
    with incoming(headers):
        assert outgoing_headers() in ({}, {"X-Retry-Attempt": "2"})


def test_a_longer_time_than_is_left_is_ignored(clock: FakeClock) -> None:
    def handle() -> Any:
        with incoming({"X-Request-Timeout-Ms": "60000"}, clock=clock):
            return outgoing_headers()["X-Request-Timeout-Ms"]

    assert steady(clock, deadline=5).call(handle) == "5000"


def test_an_attempt_of_zero_counts_as_the_first() -> None:
    with incoming({"X-Retry-Attempt": "0"}):
        assert outgoing_headers() == {}


def test_incoming_may_be_entered_again() -> None:
    request = incoming({"X-Retry-Attempt": "2"})
    for _ in range(2):
        with request, request:
            assert outgoing_headers() == {"X-Retry-Attempt": "2"}
        assert outgoing_headers() == {}


# Nesting


def test_three_layers_of_four_attempts_are_four_calls_multiply_if_independent_and_add_up_if_they_defer(
    flavour: Flavour, clock: FakeClock
) -> None:
    def calls_that_reach_the_bottom(**fields: Any) -> int:
        reached: list[int] = []

        def bottom() -> None:
            reached.append(1)
            raise TimeoutError("down")

        layered = flavour.function(bottom)
        for _ in range(3):
            layered = steady(clock, **fields)(layered)
        with pytest.raises(TimeoutError):
            flavour.run(layered)
        return len(reached)

    assert calls_that_reach_the_bottom() == 4
    assert calls_that_reach_the_bottom(nested="independent") == 64
    assert calls_that_reach_the_bottom(nested="defer") == 4 + 3 + 3


def test_deferring_looks_past_an_inner_first_attempt_with_a_context_of_its_own(clock: FakeClock) -> None:
    innermost = scripted(*[TimeoutError("down")] * 9)
    inner = steady(clock, nested="defer")(innermost)
    middle = steady(clock, attempts=1, deadline=100)(inner)
    with pytest.raises(TimeoutError):
        steady(clock, attempts=2, nested="independent")(middle)()
    # Four tries in the first attempt of the outermost; one in its second, which is a retry.
    assert len(innermost.calls) == 5


def test_contexts_of_threads_do_not_mix(clock: FakeClock) -> None:
    seen: list[Any] = []

    @retry(deadline=60)
    def outer() -> None:
        thread = threading.Thread(target=lambda: seen.append(current_attempt()))
        thread.start()
        thread.join()

    outer()
    assert seen == [None]


def test_a_first_attempt_that_asks_for_nothing_leaves_the_one_around_it_in_sight(
    flavour: Flavour, clock: FakeClock
) -> None:
    seen: list[Any] = []
    inner = steady(clock, bulkhead=Bulkhead(1))(watched(flavour, 1, seen, number))
    outer = steady(clock, deadline=60.0)(inner)
    assert flavour.run(outer) == "page"
    assert seen == [1, 2]  # the number of the one around it, and then its own
