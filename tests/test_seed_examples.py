"""The documentation examples this project grew from run with their import as the only change.

Sources: paddle.autograd.saved_tensors_hooks, paddle.autograd.PyLayerContext, torch.autograd.graph.saved_tensors_hooks.
"""

import numpy as np
import pytest

import spillgrad as paddle
import spillgrad as torch
from spillgrad.autograd import PyLayer


def test_paddle_hooks_see_both_factors_of_a_product(capsys):
    def pack_hook(x):
        print("Packing", x)
        return x.numpy()

    def unpack_hook(x):
        print("UnPacking", x)
        return paddle.to_tensor(x)

    a = paddle.ones([3, 3])
    b = paddle.ones([3, 3]) * 2
    a.stop_gradient = False
    b.stop_gradient = False
    with paddle.autograd.saved_tensors_hooks(pack_hook, unpack_hook):
        y = paddle.multiply(a, b)
    y.sum().backward()

    assert np.array_equal(a.grad.numpy(), np.full((3, 3), 2.0)) and np.array_equal(b.grad.numpy(), np.ones((3, 3)))
    printed = capsys.readouterr().out
    assert printed.count("UnPacking") == 2 and printed.count("Packing") == 4


def test_paddle_hooks_see_what_a_pylayer_saves(capsys):
    class cus_tanh(PyLayer):
        @staticmethod
        def forward(ctx, a, b):
            y = paddle.multiply(a, b)
            ctx.save_for_backward(a, b)
            return y

        @staticmethod
        def backward(ctx, dy):
            a, b = ctx.saved_tensor()
            grad_a = dy * a
            grad_b = dy * b
            return grad_a, grad_b

    def pack_hook(x):
        print("Packing", x)
        return x.numpy()

    def unpack_hook(x):
        print("UnPacking", x)
        return paddle.to_tensor(x)

    a = paddle.ones([3, 3])
    b = paddle.ones([3, 3]) * 2
    a.stop_gradient = False
    b.stop_gradient = False
    with paddle.autograd.saved_tensors_hooks(pack_hook, unpack_hook):
        y = cus_tanh.apply(a, b)
    y.sum().backward()

    assert np.array_equal(a.grad.numpy(), np.ones((3, 3))) and np.array_equal(b.grad.numpy(), np.full((3, 3), 2.0))
    printed = capsys.readouterr().out
    assert printed.count("UnPacking") == 2 and printed.count("Packing") == 4


def test_torch_hooks_print_what_the_documentation_prints(capsys):
    def pack_hook(x):
        print("Packing", x)
        return x

    def unpack_hook(x):
        print("Unpacking", x)
        return x

    a = torch.ones(5, requires_grad=True)
    b = torch.ones(5, requires_grad=True) * 2
    with torch.autograd.graph.saved_tensors_hooks(pack_hook, unpack_hook):
        y = a * b
    y.sum().backward()

    assert capsys.readouterr().out.splitlines() == [
        "Packing tensor([1., 1., 1., 1., 1.])",
        "Packing tensor([2., 2., 2., 2., 2.])",
        "Unpacking tensor([1., 1., 1., 1., 1.])",
        "Unpacking tensor([2., 2., 2., 2., 2.])",
    ]


def test_a_pylayer_saves_its_result():
    class cus_tanh(paddle.autograd.PyLayer):
        @staticmethod
        def forward(ctx, x):
            y = paddle.tanh(x)
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, dy):
            (y,) = ctx.saved_tensor()
            grad = dy * (1 - paddle.square(y))
            return grad

    x = paddle.to_tensor(np.linspace(-2, 2, 7), stop_gradient=False)
    cus_tanh.apply(x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 1 - np.tanh(x.numpy()) ** 2, rtol=1e-12)


def test_mark_not_inplace_returns_the_input_through_two_layers_and_two_backward_calls():
    class Exp(paddle.autograd.PyLayer):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_not_inplace(x)
            return x

        @staticmethod
        def backward(ctx, grad_output):
            out = grad_output.exp()
            return out

    x = paddle.randn((1, 1))
    x.stop_gradient = False

    attn_layers = []
    for _idx in range(0, 2):
        attn_layers.append(Exp())

    for _step in range(0, 2):
        a = x
        for j in range(0, 2):
            a = attn_layers[j].apply(x)
        a.backward()

    np.testing.assert_allclose(x.grad.numpy(), [[2 * np.e]], rtol=1e-6)
    assert x.is_leaf


def test_a_non_differentiable_output_gets_a_zero_gradient():
    class Tanh(PyLayer):
        @staticmethod
        def forward(ctx, x):
            a = x + x
            b = x + x + x
            ctx.mark_non_differentiable(a)
            return a, b

        @staticmethod
        def backward(ctx, grad_a, grad_b):
            assert np.equal(grad_a.numpy(), paddle.zeros([1]).numpy())
            assert np.equal(grad_b.numpy(), paddle.ones([1], dtype="float64").numpy())
            return grad_b

    x = paddle.ones([1], dtype="float64")
    x.stop_gradient = False
    a, b = Tanh.apply(x)
    b.sum().backward()

    assert a.stop_gradient and not b.stop_gradient
    assert np.array_equal(x.grad.numpy(), [1.0])


@pytest.mark.parametrize("materialize", [True, False])
def test_an_unused_output_arrives_as_zeros_or_as_none(materialize):
    class Tanh(PyLayer):
        @staticmethod
        def forward(ctx, x):
            if not materialize:
                ctx.set_materialize_grads(False)
            return x + x + x, x + x

        @staticmethod
        def backward(ctx, grad, grad2):
            if materialize:
                assert np.equal(grad2.numpy(), paddle.zeros([1]).numpy())
            else:
                assert grad2 == None  # noqa: E711  as the documentation writes it
            return grad

    x = paddle.ones([1], dtype="float64")
    x.stop_gradient = False
    Tanh.apply(x)[0].backward()
    assert np.array_equal(x.grad.numpy(), [1.0])
