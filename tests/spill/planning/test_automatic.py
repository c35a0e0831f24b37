"""policy="auto": what a slow disk makes of a training run, and a quick one does not."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.spill.planning import automatic
from spillgrad.spill.planning.automatic import _Known, _Run
from spillgrad.spill.planning.record import Recorder
from spillgrad.storage.counters import StepTraffic
from spillgrad.storage.disk.segment import Extent

IDX = np.random.default_rng(0).integers(0, 256, (4, 65))
SLOW_BYTES_PER_S = 4e6  # at 8e6, a pause of a busy machine made an operation look slower than this disk


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a disk of 4 MB/s of the real one: it is busy for as long as that takes, and then does it."""
    busy = threading.Lock()
    for name in ("write", "read"):
        real = getattr(Extent, name)

        def slowly(self, array, *more, real=real):
            with busy:
                time.sleep(array.nbytes / SLOW_BYTES_PER_S)
            return real(self, array, *more)

        monkeypatch.setattr(Extent, name, slowly)


def train(steps: int, spill=None, context: int = 64) -> list[tuple[str, int]]:
    """Train; return of each step its loss, exactly, and the bytes written. `spill` makes an object for each."""
    sg.manual_seed(0)
    model = sg.models.build("tiny", dropout=0.1)
    optimizer = sg.optim.AdamW(model.parameters(), lr=1e-3)
    return [step(model, optimizer, spill, context) for _ in range(steps)]


def step(model, optimizer, spill=None, context: int = 64) -> tuple[str, int]:
    saving = sg.enable_grad() if spill is None else spill()
    before = saving.stats().written_bytes if spill else 0
    with saving:
        _, loss = model(IDX[:, :context], IDX[:, 1 : context + 1])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item().hex(), saving.stats().written_bytes - before if spill else 0


@pytest.fixture(scope="module")
def losses() -> list[str]:
    return [loss for loss, _ in train(8)]


@pytest.mark.parametrize("fresh", [False, True], ids=["one object", "one object for each step"])
def test_on_a_slow_disk_layers_are_recomputed_from_the_third_step_and_the_losses_are_the_same(
    fresh: bool, losses: list[str], slow_disk: None, tmp_path: Path
):
    made = []

    def spill():
        if fresh or not made:
            made.append(sg.save_on_disk(tmp_path, ram_budget="64KiB", policy="auto"))
        return made[-1]

    steps = train(8, spill)
    assert [loss for loss, _ in steps] == losses
    written = [nbytes for _, nbytes in steps]
    assert written[1] > 1 << 20
    assert max(written[2:]) < written[1] / 3
    assert len(set(written[3:])) == 1  # it does not change its mind


def test_of_a_model_that_saves_within_the_budget_nothing_is_recomputed(losses, slow_disk, tmp_path: Path):
    spill = sg.save_on_disk(tmp_path, ram_budget="1GiB", policy="auto")
    assert train(5, lambda: spill) == [(loss, 0) for loss in losses[:5]]
    assert spill._auto._thread.run.recomputed == frozenset()


def test_steps_of_several_batches_are_measured_batch_by_batch(slow_disk: None, tmp_path: Path):
    def train(spill) -> tuple[list[str], list[int]]:
        sg.manual_seed(0)
        model = sg.models.build("tiny", dropout=0.1)
        optimizer = sg.optim.AdamW(model.parameters(), lr=1e-3)
        losses, written = [], []
        for _ in range(4):
            for _ in range(3):
                before = spill.stats().written_bytes if spill else 0
                with spill or sg.enable_grad():
                    _, loss = model(IDX[:, :64], IDX[:, 1:65])
                (loss / 3).backward()
                losses.append(loss.item().hex())
                written.append(spill.stats().written_bytes - before if spill else 0)
            optimizer.step()
            optimizer.zero_grad()
        return losses, written

    wanted, _ = train(None)
    found, written = train(sg.save_on_disk(tmp_path, ram_budget="64KiB", policy="auto"))
    assert found == wanted
    assert written[1] > 1 << 20
    assert max(written[2:]) < written[1] / 3  # from the third batch on, which is still the first step


def test_inputs_of_another_shape_are_measured_anew(slow_disk, tmp_path: Path):
    spill = sg.save_on_disk(tmp_path, ram_budget="64KiB", policy="auto")
    sg.manual_seed(0)
    model = sg.models.build("tiny")
    optimizer = sg.optim.AdamW(model.parameters())
    written = [step(model, optimizer, lambda: spill, context)[1] for context in [64] * 3 + [48] * 3 + [64]]
    assert written[2] < written[1] / 3
    assert written[3] > 3 * written[2]
    assert written[5] < written[4] / 3
    assert written[6] < written[1] / 3


