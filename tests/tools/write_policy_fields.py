"""Writes the fields of a policy where editors and type checkers read them: ``python tests/tools/write_policy_fields.py``.

The table in ``redouble/policy.py`` declares them. From it this makes ``redouble/_policy/typed.py`` and the list of
fields in the docstring of `Policy`, which have to be there as text.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from redouble import policy

MODULE = Path(policy.__file__)
TYPED = MODULE.parent / "_policy" / "typed.py"
BEGIN, END = f"    {next(iter(policy._GROUPS))}:\n", "    >>> policy = Policy("

HEAD = '''\
"""The fields of a policy, for type checkers and editors; not imported at run time.

Written by ``python tests/tools/write_policy_fields.py`` from the table in `redouble.policy`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from .._base.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from logging import Logger, LoggerAdapter
    from random import Random
    from typing import Any, Literal

    from ..backoff import Backoff
    from ..breaker import Breaker
    from ..budget import Budget
    from ..bulkhead import Bulkhead
    from ..classify import Cause, Classifier
    from ..dead_letters import DeadLetters
    from ..events import Event
    from ..policy import Recover, Retryable, Rule, Seconds
    from ..throttle import AdaptiveThrottle
'''


def docstring() -> str:
    """The fields with a sentence each, by groups, as they stand in the docstring of `Policy`."""
    lines = []
    for title, group in policy._GROUPS.items():
        lines += [f"    {title}:", ""]
        for name, field in group.items():
            text = f"- ``{name}={shown(field.default)}``: {field.text}"
            lines += textwrap.wrap(
                text, 105, initial_indent="    ", subsequent_indent="      ", break_long_words=False
            )
        lines.append("")
    return "\n".join([*lines, ""])


def shown(default: object) -> str:
    return "{}" if default == {} else getattr(default, "__name__", None) or repr(default)


def typed() -> str:
    """The module for type checkers."""
    accepted = {name: field.type for name, field in policy._FIELDS.items()}
    stored = {name: field.stored or field.type for name, field in policy._FIELDS.items()}
    return "\n".join(
        [
            HEAD,
            "",
            "class PolicyFields(TypedDict, total=False):",
            '    """Keywords of `Policy`, `retry` and `retrying`, with the types that they accept."""',
            "",
            *declared(accepted, with_text=True),
            "",
            "",
            "class StoredFields(Record):",
            '    """Attributes of a `Policy`, with the types that they have."""',
            "",
            "    __slots__ = ()",
            *declared(stored, with_text=False),
            "",
        ]
    )


def declared(types: dict[str, str], *, with_text: bool) -> list[str]:
    lines = []
    for name, annotation in types.items():
        lines.append(f"    {name}: {annotation.replace(chr(39), chr(34))}")
        if with_text:
            text = textwrap.wrap(policy._FIELDS[name].text, 98, break_long_words=False)
            closing = '"""' if len(text) == 1 else '\n    """'
            lines.append('    """' + "\n    ".join(text) + closing)
    return lines


def module() -> str:
    """The text of ``redouble/policy.py`` with the list of fields as it should be."""
    source = MODULE.read_text("utf-8")
    start, end = source.index(BEGIN), source.index(END)
    return source[:start] + docstring() + source[end:]


if __name__ == "__main__":
    sys.stdout.write(f"writing {TYPED} and the docstring in {MODULE}\n")
    TYPED.write_text(typed(), "utf-8")
    MODULE.write_text(module(), "utf-8")
