"""Tensors from data and from nothing: values, dtypes, memory."""

import math

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, DeviceError, DtypeError, GraphError, OperandError, ShapeError

# data: (dtype, nested lists)
DATA = [
    (1, "int64", 1),
    (True, "bool", True),
    (1.5, "float32", 1.5),
    (2j, "complex64", 2j),
    ([], "float32", []),
    ([[], []], "float32", [[], []]),
    ([1, 2.5], "float32", [1.0, 2.5]),
    ([True, 2], "int64", [1, 2]),
    ([[1, 2], [3, 4]], "int64", [[1, 2], [3, 4]]),
    ((1, 2), "int64", [1, 2]),
    (range(3), "int64", [0, 1, 2]),
    (np.float64(0.1), "float64", 0.1),
    (np.int8(3), "int8", 3),
    ([np.float64(0.1)], "float64", [0.1]),
    ([np.float32(1), 2.5], "float32", [1.0, 2.5]),
    ([1, np.float64(0.1)], "float64", [1.0, 0.1]),
    ([np.float16(1.5), 1], "float16", [1.5, 1.0]),
    ([np.int8(1), 2], "int64", [1, 2]),
    ([np.bool_(True)], "bool", [True]),
    (np.array([1, 2], np.int16), "int16", [1, 2]),
    ([np.ones(2, np.float32), np.zeros(2, np.float32)], "float32", [[1, 1], [0, 0]]),
    (np.arange(3, dtype=">f4"), "float32", [0, 1, 2]),
    ([sg.tensor(1.5), sg.tensor(2.5)], "float32", [1.5, 2.5]),
    ([sg.tensor(1), 2.5], "float32", [1.0, 2.5]),
    ([sg.tensor([1], dtype=sg.int8), sg.tensor([2], dtype=sg.int8)], "int8", [[1], [2]]),
    ([[sg.tensor(1.0), 2.0], [3.0, 4.0]], "float32", [[1, 2], [3, 4]]),
]


@pytest.mark.parametrize(("data", "dtype", "wanted"), DATA, ids=[repr(d[0])[:30] for d in DATA])
def test_data_has_the_dtype_it_stands_for(data, dtype, wanted):
    x = sg.tensor(data)
    assert str(x.dtype) == dtype
    assert x.tolist() == wanted


def test_a_given_dtype_is_reached_in_one_rounding():
    assert sg.tensor([0.1], dtype="float64").item() == 0.1
    assert sg.tensor([1, 2], dtype=sg.bool).tolist() == [True, True]
    assert sg.tensor([1.7, -2.7], dtype="int32").tolist() == [1, -2]
    assert sg.tensor([2**63], dtype="uint64").tolist() == [2**63]
    assert sg.tensor([1e40]).tolist() == [math.inf]
    assert sg.tensor([70000.0], dtype="float16").tolist() == [math.inf]


def test_the_default_dtype_is_that_of_python_floats():
    sg.set_default_dtype("float64")
    try:
        assert sg.tensor([1.5]).dtype == sg.zeros(2).dtype == (sg.tensor([1]) / 2).dtype == sg.float64
        assert sg.tensor([1j]).dtype == sg.complex128
        assert repr(sg.tensor([1.5])) == "tensor([1.5000])"
    finally:
        sg.set_default_dtype("float32")
    with pytest.raises(DtypeError, match="set_default_dtype: got int32"):
        sg.set_default_dtype("int32")


@pytest.mark.parametrize(
    ("make", "shares"),
    [
        (sg.tensor, False),
        (sg.to_tensor, False),
        (sg.as_tensor, True),
        (sg.from_numpy, True),
        (sg.from_dlpack, True),
        (sg.Tensor, False),  # of another dtype than the default one
        (sg.DoubleTensor, True),
        (lambda a: sg.as_tensor(a, dtype="float32"), False),
    ],
)
def test_memory_is_copied_or_shared_as_promised(make, shares):
    array = np.zeros(3)
    x = make(array)
    array[0] = 5
    assert x.tolist() == ([5, 0, 0] if shares else [0, 0, 0])


def test_a_tensor_of_a_tensor_is_a_copy_without_graph():
    x = sg.ones(2, requires_grad=True)
    y = sg.tensor(x * 2)
    assert (y.tolist(), y.requires_grad) == ([2, 2], False)
    assert sg.as_tensor(x) is x
    assert sg.to_tensor(x, stop_gradient=False).requires_grad


