"""langchain-core: tenacity's blocks, sync and async, in a method of a model whose fields hold the settings."""

from __future__ import annotations

from ports.edits import Edit, Port, Words

RETRY = "langchain_core/runnables/retry.py"
HOME = "RunnableRetry"

PORT = Port(
    name="langchain_core",
    version="1.7.0",
    sha256="c34e53358b103cd73f43c63f5f46f9b5c6c3467efdffcdf134892b89020494e4",
    edits=(
        Edit(
            RETRY,
            "from collections.abc import Callable",
            """
            import math
            from collections.abc import Callable
            from functools import partial
            """,
        ),
        Edit(
            RETRY,
            "from tenacity import",
            """
            from redouble import retrying
            from redouble.backoff import additive_jitter, fixed
            """,
        ),
        Edit(RETRY, "def _kwargs_retrying(", inside=HOME),
        Edit(
            RETRY,
            "def _sync_retrying(",
            inside=HOME,
            new='''
            def _retrying(self) -> Any:
                """Waits as documented for `exponential_jitter_params`."""
                params = self.exponential_jitter_params or {}
                backoff = partial(
                    additive_jitter, factor=params.get("exp_base", 2), spread=params.get("jitter", 1)
                )
                return retrying(
                    on=self.retry_exception_types or Exception,
                    attempts=self.max_attempt_number or math.inf,
                    backoff=backoff if self.wait_exponential_jitter else fixed,
                    base=params.get("initial", 1) if self.wait_exponential_jitter else 0,
                    cap=params.get("max", math.inf),
                    idempotent=True,
                )
            ''',
        ),
        Edit(RETRY, "def _async_retrying(", inside=HOME),
        Words(RETRY, r"self\._a?sync_retrying\((reraise=True)?\)", "self._retrying()", times=4),
        Words(RETRY, r"attempt = retry_state\.attempt_number", "attempt = retry_state.number", times=1),
        Edit(RETRY, "if attempt.retry_state.outcome", inside=f"{HOME}._invoke"),
        Edit(RETRY, "if attempt.retry_state.outcome", inside=f"{HOME}._ainvoke"),
        Edit(RETRY, "if (\n", inside=f"{HOME}._batch"),
        Edit(RETRY, "if (\n", inside=f"{HOME}._abatch"),
        Words(RETRY, r"attempt\.retry_state", "attempt", times=4),
        Words(RETRY, r"retry_state: RetryCallState", "retry_state: Any", times=2),
        Words(RETRY, r"except RetryError as e:", "except Exception as e:", times=2),
        Edit(
            RETRY,
            "if result is not_set",
            inside=HOME,
            times=2,
            new="""
            if not attempt.is_last:
                raise
            if result is not_set:
                result = cast("list[Output]", [e] * len(inputs))
            """,
        ),
    ),
    tests=("tests/unit_tests/runnables/test_runnable.py",),
)
