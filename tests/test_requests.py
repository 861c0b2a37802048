"""Where the request behind a failure is found, and whether it may be sent twice.

Clients are functions in modules of their names, made here, since a frame is known by function and module. The real
ones are in ``interop/test_act_once.py``.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import http.client
import textwrap
import time
import weakref
from types import SimpleNamespace as Thing

import pytest

from redouble import Rule, _requests, retry, retrying
from redouble._request_tables import FRAMES, REDIS_REPEATABLE, VENDOR_HOSTS, VENDOR_READS
from redouble._requests import is_aws_read, search
from redouble.classify import repeatable, request_method
from redouble.testing import no_waits

KEY = {"Idempotency-Key": "order-1"}


def client(module, source, **names):
    """The last function of a source, as one of that module; ``fail()`` in it raises a lost connection."""
    scope = {"__name__": module, "fail": lost, **names}
    exec(textwrap.dedent(source), scope)
    return scope[list(scope)[-1]]


def lost(kind=ConnectionResetError):
    raise kind("lost")


def failure_of(function, *args, **kwargs):
    with pytest.raises(BaseException) as caught:
        function(*args, **kwargs)
    return caught.value


NAMED = "def {function}(method, url, headers=None, body=None): fail()"
HELD = "def {function}({variable}): fail()"

urlopen = client("urllib3.connectionpool", NAMED.format(function="urlopen"))
send = client("httpx._client", HELD.format(function="send", variable="request"))
redis = client("redis.client", "def execute_command(*args): fail()")


def request(method, url="https://example.org/orders", headers=None, **others):
    return Thing(method=method, url=url, headers=headers or {}, **others)


def judged(error, **options):
    """Whether a request is visible, and what may not be repeated."""
    found = search(error, **options)
    return bool(found.sent), found.culprit and (found.culprit.name or found.culprit.method)


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


# Reads that are sent as POST


def posted(url, headers=None, **others):
    return failure_of(send, request("POST", url, headers, **others))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://api.example.org/v1/chat/completions", True),
        ("https://api.example.org/v1/chat/completions?stream=1#a", True),
        ("https://api.example.org/v1/embeddings/", True),
        ("https://api.example.org/v1/fine_tuning/jobs", False),
        ("https://api.openai.com/v1/responses", True),
        ("https://user:pw@API.openai.com:443/v1/responses", True),
        ("https://shop.openai.azure.com/openai/deployments/d/completions", True),
        ("https://notapi.openai.com.example.org/v1/responses", False),
        ("https://example.org/v1/responses", False),
        ("https://api.openai.com/v1/threads/t/messages", False),
        ("https://api.anthropic.com/v1/messages", True),
        ("https://api.anthropic.com/v1/messages/batches", False),
        ("https://api.mailgun.net/v3/example.org/messages", False),
        ("https://api.cohere.com/v2/chat", True),
        ("https://example.org/v2/chat", False),
        ("https://generativelanguage.googleapis.com/v1beta/models/m:generateContent", True),
        ("https://generativelanguage.googleapis.com/v1beta/models/m:batchGenerateContent", False),
        ("/products/_search", True),
        ("/products/_doc/1", False),
        ("/_search/scroll", False),
        ("https://id.example.org/oauth2/v2.0/token", True),
        ("https://id.example.org/realms/a/protocol/openid-connect/token", True),
        ("https://oauth2.googleapis.com/token", True),
        ("https://example.org/token", False),
        ("https://example.org/oauth/revoke", False),
        ("https://bedrock-runtime.eu-west-1.amazonaws.com/model/m/converse", True),
        ("https://example.org/device/m/converse", False),
        ("", False),
        (b"/products/_search", True),
        (5, False),
    ],
)
def test_a_read_that_is_sent_as_post_is_known_by_its_address(url, expected):
    assert repeatable(posted(url)) is expected


def test_only_a_post_is_looked_at_for_a_read():
    assert repeatable(failure_of(send, request("PATCH", "/products/_search"))) is False


@pytest.mark.parametrize("vendor", VENDOR_READS)
def test_the_client_of_a_vendor_tells_whose_operation_it_is(vendor):
    path = VENDOR_READS[vendor][0]
    sent = request("POST", "http://127.0.0.1:8080" + path)
    assert repeatable(failure_of(send, sent)) is False
    inside = client(f"{vendor}._base_client", "def request_it(sent): below(sent)", below=send)
    assert repeatable(failure_of(inside, sent)) is True
    error = type("APITimeoutError", (Exception,), {"__module__": vendor, "request": sent})()
    assert repeatable(error) is True
    assert vendor in VENDOR_HOSTS.values()


def test_a_url_may_be_an_object_of_its_client():
    kind = type("URL", (), {"__module__": "yarl._url", "__str__": lambda self: "https://a.org/x/_search"})
    assert repeatable(posted(kind())) is True
    other = type("URL", (), {"__module__": "shop", "__str__": lambda self: "https://a.org/x/_search"})
    assert repeatable(posted(other())) is False


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("GetItem", True), ("ListTables", True), ("DescribeInstances", True), ("Query", True), ("Scan", True),
        ("BatchGetItem", True), ("SelectObjectContent", True), ("AssumeRole", True), ("PutItem", False),
        ("SendMessage", False), ("CheckoutLicense", False), ("GetActivityTask", False), ("RunInstances", False), ("", False),
    ],
)  # fmt: skip
def test_an_operation_of_aws_is_judged_by_its_verb(operation, expected):
    assert is_aws_read(operation) is expected
    target = {"X-Amz-Target": f"DynamoDB_20120810.{operation}"}
    assert repeatable(posted("https://dynamodb.amazonaws.com/", target)) is expected
    form = f"Action={operation}&Version=1"
    assert repeatable(posted("https://ec2.amazonaws.com/", body=form)) is expected
    assert repeatable(posted("https://ec2.example.org/", body=form)) is False


def test_botocore_shows_its_operation():
    call = client(
        "botocore.client",
        "def _make_api_call(operation_name, api_params, operation_model, service_name='sqs'): fail()",
    )
    model = Thing(http={"method": "POST"}, idempotent_members=["ClientToken"])
    assert judged(failure_of(call, "SendMessage", {}, model)) == (True, "sqs SendMessage")
    assert judged(failure_of(call, "DescribeInstances", {}, model)) == (True, None)
    assert judged(failure_of(call, "SendMessage", {"MessageDeduplicationId": "m"}, model)) == (True, None)
    # Filled in by botocore, it is another one for each call.
    assert judged(failure_of(call, "RunInstances", {"ClientToken": "t"}, model)) == (True, "sqs RunInstances")
    assert judged(failure_of(call, "PutObject", {}, Thing(http={"method": "PUT"}))) == (True, None)
    assert judged(failure_of(call, None, {}, None, None)) == (True, "AWS ")


def test_a_key_that_a_client_makes_up_for_each_call_excuses_nothing():
    made_up = {"Idempotency-Key": "stainless-python-retry-b0b"}
    assert repeatable(posted("https://example.org/jobs", made_up)) is False
    call = client("stripe._api_requestor", "def request(method, url, options=None): fail()")
    assert repeatable(failure_of(call, "post", "/v1/charges")) is False
    assert repeatable(failure_of(call, "post", "/v1/charges", {"idempotency_key": "order-1"})) is True
    assert repeatable(failure_of(call, "get", "/v1/charges")) is True
    assert repeatable(failure_of(call, None, "/v1/charges")) is None


def test_a_fetch_of_tornado_takes_a_url_or_a_request():
    call = client("tornado.httpclient", "def fetch(request, **kwargs): fail()")
    assert repeatable(failure_of(call, "https://example.org/", method="POST")) is False
    assert repeatable(failure_of(call, "https://example.org/")) is True
    assert repeatable(failure_of(call, request("POST"))) is False


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"query": "query Q($a: [ID!] = [1]) { me(id: $a) { name } }"}', True),
        ('{"query": "{ me }"}', True),
        ('{"query": "fragment F on Me { name } { ...F }"}', True),
        ('{"query": "query { a(text: \\"mutation {\\") }"}', True),
        ('{"query": "query { a(text: \\"\\"\\"x \\"mutation\\" {\\"\\"\\") } "}', True),
        ('{"query": "{ a } # mutation { pay }"}', True),
        ('{"query": "mutation { pay }"}', False),
        ('{"query": "subscription { paid }"}', False),
        ('{"query": "query Q { a } mutation M { pay }"}', False),
        ('{"query": "no document"}', False),
        ('{"query": 5}', False),
        ('[{"query": "{ a }"}, {"query": "{ b }"}]', True),
        ('[{"query": "{ a }"}, {"query": "mutation { b }"}]', False),
        ("[]", False),
        ("no json", False),
        ("[" * 100_000, False),
        ('{"query": "{ a ' + " " * 300_000 + '}"}', False),
        (None, False),
        ({"query": "{ a " + " " * 300_000 + "}"}, False),
        ({"query": "{ a }"}, True),
        ([{"query": "{ a }"}], True),
    ],
)  # fmt: skip
def test_a_query_of_graphql_is_a_read_and_a_mutation_is_not(body, expected):
    assert repeatable(posted("https://example.org/graphql", json=body)) is expected
    if isinstance(body, str):
        assert repeatable(posted("https://example.org/graphql", body=body.encode())) is expected


@pytest.mark.parametrize(
    "text", ['"""' + '\\"""' * 60_000, '"' * 200_000, "{" * 200_000, '"""' * 60_000 + "\\"]
)
def test_a_hostile_document_of_graphql_takes_no_time(text):
    began = time.perf_counter()
    repeatable(posted("https://example.org/graphql", json={"query": text}))
    assert time.perf_counter() - began < 1.0


