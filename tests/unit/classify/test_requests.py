"""Where the request behind a failure is found, and whether it may be sent twice.

Clients are functions in modules of their names, made here, since a frame is known by function and module. The real
ones are in ``interop/test_act_once.py``.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import http.client
import time
import weakref
from types import SimpleNamespace as Thing

import pytest

from redouble import Rule, classify, retry, retrying
from redouble.classify import repeatable
from redouble.classify._requests import find_requests
from redouble.classify._table_requests import FRAMES
from redouble.testing import no_waits
from support.clients import HELD, KEY, NAMED, client, failure_of, judged, lost, request, send, urlopen

# Frames


@pytest.mark.parametrize(
    ("function", "module"),
    [
        (function, module)
        for function, modules in FRAMES.items()
        for module, where in modules.items()
        if where == "variables"
    ],
)
def test_a_request_is_read_from_the_variables_of_its_client(function, module):
    call = client(module, NAMED.format(function=function))
    assert repeatable(failure_of(call, "post", "/orders")) is False
    assert repeatable(failure_of(call, "POST", "/orders", KEY)) is True
    assert repeatable(failure_of(call, "GET", "/orders")) is True
    assert repeatable(failure_of(call, None, "/orders")) is None


@pytest.mark.parametrize(
    ("function", "module", "variable"),
    [
        (function, module, where)
        for function, modules in FRAMES.items()
        for module, where in modules.items()
        if where in ("request", "req", "self")
    ],
)
def test_a_request_is_read_from_the_variable_that_holds_it(function, module, variable):
    call = client(module, HELD.format(function=function, variable=variable))
    assert repeatable(failure_of(call, request("POST"))) is False
    assert repeatable(failure_of(call, request("POST", headers=KEY))) is True
    assert repeatable(failure_of(call, request("PUT"))) is True
    assert repeatable(failure_of(call, None)) is None


def test_a_request_of_urllib_may_know_its_method_only_by_its_data():
    import urllib.request

    call = client("urllib.request", HELD.format(function="open", variable="req"))
    assert repeatable(failure_of(call, urllib.request.Request("https://example.org/", data=b"x"))) is False
    assert repeatable(failure_of(call, urllib.request.Request("https://example.org/"))) is True


def test_a_connection_of_the_standard_library_remembers_its_method():
    call = client("http.client", "def getresponse(self): fail()")
    assert repeatable(failure_of(call, Thing(_method="POST"))) is False
    assert repeatable(failure_of(call, Thing(_method="GET"))) is True
    assert repeatable(failure_of(call, Thing(_method=None))) is None
    begin = client("http.client", "def request(self, method, url, body=None, headers=None): fail()")
    assert repeatable(failure_of(begin, None, "POST", "/", headers=KEY)) is True


def test_a_response_that_is_being_read_shows_its_request():
    read = client("aiohttp.client_reqrep", "def read(self): fail()")
    assert repeatable(failure_of(read, Thing(method="POST"))) is False
    assert (
        repeatable(failure_of(read, Thing(method="POST", request_info=request("POST", headers=KEY)))) is True
    )


@pytest.mark.parametrize("held", ["request", Thing(method=["POST"]), 5, None])
def test_a_frame_that_cannot_be_read_shows_no_request(held):
    assert repeatable(failure_of(send, held)) is None
    execute = client("redis.client", "def execute(self): stack = 5; fail()")
    assert repeatable(failure_of(execute, held)) is None


def test_a_vendored_copy_is_known_as_the_client_that_it_is():
    call = client("pip._vendor.urllib3.connectionpool", NAMED.format(function="urlopen"))
    assert repeatable(failure_of(call, "POST", "/orders")) is False


def test_functions_of_the_same_name_elsewhere_show_nothing():
    call = client("shop.orders", "def send(request): fail()")
    assert repeatable(failure_of(call, request("POST"))) is None
    nameless = client("shop", "def send(request): fail()", __name__=None)
    assert repeatable(failure_of(nameless, request("POST"))) is None


def test_frames_of_the_transport_belong_to_the_request_above_them():
    urlopen_below = client("requests.sessions", "def send(request): below('POST', '/orders')", below=urlopen)
    assert repeatable(failure_of(urlopen_below, request("POST", headers=KEY))) is True
    assert repeatable(failure_of(urlopen_below, request("POST"))) is False


def test_all_requests_of_one_client_count():
    redirected = client("requests.sessions", "def send(request, *more): send(*more) if more else fail()")
    assert repeatable(failure_of(redirected, request("GET"), request("GET"))) is True
    assert repeatable(failure_of(redirected, request("POST"), request("GET"))) is False
    assert repeatable(failure_of(redirected, request("GET"), request("POST"))) is False


def test_redirects_of_aiohttp_are_in_its_history():
    call = client("aiohttp.client", "def _request(method, history): fail()")
    assert repeatable(failure_of(call, "GET", [Thing(method="POST")])) is False
    assert repeatable(failure_of(call, "GET", [Thing(method="GET")])) is True
    assert repeatable(failure_of(call, "POST", None)) is False


def test_redirects_are_in_the_history_of_a_response():
    passed = Thing(request=request("POST"))
    for history in ([passed], (passed,)):
        assert repeatable(Thing(status_code=503, request=request("GET"), history=history)) is False
    assert repeatable(Thing(status_code=503, request=request("GET"), history=[None])) is True
    error = ConnectionError()
    error.response = Thing(status_code=503, request=request("GET"), history=[passed])
    assert repeatable(error) is False


def test_a_303_in_the_history_of_urllib3_stands_for_the_post_that_it_has_forgotten():
    original = Thing(_method="GET")
    for status, expected in (303, False), (302, True):
        passed = Thing(history=(Thing(method="GET", status=status),))
        assert repeatable(Thing(status=503, _original_response=original, retries=passed)) is expected


def test_a_redirected_post_is_not_excused_by_a_get_that_had_no_effect():
    redirected = client("requests.sessions", "def send(request, *more): send(*more) if more else fail()")
    error = failure_of(redirected, request("POST"), request("GET"))
    assert judged(error, unprocessed=True) == (True, "POST")
    error = failure_of(redirected, request("POST"), request("POST"))
    assert judged(error, unprocessed=True) == (True, None)
    answered = Thing(status_code=429, request=request("GET"), history=[Thing(request=request("POST"))])
    assert judged(answered, unprocessed=True) == (True, "POST")


@pytest.mark.parametrize("method", ["POST", "PATCH", "CONNECT"])
def test_a_function_that_takes_a_method_and_a_url_shows_a_request_where_nothing_else_does(method):
    call = client("sdk.http", "def call(self, method, path, headers=None): fail()")
    assert judged(failure_of(call, None, method, "/orders")) == (True, method)
    assert judged(failure_of(call, None, method, "/orders"), unprocessed=True) == (True, None)
    assert repeatable(failure_of(call, None, "GET", "/orders")) is True
    assert repeatable(failure_of(call, None, method, "/orders", KEY)) is True
    assert repeatable(failure_of(call, None, "transfer", "/orders")) is None
    above = client(
        "shop.api", "def api(method, url): below(sent)", below=send, sent=request("POST", headers=KEY)
    )
    assert repeatable(failure_of(above, "POST", "/orders")) is True
    other = client("shop.api", "def compute(method, order): fail()")
    assert repeatable(failure_of(other, "POST", 1)) is None
    inside = client("shop.api", "def compute(order): method = url = 'POST'; fail()")
    assert repeatable(failure_of(inside, 1)) is None


# Errors within errors


def raised_in_handling(first, second, cause=False, suppressed=False):
    try:
        first()
    except BaseException as error:
        if suppressed:
            try:
                second()
            except Exception as other:
                raise other from None
        elif cause:
            try:
                second()
            except Exception as other:
                raise other from error
        else:
            second()


POSTED = functools.partial(send, request("POST"))
LOOKED = functools.partial(send, request("GET"))


@pytest.mark.parametrize("options", [{}, {"cause": True}, {"suppressed": True}], ids=str)
def test_a_request_is_found_on_the_error_that_was_being_handled(options):
    def translate():
        raise TimeoutError("pay")

    assert repeatable(failure_of(raised_in_handling, POSTED, translate, **options)) is False
    assert repeatable(failure_of(raised_in_handling, LOOKED, translate, **options)) is True
    assert repeatable(failure_of(raised_in_handling, lost, translate, **options)) is None


def test_a_get_excuses_only_itself():
    assert repeatable(failure_of(raised_in_handling, POSTED, LOOKED)) is False
    assert repeatable(failure_of(raised_in_handling, LOOKED, POSTED)) is False
    keyed = functools.partial(send, request("POST", headers=KEY))
    assert repeatable(failure_of(raised_in_handling, POSTED, keyed)) is False
    assert repeatable(failure_of(raised_in_handling, keyed, LOOKED)) is True


def refused(**_):
    lost(ConnectionRefusedError)


def test_a_request_that_had_no_effect_excuses_only_itself():
    refuse = client("httpx._client", HELD.format(function="send", variable="request"), fail=refused)
    again = functools.partial(refuse, request("POST"))
    assert judged(failure_of(again), unprocessed=True) == (True, None)
    assert judged(failure_of(raised_in_handling, again, LOOKED)) == (True, None)
    assert judged(failure_of(raised_in_handling, POSTED, again), unprocessed=True) == (True, "POST")


def test_an_error_that_had_no_effect_covers_what_it_reports():
    def translate():
        raise TimeoutError("pay")

    error = failure_of(raised_in_handling, POSTED, translate, cause=True)
    assert judged(error, unprocessed=True) == (True, None)
    assert judged(failure_of(raised_in_handling, POSTED, translate), unprocessed=True) == (True, "POST")


def test_an_error_that_a_client_caught_below_its_request_is_of_the_same_request():
    wrapping = client(
        "requests.sessions",
        """
        def send(request):
            try:
                below("POST", "/orders")
            except Exception as error:
                raise ConnectionError("lost") from error
        """,
        below=urlopen,
    )
    keyed, bare = request("POST", headers=KEY), request("POST")
    assert repeatable(failure_of(wrapping, keyed)) is True
    assert repeatable(failure_of(wrapping, bare)) is False
    # What was being handled before that request is another one all the same.
    assert repeatable(failure_of(raised_in_handling, POSTED, functools.partial(wrapping, keyed))) is False
    assert repeatable(failure_of(raised_in_handling, LOOKED, functools.partial(wrapping, keyed))) is True


def test_each_error_of_a_group_is_excused_by_what_it_says_itself():
    class Failed(Exception):
        def __init__(self, method, status):
            self.request = request(method)
            self.response = Thing(status_code=status, headers={})

    assert judged(ExceptionGroup("both", [Failed("GET", 503), Failed("POST", 429)])) == (True, None)
    assert judged(ExceptionGroup("both", [Failed("GET", 429), Failed("POST", 503)])) == (True, "POST")


def test_a_get_503_and_a_post_429_in_one_group_are_retried():
    class Failed(Exception):
        def __init__(self, method, status):
            self.request = request(method)
            self.response = Thing(status_code=status, headers={})

    calls = []

    @retry
    def both():
        calls.append(1)
        raise ExceptionGroup("both", [Failed("GET", 503), Failed("POST", 429)])

    with no_waits(), pytest.raises(ExceptionGroup):
        both()
    assert len(calls) == 4


def test_a_cancellation_shows_the_request_that_it_has_cut_off():
    cut = client(
        "aiohttp.client", "def _request(method, history=()): fail(kind)", kind=asyncio.CancelledError
    )

    def limited():
        try:
            cut("POST")
        except asyncio.CancelledError as error:
            raise TimeoutError from error

    assert repeatable(failure_of(limited)) is False


def test_what_was_being_handled_before_the_call_is_not_part_of_it():
    calls = []

    @retry
    def look():
        calls.append("look")
        LOOKED()

    with no_waits():
        try:
            POSTED()
        except ConnectionResetError:
            with pytest.raises(ConnectionResetError):
                look()
            with pytest.raises(ConnectionResetError):
                for attempt in retrying():
                    with attempt:
                        calls.append("block")
                        LOOKED()
    assert calls == ["look"] * 4 + ["block"] * 4


def test_the_same_words_do_not_make_an_error_from_before_the_call_a_part_of_it():
    def closed():
        raise ConnectionResetError("Remote end closed connection without response")

    calls, close = [], client("httpx._client", HELD.format(function="send", variable="request"), fail=closed)

    @retry
    def look():
        calls.append(1)
        close(request("GET"))

    with no_waits():
        try:
            close(request("POST"))
        except ConnectionResetError:
            with pytest.raises(ConnectionResetError):
                look()
    assert calls == [1] * 4


def test_what_is_handled_inside_a_block_is_part_of_it():
    calls = []
    with no_waits(), pytest.raises(TimeoutError):
        for attempt in retrying():
            with attempt:
                calls.append(1)
                try:
                    POSTED()
                except ConnectionResetError:
                    raise TimeoutError("pay") from None
    assert calls == [1]


def test_cycles_and_long_chains_of_errors_end():
    one, other = ConnectionError("one"), ConnectionError("other")
    one.__cause__, other.__cause__, one.__context__ = other, one, other
    assert repeatable(one) is None


def test_the_server_that_handles_a_post_is_not_part_of_a_call_that_it_makes():
    calls = []

    @retry
    def look():
        calls.append(1)
        LOOKED()

    serve = client("http.client", "def request(method, url): below()", below=look)
    with no_waits(), pytest.raises(ConnectionResetError):
        serve("POST", "/orders")
    assert len(calls) == 4


def test_no_frame_outlives_the_search():
    class Local:
        pass

    def attempt():
        local = Local()
        seen.append(weakref.ref(local))
        send(request("POST"))

    seen = []
    gc.disable()
    try:
        with pytest.raises(ConnectionResetError):
            retry(attempt)()
        assert [ref() for ref in seen] == [None]
    finally:
        gc.enable()


# A policy


@pytest.mark.parametrize("is_async", [False, True])
def test_a_post_seen_only_in_a_frame_is_sent_once_and_the_note_says_why(is_async):
    calls = []

    def pay():
        calls.append(1)
        urlopen("POST", "/payments")

    async def pay_async():
        pay()

    with no_waits(), pytest.raises(ConnectionResetError) as caught:
        asyncio.run(retry(pay_async)()) if is_async else retry(pay)()
    assert len(calls) == 1
    assert caught.value.__notes__[0].startswith(
        "redouble: gave up on " + (pay_async if is_async else pay).__qualname__ + " after 1 attempt: "
        "repeating this POST might act twice; if it may be repeated, say idempotent=True or send an Idempotency-Key"
    )


def test_a_policy_that_says_idempotent_false_looks_at_earlier_requests_too():
    def refuse():
        lost(ConnectionRefusedError)

    calls = []

    @retry(idempotent=False)
    def pay(first):
        calls.append(1)
        raised_in_handling(first, refuse)

    with no_waits():
        with pytest.raises(ConnectionRefusedError):
            pay(POSTED)
        with pytest.raises(ConnectionRefusedError):
            pay(LOOKED)
    assert len(calls) == 1 + 4


@pytest.mark.parametrize(
    ("status", "expected"), [(401, 3), (403, 3), (404, 3), (409, 3), (419, 3), (408, 1), (500, 1), (503, 1)]
)
def test_a_rule_for_a_4xx_repeats_a_post_since_the_server_has_answered(status, expected):
    class Failed(Exception):
        def __init__(self):
            self.request = request("POST")
            self.response = Thing(status_code=status, headers={})

    calls = []

    @retry(rules={status: Rule(attempts=3)})
    def pay():
        calls.append(1)
        raise Failed

    with no_waits(), pytest.raises(Failed):
        pay()
    assert len(calls) == expected


@pytest.mark.parametrize("flavour", ["function", "block"])
def test_a_post_that_the_policys_own_timeout_cuts_off_is_sent_once(flavour):
    calls = []
    wait = client(
        "aiohttp.client", "async def _request(method, history=()): await sleep(9)", sleep=asyncio.sleep
    )

    async def pay():
        calls.append(1)
        await wait("POST")

    async def main():
        if flavour == "function":
            await retry(timeout=0.01)(pay)()
        async for attempt in retrying(timeout=0.01):
            with attempt:
                await pay()

    with no_waits(), pytest.raises(TimeoutError) as caught:
        asyncio.run(main())
    assert calls == [1]
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)


# What is built in


def test_an_error_of_the_standard_library_shows_its_request():
    connection = http.client.HTTPConnection("127.0.0.1", 1, timeout=0.1)
    connection._method = "POST"
    call = client("http.client", "def endheaders(self): fail()")
    assert repeatable(failure_of(call, connection)) is False


def test_a_search_in_a_builtin_error_takes_no_more_than_a_few_microseconds():
    error = failure_of(lost)
    error.__context__ = None
    best = min(timed(error) for _ in range(200))
    assert best < 500e-6  # about 1 µs where nothing is traced


def timed(error):
    began = time.process_time()
    find_requests(error)
    return time.process_time() - began


def test_a_builtin_error_of_a_function_that_takes_a_method_is_searched_for_a_request():
    def order(method, url):
        lost()

    error = failure_of(lambda: order("POST", "https://example.org/orders"))
    error.__context__ = None
    assert classify.plain_verdict(error) is None


def test_functions_that_show_nothing_are_remembered_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(classify, "_MOST_SILENT", 1)
    monkeypatch.setattr(classify, "_silent", {})
    for number in range(3):
        scope = {"fail": lost}
        exec(f"def call_{number}(): fail()", scope)
        error = failure_of(scope[f"call_{number}"])
        error.__context__ = None
        assert classify.plain_verdict(error).retryable
        assert len(classify._silent) == 1
