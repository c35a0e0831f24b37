"""The wheel holds exactly the three packages, and runs away from the checkout."""

import ast
import email
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from spillgrad.release import __version__
from spillgrad_tools.bench.harness import PIP_NAMES

REPOSITORY = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
PACKAGES = {
    "spillgrad": REPOSITORY / "spillgrad",
    "spillgrad_kernels": REPOSITORY / "kernels/spillgrad_kernels",
    "spillgrad_tools": REPOSITORY / "tools/spillgrad_tools",
}
# Imported for the optional extras, such as `cuda`, `torch` and `report`.
OPTIONAL = {
    "cryptography", "tokenizers", "torch", "paddle", "transformers", "lightning", "cuda", "plotly", "jinja2", "einops",
    "gguf", "opt_einsum", "pyarrow", "tensorboardX",
}  # fmt: skip
# Imported with Numba, which pins it to the one release it works with.
COMES_WITH_NUMBA = {"llvmlite"}
COMES_WITH_JINJA2 = {"markupsafe"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)]
    subprocess.run(build, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    (built,) = directory.glob("*.whl")
    return built


def test_the_wheel_holds_every_source_file_and_nothing_else(wheel: Path):
    expected = {
        f"{name}/{path.relative_to(directory).as_posix()}"
        for name, directory in PACKAGES.items()
        for pattern in ("*.py", "*.md", "*.html", "*.css", "*.js", "py.typed")
        for path in directory.rglob(pattern)
    }
    dist_info = f"spillgrad-{__version__}.dist-info"
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if not name.startswith(f"{dist_info}/")} == expected
    assert {f"{dist_info}/{name}" for name in ("METADATA", "entry_points.txt", "licenses/LICENSE")} < names


def test_the_wheel_names_its_command_python_and_licence(wheel: Path):
    archive = zipfile.ZipFile(wheel)
    dist_info = f"spillgrad-{__version__}.dist-info"
    assert "spillgrad = spillgrad_tools.cli:main" in archive.read(f"{dist_info}/entry_points.txt").decode()
    metadata = email.message_from_bytes(archive.read(f"{dist_info}/METADATA"))
    assert (metadata["Requires-Python"], metadata["License-Expression"]) == (">=3.11", "Apache-2.0")


def test_the_unpacked_wheel_runs_without_the_checkout(wheel: Path, tmp_path: Path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    program = "import sys; sys.path.insert(0, '.'); from spillgrad_tools.cli import main; sys.exit(main(['--version']))"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"spillgrad {__version__}\n", "")


def test_every_third_party_import_is_a_declared_dependency():
    declared = {name.partition(">=")[0] for name in PROJECT["dependencies"]}
    imported = set()
    for directory in PACKAGES.values():
        for path in directory.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    imported |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module:
                    imported.add(node.module.partition(".")[0])
    assert (
        imported - set(sys.stdlib_module_names) - PACKAGES.keys() - OPTIONAL - COMES_WITH_NUMBA - COMES_WITH_JINJA2
        <= declared
    )


def test_every_dependency_has_a_lower_bound():
    assert [name for name in PROJECT["dependencies"] if ">=" not in name] == []


def test_pytorch_is_pinned_for_recorded_results_and_not_for_users():
    extras = PROJECT["optional-dependencies"]
    pin = PIP_NAMES["torch"]
    assert "==" in pin and pin in extras["bench"] and pin in extras["peers"]
    assert [name for name in extras["torch"] if "==" in name or "<" in name] == []
