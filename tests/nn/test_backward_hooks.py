"""Hooks on the backward pass of modules; what they see is what PyTorch's see."""

import weakref
from typing import NamedTuple

import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import GraphError


class Scaled(nn.Module):
    """Two results from two tensors and a number."""

    def forward(self, x, factor, y, *, extra=None):
        return x * factor, x * y


def called(model, x, y, weights=(1.0, 1.0)):
    first, second = model(x, 3.0, y)
    (first * weights[0]).sum().backward(retain_graph=True)
    return first, second


def leaves():
    return sg.tensor([2.0]).requires_grad_(), sg.tensor([5.0]).requires_grad_()


def shown(gradients):
    return [None if g is None else g.tolist() for g in gradients]


def test_a_hook_sees_the_gradients_of_arguments_and_results():
    seen = []
    model = Scaled()
    model.register_full_backward_hook(lambda module, gi, go: seen.append((module, shown(gi), shown(go))))
    x, y = leaves()
    first, second = model(x, 3.0, y)
    (first * 7 + second).sum().backward()
    assert seen == [(model, [[26.0], None, [2.0]], [[7.0], [1.0]])]
    assert (x.grad.tolist(), y.grad.tolist()) == ([26.0], [2.0])


def test_a_result_that_nothing_used_has_no_gradient():
    seen = []
    model = Scaled()
    model.register_full_backward_hook(lambda module, gi, go: seen.append((shown(gi), shown(go))))
    x, y = leaves()
    model(x, 3.0, y)[0].sum().backward()
    assert seen == [([[3.0], None, [0.0]], [[1.0], None])]
    assert y.grad.tolist() == [0.0]


def test_what_requires_no_gradient_does_not_with_hooks_either():
    class Parts(nn.Module):
        def forward(self, x, y, places):
            self.required = x.requires_grad, y.requires_grad
            return x * y, y * 2, y, places

    seen, packed = [], []
    model = Parts()
    model.register_full_backward_hook(lambda module, gi, go: seen.append((shown(gi), shown(go))))
    x, y = sg.tensor([2.0], requires_grad=True), sg.tensor([5.0])
    with sg.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.tolist()) or t, lambda t: t):
        results = model(x, y, sg.tensor([3]))
    assert (model.required, packed) == ((True, False), [[5.0]])
    assert [result.requires_grad for result in results] == [True, False, False, False]
    results[0].sum().backward()
    assert seen == [([[5.0], [0.0], [0]], [[1.0], None, None, None])]
    assert (x.grad.tolist(), y.grad) == ([5.0], None)


class Named(NamedTuple):
    double: sg.Tensor
    what: str
    triple: sg.Tensor


class Pair(tuple):
    def __new__(cls, *parts):
        return super().__new__(cls, parts)


@pytest.mark.parametrize("kind", [tuple, list, lambda parts: Named(*parts), lambda parts: Pair(*parts)])
def test_results_are_of_the_kind_that_forward_returned(kind):
    class Parts(nn.Module):
        def forward(self, x):
            return kind([x * 2, "text", x * 3])

    seen = []
    model = Parts()
    model.register_full_backward_hook(lambda module, gi, go: seen.append((shown(gi), shown(go))))
    x = sg.tensor([2.0], requires_grad=True)
    result = model(x)
    assert type(result) is type(kind([x, "text", x])) and result[1] == "text"
    (result[0] + result[2]).sum().backward()
    assert seen == [([[5.0]], [[1.0], None, [1.0]])]