# Redis


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("GET", "a"), True),
        (("get", "a"), True),
        (("SET", "a", 1), True),
        (("SET", "a", 1, "EX", 60), True),
        (("SET", "a", 1, "NX"), False),
        (("SET", "a", 1, b"nx"), False),
        (("SET", "a", 1, "XX"), False),
        (("SET", "a", 1, "GET"), False),
        (("HSET", "a", "f", 1), True),
        (("DEL", "a"), True),
        (("EXPIRE", "a", 60), True),
        (("EXPIRE", "a", 60, "GT"), False),
        (("OBJECT ENCODING", "a"), True),
        (("INCR", "a"), False),
        (("INCRBY", "a", 1), False),
        (("LPUSH", "a", 1), False),
        (("SADD", "a", 1), False),
        (("ZADD", "a", 1, "m"), False),
        (("BLPOP", "a", 1), False),
        (("GETDEL", "a"), False),
        (("EVALSHA", "s", 0), False),
        (("XADD", "a", "*", "f", 1), False),
        (("PUBLISH", "a", "m"), False),
        (("NEW.COMMAND", "a"), False),
        ((None,), False),
    ],
    ids=str,
)
def test_a_redis_command_is_repeated_only_if_the_table_allows_it(command, expected):
    assert repeatable(failure_of(redis, *command)) is expected