@pytest.mark.parametrize("spelling", [(2, 3), ((2, 3),), ([2, 3],), (sg.tensor(2), np.int64(3)), (np.array([2, 3]),)])
@pytest.mark.parametrize("make", [sg.zeros, sg.ones, sg.empty, sg.rand, sg.randn])
def test_a_shape_may_be_spelled_in_several_ways(make, spelling):
    assert make(*spelling).shape == (2, 3)
    assert make(size=(2, 3)).shape == make(shape=[2, 3]).shape == make([2, 3], "float64").shape == (2, 3)
    assert make(()).shape == ()
    assert make(2, 0).shape == (2, 0)
    x = make(2, dtype="float64", device="cpu", requires_grad=True)
    assert (x.dtype, x.requires_grad, x.device) == (sg.float64, True, "cpu")


def test_constants_have_their_values():
    assert sg.zeros(2).tolist() == [0, 0]
    assert sg.ones(2, dtype="int8").tolist() == [1, 1]
    assert sg.full((2,), 7).dtype == sg.int64
    assert sg.full((2,), True).dtype == sg.bool
    assert sg.full((2,), np.int64(7)).dtype == sg.int64
    assert sg.full(2, sg.tensor(1.5)).tolist() == [1.5, 1.5]
    assert sg.full(shape=[2], fill_value=3, dtype="float64").tolist() == [3, 3]
    assert sg.eye(2, 3).tolist() == [[1, 0, 0], [0, 1, 0]]
    assert sg.eye(2, dtype="int64").tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("arguments", "dtype", "wanted"),
    [
        ((3,), "int64", [0, 1, 2]),
        ((3.0,), "float32", [0, 1, 2]),
        ((1, 4), "int64", [1, 2, 3]),
        ((1, 2.5, 0.5), "float32", [1, 1.5, 2]),
        ((5, 1, -2), "int64", [5, 3]),
        ((0,), "int64", []),
        ((sg.tensor(2),), "int64", [0, 1]),
    ],
)
def test_arange_counts_without_its_end(arguments, dtype, wanted):
    x = sg.arange(*arguments)
    assert (str(x.dtype), x.tolist()) == (dtype, wanted)


def test_linspace_includes_both_ends():
    assert sg.linspace(0, 1, 5).tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert sg.linspace(3, -3, steps=1).tolist() == [3]
    assert sg.linspace(sg.tensor(0.0), 10, 3, dtype="int64").tolist() == [0, 5, 10]


@pytest.mark.parametrize(
    "make",
    [sg.zeros_like, sg.ones_like, sg.empty_like, sg.rand_like, sg.randn_like, lambda x, **o: sg.full_like(x, 3, **o)],
)
def test_likes_take_over_shape_and_dtype(make):
    x = sg.ones(2, 3, dtype="float64")
    assert (make(x).shape, make(x).dtype) == ((2, 3), sg.float64)
    assert make(x, dtype="float32", requires_grad=True).dtype == sg.float32


def test_a_new_tensor_takes_over_the_dtype():
    x = sg.tensor([1], dtype="int16")
    for y in (x.new_zeros(2), x.new_ones(2), x.new_full((2,), 7), x.new_empty(2), x.new_tensor([3, 4])):
        assert (y.dtype, y.shape) == (sg.int16, (2,))
    assert x.new_zeros(2, dtype="float32").dtype == sg.float32


@pytest.mark.parametrize(
    ("draw", "mean", "std"),
    [
        (lambda: sg.rand(20_000), 0.5, math.sqrt(1 / 12)),
        (lambda: sg.randn(20_000, dtype="float64"), 0, 1),
        (lambda: sg.empty(20_000).uniform_(-1, 3), 1, 4 * math.sqrt(1 / 12)),
        (lambda: sg.empty(20_000, dtype="bfloat16").normal_(2, 0.5), 2, 0.5),
        (lambda: sg.randint(0, 3, (20_000,)).double(), 1, math.sqrt(2 / 3)),
    ],
)
def test_random_numbers_repeat_with_their_seed_and_have_their_moments(draw, mean, std):
    sg.manual_seed(3)
    first = draw().double().numpy()
    sg.manual_seed(3)
    np.testing.assert_array_equal(draw().double().numpy(), first)
    assert not np.array_equal(draw().double().numpy(), first)
    assert first.mean() == pytest.approx(mean, abs=5 * std / math.sqrt(20_000))
    assert first.std() == pytest.approx(std, rel=0.03)


def test_a_generator_is_a_stream_of_its_own():
    generator = sg.Generator().manual_seed(np.int64(5))
    first = sg.rand(4, generator=generator)
    state = generator.get_state()
    second = sg.rand(4, generator=generator)
    assert first.tolist() != second.tolist()
    generator.set_state(state)
    assert sg.rand(4, generator=generator).tolist() == second.tolist()
    assert generator.initial_seed() == 5
    with pytest.raises(ArgumentError, match="manual_seed: got str"):
        sg.manual_seed("x")


