"""`torch.utils.checkpoint`, without re-entrance: what runs again, what is kept, and what is found to be different."""

import importlib

import numpy as np


def _leaf(torch, *shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).uniform(0.2, 1.8, shape), requires_grad=True)


def _checkpoint(torch):
    return importlib.import_module(f"{torch.__name__}.utils.checkpoint")


def _run(torch, function, *arguments, **options):
    return _checkpoint(torch).checkpoint(function, *arguments, use_reentrant=False, **options)


def _steps(note):
    """Return a function of three steps that notes each."""

    def function(x):
        note("step", 1)
        x = x.tanh()
        note("step", 2)
        x = x.exp()
        note("step", 3)
        return (x * 2).sum()

    return function


def a_function_runs_again_until_all_is_there(torch, note):
    x = _leaf(torch, 3)
    y = _run(torch, _steps(note), x)
    note("forward is done", y)
    y.backward()
    note("gradient", x.grad)
    y = _run(torch, _steps(note), x, early_stop=False)
    note("to the end")
    y.backward()
    with _checkpoint(torch).set_checkpoint_early_stop(False):
        y = _run(torch, _steps(note), x)
    note("by the context")
    y.backward()
    note("gradient", x.grad)


def nothing_runs_again_where_nothing_is_recorded(torch, note):
    with torch.no_grad():
        note("value", _run(torch, _steps(note), _leaf(torch, 3)))
    y = _run(torch, _steps(note), _leaf(torch, 3).detach())
    note("requires", y.requires_grad)


def several_backwards_run_it_again_each(torch, note):
    x = _leaf(torch, 3)
    y = _run(torch, _steps(note), x)
    y.backward(retain_graph=True)
    note("again")
    y.backward()
    note("gradient", x.grad)
    note.error("freed", y.backward, "backward through the graph a second time")


def second_derivatives_come_through(torch, note):
    x = _leaf(torch, 3)
    y = _run(torch, lambda x: (x.exp() * x).sin().sum(), x)
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    note("derivatives", g, h)


def arguments_and_results_are_of_any_kind(torch, note):
    x, y = _leaf(torch, 2), _leaf(torch, 2, seed=1)

    def function(x, power, *, factor, others):
        return x**power * factor, "text", {"sum": x + others[0]}, None

    a, text, b, nothing = _run(torch, function, x, 2, factor=y, others=[y])
    note("others", text, nothing)
    (a + b["sum"]).sum().backward()
    note("gradients", x.grad, y.grad)


def parameters_of_a_module_get_gradients(torch, note):
    layer = torch.nn.Linear(3, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(np.arange(6.0).reshape(2, 3) / 7, dtype=torch.float32))
        layer.bias.copy_(torch.tensor([0.5, -0.5]))
    x = torch.tensor([[1.0, 2.0, 3.0]])
    _run(torch, lambda x: layer(x).tanh().sum(), x).backward()
    note("gradients", layer.weight.grad, layer.bias.grad)


def regions_nest(torch, note):
    x = _leaf(torch, 2)

    def inner(x):
        note("inner")
        return x.exp().tanh()

    def outer(x):
        note("outer")
        return _run(torch, inner, x.sin()).sin()

    y = _run(torch, outer, x).sum()
    note("forward is done")
    y.backward()
    note("gradient", x.grad)


def hooks_outside_see_the_arguments_alone(torch, note):
    x, y = _leaf(torch, 3), _leaf(torch, 3, seed=1)
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
        z = _run(torch, lambda x, y: (x * y).exp().tanh().sum(), x * 1, y * 1)
    note("packed", [size for size in sizes if size])
    z.backward()
    note("gradients", x.grad, y.grad)


def hooks_inside_take_values_away_from_the_region(torch, note):
    x = _leaf(torch, 3)

    def function(x):
        with torch.autograd.graph.saved_tensors_hooks(*note.pair()):
            return x.exp().sum()

    y = _run(torch, function, x)
    note("forward is done")
    y.backward()
    note("gradient", x.grad)


def _changing(torch, functions):
    """Return a checkpointed sum of a function that is another one each time it runs."""
    x = _leaf(torch, 4)
    left = list(functions)
    return _run(torch, lambda x: left.pop(0)(x).sum(), x)


def what_is_not_the_same_again_is_an_error(torch, note):
    checkpoint_error = _checkpoint(torch).CheckpointError
    note("class", issubclass(checkpoint_error, RuntimeError))
    for name, first, second in (
        ("shape", lambda x: x.exp(), lambda x: x[:2].exp()),
        ("dtype", lambda x: x.exp(), lambda x: x.float().exp().double()),
        ("fewer", lambda x: x.exp().sin(), lambda x: x.exp()),
        ("none", lambda x: x.exp(), lambda x: x),
    ):
        y = _changing(torch, (first, second))
        note.error(
            name, y.backward, "have different metadata than during the forward pass",
            "A different number of tensors was saved during the original forward and recomputation",
        )  # fmt: skip
    y = _changing(torch, (lambda x: x.exp(), lambda x: x.exp().sin()))
    y.backward()
    note("more are not noticed where all is there")


