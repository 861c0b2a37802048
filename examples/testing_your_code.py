"""How to test code that retries: no waiting, failures by script, time that is yours."""

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
    """What a call raises. With pytest this is ``pytest.raises``."""
    try:
        return function(*args)
    except Exception as error:
        return error


@no_waits()
def test_a_price_is_fetched_again_after_a_timeout():
    fetch = scripted(TimeoutError("slow"), {"price": 42})
    with recorded() as story:
        assert price_of("tea", fetch) == 42
    assert_retried(story, times=1)
    assert fetch.calls == [(("tea",), {})] * 2


def test_a_missing_price_is_not_asked_for_twice():
    with recorded() as story:
        assert isinstance(error_of(price_of, "tea", scripted({})), KeyError)
    assert_not_retried(story)


def test_a_busy_server_is_left_alone_for_as_long_as_it_says_but_not_past_the_deadline():
    busy = response(503, {"Retry-After": "20"}).error()
    with fake_time() as clock, recorded() as story:
        error = error_of(price_of, "tea", scripted(busy, after(20.0, busy)))
    assert isinstance(error, DeadlineExceeded)
    assert_gave_up(story, reason="deadline")
    assert 20.0 <= clock.waits[0] <= 30.0
    assert clock.now == clock.waits[0] + 20.0  # 20 s more would end at 60 s, or later


for name, test in list(globals().items()):
    if name.startswith("test_"):
        test()
        print("ok:", name.removeprefix("test_").replace("_", " "))
print("all asserts hold, in no time")
