"""`torch.func`: derivatives of functions of nested arguments, their combinations, `vmap` and `functional_call`."""

import importlib

import numpy as np


def _func(torch):
    return importlib.import_module(f"{torch.__name__}.func")


def _tensor(torch, *shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).uniform(0.2, 1.8, shape))


def _noted(tree):
    """Return a nested result with tensors without graph, and whether they had one."""
    if isinstance(tree, dict):
        return {key: _noted(value) for key, value in tree.items()}
    if isinstance(tree, tuple | list):
        return [_noted(value) for value in tree]
    return [tree.detach(), tree.requires_grad]


def gradients(torch, note):
    f = _func(torch)
    x, y = _tensor(torch, 3), _tensor(torch, 3, seed=1)

    def product(x, y, scale=1.0):
        return (x.sin() * y * y).sum() * scale

    note("first", _noted(f.grad(product)(x, y)))
    note("second", _noted(f.grad(product, argnums=1)(x, y, scale=2.0)))
    note("last", _noted(f.grad(product, argnums=-1)(x, y)))
    note("both", _noted(f.grad(product, argnums=(0, 1))(x, y)))
    note("value", _noted(f.grad_and_value(product)(x, y)))
    note("aux", _noted(f.grad(lambda x: ((x * x).sum(), {"sines": x.sin()}), has_aux=True)(x)))
    note("value and aux", _noted(f.grad_and_value(lambda x: ((x * x).sum(), x.sin()), has_aux=True)(x)))
    tree = {"a": x, "b": [y, (x + y,)]}
    note("tree", _noted(f.grad(lambda t: (t["a"] * t["b"][0] * t["b"][1][0]).sum())(tree)))
    note("unused", _noted(f.grad(lambda x: (y * y).sum())(x)))
    note("twice", _noted(f.grad(lambda t: f.grad(lambda s: s.sin() * s * t)(t))(x[0])))
    note("third", _noted(f.grad(f.grad(f.grad(lambda s: s.exp() * s * s)))(x[0])))
    note("no grad inside", _noted(f.grad(lambda x: (x.detach() * x).sum())(x)))
    with torch.no_grad():
        note("in no_grad", _noted(f.grad(product)(x, y)))


def gradients_of_tensors_that_others_differentiate(torch, note):
    f = _func(torch)
    x, w = _tensor(torch, 3).requires_grad_(), _tensor(torch, 3, seed=1).requires_grad_()
    found = f.grad(lambda x: (x**3 * w).sum())(x)
    note("both", _noted(found), _noted(torch.autograd.grad(found.sum(), [x, w])))
    captured = f.grad(lambda x: (x**3 * w).sum())(x.detach())
    note("captured", _noted(captured), _noted(torch.autograd.grad(captured.sum(), w)))
    jacobian = f.jacrev(lambda x: x * x * w)(x.detach())
    note("jacobian", _noted(jacobian), _noted(torch.autograd.grad(jacobian.sum(), w)))
    forward = f.jacfwd(lambda x: x * x * w)(x.detach())
    note("forward", _noted(forward), _noted(torch.autograd.grad(forward.sum(), w)))
    output, pull = f.vjp(lambda x: x * x * w, x)
    note("pulled", _noted(output), _noted(torch.autograd.grad(pull(torch.ones_like(x))[0].sum(), [x, w])))
    with torch.no_grad():
        note("no grad", f.grad(lambda x: (x**3 * w).sum())(x).requires_grad)
    note("leaves", x.grad is None, w.grad is None)


