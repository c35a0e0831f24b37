"""What `sg.storage` offers: every name is there, those that come late too, and a type checker knows them."""

import ast
import re
import typing
from pathlib import Path

import pytest

import spillgrad as sg
from spillgrad import storage


def names_for_type_checkers() -> dict[str, str]:
    """Return what the package imports for type checkers alone, and the module each comes from."""
    tree = ast.parse(Path(storage.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    found = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in found for alias in node.names}


@pytest.mark.parametrize("name", storage.__all__)
def test_a_public_name_is_there(name: str):
    assert getattr(storage, name) is not None
    assert name in dir(storage)


def test_names_that_come_late_are_public_and_known_to_type_checkers():
    late = names_for_type_checkers()
    assert {"Run", "Sample", "Step", "StoredArray", "ArrayContents", "Verification", "advise"} <= late.keys()
    assert late.keys() == storage._MODULE_OF.keys() <= set(storage.__all__)
    assert {name for name, module in late.items() if getattr(storage, name).__module__ != module} == set()


def test_the_docstring_is_an_index_of_them():
    named = set(re.findall(r"[A-Za-z_]\w+", str(storage.__doc__)))
    assert set(storage.__all__) - named == set()


def test_functions_of_users_are_annotated_with_records():
    def longest(run: sg.storage.Run) -> sg.storage.Step:
        return max(run.steps, key=lambda step: step.took_s)

    assert typing.get_type_hints(longest) == {"run": storage.Run, "return": storage.Step}


def test_a_name_that_is_not_there_raises_as_any_modules_does():
    with pytest.raises(AttributeError, match=r"module 'spillgrad\.storage' has no attribute 'Rnu'"):
        storage.Rnu  # noqa: B018
