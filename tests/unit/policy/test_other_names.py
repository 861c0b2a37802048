"""Keywords of other libraries are refused with what to write instead, and never with something that does harm."""

from __future__ import annotations

import inspect
import re

import pytest

from redouble import Policy, Rule, backoff, policy, presets, retry, retrying
from redouble._policy.other_names import OTHER_NAMES, advice, by_keyword
from redouble.classify import Classifier

FIELDS = {*policy._FIELDS}

CALLERS = {
    "retry": retry,
    "retrying": retrying,
    "Policy": Policy,
    "policy.replace": Policy(base=2.0).replace,
    "presets.standard": presets.standard,
}

THEIRS = {
    "tenacity": """
        stop wait retry before after before_sleep reraise retry_error_cls retry_error_callback multiplier exp_base
        """,
    "backoff": """
        exception max_tries max_time jitter giveup on_success on_backoff on_giveup raise_on_giveup wait_gen predicate
        backoff_log_level giveup_log_level factor max_value interval
        """,
    "stamina": "wait_initial wait_max wait_jitter wait_exp_base",
    "retrying": """
        stop wait stop_max_attempt_number stop_max_delay wait_fixed wait_random_min wait_random_max
        wait_incrementing_start wait_incrementing_increment wait_incrementing_max wait_exponential_multiplier
        wait_exponential_max retry_on_exception retry_on_result wrap_exception stop_func wait_func wait_jitter_max
        before_attempts after_attempts
        """,
    "retry": "exceptions tries delay max_delay jitter",
    "opnieuw": "retry_on_exceptions max_calls_total retry_window_after_first_call_in_seconds",
    "urllib3": """
        total connect read redirect status other allowed_methods method_whitelist status_forcelist backoff_factor
        backoff_max backoff_jitter raise_on_redirect raise_on_status history respect_retry_after_header
        remove_headers_on_redirect retry_after_max
        """,
    "Polly": "MaxRetryAttempts BackoffType UseJitter Delay MaxDelay ShouldHandle OnRetry DelayGenerator",
    "loops": "retries max_retries initial initial_delay retry_on min_delay on_retry default timeout_ms",
}


@pytest.mark.parametrize("caller", CALLERS)
def test_the_error_names_the_function_that_was_called_and_what_to_write(caller):
    with pytest.raises(TypeError) as caught:
        CALLERS[caller](before_sleep=print)
    assert str(caught.value) == (
        f"{caller}() has no 'before_sleep'; "
        "for a hook before each wait use listeners=[...]: it receives Retrying events"
    )


def test_a_subclass_goes_by_its_own_name():
    class Mine(Policy):
        pass

    with pytest.raises(
        TypeError, match=r"^Mine\(\) has no 'retries'; write attempts=4: the first call counts$"
    ):
        Mine(retries=3)


@pytest.mark.parametrize("library", THEIRS)
def test_every_keyword_of_a_library_is_known(library):
    for name in THEIRS[library].split():
        with pytest.raises(TypeError) as caught:
            retry(**{name: 3})
        message = str(caught.value)
        assert message.startswith(f"retry() has no {name!r}; ")
        assert "did you mean" not in message
        assert "known are" not in message


