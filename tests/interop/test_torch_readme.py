"""What the README shows of PyTorch runs as printed."""

import pytest

pytest.importorskip("torch", reason="`make test-peers` installs PyTorch")

from tests.test_readme import PYTORCH_PROGRAMS, run_as_printed


@pytest.mark.parametrize("program", PYTORCH_PROGRAMS, ids=range(len(PYTORCH_PROGRAMS)))
def test_a_program_runs_as_printed(program, tmp_path):
    run_as_printed(program, tmp_path)
    assert list((tmp_path / "spill").iterdir()) == []
