import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, OperandError
from spillgrad.nn.utils import rnn
from tests.ops.checks import check_gradients

RNG = np.random.default_rng(0)
SEQUENCES = [RNG.normal(size=(length, 2)) for length in (2, 4, 1)]


def tensors():
    return [sg.tensor(s) for s in SEQUENCES]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_padding_fills_up_to_the_longest(batch_first, side):
    padded = rnn.pad_sequence(tensors(), batch_first, padding_value=7.0, padding_side=side)
    assert padded.shape == ((3, 4, 2) if batch_first else (4, 3, 2))
    for row, sequence in zip(padded if batch_first else padded.transpose(0, 1), SEQUENCES, strict=True):
        part = slice(None, len(sequence)) if side == "right" else slice(4 - len(sequence), None)
        np.testing.assert_array_equal(row.numpy()[part], sequence)
        assert (row == 7.0).sum().item() == 2 * (4 - len(sequence))


def test_packing_keeps_elements_step_by_step_in_order_of_length():
    packed = rnn.pack_sequence(tensors(), enforce_sorted=False)
    assert packed.batch_sizes.tolist() == [3, 2, 1, 1]
    assert packed.sorted_indices.tolist() == [1, 0, 2]
    assert packed.unsorted_indices.tolist() == [1, 0, 2]
    first, second, third = SEQUENCES
    expected = [second[0], first[0], third[0], second[1], first[1], second[2], second[3]]
    np.testing.assert_array_equal(packed.data.numpy(), expected)


@pytest.mark.parametrize("batch_first", [True, False])
def test_what_was_packed_comes_back_in_its_order(batch_first):
    padded = rnn.pad_sequence(tensors(), batch_first)
    packed = rnn.pack_padded_sequence(padded, sg.tensor([2, 4, 1]), batch_first, enforce_sorted=False)
    back, lengths = rnn.pad_packed_sequence(packed, batch_first)
    np.testing.assert_array_equal(back.numpy(), padded.numpy())
    assert (lengths.tolist(), lengths.dtype) == ([2, 4, 1], sg.int64)
    longer, _ = rnn.pad_packed_sequence(packed, batch_first, padding_value=-1.0, total_length=6)
    assert longer.shape == ((3, 6, 2) if batch_first else (6, 3, 2))
    assert (longer == -1).sum().item() == 2 * (18 - 7)
    for got, sequence in zip(rnn.unpack_sequence(packed), SEQUENCES, strict=True):
        np.testing.assert_array_equal(got.numpy(), sequence)


def test_integers_can_be_padded_and_packed():
    packed = rnn.pack_sequence([sg.tensor([3, 1]), sg.tensor([2])])
    assert packed.data.tolist() == [3, 2, 1]
    assert packed.sorted_indices is None
    padded, _ = rnn.pad_packed_sequence(packed, padding_value=9)
    assert (padded.tolist(), padded.dtype) == ([[3, 2], [1, 9]], sg.int64)


def test_packing_and_padding_have_gradients():
    def function(x):
        packed = rnn.pack_padded_sequence(x, [2, 3], enforce_sorted=False)
        return rnn.pad_packed_sequence(packed._replace(data=packed.data**2), total_length=4)[0]

    check_gradients(function, RNG.normal(size=(3, 2, 2)))
    check_gradients(lambda *x: rnn.pad_sequence(x), *SEQUENCES)


def test_a_packed_sequence_can_be_converted():
    packed = rnn.pack_sequence(tensors(), enforce_sorted=False)
    assert packed.float().data.dtype == sg.float32
    assert packed.float().double().data.dtype == sg.float64
    assert packed.cpu() is packed
    assert rnn.invert_permutation(sg.tensor([2, 0, 1])).tolist() == [1, 2, 0]
    assert rnn.invert_permutation(None) is None


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: rnn.pack_padded_sequence(x, [1, 2]), ArgumentError, "sorted in decreasing order when"),
        (lambda x: rnn.pack_padded_sequence(x, [3]), ArgumentError, r"got 1 \(batch_size=2\)"),
        (lambda x: rnn.pack_padded_sequence(x, [3, 0]), ArgumentError, "greater than 0"),
        (lambda x: rnn.pack_padded_sequence(x, [4, 1]), ArgumentError, "at most 3"),
        (lambda x: rnn.pack_padded_sequence(x, [1.5, 1]), OperandError, "a vector of integers"),
        (lambda x: rnn.pad_packed_sequence(rnn.pack_padded_sequence(x, [3, 1]), total_length=2), ArgumentError, "max"),
        (lambda x: rnn.pad_sequence([]), ArgumentError, "no sequences"),
        (lambda x: rnn.pad_sequence([x], padding_side="both"), ArgumentError, '"left" or "right"'),
    ],
)
def test_what_does_not_fit_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call(sg.zeros(3, 2, 1))
