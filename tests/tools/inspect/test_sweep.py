"""`spillgrad sweep` on what a killed process left."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from spillgrad.storage.disk_store import DiskStore
from spillgrad_tools.cli import main

DIES_WITH_A_STORE = """
import os, signal, sys
import numpy as np
from spillgrad.storage.disk_store import DiskStore
store = DiskStore(sys.argv[1], ram_budget=0)
handle = store.put(np.zeros(10_000))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_sweep_names_then_removes_what_a_dead_run_left_and_spares_the_living(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", DIES_WITH_A_STORE, str(tmp_path / "a")], env=environment, check=False)
    (dead,) = (tmp_path / "a").iterdir()
    assert main(["sweep", str(tmp_path), "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith(f"would remove {dead} (")
    assert dead.exists()

    store = DiskStore(tmp_path / "b", ram_budget=0)
    handle = store.put(np.ones(10_000))
    assert main(["sweep", str(tmp_path / "b")]) == 0
    assert capsys.readouterr().out == f"no dead runs in {tmp_path / 'b'} or below it\n"
    assert store.get(handle).sum() == 10_000
    store.close()

    assert main(["sweep", str(tmp_path / "a")]) == 0
    assert capsys.readouterr().out.startswith(f"removed {dead} (")
    assert not dead.exists()
