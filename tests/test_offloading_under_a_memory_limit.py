"""A model whose training takes more memory than there is trains from disk: the same losses, the process capped."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.memory_group import memory_group

STEPS = 2
# 27 M parameters, 110 MB: six layers, and an embedding of 34 MB, which is the head.
TRAIN = """
    import os, resource, sys
    directory, how, group, limit_bytes = sys.argv[1], sys.argv[2].split(), sys.argv[3], int(sys.argv[4])
    if group:
        with open(group + "/cgroup.procs", "w") as processes:
            processes.write(str(os.getpid()))
    import contextlib
    import numpy as np
    import spillgrad as sg
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
    if limit_bytes and not group:
        # Beside what is touched, this limit counts the stacks of threads and what was given back and stays mapped.
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes + (144 << 20),) * 2)
    budget = "36MiB" if lora else "136MiB"
    print(*train(int(sys.argv[5]), *make(budget, vocab_size=16384, n_embd=512, n_head=8, n_layer=6)))
"""


def train(directory: Path, how: str, limit_bytes: int = 0) -> subprocess.CompletedProcess[str]:
    with memory_group(limit_bytes) if limit_bytes else contextlib.nullcontext() as group:
        return subprocess.run(
            [
                sys.executable,
                "-c",
                textwrap.dedent(TRAIN),
                str(directory),
                how,
                str(group or ""),
                str(limit_bytes),
                str(STEPS),
            ],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=300,
        )


# In RAM they take 730 and 380 MB, from disk 300 and 120.
@pytest.mark.parametrize(("kind", "limit_mib"), [("all", 320), ("lora", 200)])
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
