"""Keywords of other retry libraries, and what to write instead: for the error about an unknown name.

They are those of tenacity, backoff, stamina, retrying, retry, opnieuw, urllib3's ``Retry`` and Polly, and
common ones of hand-written decorators. Loaded only when there is such an error.
"""

from __future__ import annotations

from .._base.checks import INF

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

# The field that is meant first, the advice, the names. In the advice {value} is the value that was given,
# {more} one more than it, {seconds} a thousandth of it; each is "..." if the value is not a number.
_ROWS = (
    # How often
    (
        "attempts",
        "write attempts={more}: the first call counts",
        """
        retries max_retries num_retries n_retries number_of_retries retry_count retry_times retry_attempts
        max_retry max_retry_attempts max_retry_count max_number_of_retries retry_limit total
        """,
    ),
    (
        "attempts",
        "write attempts={value}",
        """
        tries max_tries num_tries attempt max_attempts num_attempts n_attempts attempt_count max_attempt
        max_attempt_number stop_after_attempt stop_max_attempt_number max_calls max_calls_total times
        """,
    ),
    (
        "attempts",
        "write attempts=..., or give_up_after=... for a limit in seconds",
        "stop stop_func stop_any stop_condition",
    ),
    ("attempts", "write attempts=math.inf", "forever retry_forever infinite endless stop_never"),
    (
        "rules",
        "write attempts={more}: the first call counts; for one status rules={{503: Rule()}}",
        "status",
    ),
    (
        "rules",
        "write attempts={more}: the first call counts; for one error rules={{OSError: Rule()}}",
        "connect read other",
    ),
    # How long in all
    (
        "give_up_after",
        "write give_up_after={value}, or deadline={value} to cut off a running attempt, too",
        """
        max_time max_elapsed max_elapsed_time max_duration max_total_time time_limit stop_after_delay
        stop_before_delay stop_when_time_passed
        """,
    ),
    (
        "give_up_after",
        "write give_up_after={seconds}: seconds, not milliseconds",
        "stop_max_delay max_time_ms max_elapsed_ms max_duration_ms",
    ),
    (
        "give_up_after",
        "write give_up_after={value}: the waits are then set by base=... and cap=...",
        "retry_window_after_first_call_in_seconds",
    ),
    (
        "deadline",
        "write deadline={value}",
        "total_timeout overall_timeout timeout_total call_timeout deadline_s deadline_seconds",
    ),
    ("deadline", "write deadline={seconds}: seconds, not milliseconds", "deadline_ms total_timeout_ms"),
    (
        "timeout",
        "write timeout={value}",
        "attempt_timeout try_timeout per_attempt_timeout timeout_per_attempt timeout_s timeout_seconds",
    ),
    ("timeout", "write timeout={seconds}: seconds, not milliseconds", "timeout_ms attempt_timeout_ms"),
    # The waits
    (
        "base",
        "write base={value}: seconds; waits grow from there and have jitter; backoff=fixed for equal ones",
        """
        delay initial initial_delay wait_initial initial_wait initial_backoff initial_interval base_delay
        retry_delay retry_interval interval delay_seconds sleep_time sleep_seconds sleep_interval wait_time
        wait_seconds start start_delay backoff_base base_s first_delay
        """,
    ),
    (
        "base",
        (
            "write base=... for the first wait in seconds; waits double by default, for other growth write "
            "backoff=partial(full_jitter, factor=...)"
        ),
        "multiplier factor backoff_factor",
    ),
    (
        "base",
        "write base={seconds}: seconds, not milliseconds",
        """
        delay_ms base_ms base_delay_ms initial_delay_ms retry_delay_ms wait_ms interval_ms
        wait_exponential_multiplier
        """,
    ),
    ("base", "write base={seconds}, backoff=fixed: seconds, not milliseconds", "wait_fixed"),
    (
        "base",
        "write base={seconds}, backoff=linear: seconds, not milliseconds",
        "wait_incrementing_start wait_incrementing_increment",
    ),
    (
        "cap",
        "write cap={value}",
        """
        max_delay wait_max max_wait max_value max_backoff backoff_max backoff_cap max_interval max_sleep
        max_wait_time max_retry_delay max_delay_seconds delay_max maximum_backoff max_s max
        """,
    ),
    (
        "cap",
        "write cap={seconds}: seconds, not milliseconds",
        "max_delay_ms cap_ms max_wait_ms max_backoff_ms wait_exponential_max wait_incrementing_max",
    ),
    (
        "floor",
        "write floor={value}: no wait is shorter",
        "min min_delay min_value min_wait wait_min min_backoff min_interval delay_min minimum_backoff",
    ),
    (
        "floor",
        "write floor=... and cap=..., in seconds, with backoff=full_jitter, the default",
        "wait_random_min wait_random_max wait_random",
    ),
    (
        "backoff",
        "write base=... and cap=..., or another delay function: backoff=exponential, from redouble.backoff",
        """
        wait wait_gen wait_func wait_fn wait_strategy wait_exponential wait_random_exponential strategy
        delay_fn delay_func delay_generator backoff_type backoff_strategy backoff_func backoff_fn
        """,
    ),
    (
        "backoff",
        "waits have full jitter by default: leave it out, or write backoff=exponential for none",
        "jitter use_jitter with_jitter randomize add_jitter full_jitter",
    ),
    (
        "backoff",
        "for a random part write backoff=partial(additive_jitter, spread={value})",
        "wait_jitter jitter_max max_jitter backoff_jitter jitter_seconds",
    ),
    (
        "backoff",
        "for a random part write backoff=partial(additive_jitter, spread={seconds}): seconds",
        "wait_jitter_max jitter_ms",
    ),
    (
        "backoff",
        "for a share of the wait write backoff=partial(proportional_jitter, spread={value})",
        "jitter_factor jitter_ratio",
    ),
    (
        "backoff",
        "waits double by default; for other growth write backoff=partial(full_jitter, factor={value})",
        "exp_base wait_exp_base exponential_base growth growth_factor backoff_multiplier backoff_rate",
    ),
    # Which failures
    (
        "on",
        "write on=...: exception types, or a function of the error",
        """
        exception exceptions exc exc_types excs exception_type exception_types exceptions_to_check
        exceptions_to_retry exception_to_check catch catch_exceptions errors error_types retry_on retry_if
        retry_for retry_when retry_exceptions retry_on_exception retry_on_exceptions retry_on_error
        retryable_exceptions retryable_errors retry_if_exception retry_if_exception_type
        autoretry_for allowed_exceptions expected_exceptions transient_errors handle should_handle
        should_retry is_retryable retryable condition classifier
        """,
    ),
    (
        "on",
        "write on=..., exception types or a function of the error, or until=... for results",
        "retry predicate retry_predicate",
    ),
    (
        "on",
        "write on=lambda error: ..., which is true for errors to retry: the opposite",
        """
        giveup give_up giveup_on give_up_on ignore ignore_exceptions ignored_exceptions dont_retry_on not_on
        no_retry_on exclude excluded_exceptions fatal fatal_exceptions permanent_errors
        non_retryable_exceptions retry_if_not_exception_type stop_on raise_on
        """,
    ),
    (
        "on",
        "write on=Classifier(statuses=...), from redouble.classify; for one more rules={{503: Rule()}}",
        """
        status_forcelist statuses status_codes status_list retry_statuses retry_status_codes retry_on_status
        retry_on_statuses retry_codes retryable_statuses retryable_status_codes force_list codes
        """,
    ),
    (
        "until",
        "write until=lambda result: ..., which is true for a good result: the opposite",
        "retry_on_result retry_if_result retry_on_none",
    ),
    ("until", "write until=..., which is true for a good result", "check result_ok success accept validate"),
    (
        "idempotent",
        "a POST that may have taken effect is not repeated; write idempotent=True if it may be",
        "allowed_methods method_whitelist methods retry_methods retry_non_idempotent retry_post",
    ),
    (
        "max_retry_after",
        "Retry-After is always honoured, up to max_retry_after=120.0 seconds",
        "respect_retry_after_header respect_retry_after use_retry_after honor_retry_after honour_retry_after",
    ),
    ("max_retry_after", "write max_retry_after={value}", "patience retry_after_max max_server_delay"),
    # Hooks
    (
        "listeners",
        "for a hook before each wait use listeners=[...]: it receives Retrying events",
        """
        before_sleep on_backoff on_retry on_sleep before_wait retry_callback retry_hook on_retries
        """,
    ),
    (
        "recover",
        "for a hook before each retry use recover=...; for all events listeners=[...]",
        "before before_attempt before_attempts before_retry before_call on_attempt prepare reset",
    ),
    (
        "listeners",
        "for a hook use listeners=[...]: it receives each event (Retrying, Recovered, GaveUp)",
        """
        after after_attempt after_attempts on_error on_failure on_failed_attempt on_exception hook hooks
        callback callbacks listener observer observers on_success on_giveup on_give_up on_exhausted
        """,
    ),
    (
        "logger",
        "write logger=...; for other levels logger=False and listeners=[...] with events.log_to",
        """
        log logging log_level level logger_name backoff_log_level giveup_log_level before_sleep_log before_log
        after_log retry_log_level verbose
        """,
    ),
    # The end
    (
        "fallback",
        "leave it out: the last exception itself is raised; for a value instead write fallback=...",
        """
        reraise raise_on_giveup raise_on_failure raise_on_status raise_exception raise_error reraise_last
        wrap_exception
        """,
    ),
    (
        "fallback",
        "for another error at the end give a function that raises it: fallback=...",
        "retry_error_cls retry_error_class error_cls error_class raises exception_class wrap_exception_type",
    ),
    (
        "fallback",
        "write fallback=...: a value, or a function of the last error",
        "retry_error_callback default default_value fallback_value fallback_result return_on_failure",
    ),
    (
        "",
        "leave it out: your HTTP client follows redirects",
        "redirect raise_on_redirect remove_headers_on_redirect",
    ),
    ("", "leave it out: redouble.history(error) has the attempts", "history statistics stats"),
    # The rest
    ("sleep", "write sleep=..., a function that waits", "sleep_func sleep_function sleep_fn sleeper"),
    ("clock", "write clock=..., a function that returns monotonic seconds", "timer time_func time_function"),
    ("rng", "write rng=random.Random({value})", "seed random_state random_seed"),
    ("breaker", "write breaker=CircuitBreaker(...)", "circuit_breaker circuit circuitbreaker cb"),
    (
        "budget",
        "write budget=RatioBudget(...) or budget=TokenBudget(...)",
        "retry_budget token_bucket retry_quota",
    ),
    ("throttle", "write throttle=AdaptiveThrottle(...)", "rate_limit rate_limiter limiter"),
    ("bulkhead", "write bulkhead=Bulkhead(...)", "concurrency max_concurrency max_concurrent semaphore"),
    ("dead_letters", "write dead_letters=DeadLetters(...)", "dead_letter dead_letter_queue deadletter dlq"),
    ("enabled", "write enabled=...", "active retry_enabled"),
    ("enabled", "write enabled=False", "disabled retries_disabled"),
    ("idempotency_key", "write idempotency_key=True", "idempotency idempotence_key"),
)
OTHER_NAMES = {name: (field, text) for field, text, names in _ROWS for name in names.split()}

