"""The soak: it finds nothing in a sound store, and does find what is wrong in another."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from spillgrad.storage.disk.segment import Segment
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.threads.loader import Loader
from spillgrad_tools.bench import soak as bench_soak
from spillgrad_tools.cli import main


def test_a_sound_store_on_a_failing_disk_shows_only_the_faults_injected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pwritev, preadv = os.pwritev, os.preadv
    assert main(["bench", "soak", "--minutes", "0.03", "--dir", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["wrong"] == []
    happened, moved, faults, wrong, _ = (result["measured"] for result in found["results"])
    assert happened["operations"] > 100
    assert min(moved.values()) > 0
    assert sum(faults.values()) > 0
    assert wrong == {"found": 0}
    assert (os.pwritev, os.preadv) == (pwritev, preadv)
    assert list(tmp_path.iterdir()) == []


def test_damage_that_goes_unnoticed_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    init = Segment.__init__
    monkeypatch.setattr(Segment, "__init__", lambda self, *a, **o: init(self, *a, **{**o, "checksums": False}))
    monkeypatch.setattr(bench_soak, "CALLS_PER_FAULT", 3)
    _, wrong = bench_soak.soak(20, tmp_path)
    assert any("came back as something else" in each for each in wrong)


def test_a_store_that_forgets_to_count_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bench_soak, "PATIENCE_S", 0.2)
    end_read = Loader.end_read

    def leak(self: Loader, entry: object) -> None:
        end_read(self, entry)  # type: ignore[arg-type]
        self._state.tier.used_bytes += 1

    monkeypatch.setattr(Loader, "end_read", leak)
    _, wrong = bench_soak.soak(2, tmp_path)
    assert any("bytes in RAM" in each for each in wrong)


GROWING = """
import sys
from pathlib import Path
import numpy as np
from spillgrad.storage.disk_store import DiskStore
from spillgrad_tools.bench import soak as bench_soak

close, kept = DiskStore.close, []

def leak(self):
    close(self)
    kept.append(np.ones(bench_soak.MOST_GROWN_BYTES, np.uint8))

DiskStore.close = leak
_, wrong = bench_soak.soak(2, Path(sys.argv[1]))
assert any(each.startswith("memory grew by ") for each in wrong), wrong
"""


@pytest.mark.exhaustive
def test_memory_that_grows_with_each_store_is_found(tmp_path: Path):
    # In a process of its own: what other tests left idle here goes back to the system meanwhile.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", GROWING, str(tmp_path)], env=environment, check=True, timeout=120)


def test_what_is_wrong_ends_the_command_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(DiskStore, "get", lambda self, handle: np.zeros(3))
    assert main(["bench", "soak", "--minutes", "0.01", "--dir", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("spillgrad: soak: found what nobody asked for: get: <DiskEntry")
    assert printed.err.count("\n") == 1
