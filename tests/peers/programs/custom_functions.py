"""`torch.autograd.Function`: what forward and backward may do, and what they are told when they may not."""

import numpy as np

from tests.peers.record import name_of


def _leaf(torch, *shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).uniform(0.2, 1.8, shape), requires_grad=True)


def _function(torch, forward, backward, **others):
    """Return a custom function made of these static methods."""
    methods = {"forward": forward, "backward": backward} | others
    return type("Made", (torch.autograd.Function,), {n: staticmethod(m) for n, m in methods.items() if m})


def _squared(torch):
    class Squared(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * 2 * x

    return Squared


def first_and_second_derivatives(torch, note):
    x = _leaf(torch, 3)
    y = _squared(torch).apply(x)
    note("name", y.grad_fn.name(), y.requires_grad, y.is_leaf)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    note("derivatives", g, h)


def hooks_pack_what_a_function_saves_after_forward(torch, note):
    def forward(ctx, x, y):
        result = (x * y).exp()
        ctx.save_for_backward(x, result, None, y)
        note("forward ends")
        return result

    def backward(ctx, g):
        x, result, nothing, y = ctx.saved_tensors
        note("none", nothing)
        return g * result * y, g * result * x

    x, y = _leaf(torch, 2), _leaf(torch, 2, seed=1)
    with torch.autograd.graph.saved_tensors_hooks(*note.pair(lambda t: t * 2, lambda t: t / 2)):
        z = _function(torch, forward, backward).apply(x, y)
    z.sum().backward()
    note("gradients", x.grad, y.grad)


def saved_tensors_of_a_node(torch, note):
    x = _leaf(torch, 2)
    y = _squared(torch).apply(x)
    note("saved", y.grad_fn.saved_tensors, y.grad_fn.saved_tensors[0] is x)
    y.grad_fn._raw_saved_tensors[0].register_hooks(lambda t: t * 2, lambda t: t * 3)
    note("hooked", y.grad_fn.saved_tensors)
    note.error(
        "twice", lambda: y.grad_fn._raw_saved_tensors[0].register_hooks(lambda t: t, lambda t: t), "already been set"
    )
    y.sum().backward()
    note("gradient", x.grad)
    note.error("freed", lambda: y.grad_fn.saved_tensors, "after they have already been freed")
    note.error("freed raw", lambda: y.grad_fn._raw_saved_tensors, "after they have already been freed")
    note.error("again", lambda: y.sum().backward(), "after they have already been freed")


def none_is_no_place_for_hooks(torch, note):
    def forward(ctx, x):
        ctx.save_for_backward(None, x)
        return x * 1

    y = _function(torch, forward, lambda ctx, g: g).apply(_leaf(torch, 2))
    raw = y.grad_fn._raw_saved_tensors
    note("count", len(raw))
    note.error("none", lambda: raw[0].register_hooks(lambda t: t, lambda t: t), "None is forbidden")


def the_context_keeps_its_attributes(torch, note):
    def forward(ctx, x, power):
        ctx.power = power
        ctx.notes = ["seen"]
        return x**power

    def backward(ctx, g):
        note("attributes", ctx.power, ctx.notes)
        return g * ctx.power, None

    x = _leaf(torch, 2)
    y = _function(torch, forward, backward).apply(x, 3)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    note("gradient", x.grad, y.grad_fn.power)


def needs_input_grad_has_an_entry_an_argument(torch, note):
    def forward(ctx, x, number, y, text, z=None):
        note("in forward", ctx.needs_input_grad)
        return x * 1 + y

    def backward(ctx, g):
        note("in backward", ctx.needs_input_grad)
        return g, None, g, None, None

    made = _function(torch, forward, backward)
    made.apply(_leaf(torch, 2), 2, torch.zeros(2, dtype=torch.float64), "text", None).sum().backward()
    with torch.no_grad():
        y = made.apply(_leaf(torch, 2), 2, _leaf(torch, 2), "text", None)
    note("not recorded", y.requires_grad)


def setup_context_gets_inputs_and_output(torch, note):
    def forward(x, factor):
        return x * factor

    def setup_context(ctx, inputs, output):
        x, factor = inputs
        ctx.save_for_backward(x, output)
        ctx.factor = factor

    def backward(ctx, g):
        note("saved", ctx.saved_tensors)
        return g * ctx.factor, None

    x = _leaf(torch, 2)
    y = _function(torch, forward, backward, setup_context=setup_context).apply(x, 2.0)
    y.sum().backward()
    note("gradient", x.grad)


def missing_methods(torch, note):
    note.error("forward", lambda: _function(torch, None, lambda ctx, g: g).apply(_leaf(torch, 2)))
    y = _function(torch, lambda ctx, x: x * 1, None).apply(_leaf(torch, 2))
    note.error("backward", y.sum().backward)
    note.error("keyword", lambda: _squared(torch).apply(x=_leaf(torch, 2)))


def wrong_gradients_are_runtime_errors(torch, note):
    def case(name, gradients, *phrases, inputs=1):
        def forward(ctx, *tensors):
            return sum(tensors)

        x = [_leaf(torch, 2) for _ in range(inputs)]
        y = _function(torch, forward, lambda ctx, g: gradients(g)).apply(*x)
        note.error(name, y.sum().backward, *phrases)

    case("too many", lambda g: (g, g), "returned an incorrect number of gradients (expected 1, got 2)")
    case("too few", lambda g: g, "returned an incorrect number of gradients (expected 2, got 1)", inputs=2)
    case("shape", lambda g: g[:1].expand(3), "returned an invalid gradient at index 0")
    case("no tensor", lambda g: 1.0)
    case("text", lambda g: "gradient")
    case("surplus none", lambda g: (g, None, None))
    case("raises", lambda g: 1 / 0, "division by zero")
    case("list", lambda g: [g])


def a_gradient_takes_the_inputs_shape_and_dtype(torch, note):
    x = torch.tensor([1.0, 2.0], dtype=torch.float32, requires_grad=True)
    y = _function(torch, lambda ctx, x: x * 1, lambda ctx, g: g.double()).apply(x)
    y.sum().backward()
    note("dtype", x.grad)
    x = _leaf(torch, 1, 2)
    y = _function(torch, lambda ctx, x: x * 1, lambda ctx, g: g.expand(3, 2)).apply(x)
    y.sum().backward()
    note("broadcast", x.grad)


def outputs_of_every_kind(torch, note):
    def forward(ctx, x):
        ctx.mark_non_differentiable(rounded := x.floor())
        return x * 2, rounded, x.long(), "text", None, 7

    def backward(ctx, *grads):
        note("gradients", grads)
        return grads[0] * 2

    x = _leaf(torch, 2)
    a, rounded, integers, *others = _function(torch, forward, backward).apply(x)
    note("requires", a.requires_grad, rounded.requires_grad, integers.requires_grad)
    note("others", others)
    a.sum().backward()
    note("gradient", x.grad)


def unused_outputs_arrive_as_zeros_or_none(torch, note):
    for materialize in (True, False):

        def forward(ctx, x, materialize=materialize):
            ctx.set_materialize_grads(materialize)
            return x * 2, x * 3

        def backward(ctx, a, b):
            note("gradients", a, b)
            return a if b is None else a + b

        x = _leaf(torch, 2)
        first, _ = _function(torch, forward, backward).apply(x)
        first.sum().backward()
        note("gradient", x.grad)


def no_gradient_at_all(torch, note):
    def backward(ctx, g):
        note("called", g)
        return None

    x = _leaf(torch, 2)
    y = _function(torch, lambda ctx, x: x * 1, backward).apply(x)
    y.sum().backward()
    note("gradient", x.grad)
    z = _squared(torch).apply(x)
    y = _function(torch, lambda ctx, x: x * 1, backward).apply(z)
    y.sum().backward()
    note("gradient behind", x.grad)


def a_returned_input_is_a_new_tensor(torch, note):
    x = _leaf(torch, 2)
    y = _function(torch, lambda ctx, x: x, lambda ctx, g: g * 5).apply(x)
    note("same object", y is x, y.is_leaf, y.grad_fn.name())
    y.sum().backward()
    note("gradient", x.grad)
    a = _leaf(torch, 2) * 1
    b = _function(torch, lambda ctx, x: x, lambda ctx, g: g * 5).apply(a)
    note("of a non-leaf", b is a, b.grad_fn.name(), a.grad_fn.name())


def one_tensor_twice_is_two_outputs(torch, note):
    def forward(ctx, x):
        y = x * 2
        return y, y

    x = _leaf(torch, 2)
    a, b = _function(torch, forward, lambda ctx, a, b: a * 2 + b * 20).apply(x)
    note("same", a is b)
    (a * 3 + b).sum().backward()
    note("gradient", x.grad)


def dirty_inputs(torch, note):
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    made = _function(torch, forward, lambda ctx, g: g * 2)
    x = _leaf(torch, 2)
    a = x * 1
    y = made.apply(a)
    note("same", y is a, a.grad_fn.name(), a._version)
    y.sum().backward()
    note("gradient", x.grad)
    note.error("leaf", lambda: made.apply(_leaf(torch, 2)), "a leaf Variable that requires grad")

    def forgotten(ctx, x):
        ctx.mark_dirty(x)
        x.mul_(2)
        return x * 1

    note.error("not returned", lambda: _function(torch, forgotten, lambda ctx, g: g).apply(_leaf(torch, 2) * 1))
    base = _leaf(torch, 4) * 1
    made.apply(base[:2])
    note("base", base, name_of(base.grad_fn))


def once_differentiable_backwards(torch, note):
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        note("grad mode", torch.is_grad_enabled())
        return 2 * g * x

    once = torch.autograd.function.once_differentiable(backward)
    x = _leaf(torch, 2)
    y = _function(torch, forward, once).apply(x)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    note("gradient", g)
    note.error("twice", lambda: torch.autograd.grad(g.sum(), x), "differentiate twice", "once_differentiable")


def grad_mode_inside(torch, note):
    def forward(ctx, x):
        note("forward", torch.is_grad_enabled(), (x * 2).requires_grad)
        return x * 1

    def backward(ctx, g):
        note("backward", torch.is_grad_enabled(), g.requires_grad)
        return g

    x = _leaf(torch, 2)
    made = _function(torch, forward, backward)
    made.apply(x).sum().backward()
    torch.autograd.grad(made.apply(x).sum(), x, create_graph=True)


def backward_inside_forward_and_backward(torch, note):
    def forward(ctx, x):
        with torch.enable_grad():
            inner = x.detach().requires_grad_()
            (ctx.slope,) = torch.autograd.grad((inner**3).sum(), inner)
        return (x**3).detach()

    def backward(ctx, g):
        with torch.enable_grad():
            inner = _leaf(torch, 2)
            (inner * inner).sum().backward()
        note("inner", inner.grad)
        return g * ctx.slope

    x = _leaf(torch, 2)
    _function(torch, forward, backward).apply(x).sum().backward()
    note("gradient", x.grad)


def saving_wrongly_is_an_error(torch, note):
    def saves(value):
        def forward(ctx, x):
            ctx.save_for_backward(value)
            return x * 1

        return lambda: _function(torch, forward, lambda ctx, g: g).apply(_leaf(torch, 2))

    note.error("number", saves(1.5), "can only save variables")
    note.error("list", saves([torch.zeros(1)]), "can only save variables")


def saving_twice(torch, note):
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.save_for_backward(x * 2, x * 3)
        return x * 1

    note.error("twice", lambda: _function(torch, forward, lambda ctx, g: g).apply(_leaf(torch, 2)))


def a_changed_saved_tensor_is_an_error(torch, note):
    x = _leaf(torch, 2)
    a = x * 1
    y = _squared(torch).apply(a)
    a.add_(1)
    note.error("changed", y.sum().backward, "modified by an inplace operation")


def tensors_in_lists_are_opaque(torch, note):
    def forward(ctx, tensors):
        return tensors[0] * tensors[1]

    x, y = _leaf(torch, 2), _leaf(torch, 2)
    z = _function(torch, forward, lambda ctx, g: None).apply([x, y])
    note("recorded", z.requires_grad)


def exceptions_pass_through_unchanged(torch, note):
    class Special(Exception):
        pass

    def failing(*arguments):
        raise Special("from the user's code")

    x = _leaf(torch, 2)
    for name, made in (
        ("forward", lambda: _function(torch, failing, lambda ctx, g: g).apply(x)),
        ("backward", lambda: _function(torch, lambda ctx, x: x * 1, failing).apply(x).sum().backward()),
    ):
        try:
            made()
        except Special as error:
            frames = []
            trace = error.__traceback__
            while trace:
                frames.append(trace.tb_frame.f_code.co_name)
                trace = trace.tb_next
            note(name, str(error), frames[-1])


def a_function_of_tensors_without_gradients_is_not_recorded(torch, note):
    y = _squared(torch).apply(torch.ones(2))
    note("recorded", y.requires_grad, y.grad_fn is None)


def views_that_are_returned_cannot_be_changed_in_place(torch, note):
    x = _leaf(torch, 4)
    y = _function(torch, lambda ctx, x: x[:2], lambda ctx, g: torch.cat((g, g))).apply(x * 1)
    note.error("in-place", lambda: y.mul_(2))


def next_functions_has_an_entry_a_tensor(torch, note):
    def forward(ctx, x, number, y):
        return x * number + y

    x, y = _leaf(torch, 2), torch.ones(2, dtype=torch.float64)
    z = _function(torch, forward, lambda ctx, g: (g, None, None)).apply(x, 2, y)
    note("next", [(name_of(node), number) for node, number in z.grad_fn.next_functions])
    note("the context is the node", hasattr(z.grad_fn, "needs_input_grad"), hasattr(z.grad_fn, "saved_tensors"))


def hooks_of_a_custom_node(torch, note):
    x = _leaf(torch, 2)
    y = _squared(torch).apply(x)
    y.grad_fn.register_prehook(lambda grads: note("pre", grads))
    y.grad_fn.register_hook(lambda inputs, outputs: note("post", inputs, outputs))
    y.sum().backward()
    y = _squared(torch).apply(x)
    y.grad_fn.register_hook(lambda inputs, outputs: tuple(g * 10 for g in inputs))
    x.grad = None
    y.sum().backward()
    note("gradient", x.grad)
