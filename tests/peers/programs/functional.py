"""`torch.autograd.functional`: whole derivatives of functions, their products, and what `strict` refuses."""

import functools
import importlib

import numpy as np


def _tensor(torch, *shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).uniform(0.2, 1.8, shape))


def _functional(torch):
    return importlib.import_module(f"{torch.__name__}.autograd.functional")


def _structure(value):
    """Return what a result is made of, in place of the values: tuples, and whether tensors have a graph."""
    return [_structure(v) for v in value] if isinstance(value, tuple | list) else value.requires_grad


def _flat(value):
    return [t.detach() for v in value for t in _flat(v)] if isinstance(value, tuple | list) else [value.detach()]


def _two(x, y):
    return x.sin() * y.sum(), (x * x).sum() * y


def _scalar(x, y):
    return (x.sin() * x).sum() * (y * y).sum()


# Name of the function -> what it does, and the shapes of its inputs; a single one is no tuple.
FUNCTIONS = {
    "elementwise": (lambda x: x.exp() * x, (3,)),
    "to a matrix": (lambda x: x.reshape(2, 1) * x, (2,)),
    "of a matrix": (lambda x: x.sum(0).sin(), (2, 3)),
    "to a scalar": (lambda x: (x * x * x).sum(), (3,)),
    "of a scalar": (lambda x: x.exp() * x, ()),
    "a tuple of one": (lambda x: (x * x,), ((2,),)),
    "two of two": (_two, ((3,), (2,))),
    "constant": (lambda x: x.detach() * 2, (2,)),
    "linear": (lambda x: x * 3, (2,)),
    "of one of two": (lambda x, y: x * x, ((2,), (3,))),
}
# Those of one element.
SCALARS = {
    "cubes": (lambda x: (x * x * x).sum(), (3,)),
    "of a matrix": (lambda x: x.sin().prod(), (2, 2)),
    "of two": (_scalar, ((3,), (2,))),
    "of a scalar": (lambda x: x * x * x, ()),
    "linear": (lambda x: x.sum(), (2,)),
    "of one of two": (lambda x, y: (x * x).sum(), ((2,), (3,))),
    "constant": (lambda x: x.detach().sum(), (2,)),
}


def _inputs(torch, shapes, seed=0):
    if shapes and isinstance(shapes[0], tuple):
        return tuple(_tensor(torch, *shape, seed=seed + i) for i, shape in enumerate(shapes))
    return _tensor(torch, *shapes, seed=seed)


def _ones_like(torch, value):
    return tuple(_ones_like(torch, v) for v in value) if isinstance(value, tuple) else torch.ones_like(value) * 0.5


def jacobians(torch, note):
    functional = _functional(torch)
    for name, (function, shapes) in FUNCTIONS.items():
        inputs = _inputs(torch, shapes)
        plain = functional.jacobian(function, inputs)
        note(name, _structure(plain), _flat(plain))
        note(name, _structure(functional.jacobian(function, inputs, create_graph=True)))
        for options in ({"vectorize": True}, {"vectorize": True, "strategy": "forward-mode"}):
            if name not in ("constant", "of one of two") or len(options) == 1:
                found = functional.jacobian(function, inputs, **options)
                note(name, _structure(found), _flat(found))


def hessians(torch, note):
    functional = _functional(torch)
    for name, (function, shapes) in SCALARS.items():
        inputs = _inputs(torch, shapes)
        plain = functional.hessian(function, inputs)
        note(name, _structure(plain), _flat(plain))
        note(name, _structure(functional.hessian(function, inputs, create_graph=True)))
        found = functional.hessian(function, inputs, vectorize=True)
        note(name, _structure(found), _flat(found))
    note.error("a vector", lambda: functional.hessian(lambda x: x * x, _tensor(torch, 2)), "single")
    note.error("a tuple", lambda: functional.hessian(lambda x: (x.sum(),), _tensor(torch, 2)))


def products_with_jacobians(torch, note):
    functional = _functional(torch)
    for name, (function, shapes) in FUNCTIONS.items():
        inputs = _inputs(torch, shapes)
        outputs = function(*inputs) if isinstance(inputs, tuple) else function(inputs)
        for product, vector in (
            (functional.vjp, _ones_like(torch, outputs)),
            (functional.jvp, _ones_like(torch, inputs)),
        ):
            for create_graph in (False, True):
                value, found = product(function, inputs, vector, create_graph=create_graph)
                note(f"{product.__name__} {name}", _structure(value), _flat(value), _structure(found), _flat(found))
    note("vjp of one element", functional.vjp(lambda x: (x * x).sum(), _tensor(torch, 3)))
    note("jvp of one element", functional.jvp(lambda x: x * _tensor(torch, 3), _tensor(torch)))


