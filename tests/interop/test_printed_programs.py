"""What README.md and the pages of docs/ show of other frameworks runs as printed."""

import pytest

from tests.docs.printed import blocks, run_program

PROGRAMS = [program for program in blocks("python") if program.frameworks]
# They warn when they are imported.
WARN = {"paddle", "transformers", "lightning"}


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_a_program_runs_as_printed(program, tmp_path):
    for package in program.frameworks:
        pytest.importorskip(package, reason="`make test-peers` installs it")
    run_program(program, tmp_path, "default" if program.frameworks & WARN else "error")
    assert not (tmp_path / "spill").exists() or list((tmp_path / "spill").iterdir()) == []
