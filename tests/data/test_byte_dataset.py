import itertools

import numpy as np
import pytest

from spillgrad.data import ByteDataset
from spillgrad.errors import ArgumentError, DataError

# Byte i of the text is its place in it, so that a window tells where it was cut.
PLACES = bytes(range(250))


def take(dataset, count, start_step=0):
    return list(itertools.islice(dataset.train_batches(start_step), count))


def test_targets_are_the_inputs_one_byte_later():
    for x, y in take(ByteDataset(PLACES, context=8, batch=3, seed=0), 50):
        assert x.shape == y.shape == (3, 8)
        assert x.dtype == y.dtype == np.int64
        assert (y == x + 1).all()
        assert (np.diff(x) == 1).all()


def test_an_epoch_covers_the_training_bytes_once_in_shuffled_windows():
    dataset = ByteDataset(PLACES, context=8, batch=1, seed=0, held_out_fraction=0.1)
    windows = (dataset.train_bytes - 8) // 8
    starts = [int(x[0, 0]) for x, _ in take(dataset, windows)]
    assert len(set(starts)) == windows
    assert (np.diff(sorted(starts)) == 8).all()
    assert starts != sorted(starts)


def test_each_epoch_has_an_order_of_its_own():
    dataset = ByteDataset(PLACES, context=8, batch=1, seed=0)
    windows = (dataset.train_bytes - 8) // 8
    starts = [int(x[0, 0]) for x, _ in take(dataset, 2 * windows)]
    assert starts[:windows] != starts[windows:]


@pytest.mark.parametrize("start_step", [1, 7, 40, 1000])
def test_resuming_at_a_step_gives_the_batches_of_an_uninterrupted_run(start_step):
    straight = take(ByteDataset(PLACES, context=8, batch=5, seed=3), start_step + 6)[start_step:]
    resumed = take(ByteDataset(PLACES, context=8, batch=5, seed=3), 6, start_step)
    assert all(
        (a == b).all() for one, two in zip(straight, resumed, strict=True) for a, b in zip(one, two, strict=True)
    )


def test_resuming_costs_the_same_at_any_step():
    dataset = ByteDataset(PLACES, context=8, batch=5, seed=3)
    x, _ = next(dataset.train_batches(10**15))
    assert x.shape == (5, 8)


def test_another_seed_gives_another_order():
    first, second = (take(ByteDataset(PLACES, 8, 4, seed), 1)[0][0] for seed in (0, 1))
    assert (first != second).any()


def test_the_order_is_the_same_on_every_machine():
    starts = [x[:, 0].tolist() for x, _ in take(ByteDataset(PLACES, context=8, batch=4, seed=0), 2)]
    assert starts == [[1, 169, 17, 89], [161, 137, 73, 9]]


def test_held_out_windows_are_in_order_and_never_trained_on():
    dataset = ByteDataset(PLACES, context=8, batch=2, seed=0, held_out_fraction=0.2)
    held_out = list(dataset.held_out_batches())
    assert dataset.held_out_count == len(held_out)
    assert [x[:, 0].tolist() for x, _ in held_out] == [[200, 208], [216, 224], [232, 240]]
    assert all((y == x + 1).all() for x, y in held_out)
    trained = {int(value) for x, y in take(dataset, 500) for value in (x.max(), y.max())}
    assert max(trained) == 199


def test_a_held_out_part_smaller_than_a_batch_still_comes():
    dataset = ByteDataset(PLACES, 8, batch=16, seed=0)
    assert [x.shape for x, _ in dataset.held_out_batches()] == [(3, 8)]
    assert dataset.held_out_count == 1


def test_the_shortest_text_trains_on_one_window_and_holds_out_one():
    dataset = ByteDataset(PLACES[:18], context=8, batch=2, seed=0)
    assert take(dataset, 1)[0][0].tolist() == [list(range(8))] * 2
    assert [x.tolist() for x, _ in dataset.held_out_batches()] == [[list(range(9, 17))]]


def test_a_text_that_is_too_short_says_how_much_there_is_and_is_needed():
    with pytest.raises(DataError, match=r"got 17 bytes .* at least 18"):
        ByteDataset(PLACES[:17], context=8, batch=2, seed=0)


@pytest.mark.parametrize("wrong", [{"context": 0}, {"batch": 0}, {"held_out_fraction": 0.0}, {"held_out_fraction": 1}])
def test_sizes_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        ByteDataset(PLACES, **{"context": 8, "batch": 2, "seed": 0} | wrong)
