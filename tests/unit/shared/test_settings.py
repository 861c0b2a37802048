"""Arguments of shared guards, pickling, forks, policies and slow clients."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
import threading
import time

import pytest

from conftest import watchdog
from redouble import CircuitOpen, Policy
from redouble.shared import FileBudget, RedisBreaker, RedisBudget
from redouble.shared._scripts import BUDGET, CIRCUIT
from redouble.testing import FakeClock, scripted
from support.stores import REFUSED, AsyncClient, Client, Interrupt, changes, left, said


@pytest.mark.parametrize("client", [None, object(), Client, "redis://localhost"], ids=repr)
@pytest.mark.parametrize("kind", [RedisBudget, RedisBreaker])
def test_what_is_no_client_is_refused(kind, client):
    with pytest.raises(TypeError, match=r"client must be a redis\.Redis or a redis\.asyncio\.Redis, got"):
        kind(client, "key")


NUMBERS = [float("nan"), float("inf"), -1, True]


@pytest.mark.parametrize("value", [*NUMBERS, 0], ids=repr)
@pytest.mark.parametrize("field", ["ttl", "refresh_interval", "timeout", "retry_interval"])
@pytest.mark.parametrize("kind", [RedisBudget, RedisBreaker, FileBudget])
def test_a_wrong_time_is_refused_by_name(kind, field, value, tmp_path):
    args = (tmp_path / "file",) if kind is FileBudget else (Client(1), "key")
    with pytest.raises(ValueError, match=rf"^{field} must be .*, got {value!r}$"):
        kind(*args, **{field: value})


@pytest.mark.parametrize("value", NUMBERS, ids=repr)
@pytest.mark.parametrize("field", ["capacity", "cost", "timeout_cost", "refund", "earn"])
def test_a_wrong_amount_is_refused_by_name(field, value, tmp_path):
    with pytest.raises(ValueError, match=rf"^{field} must be .*, got {value!r}$"):
        FileBudget(tmp_path / "file", **{field: value})


@pytest.mark.parametrize("field", ["failures", "successes", "probes"])
def test_a_wrong_count_is_refused_by_name(field):
    with pytest.raises(ValueError, match=rf"^{field} must be at least 1, got 0$"):
        RedisBreaker(Client(1), "key", **{field: 0})


@pytest.mark.parametrize("key", [None, "", b"key", 5], ids=repr)
def test_a_key_is_a_text(key):
    with pytest.raises(TypeError, match="key must be a text"):
        RedisBudget(Client(1), key)


@pytest.mark.parametrize(("path", "error"), [(None, TypeError), (5, TypeError), ("", ValueError), (":memory:", ValueError)])  # fmt: skip
def test_a_path_is_the_path_of_a_file(path, error):
    with pytest.raises(error, match=r"path must be the path of a file.*"):
        FileBudget(path)


def test_an_async_listener_is_refused(tmp_path):
    async def listen(event): ...

    with pytest.raises(TypeError, match="listeners must be a plain function"):
        FileBudget(tmp_path / "file", listeners=[listen])


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("kind", [RedisBudget, RedisBreaker])
def test_a_guard_with_a_client_refuses_to_pickle(kind, protocol):
    guard = kind(Client(1), "key", name="payments")
    with pytest.raises(
        TypeError, match=r"payments \(Redis\w+\) .* cannot be pickled: make one in each process$"
    ):
        pickle.dumps(guard, protocol)
    assert copy.copy(guard) is guard
    assert copy.deepcopy([guard])[0] is guard


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_budget_in_a_file_pickles_with_its_settings(protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fields = {
        "capacity": 50.0, "cost": 4.0, "timeout_cost": 8.0, "refund": 2.0, "earn": 3.0, "ttl": 60.0,
        "refresh_interval": 2.0, "timeout": 0.5, "retry_interval": 3.0, "name": "payments",
        "listeners": (print,),
        "reserves": {-1: 0.2},
    }  # fmt: skip
    budget = FileBudget("retries", **fields, clock=time.monotonic)
    budget.acquire()
    monkeypatch.chdir("/")
    other = pickle.loads(pickle.dumps(budget, protocol))
    assert {name: getattr(other, name) for name in fields} == fields
    assert (other.path, other._clock) == (str(tmp_path / "retries"), time.monotonic)
    assert other.refresh() == 46.0
    assert copy.copy(budget) is budget


def test_a_policy_with_a_budget_in_a_file_pickles(tmp_path):
    policy = pickle.loads(pickle.dumps(Policy(budget=FileBudget(tmp_path / "retries", capacity=10))))
    assert policy.budget.acquire() == 5.0


class Handover:
    """In the place of a lock: another thread is faster."""

    def __init__(self, happens):
        self.happens = happens

    def __enter__(self):
        self.happens()

    def __exit__(self, *_):
        pass


def test_a_caller_that_finds_the_store_back_asks_it(clock):
    client = Client(REFUSED, left(100.0, 5.0))
    budget = RedisBudget(client, "key", clock=clock)
    budget.acquire()
    budget._lock = Handover(lambda: setattr(budget, "_retry_at", None))
    assert budget._may_ask(1.0) is False


def test_what_is_of_the_parent_is_not_of_its_child(clock):
    budget = RedisBudget(Client(left(5.0)), "key", clock=clock)
    breaker = RedisBreaker(Client(REFUSED), "key", clock=clock)
    budget.refresh()
    budget.success()
    breaker.enter()
    assert (budget._earned, len(breaker._pending_releases)) == (1.0, 1)
    budget._trying = True
    for guard in (budget, breaker):
        lock = guard._lock
        guard._after_fork()
        assert guard._lock is not lock
    assert (budget._earned, budget._trying, breaker._pending_releases, breaker._ticket) == (
        0.0,
        False,
        (),
        None,
    )


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")


def in_a_fork(body):
    """Runs a function in a forked child; it must come to an end, with something true."""
    child = os.fork()
    if not child:
        done = 1
        try:
            done = 0 if body() else 2
        finally:
            os._exit(done)
    with watchdog():
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_send_what_its_parent_earned(tmp_path):
    budget = FileBudget(tmp_path / "retries", capacity=100)
    for _ in range(4):
        budget.acquire()
    budget.success()
    in_a_fork(lambda: budget.refresh() == 80.0)
    assert budget.refresh() == 81.0


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_gives_no_slot_back_that_is_its_parents():
    client = Client(said("half-open", probes=1), Interrupt(), said())
    breaker = RedisBreaker(client, "key", clock=FakeClock())
    breaker.enter()
    with pytest.raises(Interrupt):
        breaker.failure(None, OSError())
    breaker._release("slot")
    in_a_fork(lambda: breaker.at_rest and breaker.refresh() and client.asked[-1][-1] == "")
    breaker.refresh()
    assert client.asked[-1][-1] == "slot"


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_may_try_a_store_that_its_parent_is_trying():
    clock = FakeClock()
    client = Client(REFUSED, lambda: in_a_fork(lambda: retried(budget)) or left(9.0))
    budget = RedisBudget(client, "key", clock=clock)
    budget.acquire()
    clock.advance(1.0)

    def retried(budget):
        client.answers = [left(7.0)]
        return budget.refresh() == 7.0

    assert budget.refresh() == 9.0


@pytest.mark.slow
@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_while_threads_use_a_file_can_use_it_too(tmp_path):
    budget = FileBudget(tmp_path / "retries", capacity=1e6, timeout=5.0)
    stop = threading.Event()

    def work():
        while not stop.is_set():
            budget.acquire()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            in_a_fork(lambda: budget.acquire() == 5.0 and budget.available)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert budget.available


def test_an_empty_shared_budget_stops_retries_but_never_a_first_attempt(flavour, tmp_path):
    budget = FileBudget(tmp_path / "retries", capacity=5)
    other = FileBudget(tmp_path / "retries", capacity=5)
    policy = Policy(attempts=3, budget=budget, on=OSError, sleep=lambda seconds: None)
    with pytest.raises(OSError, match="off"):
        flavour.call(policy, flavour.scripted(*[OSError("off")] * 2))
    assert other.refresh() == 0.0
    function = flavour.scripted(OSError("off"))
    with pytest.raises(OSError, match="off"):
        flavour.call(policy.replace(budget=other), function)
    assert len(function.calls) == 1


def test_a_policy_awaits_a_budget_on_an_asyncio_client(clock):
    client = AsyncClient(left(495.0, 5.0))
    policy = Policy(budget=RedisBudget(client, "key", clock=clock), sleep=lambda seconds: None)
    fetch = policy(scripted(TimeoutError("slow"), "page", asynchronous=True))
    assert asyncio.run(fetch()) == "page"
    # Taken for the retry, after a timeout; then given back.
    assert [words[1:3] for words in client.asked] == [("0.0", "10.0"), ("5.0", "0.0")]


def test_a_policy_asks_and_tells_a_shared_breaker(store):
    here = store(said(), said(failures=1), said())
    policy = Policy(breaker=here.breaker(), sleep=lambda seconds: None)
    assert here.flavour.call(policy, here.flavour.scripted(TimeoutError("slow"), "page")) == "page"
    assert [words[0] for words in here.client.asked] == ["enter", "failure", "success"]


def test_a_policy_is_refused_by_a_circuit_that_others_opened(store):
    here = store(said("open", admitted=0, ends_in=b"30000"))
    function = here.flavour.scripted("page")
    with pytest.raises(CircuitOpen):
        here.flavour.call(Policy(breaker=here.breaker()), function)
    assert function.calls == []


def test_no_call_fails_because_the_store_is_away(store):
    here = store(REFUSED)
    policy = Policy(budget=here.budget(), breaker=here.breaker(), sleep=lambda seconds: None)
    assert here.flavour.call(policy, here.flavour.scripted(TimeoutError("slow"), "page")) == "page"
    assert changes(here.events) == [False, False]


def test_the_scripts_touch_no_key_but_their_own():
    for script in (BUDGET, CIRCUIT):
        assert "KEYS[2]" not in script
        assert script.count("redis.call(") == script.count("KEYS[1]") + script.count("'TIME'")


class Pool:
    def __init__(self, **settings):
        self.connection_kwargs = settings


class Repeats:
    _retries = 10


def client_with(**settings):
    client = Client(REFUSED)
    client.connection_pool = Pool(**settings)
    return client


PATIENT = [
    ({"socket_timeout": 5, "socket_connect_timeout": 5, "retry": Repeats()}, "waits 5 s for an answer and repeats a command 10 times"),
    ({"socket_timeout": None, "retry": None}, "waits inf s for an answer, so"),
    ({"socket_timeout": 0.25, "socket_connect_timeout": 2}, "waits 2 s for an answer, so"),
    ({"socket_timeout": 0.25, "retry": Repeats()}, "repeats a command 10 times, so"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "found"), PATIENT)
@pytest.mark.parametrize("kind", [RedisBudget, RedisBreaker])
def test_a_client_that_waits_for_longer_than_slow_is_warned_about(kind, settings, found):
    with pytest.warns(
        RuntimeWarning, match=f"the client of key {found}.*socket_timeout=0.25.*retry=None"
    ) as caught:
        kind(client_with(**settings), "key")
    assert caught[0].filename == __file__


@pytest.mark.parametrize("kind", [RedisBudget, RedisBreaker])
def test_a_client_that_gives_up_soon_enough_is_not_warned_about(kind):
    kind(client_with(socket_timeout=0.25, socket_connect_timeout=0.25, retry=None), "key")
    kind(client_with(socket_timeout=2, retry=None), "key", timeout=2.0)
    kind(AsyncClient(REFUSED), "key")
    patient = AsyncClient(REFUSED)
    patient.connection_pool = Pool(socket_timeout=5)  # it is cut off
    kind(patient, "key")


def test_what_a_retry_cost_that_was_not_made_is_sent_with_the_next_question(store):
    here = store(left(95.0, 5.0))
    budget = here.budget(capacity=100)
    budget.give_back(here.run(budget.acquire))
    here.run(budget.refresh)
    assert here.client.asked[1][1] == "5.0"
