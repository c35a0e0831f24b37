"""What Paddle's documentation shows of hooks, layers and gradients."""

import numpy as np


def _leaf(paddle, *shape, seed=0):
    return paddle.to_tensor(np.random.default_rng(seed).uniform(0.2, 1.8, shape), stop_gradient=False)


def _layer(paddle, forward, backward):
    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Made", (paddle.autograd.PyLayer,), {n: m for n, m in methods.items() if m})


def a_product_packs_both_factors(paddle, note):
    a, b = _leaf(paddle, 2), _leaf(paddle, 2, seed=1)
    with paddle.autograd.saved_tensors_hooks(*note.pair()):
        y = paddle.multiply(a, b)
    y.sum().backward()
    note("gradients", a.grad, b.grad)


def hooks_pack_what_a_layer_saves(paddle, note):
    def forward(ctx, a, b):
        y = paddle.multiply(a, b)
        ctx.save_for_backward(a, b)
        return y

    def backward(ctx, dy):
        a, b = ctx.saved_tensor()
        return dy * b, dy * a

    a, b = _leaf(paddle, 2), _leaf(paddle, 2, seed=1)
    with paddle.autograd.saved_tensors_hooks(*note.pair()):
        y = _layer(paddle, forward, backward).apply(a, b)
    y.sum().backward()
    note("gradients", a.grad, b.grad)


def hooks_may_change_values(paddle, note):
    a, b = _leaf(paddle, 2), _leaf(paddle, 2, seed=1)
    with paddle.autograd.saved_tensors_hooks(*note.pair(lambda x: x.numpy(), lambda x: paddle.to_tensor(x * 2))):
        y = paddle.multiply(a, b)
    y.sum().backward()
    note("gradients", a.grad, b.grad)


def layers_pass_attributes_and_other_values(paddle, note):
    def forward(ctx, x, function, power=2):
        ctx.power, ctx.function = power, function
        y = function(x) ** power
        ctx.save_for_backward(x)
        return y, 7, None

    def backward(ctx, dy):
        (x,) = ctx.saved_tensor()
        return dy * ctx.power * x

    x = _leaf(paddle, 2)
    y, *others = _layer(paddle, forward, backward).apply(x, lambda t: t * 1, power=2)
    note("others", others)
    y.sum().backward()
    note("gradient", x.grad, y.stop_gradient, x.stop_gradient)


def layers_have_one_gradient_a_tensor(paddle, note):
    def case(name, returned, *inputs):
        made = _layer(paddle, lambda ctx, *tensors: sum(t for t in tensors if not isinstance(t, str)), returned)
        y = made.apply(*inputs)
        note.error(name, lambda: y.sum().backward())

    case("right", lambda ctx, g: g, _leaf(paddle, 2), "text")
    case("too many", lambda ctx, g: (g, g), _leaf(paddle, 2))
    case("too few", lambda ctx, g: (g,), _leaf(paddle, 2), _leaf(paddle, 2))
    case("no tensor", lambda ctx, g: 1.0, _leaf(paddle, 2))


def missing_methods_are_errors(paddle, note):
    note.error("forward", lambda: _layer_without(paddle, "forward").apply(_leaf(paddle, 2)))


def _layer_without(paddle, name):
    methods = {"forward": staticmethod(lambda ctx, x: x * 1), "backward": staticmethod(lambda ctx, g: g)}
    del methods[name]
    return type("Made", (paddle.autograd.PyLayer,), methods)


def non_differentiable_outputs(paddle, note):
    def forward(ctx, x):
        a, b = x * 2, x * 3
        ctx.mark_non_differentiable(b)
        return a, b

    def backward(ctx, da, db):
        note("gradients", da, db)
        return da * 2

    x = _leaf(paddle, 2)
    a, b = _layer(paddle, forward, backward).apply(x)
    note("stop", a.stop_gradient, b.stop_gradient)
    a.sum().backward()
    note("gradient", x.grad)


def unmaterialized_gradients(paddle, note):
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    def backward(ctx, da, db):
        note("gradients", da, db)
        return da * 2

    x = _leaf(paddle, 2)
    a, _ = _layer(paddle, forward, backward).apply(x)
    a.sum().backward()
    note("gradient", x.grad)


def grad_returns_a_list(paddle, note):
    x, y = _leaf(paddle, 2), _leaf(paddle, 2, seed=1)
    found = paddle.grad([(x * y).sum()], [x, y], retain_graph=True)
    note("gradients", *found)
    note("nothing accumulates", x.grad, y.grad)
    (g,) = paddle.grad((x * x * x).sum(), x, create_graph=True)
    (h,) = paddle.grad(g.sum(), x)
    note("second", g, h)
    (unused, used) = paddle.grad((x * 2).sum(), [y, x], allow_unused=True)
    note("unused", unused, used)
    note.error("unused is refused", lambda: paddle.grad((x * 2).sum(), [y]))


