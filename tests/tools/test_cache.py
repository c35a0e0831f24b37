"""`spillgrad cache`: what it says, fills and removes."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import spillgrad as sg
from spillgrad_kernels.jit import cache
from spillgrad_tools.cache import OPERATIONS
from spillgrad_tools.cli import main


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # the other place, where someone's kernels may be
    return tmp_path


def test_info_is_the_default_and_names_the_directory_and_the_limits(
    empty_cache: Path, capsys: pytest.CaptureFixture[str]
):
    cache.write("a", bytes(2000))
    assert main(["cache"]) == 0
    printed = capsys.readouterr().out
    assert cache.version() in printed.replace("\n", "").replace(" ", "")
    for words in ("kernels of this version", "1 (2 KiB)", "other versions", "0 (0 B)", "256 MiB, unused for 30 days"):
        assert words in printed
    assert main(["cache", "info"]) == 0
    assert capsys.readouterr().out == printed


def test_clear_removes_everything_and_says_how_much(empty_cache: Path, capsys: pytest.CaptureFixture[str]):
    cache.write("a", bytes(2032))
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == "removed 2 KiB\n"
    assert cache.info().files == 0


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_warm_runs_is_differentiable(name: str):
    x, y = (sg.rand(2, 8, requires_grad=True) for _ in range(2))
    result = OPERATIONS[name](x, y)
    assert result.shape in {(2, 8), (2, 2), (2,), (8,), (), (3, 8)}
    result.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == (2, 8)


@pytest.mark.exhaustive
@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled")
def test_after_warm_a_training_run_compiles_nothing(tmp_path: Path):
    (tmp_path / "text.txt").write_text("It was the best of times, it was the worst of times. " * 400)
    train = ["train", "--data", "text.txt", "--steps", "1", "--batch", "2", "--out", "out"]
    program = (
        "import sys; from spillgrad_tools.cli import main; main(sys.argv[1:]);"
        "from spillgrad_kernels.jit.compile import counts; print('compiled', counts.compiled)"
    )
    # The cache of the tests' user: what is there already need not be compiled again.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def run(*arguments: str) -> str:
        command = [sys.executable, "-c", program, *arguments]
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True).stdout

    assert "kernels compiled" in run("cache", "warm")
    assert run(*train).endswith("compiled 0\n")
