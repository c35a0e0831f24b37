"""The table of features names tests and programs that exist, and the site leads to it."""

import ast
import re

import pytest

from tests.peers import peer, record

TABLE = peer.ROOT / "docs/coming_from/features.md"
ROWS = [line for line in TABLE.read_text().splitlines() if line.startswith("| ") and not line.startswith("| feature")]
PROGRAMS = {*record.programs("torch"), *record.programs("paddle")}


def exists(name: str) -> bool:
    """Return whether there is a test "directory/file.py::test_name", or a program "file.name"."""
    file, separator, test = name.partition("::")
    if not separator:
        return name in PROGRAMS
    tree = ast.parse((peer.ROOT / "tests" / file).read_text())
    return any(isinstance(node, ast.FunctionDef) and node.name == test for node in ast.walk(tree))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split(" | ")[0].strip("| "))
def test_every_row_names_tests_that_exist(row):
    feature, pytorch, paddle, ours = row.strip("| ").split(" | ")
    assert feature and pytorch and paddle
    named = ours.split(", ")
    assert all(re.fullmatch(r"`(\S+\.py::test_\w+|\w+\.\w+)`", name) for name in named)
    assert [name for name in named if not exists(name.strip("`"))] == []


@pytest.mark.parametrize("name", ["autograd/core/test_saved.py::test_that_is_gone", "hooks.that_are_gone"])
def test_a_name_that_does_not_exist_is_found(name):
    assert not exists(name)


def test_no_feature_is_named_twice():
    features = [row.split(" | ")[0] for row in ROWS]
    assert len(set(features)) == len(features)


def test_the_site_links_the_table():
    assert f"]({TABLE.name})" in (TABLE.parent / "index.md").read_text()