def products_with_jacobians(torch, note):
    f = _func(torch)
    x, y = _tensor(torch, 3), _tensor(torch, 2, seed=1)

    def two(x, y):
        return x.sin() * y.sum(), {"outer": x[:, None] * y}

    output, pull = f.vjp(two, x, y)
    note("output", _noted(output))
    note("pulled", _noted(pull((torch.ones_like(x), {"outer": torch.ones_like(output[1]["outer"])}))))
    note("again", _noted(pull((x, {"outer": output[1]["outer"]}))))
    note("single", _noted(f.vjp(lambda x: x * x, x)[1](x)))
    note("aux", _noted(f.vjp(lambda x: (x * x, x.sin()), x, has_aux=True)[2]))
    note("pushed", _noted(f.jvp(two, (x, y), (torch.ones_like(x), y))))
    note("pushed aux", _noted(f.jvp(lambda x: (x * x, x.sin()), (x,), (x,), has_aux=True)))
    note("pushed twice", _noted(f.jvp(lambda x: f.jvp(lambda s: s * s * s, (x,), (x,))[1], (x,), (x,))))


def products_that_depend_on_their_vectors(torch, note):
    f = _func(torch)
    x, y = _tensor(torch, 3), _tensor(torch, 3, seed=1)

    def pulled(c):
        return f.vjp(lambda x: x**3, x)[1](c)[0]

    def pushed(c):
        return f.jvp(lambda x: x**3, (x,), (c,))[1]

    pull = f.vjp(lambda x: x**3, x)[1]
    for name, product in (("pulled", pulled), ("pushed", pushed), ("earlier", lambda c: pull(c)[0])):
        note(f"{name} gradient", _noted(f.grad(lambda c: product(c).sum())(y)))  # noqa: B023
        note(f"{name} rows", _noted(f.jacrev(product)(y)))
        note(f"{name} columns", _noted(f.jacfwd(product)(y)))
        note(f"{name} pushed", _noted(f.jvp(product, (y,), (x,))))
        note(f"{name} second", _noted(f.grad(lambda c: (product(c) ** 2).sum())(y)))  # noqa: B023
    note("by both", _noted(f.grad(lambda x, c: f.vjp(lambda x: x**3, x)[1](c)[0].sum(), argnums=(0, 1))(x, y)))
    c = y.clone().requires_grad_()
    pulled(c).sum().backward()
    note("backward", c.grad)
    with torch.no_grad():
        note("no grad", pulled(c).requires_grad)
    captured = f.grad(lambda w: f.grad(lambda x: (w * x**2).sum())(x).sum())(y)
    note("nested", _noted(captured))


def jacobians_and_hessians(torch, note):
    f = _func(torch)
    x, y = _tensor(torch, 3), _tensor(torch, 2, seed=1)
    for name in ("jacrev", "jacfwd"):
        transform = getattr(f, name)
        note(name, _noted(transform(lambda x: x.sin() * x.sum())(x)))
        note(f"{name} of two", _noted(transform(lambda x, y: x[:, None] * y, argnums=(0, 1))(x, y)))
        note(f"{name} second", _noted(transform(lambda x, y: x[:, None] * y * y, argnums=1)(x, y)))
        note(f"{name} tree", _noted(transform(lambda t: {"s": t["a"].sum() * t["b"], "a": t["a"]})({"a": x, "b": y})))
        note(f"{name} aux", _noted(transform(lambda x: (x * x, x.sin()), has_aux=True)(x)))
        note(f"{name} scalar", _noted(transform(lambda x: (x * x).sum())(x)))
    note("hessian", _noted(f.hessian(lambda x: (x.sin() * x.sum()).sum())(x)))
    note("hessian of two", _noted(f.hessian(lambda x, y: (x.sum() * y * y).sum(), argnums=(0, 1))(x, y)))
    note("reverse twice", _noted(f.jacrev(f.jacrev(lambda x: (x.exp() * x).sum()))(x)))


