"""Matrix products against NumPy, their gradients against differences."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.autograd.graph import saved_tensors_hooks
from spillgrad.errors import ArgumentError, DtypeError, OperandError, ShapeError
from spillgrad.nn.functional import linear
from spillgrad.ops import elementwise
from spillgrad.ops.matrix_products import ACTIVATIONS
from tests.ops.checks import check_gradients, check_half_precision, leaf

RNG = np.random.default_rng(0)

PRODUCTS = [
    ((3,), (3,)),
    ((3,), (3, 2)),
    ((2, 3), (3,)),
    ((2, 3), (3, 4)),
    ((2, 2, 3), (3, 4)),
    ((2, 2, 3), (2, 3, 4)),
    ((2, 3), (2, 3, 4)),
    ((3,), (2, 3, 4)),
    ((2, 2, 3), (3,)),
    ((2, 1, 2, 3), (3, 3, 2)),
    ((1, 2, 3), (2, 3, 1)),
]


def normal(*shapes):
    return [RNG.normal(size=shape) for shape in shapes]


@pytest.mark.parametrize("shapes", PRODUCTS, ids=str)
def test_products_agree_with_numpy(shapes):
    a, b = normal(*shapes)
    np.testing.assert_allclose((sg.tensor(a) @ sg.tensor(b)).numpy(), a @ b, 1e-12, 1e-12)
    check_gradients(lambda x, y: x @ y, a, b)


@pytest.mark.parametrize(
    ("left", "right"), [((0, 3), (3, 2)), ((2, 0), (0, 2)), ((2, 3), (3, 0)), ((0, 2, 3), (3, 2)), ((0,), (0,))]
)
def test_products_of_nothing_are_zeros(left, right):
    x, y = leaf(np.ones(left)), leaf(np.ones(right))
    result = x @ y
    np.testing.assert_array_equal(result.numpy(), np.ones(left) @ np.ones(right))
    result.sum().backward()
    assert (x.grad.shape, y.grad.shape) == (left, right)


def test_products_take_any_strides():
    a, b = normal((4, 6), (8, 3))
    x, y = sg.tensor(a)[::-1, ::2].T, sg.tensor(b)[::2]
    np.testing.assert_allclose((x @ y).numpy(), a[::-1, ::2].T @ b[::2], 1e-12)
    check_gradients(lambda x, y: x.T @ y.T, *normal((3, 2), (4, 3)), second=False)
    check_gradients(lambda x, y: x.expand(2, 2, 3) @ y, *normal((2, 3), (3, 2)), second=False)


def test_products_of_integers_stay_integers():
    got = sg.tensor([[2**40, 1]]) @ sg.tensor([[1], [3]])
    assert got.dtype == sg.int64
    assert got.tolist() == [[2**40 + 3]]


@pytest.mark.parametrize("shapes", [((4, 8), (8, 3)), ((2, 4, 8), (2, 8, 3))], ids=str)
def test_float32_and_half_precision_agree_with_float64(shapes):
    check_half_precision(lambda x, y: x @ y, *normal(*shapes), tolerance=5e-2)
    assert (sg.ones(2, 3, dtype="float16") @ sg.ones(3, 2, dtype="float16")).dtype == sg.float16


def test_the_named_products_are_matmul_of_their_dimensions():
    matrix, vector, batch = map(sg.tensor, normal((3, 3), (3,), (2, 3, 3)))
    np.testing.assert_array_equal(sg.mm(matrix, matrix).numpy(), (matrix @ matrix).numpy())
    np.testing.assert_array_equal(sg.bmm(batch, batch).numpy(), (batch @ batch).numpy())
    np.testing.assert_array_equal(sg.mv(matrix, vector).numpy(), (matrix @ vector).numpy())
    np.testing.assert_array_equal(sg.dot(vector, vector).numpy(), (vector @ vector).numpy())
    np.testing.assert_array_equal(sg.outer(vector, vector).numpy(), np.outer(vector, vector))
    np.testing.assert_allclose(
        sg.addmm(vector, matrix, matrix, beta=2, alpha=3).numpy(), (2 * vector + 3 * (matrix @ matrix)).numpy()
    )


def test_a_numpy_array_may_be_either_operand():
    a, b = normal((2, 3), (3, 2))
    for product in (sg.tensor(a) @ b, a @ sg.tensor(b)):
        np.testing.assert_allclose(product.numpy(), a @ b)


@pytest.mark.parametrize("batch", [(), (2,), (2, 3), (0,)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_is_a_product_with_the_transposed_weight(batch, bias):
    arrays = normal((*batch, 3), (4, 3), (4,))[: 3 if bias else 2]
    wanted = arrays[0] @ arrays[1].T + (arrays[2] if bias else 0)
    np.testing.assert_allclose(linear(*map(sg.tensor, arrays)).numpy(), wanted, 1e-12)
    check_gradients(linear, *arrays)


@pytest.mark.parametrize("rows", [1, 2, 5, 13, 70, 600])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_linear_of_any_size_and_layout_adds_the_bias_to_every_row(rows, dtype):
    x, w, b = (array.astype(dtype) for array in normal((2, rows, 96), (80, 48), (160,)))
    for features in (1, 7, 80):
        for input in (x[0, :, :48], x[0, :, ::2], x[:, :, :48], x[:, ::-1, :48], x.swapaxes(0, 1)[..., 48:]):
            for weight in (w[:features], np.asfortranarray(w)[:features], w[:features, ::-1]):
                for bias in (b[:features], b[::2][:features]):
                    got = linear(*map(sg.from_numpy, (input, weight, bias))).numpy()
                    wanted = input.astype(float) @ weight.T.astype(float) + bias
                    np.testing.assert_allclose(got, wanted, 1e-5 if dtype == np.float32 else 1e-12, 1e-4)


def test_linear_takes_no_features_and_integers():
    assert linear(sg.ones(2, 0), sg.ones(4, 0), sg.ones(4)).tolist() == [[1] * 4] * 2
    assert linear(sg.ones(0, 3), sg.ones(4, 3), sg.ones(4)).shape == (0, 4)
    assert linear(sg.ones(2, 0), sg.ones(4, 0)).tolist() == [[0] * 4] * 2
    assert linear(sg.tensor([[1, 2]]), sg.tensor([[3, 4]]), sg.tensor([5])).tolist() == [[16]]
    check_half_precision(linear, *normal((2, 5, 3), (4, 3), (4,)), tolerance=5e-2)


def one_by_one(x, w, b, r, activation, is_added):
    y = linear(x, w, b)
    y = y if activation is None else elementwise.call(activation, y)
    return y + r if is_added else y


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("is_added", [False, True])
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_linear_with_an_epilogue_is_its_operations_one_by_one(activation, is_added, dtype):
    """Results, gradients, what is saved, and the names of the graph's nodes."""
    arrays = normal((2, 5, 3), (4, 3), (4,), (2, 5, 4))

    def fused(x, w, b, r):
        return linear(x, w, b, activation=activation, residual=r if is_added else None)

    def apart(x, w, b, r):
        return one_by_one(x, w, b, r, activation, is_added)

    def seen(function):
        tensors = [sg.tensor(a, dtype=dtype, requires_grad=True) for a in arrays]
        packed = []
        with saved_tensors_hooks(lambda t: packed.append(t.tolist()) or t, lambda t: t):
            y = function(*tensors)
        y.backward(y.detach())
        names = [y.grad_fn.name(), *(node.name() for node, _ in y.grad_fn.next_functions if node)]
        return y.tolist(), [None if t.grad is None else t.grad.tolist() for t in tensors], packed, names

    assert seen(fused) == seen(apart)
    with sg.no_grad():
        tensors = [sg.tensor(a, dtype=dtype) for a in arrays]
        assert fused(*tensors).tolist() == apart(*tensors).tolist()


