"""Offloaded weights stay in the safetensors files that they come from; the numbers are those of weights in RAM."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import SpillCorruptionError
from spillgrad.files import safetensors_io
from spillgrad.files.checkpoint import load_into
from spillgrad.models import gpt
from spillgrad.spill.offload.needs import disk_need, in_place_bytes
from spillgrad.spill.offload.training import FRAMEWORK
from tests.open_files import open_files_below

TOKENS = np.random.default_rng(0).integers(0, 200, (3, 2, 24))
BUDGET = "700KiB"  # of 1.4 MiB of weights
CONFIG = sg.models.GPTConfig(vocab_size=200, context=24, n_layer=3, n_head=4, n_embd=96)
# Decides how a folder is written: the dtype, and the most bytes of a file.
FOLDERS = {"one file": ("float32", "1GB"), "several files": ("float32", "200KB"), "bfloat16": ("bfloat16", "1GB"),
           "float16": ("float16", "1GB")}  # fmt: skip


def written(place: Path, kind: str = "one file") -> Path:
    dtype, most = FOLDERS[kind]
    sg.manual_seed(0)
    sg.save_checkpoint(place / "run", sg.models.GPT(CONFIG))
    return sg.models.export(place / "run", place / "weights", dtype=dtype, max_shard_size=most)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def frozen(folder: Path) -> nn.Module:
    return sg.models.from_safetensors(folder).requires_grad_(False)


def adapted(folder: Path) -> nn.Module:
    model = sg.models.from_safetensors(folder)
    sg.manual_seed(1)
    return nn.lora(model, rank=2)


def whole(folder: Path) -> nn.Module:
    return sg.models.from_safetensors(folder)


def adamw(params: list[nn.Parameter]) -> sg.optim.Optimizer:
    return sg.optim.AdamW(params, lr=1e-3)


def offloaded(build: Callable[[], nn.Module], place: Path, optimizer: Any = adamw, **options: Any) -> sg.disk_offload:
    return sg.disk_offload(build, optimizer, place / "spill", **{"ram_budget": BUDGET, **options})


def train(model: Any, optimizer: sg.optim.Optimizer) -> list[str]:
    losses = []
    for batch in TOKENS:
        loss = model(batch[:, :-1].copy(), batch[:, 1:].copy())[1]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
    return losses


def values(model: nn.Module) -> list[bytes]:
    return [tensor.numpy().tobytes() for tensor in (*model.parameters(), *model.buffers())]


def logits(model: Any) -> np.ndarray:
    with sg.no_grad():
        return model(TOKENS[0])[0].numpy()


@pytest.mark.parametrize("direct_io", [True, False], ids=["direct", "buffered"])
@pytest.mark.parametrize("build", [adapted, whole], ids=["adapters", "all weights"])
@pytest.mark.parametrize("kind", FOLDERS)
def test_training_has_the_bits_of_training_in_ram(tmp_path: Path, kind: str, build: Any, direct_io: bool):
    folder = written(tmp_path, kind)
    before = contents(folder)
    offload = offloaded(lambda: build(folder), tmp_path, direct_io=direct_io)
    assert offload.stats().written_bytes == 0
    in_ram = build(folder)
    assert train(offload.model, offload.optimizer) == train(in_ram, adamw([*trained(in_ram)]))
    assert values(offload.model) == values(in_ram)
    assert offload.stats().peak_ram_bytes <= offload._store.ram_budget
    assert contents(folder) == before


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [param for param in model.parameters() if param.requires_grad]


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_frozen_model_writes_nothing(tmp_path: Path, kind: str):
    folder = written(tmp_path, kind)
    offload = offloaded(lambda: frozen(folder), tmp_path, None, ram_budget="300KiB")
    assert np.array_equal(logits(offload.model), logits(frozen(folder)))
    stats = offload.stats()
    assert (stats.written_bytes, stats.peak_disk_bytes) == (0, 0)
    assert stats.peak_ram_bytes <= 300 << 10


def test_only_what_is_trained_needs_disk(tmp_path: Path):
    folder = written(tmp_path)
    offload = offloaded(lambda: adapted(folder), tmp_path)
    adapters = sum(param.nbytes for param in trained(offload.model))
    base = sum(param.nbytes for param in offload.model.parameters()) - adapters
    assert disk_need(FRAMEWORK, offload.model, offload.optimizer, gradients=True) == (adapters, adapters, 2 * adapters)
    assert in_place_bytes(FRAMEWORK, offload.model) == base
    offload.model.requires_grad_(True)
    assert in_place_bytes(FRAMEWORK, offload.model) == 0
    assert disk_need(FRAMEWORK, offload.model, None, gradients=False).parameters == adapters + base


WRITES: dict[str, Callable[[nn.Parameter], object]] = {
    "in place": lambda param: param.mul_(2),
    "an element": lambda param: param.__setitem__(0, 3.0),
    "copy_": lambda param: param.copy_(sg.ones_like(param)),
    "data": lambda param: setattr(param, "data", sg.ones(*param.shape)),
    "numpy": lambda param: param.numpy().fill(4),
}


@pytest.mark.parametrize("case", WRITES)
def test_a_weight_that_is_changed_moves_to_the_store(tmp_path: Path, case: str):
    folder = written(tmp_path)
    before = contents(folder)
    models = offloaded(lambda: frozen(folder), tmp_path, None).model, frozen(folder)
    for model in models:
        with sg.no_grad():
            WRITES[case](model.transformer.h[1].mlp.c_fc.weight)
    assert values(models[0]) == values(models[1])
    assert not models[0].transformer.h[1].mlp.c_fc.weight.storage.is_read_in_place
    assert models[0].transformer.h[0].mlp.c_fc.weight.storage.is_read_in_place
    assert contents(folder) == before


def test_loading_other_weights_leaves_the_first_files_as_they_are(tmp_path: Path):
    folder = written(tmp_path)
    before = contents(folder)
    offload = offloaded(lambda: frozen(folder), tmp_path, None)
    other = sg.models.GPT(CONFIG)
    offload.model.load_state_dict(other.state_dict())
    assert values(offload.model) == values(other)
    assert contents(folder) == before
    offload.flush()
    assert not open_files_below(folder)


def test_a_model_that_was_in_ram_reads_weights_where_they_lie(tmp_path: Path):
    folder = written(tmp_path)
    model = sg.models.GPT(CONFIG)
    offload = offloaded(lambda: model, tmp_path, None)
    held = offload.model.transformer.wpe.weight.numpy()
    version = offload.model.transformer.wte.weight._version
    gpt.from_safetensors(folder, model=offload.model)
    assert offload.model.transformer.wte.weight.storage.is_read_in_place
    assert offload.model.transformer.wte.weight._version > version
    # Who holds an array of a tensor sees what is loaded into it, as in RAM.
    assert not offload.model.transformer.wpe.weight.storage.is_read_in_place
    wanted = load_file(folder / "model.safetensors")
    assert np.array_equal(held, wanted["transformer.wpe.weight"])
    assert values(offload.model) == values(frozen(folder))


def test_empty_tensors_and_buffers_are_read_there_too(tmp_path: Path):
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(sg.zeros(500, 33))
            self.empty = nn.Parameter(sg.zeros(0, 7))
            self.register_buffer("table", sg.zeros(5, dtype="int64"))

    rng = np.random.default_rng(0)
    arrays = {"weight": rng.standard_normal((500, 33)).astype("f"), "empty": np.zeros((0, 7), "f"),
              "table": np.arange(5)}  # fmt: skip
    save_file(arrays, tmp_path / "odd.safetensors")
    model = offloaded(Odd, tmp_path, None, ram_budget="1MiB").model
    load_into(model, safetensors_io.read(tmp_path / "odd.safetensors", in_place=True), strict=True)
    assert all(tensor.storage.is_read_in_place for tensor in (model.weight, model.empty, model.table))
    assert {name: tensor.numpy().tobytes() for name, tensor in model.state_dict().items()} == {
        name: array.tobytes() for name, array in arrays.items()
    }


def flip_a_byte(file: Path) -> None:
    before = file.stat()
    with file.open("r+b") as opened:
        opened.seek(-5000, os.SEEK_END)
        byte = opened.read(1)[0]
        opened.seek(-5000, os.SEEK_END)
        opened.write(bytes([byte ^ 1]))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("change", [flip_a_byte, lambda file: os.truncate(file, 9000)], ids=["a byte", "cut off"])
def test_a_file_that_changes_between_two_steps_ends_the_training(tmp_path: Path, change: Callable[[Path], None]):
    folder = written(tmp_path)
    offload = offloaded(lambda: adapted(folder), tmp_path)
    train(offload.model, offload.optimizer)
    change(folder / "model.safetensors")
    with pytest.raises(SpillCorruptionError, match=rf"{folder}/model\.safetensors.*put the former file back"):
        train(offload.model, offload.optimizer)


def test_a_folder_that_is_replaced_between_two_steps_is_read_on(tmp_path: Path):
    folder = written(tmp_path)
    offload, in_ram = offloaded(lambda: adapted(folder), tmp_path), adapted(folder)
    optimizer = adamw(trained(in_ram))
    assert train(offload.model, offload.optimizer) == train(in_ram, optimizer)
    sg.manual_seed(5)
    sg.save_checkpoint(tmp_path / "run", sg.models.GPT(CONFIG))
    sg.models.export(tmp_path / "run", folder)
    assert train(offload.model, offload.optimizer) == train(in_ram, optimizer)


def test_the_run_whose_checkpoint_the_weights_are_may_save_again(tmp_path: Path):
    written(tmp_path)
    offload = offloaded(lambda: frozen(tmp_path / "run"), tmp_path, None)
    before = values(offload.model)
    sg.manual_seed(5)
    sg.save_checkpoint(tmp_path / "run", sg.models.GPT(CONFIG))
    assert values(offload.model) == before
    sg.save_checkpoint(tmp_path / "run", offload.model)
    assert values(frozen(tmp_path / "run")) == before == values(offload.model)


PROGRAM = """
import hashlib
import numpy as np
import spillgrad as sg

