"""What the README shows of other frameworks runs as printed."""

import re

import pytest

from tests.test_readme import FRAMEWORK_PROGRAMS, run_as_printed

# They warn when they are imported.
WARN = ("paddle", "transformers", "lightning")


@pytest.mark.parametrize("program", FRAMEWORK_PROGRAMS, ids=range(len(FRAMEWORK_PROGRAMS)))
def test_a_program_runs_as_printed(program, tmp_path):
    packages = set(re.findall(r"^(?:import|from) (torch|paddle|transformers|lightning)\b", program, re.M))
    for package in packages:
        pytest.importorskip(package, reason="`make test-peers` installs it")
    run_as_printed(program, tmp_path, "default" if packages & {*WARN} else "error")
    assert list((tmp_path / "spill").iterdir()) == []