@pytest.mark.parametrize("activation", [None, "silu", "gelu"])
def test_linear_with_an_epilogue_has_second_derivatives(activation):
    def function(x, w, b, r):
        return linear(x, w, b, activation=activation, residual=r)

    check_gradients(function, *normal((5, 3), (4, 3), (4,), (5, 4)))


@pytest.mark.parametrize(
    ("call", "slots"),
    [
        (lambda x, w: x @ w, [(2, 3), (3, 4)]),
        (lambda x, w: x @ w.detach(), [(3, 4)]),
        (lambda x, w: x.detach() @ w, [(2, 3)]),
        (lambda x, w: linear(x, w.T), [(2, 3), (4, 3)]),
    ],
)
def test_a_product_saves_only_what_wanted_gradients_need(call, slots):
    saved = []
    with sg.autograd.saved_tensors_hooks(lambda t: saved.append(t.shape) or t, lambda t: t):
        call(leaf(np.ones((2, 3))), leaf(np.ones((3, 4))))
    assert saved == slots


def test_a_product_of_matrices_has_pytorchs_node():
    node = (leaf(np.ones((2, 3))) @ leaf(np.ones((3, 4)))).grad_fn
    assert node.name() == "MmBackward0"
    assert (node._saved_self.shape, node._saved_mat2.shape) == ((2, 3), (3, 4))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: sg.ones(3, 4) @ sg.ones(5, 6), ShapeError,
         r"matmul: got \(3, 4\) and \(5, 6\); inner sizes 4 and 5 must match; transpose one of them"),
        (lambda: sg.ones(2, 3, 4) @ sg.ones(3, 4, 5), ShapeError, r"dimensions \(2,\) and \(3,\) do not broadcast"),
        (lambda: sg.tensor(1.0) @ sg.tensor(1.0), ShapeError, "at least one dimension"),
        (lambda: sg.ones(2, 2) @ sg.ones(2, 2, dtype="float64"), DtypeError, "matmul: got float32 and float64; conv"),
        (lambda: sg.matmul(sg.ones(2), 3), OperandError, "matmul: got a number"),
        (lambda: sg.matmul(sg.ones(2), [1, 2]), OperandError, "matmul: got list"),
        (lambda: sg.mm(sg.ones(2, 3), sg.ones(3)), ShapeError, r"mm: got \(2, 3\) and \(3,\); wanted 2 and 2 dim"),
        (lambda: sg.bmm(sg.ones(2, 2, 2), sg.ones(1, 2, 2)), ShapeError, "bmm: .* equally long: matmul broadcasts"),
        (lambda: sg.ones(2, 2).dot(sg.ones(2)), ShapeError, "dot: .*wanted 1 and 1"),
        (lambda: sg.outer(sg.ones(2, 2), sg.ones(2)), ShapeError, "outer: .*wanted 1 and 1"),
        (lambda: linear(sg.ones(2, 3), sg.ones(4, 2)), ShapeError, r"linear: got input \(2, 3\) and weight \(4, 2\)"),
        (lambda: linear(sg.ones(2, 3), sg.ones(4, 3), sg.ones(3)), ShapeError, "one value per row"),
        (lambda: linear(sg.ones(2, 3), sg.ones(4, 3), activation="elu"), ArgumentError, "'elu'; wanted None or one of"),
        (lambda: linear(sg.ones(2, 3), sg.ones(4, 3), residual=sg.ones(4)), ShapeError, r"residual \(4,\); the result"),
        (lambda: linear(sg.ones(2, 3), sg.ones(4, 3), residual=sg.ones(2, 4).double()), DtypeError, "residual float64"),
        (
            lambda: linear(*(x.to("bfloat16") for x in (sg.ones(2, 3), sg.ones(4, 3))), residual=sg.ones(4)),
            ShapeError, r"residual \(4,\); the result",
        ),
        (lambda: linear(sg.tensor([[1]]), sg.tensor([[2]]), sg.tensor([1, 2])), ShapeError, "one value per row"),
        (lambda: linear(sg.ones(2, 3), sg.ones(4, 3).double()), DtypeError, "linear: got input float32 and weight flo"),
    ],
)  # fmt: skip
def test_errors_say_what_was_given_and_what_is_wanted(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("name", ["addmm", "baddbmm", "addbmm", "addmv", "addr"])
def test_what_is_added_with_factor_0_does_not_count_be_it_nan(name):
    rng = np.random.default_rng(0)
    shapes = {"addmm": ((3, 4), (4, 5)), "baddbmm": ((2, 3, 4), (2, 4, 5)), "addbmm": ((2, 3, 4), (2, 4, 5)),
              "addmv": ((3, 4), (4,)), "addr": ((3,), (4,))}  # fmt: skip
    operands = [sg.tensor(rng.normal(size=shape)) for shape in shapes[name]]
    function = getattr(sg, name)
    product = function(sg.zeros((), dtype="float64"), *operands)
    nothing = leaf(np.full((), np.nan))
    result = function(nothing, *operands, beta=0, alpha=2)
    np.testing.assert_allclose(result.numpy(), 2 * product.numpy())
    result.sum().backward()
    assert nothing.grad.item() == 0
    half = function(leaf(np.ones(())), *operands, beta=0.5)
    np.testing.assert_allclose(half.numpy(), product.numpy() + 0.5)
    check_gradients(lambda x, *rest: function(x, *rest, beta=2, alpha=3), np.ones(()), *(o.numpy() for o in operands))


def test_the_precision_of_products_is_chosen_by_pytorch_s_words():
    assert sg.get_float32_matmul_precision() == "highest"
    sg.set_float32_matmul_precision("high")
    assert sg.get_float32_matmul_precision() == "high"
    sg.set_float32_matmul_precision("highest")
    with pytest.raises(ArgumentError, match="got 'best'; wanted 'highest', 'high' or 'medium'"):
        sg.set_float32_matmul_precision("best")


@pytest.mark.parametrize("dtype", [sg.float64, sg.bfloat16, sg.float16])
def test_a_node_that_is_called_with_a_gradient_of_another_dtype_or_shape_says_so(dtype):
    x, w = sg.ones(3, 4), sg.ones(5, 4).requires_grad_()
    for result in (linear(x, w), x @ w.T.contiguous(), linear(sg.ones(2, 3, 4), w)):
        with pytest.raises(DtypeError, match="convert one"):
            result.grad_fn(sg.ones(result.shape, dtype=dtype))
        for shape in [(5,), (7, 5), (3, 1, 5)]:
            with pytest.raises(ShapeError):
                result.grad_fn(sg.ones(shape))
