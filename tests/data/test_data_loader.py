import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, ShapeError, StateDictError, WorkerError
from spillgrad.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)  # fmt: skip


def dataset(rows=7):
    return TensorDataset(sg.arange(rows), sg.arange(rows) * 10.0)


@pytest.mark.parametrize(("drop_last", "sizes"), [(False, [3, 3, 1]), (True, [3, 3])])
def test_batches_stack_the_samples_in_order(drop_last, sizes):
    loader = DataLoader(dataset(), batch_size=3, drop_last=drop_last)
    batches = list(loader)
    assert [len(x) for x, _ in batches] == sizes
    assert len(loader) == len(sizes)
    assert np.concatenate([x.numpy() for x, _ in batches]).tolist() == list(range(sum(sizes)))
    assert all((y.numpy() == x.numpy() * 10.0).all() for x, y in batches)


def test_shuffled_epochs_differ_and_repeat_with_the_seed():
    def epochs(seed):
        loader = DataLoader(dataset(50), batch_size=50, shuffle=True, seed=seed)
        return [next(iter(loader))[0].tolist() for _ in range(2)]

    first, second = epochs(0)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(50))
    assert epochs(0) == [first, second]
    assert epochs(1) != [first, second]


def test_an_epoch_can_be_repeated_by_setting_its_number():
    loader = DataLoader(dataset(50), batch_size=50, shuffle=True, seed=0)
    list(loader)
    later = next(iter(loader))[0].tolist()
    resumed = DataLoader(dataset(50), batch_size=50, shuffle=True, seed=0)
    resumed.epoch = 1
    assert next(iter(resumed))[0].tolist() == later


def test_a_batch_has_the_structure_of_its_samples():
    samples = [{"x": np.full(2, row), "y": (row, float(row))} for row in range(3)]
    (batch,) = DataLoader(samples, batch_size=3)
    assert batch["x"].tolist() == [[0, 0], [1, 1], [2, 2]]
    numbers, floats = batch["y"]
    assert numbers.tolist() == [0, 1, 2]
    assert floats.tolist() == [0.0, 1.0, 2.0]


def test_tensors_of_different_lengths_are_refused():
    with pytest.raises(ShapeError, match=r"\[2, 3\]"):
        TensorDataset(sg.zeros(2), sg.zeros(3))


def test_a_batch_size_below_one_is_refused():
    with pytest.raises(ArgumentError, match="batch_size 0"):
        DataLoader(dataset(), batch_size=0)


@pytest.mark.parametrize("taken", range(8))
def test_a_pass_goes_on_where_its_state_was_taken(taken):
    def loader():
        return DataLoader(TensorDataset(sg.arange(9)), batch_size=4, shuffle=True, seed=5)

    def endless(loader):
        while True:
            for (batch,) in loader:
                yield batch.tolist()

    straight, other = loader(), loader()
    batches = endless(straight)
    for _ in range(taken):
        next(batches)
    other.load_state_dict(straight.state_dict())
    assert [batch for batch, _ in zip(endless(other), range(7), strict=False)] == [next(batches) for _ in range(7)]


def test_a_pass_that_nothing_was_taken_of_begins_again():
    data = DataLoader(TensorDataset(sg.arange(4)), batch_size=2)
    iter(data)
    state = data.state_dict()
    assert (state["epoch"], state["batch"]) == (0, 0)
    assert len(list(data)) == 2
    assert data.state_dict() == {"epoch": 2, "batch": 0, "seed": None}


# Orders


def test_without_a_seed_passes_follow_the_default_generator():
    def passes():
        sg.manual_seed(3)
        loader = DataLoader(dataset(50), batch_size=50, shuffle=True)
        return [next(iter(loader))[0].tolist() for _ in range(2)]

    first, second = passes()
    assert first != second
    assert passes() == [first, second]


def test_a_generator_of_its_own_decides_the_order():
    def order(seed):
        return next(iter(DataLoader(range(50), 50, shuffle=True, generator=sg.Generator(seed)))).tolist()

    assert order(1) == order(1) != order(2)


