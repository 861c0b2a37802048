"""Exceptions for tests: of an HTTP client, and with hostile special methods."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class HTTPError(Exception):
    """An exception with a `response`, as HTTP clients raise. With `method`, the response has a `request`, too."""

    def __init__(self, status: int, headers: dict[str, str] | None = None, method: str | None = None) -> None:
        super().__init__(f"status {status}")
        request = None if method is None else SimpleNamespace(method=method, headers={})
        self.response = SimpleNamespace(status_code=status, headers=headers or {}, request=request)


class Unavailable(Exception):
    """An exception with the attribute ``status_code = 503``, as some HTTP clients raise."""

    status_code = 503


class Nasty(TimeoutError):
    """A transient error that cannot be printed, compared, hashed or tested for truth: each of these raises."""

    def _refuse(self, *_: object) -> Any:
        raise RuntimeError("leave me alone")

    __bool__ = __len__ = __eq__ = __hash__ = __str__ = __repr__ = _refuse