def gradients_accumulate_and_are_cleared(paddle, note):
    x = _leaf(paddle, 2)
    (x * x).sum().backward()
    (x * x).sum().backward()
    note("sum", x.grad)
    x.clear_grad()
    note("cleared", x.grad is None or float(x.grad.abs().sum()) == 0.0)
    note("flags", x.is_leaf, (x * 2).is_leaf, (x * 2).stop_gradient)


def no_grad_and_stop_gradient(paddle, note):
    x = _leaf(paddle, 2)
    with paddle.no_grad():
        note("no_grad", (x * 2).stop_gradient)
    y = x * 2
    y.stop_gradient = True
    note("cut", (y * 3).stop_gradient)
    note("detached", x.detach().stop_gradient, paddle.ones([2]).stop_gradient)


def hooks_on_gradients(paddle, note):
    x = _leaf(paddle, 2)
    y = x * 2
    handle = y.register_hook(lambda g: note("hook", g))
    y.register_hook(lambda g: g * 3)
    y.sum().backward(retain_graph=True)
    note("gradient", x.grad)
    handle.remove()
    y.sum().backward()
    note("after", x.grad)


def _constant(paddle, *shape, seed=7):
    return paddle.to_tensor(np.random.default_rng(seed).uniform(0.2, 1.8, shape))


def lazy_jacobians(paddle, note):
    x, y, a = _leaf(paddle, 3), _leaf(paddle, 2, seed=1), _constant(paddle, 2, 3)
    J = paddle.autograd.jacobian(paddle.matmul(a, x * x), x)
    note("shape", list(J.shape))
    for name, index in {
        "all": slice(None),
        "row": 0,
        "last row": -1,
        "element": (1, 2),
        "column": (slice(None), 1),
        "part": (slice(0, 1), slice(None, None, 2)),
    }.items():
        note(name, J[index])
    by_both = paddle.autograd.jacobian(x * y.sum(), [x, y])
    note("of one by two", [list(J.shape) for J in by_both], [J[:] for J in by_both])
    both = paddle.autograd.jacobian([x * x, y.sum() * x], [x, y])
    note("of two by two", [[list(J.shape) for J in row] for row in both], [[J[:] for J in row] for row in both])
    unrelated = paddle.autograd.jacobian(y * y, x)
    note("unrelated", unrelated[:])


def lazy_jacobians_of_a_batch(paddle, note):
    x, a = _leaf(paddle, 4, 3), _constant(paddle, 3, 2)
    J = paddle.autograd.jacobian(paddle.matmul(x * x, a), x, batch_axis=0)
    note("shape", list(J.shape))
    note("all", J[:])
    note("member", J[2])
    note("row", J[:, 1])
    note("element", J[1, 0, 2])
    note.error("axis", lambda: paddle.autograd.jacobian(x, x, batch_axis=1))


def lazy_hessians(paddle, note):
    x, y = _leaf(paddle, 3), _leaf(paddle, 2, seed=1)
    H = paddle.autograd.hessian((x * x * x).sum(), x)
    note("shape", list(H.shape))
    note("all", H[:])
    note("row", H[1])
    both = paddle.autograd.hessian((x * x).sum() * (y * y).sum(), [x, y])
    note("by two", [[list(H.shape) for H in row] for row in both], [[H[:] for H in row] for row in both])
    note.error("a vector", lambda: paddle.autograd.hessian(x * x, x))


def lazy_hessians_of_a_batch(paddle, note):
    x = _leaf(paddle, 4, 3)
    H = paddle.autograd.hessian((x * x * x).sum(1), x, batch_axis=0)
    note("shape", list(H.shape))
    note("all", H[:])


def rows_can_be_differentiated(paddle, note):
    x = _leaf(paddle, 3)
    J = paddle.autograd.jacobian(x * x * x, x)
    J[:].sum().backward()
    note("gradient", x.grad)


def layers_take_lists_and_keywords(paddle, note):
    def forward(ctx, tensors, factor=2.0, other=None):
        ctx.factor = factor
        ctx.save_for_backward(*tensors)
        y = tensors[0] * tensors[1] * factor
        return y if other is None else y + other

    def backward(ctx, dy):
        a, b = ctx.saved_tensor()
        return ([dy * b * ctx.factor, dy * a * ctx.factor],)

    a, b = _leaf(paddle, 2), _leaf(paddle, 2, seed=1)
    y = _layer(paddle, forward, backward).apply([a, b], factor=3.0)
    y.sum().backward()
    note("gradients", a.grad, b.grad)


def layers_return_lists_and_none(paddle, note):
    def forward(ctx, x):
        return [x * 2, None, 5, x * 3]

    def backward(ctx, *grads):
        note("count", len(grads))
        return grads[0] * 2 + grads[1] * 3

    x = _leaf(paddle, 2)
    found = _layer(paddle, forward, backward).apply(x)
    note("types", type(found).__name__, [found[1], found[2]])
    (found[0].sum() + found[3].sum()).backward()
    note("gradient", x.grad)