# Fields that replace a part of redouble: a name that only resembles one must not lead to it.
_REPLACING = frozenset({"clock", "enabled", "fallback", "rng", "sleep"})

_BACKOFFS = {
    **dict.fromkeys(("exponential", "expo", "exp"), "exponential"),
    **dict.fromkeys(("fixed", "constant", "const", "none"), "fixed"),
    **dict.fromkeys(("linear", "incrementing"), "linear"),
    **dict.fromkeys(("full_jitter", "full", "jitter", "random", "exponential_jitter"), "full_jitter"),
    **dict.fromkeys(("equal_jitter", "equal"), "equal_jitter"),
    **dict.fromkeys(("decorrelated_jitter", "decorrelated"), "decorrelated_jitter"),
}


def advice(name: object, value: object, known: Collection[str], fields: Collection[str] = ()) -> str:
    """Return what to do about an unknown name, as the end of a sentence.

    ``known`` are the names to choose from. If there are ``fields``, the advice is about one of them.

    >>> advice("max_retries", 3, ["attempts"])
    'write attempts=4: the first call counts'
    >>> advice("atempts", 3, ["attempts"])
    "did you mean 'attempts'?"
    """
    text = str(name)
    field, hint = OTHER_NAMES.get(_snake_case(text), ("", ""))
    if hint and (not fields or not field or field in fields):
        return _filled(hint, value)
    import difflib

    for near in difflib.get_close_matches(text.lower(), known, n=3, cutoff=0.75):
        if near not in _REPLACING or abs(len(near) - len(text)) < 2:
            return f"did you mean {near!r}?"
    return f"known are {', '.join(sorted(known))}"