def test_the_keywords_of_installed_libraries_are_known():
    theirs = {
        "tenacity": lambda module: [module.BaseRetrying.__init__],
        "backoff": lambda module: [module.on_exception, module.on_predicate, module.expo, module.constant],
        "stamina": lambda module: [module.retry],
    }
    for library, functions in theirs.items():
        module = pytest.importorskip(library)
        for function in functions(module):
            names = {*inspect.signature(function).parameters} - {"self", "wait_gen_kwargs"}
            assert names <= {*FIELDS, *OTHER_NAMES}


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_an_advice_names_fields_that_there_are(name):
    field, text = OTHER_NAMES[name]
    assert name not in policy._FIELDS
    named = {*re.findall(r"\b([a-z_]+)=(?!\w*\))", re.sub(r"\([^)]*\)", "", text))}
    assert named <= FIELDS
    assert not field or field in FIELDS
    assert bool(named) == bool(field)
    assert advice(name, 3, policy._FIELDS) == advice(name.title().replace("_", ""), 3, policy._FIELDS)


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_an_advice_replaces_no_wait_and_switches_nothing_off(name):
    for value in (3, 0.5, None, print):
        text = advice(name, value, policy._FIELDS)
        assert ("sleep=" in text) == (name in ("sleep_func", "sleep_function", "sleep_fn", "sleeper"))
        assert not re.search(r"base=0(?!\.)", text)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_retries": 3}, "write attempts=4: the first call counts"),
        ({"max_retries": 3.0}, "write attempts=4: the first call counts"),
        ({"max_retries": None}, "write attempts=...: the first call counts"),
        ({"retries": -1}, "write attempts=...: the first call counts"),
        ({"retries": True}, "write attempts=...: the first call counts"),
        ({"retries": float("inf")}, "write attempts=...: the first call counts"),
        ({"max_tries": 5}, "write attempts=5"),
        ({"MaxRetryAttempts": 2}, "write attempts=3: the first call counts"),
        ({"maxRetries": 2}, "write attempts=3: the first call counts"),
        ({"MAX_RETRIES": 2}, "write attempts=3: the first call counts"),
        ({"wait_fixed": 2000}, "write base=2.0, backoff=fixed: seconds, not milliseconds"),
        ({"stop_max_delay": 500}, "write give_up_after=0.5: seconds, not milliseconds"),
        ({"max_delay": 9}, "write cap=9"),
        (
            {"status_forcelist": [503]},
            "write on=Classifier(statuses=...), from redouble.classify; for one more rules={503: Rule()}",
        ),
    ],
    ids=str,
)
def test_numbers_that_mean_something_else_are_converted(given, message):
    with pytest.raises(TypeError) as caught:
        Policy(**given)
    assert str(caught.value) == f"Policy() has no {next(iter(given))!r}; {message}"


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("atempts", "attempts"),
        ("dead_line", "deadline"),
        ("slep", "sleep"),
        ("clocks", "clock"),
        ("Base", "base"),
    ],
)
def test_a_typo_is_answered_with_the_nearest_name(typo, meant):
    with pytest.raises(TypeError, match=rf"^retry\(\) has no '{typo}'; did you mean '{meant}'\?$"):
        retry(**{typo: 1})


@pytest.mark.parametrize("name", ["to_sleep", "sleep_s_", "fallbacks_to", "rungs", "xyzzy"])
def test_a_name_that_only_resembles_one_is_answered_with_all(name):
    with pytest.raises(TypeError) as caught:
        retry(**{name: 1})
    assert str(caught.value) == f"retry() has no {name!r}; known are {', '.join(sorted(policy._FIELDS))}"


def test_plain_data_is_answered_alike():
    with pytest.raises(TypeError) as caught:
        Policy.from_mapping({"max_retries": 3})
    assert str(caught.value) == "unknown policy field 'max_retries': write attempts=4: the first call counts"
    with pytest.raises(TypeError) as caught:
        Policy.from_env("P", {"P_MAX_RETRIES": "3"})
    assert str(caught.value) == (
        "in the environment under P_: unknown policy field 'max_retries': write attempts=4: the first call counts"
    )
    with pytest.raises(TypeError) as caught:
        Policy.from_mapping({"rules": {"429": {"reraise": True}}})
    assert "in rules: unknown policy field 'reraise': known are attempts, " in str(caught.value)


# By position


@pytest.mark.parametrize(
    ("thing", "keyword"),
    [
        (3, "attempts=3"),
        ("fetch", "name='fetch'"),
        (ValueError, "on=ValueError"),
        ((ValueError, KeyError), "on=(ValueError, KeyError)"),
        ([OSError], "on=(OSError,)"),
    ],
    ids=repr,
)
def test_a_value_by_position_is_answered_with_its_keyword(thing, keyword):
    for fields in ({}, {"base": 2.0}):
        for name, function in (("retry", retry), ("retrying", retrying)):
            with pytest.raises(TypeError) as caught:
                function(thing, **fields)
            assert str(caught.value) == (
                f"{name}() takes fields by keyword, got {thing!r}; write {name}({keyword})"
            )


@pytest.mark.parametrize("thing", [True, int, (), (3,), KeyboardInterrupt, 3.5, object()], ids=repr)
def test_a_value_that_could_be_anything_has_no_keyword(thing):
    assert by_keyword(thing) == ""
    for function in (retry, retrying):
        with pytest.raises(TypeError, match=r"cannot retry|takes a Policy"):
            function(thing)


