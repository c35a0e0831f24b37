"""Plans of models whose weights and state have fewer bits, and of frozen weights in files."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, BudgetError, UnsupportedError
from spillgrad.spill.planning.formats import ACCURACY, EXACTLY, Asked, Formats, accuracy_of
from spillgrad.spill.planning.predict import Whole
from spillgrad.spill.planning.profile import profile
from spillgrad.spill.planning.ways import Ways
from spillgrad.storage.counters import rss_bytes
from spillgrad.storage.residency import belady
from spillgrad.storage.residency.belady import Event, Item
from spillgrad_kernels.memory import buffers
from tests.waiting import wait_until

IDX = np.random.default_rng(0).integers(0, 256, (4, 33))
QUICK = sg.planning.Machine(2, 1e11, sg.planning.Disk(1e12, 1e12, 0.0, 1 << 40))
SLOW = sg.planning.Machine(2, 1e11, sg.planning.Disk(1e6, 1e6, 0.0, 1 << 40))
RANK = 4


def loss_of(model: sg.nn.Module) -> sg.Tensor:
    return model(IDX[:, :-1], IDX[:, 1:])[1]


def gpt(layers: int) -> sg.nn.Module:
    return sg.models.build("tiny", n_layer=layers)


def adamw(parameters: list[sg.nn.Parameter]) -> sg.optim.Optimizer:
    return sg.optim.AdamW(parameters, lr=1e-3)


def nbytes_of(model: sg.nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


# Quantized weights


@pytest.mark.parametrize("to", ["nf4", "int8"])
def test_quantized_weights_count_as_codes_and_scales(to: str, tmp_path: Path):
    def build(layers: int, quantized: bool = True) -> sg.nn.Module:
        model = gpt(layers).requires_grad_(False)
        return sg.nn.lora(sg.nn.quantize(model, to) if quantized else model, RANK)

    found = profile(build, 6, loss_of, adamw, tmp_path, ram_budget=64 << 20, offload=False)
    whole, floats = Whole(found, 6, QUICK), build(6, quantized=False)
    assert whole.parameter_bytes == nbytes_of(build(6)) < nbytes_of(floats) / 2
    assert whole.parameters == sum(parameter.numel() for parameter in floats.parameters())
    deeper = Whole(found, 60, QUICK)  # a layer more is one of codes
    of_layer = (nbytes_of(build(6)) - nbytes_of(build(2))) // 4
    assert deeper.parameter_bytes - whole.parameter_bytes == 54 * of_layer
    of_layer += whole.state_bytes // 6 + whole.trained_bytes // 6
    on_disk = 54 * found.units.count(1) * (20 << 10)  # what HDF5 takes for all that the layers save
    more = (deeper.peak_bytes(0) - whole.peak_bytes(0) - on_disk) / found.mapped_per_live
    assert more == pytest.approx(54 * of_layer, rel=0.05)


# Weights in files


def weights(place: Path, to: str | None) -> Path:
    """Write a model of four layers, and return the folder of its weights."""
    checkpoint = sg.save_checkpoint(place / "base", sg.models.build("llama-tiny", num_hidden_layers=4))
    return checkpoint if to is None else sg.models.quantize(checkpoint, to, place / to)


def adapted(folder: Path) -> Callable[[], sg.nn.Module]:
    return lambda: sg.nn.lora(sg.models.from_safetensors(folder).train(), RANK)


@pytest.mark.parametrize(
    ("to", "master"), [("nf4", "whole"), ("int8", "split"), (None, "split"), (None, "whole")], ids=str
)
def test_frozen_weights_in_files_take_no_disk_and_no_room_for_planes(to: str | None, master: str, tmp_path: Path):
    folder = weights(tmp_path, to)
    budget_bytes = 400 << 10
    planned = sg.planning.plan(
        folder, 4, 32, "8GiB", tmp_path, lora=RANK, autocast=True, offload=True, master=master, machine=QUICK
    )
    model = adapted(folder)()
    assert planned.parameter_bytes == nbytes_of(model)
    ways = Ways(
        lambda count: sg.nn.lora(sg.models.catalogue.first_layers(folder, count).train(), RANK), 4, loss_of, adamw,
        8 << 30, tmp_path, autocast=True, machine=QUICK,
    )  # fmt: skip
    whole = ways.profiled(True, Formats(None, master))
    assert whole.parameters == planned.parameters
    offload = sg.disk_offload(
        adapted(folder), adamw, tmp_path, ram_budget=budget_bytes, step_in_backward=True, max_grad_norm=1.0,
        master=master,
    )  # fmt: skip
    assert whole.least_budget == offload.least_budget
    predicted = whole.predict(budget_bytes)
    written, read, _ = moved(offload, 1)
    allowed = 0.15 * (written + read) + 0.03 * (predicted.saved_bytes + nbytes_of(model))
    assert predicted.written_bytes == pytest.approx(written, abs=allowed)
    assert predicted.read_bytes == pytest.approx(read, abs=allowed)
    # The store may write all that is its own; the file is another's.
    own = nbytes_of(model) - sum(
        parameter.nbytes
        for parameter in (*offload.model.parameters(), *offload.model.buffers())
        if not parameter.requires_grad
    )
    assert own <= predicted.disk_bytes <= own * 4 + predicted.saved_bytes
    assert offload.stats().peak_disk_bytes <= predicted.disk_bytes * 1.15


def test_what_is_read_in_place_is_read_like_others_and_takes_no_disk():
    events = [Event("use", 0), Event("use", 1), Event("use", 2), Event("use", 0, "backward")]
    found = [belady.run([Item(100, True, in_place), *[Item(100, True)] * 2], events, 150) for in_place in (False, True)]
    assert [(each.written_bytes, each.disk_bytes, each.live_bytes) for each in found] == [(0, 300, 300), (0, 200, 200)]
    assert found[0].read == found[1].read


def test_quantized_weights_without_adapters_and_positions_that_a_model_lacks_are_refused(tmp_path: Path):
    folder = weights(tmp_path, "nf4")
    with pytest.raises(ArgumentError, match=r"are quantized.*give their rank as lora"):
        sg.planning.plan(folder, 1, 16, "1GiB", tmp_path, machine=QUICK)
    with pytest.raises(ArgumentError, match=r"got context 65; .* has 64 positions at most"):
        sg.planning.plan(folder, 1, 65, "1GiB", tmp_path, machine=QUICK, lora=1)
    with pytest.raises(ArgumentError, match="got depth 3 with the weights in"):
        sg.planning.plan(folder, 1, 16, "1GiB", tmp_path, machine=QUICK, lora=1, depth=3)


# Formats of weights and state


def moved(offload: sg.disk_offload, accumulate: int) -> tuple[int, int, int]:
    """Train under `autocast`; return the bytes written and read in the fifth step, and what these are on disk."""
    spill = sg.save_on_disk(offload)
    tier = spill._store._state.tier
    for _ in range(5):
        wait_until(lambda: not tier.dirty.has_must_spill and not tier.writing_bytes)
        before = spill.stats()
        for _ in range(accumulate):
            with spill, sg.autocast("cpu"):
                loss = loss_of(offload.model)
            loss.backward()
        offload.optimizer.step()
        offload.optimizer.zero_grad()
    wait_until(lambda: not tier.dirty.has_must_spill and not tier.writing_bytes)
    after = spill.stats()
    names = "written_bytes", "read_bytes", "stored_bytes", "fetched_bytes"
    written, read, stored, fetched = (getattr(after, name) - getattr(before, name) for name in names)
    return written, read, stored + fetched


FORMATS = [
    Formats("int8", "whole"),
    Formats(None, "split"),
    pytest.param(Formats("bf16", "split"), marks=pytest.mark.exhaustive),
    Formats(None, "none"),
    pytest.param(Formats("int8", "none"), marks=pytest.mark.exhaustive),
]


@pytest.mark.parametrize("accumulate", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("formats", FORMATS, ids=str)
def test_two_layers_tell_what_six_move_in_any_format(formats: Formats, accumulate: int, tmp_path: Path):
    exact, found = (
        profile(
            gpt, 6, loss_of, adamw, tmp_path, ram_budget=64 << 20, offload=True, mixed_precision=True,
            accumulate=accumulate, formats=each,
        )
        for each in (EXACTLY, formats)
    )  # fmt: skip
    whole, other = Whole(found, 6, QUICK), Whole(exact, 6, QUICK)
    share = 0.5 if formats.master == "none" else 1
    assert whole.parameter_bytes == pytest.approx(share * other.parameter_bytes, rel=0.01)
    assert whole.trained_bytes == pytest.approx(share * other.trained_bytes, rel=0.01)
    saved = whole.predict(1 << 40).saved_bytes
    persistent = whole.parameter_bytes + whole.trained_bytes + whole.state_bytes
    for budget_share in (0.35, 0.7):
        budget = max(int(budget_share * (saved + persistent)), whole.least_budget)
        predicted = whole.predict(budget)
        offload = sg.disk_offload(
            lambda: gpt(6), adamw, tmp_path, ram_budget=budget, step_in_backward=accumulate == 1, max_grad_norm=1e-6,
            **formats._asdict(),
        )  # fmt: skip
        assert offload.least_budget == whole.least_budget
        state = sum(
            value.nbytes
            for entries in offload.optimizer.state.values()
            for value in entries.values()
            if isinstance(value, sg.Tensor)
        )
        assert state == 0  # before the first update
        written, read, on_disk = moved(offload, accumulate)
        allowed = 0.15 * (written + read) + 0.03 * (saved + persistent)
        assert predicted.written_bytes == pytest.approx(written, abs=allowed)
        assert predicted.read_bytes == pytest.approx(read, abs=allowed)
        assert predicted.io_s * QUICK.disk.read_bytes_per_s == pytest.approx(on_disk, abs=allowed)
        del offload


def sgd(parameters: list[sg.nn.Parameter]) -> sg.optim.Optimizer:
    return sg.optim.SGD(parameters, lr=1e-3)


@pytest.mark.parametrize("optimizer", [adamw, sgd])
def test_gradients_of_bfloat16_numbers_move_as_such_and_plans_know_it(
    optimizer: Callable[[list[sg.nn.Parameter]], sg.optim.Optimizer], tmp_path: Path
):
    found = profile(gpt, 6, loss_of, optimizer, tmp_path, ram_budget=64 << 20, offload=True, mixed_precision=True)
    whole = Whole(found, 6, QUICK)
    predicted = whole.predict(whole.least_budget)
    options = {"ram_budget": whole.least_budget, "step_in_backward": True, "max_grad_norm": 1e-6}
    offload = sg.disk_offload(lambda: gpt(6), optimizer, tmp_path, **options)
    written, read, on_disk = moved(offload, 1)
    gradients = sum(item.nbytes for item in whole.events()[0] if item.in_halves)
    assert gradients > 0.8 * nbytes_of(offload.model)
    # Each is written and read once.
    assert written + read - on_disk == pytest.approx(gradients, rel=0.2)
    told = predicted.io_s * QUICK.disk.read_bytes_per_s
    assert told == pytest.approx(on_disk, rel=0.15)
    assert predicted.written_bytes + predicted.read_bytes - told > 0.8 * gradients


# What a plan chooses


def wide(layers: int) -> sg.nn.Module:
    return sg.nn.Sequential(*(sg.nn.Sequential(sg.nn.Linear(1024, 1024), sg.nn.GELU()) for _ in range(layers)))


X = sg.ones(8, 1024)


def planned(ram: object, place: Path, depth: int = 48, **options: Any) -> sg.planning.Plan:
    options = {"machine": SLOW, **options}
    return sg.planning.plan(wide, 8, 1, ram, place, depth=depth, loss=lambda model: model(X).square().mean(), **options)


def with_room(mib: int) -> int:
    """Return the memory of a process that has so much for its training: that of this one grows from test to test."""
    return rss_bytes() - buffers.memory_stats().mapped_bytes + (mib << 20)


def test_a_plan_takes_exact_formats_unless_it_may_lose_accuracy(tmp_path: Path):
    options = {"autocast": True, "offload": True}
    exact = planned(with_room(420), tmp_path, **options)
    assert (exact.state, exact.accuracy) == (None, ())
    assert exact.master in ("whole", "split")
    lossy = planned(with_room(420), tmp_path, **options, lossy=True)
    assert (lossy.state, lossy.master) == ("int8", "none")
    assert lossy.prediction.step_s < exact.prediction.step_s / 2  # on a disk that decides
    assert len(lossy.accuracy) == 2
    assert "offloaded, state int8 and master none, policy" in str(lossy)
    assert {word for line in lossy.accuracy for word in line.split(":")[:1]} == {"state int8", "master none"}
    without = planned(with_room(420), tmp_path, offload=True, lossy=True)
    assert (without.state, without.master) == ("int8", "whole")  # products of float32 numbers take these
    told = planned(with_room(420), tmp_path, **options, lossy=True, state="float32", master="whole")
    assert (told.state, told.master, told.accuracy) == ("float32", "whole", ())


def test_where_all_stays_in_ram_nothing_is_lost(tmp_path: Path):
    found = planned("8GiB", tmp_path, depth=4, autocast=True, lossy=True)
    assert (found.policy, found.offload, found.state, found.master) == ("keep", False, None, "whole")


def test_an_optimizer_without_such_state_is_planned_without_it(tmp_path: Path):
    found = planned(with_room(420), tmp_path, offload=True, lossy=True, optimizer=sg.optim.Adafactor)
    assert (found.state, found.master) == (None, "whole")


def test_the_error_says_what_fewer_bits_would_allow(tmp_path: Path):
    options = {"offload": False, "depth": 30}
    with pytest.raises(BudgetError) as raised:
        planned("400MiB", tmp_path, **options)
    least, with_fewer = map(
        int,
        re.findall(r"that works is (\d+) MiB: .*--lossy: with state int8 the least is (\d+) MiB", str(raised.value))[0],
    )
    assert with_fewer < least - 100
    found = planned(f"{with_fewer + 8}MiB", tmp_path, **options, lossy=True)
    assert found.state == "int8"


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"state": "int4"}, ArgumentError, "plan: got state='int4'"),
        ({"master": "half"}, ArgumentError, "plan: got master='half'"),
        ({"master": "split", "offload": False}, ArgumentError, "parameters in RAM are whole"),
        ({"master": "none", "processes": 2, "accumulate": 2}, UnsupportedError, "several processes"),
        ({"master": "split", "wire": "int8"}, UnsupportedError, "a wire of fewer bits"),
    ],
)
def test_formats_that_cannot_be_are_refused(options: dict[str, Any], kind: type[Exception], words: str, tmp_path: Path):
    with pytest.raises(kind, match=words):
        planned("1GiB", tmp_path, **options)


ASKED = [
    (Asked(), [("int8", "whole")]),
    (Asked(has_choice=True), [("int8", "whole"), (None, "none"), ("int8", "none")]),
    (Asked("int8", has_choice=True), [("int8", "none")]),
    (Asked("float32", "whole", has_choice=True), []),
    (Asked(None, "none", has_choice=True), [("int8", "none")]),
]


@pytest.mark.parametrize(("asked", "wanted"), ASKED, ids=str)
def test_what_was_asked_for_is_kept(asked: Asked, wanted: list[tuple[str | None, str]]):
    assert [tuple(each) for each in asked.lossy(asked.exact.master)] == wanted
    assert asked.least() == (Formats(*wanted[-1]) if wanted else None)


@pytest.mark.parametrize("offload", [False, True], ids=["in RAM", "offloaded"])
def test_a_plan_is_applied_with_its_formats(offload: bool, tmp_path: Path):
    def trained(state: str | None, master: str) -> list[float]:
        sg.manual_seed(0)
        found = sg.planning.plan(
            "tiny", 4, 32, "8GiB", tmp_path, machine=QUICK, offload=offload, autocast=True, state=state, master=master
        )
        losses = []
        with found.apply(lambda: gpt(2), adamw, tmp_path / "spill") as training:
            for _ in range(3):
                with training.forward(), sg.autocast("cpu"):
                    loss = loss_of(training.model)
                loss.backward()
                training.optimizer.step()
                training.optimizer.zero_grad()
                losses.append(loss.item())
        assert training.model.lm_head.weight.dtype == (sg.bfloat16 if master == "none" else sg.float32)
        assert ("int8" in training.optimizer.state_formats().values()) == (state == "int8")
        return losses

    exact = trained(None, "whole")
    assert trained("int8", "none") != exact
    if offload:
        assert trained(None, "split") == exact


def test_the_documentation_has_the_figures_that_plans_tell():
    page = (Path(__file__).parents[3] / "docs" / "memory_methods.md").read_text()
    for (name, value), found in ACCURACY.items():
        assert str(found.loss) in page, (name, value)
        assert str(found.exact_loss) in page, (name, value)
        assert next(accuracy_of(EXACTLY._replace(**{name: value}))).startswith(f"{name} {value}: ")
