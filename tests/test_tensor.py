"""The tensor class: what it says about itself, to Python and NumPy, and how it shares memory."""

import copy
import math
import operator
import pickle

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, DtypeError, ExportError, GraphError, OperandError


def test_a_tensor_describes_its_memory():
    x = sg.zeros(2, 3, 4, dtype="float64")
    assert x.shape == x.size() == (2, 3, 4)
    assert (x.size(1), x.size(-1), len(x)) == (3, 4, 2)
    assert x.ndim == x.dim() == x.ndimension() == 3
    assert x.numel() == x.nelement() == sg.numel(x) == 24
    assert (x.itemsize, x.element_size(), x.nbytes) == (8, 8, 192)
    assert (x.stride(), x.stride(0), x.T.stride()) == ((12, 4, 1), 12, (1, 4, 12))
    assert (x.storage_offset(), x[1, 2:].storage_offset()) == (0, 20)
    assert x[1].data_ptr() == x.data_ptr() + 96
    assert (x.is_contiguous(), x.T.is_contiguous(), x[:1].T.is_contiguous()) == (True, False, False)
    assert (x.is_cuda, x.device, x.device.type) == (False, "cpu", "cpu")
    assert all(x.dtype == spelling for spelling in (sg.float64, "float64", np.float64))
    assert sg.is_tensor(x)
    assert not sg.is_tensor(x.numpy())


@pytest.mark.parametrize("value", [3, -2.5, True, 1.5 + 2j])
def test_one_element_is_a_python_number(value):
    for shape in [(), (1,), (1, 1)]:
        got = sg.full(shape, value).item()
        assert got == value
        assert type(got) is type(value)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "uint64"])
def test_every_dtype_turns_into_python_numbers(dtype):
    x = sg.tensor([[1, 2], [3, 4]], dtype=dtype)
    kind = float if x.is_floating_point() else int
    assert type(x[0, 0].item()) is type(x.tolist()[0][0]) is kind
    assert x.tolist() == [[1, 2], [3, 4]]


def test_conversions_to_python_numbers():
    assert (int(sg.tensor(3.7)), float(sg.tensor([3])), complex(sg.tensor(2.0))) == (3, 3.0, 2 + 0j)
    assert operator.index(sg.tensor([3])) == 3
    assert [10, 20, 30][sg.tensor(1)] == 20
    assert list(range(sg.tensor(2))) == [0, 1]
    assert math.sqrt(sg.tensor(4.0)) == 2
    assert [bool(sg.tensor(v)) for v in (0, 1.5, [0.0], [[True]])] == [False, True, False, True]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: sg.ones(2).item(), ArgumentError, r"item: a tensor of shape \(2,\) has 2 elements"),
        (lambda: sg.zeros(0).item(), ArgumentError, "has 0 elements"),
        (
            lambda: bool(sg.ones(2)),
            ArgumentError,
            r"Boolean value of Tensor with more than one value is ambiguous: got shape \(2,\); use any",
        ),
        (lambda: bool(sg.zeros(0)), RuntimeError, "ambiguous"),
        (lambda: int(sg.ones(2)), ArgumentError, "only one can become a number"),
        (lambda: operator.index(sg.tensor(1.0)), DtypeError, "only integer tensors"),
        (lambda: len(sg.tensor(1.0)), TypeError, "0-d tensor"),
        (lambda: iter(sg.tensor(1.0)), TypeError, "iteration over a 0-d tensor"),
        (lambda: "a" in sg.ones(2), OperandError, "in: got str"),
        (lambda: np.array(sg.ones(2), dtype="float64", copy=False), ValueError, "copy"),
    ],
)
def test_what_has_no_answer_says_why(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_iteration_and_unpacking_give_views_of_the_first_dimension():
    x = sg.arange(6).reshape(3, 2)
    assert [row.tolist() for row in x] == [[0, 1], [2, 3], [4, 5]]
    first, *rest = x
    first += 10
    assert x[0].tolist() == [10, 11]
    assert len(rest) == 2
    a, b = sg.tensor([1.0, 2.0], requires_grad=True)
    assert a.requires_grad
    assert b.item() == 2
    assert list(sg.zeros(0, 3)) == []


def test_membership_compares_elements():
    x = sg.tensor([1.0, 2.0])
    assert 2 in x
    assert sg.tensor(2.0) in x
    assert 3 not in x


def test_tensors_are_hashed_by_identity():
    x = sg.ones(2)
    assert {x: "a"}[x] == "a"
    assert hash(x) != hash(x.detach())
    assert len({x, x, x.detach()}) == 2
    assert any(y is x for y in [sg.zeros(2), x])


def test_numpy_shares_memory_in_both_directions():
    x = sg.zeros(3, requires_grad=True)
    for array in (x.numpy(), np.asarray(x), x.detach().numpy(), x.numpy(force=True), np.array(x, copy=False)):
        assert np.shares_memory(array, x.numpy())
    x.numpy()[0] = 5
    assert x.tolist() == [5, 0, 0]
    assert not np.shares_memory(np.array(x), x.numpy())
    assert np.asarray(x, dtype="float64").dtype == np.float64
    a = np.arange(6.0).reshape(2, 3).T[::-1]
    y = sg.from_numpy(a)
    y[0, 0] = -1
    assert a[0, 0] == -1
    assert y.stride() == (-1, 3)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "uint8", "int64", "bool", "complex64"])
