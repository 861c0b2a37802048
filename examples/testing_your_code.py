"""Test code that retries: without waiting, with scripted failures, on fake time."""

from redouble import DeadlineExceeded, retry
from redouble.testing import (
    after,
    assert_gave_up,
    assert_not_retried,
    assert_retried,
    fake_time,
    no_waits,
    recorded,
    response,
    scripted,
)


# The code under test.
@retry(attempts=3, base=10.0, deadline=60.0)
def price_of(item, fetch):
    return fetch(item)["price"]


def error_of(function, *args):
    """Return what a call raises. With pytest, use ``pytest.raises``."""
    try:
        return function(*args)
    except Exception as error:
        return error


@no_waits()
def test_a_price_is_fetched_again_after_a_timeout():
    fetch = scripted(TimeoutError("slow"), {"price": 42})
    with recorded() as events:
        assert price_of("tea", fetch) == 42
    assert_retried(events, times=1)
    assert fetch.calls == [(("tea",), {})] * 2


def test_a_missing_price_is_not_retried():
    with recorded() as events:
        assert isinstance(error_of(price_of, "tea", scripted({})), KeyError)
    assert_not_retried(events)


def test_retry_after_is_honoured_but_not_beyond_the_deadline():
    busy = response(503, {"Retry-After": "20"}).error()
    with fake_time() as clock, recorded() as events:
        error = error_of(price_of, "tea", scripted(busy, after(20.0, busy)))
    assert isinstance(error, DeadlineExceeded)
    assert_gave_up(events, reason="deadline")
    assert 20.0 <= clock.waits[0] <= 30.0
    assert clock.now == clock.waits[0] + 20.0  # 20 s more would end at 60 s, the deadline, or later


for name, test in list(globals().items()):
    if name.startswith("test_"):
        test()
        print("ok:", name.removeprefix("test_").replace("_", " "))
print("all tests pass without waiting")