def about_backoff(value: object) -> str:
    """Return what to write instead of a value of ``backoff=`` that is not a function.

    >>> about_backoff("exponential")
    ': write backoff=exponential (from redouble.backoff)'
    """
    if isinstance(value, str):
        name = _BACKOFFS.get(value.strip().lower().replace("-", "_"))
        if name is not None:
            return f": write backoff={name} (from redouble.backoff)"
    elif (number := _number(value)) is not None:
        if number == 1:
            return ": for equal waits write backoff=fixed (from redouble.backoff)"
        return f": for growth by {number} write backoff=partial(full_jitter, factor={number})"
    return ": redouble.backoff has some, such as full_jitter, exponential and fixed"


def about_on(value: object) -> str:
    """Return what to write instead of a wrong value of ``on=``; nothing if there is no advice.

    >>> about_on("TimeoutError")
    ': write on=TimeoutError, the class itself'
    """
    for member in _members(value):
        if isinstance(member, str):
            import builtins

            if _is_exception(getattr(builtins, member, None)):
                return f": write on={member}, the class itself"
            return f": write the class itself; Classifier(transient=[{member!r}]) knows a class by its name"
        if isinstance(member, int) and not isinstance(member, bool):
            return (
                f": for a status write rules={{{member}: Rule()}}, or on=Classifier(statuses=...) "
                "(from redouble.classify)"
            )
        if isinstance(member, Exception):
            return f": write on={type(member).__name__}, the class itself"
    return ""


