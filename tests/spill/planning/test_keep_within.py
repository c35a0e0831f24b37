"""A training that watches its memory gives some back when something else in the process takes it."""

import subprocess
import sys
import threading

import pytest

import spillgrad as sg
from spillgrad.errors import BudgetError

MIB = 1 << 20
# Trains with 96 MiB of saved tensors in a store's budget. In the middle of the run, 64 MiB are taken. The limit has
# room for 24 MiB of them.
PROGRAM = """
import contextlib, hashlib, mmap, sys
import numpy as np
import spillgrad as sg
from spillgrad.storage.counters import rss_bytes
from spillgrad_tools.memory_cap import peak_rss_bytes

MIB = 1 << 20
sg.manual_seed(0)
model = sg.nn.Sequential(*(sg.nn.Sequential(sg.nn.Linear(256, 256), sg.nn.Tanh()) for _ in range(24)))
x = sg.randn(4096, 256)
spill = sg.save_on_disk(sys.argv[1], ram_budget=96 * MIB)
taken, told = [], []


def train(steps):
    for step in range(steps):
        model.zero_grad()
        with spill:
            loss = model(x).square().mean()
        loss.backward()
        if steps > 5 and step < 8:  # eight times 8 MiB
            taken.append(np.ones(MIB, np.float64))


train(5)
limit = peak_rss_bytes() + 24 * MIB
watch = sg.planning.keep_within(limit, spill, told.append) if sys.argv[2] == "watched" else contextlib.nullcontext()
with watch:
    train(20)
digest = hashlib.sha256(b"".join(parameter.grad.numpy().tobytes() for parameter in model.parameters())).hexdigest()
print(digest, peak_rss_bytes() <= limit, len(told), spill._store.ram_budget < 96 * MIB)
print(*told)
"""


def run(folder: object, *words: str) -> tuple[list[str], str]:
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), *words], capture_output=True, text=True, check=False
    )
    assert (process.returncode, process.stderr) == (0, "")
    first, told, *_ = process.stdout.split("\n")
    return first.split(), told


def test_the_budget_falls_when_memory_is_taken_and_the_gradients_stay_the_same(tmp_path: object):
    run(tmp_path, "free")  # compiles kernels
    (digest, is_within, told, fell), _ = run(tmp_path, "free")
    assert (is_within, told, fell) == ("False", "0", "False")  # without a watch, it takes more
    found, line = run(tmp_path, "watched")
    assert found == [digest, "True", "1", "True"]
    assert "the store's budget fell from 96 MiB to" in line


def test_without_need_nothing_changes_and_no_thread_stays():
    spill = sg.save_on_disk(ram_budget="1MiB")
    told: list[str] = []
    before = threading.active_count()
    with sg.planning.keep_within("64GiB", spill, told.append):
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
    assert (told, spill._store.ram_budget) == ([], MIB)


def test_a_watch_lowers_an_offload_to_what_it_must_have_and_no_further(tmp_path: object):
    model = sg.nn.Sequential(sg.nn.Linear(256, 256), sg.nn.Linear(256, 256))
    offload = sg.disk_offload(model, sg.optim.AdamW(model.parameters()), tmp_path, ram_budget="8MiB")
    told = threading.Event()
    with sg.planning.keep_within("9MiB", offload, lambda line: told.set()):  # less than Python takes
        assert told.wait(30)
    assert offload._store.ram_budget == offload.least_budget


def test_a_size_that_is_none_is_refused():
    with pytest.raises(BudgetError, match="'much'"):
        sg.planning.keep_within("much")
