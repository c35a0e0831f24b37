"""Operations that rearrange elements: values against NumPy, gradients against differences, views that are views."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, DimensionError, OperandError, ShapeError
from spillgrad.nn.functional import pad
from spillgrad.ops import shape
from tests.ops.checks import check_gradients, leaf

A = np.random.default_rng(0).normal(size=(2, 3, 4))
SQUARE = A[0, :, :3]

# name: (function of a tensor, the same of an array, input, whether the result is a view of it)
TABLE = {
    "reshape": (lambda x: x.reshape(4, 6), lambda a: a.reshape(4, 6), A, True),
    "reshape -1": (lambda x: x.reshape((3, -1)), lambda a: a.reshape(3, -1), A, True),
    "reshape of a transpose": (lambda x: x.transpose(0, 2).reshape(-1), lambda a: a.T.reshape(-1), A, False),
    "view": (lambda x: x.view(2, 12), lambda a: a.reshape(2, 12), A, True),
    "view_as": (lambda x: x.view_as(sg.ones(24)), lambda a: a.reshape(24), A, True),
    "reshape_as": (lambda x: x.reshape_as(sg.ones(24)), lambda a: a.reshape(24), A, True),
    "ravel": (lambda x: x.ravel(), np.ravel, A, True),
    "flatten": (lambda x: x.flatten(1), lambda a: a.reshape(2, 12), A, True),
    "unflatten": (lambda x: x.unflatten(-1, (2, -1)), lambda a: a.reshape(2, 3, 2, 2), A, True),
    "squeeze": (lambda x: x.squeeze(), np.squeeze, A[:1, :, :1], True),
    "squeeze one": (lambda x: x.squeeze(0), lambda a: a.squeeze(0), A[:1, :, :1], True),
    "squeeze several": (lambda x: x.squeeze((0, 1)), lambda a: a.squeeze(0), A[:1], True),
    "unsqueeze": (lambda x: x.unsqueeze(1), lambda a: a[:, None], A, True),
    "unsqueeze last": (lambda x: x.unsqueeze(-1), lambda a: a[..., None], A, True),
    "permute": (lambda x: x.permute(2, 0, 1), lambda a: a.transpose(2, 0, 1), A, True),
    "transpose": (lambda x: x.transpose(0, -1), lambda a: a.swapaxes(0, -1), A, True),
    "perm": (lambda x: shape.transpose(x, perm=[1, 2, 0]), lambda a: a.transpose(1, 2, 0), A, True),
    "swapdims": (lambda x: x.swapdims(1, 2), lambda a: a.swapaxes(1, 2), A, True),
    "t": (lambda x: x.t(), np.transpose, SQUARE[:2], True),
    "T": (lambda x: x.T, np.transpose, A, True),
    "mT": (lambda x: x.mT, lambda a: a.swapaxes(-1, -2), A, True),
    "movedim": (lambda x: x.movedim(0, 2), lambda a: np.moveaxis(a, 0, 2), A, True),
    "movedim several": (lambda x: x.moveaxis((0, 1), (2, 0)), lambda a: np.moveaxis(a, (0, 1), (2, 0)), A, True),
    "expand": (lambda x: x.expand(2, -1, 4), lambda a: np.broadcast_to(a, (2, 3, 4)), A[:1, :, :1], True),
    "expand new": (lambda x: x.expand(5, 2, 3, 4), lambda a: np.broadcast_to(a, (5, 2, 3, 4)), A, True),
    "expand_as": (lambda x: x.expand_as(sg.ones(3, 4)), lambda a: np.broadcast_to(a, (3, 4)), A[0, 0], True),
    "broadcast_to": (lambda x: x.broadcast_to((2, 3, 4)), lambda a: np.broadcast_to(a, (2, 3, 4)), A[0], True),
    "narrow": (lambda x: x.narrow(1, 1, 2), lambda a: a[:, 1:3], A, True),
    "narrow from the end": (lambda x: x.narrow(2, -3, 2), lambda a: a[..., 1:3], A, True),
    "select": (lambda x: x.select(1, -1), lambda a: a[:, -1], A, True),
    "flip": (lambda x: x.flip(0, 2), lambda a: np.flip(a, (0, 2)), A, False),
    "roll": (lambda x: x.roll(2), lambda a: np.roll(a, 2), A, False),
    "roll along": (lambda x: x.roll((1, -1), (0, 2)), lambda a: np.roll(a, (1, -1), (0, 2)), A, False),
    "pad": (lambda x: pad(x, (1, 2, 0, 1), value=7.0),
            lambda a: np.pad(a, ((0, 0), (0, 1), (1, 2)), constant_values=7), A, False),
    "pad and crop": (lambda x: pad(x, (-1, 1)), lambda a: np.pad(a[..., 1:], ((0, 0), (0, 0), (0, 1))), A, False),
    "repeat": (lambda x: x.repeat(2, 1, 1, 3), lambda a: np.tile(a, (2, 1, 1, 3)), A, False),
    "tile": (lambda x: x.tile((2, 1)), lambda a: np.tile(a, (2, 1)), A, False),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, 1), lambda a: np.repeat(a, 2, 1), A, False),
    "repeat_interleave flat": (lambda x: x.repeat_interleave(2), lambda a: np.repeat(a, 2), A, False),
    "repeat_interleave by counts": (lambda x: x.repeat_interleave(sg.tensor([2, 0, 1]), 1),
                                    lambda a: np.repeat(a, [2, 0, 1], 1), A, False),
    "tril": (lambda x: x.tril(), np.tril, A, False),
    "triu": (lambda x: x.triu(-1), lambda a: np.triu(a, -1), A, False),
    "split": (lambda x: x.split(2, 1)[1], lambda a: a[:, 2:], A, True),
    "split by keyword": (lambda x: x.split(split_size=[1, 3], dim=-1)[1], lambda a: a[..., 1:], A, True),
    "split sizes": (lambda x: x.split([1, 0, 3], -1)[2], lambda a: a[..., 1:], A, True),
    "chunk": (lambda x: x.chunk(3, 2)[1], lambda a: a[..., 2:4], A, True),
    "unbind": (lambda x: x.unbind(1)[2], lambda a: a[:, 2], A, True),
    "clone": (lambda x: x.clone(), np.array, A, False),
    "contiguous": (lambda x: x.T.contiguous(), np.transpose, A, False),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_a_rearrangement_agrees_with_numpy(name):
    function, oracle, a, is_view = TABLE[name]
    x = sg.tensor(a)
    got = function(x)
    np.testing.assert_array_equal(got.numpy(), oracle(a))
    assert np.shares_memory(got.numpy(), x.numpy()) == is_view
    assert (got.storage is x.storage) == is_view


@pytest.mark.parametrize("name", TABLE)
def test_both_derivatives_of_a_rearrangement_agree_with_differences(name):
    function, _, a, _ = TABLE[name]
    check_gradients(lambda x: function(x * x), a)


@pytest.mark.parametrize("name", [n for n in TABLE if "view" not in n])
def test_a_rearrangement_takes_any_strides_and_dtypes(name):
    function, oracle, a, _ = TABLE[name]
    backwards = np.flip(a).copy()
    np.testing.assert_array_equal(function(sg.tensor(backwards)[(slice(None, None, -1),) * a.ndim]).numpy(), oracle(a))
    for dtype in ("int32", "bfloat16", "bool"):
        whole = np.round(a * 2)
        got = function(sg.tensor(whole).to(dtype))
        assert str(got.dtype) == dtype
        np.testing.assert_array_equal(got.float().numpy(), sg.tensor(oracle(whole)).to(dtype).float().numpy())


@pytest.mark.parametrize("name", TABLE)
def test_a_view_and_its_source_change_together(name):
    function, oracle, a, is_view = TABLE[name]
    x = sg.tensor(a)
    got = function(x)
    x.mul_(2)
    np.testing.assert_array_equal(got.numpy(), oracle(2 * a if is_view else a))
    assert got._version == (1 if is_view else 0)


JOINED = {
    "cat": (lambda *x: sg.cat(x), lambda *a: np.concatenate(a), [A, A[:1]]),
    "cat along": (lambda *x: sg.cat(x, -1), lambda *a: np.concatenate(a, -1), [A, A[..., :1], A]),
    "cat of one": (lambda x: sg.cat([x]), lambda a: a, [A]),
    "stack": (lambda *x: sg.stack(x), lambda *a: np.stack(a), [A, A]),
    "stack along": (lambda *x: sg.stack(x, -2), lambda *a: np.stack(a, -2), [A, A, A]),
    "stack of one": (lambda x: sg.stack([x], 1), lambda a: a[:, None], [A]),
    "stack of numbers": (lambda *x: sg.stack(x), lambda *a: np.stack(a), [A[0, 0, 0], A[1, 1, 1]]),
    "hstack": (lambda *x: sg.hstack(x), lambda *a: np.hstack(a), [A, A]),
    "hstack of vectors": (lambda *x: sg.hstack(x), lambda *a: np.hstack(a), [A[0, 0], A[0, 1, :2]]),
    "vstack": (lambda *x: sg.vstack(x), lambda *a: np.vstack(a), [A[0, 0], A[0, 1]]),
    "meshgrid": (lambda *x: sg.meshgrid(*x)[0] * 2 + sg.meshgrid(*x)[1],
                 lambda a, b: a[:, None] * 2 + b, [A[0, 0], A[0, :, 0]]),
    "meshgrid xy": (lambda *x: sg.meshgrid(*x, indexing="xy")[0], lambda a, b: np.meshgrid(a, b)[0],
                    [A[0, 0], A[0, :, 0]]),
    "broadcast_tensors": (lambda *x: sg.broadcast_tensors(*x)[1], lambda a, b: np.broadcast_arrays(a, b)[1],
                          [A, A[0, :1]]),
}  # fmt: skip


@pytest.mark.parametrize("name", JOINED)
def test_joining_agrees_with_numpy_and_gives_each_part_its_gradient(name):
    function, oracle, arrays = JOINED[name]
    np.testing.assert_array_equal(function(*map(sg.tensor, arrays)).numpy(), oracle(*arrays))
    check_gradients(lambda *x: function(*(y * y for y in x)), *arrays)


def test_joining_promotes_as_arithmetic_does():
    for join in (sg.cat, sg.stack):
        for first, second, wanted in (
            ("float32", "int64", "float32"), ("float16", "bfloat16", "float32"), ("uint8", "int8", "int16"),
            ("bool", "int8", "int8"), ("bfloat16", "int64", "bfloat16"),
        ):  # fmt: skip
            assert join([sg.ones(2, dtype=first), sg.ones(2, dtype=second)]).dtype == wanted


def test_an_empty_vector_joins_anything():
    x = sg.ones(2, 3)
    assert sg.cat([sg.tensor([]), x]).shape == (2, 3)
    assert sg.cat([x, sg.zeros(0, 3)]).shape == (2, 3)
    assert sg.cat([sg.tensor([]), sg.tensor([])]).shape == (0,)


def test_pieces_cover_the_dimension():
    x = sg.arange(5)
    assert [p.tolist() for p in x.split(2)] == [[0, 1], [2, 3], [4]]
    assert [p.tolist() for p in x.chunk(3)] == [[0, 1], [2, 3], [4]]
    assert len(x.chunk(4)) == 3
    assert [p.tolist() for p in x.split(9)] == [[0, 1, 2, 3, 4]]
    assert [p.shape for p in sg.zeros(0).split(2)] == [(0,)]
    assert [p.shape for p in sg.zeros(0).chunk(3)] == [(0,)] * 3
    assert sg.zeros(0, 3).unbind() == ()


def test_the_pieces_gradients_come_from_one_node():
    x = leaf(A)
    first, second = x.split([1, 1])
    assert first.grad_fn is second.grad_fn
    (first**2).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.concatenate([2 * A[:1], 0 * A[1:]]))


def test_every_slice_of_an_unbind_gets_its_gradient():
    check_gradients(lambda x: sum(i * y * y for i, y in enumerate(x.unbind(2))), A)
    x = leaf(A)
    slices = x.unbind(1)
    assert {s.grad_fn.name() for s in slices} == {"UnbindBackward0"}
    slices[1].sum().backward()
    assert x.grad.sum((0, 2)).tolist() == [0, 8, 0]


def test_an_expanded_tensor_costs_no_memory():
    x = sg.ones(3, 1).expand(3, 1000)
    assert x.stride() == (1, 0)
    assert x.storage.array.nbytes == 12


def test_a_view_can_read_the_bytes_as_another_dtype():
    x = sg.tensor([1.0, -2.0])
    bits = x.view(sg.int32)
    assert bits.tolist() == [0x3F800000, -0x40000000]
    bits[0] = 0x40400000
    assert x.tolist() == [3.0, -2.0]
    assert x._version == 1
    assert sg.zeros(2, 4).view("float64").shape == (2, 2)


def test_numpy_integers_are_dims_and_sizes():
    x, one = sg.tensor(A), np.int64(1)
    assert x.movedim(one, np.int64(0)).shape == (3, 2, 4)
    assert x[:, :1].squeeze(one).shape == (2, 4)
    assert [piece.shape for piece in x.split(np.int64(2), one)] == [(2, 2, 4), (2, 1, 4)]
    assert x.roll(one, one).tolist() == x.roll(1, 1).tolist()
    assert sg.flip(x, axis=one).tolist() == x.flip(1).tolist()


def test_paddles_spellings_are_understood():
    x = sg.tensor(A)
    assert sg.reshape(x, shape=[4, 6]).shape == (4, 6)
    assert sg.transpose(x, perm=[2, 0, 1]).shape == x.transpose([2, 0, 1]).shape == (4, 2, 3)
    assert sg.unsqueeze(x, axis=0).shape == (1, 2, 3, 4)
    assert sg.squeeze(x[:1], axis=0).shape == (3, 4)
    assert sg.flatten(x, start_axis=1, stop_axis=2).shape == (2, 12)
    assert sg.concat([x, x], axis=1).shape == (2, 6, 4)
    assert sg.stack([x, x], axis=1).shape == (2, 2, 3, 4)
    assert len(sg.split(x, 1, axis=1)) == len(sg.chunk(x, 3, axis=1)) == len(sg.unbind(x, axis=1)) == 3
    assert sg.flip(x, axis=[0]).tolist() == sg.flip(x, dims=(0,)).tolist() == sg.flip(x, 0).tolist()
    assert sg.roll(x, 1, axis=0).tolist() == sg.roll(x, shifts=1, dims=0).tolist()
    assert sg.broadcast_to(x, shape=[5, 2, 3, 4]).shape == x.expand(shape=[5, 2, 3, 4]).shape == (5, 2, 3, 4)
    assert sg.permute(x, dims=(2, 1, 0)).shape == (4, 3, 2)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: x.reshape(5), ShapeError, r"reshape: got shape \(5,\) for 24 elements; sizes must multiply to that"),
        (lambda x: x.reshape(-1, -1), ShapeError, "one may be -1"),
        (lambda x: x.reshape(-2, 12), ShapeError, "reshape"),
        (lambda x: x.reshape(2.5, 3), OperandError, "sizes are integers"),
        (lambda x: x.view("abc"), TypeError, "wanted one of bfloat16"),
        (lambda x: x.T.view(24), ShapeError, r"not compatible with a tensor of shape \(4, 3, 2\) and .*use reshape"),
        (lambda x: x[..., :3].view("complex128"), ShapeError, "view: got complex128"),
        (lambda x: x.flatten(2, 0), ArgumentError, "flatten: got start_dim 2 behind end_dim 0"),
        (lambda x: x.unsqueeze(5), DimensionError, "unsqueeze: got dim 5; a tensor of 4 dimensions takes -4 to 3"),
        (lambda x: sg.unsqueeze(x), ArgumentError, "unsqueeze: got no dim"),
        (lambda x: x.squeeze(3), DimensionError, "squeeze: got dim 3"),
        (lambda x: x.permute(0, 1), ArgumentError, r"permute: got dims \(0, 1\) for a tensor of 3 dimensions"),
        (lambda x: x.permute(0, 0, 1), DimensionError, "a dimension appears twice"),
        (lambda x: x.transpose(0, 3), DimensionError, "transpose: got dim 3"),
        (lambda x: x.t(), ShapeError, "t: got a tensor of 3 dimensions"),
        (lambda x: x.movedim((0, 1), 2), ArgumentError, "movedim: .* give as many of each"),
        (lambda x: x.expand(4, 3, 4), ShapeError, r"expand: got \(2, 3, 4\), wanted \(4, 3, 4\)"),
        (lambda x: x.expand(3, 4), ShapeError, "give a size for each dimension"),
        (lambda x: sg.broadcast_tensors(x, sg.ones(5)), ShapeError, r"broadcast_tensors: got .*\(2, 3, 4\) and \(5,\)"),
        (lambda x: sg.cat([]), ArgumentError, "cat: got no tensors"),
        (lambda x: sg.cat(x), OperandError, "cat: got Tensor; wanted a list or tuple of tensors"),
        (lambda x: sg.cat([x, A]), OperandError, "cat: got list"),
        (lambda x: sg.cat([x, x[0]]), ShapeError, r"cat: got \(2, 3, 4\) and \(3, 4\); all but dimension 0 must match"),
        (lambda x: sg.cat([sg.tensor(1.0)]), ShapeError, "cat: got a 0-d tensor.*use stack"),
        (lambda x: sg.cat([x], 3), DimensionError, "cat: got dim 3"),
        (lambda x: sg.stack([x, x[0]]), ShapeError, "stack: .*all shapes must be equal"),
        (lambda x: sg.stack([]), ArgumentError, "stack: got no tensors"),
        (lambda x: sg.meshgrid(x, indexing="ab"), ArgumentError, 'accepted are "ij" and "xy"'),
        (lambda x: x.split(0), ArgumentError, "split: got a size of 0"),
        (lambda x: x.split(), OperandError, "give split_size"),
        (lambda x: x.split([1, 2]), ArgumentError, r"split: got sizes \[1, 2\]; dimension 0 has 2 indices"),
        (lambda x: x.split([-1, 3]), ArgumentError, r"split: got sizes \[-1, 3\]"),
        (lambda x: x.chunk(0), ArgumentError, "chunk: got 0 chunks"),
        (lambda x: sg.tensor(1.0).unbind(), DimensionError, "unbind: got a 0-d tensor"),
        (lambda x: x.narrow(1, 2, 2), ArgumentError, "narrow: got start 2 and length 2; dimension 1 has 3 indices"),
        (lambda x: x.select(1, 3), DimensionError, "out of bounds"),
        (lambda x: x.flip(0, 0), DimensionError, "flip: .*appears twice"),
        (lambda x: x.roll((1, 2), 0), ArgumentError, "give one shift for each dimension"),
        (lambda x: pad(x, (1,)), ArgumentError, "pad: got 1 widths for 3 dimensions"),
        (lambda x: pad(x, (1,) * 8), ArgumentError, "pad: got 8 widths"),
        (lambda x: pad(x, (-3, -2)), ArgumentError, "it crops more than there is"),
        (lambda x: pad(x, (1, 1), "mirror"), ArgumentError, "got mode='mirror'; accepted are \"constant\""),
        (lambda x: pad(x, (4, 0), "reflect"), ArgumentError, r"got \(4, 0\) in mode 'reflect'.* at most 3 on each"),
        (lambda x: pad(x, (0, 5), "circular"), ArgumentError, "at most 4 on each side"),
        (lambda x: pad(x, (1, 1), "replicate", 2.0), ArgumentError, 'only "constant" takes a value'),
        (lambda x: x.repeat(2), ShapeError, r"repeat: got \(2,\) for 3 dimensions"),
        (lambda x: x.repeat_interleave(sg.tensor([1, 2]), 1), ArgumentError, "wanted one count, or 3 of them"),
        (lambda x: x[0, 0].tril(), ShapeError, "tril: .*at least two dimensions"),
    ],
)  # fmt: skip
def test_errors_say_what_was_given_and_what_is_wanted(call, error, message):
    with pytest.raises(error, match=message):
        call(sg.tensor(A))


@pytest.mark.parametrize("take_apart", [lambda x: x.split(1), lambda x: x.chunk(2), lambda x: x.unbind()])
def test_a_number_without_dimensions_cannot_be_taken_apart(take_apart):
    with pytest.raises(RuntimeError, match=r"0-d tensor|at least a 1-dimensional tensor"):
        take_apart(sg.tensor(2.0))
