"""Another policy for the requests of a block, in all clients."""

from __future__ import annotations

from contextvars import ContextVar

from .._engine.decorate import chosen
from ..context import leave
from ..policy import Policy, show_fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextvars import Token
    from typing import Any, Literal

    from typing_extensions import Unpack

    from .._policy.typed import PolicyFields

# What `override` has set here: a policy, or False for no retries.
overriding: ContextVar[Policy | Literal[False] | None] = ContextVar("redouble override", default=None)


@show_fields
class override:  # noqa: N801 - used like a function
    """Send the requests of a block under another policy; ``override(False)`` sends each of them once.

    It applies to all clients of `redouble.clients`, in this thread or task and in tasks that are started in
    the block. Fields that are given beside a policy, or alone, change that policy or the default one.

    >>> with override(attempts=2):
    ...     pass
    """

    def __init__(
        self, policy: Policy | Literal[False] | None = None, /, **fields: Unpack[PolicyFields]
    ) -> None:
        given: Any = policy
        if policy is False:
            if fields:
                raise TypeError(f"override(False) switches retries off, and takes no {', '.join(fields)}")
            self._policy: Policy | Literal[False] = False
        elif given is None or isinstance(given, Policy):
            self._policy = chosen(given, fields, "override")
        else:
            raise TypeError(f"override() takes a Policy, False or fields, got {given!r}")
        self._tokens: list[Token[Any]] = []

    def __enter__(self) -> None:
        self._tokens.append(overriding.set(self._policy))

    def __exit__(self, *error: object) -> None:
        leave(self._tokens.pop())