def test_dlpack_shares_memory_in_both_directions(dtype):
    x = sg.ones(2, 3, dtype=dtype)
    out = np.from_dlpack(x.T)
    assert (out.shape, str(out.dtype)) == ((3, 2), dtype)
    out[0, 0] = 0
    assert x[0, 0].item() == 0
    array = np.ones((2, 3), dtype)
    back = sg.from_dlpack(array[:, ::2])
    back[1, 1] = 0
    assert array[1, 2] == 0
    assert x.__dlpack_device__() == (1, 0)


def test_dlpack_takes_scalars_empty_and_read_only_memory():
    frozen = np.arange(3.0)
    frozen.flags.writeable = False
    x = sg.from_dlpack(frozen)
    with pytest.raises(GraphError, match="read-only; clone"):
        x += 1
    assert np.from_dlpack(x).tolist() == [0, 1, 2]
    assert sg.from_dlpack(np.array(2.0)).item() == 2
    assert np.from_dlpack(sg.zeros(0, 3)).shape == (0, 3)
    y = sg.ones(2)
    z = sg.from_dlpack(y)
    z += 1
    assert (y.tolist(), y._version) == ([2, 2], 1)


def test_bfloat16_is_exported_as_itself():
    x = sg.tensor([[1.0, 2.0], [3.0, 4.0]], dtype="bfloat16")
    y = sg.from_dlpack(OfAnotherLibrary(x.T))
    assert (y.dtype, y.tolist(), y.data_ptr()) == (sg.bfloat16, [[1, 3], [2, 4]], x.data_ptr())
    y[0, 1] = 7
    assert x.tolist() == [[1, 2], [7, 4]]
    with pytest.raises((RuntimeError, BufferError), match="Unsupported dtype"):
        np.from_dlpack(x)


class OfAnotherLibrary:
    """An array known by its capsule alone, `legacy` that from before DLPack 1.0."""

    def __init__(self, given: object, legacy: bool = False) -> None:
        self.given, self.legacy = given, legacy

    def __dlpack__(self, **options: object) -> object:
        if self.legacy and options:
            raise TypeError("max_version came with DLPack 1.0")
        return self.given.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_a_capsule_says_whether_its_memory_is_read_only():
    array = np.arange(3.0)
    x = sg.from_dlpack(OfAnotherLibrary(array, legacy=True))  # which cannot say it
    x += 1
    assert array.tolist() == [1, 2, 3]
    array.flags.writeable = False
    y = sg.from_dlpack(OfAnotherLibrary(array))
    assert y.data_ptr() == array.ctypes.data
    with pytest.raises(GraphError, match="read-only; clone"):
        y += 1
    z = sg.from_dlpack(OfAnotherLibrary(y))  # it stays so on the way on
    with pytest.raises(GraphError, match="read-only; clone"):
        z += 1