# Values of another kind


@pytest.mark.parametrize(
    ("field", "value", "advised"),
    [
        ("attempts", "3", "attempts must be a whole number, got '3': write attempts=3;"),
        ("attempts", "inf", "attempts must be a whole number, got 'inf': write attempts=math.inf;"),
        ("deadline", "20s", "deadline must be a number, got '20s': write deadline=20.0;"),
        ("base", "200ms", "base must be a number, got '200ms': write base=0.2;"),
        ("cap", "1.5m", "cap must be a number, got '1.5m': write cap=90.0;"),
        ("priority", "1", "priority must be a whole number, got '1': write priority=1;"),
    ],
)
def test_a_number_as_text_is_answered_with_the_number(field, value, advised):
    for function in (retry, retrying, Policy, Policy().replace):
        with pytest.raises(TypeError) as caught:
            function(**{field: value})
        assert str(caught.value) == f"{advised} Policy.from_mapping reads texts"


@pytest.mark.parametrize(
    ("field", "value"), [("attempts", "three"), ("deadline", "none"), ("until", "1"), ("enabled", "yes")]
)
def test_any_other_text_is_refused_as_it_is(field, value):
    with pytest.raises(TypeError, match=rf"^{field} must [^:;]*, got '{value}'$"):
        Policy(**{field: value})


@pytest.mark.parametrize(
    ("value", "advised"),
    [
        ("exponential", ": write backoff=exponential (from redouble.backoff)"),
        ("Constant", ": write backoff=fixed (from redouble.backoff)"),
        ("full-jitter", ": write backoff=full_jitter (from redouble.backoff)"),
        ("fibonacci", ": redouble.backoff has some, such as full_jitter, exponential and fixed"),
        (2, ": for growth by 2 write backoff=partial(full_jitter, factor=2)"),
        (1, ": for equal waits write backoff=fixed (from redouble.backoff)"),
        (None, ": redouble.backoff has some, such as full_jitter, exponential and fixed"),
    ],
    ids=repr,
)
def test_a_backoff_by_name_is_answered_with_the_function(value, advised):
    with pytest.raises(TypeError) as caught:
        retry(backoff=value)
    assert str(caught.value) == f"backoff must be a function, got {value!r}{advised}"
    for name in re.findall(r"backoff=(\w+) ", advised):
        assert name in backoff.__all__
    if value is not None:
        with pytest.raises(TypeError, match="backoff must be a function, got"):
            Rule(backoff=value)


@pytest.mark.parametrize(
    ("value", "advised"),
    [
        ("ValueError", ": write on=ValueError, the class itself"),
        (
            "httpx.ReadError",
            ": write the class itself; Classifier(transient=['httpx.ReadError']) knows a class",
        ),
        ("KeyboardInterrupt", ": write the class itself; "),
        (
            503,
            ": for a status write rules={503: Rule()}, or on=Classifier(statuses=...) (from redouble.classify)",
        ),
        ([OSError, 503], ": for a status write rules={503: Rule()}"),
        (ValueError("x"), ": write on=ValueError, the class itself"),
        ((ValueError, OSError(2, "x")), ": write on=FileNotFoundError, the class itself"),
    ],
    ids=repr,
)
def test_an_on_that_is_no_class_is_answered_with_the_way_to_say_it(value, advised):
    with pytest.raises(TypeError) as caught:
        retry(on=value)
    assert repr(value)[1:-1] in str(caught.value) or isinstance(value, (list, tuple))
    assert advised in str(caught.value)


@pytest.mark.parametrize("value", [True, 3.5, KeyboardInterrupt, object()], ids=str)
def test_any_other_on_is_refused_as_it_is(value):
    with pytest.raises(TypeError, match=r"^on must [^:]*(: interrupts .*)?$"):
        retry(on=value)


def test_what_is_advised_does_what_was_meant():
    assert retry(rules={503: Rule()}).rules == {503: Rule()}
    assert retry(on=Classifier(statuses=[503])).on == Classifier(statuses=[503])
    assert Classifier(transient=["httpx.ReadError"])