def test_no_command_that_adds_or_takes_is_in_the_table():
    acts = (
        "INCR DECR APPEND PUSH POP ADD STORE MOVE RENAME COPY EVAL FCALL PUBLISH CLAIM ACK FLUSH SHUTDOWN NX"
    )
    assert not [
        name for name in REDIS_REPEATABLE for act in acts.split() if act in name and not name.endswith("_RO")
    ]


def test_a_pipeline_is_repeated_only_if_each_of_its_commands_is():
    execute = client("redis.client", "def execute(self): stack = self.command_stack; fail()")
    safe, unsafe = (("SET", "a", 1), {}), (("INCR", "a"), {})
    assert judged(failure_of(execute, Thing(command_stack=[safe, safe]))) == (True, None)
    assert judged(failure_of(execute, Thing(command_stack=[safe, unsafe]))) == (True, "Redis INCR")
    cluster = client("redis.cluster", "def execute(self): fail()")
    commands = [Thing(args=("GET", "a")), Thing(args=("INCR", "a"))]
    assert judged(failure_of(cluster, Thing(command_stack=commands))) == (True, "Redis INCR")


def test_a_note_about_a_command_does_not_speak_of_a_header():
    with no_waits(), pytest.raises(ConnectionResetError) as caught:
        retry(redis)("INCR", "a")
    assert (
        caught.value.__notes__[0]
        .splitlines()[0]
        .endswith("repeating this Redis INCR might act twice; if it may be repeated, say idempotent=True")
    )


def test_the_method_of_a_command_is_not_one_of_http():
    assert request_method(failure_of(redis, "INCR", "a")) is None


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
    began = time.perf_counter()
    search(error)
    return time.perf_counter() - began


def test_functions_that_show_nothing_are_remembered_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(_requests, "_MOST_QUIET", 1)
    monkeypatch.setattr(_requests, "_quiet", {})
    for number in range(3):
        scope = {"fail": lost}
        exec(f"def call_{number}(): fail()", scope)
        error = failure_of(scope[f"call_{number}"])
        error.__context__ = None
        assert _requests.shows_nothing(error)
        assert len(_requests._quiet) == 1