def the_check_may_be_left_out(torch, note):
    x = _leaf(torch, 4)
    left = [lambda x: x.exp().sum(), lambda x: (x * 1).exp().sum()]
    _run(torch, lambda x: left.pop(0)(x), x, determinism_check="none").backward()
    note("gradient", x.grad)
    note.error("unknown", lambda: _run(torch, lambda x: x, x, determinism_check="some"))


def unknown_options_are_refused(torch, note):
    checkpoint = _checkpoint(torch).checkpoint
    note.error(
        "keyword of no function", lambda: checkpoint(lambda x: x, _leaf(torch, 2), use_reentrant=False, nothing=1)
    )


def random_numbers_are_drawn_again(torch, note):
    torch.manual_seed(0)
    for preserve in (True, False):
        x = torch.ones(1000, dtype=torch.float64, requires_grad=True)
        y = _run(torch, lambda x: torch.nn.functional.dropout(x * x, 0.5), x, preserve_rng_state=preserve)
        torch.rand(10)
        state = torch.get_rng_state()
        following = torch.rand(3)
        torch.set_rng_state(state)
        y.sum().backward()
        note("same", preserve, bool(((x.grad != 0) == (y != 0)).all()))
        note("the stream outside goes on", preserve, bool((torch.rand(3) == following).all()))


def an_argument_that_changed_is_an_error(torch, note):
    x = _leaf(torch, 2)
    a = x * 1
    y = _run(torch, lambda a: a.exp().sum(), a)
    a.add_(1)
    note.error("changed", y.backward, "modified by an inplace operation")


def an_exception_passes_and_the_next_call_works(torch, note):
    x = _leaf(torch, 2)
    left = [False, True, False, False]

    def function(x):
        if left.pop(0):
            raise KeyError("mine")
        return x.exp().sum()

    y = _run(torch, function, x)
    note.error("again", y.backward, "mine")
    _run(torch, function, x).backward()
    note("gradient", x.grad)


def contexts_surround_both_runs(torch, note):
    class Context:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            note("enter", self.name)

        def __exit__(self, *exception):
            note("exit", self.name)

    x = _leaf(torch, 2)
    y = _run(torch, lambda x: x.exp().sum(), x, context_fn=lambda: (Context("forward"), Context("recomputation")))
    y.backward()
    note("gradient", x.grad)


def _noting(note, number):
    def step(x):
        note("step", number)
        return x.sin() * number

    return step


def a_sequence_in_segments(torch, note):
    for segments in (1, 2, 3):
        x = _leaf(torch, 2)

        functions = [_noting(note, number) for number in range(1, 5)]
        y = _checkpoint(torch).checkpoint_sequential(functions, segments, x, use_reentrant=False)
        note("forward is done")
        y.sum().backward()
        note("gradient", segments, x.grad)


def _operation(torch, name):
    """Return what a selective policy calls an operation: PyTorch has objects, spillgrad names."""
    return getattr(torch.ops.aten, name).default if torch.__name__ == "torch" else name


def _named(operation):
    return getattr(operation, "__name__", operation).partition(".")[0]


def selective_policies(torch, note):
    module = _checkpoint(torch)

    def function(x):
        return x.exp().sin().tanh().sum()

    def policy(context, operation, *arguments, **keywords):
        if not context.is_recompute:
            note("asked", _named(operation))
        return (
            module.CheckpointPolicy.MUST_SAVE
            if _named(operation) == "exp"
            else module.CheckpointPolicy.PREFER_RECOMPUTE
        )

    for choice in (policy, [_operation(torch, "exp")], [_operation(torch, "sin"), _operation(torch, "tanh")]):
        x = _leaf(torch, 3)
        y = _run(
            torch, function, x, context_fn=lambda choice=choice: module.create_selective_checkpoint_contexts(choice)
        )
        y.backward()
        note("gradient", x.grad)


def a_kept_result_that_changed_is_an_error(torch, note):
    create = _checkpoint(torch).create_selective_checkpoint_contexts

    def function(x):
        y = x.exp()
        z = y * 1
        y.detach().mul_(2)
        return z.tanh().sum()

    for allowed in (False, True):
        y = _run(
            torch, function, _leaf(torch, 2), determinism_check="none",
            context_fn=lambda allowed=allowed: create([_operation(torch, "exp")], allow_cache_entry_mutation=allowed),
        )  # fmt: skip
        note.error(f"allowed {allowed}", y.backward)


def hooks_outside_and_kept_results(torch, note):
    create = _checkpoint(torch).create_selective_checkpoint_contexts
    sizes = []
    x = _leaf(torch, 3)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
        y = _run(torch, lambda x: x.exp().sin().sum(), x, context_fn=lambda: create([_operation(torch, "exp")]))
    note("packed", [size for size in sizes if size])
    y.backward()
    note("gradient", x.grad)


def errors_list_what_was_saved_if_asked(torch, note):
    left = [lambda x: x.exp().sum(), lambda x: x[:2].exp().sum()]
    with _checkpoint(torch).set_checkpoint_debug_enabled(True):
        y = _run(torch, lambda x: left.pop(0)(x), _leaf(torch, 4))
        note.error("shape", y.backward)
