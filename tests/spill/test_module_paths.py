"""Paths of modules."""

import pytest

from spillgrad.spill.module_paths import pattern


@pytest.mark.parametrize(
    ("path", "wanted"),
    [("h.12.mlp.3", "h.*.mlp.*"), ("layer2.1x.0", "layer2.1x.*"), ("0", "*"), ("", "")],
)
def test_the_pattern_of_a_path_has_a_star_for_each_number(path, wanted):
    assert pattern(path) == wanted
