"""How to test code that retries: no waiting, failures by script, time that is yours."""

from redouble import DeadlineExceeded, Policy, retry
from redouble.backoff import exponential
from redouble.testing import FakeClock, no_waits, retries_disabled, scripted


# The code under test.
@retry(attempts=3, base=10.0)
def price_of(item, fetch):
    return fetch(item)["price"]


def error_of(function, *args):
    """What a call raises. With pytest this is ``pytest.raises``."""
    try:
        return function(*args)
    except Exception as error:
        return error


def test_a_price_is_fetched_again_after_a_timeout():
    fetch = scripted(TimeoutError("slow"), {"price": 42})
    with no_waits() as waits:
        assert price_of("tea", fetch) == 42
    assert fetch.calls == [(("tea",), {}), (("tea",), {})]
    assert len(waits) == 1
    assert 0.0 <= waits[0] <= 10.0


def test_a_missing_price_is_not_asked_for_twice():
    fetch = scripted({})
    assert isinstance(error_of(price_of, "tea", fetch), KeyError)
    assert len(fetch.calls) == 1


def test_a_failure_can_be_seen_by_itself():
    fetch = scripted(TimeoutError("slow"), {"price": 42})
    with retries_disabled():
        assert isinstance(error_of(price_of, "tea", fetch), TimeoutError)


def test_a_wait_that_would_pass_the_deadline_is_never_started():
    clock = FakeClock()
    policy = Policy(backoff=exponential, attempts=9, deadline=5.0, clock=clock, sleep=clock.sleep)
    error = error_of(policy.call, scripted(*[TimeoutError("slow")] * 9))
    assert isinstance(error, DeadlineExceeded)
    assert (error.attempts, error.elapsed) == (3, 3.0)
    assert clock.waits == [1.0, 2.0]  # the third, 4 s, would end at 7 s


for name, test in list(globals().items()):
    if name.startswith("test_"):
        test()
        print("ok:", name.removeprefix("test_").replace("_", " "))
print("all asserts hold, in no time")
