"""Run every example in a docstring."""

from __future__ import annotations

import doctest
import importlib

import pytest

from support.package_source import all_modules, is_importable

MODULES = [name for name in all_modules() if is_importable(name) and not name.endswith("__main__")]


@pytest.mark.parametrize("name", MODULES)
def test_every_example_in_a_docstring_is_true(name: str) -> None:
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert failed == 0
