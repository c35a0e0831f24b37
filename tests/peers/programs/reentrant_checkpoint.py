"""`torch.utils.checkpoint` with re-entrance: a backward within backward."""

import importlib
import warnings

import numpy as np


def _leaf(torch, *shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).uniform(0.2, 1.8, shape), requires_grad=True)


def _run(torch, function, *arguments, **options):
    module = importlib.import_module(f"{torch.__name__}.utils.checkpoint")
    return module.checkpoint(function, *arguments, use_reentrant=True, **options)


def _noting(note, name="function"):
    def function(x, *others):
        note(name, x.requires_grad)
        return (x * 2).sin()

    return function


def _warned(call):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return [str(warning.message) for warning in found]


def all_of_it_runs_again(torch, note):
    x = _leaf(torch, 3)
    y = _run(torch, _noting(note), x)
    note("forward is done", y, y.grad_fn.name())
    y.sum().backward()
    note("gradient", x.grad)
    y = _run(torch, _noting(note), x)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    note("twice", x.grad)
    note.error("freed", y.sum().backward, "Trying to backward through the graph a second time")


def arguments_and_results_are_of_several_kinds(torch, note):
    x, y = _leaf(torch, 2), _leaf(torch, 2, seed=1)
    constant = torch.ones(2, dtype=torch.float64)

    def function(x, number, y, constant, none):
        return x * number, "text", (y * constant).sum(), none

    a, text, b, none = _run(torch, function, x, 3, y, constant, None)
    note("results", a, text, b, none)
    (a.sum() + b).backward()
    note("gradients", x.grad, y.grad, constant.grad)
    a, _, b, _ = _run(torch, function, x, 3, y, constant, None)
    a.sum().backward()
    note("one of two", x.grad, y.grad)
    lists = _run(torch, lambda x, more: x * more[0], x, [y])
    lists.sum().backward()
    note("in a list", x.grad, y.grad)


def parameters_get_gradients(torch, note):
    layer = torch.nn.Linear(3, 2).double()
    with torch.no_grad():
        layer.weight.copy_(torch.arange(6.0).reshape(2, 3))
        layer.bias.copy_(torch.ones(2))
    x = _leaf(torch, 4, 3)
    _run(torch, lambda x: layer(x).tanh(), x).sum().backward()
    note("gradients", layer.weight.grad, layer.bias.grad, x.grad)


def what_needs_no_gradient_warns(torch, note):
    x = _leaf(torch, 2)
    note("recorded", _warned(lambda: _run(torch, _noting(note), x)))
    note("constant", _warned(lambda: _run(torch, _noting(note), x.detach())))
    y = _run(torch, _noting(note), x)
    note("requires", y.requires_grad)
    with torch.no_grad():
        y = _run(torch, _noting(note), x)
    note("not recorded", y.requires_grad)


def what_it_cannot_do_is_an_error(torch, note):
    x = _leaf(torch, 2)
    says = "When use_reentrant=True, torch.utils.checkpoint is incompatible with .grad() or passing an `inputs`"
    note.error("grad", lambda: torch.autograd.grad(_run(torch, _noting(note), x).sum(), x), says)
    note.error("inputs", lambda: _run(torch, _noting(note), x).sum().backward(inputs=[x]), says)
    note("no gradient", x.grad)
    detached = _run(torch, lambda x: x.detach(), x)
    note.error("detached", lambda: detached.sum().backward(), "none of output has requires_grad=True")
    note.error("keywords", lambda: _run(torch, lambda x, n: x, x, n=2), "Unexpected keyword arguments: n")
    options = {"context_fn": lambda: None, "debug": True}
    says = "Passing `context_fn` or `debug` is only supported when use_reentrant=False."
    for name, value in options.items():
        note.error(name, lambda name=name, value=value: _run(torch, lambda x: x, x, **{name: value}), says)
    y = _run(torch, lambda x: x * 2, z := x * 1)
    z.detach().mul_(2)
    note.error("changed", y.sum().backward, "modified by an inplace operation")

    def fails(x):
        raise ZeroDivisionError("mine")

    note.error("raised", lambda: _run(torch, fails, x), "mine")


def regions_nest(torch, note):
    def inner(x):
        note("inner")
        return x.sin()

    def outer(x):
        note("outer")
        return _run(torch, inner, x * 2).exp()

    x = _leaf(torch, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # in the forward of the outer one nothing requires a gradient
        y = _run(torch, outer, x)
        note("forward is done")
        y.sum().backward()
    note("gradient", x.grad)


def random_numbers_are_drawn_again_unless_told_otherwise(torch, note):
    def noisy(x):
        drawn.append(torch.rand(3, dtype=torch.float64))
        return x * drawn[-1]

    for preserve in (True, False):
        drawn: list = []
        x = _leaf(torch, 3)
        y = _run(torch, noisy, x, preserve_rng_state=preserve)
        y.sum().backward()
        note("same", bool((drawn[0] == drawn[1]).all()), bool((x.grad == drawn[0]).all()))


def a_sequence_in_segments(torch, note):
    module = importlib.import_module(f"{torch.__name__}.utils.checkpoint")
    for segments in (1, 2, 3):
        x = _leaf(torch, 2)
        functions = [_noting(note, f"step {number}") for number in range(1, 5)]
        y = module.checkpoint_sequential(functions, segments, x, use_reentrant=True)
        note("forward is done")
        y.sum().backward()
        note("gradient", segments, x.grad)


def hooks_and_a_graph_around_it(torch, note):
    x = _leaf(torch, 2)
    pack, unpack = note.pair()
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = _run(torch, _noting(note), x * 3)
    z = (y * y).sum()
    y.register_hook(lambda g: note("hook", g))
    z.backward()
    note("gradient", x.grad)