def test_hooks_may_replace_gradients_one_after_the_other():
    model = nn.Linear(1, 1, bias=False)
    with sg.no_grad():
        model.weight.fill_(4.0)
    handles = [
        model.register_full_backward_hook(lambda module, gi, go: (gi[0] + 1,)),
        model.register_full_backward_hook(lambda module, gi, go: (gi[0] * 10,)),
        model.register_full_backward_hook(lambda module, gi, go: (gi[0] * 0,), prepend=True),
        model.register_full_backward_pre_hook(lambda module, go: go[0] * 2),
    ]
    x = sg.ones(1, 1).requires_grad_()
    model(x).sum().backward()
    assert x.grad.tolist() == [[10.0]]
    assert model.weight.grad.tolist() == [[2.0]]
    handles[2].remove()
    x.grad = None
    model(x).sum().backward()
    assert x.grad.tolist() == [[90.0]]
    for handle in handles:
        handle.remove()
    x.grad = None
    model(x).sum().backward()
    assert x.grad.tolist() == [[4.0]]


def test_without_an_argument_that_requires_a_gradient_the_results_are_seen():
    seen = []
    model = nn.Linear(1, 1)
    model.register_full_backward_hook(lambda module, gi, go: seen.append((gi, shown(go))))
    model(sg.ones(1, 1)).sum().backward()
    assert seen == [((None,), [[[1.0]]])]
    model.register_full_backward_hook(lambda module, gi, go: (go[0],))
    with pytest.raises(GraphError, match="no input requires gradient should always return None"):
        model(sg.ones(1, 1)).sum().backward()


def test_nothing_happens_where_nothing_is_recorded():
    seen = []
    model = nn.Linear(1, 1).requires_grad_(False)
    model.register_full_backward_hook(lambda *_: seen.append(1))
    assert not model(sg.ones(1, 1)).requires_grad
    with sg.no_grad():
        model.requires_grad_()(sg.ones(1, 1).requires_grad_())
    assert seen == []


def test_a_hook_runs_once_for_each_call_and_each_backward():
    seen = []
    model = nn.Tanh()
    model.register_full_backward_hook(lambda module, gi, go: seen.append(go[0].item()))
    x = sg.ones(()).requires_grad_()
    y = model(model(x))
    y.backward(retain_graph=True)
    y.backward()
    assert len(seen) == 4
    assert seen[:2] == seen[2:]


def test_gradients_seen_by_hooks_can_be_differentiated():
    model = nn.Tanh()
    model.register_full_backward_hook(lambda module, gi, go: (gi[0] * 2,))
    x = sg.tensor(0.5, dtype="float64").requires_grad_()
    (first,) = sg.grad(model(x), x, create_graph=True)
    (second,) = sg.grad(first, x)
    t = x.detach().tanh()
    assert first.item() == pytest.approx(2 * (1 - t * t).item())
    assert second.item() == pytest.approx((-4 * t * (1 - t * t)).item())


def test_a_wrong_number_of_gradients_is_named():
    model = nn.Tanh()
    handle = model.register_full_backward_hook(lambda module, gi, go: (gi[0], gi[0]))
    x = sg.ones(1).requires_grad_()
    with pytest.raises(GraphError, match="invalid number of grad_input, got 2, but expected 1"):
        model(x).sum().backward()
    handle.remove()
    model.register_full_backward_pre_hook(lambda module, go: (go[0], go[0]))
    with pytest.raises(GraphError, match="pre hook returned an invalid number of grad_output, got 2"):
        model(x).sum().backward()


def test_results_of_other_kinds_pass_unseen_with_a_warning_at_the_call():
    class Named(nn.Module):
        def forward(self, x):
            return {"y": x * 2}

    seen = []
    model = Named()
    model.register_full_backward_hook(lambda *_: seen.append(1))
    x = sg.ones(1).requires_grad_()
    with pytest.warns(UserWarning, match="module output should be a Tensor or a tuple of Tensors") as warned:
        y = model(x)["y"]
    assert warned[0].filename == __file__
    y.sum().backward()
    assert (seen, x.grad.tolist()) == ([], [2.0])


def test_a_hook_keeps_no_graph_alive():
    model = nn.Tanh()
    model.register_full_backward_hook(lambda *_: None)
    y = model(sg.ones(1).requires_grad_())
    node = weakref.ref(y.grad_fn)
    del y
    assert node() is None
