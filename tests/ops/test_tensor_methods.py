"""Operators and methods of the tensor class: both sides, in place, beside NumPy's arrays."""

import importlib
import inspect
import operator
import pickle

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import array_api
from spillgrad.errors import DtypeError, GraphError, ShapeError
from tests.ops.checks import check_gradients, leaf

ARITHMETIC = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow"]
BITS = ["and_", "or_", "xor", "lshift", "rshift"]
COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]


@pytest.mark.parametrize("name", [*ARITHMETIC, *COMPARISONS])
@pytest.mark.parametrize("other", [2.0, np.array([2.0, 3.0, 0.5]), np.float64(2)], ids=["number", "array", "scalar"])
def test_operators_take_tensors_numbers_and_arrays_on_either_side(name, other):
    a = np.array([1.5, 2.0, 7.0])
    apply = getattr(operator, name)
    for got, wanted in (
        (apply(sg.tensor(a), other), apply(a, other)),
        (apply(other, sg.tensor(a)), apply(other, a)),
        (apply(sg.tensor(a), sg.tensor(other)), apply(a, other)),
    ):
        assert isinstance(got, sg.Tensor)
        np.testing.assert_allclose(got.numpy(), wanted, 1e-14)


@pytest.mark.parametrize("name", BITS)
def test_bit_operators_take_integers_on_either_side(name):
    a = np.array([5, 6, 1])
    apply = getattr(operator, name)
    np.testing.assert_array_equal(apply(sg.tensor(a), 3).numpy(), apply(a, 3))
    np.testing.assert_array_equal(apply(3, sg.tensor(a)).numpy(), apply(3, a))
    assert apply(sg.tensor([1], dtype="int8"), sg.tensor(3)).dtype == sg.int8


@pytest.mark.parametrize("name", [*ARITHMETIC, *(n for n in BITS)])
def test_an_augmented_assignment_changes_the_tensor_itself(name):
    whole = name in BITS
    x = sg.tensor([5, 6]) if whole else sg.tensor([5.0, 6.0])
    wanted = getattr(operator, name)(x.numpy().copy(), 2)
    before = x
    x = getattr(operator, f"i{name.rstrip('_')}")(x, 2)
    assert x is before
    assert x._version == 1
    np.testing.assert_allclose(x.numpy(), wanted)


def test_signs_and_inversion():
    x = sg.tensor([1.5, -2.0])
    assert (-x).tolist() == [-1.5, 2.0]
    assert +x is x
    assert abs(x).tolist() == [1.5, 2.0]
    assert (~sg.tensor([0, 5])).tolist() == [-1, -6]
    assert (~sg.tensor([True, False])).tolist() == [False, True]


def test_what_is_no_operand_is_left_to_the_other_side():
    class Other:
        def __radd__(self, left):
            return "added"

        def __eq__(self, other):
            return "compared"

        __hash__ = None

    x = sg.ones(2)
    assert x + Other() == "added"
    assert (x == Other()) == "compared"
    assert (x == None) is False  # noqa: E711
    assert (x != "a") is True
    assert (x == [1, 1]) is False
    for bad in (lambda: x + "a", lambda: "a" + x, lambda: x < None, lambda: x @ [1, 2]):
        with pytest.raises(TypeError, match=r"not supported|unsupported operand|can only concatenate"):
            bad()


def test_numpys_arrays_leave_operators_to_tensors_and_functions_take_tensors():
    a, x = np.ones(3), sg.tensor([1.0, 2.0, 3.0])
    for result in (a * x, a + x, a - x, a / x, a**x, a == x, a < x, np.float64(2) * x, np.int64(2) - x):
        assert isinstance(result, sg.Tensor)
    assert (np.float64(2) * x).dtype == sg.float32
    np.testing.assert_allclose(np.sin(x), np.sin(x.numpy()))
    assert isinstance(np.add(a, x), sg.Tensor)
    np.testing.assert_array_equal(np.stack([x, x]), [[1, 2, 3]] * 2)
    assert np.arange(5)[sg.tensor([0, 2])].tolist() == [0, 2]


IN_PLACE = [name for name in dir(sg.Tensor) if name.endswith("_") and not name.startswith("_")]
UNARY = [
    name
    for name in IN_PLACE
    if inspect.isroutine(function := getattr(sg, name[:-1], None))
    and list(inspect.signature(function).parameters) == ["input", "out"]
]