def derivatives_of_complex_numbers(torch, note):
    f = _func(torch)
    x = _tensor(torch, 2)
    z = torch.complex(x, _tensor(torch, 2, seed=1))
    note("real result", f.grad(lambda z: (z * z.conj()).real.sum())(z))
    note("products", _noted(f.vjp(lambda z: z * z, z)[1](z)), _noted(f.jvp(lambda z: z * z, (z,), (z,))))
    note("real tangent", _noted(f.jvp(lambda z: z * z, (z,), (x,))))
    note.error("grad", lambda: f.grad(lambda z: z.sum())(z), "only for real scalar outputs")
    for name in ("jacrev", "jacfwd"):
        transform = getattr(f, name)
        note.error(
            f"{name} inputs",
            lambda transform=transform: transform(lambda z: z.abs())(z),
            "Expected all inputs to be real but received complex tensor",
        )
        note.error(
            f"{name} outputs",
            lambda transform=transform: transform(lambda x: x * 1j)(x),
            "Expected all outputs to be real but received complex tensor",
        )
    for name, y, g in (("complex gradient", x, z), ("real gradient", z, x)):
        leaf = y.clone().requires_grad_()
        note.error(
            name,
            lambda leaf=leaf, g=g: (leaf * 1).backward(g),
            "both grad_output and output are required to have the same dtype",
        )
        note.error(
            f"{name} of grad",
            lambda leaf=leaf, g=g: torch.autograd.grad(leaf * 1, leaf, g),
            "both grad_output and output are required to have the same dtype",
        )
        note(f"{name} left", leaf.grad is None)


def calls_of_modules_with_parametrized_tensors(torch, note):
    f = _func(torch)
    parametrizations = importlib.import_module(f"{torch.__name__}.nn.utils.parametrizations")
    parametrize = importlib.import_module(f"{torch.__name__}.nn.utils.parametrize")
    x, w = _tensor(torch, 2, 3), _tensor(torch, 2, 3, seed=1)
    layer = parametrizations.weight_norm(torch.nn.Linear(3, 2).double())
    layer.bias.data = _tensor(torch, 2)
    before = layer.weight.detach().clone()
    note("weight", f.functional_call(layer, {"weight": w}, x).detach())
    note("inner", f.functional_call(torch.nn.Sequential(layer), {"0.weight": w, "0.bias": x[:, 0]}, x).detach())
    note("restored", bool(((layer.weight - before).abs() < 1e-12).all()))
    note.error("strict", lambda: f.functional_call(layer, {"weight": w}, x, strict=True), "Unexpected key")

    class Symmetric(torch.nn.Module):
        def forward(self, x):
            return x + x.T

    square = torch.nn.Linear(2, 2).double()
    parametrize.register_parametrization(square, "weight", Symmetric())
    note.error(
        "no inverse",
        lambda: f.functional_call(square, {"weight": w[:, :2]}, x[:, :2]),
        "does not implement right_inverse",
    )


def maps_over_batches(torch, note):
    f = _func(torch)
    x, y, w = _tensor(torch, 4, 3), _tensor(torch, 3, 4, seed=1), _tensor(torch, 3, seed=2)
    note("rows", _noted(f.vmap(lambda row: row * row.sum())(x)))
    note("dims", _noted(f.vmap(lambda a, b: a @ b, in_dims=(0, 1))(x, y)))
    note("shared", _noted(f.vmap(lambda a, b: a * b, in_dims=(0, None))(x, w)))
    note("negative", _noted(f.vmap(lambda b: b.sum(), in_dims=-1)(y)))
    note("out", _noted(f.vmap(lambda a: a * 2, out_dims=1)(x)))
    note("two results", _noted(f.vmap(lambda a: (a.sum(), {"a": a}), out_dims=(0, 1))(x)))
    note(
        "tree",
        _noted(f.vmap(lambda t, s: t["a"] * t["b"] + s, in_dims=({"a": 0, "b": None}, None))({"a": x, "b": w}, w)),
    )
    note("keywords", _noted(f.vmap(lambda a, b: a * b)(x, b=x)))
    note("nested", _noted(f.vmap(f.vmap(lambda a: a * a))(x)))
    note("per example", _noted(f.vmap(f.grad(lambda w, a: ((w * a).sum() - 1) ** 2), in_dims=(None, 0))(w, x)))
    note("function of torch", _noted(torch.vmap(torch.dot, in_dims=(0, 1))(x, y)))
    x.requires_grad_()
    note("gradient", _noted(torch.autograd.grad(f.vmap(lambda a: a * a.sum())(x).sum(), x)))


