"""Every field of a policy is declared once: signatures, type checkers and docstrings show that table."""

from __future__ import annotations

import inspect
import pickle
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest
import write_policy_fields

import redouble
from redouble import Policy, policy, retry, retrying
from redouble._policy import typed

FIELDS = policy._FIELDS
FIRST = {Policy: [], retry: ["policy"], retrying: ["policy"]}


def test_the_fields_for_type_checkers_are_those_of_the_table():
    written = Path(typed.__file__).read_text("utf-8")
    assert written == write_policy_fields.typed(), "run python tests/tools/write_policy_fields.py"
    assert [*typed.PolicyFields.__annotations__] == [*typed.StoredFields.__annotations__] == [*FIELDS]


def test_the_docstring_lists_the_fields_of_the_table():
    written = Path(policy.__file__).read_text("utf-8")
    assert written == write_policy_fields.module(), "run python tests/tools/write_policy_fields.py"


def test_there_are_four_groups_and_each_field_is_in_one_of_them():
    names = [name for group in policy._GROUPS.values() for name in group]
    assert len(policy._GROUPS) == 4
    assert len(names) == len(set(names)) == len(FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_is_documented_by_one_short_text(name):
    text = FIELDS[name].text
    assert text[0].isupper() or text.startswith("``")
    assert text.endswith(".")
    assert len(text) < 160


@pytest.mark.parametrize("name", FIELDS)
def test_a_default_passes_the_check_of_its_field(name):
    field = FIELDS[name]
    assert field.check(name, field.default) == field.default


@pytest.mark.parametrize("target", FIRST, ids=lambda target: target.__name__)
def test_a_signature_shows_every_field_with_its_default(target):
    parameters = inspect.signature(target).parameters
    assert [*parameters] == [*FIRST[target], *FIELDS]
    for name, field in FIELDS.items():
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].default is field.default
        assert parameters[name].annotation == field.type
    for name in FIRST[target]:
        assert parameters[name].kind is inspect.Parameter.POSITIONAL_ONLY
        assert parameters[name].default is None


def test_a_signature_is_used_as_any_other():
    signature = inspect.signature(retry)
    assert isinstance(signature, inspect.Signature)
    assert signature.bind(Policy(), attempts=3).arguments["attempts"] == 3
    with pytest.raises(TypeError):
        signature.bind(atempts=3)
    assert str(signature).startswith("(policy=None, /, *, attempts: 'float | None' = 4, ")
    assert [*signature.replace(parameters=[]).parameters] == []


@pytest.mark.parametrize("target", FIRST, ids=lambda target: target.__name__)
def test_help_shows_every_field(target):
    shown = pydoc.plain(pydoc.render_doc(target))
    for name in FIELDS:
        assert f"{name}: " in shown


@pytest.mark.parametrize("name", FIELDS)
def test_help_says_what_each_field_means(name):
    shown = " ".join(inspect.getdoc(Policy).split())
    assert f"- ``{name}=" in shown
    assert " ".join(FIELDS[name].text.split()) in shown


def test_a_subclass_shows_the_same_signature():
    class Mine(Policy):
        pass

    assert [*inspect.signature(Mine).parameters] == [*FIELDS]
    assert not hasattr(Mine(), "__dict__")


def test_slots_are_the_fields_and_what_is_computed_from_them():
    computed = ["_in_context", "_guarded", "_keyed", "_falls_back", "_recover_takes_call"]
    computed += ["_successes", "_variant", "_simple"]
    assert [*Policy.__slots__] == [*Policy._fields] == [*FIELDS, *computed]


def test_lint_warnings_are_found_where_users_import_them_from():
    assert policy.LintWarning is type(Policy(attempts=99).lint()[0])
    assert pickle.loads(pickle.dumps(policy.LintWarning)) is policy.LintWarning
    with pytest.raises(AttributeError, match="no attribute 'Objection'"):
        policy.Objection  # noqa: B018


LAZY = ("config", "describe", "lint", "typed")


@pytest.mark.slow
def test_importing_and_using_a_policy_loads_nothing_that_is_needed_rarely():
    code = f"""
import sys
import redouble
from redouble import presets
redouble.Policy(attempts=99, on=Exception, timeout=1.0).replace(attempts=3).call(int, "3")
print([name for name in {LAZY} if f"redouble._policy.{{name}}" in sys.modules])
print("inspect" in sys.modules)
"""
    root = str(Path(redouble.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split("\n")[:2] == ["[]", "False"]
