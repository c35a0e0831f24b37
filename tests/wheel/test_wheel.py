"""The wheel works where nothing but it was installed: `make wheel` builds it, and runs these tests."""

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.docs.printed import ROOT, blocks

DIST = ROOT / "dist"
# What pages show beside the library itself.
EXTRAS, BESIDE = "report,text,gguf", ("einops>=0.8",)
PROGRAMS = [program for program in blocks("python") if not program.frameworks]
COMMANDS = [block for block in blocks("sh") if re.search("^spillgrad ", block.text, re.M)]


@pytest.fixture(scope="session")
def wheel() -> Path:
    (built,) = DIST.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def binaries(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a fresh environment's programs, into which the wheel was installed."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    pip = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--prefer-binary"]
    subprocess.run([*pip, f"{wheel}[{EXTRAS}]", *BESIDE], check=True)
    return folder / "bin"


def run(command: list[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, without the paths of the checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=folder, env={**environment, "NO_COLOR": "1"}, capture_output=True, text=True)


def test_it_is_installed_and_not_the_checkout(binaries, tmp_path):
    done = run([binaries / "python", "-c", "import spillgrad; print(spillgrad.__file__)"], tmp_path)
    assert str(binaries.parent) in done.stdout


def test_it_trains(binaries, tmp_path):
    done = run([binaries / "spillgrad", "train", "--steps", "2", "--out", "run"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run/model.safetensors").exists() or list((tmp_path / "run").rglob("*.safetensors"))


@pytest.mark.parametrize("block", COMMANDS, ids=str)
def test_commands_of_the_pages_run(binaries, tmp_path, block):
    for arguments in re.findall("^spillgrad (.*)$", block.text, re.M):
        done = run([binaries / "spillgrad", *arguments.split()], tmp_path)
        assert done.returncode == 0, f"spillgrad {arguments}\n{done.stderr}"


def test_python_m_spillgrad_is_the_command(binaries, tmp_path):
    by_module = run([binaries / "python", "-m", "spillgrad", "--help"], tmp_path)
    assert by_module.returncode == 0, by_module.stderr
    assert by_module.stdout == run([binaries / "spillgrad", "--help"], tmp_path).stdout


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_a_program_of_the_pages_runs(binaries, tmp_path, program):
    done = run([binaries / "python", "-W", "error", "-c", program.text], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_source_distribution_builds_the_same_wheel(wheel, tmp_path):
    (source,) = DIST.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        # Python 3.11.3 and older have no filters.
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (tree,) = tmp_path.iterdir()
    subprocess.run([sys.executable, "-m", "hatchling", "build", "--target", "wheel"], cwd=tree, check=True)
    (built,) = (tree / "dist").glob("*.whl")
    assert contents(built) == contents(wheel)


def contents(wheel: Path) -> dict[str, bytes]:
    """Return the files of a wheel, without the list of their checksums."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}
