"""Tests that are left out in an environment, and why. The plugin ``left_out`` reads this."""

from __future__ import annotations

_DOCSTRING = "docstrings are gone under -OO"

_WITHOUT_DOCSTRINGS = dict.fromkeys(
    [
        "unit/guards/test_breaker_gate.py::test_a_decorated_function_keeps_its_name_and_docs",
        "unit/engine/test_callables.py::test_the_looks_of_a_function_are_kept",
        "unit/engine/test_callables.py::test_the_signature_of_a_callable_object_is_kept",
        "project/test_docs.py::test_the_code_on_a_page_runs_and_prints_what_the_page_shows[docs/reference/retry.md]",
        "unit/events/test_every_event.py::test_the_docstring_of_every_event_has_an_example",
        "unit/events/test_every_event.py::test_the_page_and_the_docstring_say_the_same_of_the_number_of_the_attempt",
        "unit/test_errors.py::test_the_tree_is_drawn_at_the_head_of_the_file_and_open_to_users",
        "unit/hedging/test_hedge.py::test_hedging_must_be_asked_for_by_name_and_with_a_delay",
        "unit/hedging/test_hedge.py::test_the_decorated_function_looks_like_the_function",
        "unit/policy/test_fields.py::test_help_says_what_each_field_means",
        "project/test_public_api.py::test_every_exported_name_is_documented_in_the_code",
        "project/test_public_api.py::test_every_public_module_says_what_it_is_for_and_what_it_exports",
        "behaviour/test_generators_begun.py::test_a_retried_generator_function_is_still_one",
        "unit/testing/test_switches_shared.py::test_a_decorated_function_keeps_its_name_and_its_parameters",
        "unit/guards/test_throttle_gate.py::test_a_decorated_function_keeps_its_name_and_its_flavour",
    ],
    _DOCSTRING,
)

_DEVELOPMENT = {
    "stress/test_soak.py": "what is measured there is memory, of which development mode takes more"
}

_NEWER = {
    "stress/test_soak.py::test_a_call_in_backoff_takes_no_more_than_a_task_and_its_frames": "the limit is that of 3.11 to 3.13",
}

_REFERENCES = "objects die when the collector finds them, not with their last reference"
_PYPY = {
    "stress/test_memory.py": "there is no tracemalloc",
    "stress/test_memory_of_calls.py": _REFERENCES,
    "behaviour/test_blocks.py::test_a_wait_beyond_what_the_platform_can_sleep_is_cut_down_to_it": "the platform can sleep for longer",
    "unit/test_backoff.py::test_without_a_cap_a_delay_saturates_at_the_longest_wait_there_is": "the platform can sleep for longer",
    "unit/guards/test_breaker.py::test_a_block_of_a_policy_that_is_left_early_frees_the_slot_of_its_probe": _REFERENCES,
    "unit/classify/test_verdict.py::test_a_thousand_verdicts_leave_nothing_to_the_garbage_collector": _REFERENCES,
    "behaviour/test_tracebacks.py::test_nothing_of_a_call_outlives_it_where_a_callback_has_failed": _REFERENCES,
    "behaviour/test_guards.py::test_a_block_that_is_left_early_gives_back_what_it_holds": _REFERENCES,
    "behaviour/test_generators_begun.py::test_a_sync_generator_left_early_is_closed_at_once": _REFERENCES,
    "behaviour/test_tracebacks.py::test_an_exception_whose_attributes_raise_may_come_again_and_again": "PyPy itself asks an error for its traceback",
    "unit/classify/test_retry_after.py::test_a_header_of_64_kib_costs_less_than_a_millisecond": "the time is that of code that is not yet compiled",
    "unit/policy/test_replace_and_pickle.py::test_a_policy_is_the_same_after_pickling[0-nothing]": "PyPy cannot read a float that it wrote by protocol 0",
    "unit/hedging/test_left_behind.py::test_what_a_late_loser_held_dies_by_reference_count_when_it_ends": _REFERENCES,
    "unit/hedging/test_trio.py::test_on_trio_arguments_and_exceptions_die_by_reference_count": _REFERENCES,
    "unit/hedging/test_left_behind.py::test_a_hedged_function_works_in_atexit_and_while_modules_are_torn_down": _REFERENCES,
    "unit/guards/test_registry.py::test_no_two_guards_of_a_key_are_in_use_at_once": "a thread may be overtaken between getting a guard and using it, which is frequent here",
    "stress/test_bulkhead_interrupts.py::test_a_task_that_is_interrupted_at_any_point_keeps_no_slot": "a profiler sees other points of asyncio",
    "stress/test_budget_threads.py::test_threads_that_die_in_the_middle_leave_a_ratio_in_order": "a thread cannot be ended from outside",
}

_THREADS = "there are no threads"
_WEBASSEMBLY = {
    "unit/dead_letters/test_leases.py::test_a_lease_is_renewed_while_the_handler_runs": _THREADS,
    "unit/dead_letters/test_leases.py::test_a_renewal_that_fails_is_reported_and_tried_again": _THREADS,
    "unit/guards/test_registry.py::test_a_guard_is_asked_whether_it_is_at_rest_without_a_lock": _THREADS,
}

_FREE_THREADED = {
    "unit/hedging/test_left_behind.py::test_a_hedged_function_works_in_atexit_and_while_modules_are_torn_down": "modules are torn down before what the program has left",
}

_GEVENT = {
    "unit/engine/test_decorate.py::test_no_sync_wait_in_a_running_loop_means_no_warning": "threads are greenlets of one thread, in which a loop runs",
}

LEFT_OUT: dict[str, dict[str, str]] = {
    "plain": {},
    "O": {},
    "OO": _WITHOUT_DOCSTRINGS,
    "development": _DEVELOPMENT,
    "newer": _NEWER,
    "gevent": _GEVENT,
    "uvloop": {
        "project/test_network_guard.py::test_an_event_loop_is_bound_by_it_too": "uvloop looks up names by itself"
    },
    "free-threaded": _FREE_THREADED,
    "pypy": _PYPY,
    "webassembly": _WEBASSEMBLY,
}