def layers_with_frozen_inputs(paddle, note):
    def forward(ctx, x, y, z):
        return x * y * z

    def backward(ctx, g):
        return g, None, g * 2

    x, z = _leaf(paddle, 2), _leaf(paddle, 2, seed=1)
    y = _constant(paddle, 2)
    out = _layer(paddle, forward, backward).apply(x, y, z)
    out.sum().backward()
    note("gradients", x.grad, y.grad, z.grad)
    out = _layer(paddle, forward, backward).apply(y, y, y)
    note("nothing requires", out.stop_gradient)


def layers_differentiated_twice(paddle, note):
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    def backward(ctx, g):
        (x,) = ctx.saved_tensor()
        return g * 3 * x * x

    x = _leaf(paddle, 2)
    y = _layer(paddle, forward, backward).apply(x)
    (g,) = paddle.grad(y.sum(), x, create_graph=True)
    (h,) = paddle.grad(g.sum(), x)
    note("derivatives", g, h)


def layers_within_layers(paddle, note):
    inner = _layer(paddle, lambda ctx, x: x * 2, lambda ctx, g: g * 2)
    outer = _layer(paddle, lambda ctx, x: inner.apply(x) * 3, lambda ctx, g: g * 6)
    x = _leaf(paddle, 2)
    outer.apply(x * 1).sum().backward()
    note("gradient", x.grad)


def a_backward_that_runs_backward(paddle, note):
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    def backward(ctx, g):
        (x,) = ctx.saved_tensor()
        inner = x.detach()
        inner.stop_gradient = False
        with paddle.enable_grad():
            (inner * inner).sum().backward()
        return g * inner.grad

    x = _leaf(paddle, 2)
    _layer(paddle, forward, backward).apply(x).sum().backward()
    note("gradient", x.grad)


def saving_in_layers(paddle, note):
    def case(name, save):
        def forward(ctx, x):
            save(ctx, x)
            return x * 1

        def backward(ctx, g):
            saved = ctx.saved_tensor()
            note(name, None if saved is None else len(saved))
            return g

        x = _leaf(paddle, 2)
        _layer(paddle, forward, backward).apply(x).sum().backward()

    case("nothing", lambda ctx, x: None)
    case("one", lambda ctx, x: ctx.save_for_backward(x))
    case("several", lambda ctx, x: ctx.save_for_backward(x, x * 2, x.sum()))


def a_returned_input_of_a_layer(paddle, note):
    def in_place(ctx, x):
        ctx.mark_not_inplace(x)
        return x

    x = _leaf(paddle, 2)
    a = x * 1
    y = _layer(paddle, in_place, lambda ctx, g: g * 5).apply(a)
    note("same", y is a)
    y.sum().backward()
    note("gradient", x.grad)
    note.error("a leaf", lambda: _layer(paddle, lambda ctx, x: x, lambda ctx, g: g).apply(x))


def what_a_layer_may_return(paddle, note):
    def returns(value):
        def act():
            y = _layer(paddle, lambda ctx, x: value(x), lambda ctx, g: g * 2).apply(x)
            y[-1].sum().backward()

        return act

    x = _leaf(paddle, 2)
    for mode in (True, False):
        x.stop_gradient = mode
        for name, value in {
            "nothing": lambda x: None,
            "a number": lambda x: 1,
            "an empty tuple": lambda x: (),
            "numbers": lambda x: [1, None],
        }.items():
            note.error(name, returns(value), "At least one output of `PyLayer.forward` is a `Tensor`")
    note.error("a tensor among others", returns(lambda x: [1, None, x * 1]))
    note("gradient", x.grad)


def hooks_around_layers_and_second_order(paddle, note):
    x = _leaf(paddle, 2)
    with paddle.autograd.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        y = paddle.multiply(x, x)
    (g,) = paddle.grad(y.sum(), x, create_graph=True)
    note("first", g)
    (h,) = paddle.grad(g.sum(), x)
    note("second", h)


def backward_functions(paddle, note):
    x, y = _leaf(paddle, 2), _leaf(paddle, 2, seed=1)
    a, b = x * y, x + y
    paddle.autograd.backward([a, b.sum()], [_constant(paddle, 2), None], retain_graph=True)
    note("two", x.grad, y.grad)
    x.clear_gradient()
    note("cleared", float(x.grad.sum()) if x.grad is not None else 0.0)
    paddle.autograd.backward([a], [_constant(paddle, 2)])
    note("weighted", x.grad)


def grads_signature(paddle, note):
    x, y = _leaf(paddle, 2), _leaf(paddle, 2, seed=1)
    a = x * y
    b = a * a
    (plain,) = paddle.grad([b.sum()], [x], retain_graph=True)
    (cut,) = paddle.grad([b.sum()], [x], retain_graph=True, no_grad_vars=[y])
    note("no_grad_vars", plain, cut)
    note("outputs' weights", paddle.grad([b, a.sum()], [x], [_constant(paddle, 2), None], retain_graph=True))
    note("of a non-leaf", paddle.grad(b.sum(), a, retain_graph=True))
    unused = paddle.grad([a.sum()], [x, _leaf(paddle, 2)], allow_unused=True, retain_graph=True)
    note("unused", unused)