def products_with_hessians(torch, note):
    functional = _functional(torch)
    for name, (function, shapes) in SCALARS.items():
        inputs = _inputs(torch, shapes)
        for product in (functional.vhp, functional.hvp):
            for create_graph in (False, True):
                value, found = product(function, inputs, _ones_like(torch, inputs), create_graph=create_graph)
                note(f"{product.__name__} {name}", _structure(value), _flat(value), _structure(found), _flat(found))


def strictness_refuses_what_does_not_depend(torch, note):
    functional = _functional(torch)

    def case(product, name, function, inputs, *vectors):
        for create_graph in (False, True):
            call = functools.partial(getattr(functional, product), function, inputs, *vectors)
            note.error(
                f"{product} {name} {create_graph}", functools.partial(call, strict=True, create_graph=create_graph)
            )

    for name, (function, shapes) in FUNCTIONS.items():
        inputs = _inputs(torch, shapes)
        outputs = function(*inputs) if isinstance(inputs, tuple) else function(inputs)
        case("jacobian", name, function, inputs)
        case("vjp", name, function, inputs, _ones_like(torch, outputs))
        case("jvp", name, function, inputs, _ones_like(torch, inputs))
    for name, (function, shapes) in SCALARS.items():
        inputs = _inputs(torch, shapes)
        case("hessian", name, function, inputs)
        for product in ("vhp", "hvp"):
            case(product, name, function, inputs, _ones_like(torch, inputs))


def a_graph_leads_back_to_inputs_that_require_a_gradient(torch, note):
    functional = _functional(torch)
    vector = _tensor(torch, 3, seed=5)
    for name, derivative in {
        "jacobian": lambda x: functional.jacobian(lambda x: x.exp() * x, x, create_graph=True),
        "hessian": lambda x: functional.hessian(lambda x: (x.exp() * x).sum(), x, create_graph=True),
        "vjp": lambda x: functional.vjp(lambda x: x.exp() * x, x, vector, create_graph=True)[1],
        "jvp": lambda x: functional.jvp(lambda x: x.exp() * x, x, vector, create_graph=True)[1],
        "vhp": lambda x: functional.vhp(lambda x: (x.exp() * x).sum(), x, vector, create_graph=True)[1],
        "hvp": lambda x: functional.hvp(lambda x: (x.exp() * x).sum(), x, vector, create_graph=True)[1],
    }.items():
        x = _tensor(torch, 3).requires_grad_()
        derivative(x).sum().backward()
        note(name, x.grad)
        x = _tensor(torch, 3).requires_grad_()
        a = x * 1
        derivative(a).sum().backward()
        note(f"{name} of a non-leaf", x.grad)
    v = vector.clone().requires_grad_()
    functional.vjp(lambda x: x.exp(), _tensor(torch, 3), v, create_graph=True)[1].sum().backward()
    note("the vector's", v.grad)


def wrong_arguments_are_errors(torch, note):
    functional = _functional(torch)
    x, y = _tensor(torch, 3), _tensor(torch, 2)
    note.error("input", lambda: functional.jacobian(lambda x: x, 1.0))
    note.error("input of a tuple", lambda: functional.jacobian(lambda x, y: x, (x, 1.0)))
    note.error("output", lambda: functional.vjp(lambda x: 1.0, x))
    note.error("no vector", lambda: functional.vjp(lambda x: x * 2, x))
    note.error("no vector for jvp", lambda: functional.jvp(lambda x: x * 2, x))
    note.error("no vector for vhp", lambda: functional.vhp(lambda x: x.sum(), x))
    note.error("vector's shape", lambda: functional.vjp(lambda x: x * 2, x, y))
    note.error("vector's count", lambda: functional.jvp(lambda x: x * 2, x, (x, x)))
    note.error("vector's type", lambda: functional.hvp(lambda x: x.sum(), x, 1.0))


def derivatives_are_taken_in_no_grad_and_leave_no_trace(torch, note):
    functional = _functional(torch)
    x = _tensor(torch, 2).requires_grad_()
    with torch.no_grad():
        note("jacobian", functional.jacobian(lambda x: x * x, x))
        note("mode", torch.is_grad_enabled())
    functional.hessian(lambda x: (x * x).sum(), x)
    note("gradient", x.grad)
