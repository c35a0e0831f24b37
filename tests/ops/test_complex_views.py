"""Views of complex tensors' parts share memory, and gradients flow through changes of either side."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, DtypeError, GraphError, ShapeError

VALUES = np.array([[1 + 2j, 3 - 1j], [0.5j, -2 + 0j], [4 + 4j, 1j]])
PAIRS = np.stack([VALUES.real, VALUES.imag], -1)


def leaf(values=VALUES):
    return sg.tensor(values, requires_grad=True)


def test_views_of_parts_have_their_values():
    z = sg.tensor(VALUES)
    np.testing.assert_array_equal(z.real.numpy(), VALUES.real)
    np.testing.assert_array_equal(z.imag.numpy(), VALUES.imag)
    np.testing.assert_array_equal(sg.view_as_real(z).numpy(), PAIRS)
    np.testing.assert_array_equal(sg.view_as_complex(sg.tensor(PAIRS)).numpy(), VALUES)
    np.testing.assert_array_equal(sg.view_as_real(z.T[::2]).numpy(), PAIRS.swapaxes(0, 1)[::2])
    assert sg.view_as_real(sg.tensor(1j)).tolist() == [0.0, 1.0]
    assert sg.view_as_complex(sg.tensor([1.0, 2.0])).item() == 1 + 2j


def test_views_share_memory_and_version():
    z = sg.tensor(VALUES)
    views = [z.real, z.imag, sg.view_as_real(z), sg.view_as_complex(sg.view_as_real(z))]
    assert all(view.storage is z.storage for view in views)
    assert [z.real.data_ptr() - z.data_ptr(), z.imag.data_ptr() - z.data_ptr()] == [0, 8]
    before = z._version
    z.imag.fill_(7)
    assert views[3]._version == z._version == before + 1
    np.testing.assert_array_equal(views[3].numpy(), VALUES.real + 7j)


def test_parts_are_set_by_assignment():
    z = sg.tensor(VALUES)
    z.real = sg.ones(3, 2)
    z.imag = 2.0
    assert z.tolist() == [[1 + 2j] * 2] * 3
    with pytest.raises(DtypeError, match="imag"):
        sg.ones(2).imag = sg.ones(2)


def test_a_real_tensor_is_its_own_real_part():
    x = sg.ones(2)
    assert x.real is x
    assert sg.conj(x) is x
    assert sg.real(x) is x


# Each gives a real vector from a copy `z` of a complex leaf (3, 2), a real (3, 2, 2) `r`, and weights `w` (3, 2).
CHANGES = {
    "a part, then the whole": lambda z, r, w: (z.imag.mul_(w), sg.view_as_real(z).reshape(-1) ** 2)[1],
    "the whole, then a part": lambda z, r, w: (lambda part: (z.copy_(z * 1j), part**2)[1])(z.real),
    "pairs": lambda z, r, w: (sg.view_as_real(z)[1:, :, 1].copy_(w[1:]), (z * z).real)[1],
    "numbers over pairs": lambda z, r, w: (sg.view_as_complex(r)[1:].mul_(z[:2]), r**2)[1],
    "pairs under numbers": lambda z, r, w: (lambda n: (r[1].mul_(w[1:2].T), (n * n).imag)[1])(sg.view_as_complex(r)),
    "a part of a part": lambda z, r, w: (z.T[0].real[1:].copy_(w[1:, 0]), (z * z.conj() * (1 + 2j)).imag)[1],
    "assignment": lambda z, r, w: (setattr(z, "real", w), (z * z * z).real)[1],
}


@pytest.mark.parametrize("name", CHANGES)
def test_gradients_flow_through_changes_of_views(name):
    def changed(z, r, w):
        return CHANGES[name](z * 1, r * 1, w)

    inputs = leaf(), leaf(PAIRS + 0.25), leaf(np.arange(6.0).reshape(3, 2) + 0.5)
    assert sg.autograd.gradcheck(changed, inputs)
    assert sg.autograd.gradgradcheck(changed, inputs)


def test_a_view_of_a_leaf_cannot_be_changed():
    z = leaf()
    for view in (z.real, z.imag, sg.view_as_real(z)):
        with pytest.raises(GraphError, match="a view of a leaf Variable that requires grad"):
            view.mul_(2)
    with sg.no_grad():
        z.real.fill_(0)
    np.testing.assert_array_equal(z.detach().numpy(), 1j * VALUES.imag)


def test_names_of_nodes_are_pytorchs():
    z, x = leaf(), leaf(PAIRS)
    found = [v.grad_fn.name() for v in (z.real, z.imag, sg.view_as_real(z), sg.view_as_complex(x), z.conj())]
    assert found == [
        "SelectBackward0", "SelectBackward0", "ViewAsRealBackward0", "ViewAsComplexBackward0", "ConjBackward0",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: sg.view_as_real(sg.ones(2)), DtypeError, "only supported for complex tensors"),
        (lambda: sg.ones(2).imag, DtypeError, "imag: .* is not implemented for tensors with non-comp"),
        (lambda: sg.view_as_complex(sg.ones(2, 3)), ShapeError, "must have a last dimension of size 2"),
        (lambda: sg.view_as_complex(sg.tensor(1.0)), ShapeError, "must have one or more dimensions"),
        (
            lambda: sg.view_as_complex(sg.ones(2, 2, dtype="int64")),
            DtypeError,
            "only supported for float32",
        ),
        (lambda: sg.view_as_complex(sg.ones(2, 2).T), ShapeError, "a last dimension with stride 1"),
        (lambda: sg.view_as_complex(sg.ones(2, 3)[:, :2]), ShapeError, "a stride divisible by 2 for all but last"),
        (lambda: sg.view_as_complex(sg.ones(9)[1:].view(4, 2)), ShapeError, "a storage_offset divisible by 2"),
        (lambda: sg.complex(sg.ones(2), sg.ones(2).double()), DtypeError, "wanted float32 twice"),
        (lambda: sg.ones(2).fill_(1j), ArgumentError, "cannot be converted to float32 without overflow"),
        (lambda: sg.full((2,), 1j, dtype="float32"), ArgumentError, "cannot be converted to float32"),
        (lambda: sg.ones(2).__setitem__(0, 1j), ArgumentError, "cannot be converted to float32"),
        (lambda: sg.ones(2).masked_fill(sg.ones(2) > 0, 1j), ArgumentError, "cannot be converted to float32"),
        (lambda: float(sg.tensor(1 + 2j)), ArgumentError, "cannot be converted to a real number"),
        (
            lambda: leaf().sum().backward(),
            GraphError,
            "only for real scalar outputs but got complex128",
        ),
        (lambda: sg.mm(sg.ones(2, 2), sg.ones(2, 2) * 1j), DtypeError, "float32 and complex64"),
    ],
)
def test_what_does_not_fit_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_conversion_to_real_numbers_warns_and_has_a_gradient():
    z = leaf()
    with pytest.warns(UserWarning, match="Casting complex values to real discards the imaginary part"):
        x = z.to("float64")
    np.testing.assert_array_equal(x.detach().numpy(), VALUES.real)
    x.sum().backward()
    np.testing.assert_array_equal(z.grad.numpy(), np.ones((3, 2)))
    with pytest.warns(UserWarning, match="discards the imaginary part"):
        sg.zeros(3, 2).copy_(z.detach())
    assert z.detach().to("bool").tolist() == (VALUES != 0).tolist()


def test_a_real_operand_gets_a_real_gradient_without_a_warning():
    x = sg.ones(2, requires_grad=True)
    (x.cfloat() * (2 + 3j)).real.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


def test_a_complex_gradient_of_a_real_input_is_refused():
    class Turned(sg.autograd.Function):
        """Return a complex gradient by mistake."""

        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g * 1j

    with pytest.raises(GraphError, match="a real input has a real gradient"):
        Turned.apply(sg.ones(2, requires_grad=True)).sum().backward()