def test_random_integers_stay_in_their_bounds():
    x = sg.randint(2, 5, (1000,))
    assert (x.dtype, set(x.tolist())) == (sg.int64, {2, 3, 4})
    assert set(sg.randint(3, (1000,)).tolist()) == {0, 1, 2}
    assert sg.randint(high=5, size=(2,), dtype="float32").dtype == sg.float32
    assert sg.randint(0, 9, shape=[2, 3]).shape == (2, 3)
    assert sorted(sg.randperm(50).tolist()) == list(range(50))
    assert sg.randperm(50).tolist() != list(range(50))


def test_filling_in_place_counts_as_a_change_and_needs_no_leaf():
    x = sg.zeros(3)
    assert x.normal_() is x
    assert x._version == 1
    with pytest.raises(RuntimeError, match="leaf"):
        sg.zeros(3, requires_grad=True).uniform_()
    with sg.no_grad():
        sg.zeros(3, requires_grad=True).uniform_()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: sg.tensor([[1], [2, 3]]), ShapeError, "tensor: got nested data that is not rectangular"),
        (lambda: sg.tensor("abc"), OperandError, "tensor: got str data"),
        (lambda: sg.tensor(None), OperandError, "tensor: got NoneType data"),
        (lambda: sg.tensor({1: 2}), OperandError, "tensor: got dict data"),
        (lambda: sg.tensor(np.array(["a"])), DtypeError, "dtype: got"),
        (lambda: sg.tensor([300], dtype="uint8"), ArgumentError, "numbers that uint8 cannot hold; it takes 0 to 255"),
        (lambda: sg.tensor([math.nan], dtype="int32"), ArgumentError, "int32 cannot hold"),
        (lambda: sg.tensor(2**63), ArgumentError, "int64 cannot hold"),
        (lambda: sg.full((2,), 300, dtype="int8"), ArgumentError, "int8 cannot hold"),
        (lambda: sg.from_numpy([1]), OperandError, "from_numpy: got list"),
        (lambda: sg.from_numpy(np.arange(3, dtype=">f4")), ArgumentError, "another byte order"),
        (lambda: sg.frombuffer(b"abc", dtype=sg.float32), ArgumentError, "buffer size must be a multiple"),
        (lambda: sg.frombuffer(b"abcd", dtype=sg.int16, count=3), ArgumentError, "buffer is smaller"),
        (lambda: sg.frombuffer(b"", dtype=sg.uint8), ArgumentError, "must not be 0"),
        (lambda: sg.frombuffer(1, dtype=sg.uint8), TypeError, "bytes-like object"),
        (lambda: sg.frombuffer(b"abc", dtype=sg.uint8).add_(1), GraphError, "read-only"),
        (lambda: sg.from_dlpack([1]), OperandError, "from_dlpack: got list"),
        (lambda: sg.zeros(-1), ShapeError, r"zeros: got shape \(-1,\); sizes are 0 or more"),
        (lambda: sg.zeros(2.5), OperandError, "sizes are integers"),
        (lambda: sg.zeros("a"), OperandError, "sizes are integers"),
        (lambda: sg.eye(-1), ShapeError, "eye: got shape"),
        (lambda: sg.zeros(2, dtype="float12"), DtypeError, "dtype: got 'float12'; wanted one of bfloat16, bool"),
        (lambda: sg.zeros(2, device="cuda"), DeviceError, "device: got 'cuda'"),
        (lambda: sg.zeros(2, dtype="int64", requires_grad=True), DtypeError, "only Tensors of floating point"),
        (lambda: sg.arange(0, 5, 0), ArgumentError, "arange: got step 0"),
        (lambda: sg.arange(5, 0), ArgumentError, "the step must lead towards the end"),
        (lambda: sg.linspace(0, 1, -1), ArgumentError, "linspace: got -1 steps"),
        (lambda: sg.rand(2, dtype="int64"), ArgumentError, "rand: got dtype int64"),
        (lambda: sg.zeros(2, dtype="int8").normal_(), ArgumentError, "normal_: got dtype int8"),
        (lambda: sg.randperm(-1), ShapeError, r"randperm: got shape \(-1,\)"),
        (lambda: sg.randint(3, 3, (2,)), ArgumentError, r"randint: got \[3, 3\); high must exceed low"),
    ],
)
def test_errors_say_what_was_given_and_what_is_wanted(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_tensor_from_a_buffer_shares_its_memory():
    buffer = bytearray(range(8))
    x = sg.frombuffer(buffer, dtype=sg.int16, count=2, offset=2)
    np.testing.assert_array_equal(x, np.array([2, 4], np.uint8) + 256 * np.array([3, 5]))
    x.zero_()
    assert buffer == bytes([0, 1, 0, 0, 0, 0, 6, 7])
    assert sg.frombuffer(buffer, dtype=sg.float32, requires_grad=True).requires_grad
