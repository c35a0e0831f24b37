"""What the planner says of training runs, and that it comes true."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.distributed.wires import wire_named
from spillgrad.errors import ArgumentError, BudgetError
from spillgrad.spill.offload.needs import Sharing
from spillgrad.spill.planning import profile as profile_module
from spillgrad.spill.planning.candidate import NOTHING
from spillgrad.spill.planning.choose import Choice
from spillgrad.spill.planning.plan import plan
from spillgrad.spill.planning.predict import Whole
from spillgrad.spill.planning.profile import HEAD, OUTSIDE, Profile, _Sampler, profile
from spillgrad.spill.planning.record import Part, Unit
from spillgrad.spill.save_on_disk import SpillStats
from spillgrad.storage.residency.belady import Event, Item
from spillgrad_kernels.memory import buffers
from spillgrad_tools import fresh_process
from spillgrad_tools.bench.plan import WARM_STEPS, train
from spillgrad_tools.train.options import TrainSettings
from tests.waiting import wait_until

IDX = np.random.default_rng(0).integers(0, 256, (8, 65))
QUICK = sg.planning.Machine(2, 1e11, sg.planning.Disk(1e12, 1e12, 0.0, 1 << 40))
SLOW = sg.planning.Machine(2, 1e11, sg.planning.Disk(1e6, 1e6, 0.0, 1 << 40))


def gpt(layers: int) -> sg.nn.Module:
    return sg.models.build("tiny", n_layer=layers)


def loss_of(model: sg.nn.Module) -> sg.Tensor:
    return model(IDX[:, :-1], IDX[:, 1:])[1]


def planned(ram: object, place: Path, machine: sg.planning.Machine = QUICK, depth: int = 6, **options: Any):
    return plan(gpt, 8, 64, ram, place, depth=depth, loss=loss_of, machine=machine, **options)


class Untouched:
    """A model in training that maps a buffer in its second step, and does not fill it, as a read that just begins."""

    phase, unit, others_bytes = "forward", OUTSIDE, 0

    class store:
        ram_bytes = 0


def test_a_buffer_that_is_mapped_but_not_filled_does_not_make_the_process_seem_smaller():
    with _Sampler(Untouched()) as sampler:
        wait_until(lambda: sampler.base_bytes > 0)
        before = sampler.base_bytes
        buffer = buffers.empty((64 << 20,), np.uint8)
        wait_until(lambda: sampler.mapped_bytes >= buffer.nbytes)
    assert sampler.base_bytes >= before > 50 << 20


def test_steps_that_are_over_before_anybody_looks_are_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(profile_module, "_LOOK_EVERY_S", 0.2)
    found = profile(gpt, 2, loss_of, sg.optim.AdamW, tmp_path, ram_budget=64 << 20, offload=False)
    assert {"forward", "backward"} <= {phase for phase, _ in found.held}
    assert found.base_bytes > 50 << 20


# What follows for the whole model: made-up layers

BESIDE, PARAMETERS, SAVED = 1000, 100, 10
# The memory for the two arrays of a layer that are on disk.
ON_DISK = 2 * (20 << 10)


def made_up(offload: bool, accumulate: int = 1) -> Profile:
    """Return a model of layers with 100 bytes of parameters that save 10 twice, of which 10 can be spared."""
    items = [Item(SAVED), Item(SAVED), Item(SAVED), Item(SAVED)]
    units = [0, 0, 1, 1]
    events = [Event("put", i) for i in range(4)]
    for i in (3, 2, 1, 0):
        events += [Event("use", i, "backward"), Event("drop", i, "backward")]
    return Profile(
        layers="h",
        offload=offload,
        parameter_bytes={OUTSIDE: 50, 0: PARAMETERS, 1: PARAMETERS},
        trained_bytes={OUTSIDE: 50, 0: PARAMETERS, 1: PARAMETERS},
        items=items,
        units=units,
        freed_by=[frozenset(), frozenset({"h.0"}), frozenset(), frozenset({"h.1"})],
        events=events,
        phase_s={"forward": 3.0, "backward": 5.0, "update": 0.5},
        layer_s={"forward": 1.0, "backward": 2.0},
        recomputable=[Unit(Part(f"h.{i}", SAVED, 1.0)) for i in range(2)],
        held={("forward", 1): BESIDE, ("backward", HEAD): BESIDE, ("backward", 1): BESIDE, ("update", OUTSIDE): BESIDE},
        least_budget=0,
        state_bytes={OUTSIDE: 100, 0: 2 * PARAMETERS, 1: 2 * PARAMETERS},
        base_bytes=10_000,
        mapped_per_live=1.0,
        accumulate=accumulate,
    )


def test_layers_that_did_not_run_take_what_the_last_one_did():
    whole = Whole(made_up(offload=False), 5, QUICK)
    assert (whole.parameter_bytes, whole.trained_bytes, whole.state_bytes) == (550, 550, 1100)
    found = whole.predict(0)
    assert (found.saved_bytes, found.written_bytes, found.read_bytes) == (100, 100, 100)
    assert found.compute_s == pytest.approx((3 + 3) + (5 + 6) + 0.5 * 550 / 250)
    assert whole.predict(30).written_bytes == 70
    assert [unit.whole.path for unit in whole.units] == [f"h.{i}" for i in range(5)]


def test_backward_meets_the_last_layer_first():
    _, events = Whole(made_up(offload=False), 4, QUICK).events()
    kept = [event.item for event in events if event.kind == "put"]
    assert [event.item for event in events if event.kind == "use"] == kept[::-1]


def test_what_is_recomputed_is_neither_written_nor_read_and_takes_its_time_again():
    whole = Whole(made_up(offload=False), 5, QUICK)
    choice = Choice(frozenset({"h.0", "h.3"}), 2 * SAVED, 2.0, 0.0)
    found = whole.predict(0, choice)
    assert (found.saved_bytes, found.written_bytes, found.read_bytes) == (80, 80, 80)
    assert found.compute_s == pytest.approx(whole.predict(0).compute_s + 2.0)


def test_a_model_in_ram_has_all_its_gradients_when_it_is_updated_and_all_it_saves_before():
    whole = Whole(made_up(offload=False), 5, QUICK)
    more = 3 * PARAMETERS  # of three layers that did not run; as much for gradients, twice for state
    assert whole.peak_bytes(0) == 10_000 + BESIDE + 4 * more + 3 * ON_DISK
    # Under a large budget, the last two layers have yet to use what they saved when the others have their gradients.
    assert whole.peak_bytes(10**6) == 10_000 + BESIDE + 4 * more + 2 * 2 * SAVED
    # Of a frozen model, it is most when all is saved.
    profile = made_up(offload=False)
    profile.trained_bytes.clear()
    profile.state_bytes.clear()
    assert Whole(profile, 5, QUICK).peak_bytes(10**6) == 10_000 + BESIDE + more + 5 * 2 * SAVED


def test_an_offloaded_model_takes_the_budget_however_deep_it_is_and_memory_for_each_array_on_disk():
    profile = made_up(offload=True)
    peaks = [Whole(profile, depth, QUICK).peak_bytes(500) for depth in (5, 50)]
    assert peaks == [10_000 + BESIDE + 500 + 3 * ON_DISK, 10_000 + BESIDE + 500 + 48 * ON_DISK]
    everything = 4 * 550 + 100
    assert Whole(profile, 5, QUICK).peak_bytes(10**6) == 10_000 + BESIDE + everything + 3 * ON_DISK


def test_a_recomputed_layer_takes_what_it_spares_while_backward_is_in_it():
    whole = Whole(made_up(offload=True), 5, QUICK)
    assert whole.peak_bytes(0, Choice(frozenset({"h.1", "h.2"}), 0, 0.0, 0.0)) == whole.peak_bytes(0) + SAVED


def test_a_phase_takes_as_long_as_the_slower_of_processor_and_disk():
    slow = sg.planning.Machine(2, 1e11, sg.planning.Disk(10.0, 20.0, 0.02, 1 << 40))
    found = Whole(made_up(offload=False), 5, slow).predict(0)
    # 100 bytes at 10 a second, against 6 s of computing; at 20 a second, against 11 s and half of 2 s for moving them.
    assert found.step_s == pytest.approx(10.0 + 12.0 + 1.1)
    assert found.io_s == pytest.approx(15.0)


def test_the_largest_budget_that_stays_within_the_memory_is_found_and_none_where_none_does():
    whole = Whole(made_up(offload=True), 5, QUICK)
    least = 10_000 + BESIDE + 3 * ON_DISK
    assert whole.budget_within(least - 1) is None
    budget = whole.budget_within(least + 10)
    assert budget is not None
    assert whole.peak_bytes(budget) <= least + 10


def test_a_model_that_fits_as_a_whole_is_not_refused_for_what_little_budgets_take_on_disk():
    whole = Whole(made_up(offload=False), 5, QUICK)
    in_ram = whole.peak_bytes(10**6)
    assert whole.peak_bytes(0) > in_ram
    budget = whole.budget_within(in_ram)
    assert budget is not None
    assert whole.peak_bytes(budget) == in_ram
    assert whole.budget_within(in_ram - 1) is None
    assert whole.least_bytes() == in_ram


def test_arrays_in_files_of_others_take_no_memory_for_what_is_on_disk():
    profile = made_up(offload=True)
    profile.items.append(Item(1 << 30, persistent=True, in_place=True))
    profile.units.append(1)
    assert Whole(profile, 5, QUICK).peak_bytes(500) == 10_000 + BESIDE + 500 + 3 * ON_DISK


def test_no_prediction_is_above_its_memory_and_the_least_has_room_for_what_is_used_at_once():
    whole = Whole(made_up(offload=True), 5, QUICK)
    least = whole.least_bytes()
    assert least == whole.predict(whole.least_budget).peak_bytes > whole.peak_bytes(whole.least_budget)
    assert whole.predict_within(least - 1) is None
    for ram_bytes in (least, least + 1, least + 100, 1 << 20):
        found = whole.predict_within(ram_bytes)
        assert found is not None
        assert found.peak_bytes <= ram_bytes


@pytest.mark.parametrize("accumulate", [2, 3, 7])
def test_a_step_of_several_batches_computes_and_moves_so_many_times_but_updates_once(accumulate: int):
    one, several = (Whole(made_up(offload=False, accumulate=count), 5, QUICK) for count in (1, accumulate))
    expected, found = one.predict(30), several.predict(30)
    assert found.saved_bytes == expected.saved_bytes
    assert (found.written_bytes, found.read_bytes) == (70 * accumulate, 70 * accumulate)
    assert found.compute_s == pytest.approx(accumulate * (6 + 11) + 0.5 * 550 / 250)
    choice = Choice(frozenset({"h.0", "h.3"}), 2 * SAVED, 2.0, 0.0)
    assert several.predict(0, choice).compute_s == pytest.approx(found.compute_s + accumulate * 2.0)


def test_gradients_of_a_model_in_ram_are_there_while_another_batch_saves():
    one, several = (Whole(made_up(offload=False, accumulate=count), 5, QUICK) for count in (1, 3))
    more = 3 * PARAMETERS
    assert several.peak_bytes(0) == one.peak_bytes(0) == 10_000 + BESIDE + 4 * more + 3 * ON_DISK
    assert several.peak_bytes(10**6) == 10_000 + BESIDE + 4 * more + 5 * 2 * SAVED > one.peak_bytes(10**6)


def test_gradients_on_disk_come_with_the_first_batch_and_are_changed_by_the_others():
    made = made_up(offload=True, accumulate=4)
    gradient = len(made.items)
    made.items.append(Item(PARAMETERS))
    made.units.append(1)
    made.freed_by.append(frozenset())
    made.events[5:5] = [Event("use", gradient, "backward"), Event("change", gradient, "backward")]
    made.events.extend(Event(kind, gradient, "update") for kind in ("use", "drop"))
    whole = Whole(dataclasses.replace(made, accumulated=frozenset({gradient})), 3, QUICK)
    items, events = whole.events()
    of_gradients = [event for event in events if items[event.item].nbytes == PARAMETERS]
    assert len({event.item for event in of_gradients}) == 2  # of the two last layers
    for item in {event.item for event in of_gradients}:
        kinds = [(event.kind, event.phase) for event in of_gradients if event.item == item]
        again = [("use", "backward"), ("change", "backward")]
        assert kinds == [("put", "backward"), *again * 3, ("use", "update"), ("drop", "update")]
    assert len([event for event in events if event.kind == "put"]) == 2 + 4 * 3 * 2  # what is saved is saved each time
    # Two gradients go to disk with each batch, and come back for the next and for the update.
    found = whole.predict(0)
    assert (found.written_bytes, found.read_bytes) == (4 * (60 + 200), 4 * (60 + 200))


# A model that is run


@pytest.mark.parametrize(
    "accumulate", [1, pytest.param(3, marks=pytest.mark.exhaustive)]
)  # of three batches, one is neither the first nor the last
@pytest.mark.parametrize(
    "offload", [False, pytest.param(True, marks=pytest.mark.exhaustive)], ids=["in RAM", "offloaded"]
)
def test_two_layers_tell_what_six_save_and_move(offload: bool, accumulate: int, tmp_path: Path):
    found = profile(
        gpt, 6, loss_of, sg.optim.AdamW, tmp_path, ram_budget=64 << 20, offload=offload, accumulate=accumulate
    )
    whole = Whole(found, 6, QUICK)
    model = gpt(6)
    assert whole.parameter_bytes == sum(parameter.nbytes for parameter in model.parameters())
    assert whole.state_bytes == pytest.approx(2 * whole.parameter_bytes, rel=0.01)
    saved = whole.predict(1 << 40).saved_bytes
    persistent = whole.parameter_bytes + whole.trained_bytes + whole.state_bytes if offload else 0
    for share in (0.3, 0.7):
        for policy, choice in (("spill", NOTHING), ("recompute", _everything(whole)), ("keep", NOTHING)):
            budget = max(int(share * (saved + persistent)), found.least_budget)
            predicted = whole.predict(budget, choice, keeps=policy == "keep")
            written, read = moved(6, budget, policy, offload, accumulate, tmp_path)
            # Where hardly anything moves, a share of what might: it depends on when the writer comes to it.
            allowed = 0.15 * (written + read) + 0.03 * (saved + persistent)
            assert predicted.written_bytes == pytest.approx(written, abs=allowed)
            assert predicted.read_bytes == pytest.approx(read, abs=allowed)


def _everything(whole: Whole) -> Choice:
    wholes = [unit.whole for unit in whole.units]
    return Choice(
        frozenset(part.path for part in wholes),
        sum(part.freed_bytes for part in wholes),
        sum(part.seconds for part in wholes),
        0.0,
    )


# Less than any norm: a step whose gradients need no clipping is another step.
CLIPS = 1e-6


def moved(layers: int, budget: int, policy: str, offload: bool, accumulate: int, place: Path) -> tuple[int, int]:
    """Train; return the bytes written and read in the fifth step."""
    model = gpt(layers)
    optimizer: Any = sg.optim.AdamW(model.parameters())
    if offload:
        offloaded = sg.disk_offload(
            model, optimizer, place, ram_budget=budget, step_in_backward=accumulate == 1, max_grad_norm=CLIPS
        )
        spill = sg.save_on_disk(offloaded, policy=policy)
    else:
        spill = sg.save_on_disk(place, ram_budget=budget, policy=policy)
    for _ in range(5):
        before = settled(spill)
        for _ in range(accumulate):
            with spill:
                loss = loss_of(model)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    after = settled(spill)
    return after.written_bytes - before.written_bytes, after.read_bytes - before.read_bytes


def settled(spill: sg.save_on_disk) -> SpillStats:
    """Return what was moved once what the step lets go is written, however busy the machine is."""
    tier = spill._store._state.tier
    wait_until(lambda: not tier.dirty.has_must_spill and not tier.writing_bytes)
    return spill.stats()


def test_where_all_fits_all_is_kept(tmp_path: Path):
    found = planned("8GiB", tmp_path)
    assert (found.policy, found.offload, found.recomputed) == ("keep", False, ())
    assert found.prediction.written_bytes == 0
    assert [each.spilled_bytes for each in found.treatments] == [0] * len(found.treatments)
    assert found.treatments[0].modules == "transformer.h.0 … 5"


def test_on_a_quick_disk_what_does_not_fit_is_spilled_and_on_a_slow_one_recomputed(tmp_path: Path):
    ram = planned("8GiB", tmp_path, offload=False, depth=24).least_bytes + (16 << 20)
    quick, slow = (planned(ram, tmp_path, machine, offload=False, depth=24) for machine in (QUICK, SLOW))
    assert quick.policy == "spill"
    assert quick.prediction.written_bytes > 0
    assert slow.policy in ("recompute", "auto")
    assert slow.prediction.written_bytes < quick.prediction.written_bytes / 2
    assert len(slow.recomputed) > 10
    assert {path.split(".")[2] for path in slow.recomputed} <= {str(i) for i in range(24)}
    assert sum(each.recomputed_bytes for each in slow.treatments) > 0


def test_planning_draws_no_random_number_and_leaves_no_file(tmp_path: Path):
    sg.manual_seed(5)
    wanted = sg.rand(3).tolist()
    sg.manual_seed(5)
    planned("8GiB", tmp_path)
    assert sg.rand(3).tolist() == wanted
    assert list(tmp_path.iterdir()) == []


def test_a_relative_directory_stays_where_the_program_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "spill").mkdir()
    monkeypatch.chdir(tmp_path)

    def built_elsewhere(layers: int) -> sg.nn.Module:
        os.chdir(tmp_path / "elsewhere")
        return gpt(layers)

    plan(built_elsewhere, 8, 64, "4GiB", "spill", depth=3, loss=loss_of, machine=QUICK)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["elsewhere", "spill"]


def test_too_little_memory_is_an_error_that_says_the_least_that_works(tmp_path: Path):
    with pytest.raises(BudgetError, match=r"got 32 MiB .* the least that works is [\d.]+ [MG]iB"):
        planned("32MiB", tmp_path)


def test_what_does_not_go_together_is_refused(tmp_path: Path):
    with pytest.raises(ArgumentError, match="no loss"):
        plan(gpt, 8, 64, "1GiB", tmp_path)
    with pytest.raises(ArgumentError, match="depth 3"):
        plan("tiny", 8, 64, "1GiB", tmp_path, depth=3)
    with pytest.raises(ArgumentError, match=r"context 2048.*1024 positions"):
        plan("gpt2", 8, 2048, "1GiB", tmp_path)
    with pytest.raises(sg.errors.SpillError, match="missing"):
        plan("tiny", 8, 64, "1GiB", tmp_path / "missing")


def test_sums_of_gradients_take_room_beside_a_model_in_ram_and_are_in_the_budget_of_one_on_disk(tmp_path: Path):
    found = profile(gpt, 6, loss_of, sg.optim.AdamW, tmp_path, ram_budget=64 << 20, offload=False, accumulate=2)

    def peak_bytes(sharing: Sharing, **changes: Any) -> int:
        return Whole(dataclasses.replace(found, **changes), 6, QUICK, sharing).peak_bytes(1 << 20)

    alone, shared = peak_bytes(Sharing(1)), peak_bytes(Sharing(2))
    assert peak_bytes(Sharing(2), accumulate=1) > peak_bytes(Sharing(1), accumulate=1)
    trained_bytes = Whole(found, 6, QUICK).trained_bytes
    assert shared - alone >= trained_bytes  # a second batch adds to copies
    rounded = wire_named("int8", "test")
    assert peak_bytes(Sharing(2, rounded)) - shared >= trained_bytes // 2  # and so do exact sums
    assert peak_bytes(Sharing(2, rounded), offload=True) == peak_bytes(Sharing(1), offload=True)


def test_what_a_process_has_beside_counts(tmp_path: Path):
    found = planned("4GiB", tmp_path, accumulate=4, processes=2, offload=False, beside_bytes=1 << 30)
    assert found.least_bytes > 1 << 30
    assert found.prediction.peak_bytes > 1 << 30


@pytest.mark.parametrize("wire, processes", [("float32", 2), ("int8", 3)])
def test_the_least_budget_of_an_offloaded_model_is_that_which_the_processes_need(
    wire: str, processes: int, tmp_path: Path
):
    sharing = Sharing(processes, wire_named(wire, "test"))
    found = profile(
        gpt, 2, loss_of, sg.optim.AdamW, tmp_path, ram_budget=64 << 20, offload=True, sharing=sharing,
        steps_in_backward=False,
    )  # fmt: skip
    offload = sg.disk_offload(lambda: gpt(2), sg.optim.AdamW, tmp_path, ram_budget=64 << 20, max_grad_norm=1.0)
    assert found.least_budget == offload._needs(sharing).ram.nbytes != offload.least_budget


def test_processes_of_a_machine_share_its_cores_and_its_disk():
    found = sg.planning.Machine(5, 1e11, sg.planning.Disk(8.0, 4.0, 1e-9, 10)).among(2)
    assert found == sg.planning.Machine(2, 1e11, sg.planning.Disk(4.0, 2.0, 1e-9, 5))


@pytest.mark.parametrize("options", [{"processes": 0}, {"processes": 3}, {"processes": 2, "shard": "all"}], ids=str)
def test_processes_that_a_plan_cannot_be_for_are_refused(options: dict[str, Any], tmp_path: Path):
    with pytest.raises(ArgumentError, match="got processes"):
        planned("4GiB", tmp_path, accumulate=2, **options)


def test_adapters_train_less_than_weights(tmp_path: Path):
    found = plan("tiny", 2, 64, "8GiB", tmp_path, machine=QUICK, lora=4, offload=True)
    assert 0 < found.trained_bytes < found.parameter_bytes / 4
    assert "adapters of rank 4" in found.model


# A plan made in a process of its own, beside another that does what it said

# On a disk so quick that nothing is to be recomputed, whatever else this machine does now.
PLAN = """
import json, sys
import spillgrad as sg
how = json.loads(sys.argv[1])
machine = sg.planning.Machine(2, 1e11, sg.planning.Disk(1e12, 1e12, 0.0, 1 << 40))
print(json.dumps(sg.planning.plan(**how, machine=machine).as_dict()))
"""


SMALL = {"model": "small", "batch": 8, "context": 256}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compile the kernels: a process that does so keeps the compiler's memory, which no plan has."""
    directory = str(tmp_path_factory.mktemp("compiled"))
    _run("-c", PLAN, json.dumps({**SMALL, "accumulate": 2, "ram": "8GiB", "directory": directory, "offload": False}))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    ("ram", "offload", "accumulate"),
    [
        pytest.param("330MiB", False, 1, id="in RAM"),
        pytest.param("290MiB", True, 1, id="offloaded", marks=pytest.mark.exhaustive),
        pytest.param("345MiB", False, 2, id="in RAM, two batches", marks=pytest.mark.exhaustive),
        pytest.param("290MiB", True, 2, id="offloaded, two batches", marks=pytest.mark.exhaustive),
    ],
)
def test_memory_and_bytes_of_a_run_are_within_15_percent_of_the_plan(
    ram: str, offload: bool, accumulate: int, tmp_path: Path
):
    sizes = {**SMALL, "accumulate": accumulate}
    asked = {**sizes, "ram": ram, "directory": str(tmp_path), "offload": offload}
    told = json.loads(_run("-c", PLAN, json.dumps(asked)))
    predicted = told["prediction"]
    settings = TrainSettings(**sizes, steps=1 + WARM_STEPS)
    taken = fresh_process.call(train, told["policy"], offload, predicted["budget_bytes"], settings, tmp_path)
    assert predicted["peak_bytes"] == pytest.approx(taken["peak_bytes"], rel=0.15)
    written, read = taken["written_bytes"], taken["read_bytes"]
    assert written + read > 0
    moved_bytes = predicted["written_bytes"] + predicted["read_bytes"]
    assert moved_bytes == pytest.approx(written + read, rel=0.15)


def _run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
