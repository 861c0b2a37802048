"""`recover` of a policy: when it runs, what it is given, and what it may change."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys

import pytest

from redouble import Policy, ResultRejected, Rule, current_attempt, retry, retrying
from redouble.dead_letters import DeadLetters
from redouble.policy import RetriedCall
from redouble.testing import scripted
from support.guarded import SLOW

LOST = ConnectionResetError("lost")


def keep(seen):
    """Return a `recover` that keeps the calls that it is given."""

    def recover(error, call):
        seen.append(call)

    return recover


def test_recover_runs_after_the_wait_before_each_retry(flavour, policy, clock):
    order = []

    def fetch():
        order.append(("fetch", clock.now))
        if len(order) < 5:
            raise TimeoutError(str(len(order)))
        return "page"

    guarded = policy.replace(recover=lambda error: order.append((str(error), clock.now)))
    assert flavour.call(guarded, flavour.function(fetch)) == "page"
    assert order == [("fetch", 0.0), ("1", 1.0), ("fetch", 1.0), ("3", 3.0), ("fetch", 3.0)]


def test_recover_does_not_run_where_nothing_is_retried(flavour, policy):
    seen = []
    guarded = policy.replace(recover=seen.append, attempts=1)
    assert flavour.call(guarded, flavour.scripted("page")) == "page"
    with pytest.raises(TimeoutError):
        flavour.call(guarded, flavour.scripted(SLOW))
    with pytest.raises(KeyError):
        flavour.call(policy.replace(recover=seen.append), flavour.scripted(KeyError("bug")))
    assert seen == []


def test_the_recover_of_a_rule_replaces_that_of_the_policy(flavour, policy):
    ours, theirs = [], []
    rules = {ConnectionResetError: Rule(recover=theirs.append), TimeoutError: Rule(attempts=4)}
    guarded = policy.replace(recover=ours.append, rules=rules)
    assert flavour.call(guarded, flavour.scripted(SLOW, LOST, "page")) == "page"
    assert (ours, theirs) == ([SLOW], [LOST])


def test_the_recover_of_a_rule_does_not_run_for_a_later_failure_of_another_kind(flavour, policy):
    theirs = []
    guarded = policy.replace(rules={ConnectionResetError: Rule(recover=theirs.append)})
    assert flavour.call(guarded, flavour.scripted(LOST, SLOW, "page")) == "page"
    assert theirs == [LOST]


def test_recover_goes_together_with_a_predicate(flavour, policy):
    seen = []
    guarded = policy.replace(on=lambda error: isinstance(error, KeyError), recover=seen.append)
    error = KeyError("stale")
    assert flavour.call(guarded, flavour.scripted(error, "page")) == "page"
    assert seen == [error]


def test_recover_gets_a_rejected_result_as_an_error(flavour, policy):
    seen = []
    assert (
        flavour.call(policy.replace(until=bool, recover=seen.append), flavour.scripted("", "page")) == "page"
    )
    assert [(type(error), error.result) for error in seen] == [(ResultRejected, "")]


def test_recover_is_given_the_function_and_its_arguments(flavour, policy):
    seen = []
    fetch = flavour.scripted(SLOW, LOST, "page")
    assert flavour.call(policy.replace(recover=keep(seen)), fetch, "/", size=3) == "page"
    assert [(call.function, call.args, call.kwargs, call.attempt) for call in seen] == [
        (fetch, ("/",), {"size": 3}, 1),
        (fetch, ("/",), {"size": 3}, 2),
    ]
    assert isinstance(seen[0], RetriedCall)


def test_recover_may_act_on_the_object_of_a_method(flavour, policy):
    class Client:
        fresh = False

        @policy.replace(recover=lambda error, call: call.args[0].reconnect(error))
        def get(self, path):
            if not self.fresh:
                raise LOST
            return path

        @policy.replace(recover=lambda error, call: call.args[0].reconnect(error))
        async def get_async(self, path):
            if not self.fresh:
                raise LOST
            return path

        def reconnect(self, error):
            self.fresh = error is LOST

    client = Client()
    assert flavour.run(client.get_async if flavour.is_async else client.get, "/") == "/"


def test_what_recover_changes_holds_for_all_attempts_to_come(flavour, policy):
    sizes = []

    def load(*, size=64, **others):
        sizes.append((size, others))
        if len(sizes) < 3:
            raise TimeoutError("too large")
        return size

    def smaller(error, call):
        call.kwargs["size"] = call.kwargs.get("size", 64) // 2
        call.kwargs.pop("trace", None)

    given = {"trace": True}
    assert flavour.call(policy.replace(recover=smaller), flavour.function(load), **given) == 16
    assert sizes == [(64, {"trace": True}), (32, {}), (16, {})]
    assert given == {"trace": True}


def test_what_recover_changes_holds_for_a_call_without_a_decorator(flavour, policy):
    def change(error, call):
        call.kwargs["host"] = "b"

    fetch = flavour.scripted(SLOW, "page")
    guarded = policy.replace(recover=change)
    called = guarded.call(fetch, host="a")
    assert (asyncio.run(once(called)) if flavour.is_async else called) == "page"
    with retrying(guarded) as call:
        again = flavour.scripted(SLOW, "page")
        called = call(again, host="a")
        assert (asyncio.run(once(called)) if flavour.is_async else called) == "page"
    for made in (fetch, again):
        assert [one[1] for one in made.calls] == [{"host": "a"}, {"host": "b"}]


async def once(awaitable):
    return await awaitable


def test_a_plain_function_that_returns_coroutines_gets_what_recover_has_changed(policy):
    fetch = scripted(SLOW, "page", asynchronous=True)

    def change(error, call):
        call.kwargs["host"] = "b"

    assert (
        asyncio.run(once(policy.replace(recover=change)(lambda **given: fetch(**given))(host="a"))) == "page"
    )
    assert [one[1] for one in fetch.calls] == [{"host": "a"}, {"host": "b"}]


def test_dead_letters_and_keys_keep_the_original_arguments(flavour, policy, tmp_path):
    letters = DeadLetters(tmp_path / "letters.db")
    keys = []

    def change(error, call):
        call.kwargs["order"] = 8

    def pay(*, order):
        keys.append((order, current_attempt().idempotency_key))
        raise TimeoutError("slow")

    guarded = policy.replace(
        attempts=2,
        recover=change,
        dead_letters=letters,
        payload=lambda *, order: {"order": order},
        idempotency_key=lambda *, order: order,
    )
    with pytest.raises(TimeoutError):
        flavour.call(guarded, flavour.function(pay), order=7)
    [letter] = letters
    assert letter.payload == {"order": 7}
    assert letter.idempotency_key == "fetch:7"
    assert keys == [(7, "fetch:7"), (8, "fetch:7")]


def test_the_call_cannot_be_replaced(flavour, policy):
    def replace(error, call):
        call.kwargs = {}

    with pytest.raises(TimeoutError) as caught:
        flavour.call(policy.replace(recover=replace), flavour.scripted(TimeoutError("slow"), "page"))
    assert (
        "recover raised AttributeError: RetriedCall is immutable: cannot set 'kwargs'"
        in (caught.value.__notes__[0])
    )


def test_recover_that_raises_ends_the_call_with_the_own_error(flavour, policy):
    def recover(error, call):
        raise LookupError("no token")

    error = TimeoutError("slow")
    fetch = flavour.scripted(error, "page")
    with pytest.raises(TimeoutError) as caught:
        flavour.call(policy.replace(recover=recover), fetch)
    assert caught.value is error
    assert len(fetch.calls) == 1
    assert "after 1 attempt: recover raised LookupError: no token" in error.__notes__[0]


def test_an_async_recover_is_awaited_and_refused_on_sync_functions(policy):
    seen = []

    async def recover(error, call):
        await asyncio.sleep(0)
        seen.append(call.attempt)

    for guarded in (policy.replace(recover=recover), policy.replace(recover=recover, deadline=60.0)):
        assert asyncio.run(guarded.call(scripted(SLOW, "page", asynchronous=True))) == "page"
    assert seen == [1, 1]
    with pytest.raises(TypeError, match=r"is sync, so recover must be sync too"):
        guarded(lambda: "page")


@pytest.mark.parametrize("where", ["policy", "rule"])
def test_an_async_recover_is_refused_in_a_sync_block(policy, where):
    async def recover(error):
        """Do nothing."""

    fields = {"recover": recover} if where == "policy" else {"rules": {TimeoutError: Rule(recover=recover)}}
    with pytest.raises(TypeError, match=r"a sync block needs a sync recover, got .*; use 'async for'"):
        for _ in retrying(policy, **fields):
            raise AssertionError


def test_a_block_has_no_function_and_no_arguments(flavour, policy):
    seen = []

    def body(attempt):
        if attempt.number < 3:
            raise SLOW
        return "page"

    assert flavour.block(policy.replace(recover=keep(seen)), body) == "page"
    assert seen == [RetriedCall(None, (), {}, 1), RetriedCall(None, (), {}, 2)]


def test_an_async_block_awaits_recover(policy):
    seen = []

    async def recover(error, call):
        await asyncio.sleep(0)
        seen.append(error)

    async def main():
        async for attempt in retrying(policy, recover=recover):
            with attempt:
                if attempt.number == 1:
                    raise SLOW

    asyncio.run(main())
    assert seen == [SLOW]


@pytest.mark.parametrize("fields", [{}, {"deadline": 60.0}], ids=["plain", "deadline"])
def test_a_generator_is_started_again_with_what_recover_has_changed(flavour, policy, fields):
    made, seen = [], []

    def change(error, call):
        seen.append(call.function)
        call.kwargs["size"] //= 2

    def items(size):
        made.append(size)
        if size > 2:
            raise TimeoutError("too large")
        yield size

    async def async_items(size):
        made.append(size)
        if size > 2:
            raise TimeoutError("too large")
        yield size

    guarded = policy.replace(recover=change, **fields)
    if flavour.is_async:

        async def main():
            return [item async for item in guarded(async_items)(size=8)]

        assert asyncio.run(main()) == [2]
    else:
        assert list(guarded(items)(size=8)) == [2]
    assert made == [8, 4, 2]
    assert seen == [async_items if flavour.is_async else items] * 2


# One argument, or two


class Hook:
    def __init__(self):
        self.seen = []

    def one(self, error):
        self.seen.append((error,))

    def two(self, error, call):
        self.seen.append((error, call))

    def named(self, error, call=None):
        self.seen.append((error, call))

    def optional(self, error, other=None):
        self.seen.append((error,))
        assert other is None

    def many(self, *args):
        self.seen.append(args)

    def keyword(self, error, *, call=None):
        self.seen.append((error,))
        assert call is None

    def before(self, prefix, error, call):
        self.seen.append((error, call))

    def __call__(self, error, call):
        self.seen.append((error, call))


def wrapped(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


FORMS = {
    "method": (lambda hook: hook.one, 1),
    "method with call": (lambda hook: hook.two, 2),
    "default named call": (lambda hook: hook.named, 2),
    "another default": (lambda hook: hook.optional, 1),
    "any number": (lambda hook: hook.many, 1),
    "keyword only": (lambda hook: hook.keyword, 1),
    "object": (lambda hook: hook, 2),
    "partial": (lambda hook: functools.partial(hook.before, "prefix"), 2),
    "partial that sets call": (lambda hook: functools.partial(hook.named, call=None), 1),
    "wrapped": (lambda hook: wrapped(hook.two), 2),
    "builtin": (lambda hook: Appends(hook.seen).append, 1),
}


class Appends(list):
    """A list whose bound `append` is a builtin."""

    def __init__(self, seen):
        self._seen = seen

    @property
    def append(self):
        return self._seen.append


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("where", ["policy", "rule"])
def test_the_call_is_passed_if_a_second_parameter_is_required_or_named_call(policy, form, where):
    hook = Hook()
    make, count = FORMS[form]
    recover = make(hook)
    fields = {"recover": recover} if where == "policy" else {"rules": {TimeoutError: Rule(recover=recover)}}
    assert policy.replace(**fields).call(scripted(SLOW, "page")) == "page"
    [given] = hook.seen
    expected = [None] if form == "partial that sets call" else []
    if form == "builtin":
        assert given is SLOW
    else:
        assert len(given) == count + len(expected)
        assert given[0] is SLOW


class NoSignature:
    @property
    def __signature__(self):
        raise RuntimeError("no signature")

    def __call__(self, *args):
        self.args = args


def test_a_function_whose_signature_cannot_be_read_gets_one_argument(policy):
    recover = NoSignature()
    assert policy.replace(recover=recover).call(scripted(SLOW, "page")) == "page"
    assert recover.args == (SLOW,)


@pytest.mark.parametrize(
    "recover", [lambda: None, lambda error, call, more: None, lambda error, *, call: None, [].clear]
)
@pytest.mark.parametrize("holder", [Policy, Rule])
def test_a_recover_that_takes_neither_one_argument_nor_two_is_refused(holder, recover):
    with pytest.raises(TypeError, match="recover must take the error, or the error and the call, got"):
        holder(recover=recover)


@pytest.mark.parametrize("holder", [Policy, Rule])
def test_a_recover_that_is_no_function_is_refused(holder):
    with pytest.raises(TypeError, match="recover must be a function, got 3"):
        holder(recover=3)


def test_inspect_is_not_imported_without_a_recover():
    code = "import sys, redouble; redouble.Policy(attempts=2); print('inspect' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"


def test_a_policy_says_what_runs_before_each_retry():
    def reconnect(error):
        """Do nothing."""

    assert "Runs reconnect before each retry." in retry(recover=reconnect).describe().splitlines()
    assert "before each retry" not in Policy().describe()
