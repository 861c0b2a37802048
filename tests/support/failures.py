"""Failures for tests of classify: errors with any attributes, and stand-ins for classes of client libraries.

No library is needed for a stand-in: classes are looked up by ``__module__`` and ``__qualname__``, which anyone
may set.
"""

from email.message import Message
from types import SimpleNamespace as Thing

from redouble.classify import verdict

NO, YES, SAFE = (False, False), (True, False), (True, True)
HINT = {"Retry-After": "5"}


class Failure(Exception):
    """An error of an unknown library, with the attributes that it is given."""

    def __init__(self, *args, **attributes):
        super().__init__(*args)
        self.__dict__.update(attributes)


def answered(status, headers=None, **attributes):
    """Return an error with a response."""
    return Failure(response=Thing(status_code=status, headers=headers or {}), **attributes)


def brief(failure):
    """Return whether a failure is retryable, whether it is unprocessed, and its cause."""
    found = verdict(failure)
    return found.retryable, found.unprocessed, found.cause


def safety(failure):
    """Return whether a failure is retryable, and whether a call that is not idempotent may be repeated."""
    found = verdict(failure)
    return found.retryable, found.retryable and found.unprocessed


def caused(error, cause):
    """Return the error, as raised from a cause."""
    error.__cause__ = cause
    return error


def hidden(error, context):
    """Return the error, as raised with ``from None`` in the handling of a context."""
    error.__context__, error.__suppress_context__ = context, True
    return error


def stand_in(name, *bases, **attributes):
    """Return a class that calls itself ``package.module.Qualname``, or ``package:Nested.Name``."""
    module, _, qualname = name.rpartition(":") if ":" in name else name.rpartition(".")
    body = {"__module__": module, "__qualname__": qualname, **attributes}
    return type(qualname.rpartition(".")[2], bases or (Exception,), body)


def failure(name, *args, bases=(), **attributes):
    """Return an error of a class that calls itself ``name``."""
    error = stand_in(name, *bases)(*args)
    error.__dict__.update(attributes)
    return error


def headers_message():
    """Return headers as the standard library keeps them."""
    message = Message()
    message["Retry-After"] = "5"
    return message


def sent(method, **headers):
    """Return a request."""
    return Thing(method=method, headers={name.replace("_", "-"): value for name, value in headers.items()})


def boto(code, http_status=400, **headers):
    """Return an answer of AWS, as botocore does."""
    metadata = {"HTTPStatusCode": http_status, "HTTPHeaders": headers}
    return {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": metadata}
