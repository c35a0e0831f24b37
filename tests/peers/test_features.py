"""The table of features names tests that exist, and the README leads to it."""

import ast
import re

import pytest

from tests.peers import peer

TABLE = peer.ROOT / "spillgrad/autograd/FEATURES.md"
ROWS = [line for line in TABLE.read_text().splitlines() if line.startswith("| ") and not line.startswith("| feature")]


@pytest.mark.parametrize("row", ROWS)
def test_every_row_names_tests_that_exist(row):
    feature, pytorch, paddle, ours = row.strip("| ").split(" | ")
    assert feature and pytorch and paddle
    named = re.findall(r"`(\S+\.py)::(\*|\w+)`", ours)
    assert named and len(named) == ours.count("::")
    for file, name in named:
        tree = ast.parse((peer.ROOT / "tests" / file).read_text())
        tests = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert any(test.startswith("test_") for test in tests) if name == "*" else name in tests


def test_the_readme_links_the_table():
    assert TABLE.relative_to(peer.ROOT).as_posix() in (peer.ROOT / "README.md").read_text()
