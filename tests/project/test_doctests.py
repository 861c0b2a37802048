"""Run every example in a docstring."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import redouble

MODULES = ["redouble", *(module.name for module in pkgutil.walk_packages(redouble.__path__, "redouble."))]


@pytest.mark.parametrize("name", [name for name in MODULES if not name.endswith("__main__")])
def test_every_example_in_a_docstring_is_true(name: str) -> None:
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert failed == 0
