"""A lookup of rows of an offloaded table reads these alone: the bits are those of a table in RAM."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import SpillCorruptionError
from spillgrad.files import safetensors_io
from spillgrad.files.checkpoint import load_into
from spillgrad.spill.offload.needs import Need, Needs, Sharing
from spillgrad.spill.offload.rows import ROWS_BYTES
from spillgrad.storage.disk.spans import digest_bytes

ROWS, WIDTH = 20_000, 300
TABLE_BYTES = 4 * ROWS * WIDTH  # more than a piece
TOKENS = np.random.default_rng(0).integers(0, ROWS, (3, 4, 25))
BUDGET = "12MiB"


class Model(nn.Module):
    """A table, and a layer that is trained."""

    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table = table
        self.layer = nn.Linear(WIDTH, 7)

    def forward(self, tokens: Any) -> sg.Tensor:
        return self.layer(self.table(sg.tensor(tokens)))


def built(make: Callable[[], nn.Module] = lambda: nn.Embedding(ROWS, WIDTH), trained: bool = False) -> Model:
    sg.manual_seed(0)
    model = Model(make())
    model.table.requires_grad_(trained)
    return model


def sgd(params: list[nn.Parameter]) -> sg.optim.Optimizer:
    return sg.optim.SGD(params, lr=0.1, momentum=0.9)


def train(model: nn.Module, optimizer: sg.optim.Optimizer, autocast: bool = False) -> list[str]:
    losses = []
    for batch in TOKENS:
        with sg.autocast("cpu", enabled=autocast):
            loss = model(batch).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
    return losses


class offload_for_lookups(sg.disk_offload):
    """Offloads a model of which only lookups are used here: other uses of a table need all of it in the budget."""

    def _needs(self, sharing: Sharing) -> Needs:
        return super()._needs(sharing)._replace(ram=Need(0, "lookups alone"))


def forget_peak(offload: sg.disk_offload) -> None:
    """Count the most RAM anew: the models here are built in RAM."""
    tier = offload._store._state.tier
    tier.peak_bytes = tier.used_bytes


def values(model: nn.Module) -> list[bytes]:
    return [param.numpy().tobytes() for param in model.parameters()]


def in_files(folder: Path, dtype: str = "float32") -> Callable[[], Model]:
    """Return a function that builds a model whose frozen table is read in a file."""
    table = built().table.weight.detach().to(getattr(sg, dtype))
    save_file({"table.weight": table.numpy()}, folder / "table.safetensors")

    def build() -> Model:
        model = built()
        load_into(model, safetensors_io.read(folder / "table.safetensors", in_place=True), strict=False)
        return model

    return build


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: nn.Embedding(ROWS, WIDTH),
    "padded": lambda: nn.Embedding(ROWS, WIDTH, padding_idx=int(TOKENS[0, 0, 0])),
    "by frequency": lambda: nn.Embedding(ROWS, WIDTH, scale_grad_by_freq=True),
    "shortened": lambda: nn.Embedding(ROWS, WIDTH, max_norm=10.0),
    "bags": lambda: nn.EmbeddingBag(ROWS, WIDTH),
    "few columns": lambda: nn.Sequential(nn.Embedding(300_000, 3), nn.Linear(3, WIDTH)),
}


WAYS: list[tuple[str, dict[str, Any]]] = [
    *((case, {}) for case in LAYERS),
    *((case, {"master": "split"}) for case in ("plain", "few columns", "shortened")),
    ("plain", {"step_in_backward": True}),
]


@pytest.mark.parametrize("case, options", WAYS, ids=str)
@pytest.mark.parametrize("trained", [False, True], ids=["frozen", "trained"])
def test_training_has_the_bits_of_training_in_ram(tmp_path: Path, case: str, trained: bool, options: dict[str, Any]):
    in_ram, autocast = built(LAYERS[case], trained), "master" in options
    wanted = train(in_ram, sgd([param for param in in_ram.parameters() if param.requires_grad]), autocast)
    offload = sg.disk_offload(lambda: built(LAYERS[case], trained), sgd, tmp_path, ram_budget="80MiB", **options)
    offload._store.expect(1 << 40)  # as if it did not fit
    assert train(offload.model, offload.optimizer, autocast) == wanted
    assert values(offload.model) == values(in_ram)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_frozen_table_in_a_file_costs_the_rows_that_are_looked_up(tmp_path: Path, dtype: str):
    build = in_files(tmp_path, dtype)
    in_ram = build()
    wanted = train(in_ram, sgd([*in_ram.layer.parameters()]))
    offload = offload_for_lookups(build, sgd, tmp_path / "spill", ram_budget=BUDGET)
    assert offload.model.table.weight.storage.is_read_in_place
    forget_peak(offload)
    assert train(offload.model, offload.optimizer) == wanted
    stats = offload.stats()
    assert 0 < stats.read_bytes <= TOKENS.size * 3 * 4096 + len(TOKENS) * 100_000
    assert stats.peak_ram_bytes < 4 << 20


def test_the_rows_of_a_table_in_the_store_are_read_alone_after_the_first_time(tmp_path: Path):
    offload = offload_for_lookups(built, sgd, tmp_path, ram_budget=BUDGET)
    weight = built().table.weight.numpy()
    forget_peak(offload)
    for number, batch in enumerate(TOKENS):
        before = offload.stats().read_bytes
        with sg.no_grad():
            assert offload.model.table(sg.tensor(batch)).numpy().tobytes() == weight[batch].tobytes()
        assert offload.stats().read_bytes - before < (TABLE_BYTES + 2_000_000 if number == 0 else 2_000_000)
    assert offload.stats().peak_ram_bytes < 4 << 20


def test_the_rows_of_a_table_in_two_planes_are_made_alone(tmp_path: Path):
    offload = offload_for_lookups(built, sgd, tmp_path, ram_budget="5MiB", master="split")
    table, wanted = offload.model.table.weight, built().table.weight.numpy()
    store = offload._store
    rows = np.unique(TOKENS[0])
    forget_peak(offload)
    with sg.no_grad():
        found = offload.model.table(sg.tensor(rows)).numpy()
        before = store.stats()
        assert offload.model.table(sg.tensor(rows)).numpy().tobytes() == found.tobytes() == wanted[rows].tobytes()
    after = store.stats()
    assert after.read_bytes - before.read_bytes <= rows.size * 4 * 4096
    assert after.peak_ram_bytes <= 5 << 20
    assert table._storage._alive() is None


@pytest.mark.parametrize("master", ["whole", "split"])
def test_numbers_whose_planes_do_not_say_what_they_are_are_right_in_rows(tmp_path: Path, master: str):
    weight = np.random.default_rng(1).integers(0, 2**32, (ROWS, WIDTH), np.uint32)
    weight[::50, ::7] = weight[::50, ::7] & 0xFFFF0000 | 0x8000  # halfway between two bfloat16 numbers
    weight[::51, ::5] |= 0x7F800000  # not a number, and infinite
    weight[::51, 0] = 0xFF800000
    model = Model(nn.Embedding(ROWS, WIDTH, _weight=sg.tensor(weight.view("f"))))
    offload = offload_for_lookups(model, None, tmp_path, ram_budget=BUDGET, master=master)
    rows = np.arange(0, ROWS, 17)
    with sg.no_grad():
        found = offload.model.table(sg.tensor(rows)).numpy()
    assert found.view(np.uint32).tobytes() == weight[rows].tobytes()


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "int64", "uint64"])
def test_indices_may_be_of_any_integers_and_shape(tmp_path: Path, dtype: str):
    build = in_files(tmp_path)
    offload = offload_for_lookups(build, None, tmp_path / "spill", ram_budget=BUDGET)
    weight = build().table.weight.numpy()
    for shape in [(), (0,), (2, 0, 3), (1,), (40, 3, 2)]:
        indices = np.asarray(np.random.default_rng(2).integers(0, 120, shape), dtype)
        with sg.no_grad():
            found = offload.model.table(sg.tensor(indices))
        assert found.shape == (*shape, WIDTH)
        assert found.numpy().tobytes() == weight[indices].tobytes()


def test_every_row_is_looked_up_within_the_budget(tmp_path: Path):
    build = in_files(tmp_path)
    offload = offload_for_lookups(build, None, tmp_path / "spill", ram_budget=BUDGET)
    indices = np.random.default_rng(2).permutation(np.repeat(np.arange(ROWS), 2))
    forget_peak(offload)
    with sg.no_grad():
        found = offload.model.table(sg.tensor(indices)).numpy()
    assert found.tobytes() == build().table.weight.numpy()[indices].tobytes()
    stats = offload.stats()
    assert stats.peak_ram_bytes <= ROWS_BYTES + digest_bytes(TABLE_BYTES) + 100_000
    assert stats.read_bytes <= TABLE_BYTES + 4096 * 13


@pytest.mark.parametrize("master", ["whole", "split", "none"])
def test_a_table_that_was_changed_has_its_new_rows(tmp_path: Path, master: str):
    offload = offload_for_lookups(built, None, tmp_path, ram_budget="11MiB", master=master)
    table = offload.model.table
    with sg.no_grad():
        table(sg.tensor([5, 6]))
        table.weight[5] = 3.0
        held = table.weight.numpy()
        held[6] = 4.0
        assert table(sg.tensor([5, 6])).float().mean(1).tolist() == [3.0, 4.0]
        del held
        assert table(sg.tensor([5, 6])).float().mean(1).tolist() == [3.0, 4.0]
        offload.flush()
        assert table(sg.tensor([5, 6])).float().mean(1).tolist() == [3.0, 4.0]


def flip_a_byte(file: Path, at: int) -> None:
    before = file.stat()
    with file.open("r+b") as opened:
        opened.seek(at)
        byte = opened.read(1)[0]
        opened.seek(at)
        opened.write(bytes([byte ^ 1]))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES: dict[str, Callable[[Path], object]] = {
    "a byte of a row": lambda file: flip_a_byte(file, file.stat().st_size - 4 * WIDTH * (ROWS - int(TOKENS[0].min()))),
    "cut off": lambda file: os.truncate(file, 9000),
    "written anew": lambda file: file.write_bytes(file.read_bytes()),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_file_that_changes_between_two_steps_is_an_error(tmp_path: Path, case: str):
    offload = offload_for_lookups(in_files(tmp_path), sgd, tmp_path / "spill", ram_budget=BUDGET)
    train(offload.model, offload.optimizer)
    CHANGES[case](tmp_path / "table.safetensors")
    with pytest.raises(SpillCorruptionError, match=r"table\.safetensors.*put the former file back"):
        train(offload.model, offload.optimizer)


class Functional(Model):
    """A model that also multiplies by its table."""

    def forward(self, tokens: Any) -> sg.Tensor:
        return super().forward(tokens) + nn.functional.linear(self.table(sg.tensor(tokens)), self.table.weight)[..., :7]


@pytest.mark.parametrize("kind", [Model, Functional])
@pytest.mark.parametrize("master", ["whole", "split"])
def test_the_least_budget_suffices_for_all_uses_of_a_table(tmp_path: Path, master: str, kind: type[Model]):
    def build() -> Model:
        sg.manual_seed(0)
        model = kind(nn.Embedding(ROWS, WIDTH))
        model.table.requires_grad_(False)
        return model

    least = sg.disk_offload(build, sgd, tmp_path / "first", ram_budget="80MiB", master=master).least_budget
    assert TABLE_BYTES + digest_bytes(TABLE_BYTES) < least < 2.1 * TABLE_BYTES
    in_ram, autocast = build(), master == "split"
    wanted = train(in_ram, sgd([*in_ram.layer.parameters()]), autocast)
    offload = sg.disk_offload(build, sgd, tmp_path / "second", ram_budget=least, master=master)
    offload._store.expect(1 << 40)  # as if it did not fit
    forget_peak(offload)
    assert train(offload.model, offload.optimizer, autocast) == wanted
    sg.save_checkpoint(tmp_path / "checkpoint", offload.model, offload.optimizer)
    assert train(offload.model, offload.optimizer, autocast)
    assert offload.stats().peak_ram_bytes <= least


def test_a_table_that_also_is_the_output_layer_gives_the_bits_of_ram(tmp_path: Path):
    def tied() -> Model:
        model = built(trained=True)
        model.layer = nn.Linear(WIDTH, ROWS, bias=False)
        model.layer.weight = model.table.weight
        return model

    in_ram = tied()
    wanted = train(in_ram, sgd([*in_ram.parameters()]))
    offload = sg.disk_offload(tied, sgd, tmp_path, ram_budget="60MiB")
    assert train(offload.model, offload.optimizer) == wanted
    assert values(offload.model) == values(in_ram)
