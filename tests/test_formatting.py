"""How tensors print: character for character as in PyTorch, but for the prefix of a dtype's name."""

import math

import pytest

import spillgrad as sg

# What PyTorch prints for the same tensors.
TABLE = [
    (lambda: sg.tensor(1), "tensor(1)"),
    (lambda: sg.tensor(True), "tensor(True)"),
    (lambda: sg.tensor(1.5), "tensor(1.5000)"),
    (lambda: sg.tensor(-0.0), "tensor(-0.)"),
    (lambda: sg.tensor(1e-10), "tensor(1.0000e-10)"),
    (lambda: sg.tensor(math.nan), "tensor(nan)"),
    (lambda: sg.tensor([]), "tensor([])"),
    (lambda: sg.tensor([[]]), "tensor([], size=(1, 0))"),
    (lambda: sg.tensor([1, -10, 100]), "tensor([  1, -10, 100])"),
    (
        lambda: sg.tensor([[True, False], [False, True]]),
        "tensor([[ True, False],\n        [False,  True]])",
    ),
    (lambda: sg.tensor([1.0, 2.0, -3.0]), "tensor([ 1.,  2., -3.])"),
    (lambda: sg.tensor([1.5, -2.25, 3.0]), "tensor([ 1.5000, -2.2500,  3.0000])"),
    (lambda: sg.tensor([0.0, -0.0]), "tensor([0., -0.])"),
    (lambda: sg.tensor([1e-05, 1.0]), "tensor([1.0000e-05, 1.0000e+00])"),
    (lambda: sg.tensor([0.00012]), "tensor([0.0001])"),
    (lambda: sg.tensor([9e-05, 0.01]), "tensor([9.0000e-05, 1.0000e-02])"),
    (lambda: sg.tensor([1000.5, 1.5]), "tensor([1000.5000,    1.5000])"),
    (lambda: sg.tensor([1001.5, 1.0]), "tensor([1.0015e+03, 1.0000e+00])"),
    (lambda: sg.tensor([1.0, 1e5]), "tensor([1.0000e+00, 1.0000e+05])"),
    (lambda: sg.tensor([2.0, 2001.0]), "tensor([2.0000e+00, 2.0010e+03])"),
    (lambda: sg.tensor([1e8, 1e8]), "tensor([100000000., 100000000.])"),
    (lambda: sg.tensor([123456789.0]), "tensor([1.2346e+08])"),
    (lambda: sg.tensor([1e38, 1e-38]), "tensor([1.0000e+38, 1.0000e-38])"),
    (lambda: sg.tensor([math.inf, math.nan, -math.inf]), "tensor([inf, nan, -inf])"),
    (lambda: sg.tensor([math.inf, 1.0]), "tensor([inf, 1.])"),
    (lambda: sg.tensor([math.nan, -1.5]), "tensor([    nan, -1.5000])"),
    (
        lambda: sg.tensor([[1.0, math.nan], [math.inf, -2.0]]),
        "tensor([[ 1., nan],\n        [inf, -2.]])",
    ),
    (lambda: sg.tensor([1, 2], dtype=sg.int32), "tensor([1, 2], dtype=int32)"),
    (lambda: sg.tensor([1, 2], dtype=sg.uint8), "tensor([1, 2], dtype=uint8)"),
    (lambda: sg.tensor([0.1, 2], dtype=sg.float64), "tensor([0.1000, 2.0000], dtype=float64)"),
    (lambda: sg.tensor([1, 2.5], dtype=sg.bfloat16), "tensor([1.0000, 2.5000], dtype=bfloat16)"),
    (lambda: sg.tensor([1.3333, 2.5], dtype=sg.float16), "tensor([1.3330, 2.5000], dtype=float16)"),
    (lambda: sg.tensor([1 + 2j, 3 - 1.5j]), "tensor([1.+2.0000j, 3.-1.5000j])"),
    (lambda: sg.tensor([1j, 1e6]), "tensor([      0.+1.j, 1000000.+0.j])"),
    (lambda: sg.tensor([1 + 2j], dtype=sg.complex128), "tensor([1.+2.j], dtype=complex128)"),
    (lambda: sg.zeros(0, 3), "tensor([], size=(0, 3))"),
    (lambda: sg.zeros(2, 0, 3), "tensor([], size=(2, 0, 3))"),
    (lambda: sg.zeros(0, dtype=sg.int64), "tensor([], dtype=int64)"),
    (lambda: sg.zeros(0, 3, dtype=sg.float64), "tensor([], size=(0, 3), dtype=float64)"),
    (
        lambda: sg.arange(24).reshape(2, 3, 4),
        "tensor([[[ 0,  1,  2,  3],\n         [ 4,  5,  6,  7],\n         [ 8,  9, 10, 11]],\n\n"
        "        [[12, 13, 14, 15],\n         [16, 17, 18, 19],\n         [20, 21, 22, 23]]])",
    ),
    (
        lambda: sg.arange(40),
        "tensor([ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13, 14, 15, 16, 17,\n"
        "        18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35,\n"
        "        36, 37, 38, 39])",
    ),
    (lambda: sg.arange(2000) - 1000, "tensor([-1000,  -999,  -998,  ...,   997,   998,   999])"),
    (lambda: sg.arange(1001.0), "tensor([   0.,    1.,    2.,  ...,  998.,  999., 1000.])"),
    (
        lambda: sg.arange(30.0).reshape(2, 15) / 7,
        "tensor([[0.0000, 0.1429, 0.2857, 0.4286, 0.5714, 0.7143, 0.8571, 1.0000, 1.1429,\n"
        "         1.2857, 1.4286, 1.5714, 1.7143, 1.8571, 2.0000],\n"
        "        [2.1429, 2.2857, 2.4286, 2.5714, 2.7143, 2.8571, 3.0000, 3.1429, 3.2857,\n"
        "         3.4286, 3.5714, 3.7143, 3.8571, 4.0000, 4.1429]])",
    ),
    (
        lambda: sg.arange(12000).reshape(3, 4, 1000),
        "tensor([[[    0,     1,     2,  ...,   997,   998,   999],\n"
        "         [ 1000,  1001,  1002,  ...,  1997,  1998,  1999],\n"
        "         [ 2000,  2001,  2002,  ...,  2997,  2998,  2999],\n"
        "         [ 3000,  3001,  3002,  ...,  3997,  3998,  3999]],\n\n"
        "        [[ 4000,  4001,  4002,  ...,  4997,  4998,  4999],\n"
        "         [ 5000,  5001,  5002,  ...,  5997,  5998,  5999],\n"
        "         [ 6000,  6001,  6002,  ...,  6997,  6998,  6999],\n"
        "         [ 7000,  7001,  7002,  ...,  7997,  7998,  7999]],\n\n"
        "        [[ 8000,  8001,  8002,  ...,  8997,  8998,  8999],\n"
        "         [ 9000,  9001,  9002,  ...,  9997,  9998,  9999],\n"
        "         [10000, 10001, 10002,  ..., 10997, 10998, 10999],\n"
        "         [11000, 11001, 11002,  ..., 11997, 11998, 11999]]])",
    ),
    (
        lambda: sg.ones(1500, 2),
        "tensor([[1., 1.],\n        [1., 1.],\n        [1., 1.],\n        ...,\n        [1., 1.],\n"
        "        [1., 1.],\n        [1., 1.]])",
    ),
    (lambda: sg.ones(2, requires_grad=True), "tensor([1., 1.], requires_grad=True)"),
    (lambda: sg.ones(2, dtype=sg.float64, requires_grad=True), "tensor([1., 1.], dtype=float64, requires_grad=True)"),
    (lambda: sg.zeros(0, 3, requires_grad=True), "tensor([], size=(0, 3), requires_grad=True)"),
    (lambda: sg.ones(2, requires_grad=True) * 2, "tensor([2., 2.], grad_fn=<MulBackward0>)"),
    (
        lambda: sg.ones(2, 2, dtype=sg.float64, requires_grad=True) + 1,
        "tensor([[2., 2.],\n        [2., 2.]], dtype=float64, grad_fn=<AddBackward0>)",
    ),
    (lambda: sg.ones(2, requires_grad=True).sum(), "tensor(2., grad_fn=<SumBackward0>)"),
    (
        lambda: (sg.arange(13.0) / 7).requires_grad_().exp(),
        "tensor([1.0000, 1.1536, 1.3307, 1.5351, 1.7708, 2.0427, 2.3564, 2.7183, 3.1357,\n"
        "        3.6173, 4.1727, 4.8135, 5.5527], grad_fn=<ExpBackward0>)",
    ),
    (
        lambda: (sg.arange(11.0).double() / 7).requires_grad_().sqrt(),
        "tensor([0.0000, 0.3780, 0.5345, 0.6547, 0.7559, 0.8452, 0.9258, 1.0000, 1.0690,\n"
        "        1.1339, 1.1952], dtype=float64, grad_fn=<SqrtBackward0>)",
    ),
]


