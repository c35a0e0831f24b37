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


def forward_may_return_anything(torch, note):
    x = _leaf(torch, 2)
    for name, forward in {
        "a list": lambda ctx, x: [x * 2, x * 3],
        "a dict": lambda ctx, x: {"a": x * 2},
        "nothing": lambda ctx, x: None,
        "a number": lambda ctx, x: 3.0,
        "a tuple of one": lambda ctx, x: (x * 2,),
        "an empty tuple": lambda ctx, x: (),
    }.items():
        found = _function(torch, forward, lambda ctx, *grads: grads[0]).apply(x)
        note(name, type(found).__name__)
        note(f"{name}: requires", [t.requires_grad for t in found] if isinstance(found, tuple) else None)


def marks_of_what_is_no_input_or_output(torch, note):
    def case(name, forward, *phrases):
        note.error(name, lambda: _function(torch, forward, lambda ctx, g: g).apply(_leaf(torch, 2) * 1), *phrases)

    def dirty_other(ctx, x):
        y = x * 2
        ctx.mark_dirty(y)
        return y

    def dirty_number(ctx, x):
        ctx.mark_dirty(3)
        return x * 1

    def marked_input(ctx, x):
        ctx.mark_non_differentiable(x)
        return x * 1

    def marked_number(ctx, x):
        ctx.mark_non_differentiable(3)
        return x * 1

    case("dirty but no input", dirty_other)
    case("dirty number", dirty_number, "mark_dirty can only accept variables, but argument")
    case("an input marked", marked_input)
    case("a number marked", marked_number, "mark_non_differentiable only accepts variable arguments, but")


def marks_are_those_of_the_last_call(torch, note):
    def forward(ctx, x):
        a, b = x * 2, x * 3
        ctx.mark_non_differentiable(a)
        ctx.mark_non_differentiable(b)
        return a, b

    a, b = _function(torch, forward, lambda ctx, ga, gb: ga).apply(_leaf(torch, 2))
    note("requires", a.requires_grad, b.requires_grad)


def a_dirty_input_of_several_and_its_gradient(torch, note):
    def forward(ctx, x, y):
        ctx.mark_dirty(x)
        ctx.save_for_backward(y)
        return x.mul_(y), x + y

    def backward(ctx, gx, gs):
        (y,) = ctx.saved_tensors
        return (gx + gs) * y, gx * 0 + gs

    x, y = _leaf(torch, 2), _leaf(torch, 2, seed=1)
    a = x * 1
    b, s = _function(torch, forward, backward).apply(a, y)
    note("same", b is a, a.grad_fn.name(), a.output_nr, s.output_nr)
    (b.sum() + s.sum()).backward()
    note("gradients", x.grad, y.grad)


def a_dirty_input_that_was_saved_before_is_noticed(torch, note):
    def forward(ctx, x):
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x.exp_()

    x = _leaf(torch, 2)
    a = x * 1
    earlier = a.sin()
    made = _function(torch, forward, lambda ctx, g: g * ctx.saved_tensors[0])
    y = made.apply(a)
    y.sum().backward()
    note("gradient", x.grad)
    note.error("earlier", earlier.sum().backward, "modified by an inplace operation")


def dirty_leaves_without_gradient_and_views(torch, note):
    def forward(ctx, x, y):
        ctx.mark_dirty(x)
        return x.add_(y)

    made = _function(torch, forward, lambda ctx, g: (g, g * 2))
    constant, y = torch.zeros(2, dtype=torch.float64), _leaf(torch, 2)
    found = made.apply(constant, y)
    note("constant", found is constant, constant.requires_grad, constant.is_leaf)
    found.sum().backward()
    note("gradient", y.grad)
    note.error("a view of a leaf", lambda: made.apply(_leaf(torch, 2)[:], y), "a view of a leaf Variable")
    with torch.no_grad():
        note("unrecorded", made.apply(_leaf(torch, 2), y).requires_grad)


def views_made_in_no_grad(torch, note):
    made = _function(torch, lambda ctx, x: x[:], lambda ctx, g: g)
    x = _leaf(torch, 2)
    with torch.no_grad():
        y = made.apply(x)
    note.error("changed", y.zero_, "A view was created in no_grad mode and is being modified inplace")


def views_of_an_input_that_change_are_refused_in_words(torch, note):
    made = _function(torch, lambda ctx, x: x[:], lambda ctx, g: g)
    y = made.apply(_leaf(torch, 2) * 1)
    note.error("view", lambda: y.mul_(2), "is a view and is being modified inplace", "custom Function")

    both = _function(torch, lambda ctx, x: (x[:1], x[1:]), lambda ctx, a, b: torch.cat((a, b)))
    first, _ = both.apply(_leaf(torch, 2) * 1)
    note.error("one of several", lambda: first.mul_(2), "is a view and is being modified inplace")


def saved_intermediates_and_constants(torch, note):
    def forward(ctx, x):
        intermediate = x.exp()
        ctx.save_for_backward(intermediate.clone().detach_().requires_grad_(True), torch.ones(2))
        return x.exp()

    def backward(ctx, g):
        intermediate, ones = ctx.saved_tensors
        note("saved", intermediate.requires_grad, intermediate.is_leaf, ones.requires_grad)
        return g * intermediate

    x = _leaf(torch, 2)
    with torch.autograd.graph.saved_tensors_hooks(*note.pair()):
        y = _function(torch, forward, backward).apply(x)
    y.sum().backward()
    note("gradient", x.grad)


