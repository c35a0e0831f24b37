"""A model whose training takes more memory than there is trains from disk: the same losses, the process capped."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from spillgrad_tools.memory_cap import MemoryCap

STEPS = 2
# 27 M parameters, 110 MB: six layers, and an embedding of 34 MB, which is the head.
TRAIN = """
    import contextlib, sys
    import numpy as np
    import spillgrad as sg
    directory, how, steps = sys.argv[1], sys.argv[2].split(), int(sys.argv[3])
    lora = "lora" in how

    def build(**sizes):
        sg.manual_seed(0)
        model = sg.models.build("small", context=128, **sizes)
        return sg.nn.lora(model, rank=4) if lora else model

    def adamw(parameters):
        return sg.optim.AdamW([parameter for parameter in parameters if parameter.requires_grad], lr=1e-3)

    def make(budget, **sizes):
        if "disk" not in how:
            model = build(**sizes)
            return model, adamw(model.parameters()), contextlib.nullcontext
        offload = sg.disk_offload(
            lambda: build(**sizes), adamw, directory, ram_budget=budget, step_in_backward=True
        )
        return offload.model, offload.optimizer, lambda: sg.save_on_disk(offload)

    def train(steps, model, optimizer, context):
        for step in range(steps):
            tokens = np.random.default_rng(step).integers(0, 256, (4, 129))
            with context():
                loss = model(tokens[:, :-1].copy(), tokens[:, 1:].copy())[1]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.item().hex()

    list(train(1, *make("64MiB")))  # loads the kernels
    budget = "36MiB" if lora else "136MiB"
    print(*train(steps, *make(budget, vocab_size=16384, n_embd=512, n_head=8, n_layer=6)))
"""


def train(directory: Path, how: str, limit_bytes: int | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(TRAIN), str(directory), how, str(STEPS)]
    with contextlib.nullcontext() if limit_bytes is None else MemoryCap(limit_bytes) as cap:
        return subprocess.run(
            command if cap is None else cap.command(command),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=300,
        )


# In RAM they take 730 and 380 MB, from disk 300 and 120.
@pytest.mark.parametrize(("kind", "limit_mib"), [("all", 320), pytest.param("lora", 200, marks=pytest.mark.exhaustive)])
def test_training_from_disk_fits_a_limit_that_training_in_ram_exceeds(tmp_path: Path, kind: str, limit_mib: int):
    wanted = train(tmp_path, f"{kind} ram")  # and compiles what the others find compiled: that takes memory, too
    assert (wanted.returncode, wanted.stderr) == (0, "")
    got = train(tmp_path, f"{kind} disk", limit_mib << 20)
    assert (got.returncode, got.stderr) == (0, "")
    assert got.stdout == wanted.stdout
    assert len(set(got.stdout.split())) == STEPS
    failed = train(tmp_path, f"{kind} ram", limit_mib << 20)
    assert failed.returncode == -signal.SIGKILL or "MemoryError" in failed.stderr
    assert list(tmp_path.iterdir()) == []
