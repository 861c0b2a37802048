"""Calls inside of calls."""

from __future__ import annotations

import pytest

STOPPED = 'already retried by fetch (4 attempts); say nested="independent" to retry it here as well'


def down(*args):
    raise ConnectionResetError("down")


def fetching(flavour, policy, **fields):
    """Return a function that is retried under the name ``fetch`` and always fails, and its script."""
    bottom = flavour.scripted(*[ConnectionResetError("down")] * 99)
    return policy.replace(name="fetch", **fields)(bottom), bottom


def inside(flavour, inner, outside=None):
    """Return a function that calls another one; ``outside`` is raised from its error."""
    if flavour.is_async:

        async def load():
            try:
                return await inner()
            except ConnectionResetError as error:
                if outside is None:
                    raise
                raise outside from error

    else:

        def load():
            try:
                return inner()
            except ConnectionResetError as error:
                if outside is None:
                    raise
                raise outside from error

    return load


def failed(flavour, policy, function, kind=ConnectionResetError):
    with pytest.raises(kind) as caught:
        flavour.call(policy.replace(name="load"), function)
    return caught.value