def what_a_hook_returned_may_be_changed_without_counting_for_the_input(torch, note):
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    def backward(ctx, g):
        (saved,) = ctx.saved_tensors
        before = a._version
        saved.add_(1)
        note("versions", a._version == before)
        return g

    a = _leaf(torch, 2)
    replacement = a.clone()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: replacement, lambda p: p):
        y = _function(torch, forward, backward).apply(a)
    y.sum().backward()
    note("gradient", a.grad)


def backward_sees_saved_tensors_each_time_anew(torch, note):
    def backward(ctx, g):
        first, second = ctx.saved_tensors[0], ctx.saved_tensors[0]
        note("equal", bool((first == second).all()))
        return g * first

    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    x = _leaf(torch, 2)
    with torch.autograd.graph.saved_tensors_hooks(*note.pair()):
        y = _function(torch, forward, backward).apply(x)
    y.sum().backward()


def an_exception_in_a_hook_around_a_function_passes(torch, note):
    def failing(t):
        raise LookupError("in the hook")

    def run(pack, unpack):
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            y = _squared(torch).apply(_leaf(torch, 2))
        y.sum().backward()

    note.error("pack", lambda: run(failing, lambda t: t), "in the hook")
    note.error("unpack", lambda: run(lambda t: t, failing), "in the hook")
    with torch.autograd.graph.saved_tensors_hooks(*note.pair()):
        y = _squared(torch).apply(_leaf(torch, 2))
    y.sum().backward()


def gradients_of_integers_and_other_dtypes(torch, note):
    def case(name, gradient, dtype=torch.float64):
        x = torch.ones(2, dtype=dtype, requires_grad=True)
        made = _function(torch, lambda ctx, x: x * 1, lambda ctx, g: gradient(g))
        made.apply(x).sum().backward()
        note(name, x.grad)

    case("float", lambda g: g.float())
    case("int", lambda g: g.long() * 3)
    case("bool", lambda g: g > 0)
    case("double of a float", lambda g: g.double() / 3, torch.float32)


def keywords_of_apply(torch, note):
    made = _function(torch, lambda ctx, x, factor=2.0: x * factor, lambda ctx, g: (g * 7, None))
    x = _leaf(torch, 2)
    note.error("keyword", lambda: made.apply(x, factor=3.0), "keyword argument")
    note("default", made.apply(x))
    note.error("gradients of the default", lambda: made.apply(x).sum().backward())


def a_function_that_needs_no_gradient_at_all(torch, note):
    def backward(ctx, g):
        note("never")
        return g

    made = _function(torch, lambda ctx, x: x * 1, backward)
    y = made.apply(torch.ones(2))
    note("flags", y.requires_grad, y.grad_fn is None, y.is_leaf)
    made = _function(torch, lambda ctx, n: torch.ones(2) * n, backward)
    note("no tensor", made.apply(3).requires_grad)


def contexts_have_their_flags(torch, note):
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.extra = {"a": x}
        note("forward", ctx.needs_input_grad, hasattr(ctx, "missing"))
        return x * 1

    def backward(ctx, g):
        note("backward", ctx.needs_input_grad, sorted(ctx.extra), ctx.saved_tensors)
        return g

    x = _leaf(torch, 2)
    y = _function(torch, forward, backward).apply(x)
    y.sum().backward()
    note("after", sorted(y.grad_fn.extra))
    note.error("saved nothing, and freed", lambda: y.grad_fn.saved_tensors, "after they have already been freed")


def functions_within_functions(torch, note):
    squared = _squared(torch)

    def forward(ctx, x):
        ctx.save_for_backward(x)
        return squared.apply(x) * x

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * squared.apply(x)

    x = _leaf(torch, 2)
    y = _function(torch, forward, backward).apply(x)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    note("derivatives", g, h)


def a_second_derivative_that_uses_gradients_twice(torch, note):
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * g * x.exp()

    x = _leaf(torch, 2)
    y = _function(torch, forward, backward).apply(x)
    v = _leaf(torch, 2, seed=1)
    (g,) = torch.autograd.grad(y, x, v, create_graph=True)
    note("derivatives", torch.autograd.grad(g.sum(), [x, v]))


def setup_context_and_its_errors(torch, note):
    def made(**methods):
        return type("Made", (torch.autograd.Function,), {n: staticmethod(m) for n, m in methods.items()})

    x = _leaf(torch, 2)
    both = made(
        forward=lambda x: (x * 2, x * 3),
        setup_context=lambda ctx, inputs, output: note("setup", len(inputs), isinstance(output, tuple)),
        backward=lambda ctx, a, b: a * 2 + b * 3,
    )
    a, b = both.apply(x)
    (a.sum() + b.sum()).backward()
    note("gradient", x.grad)

    def saving_output(ctx, inputs, output):
        ctx.save_for_backward(output)
        ctx.mark_non_differentiable(output)

    marked = made(forward=lambda x: x.floor(), setup_context=saving_output, backward=lambda ctx, g: g)
    note("marked", marked.apply(x).requires_grad)
    with_ctx = made(
        forward=lambda ctx, x: x * 2, setup_context=lambda ctx, inputs, output: None, backward=lambda ctx, g: g
    )
    note.error("both take a ctx", lambda: with_ctx.apply(x))