@pytest.mark.parametrize(("make", "wanted"), TABLE, ids=[wanted[:40].replace("\n", " ") for _, wanted in TABLE])
def test_a_tensor_prints_as_in_pytorch(make, wanted):
    assert repr(make()) == str(make()) == wanted


def test_a_long_tensor_prints_without_reading_all_of_it():
    x = sg.zeros(1).expand(10**6, 10**6)
    assert str(x).count("...") == 7


def test_a_view_prints_its_own_elements():
    x = sg.arange(6).reshape(2, 3)
    assert repr(x.T) == "tensor([[0, 3],\n        [1, 4],\n        [2, 5]])"
    assert repr(x[:, ::-2]) == "tensor([[2, 0],\n        [5, 3]])"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (lambda: f"{sg.tensor(1.5)}", "1.5"),
        (lambda: f"{sg.tensor(1.5):.3f}", "1.500"),
        (lambda: f"{sg.tensor([1.5])}", "tensor([1.5000])"),
        (lambda: f"{sg.tensor(3):d}|{sg.tensor(7):>4}", "3|   7"),
        (lambda: f"{sg.tensor(2.5, dtype='bfloat16'):.1f}", "2.5"),
        (lambda: repr(sg.device("cpu")), "device(type='cpu')"),
        (lambda: f"{sg.zeros(1).device}", "cpu"),
        (lambda: f"{sg.float32} {sg.bfloat16}", "float32 bfloat16"),
    ],
)
def test_tensors_in_format_strings(text, wanted):
    assert text() == wanted


def test_a_format_for_a_number_needs_a_number():
    with pytest.raises(TypeError, match="unsupported format string"):
        f"{sg.ones(2):.2f}"


def test_a_parameter_says_that_it_is_one():
    assert repr(sg.nn.Parameter(sg.ones(1))) == "Parameter containing:\ntensor([1.], requires_grad=True)"