def calls_of_modules_with_other_parameters(torch, note):
    f = _func(torch)
    stateless = importlib.import_module(f"{torch.__name__}.nn.utils.stateless")
    nn = torch.nn
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)).double()
    x = _tensor(torch, 4, 3)
    for i, p in enumerate(model.parameters()):
        p.data = _tensor(torch, *p.shape, seed=i)
    before = dict(model.named_parameters())
    params = {name: (value.detach() * 2).requires_grad_() for name, value in before.items()}
    loss = f.functional_call(model, params, (x,)).square().sum()
    note("value", loss.detach(), _noted(torch.autograd.grad(loss, list(params.values()))))
    note("kept", all(value is before[name] for name, value in model.named_parameters()))
    note("part", f.functional_call(model, {"0.weight": params["0.weight"]}, x).detach())
    note("older name", stateless.functional_call(model, params, x).detach())
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    note("two dicts", f.functional_call(model, (params, buffers), (x,)).detach(), buffers["1.running_mean"])
    note("module's", model[1].running_mean.detach())
    model.eval()
    note("gradient", _noted(f.grad(lambda p: f.functional_call(model, p, (x,)).square().sum())(params)["2.bias"]))
    single = lambda p, row: f.functional_call(model, p, (row[None],)).sum()  # noqa: E731
    note("per example", _noted(f.vmap(f.grad(single), in_dims=(None, 0))(params, x)["0.weight"]))

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x))

    tied, weight = Tied().double(), _tensor(torch, 2, 2)
    tied.a.weight.data = _tensor(torch, 2, 2, seed=3)
    note("tied", f.functional_call(tied, {"a.weight": weight}, x[:, :2]).detach())
    note("untied", f.functional_call(tied, {"a.weight": weight}, x[:, :2], tie_weights=False).detach())
    note.error(
        "strict", lambda: f.functional_call(model, {"0.weight": params["0.weight"]}, x, strict=True), "Missing key(s)"
    )
    note.error(
        "strict more",
        lambda: f.functional_call(model, {**params, **buffers, "no": x}, x, strict=True),
        "Unexpected key(s)",
    )
    note.error("repeated", lambda: f.functional_call(model, (params, params), x))
    note.error("raised", lambda: f.functional_call(model, params, (x[0, :2],)))
    note("kept after an error", all(value is before[name] for name, value in model.named_parameters()))


def what_is_refused(torch, note):
    f = _func(torch)
    x = _tensor(torch, 3)
    note.error(
        "vector", lambda: f.grad(lambda x: x)(x), "Expected f(*args) to return a scalar tensor, got tensor with 1 dims"
    )
    note.error("number", lambda: f.grad(lambda x: 1.0)(x), "Expected f(*args) to return a tensor, got type")
    note.error("argnum", lambda: f.grad(lambda x: x.sum(), argnums=1)(x))
    note.error(
        "sizes",
        lambda: f.vmap(lambda a, b: a)(x, x[:2]),
        "Expected all tensors to have the same size in the mapped dimension",
    )
    note.error(
        "in_dims",
        lambda: f.vmap(lambda a: a, in_dims=(0, 0))(x),
        "in_dims is not compatible with the structure of inputs",
    )
    note.error("no tensor", lambda: f.vmap(lambda a: a)(3), "Got in_dim=0 for an input but the input is of type")
    note.error("few dims", lambda: f.vmap(lambda a: a, in_dims=2)(x), "Got in_dim=2 for an input")
    note.error("results", lambda: f.vmap(lambda a: 1)(x), "must only return Tensors")
    note.error("primals", lambda: f.jvp(lambda a: a, x, x), "Expected primals to be a tuple")