def test_memory_that_other_libraries_do_not_take_is_not_exported():
    with pytest.raises(ExportError, match="negative str") as raised:
        np.from_dlpack(sg.arange(3)[::-1])
    assert isinstance(raised.value, BufferError)


def test_views_share_storage_and_version():
    x = sg.zeros(2, 3)
    views = [x[0], x.T, x.reshape(6), x.expand(2, 2, 3), x.detach(), x.data, x.unbind(1)[2], x[:, 1:].split(1)[0]]
    assert all(v.storage is x.storage for v in views)
    views[0].add_(1)
    x.mul_(2)
    assert {v._version for v in views} == {2}
    assert (x + 0).storage is not x.storage
    assert x.storage.uid != sg.zeros(1).storage.uid


def test_a_copy_is_another_tensor_over_the_same_storage():
    x = sg.ones(2, requires_grad=True)
    x.name = "weight"
    y = copy.copy(x)
    assert y is not x
    assert y.storage is x.storage
    assert (y.requires_grad, y.name, y.grad) == (True, "weight", None)
    parameter = copy.copy(sg.nn.Parameter(sg.ones(1)))
    assert type(parameter) is sg.nn.Parameter


def test_a_deep_copy_has_its_own_memory_gradient_and_class():
    x = sg.nn.Parameter(sg.ones(2))
    x.name = "weight"
    (x * 3).sum().backward()
    y = copy.deepcopy(x)
    y.data.zero_()
    y.grad.zero_()
    assert (x.tolist(), x.grad.tolist()) == ([1, 1], [3, 3])
    assert (type(y), y.requires_grad, y.name) == (sg.nn.Parameter, True, "weight")
    a, b = copy.deepcopy([x, x])
    assert a is b
    with pytest.raises(GraphError, match=r"\(graph leaves\) support the deepcopy protocol; detach\(\)"):
        copy.deepcopy(x * 2)


@pytest.mark.parametrize(
    "x",
    [
        sg.tensor(1.5),
        sg.arange(6).reshape(2, 3).T,
        sg.ones(2, dtype="bfloat16", requires_grad=True),
        sg.zeros(0, 3),
        sg.arange(4)[::-1],
        sg.nn.Parameter(sg.ones(2)),
    ],
    ids=repr,
)
def test_a_tensor_survives_pickling(x):
    y = pickle.loads(pickle.dumps(x))
    assert type(y) is type(x)
    assert (y.dtype, y.requires_grad) == (x.dtype, x.requires_grad)
    assert y.tolist() == x.tolist()
    assert not np.shares_memory(y.numpy(), x.numpy())


def test_requires_grad_and_stop_gradient_are_two_views_of_one_flag():
    x = sg.ones(2)
    assert (x.requires_grad, x.stop_gradient) == (False, True)
    x.stop_gradient = False
    assert x.requires_grad
    assert x.requires_grad_(False) is x
    assert x.stop_gradient
    assert sg.to_tensor([1.0], stop_gradient=False).requires_grad
    y = sg.ones(2, requires_grad=True) * 2
    y.stop_gradient = True
    assert (y.is_leaf, y.grad_fn, y.requires_grad) == (True, None, False)