def test_evaluation_teaches_nothing(slow_disk, tmp_path: Path):
    spill = sg.save_on_disk(tmp_path, ram_budget=0, policy="auto")
    model = sg.models.build("tiny")
    with spill, sg.no_grad():
        model(IDX[:, :64], IDX[:, 1:])
    assert spill._auto._thread.run is None


def test_backward_within_the_context_and_leaving_by_an_error_leave_nothing_behind(losses, tmp_path: Path):
    spill = sg.save_on_disk(tmp_path, ram_budget=0, policy="auto")
    sg.manual_seed(0)
    model = sg.models.build("tiny", dropout=0.1)
    with pytest.raises(sg.errors.ShapeError), spill:
        model(IDX[:, :64], IDX[:, :3])
    sg.manual_seed(0)
    model = sg.models.build("tiny", dropout=0.1)
    with spill:
        _, loss = model(IDX[:, :64], IDX[:, 1:65])
        loss.backward()
    assert loss.item().hex() == losses[0]
    assert spill.stats().live_bytes == 0


def test_two_threads_train_with_one_object(tmp_path: Path):
    def train_on(spill, got: list[str]) -> None:
        model = models.pop()
        optimizer = sg.optim.AdamW(model.parameters())
        got += [step(model, optimizer, spill)[0] for _ in range(4)]

    def build():
        sg.manual_seed(0)
        return sg.models.build("tiny")

    models, wanted = [build()], []
    train_on(None, wanted)
    models = [build(), build()]
    shared = sg.save_on_disk(tmp_path, ram_budget="64KiB", policy="auto")
    found: list[list[str]] = [[], []]
    threads = [threading.Thread(target=train_on, args=(lambda: shared, got)) for got in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [wanted, wanted]


def test_the_store_dies_with_its_object_though_a_step_never_ended(tmp_path: Path):
    spill = sg.save_on_disk(tmp_path, ram_budget=0, policy="auto")
    with spill:
        sg.models.build("tiny")(IDX[:, :64], None)
    directory = spill.directory
    del spill
    deadline = time.monotonic() + 5
    while directory.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not directory.exists()


# What is learnt, with made-up times


class Known(_Known):
    """Layers that each save 10 MB and take 1 s forward, of a model that computes for 2 s and then 4 s."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__(budget_bytes=0)
        self.recorder = Recorder()
        for i in range(layers):
            self.recorder.forward(f"h.{i}", lambda: None, (), {}, iter((0.0, 1.0)).__next__)
            self.recorder.save(f"h.{i}", i, 10**7)

    def step(self, seconds: float, waited_s: float) -> frozenset[str]:
        recorder = None if self.recomputed else self.recorder
        run = _Run(self, recorder, self.recomputed)
        run.forward_s = 2.0
        moved = len(self.recorder.seconds) * 10**7
        self.learn(run, StepTraffic(seconds, moved, moved, waited_s / 2 or 1.0, waited_s / 2 or 1.0, waited_s, 0.0))
        return self.recomputed


EVERYTHING = frozenset({"h.0", "h.1"})


def test_the_first_step_is_not_measured_and_the_second_decides():
    known = Known()
    assert known.step(100.0, 80.0) == frozenset()
    assert known.step(36.0, 30.0) == EVERYTHING


def test_a_choice_that_makes_steps_longer_is_taken_back_for_good():
    known = Known()
    chosen = [known.step(36.0, 30.0) for _ in range(2)] + [known.step(40.0, 0.0) for _ in range(3)]
    assert chosen == [frozenset()] + [EVERYTHING] * 3 + [frozenset()]
    assert [known.step(36.0, 30.0) for _ in range(3)] == [frozenset()] * 3


def test_a_choice_that_makes_steps_shorter_stays():
    known = Known()
    for seconds, waited_s in [(36.0, 30.0)] * 2 + [(90.0, 0.0), (8.0, 0.0), (8.0, 0.0)] + [(50.0, 40.0)] * 5:
        chosen = known.step(seconds, waited_s)
    assert chosen == EVERYTHING


def test_one_step_that_waited_a_little_decides_nothing():
    known = Known()
    assert [known.step(7.0, waited_s) for waited_s in (0.0, 1.0, 0.0, 1.0, 0.0)] == [frozenset()] * 5


def test_what_one_step_learnt_in_two_threads_is_not_used():
    known = Known()
    runs = automatic.collections.deque([_Run(known, None, frozenset())] * 2)
    automatic._end_step(runs, StepTraffic(1.0, 1, 1, 1.0, 1.0, 1.0, 0.0))
    assert not [run for run, _ in automatic._finished if run.known is known]
