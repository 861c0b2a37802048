"""Retries for every call of a client of boto3 or botocore.

>>> import botocore.session
>>> client = botocore.session.get_session().create_client("s3", region_name="eu-central-1")
>>> client = retry_client(client, attempts=6, deadline=20.0)
"""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import uuid

from botocore.client import BaseClient
from botocore.exceptions import BotoCoreError

from .. import errors
from ..classify import may_repeat_aws
from ._http import NO_REWIND, position_of
from ._override import override
from ._rpc import RpcClient

__all__ = ["override", "retry_client"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, TypeVar

    from typing_extensions import Unpack

    from .._policy.typed import PolicyFields
    from ..policy import Policy

    C = TypeVar("C")


class DeadlineExceeded(errors.DeadlineExceeded, BotoCoreError):  # noqa: N818 - says what happened
    """`redouble.DeadlineExceeded` that callers of botocore catch as ``BotoCoreError``."""


class ResultRejected(errors.ResultRejected, BotoCoreError):  # noqa: N818 - as above
    """`redouble.ResultRejected` that callers of botocore catch as ``BotoCoreError``."""


class CircuitOpen(errors.CircuitOpen, BotoCoreError):  # noqa: N818 - as above
    """`redouble.CircuitOpen` that callers of botocore catch as ``BotoCoreError``."""


class BulkheadFull(errors.BulkheadFull, BotoCoreError):  # noqa: N818 - as above
    """`redouble.BulkheadFull` that callers of botocore catch as ``BotoCoreError``."""


class _Operation:
    """One call of a client: its service, the name of the operation, and the parameters."""

    def __init__(self, model: Any, given: Mapping[str, Any]) -> None:
        self.service: str = model.service_model.service_name
        self.name: str = model.name
        # A token that botocore fills in would be another one in each attempt.
        tokens = {name: str(uuid.uuid4()) for name in model.idempotent_members}
        self.params: dict[str, Any] = {**tokens, **given}
        self.may_repeat: bool = bool(tokens) or may_repeat_aws(model, given)
        # Where files begin that are sent.
        self.files: dict[str, Any] = {
            name: position_of(value) for name, value in given.items() if hasattr(value, "read")
        }

    def __repr__(self) -> str:
        return f"<{self.service} {self.name}>"


class _Botocore(RpcClient):
    """Operations of a client of botocore."""

    library = "botocore"
    remedy = "idempotent=True"
    joined = (DeadlineExceeded, ResultRejected, CircuitOpen, BulkheadFull)

    def bare(self, *args: Any, **kwargs: Any) -> Any:
        """Call the operation with a copy of its parameters, which botocore changes."""
        return self.inner(args[0].name, _copied(args[0].params))

    def may_repeat(self, *args: Any) -> bool:
        """Return whether the operation reads, is idempotent by its method, or is sent with a token."""
        return bool(args[0].may_repeat)

    def unrepeatable(self, *args: Any) -> str:
        """Return why the operation cannot be called again: one of its files cannot be rewound."""
        return NO_REWIND if None in args[0].files.values() else ""

    def rewind(self, *args: Any) -> None:
        """Set all files among the parameters back to where they were."""
        for name, position in args[0].files.items():
            args[0].params[name].seek(position)


def retry_client(client: C, policy: Policy | None = None, /, **fields: Unpack[PolicyFields]) -> C:
    """Retry every call of a client of boto3 or botocore, and switch its own retries off. Return the client.

    Takes a `Policy`, or its fields as keywords. Paginators, waiters, transfers and resources that use the
    client are retried, too. Operations that act are repeated after failures without effect, and otherwise if
    they are sent with an idempotency token or the policy says ``idempotent=True``. A `Registry` as a guard
    has one guard for each service. Call it again to set another policy; `override` sets another one for a
    block.

    >>> import botocore.session
    >>> sqs = botocore.session.get_session().create_client("sqs", region_name="eu-central-1")
    >>> retry_client(sqs, attempts=6) is sqs
    True
    """
    made: Any = client
    if not isinstance(client, BaseClient):
        raise TypeError(f"retry_client() takes a client of boto3 or botocore, got {made!r}")
    # None, unless somebody has set the method of this client.
    own: Any = vars(client).get("_make_api_call")
    bare: Any = getattr(own, "redouble_bare", own)
    kind: Any = type(client)
    service = made.meta.service_model

    def send(operation_name: str, api_params: dict[str, Any]) -> Any:
        if bare is not None:
            return bare(operation_name, api_params)
        return kind._make_api_call(client, operation_name, api_params)  # looked up here: tests replace it

    under = _Botocore("retry_client", policy, fields, send)

    def make_api_call(operation_name: str, api_params: dict[str, Any]) -> Any:
        return under.run(None, _Operation(service.operation_model(operation_name), api_params))

    event = service.service_id.hyphenize()
    made.meta.events.unregister(f"needs-retry.{event}", unique_id=f"retry-config-{event}")
    retried: Any = make_api_call
    retried.redouble_bare = bare
    made._make_api_call = retried
    return client


def _copied(value: Any) -> Any:
    """Copy dicts and lists: botocore changes parameters in place, such as encoding a key."""
    if type(value) is dict:
        return {name: _copied(each) for name, each in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if type(value) is list:
        return [_copied(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
    return value
