"""The part that clients of remote procedures share: a failure is an exception, a success is a message."""

from __future__ import annotations

from ._http import HttpClient

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..policy import Policy


class RpcClient(HttpClient):
    """Procedures of one client library. The argument of a call has ``service`` and ``name``."""

    def accepting(self, policy: Policy) -> Any:
        """Return the ``until`` of the policy: there is no status to judge."""
        return policy.until

    def name_of(self, *args: Any) -> str:
        return f"{args[0].service} {args[0].name}"

    def method_of(self, *args: Any) -> str:
        return str(args[0].name)

    def host_of(self, *args: Any) -> str | None:
        """Return the service, by which a `Registry` has its guards."""
        return str(args[0].service)

    def reason(self, result: Any) -> str:
        return "the response was rejected by until"

    def discard(self, result: Any, left: float | None) -> None:
        """Do nothing: a message holds no connection."""