@pytest.mark.parametrize("name", UNARY)
def test_an_in_place_method_leaves_what_its_function_returns(name):
    function = getattr(sg, name[:-1])
    others = {"bitwise_not_": [6, 3], "logical_not_": [True, False], "acosh_": [1.3, 1.6], "arccosh_": [1.3, 1.6]}
    x = sg.tensor(others.get(name, [0.3, 0.6]))
    wanted = function(x)
    assert getattr(x, name)() is x
    assert x.tolist() == wanted.to(x.dtype).tolist()
    assert x._version == 1


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda x: x.add_(1, alpha=2), [3, 4]),
        (lambda x: x.sub_(x), [0, 0]),
        (lambda x: x.div_(0.4, rounding_mode="floor"), [2, 4]),
        (lambda x: x.clamp_(min=1.5), [1.5, 2]),
        (lambda x: x.clip_(0, 1), [1, 1]),
        (lambda x: x.clamp_min_(1.5), [1.5, 2]),
        (lambda x: x.clamp_max_(1.5), [1, 1.5]),
        (lambda x: x.addcmul_(x, x, value=2), [3, 10]),
        (lambda x: x.addcdiv_(x, x), [2, 3]),
        (lambda x: x.lerp_(sg.tensor([3.0, 4.0]), 0.5), [2, 3]),
        (lambda x: x.copy_(sg.tensor(7)), [7, 7]),
        (lambda x: x.fill_(5), [5, 5]),
        (lambda x: x.zero_(), [0, 0]),
        (lambda x: x.masked_fill_(x > 1, 9), [1, 9]),
        (lambda x: x.index_add_(0, sg.tensor([1, 1]), sg.ones(2)), [1, 4]),
        (lambda x: x.scatter_(0, sg.tensor([1]), sg.tensor([8.0])), [1, 8]),
        (lambda x: x.scatter_add_(0, sg.tensor([1, 1]), sg.ones(2)), [1, 4]),
    ],
)
def test_in_place_methods_change_their_tensor(change, wanted):
    x = sg.tensor([1.0, 2.0])
    assert change(x) is x
    assert x.tolist() == wanted


def test_gradients_flow_through_a_change_in_place():
    check_gradients(lambda a, b: (a * 1).mul_(b).add_(a, alpha=2).clamp_(min=-5) * 3, [1.0, -2.0], [3.0, 4.0])
    check_gradients(lambda a: (a * 1).masked_fill_(sg.tensor([True, False]), 0.0) ** 2, [1.0, 2.0])
    check_gradients(lambda a: (a * 1).tril_() ** 2, np.arange(4.0).reshape(2, 2))


def test_the_result_of_a_change_in_place_must_fit():
    x = sg.tensor([1, 2])
    with pytest.raises(DtypeError, match="result type float32 can't be cast to the tensor's int64"):
        x.add_(0.5)
    with pytest.raises(DtypeError, match="can't be cast"):
        x /= 2
    with pytest.raises(ShapeError, match="an in-place result must keep the tensor's"):
        x.add_(sg.ones(3, 2, dtype="int64"))
    x += sg.tensor([3], dtype="int8")
    assert (x.dtype, x.tolist()) == (sg.int64, [4, 5])
    y = sg.tensor([1.0])
    y += sg.tensor([0.5], dtype="float64")
    assert (y.dtype, y.tolist()) == (sg.float32, [1.5])
    with pytest.raises(GraphError, match="read-only"):
        frozen = np.zeros(2)
        frozen.flags.writeable = False
        sg.from_numpy(frozen).add_(1)


@pytest.mark.parametrize("module", [
    "activations", "arithmetic", "clamp_where", "comparison", "counting", "distance", "einsum", "index_replace",
    "indexing", "join_split", "logic", "matrix_products", "rearrange", "reduce", "sampling", "scan", "shape", "sorting",
    "special", "trigonometry",
])  # fmt: skip
def test_a_method_is_the_function_of_its_name(module):
    home = f"spillgrad.ops.{module}"
    functions = {n: f for n, f in vars(importlib.import_module(home)).items() if getattr(f, "__module__", "") == home}
    shared = [n for n, f in functions.items() if inspect.isfunction(f) and hasattr(sg.Tensor, n) and hasattr(sg, n)]
    assert shared
    other_order = {"where", "polygamma"}  # the tensor comes second in the function
    others = [n for n in shared if getattr(sg.Tensor, n) is not functions[n] or getattr(sg, n) is not functions[n]]
    other_meaning = {"repeat", "relu_"}  # the array API's repeat; a method in place changes its tensor by itself
    assert (other_order | other_meaning).issuperset(others)


PUBLIC = [
    f"{owner.__name__}.{name}"
    for owner in (sg, sg.nn.functional, sg.special, sg.linalg, sg.fft, array_api, array_api.linalg, array_api.fft)
    for name, value in vars(owner).items()
    if inspect.isfunction(value) and not name.startswith("_")
]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_function_is_found_where_it_says_it_is_and_so_pickles(name):
    module, _, of = name.rpartition(".")
    function = getattr(importlib.import_module(module), of)
    assert pickle.loads(pickle.dumps(function)) is function


def test_everything_public_says_what_it_does():
    undocumented = [
        name
        for owner in (sg, sg.Tensor)
        for name in dir(owner)
        if not name.startswith("_") and callable(getattr(owner, name)) and not inspect.getdoc(getattr(owner, name))
    ]
    assert undocumented == []


def test_dir_shows_methods_and_properties():
    names = dir(leaf([1.0]))
    for name in ("add", "add_", "backward", "sum", "T", "mT", "shape", "stop_gradient", "numpy", "to", "masked_fill_"):
        assert name in names
