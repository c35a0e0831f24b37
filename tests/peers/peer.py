"""Other libraries, each in a process of its own."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PATHS = [str(ROOT), str(ROOT / "kernels"), str(ROOT / "tools")]


def python(library: str) -> str:
    """Return a Python that has a library; skip the test where there is none."""
    named = os.environ.get(f"SPILLGRAD_{library.upper()}_PYTHON")
    if named:
        return named
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed (extra `peers`), and SPILLGRAD_{library.upper()}_PYTHON is not set")
    return sys.executable


def run(library: str, path: Path) -> dict[str, Any]:
    """Return the record of every program under a library."""
    command = [python(library), "-m", "tests.peers.record", library, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""})
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text())