def test_a_pass_in_the_middle_goes_on_though_its_seed_was_drawn():
    loader = DataLoader(range(20), batch_size=2, shuffle=True)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    resumed = DataLoader(range(20), batch_size=2, shuffle=True)
    resumed.load_state_dict(loader.state_dict())
    assert [b.tolist() for b in resumed] == [b.tolist() for b in batches]


def test_samplers_choose_the_indices():
    rows = list(range(10, 20))
    assert next(iter(DataLoader(rows, 10, sampler=SequentialSampler(rows)))).tolist() == rows
    assert sorted(DataLoader(rows, None, sampler=SubsetRandomSampler([1, 5, 7]))) == [11, 15, 17]
    drawn = [int(x) for x in DataLoader(rows, None, sampler=RandomSampler(rows, replacement=True, num_samples=200))]
    assert len(drawn) == 200
    assert set(drawn) == set(rows)
    assert len(list(RandomSampler(rows, num_samples=25))) == 25
    heavy = list(WeightedRandomSampler([0.0, 1.0, 3.0], 4000))
    assert 0 not in heavy
    assert 0.7 < heavy.count(2) / 4000 < 0.8
    batches = DataLoader(rows, batch_sampler=BatchSampler(SequentialSampler(rows), 4, drop_last=True))
    assert [b.tolist() for b in batches] == [[10, 11, 12, 13], [14, 15, 16, 17]]
    assert len(batches) == 2
    assert next(iter(DataLoader(rows, batch_sampler=[[3, 0], [9]]))).tolist() == [13, 10]


class Pair(NamedTuple):
    image: object
    name: str


def test_named_tuples_mappings_and_strings_keep_their_kind():
    samples = [Pair(np.full(2, row, np.float32), f"n{row}") for row in range(3)]
    (batch,) = DataLoader(samples, batch_size=3)
    assert type(batch) is Pair
    assert batch.image.shape == (3, 2)
    assert batch.name == ("n0", "n1", "n2")
    assert next(iter(DataLoader([1.5, 2.5], 2))).dtype == np.float64
    assert next(iter(DataLoader([True, False], 2))).tolist() == [True, False]
    assert [type(x) for x in DataLoader(np.arange(3), batch_size=None)] == [sg.Tensor] * 3
    assert next(iter(DataLoader([object()] * 2, 2, collate_fn=len))) == 2
    with pytest.raises(TypeError, match="found <class 'object'>"):
        next(iter(DataLoader([object()] * 2, 2)))
    with pytest.raises(RuntimeError, match="equal size"):
        next(iter(DataLoader([[1], [1, 2]], 2)))


def test_a_dataset_may_give_a_whole_batch():
    class Whole(Dataset):
        def __len__(self):
            return 4

        def __getitems__(self, indices):
            return [index * 10 for index in indices]

    assert [b.tolist() for b in DataLoader(Whole(), 2)] == [[0, 10], [20, 30]]


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        ({"shuffle": True, "sampler": [0]}, "mutually exclusive with shuffle"),
        ({"batch_sampler": [[0]], "batch_size": 2}, "mutually exclusive with batch_size"),
        ({"batch_size": None, "drop_last": True}, "disables auto-batching"),
        ({"num_workers": -1}, "should be non-negative"),
        ({"timeout": -1}, "timeout option should be non-negative"),
        ({"prefetch_factor": 2}, "only be specified in multiprocessing"),
        ({"num_workers": 1, "prefetch_factor": 0}, "prefetch_factor 0"),
        ({"persistent_workers": True}, "needs num_workers > 0"),
    ],
)
def test_options_that_exclude_each_other_are_refused(options, phrase):
    with pytest.raises(ArgumentError, match=phrase):
        DataLoader([1, 2], **options)


# Workers


class Numbers(IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        info = get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(start, self.count, step))


