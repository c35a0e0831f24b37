import numpy as np
import pytest

import spillgrad as sg
from spillgrad.data import DataLoader, TensorDataset
from spillgrad.errors import ArgumentError, ShapeError


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
    loader = DataLoader(dataset(50), batch_size=50, shuffle=True)
    list(loader)
    later = next(iter(loader))[0].tolist()
    resumed = DataLoader(dataset(50), batch_size=50, shuffle=True)
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
    assert data.state_dict() == {"epoch": 0, "batch": 0}
    assert len(list(data)) == 2
    assert data.state_dict() == {"epoch": 2, "batch": 0}