def digest(folder, spill):
    sg.manual_seed(1)
    offload = sg.disk_offload(
        lambda: sg.nn.lora(sg.models.from_safetensors(folder), rank=2), lambda params: sg.optim.AdamW(params, lr=1e-3),
        spill, ram_budget="700KiB",
    )
    tokens = np.arange(40).reshape(2, 20)
    for _ in range(3):
        loss = offload.model(tokens, tokens)[1]
        loss.backward()
        offload.optimizer.step()
        offload.optimizer.zero_grad()
    return loss.item().hex()
"""


def test_two_processes_read_one_folder(tmp_path: Path):
    folder = written(tmp_path)
    program = textwrap.dedent(PROGRAM) + f"print(digest({str(folder)!r}, {str(tmp_path / 'spill')!r}))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    running = [
        subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    first, second = (process.communicate(timeout=120)[0] for process in running)
    assert first == second != ""


def test_weights_on_a_medium_that_cannot_be_written_are_read_there(tmp_path: Path):
    folder = written(tmp_path)
    read_only = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    inside = ("unshare", "--mount", "sh", "-c", read_only, str(folder))
    if os.geteuid() or subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("only root can make a folder read-only for itself, and not on every system")
    program = (
        textwrap.dedent(PROGRAM)
        + f"""
try:
    open({str(folder / "new")!r}, "w")
except OSError:
    print(digest({str(folder)!r}, {str(tmp_path / "spill")!r}))
"""
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([*inside, sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert ran.stdout.startswith("0x1."), ran.stderr


@pytest.mark.parametrize("master", ["whole", "split"])
@pytest.mark.parametrize("to", ["nf4", "int8"])
def test_codes_of_quantized_weights_stay_in_their_file_too(tmp_path: Path, to: str, master: str):
    folder = sg.models.quantize(written(tmp_path), to, tmp_path / to)
    offload = sg.disk_offload(lambda: frozen(folder), None, tmp_path / "spill", ram_budget="600KiB", master=master)
    codes = [value for name, value in offload.model.named_buffers() if name.endswith(".weight")]
    # One that something still refers to, when it is loaded, is copied.
    assert sum(each.storage.is_read_in_place for each in codes) >= len(codes) - 1 == 11
    with sg.no_grad():
        logits = [model(TOKENS[0])[0].numpy() for model in (offload.model, frozen(folder))]
    np.testing.assert_array_equal(*logits)
    assert offload.stats().peak_ram_bytes <= 600 << 10
