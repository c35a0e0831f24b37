"""A job that spills, in a process of its own, for as long as a test wants it to."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# Works through a step every 20 ms until its standard input ends.
JOB = """
import select, sys
import numpy as np
from spillgrad.storage import DiskStore, Label
store = DiskStore(sys.argv[1], ram_budget=1 << 20, keep_journal=sys.argv[2] or None)
print("begun", flush=True)
step = 0
while not select.select([sys.stdin], [], [], 0.02)[0]:
    step += 1
    labels = [Label("mul", "self", f"blocks.{number}", step) for number in range(8)]
    handles = [store.put(np.full(50_000, float(step)), label=label) for label in labels]
    store.flush()
    for handle in reversed(handles):
        store.get(handle)
        store.drop(handle)
store.close()
"""


@contextlib.contextmanager
def job(directory: Path, journal: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run a job that spills to `directory`; closing its standard input ends it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", JOB, str(directory), str(journal or "")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            yield process
        finally:
            process.kill()


def end(process: subprocess.Popen[str]) -> None:
    """Let a job end as jobs do."""
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=30) == 0
