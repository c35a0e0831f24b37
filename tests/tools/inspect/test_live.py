"""A training that goes on, and never flushes, is looked into from outside; and so is what is left when it is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spillgrad.storage import verify
from spillgrad_tools.cli import main
from tests.waiting import wait_until


def test_a_training_is_looked_into_while_it_goes_on_and_after_it_was_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    text = tmp_path / "text.txt"
    text.write_text("To be, or not to be, that is the question. " * 500)
    command = [sys.executable, "-m", "spillgrad_tools", "train", "--data", str(text), "--out", str(tmp_path / "out")]
    command += ["--model", "tiny", "--steps", "100000", "--ram-budget", "0", "--batch", "64"]  # steps of seconds
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: bool(list(tmp_path.rglob("segment-*.h5"))), timeout_s=120)
            (run,) = {path.parent for path in tmp_path.rglob("segment-*.h5")}
            seen = 0
            deadline = time.monotonic() + 120
            while seen < 3:
                assert process.poll() is None
                assert time.monotonic() < deadline
                assert verify(run).problems == []
                # Stopped in mid-step, it frees nothing while it is looked at, and the journal lags behind all the same.
                process.send_signal(signal.SIGSTOP)
                assert main(["inspect", str(run), "--tree", "--json"]) == 0
                arrays = [one for file in json.loads(capsys.readouterr().out)["segments"] for one in file["arrays"]]
                assert all(one["problem"] is None for one in arrays)
                for one in arrays[:: max(len(arrays) // 3, 1)]:
                    assert main(["inspect", str(run), "--tensor", one["key"]]) == 0
                    assert "verified" in capsys.readouterr().out
                seen += bool(arrays)
                process.send_signal(signal.SIGCONT)
        finally:
            process.send_signal(signal.SIGKILL)
    found = verify(run)
    assert found.problems == []
    assert found.verified == found.arrays
    assert main(["inspect", str(run), "--tree"]) == 0
    assert "its run was killed before a flush" in capsys.readouterr().out
