import itertools

import numpy as np
import pytest

from spillgrad.data.packing import Packing, best_fit_decreasing


def one_by_one(lengths, context):
    """Put each piece into the row with the least room that holds it, and return what the rows hold."""
    rows = []
    for length in lengths:
        fitting = [row for row in rows if sum(row) + length <= context]
        row = max(fitting, key=sum, default=None)
        if row is None:
            rows.append(row := [])
        row.append(length)
    return sorted(rows)


def cases():
    random = np.random.default_rng(0)
    for context, count in itertools.product([1, 2, 7, 16, 100], [1, 2, 30, 300]):
        yield context, np.sort(random.integers(1, context + 1, count))[::-1]
        yield context, np.full(count, max(1, context // 3))


@pytest.mark.parametrize(("context", "lengths"), list(cases()))
def test_groups_of_rows_are_filled_as_rows_one_by_one(context, lengths):
    rows, places = best_fit_decreasing(lengths, context)
    count = rows.max() + 1
    held = [lengths[rows == row].tolist() for row in range(count)]
    assert sorted(held) == one_by_one(lengths.tolist(), context)
    for row in range(count):
        # Pieces lie side by side, from the start of the row on.
        ends = np.cumsum(lengths[rows == row])
        assert places[rows == row].tolist() == [0, *ends[:-1]]
        assert ends[-1] <= context


def test_an_epoch_changes_which_piece_of_a_length_goes_where_and_no_more():
    lengths = np.array([3, 1, 2, 3, 1, 1, 2, 4])
    packing = Packing(lengths, 4, packed=True)
    seen = set()
    for words in itertools.permutations(range(8)):
        by_length = packing.shuffled(np.array(words, np.uint64))
        assert sorted(by_length) == list(range(8))
        assert lengths[by_length].tolist() == [4, 3, 3, 2, 2, 1, 1, 1]
        seen.add(tuple(by_length))
    assert len(seen) == 2 * 2 * 6


def test_rows_of_one_piece_keep_the_order_of_pieces():
    packing = Packing(np.array([2, 4, 1]), 4, packed=False)
    assert packing.count == 3
    assert [packing.row(number, packing.by_length)[0].tolist() for number in range(3)] == [[0], [1], [2]]