def _view_of_what_became_trainable():
    base = sg.zeros(3)
    view = base[:2]
    base.mul_(sg.ones(3, requires_grad=True))
    return view


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: sg.tensor([1]).requires_grad_(), DtypeError, "requires_grad: got a tensor of int64"),
        (lambda: setattr(sg.tensor([True]), "requires_grad", True), RuntimeError, "only Tensors of floating point"),
        (lambda: (sg.ones(1, requires_grad=True) * 2).requires_grad_(False), GraphError, "flags of leaf variables"),
        (lambda: setattr(sg.ones(2), "grad", sg.ones(3)), GraphError, "assign a gradient of size '.3.'"),
        (lambda: setattr(sg.ones(2), "grad", 3), TypeError, "assigned grad expected to be a Tensor or None but got"),
        (lambda: (lambda x: setattr(x, "grad", x))(sg.ones(2)), RuntimeError, "as its own grad"),
        (lambda: setattr(sg.ones(2), "data", 3), TypeError, "Variable data has to be a tensor, but got int"),
        (
            lambda: setattr(sg.ones(2, requires_grad=True), "data", sg.tensor([1])),
            DtypeError,
            "floating point or complex dtype, but got int64",
        ),
        (lambda: _view_of_what_became_trainable().requires_grad_(False), GraphError, "flags of leaf variables"),
        (lambda: sg.ones(2).register_hook(print), GraphError, "doesn't require gradient"),
    ],
)
def test_flags_and_gradients_that_cannot_be_set_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_data_is_the_same_memory_without_graph_and_may_be_replaced():
    x = sg.ones(2, requires_grad=True)
    x.data.mul_(3)
    assert (x.tolist(), x.data.requires_grad) == ([3, 3], False)
    x.data = sg.zeros(3)
    assert (x.shape, x.requires_grad, x.is_leaf) == ((3,), True, True)
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]


def test_the_version_does_not_go_back_when_data_is_replaced():
    x = sg.ones(2)
    x.add_(1).add_(1)
    assert x._version == 2
    x.data = sg.zeros(2)
    assert (x._version, x[:]._version, x.detach()._version) == (2, 2, 2)
    x.add_(1)
    assert x._version == 3
    much_changed = sg.zeros(2)
    for _ in range(5):
        much_changed.add_(1)
    x.data = much_changed
    x.mul_(2)
    assert x._version == much_changed._version == 6


def test_a_gradient_does_not_add_to_one_of_the_shape_before_data_was_replaced():
    x = sg.ones(2, requires_grad=True)
    (x * 2).sum().backward()
    x.data = sg.ones(1)
    y = (x * 3).sum()
    with pytest.raises(GraphError, match=r"shape \(1,\) for a leaf whose .grad is \(2,\)"):
        y.backward()
    assert x.grad.tolist() == [2, 2]


def test_gradients_are_cleared_in_both_dialects():
    x = sg.ones(2, requires_grad=True)
    (x * 2).sum().backward()
    grad = x.grad
    x.clear_grad()
    assert x.grad.tolist() == grad.tolist() == [0, 0]
    x.clear_grad(set_to_zero=False)
    assert x.grad is None
    x.grad = sg.ones(2)
    x.zero_grad()
    assert x.grad is None


def test_the_constructor_takes_data_as_floats_and_shares_arrays_and_tensors():
    assert sg.Tensor([1, 2]).dtype == sg.float32
    array = np.zeros(2, np.float32)
    x = sg.Tensor(array, requires_grad=True)
    array[0] = 1
    assert (x.tolist(), x.requires_grad, x.dtype) == ([1, 0], True, sg.float32)
    assert sg.Tensor(x).storage is x.storage
    assert sg.Tensor().shape == (0,)
    with pytest.raises(OperandError, match="wanted numbers"):
        sg.Tensor(np.array(["a"]))


@pytest.mark.parametrize("number", [None, 0, 1])
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_device_has_the_hash_of_what_it_equals(kind, number):
    device = sg.device(kind, number)
    by_number = sg.device(f"{kind}:{number or 0}")
    assert (device == by_number, hash(device) == hash(by_number)) == (True, True)
    called = "cpu" if (kind, number or 0) == ("cpu", 0) else f"{kind}:{number or 0}"  # as tensors' devices are
    assert device == called and {device: "found"}[called] == {called: "found"}[device] == "found"
    assert device != object() and device != kind + ":7" and device != 0


def test_a_device_equals_its_name():
    assert sg.device("cpu") == "cpu" == sg.zeros(1).device
    assert sg.device("cpu") != "cuda"
    assert {sg.device("cpu"): 1}["cpu"] == 1
    assert sg.zeros(1, device=sg.device("cpu")).to(sg.device("cpu")).device == "cpu"