def about_text(name: str, value: str) -> str:
    """Return the number to write instead of a text; nothing if it is not one, or the field takes none.

    >>> about_text("deadline", "20s")
    ': write deadline=20.0; Policy.from_mapping reads texts'
    """
    from .config import READERS

    field, read = READERS.get(name, ("", None))
    try:
        found = None if read is None else read(name, value)
    except (TypeError, ValueError):
        return ""
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        return ""
    shown = f"math.{found}" if found == INF else repr(found)
    return f": write {field}={shown}; Policy.from_mapping reads texts"


def by_keyword(thing: object) -> str:
    """Return the keyword for a value that was given by position, such as ``attempts=3``, or nothing."""
    if isinstance(thing, int) and not isinstance(thing, bool):
        return f"attempts={thing}"
    if isinstance(thing, str):
        return f"name={thing!r}"
    members = _members(thing)
    if not members or not all(map(_is_exception, members)):
        return ""
    names = ", ".join([member.__name__ for member in members])
    if members[0] is thing:
        return f"on={names}"
    return f"on=({names}{',' if len(members) == 1 else ''})"


def _members(value: Any) -> list[Any]:
    """Return the members of a collection, or the value alone."""
    return [*value] if isinstance(value, (tuple, list, set, frozenset)) else [value]


def _is_exception(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, Exception)


def _number(value: Any) -> float | None:
    """Return a number that can be written into an advice; data may hold one as text."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if 0 <= value < 1e9 else None


def _filled(text: str, value: object) -> str:
    """Put the value into an advice."""
    number = _number(value)
    if number is None:
        return text.format(value="...", more="...", seconds="...")
    more = int(number) + 1 if number == int(number) else "..."
    return text.format(value=number, more=more, seconds=number / 1000)


def _snake_case(name: str) -> str:
    """Return ``max_retries`` for ``MaxRetries`` and ``maxRetries``."""
    parts = [f"_{letter.lower()}" if letter.isupper() else letter for letter in name]
    return "".join(parts).lstrip("_") if name != name.upper() else name.lower()