class Drawn(Dataset):
    """Samples with random numbers of every kind that datasets draw."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return index, random.random(), float(np.random.random()), sg.rand(1).item(), get_worker_info() is not None


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_give_the_same_batches_in_the_same_order(workers, persistent):
    samples = [{"x": np.full((2, 2), row, np.float32), "name": str(row)} for row in range(11)]
    here = DataLoader(samples, 2, shuffle=True, seed=4)
    with_workers = DataLoader(samples, 2, shuffle=True, seed=4, num_workers=workers, persistent_workers=persistent)
    for _ in range(2):
        batches = list(with_workers)
        for batch, other in zip(batches, here, strict=True):
            assert batch["x"].tolist() == other["x"].tolist()
            assert batch["name"] == other["name"]


@pytest.mark.parametrize("persistent", [False, True])
def test_what_workers_draw_depends_on_the_seed_and_goes_on_when_resumed(persistent):
    def loader(seed):
        return DataLoader(Drawn(), 2, seed=seed, num_workers=2, persistent_workers=persistent)

    first = loader(1)
    passes = [[[part.tolist() for part in batch] for batch in first] for _ in range(2)]
    again, other = loader(1), loader(2)
    assert [[[part.tolist() for part in batch] for batch in again] for _ in range(2)] == passes
    assert [[part.tolist() for part in batch] for batch in other] != passes[0]
    assert all(all(batch[4]) for batch in passes[0])
    drawn = [number for batch in passes[0] for number in batch[3]]
    assert len(set(drawn)) == len(drawn)
    stopped = loader(1)
    batches = iter(stopped)
    for _ in range(3):
        next(batches)
    resumed = loader(1)
    resumed.load_state_dict(stopped.state_dict())
    assert [[part.tolist() for part in batch] for batch in resumed] == passes[0][3:]


def test_iterable_datasets_are_shared_out_by_their_workers():
    assert [b.tolist() for b in DataLoader(Numbers(7), 3)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [b.tolist() for b in DataLoader(Numbers(7), 3, drop_last=True)] == [[0, 1, 2], [3, 4, 5]]
    assert list(DataLoader(Numbers(3), batch_size=None)) == [0, 1, 2]
    batches = [b.tolist() for b in DataLoader(Numbers(11), 2, num_workers=2)]
    assert batches == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9]]
    loader = DataLoader(Numbers(11), 2, num_workers=2)
    taken = iter(loader)
    next(taken)
    next(taken)
    resumed = DataLoader(Numbers(11), 2, num_workers=2)
    resumed.load_state_dict(loader.state_dict())
    assert [b.tolist() for b in resumed] == batches[2:]
    with pytest.raises(TypeError):
        len(loader)
    with pytest.raises(ArgumentError, match="unspecified shuffle"):
        DataLoader(Numbers(3), shuffle=True)


class Failing(Dataset):
    def __init__(self, what):
        self.what = what

    def __len__(self):
        return 6

    def __getitem__(self, index):
        if index == 3:
            self.what()
        return index


def refuse():
    raise KeyError("no such row")


def test_an_error_in_a_worker_is_raised_with_its_traceback():
    taken = []
    with pytest.raises(KeyError, match="no such row") as caught:
        taken.extend(DataLoader(Failing(refuse), None, num_workers=2))
    assert taken == [0, 1, 2]
    assert "Caught KeyError in DataLoader worker process 1.\nOriginal Traceback" in str(caught.value)
    assert "in refuse" in str(caught.value)


def test_a_worker_that_dies_is_named():
    with pytest.raises(WorkerError, match=r"worker 1 \(pid \d+\) exited unexpectedly"):
        list(DataLoader(Failing(lambda: os.kill(os.getpid(), signal.SIGKILL)), None, num_workers=2))


def test_a_worker_that_takes_too_long_is_ended():
    started = time.monotonic()
    with pytest.raises(WorkerError, match=r"timed out after 0\.5 seconds"):
        list(DataLoader(Failing(lambda: time.sleep(60)), None, num_workers=2, timeout=0.5))
    assert time.monotonic() - started < 30


def children():
    return {int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


class Unpicklable(ValueError):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")
        self.lock = threading.Lock()


def raising(error):
    def raise_it(*_):
        raise error

    return raise_it


class Local:
    """A type that no other process can import."""

    @staticmethod
    def error():
        class Here(LookupError):
            pass

        return Here("a local one")


@pytest.mark.parametrize(
    ("error", "kind", "phrase"),
    [
        (Unpicklable(1, 2), RuntimeError, "Unpicklable: 1 and 2"),
        (Local.error(), LookupError, "Here: a local one"),
        (ArgumentError("ours"), ArgumentError, "ArgumentError: ours"),
    ],
)
def test_errors_that_cannot_be_sent_are_told(error, kind, phrase):
    with pytest.raises(kind, match=phrase) as caught:
        list(DataLoader(Failing(raising(error)), None, num_workers=2))
    assert f"Caught {type(error).__name__} in DataLoader worker process 1.\nOriginal Traceback" in str(caught.value)
    with pytest.raises(kind, match=phrase):
        list(DataLoader(range(4), num_workers=2, worker_init_fn=raising(error)))


def test_a_batch_that_cannot_be_sent_is_told():
    with pytest.raises(TypeError, match="pickle"):
        list(DataLoader([threading.Lock()], None, num_workers=1))


class Slow(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        time.sleep(0.3)
        return index


@pytest.mark.parametrize("persistent", [False, True])
def test_breaking_off_a_pass_waits_for_one_batch_at_most(persistent):
    loader = DataLoader(Slow(), 1, num_workers=1, prefetch_factor=40, persistent_workers=persistent)
    for number in loader:
        assert number.item() == 0
        broken_off = time.monotonic()
        break
    assert next(iter(loader)).item() == 0
    assert time.monotonic() - broken_off < 8  # 12, were all batches waited for


@pytest.mark.parametrize("dataset_of", [range, lambda rows: Numbers(rows)])
def test_passes_over_persistent_workers_may_go_on_within_each_other(dataset_of):
    loader = DataLoader(dataset_of(9), None, num_workers=2, persistent_workers=True)
    before = children()
    wanted = [int(number) for number in loader]
    stay = children() - before
    pairs = [(int(outer), int(inner)) for outer in loader for inner in loader]
    assert pairs == [(outer, inner) for outer in wanted for inner in wanted]
    assert [int(number) for number in loader] == wanted
    assert children() - before == stay
    assert len(stay) == 2


def test_large_batches_are_fetched_ahead_while_the_parent_is_busy(tmp_path):
    class Large(Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            (tmp_path / str(index)).touch()
            return np.zeros(1 << 20, np.uint8)

    batches = iter(DataLoader(Large(), None, num_workers=1, prefetch_factor=4))
    next(batches)
    until = time.monotonic() + 20
    while len(list(tmp_path.iterdir())) < 4 and time.monotonic() < until:
        time.sleep(0.02)
    assert len(list(tmp_path.iterdir())) >= 4
    assert len(list(batches)) == 5


# Generators


def _taken(loader, passes):
    return [[int(number) for number in loader] for _ in range(passes)]


GENERATORS = {
    "of the loader": lambda g: {"shuffle": True, "generator": g},
    "of the sampler": lambda g: {"sampler": RandomSampler(range(12), generator=g)},
    "of both": lambda g: {"sampler": SubsetRandomSampler(range(12), generator=g), "generator": g},
    "of a sampler within": lambda g: {
        "batch_sampler": BatchSampler(RandomSampler(range(12), num_samples=30, generator=g), 1, False), "batch_size": 1
    },
    "of weights": lambda g: {"sampler": WeightedRandomSampler([1.0] * 12, 9, generator=g)},
}  # fmt: skip


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("options", GENERATORS.values(), ids=GENERATORS)
def test_generators_draw_the_same_in_a_resumed_pass_and_after_it(options, workers):
    def loader(seed):
        return DataLoader(range(12), num_workers=workers, **options(sg.Generator(seed)))

    straight = loader(1)
    _taken(straight, 1)
    between = straight.state_dict()
    batches = iter(straight)
    taken = [int(next(batches)) for _ in range(4)]
    within = straight.state_dict()
    left = [int(number) for number in batches]
    later = _taken(straight, 2)
    resumed = loader(2)
    resumed.load_state_dict(json.loads(json.dumps(within)))
    assert _taken(resumed, 3) == [left, *later]
    again = loader(3)
    again.load_state_dict(between)
    assert _taken(again, 3) == [taken + left, *later]


def test_the_state_of_a_loader_with_other_generators_is_refused():
    state = DataLoader(range(4), shuffle=True, generator=sg.Generator(1)).state_dict()
    with pytest.raises(StateDictError, match="1 generators, wanted 0"):
        DataLoader(range(4), shuffle=True).load_state_dict(state)


class Drawing(IterableDataset):
    """Samples out of a buffer, as a shuffled stream gives them."""

    def __iter__(self):
        buffer = list(range(4))
        for number in range(4, 14):
            place = int(sg.randint(0, 4, (1,)))
            yield buffer[place]
            buffer[place] = number


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_an_iterable_dataset_draws_the_same_when_resumed(taken):
    sg.manual_seed(5)
    straight = DataLoader(Drawing(), 2)
    batches = iter(straight)
    for _ in range(taken):
        next(batches)
        sg.rand(3)  # as dropout does
    state = straight.state_dict()
    left = []
    for batch in batches:
        left.append(batch.tolist())
        sg.rand(3)
    sg.manual_seed(6)
    resumed = DataLoader(Drawing(), 2)
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == left


def test_passes_over_an_iterable_dataset_draw_anew():
    sg.manual_seed(5)
    loader = DataLoader(Drawing(), None)
    first, second = ([int(number) for number in loader] for _ in range(2))
    assert first != second


def test_a_pass_within_another_leaves_the_place_of_the_other():
    loader = DataLoader(range(6), 2)
    outer = iter(loader)
    next(outer)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
    assert loader.state_dict()["batch"] == 0
    next(outer)
    state = loader.state_dict()
    assert (state["epoch"], state["batch"]) == (0, 2)


def test_a_pass_that_is_left_ends_its_workers():
    loader = DataLoader(range(1000), 2, num_workers=2)
    batches = iter(loader)
    before = children()
    next(batches)
    assert len(children() - before) == 2
    batches.close()
    assert children() == before


def test_worker_init_fn_is_told_the_number_of_the_worker(tmp_path):
    list(DataLoader(range(4), 2, num_workers=2, worker_init_fn=lambda number: (tmp_path / str(number)).touch()))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_worker_init_fn_may_seed_its_worker():
    def seeded(number):
        random.seed(number)

    class Draws(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return random.random()

    drawn = [x.item() for x in DataLoader(Draws(), 1, num_workers=2, worker_init_fn=seeded)]
    assert drawn == [random.Random(0).random(), random.Random(1).random()]


def test_a_worker_that_does_not_begin_in_time_is_ended():
    started = time.monotonic()
    with pytest.raises(WorkerError, match="timed out"):
        list(DataLoader(range(2), num_workers=1, worker_init_fn=lambda _: time.sleep(60), timeout=1))
    assert time.monotonic() - started < 30


def test_what_a_sampler_draws_as_it_begins_is_drawn_again_when_resumed():
    class Drawing(SequentialSampler):
        def __iter__(self):
            return iter(sg.randperm(len(self.data_source)).tolist())

    loader = DataLoader(range(9), batch_size=None, sampler=Drawing(range(9)))
    samples = iter(loader)
    taken = [int(next(samples)) for _ in range(3)]
    resumed = DataLoader(range(9), batch_size=None, sampler=Drawing(range(9)))
    resumed.load_state_dict(loader.state_dict())
    assert sorted([*taken, *map(int, resumed)]) == list(range(9))


ORPHANS = r"""
import os, sys, time
from spillgrad.utils.data import DataLoader

class Slow:
    def __len__(self): return 100
    def __getitem__(self, index):
        os.write(1, b"%d\n" % os.getpid())
        time.sleep(0.01)
        return index

for _ in DataLoader(Slow(), 1, num_workers=2, persistent_workers=True):
    time.sleep(100)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_process_that_started_them(how):
    process = subprocess.Popen(
        [sys.executable, "-c", f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n{ORPHANS}"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    pids = {int(process.stdout.readline()) for _ in range(4)}
    assert len(pids) == 2
    if how == signal.SIGINT:
        os.killpg(process.pid, how)  # as a terminal does
    else:
        process.kill()
    _, said = process.communicate(timeout=30)
    until = time.monotonic() + 20
    while any(os.path.exists(f"/proc/{pid}") for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    assert said.count("Traceback") == (1 if how == signal.SIGINT else 0), said
