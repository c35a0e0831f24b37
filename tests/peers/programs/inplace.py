"""In-place changes of tensors, views and bases: values, gradients, nodes, and what is refused."""

import functools

import numpy as np

from tests.peers.record import chain, name_of


def _leaf(torch, *shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).uniform(0.2, 1.8, shape), requires_grad=True)


# Each changes something computed from `x` and `y` (3 × 4) and `v` (4) in place, and leaves it in `a`.
CHANGES = {
    "add": "a = x * 1; a.add_(y)",
    "add with alpha": "a = x * 1; a.add_(y, alpha=3)",
    "operators": "a = x * 1; a += y; a *= 2; a -= v; a /= y",
    "power": "a = x * 1; a **= 2",
    "unary": "a = x * 1; a.sin_(); a.neg_(); a.exp_()",
    "copy": "a = x * 1; a.copy_(y)",
    "copy broadcast": "a = x * 1; a.copy_(v)",
    "fill": "a = x * y; a.fill_(2); a += x",
    "zero": "a = x * y; a.zero_(); a += x",
    "clamp": "a = x * 1; a.clamp_(0.5, 1.2)",
    "row": "a = x * 1; a[0] = y[1]",
    "column": "a = x * 1; a[:, 1] = v[:3] * 2",
    "number": "a = x * y; a[1:, ::2] = 0",
    "element": "a = x * 1; a[1, 2] = v.sum()",
    "mask": "a = x * y; a[x > 1] = 0.5",
    "masked values": "a = x * 1; a[torch.tensor([True, False, True])] = y[:2]",
    "rows by index": "a = x * 1; a[torch.tensor([2, 0])] = y[:2]",
    "augmented row": "a = x * 1; a[0] += y[2]; a[1] *= v",
    "broadcast row": "a = x * 1; a[1:] = v",
    "view": "a = x * 1; a[0].mul_(y[0])",
    "view of a view": "a = x * 1; a.t()[1:].view(3, 3)[2].exp_() if False else a.t()[1:][2].exp_()",
    "reshaped view": "a = x * 1; a.view(12)[::2].mul_(3)",
    "transposed": "a = x * 1; a.t().mul_(y.t())",
    "view after": "b = x * 1; a = b[0]; b.mul_(2)",
    "view before and after": "b = x * 1; a = b[0] * 1; b[0].mul_(2); a = a + b[0]",
    "two views": "b = x * 1; c = b[:2]; d = b[1:]; c.mul_(2); d.mul_(3); a = b",
    "view read after its base": "b = x * 1; a = b.view(12); b.add_(y); a.mul_(2)",
    "masked_fill": "a = x * 1; a.masked_fill_(x > 1, 3.0)",
    "scatter": "a = x * 1; a.scatter_(1, torch.tensor([[0, 1], [2, 3], [1, 0]]), y[:, :2])",
    "index_add": "a = x * 1; a.index_add_(0, torch.tensor([1, 1]), y[:2])",
    "into zeros": "a = torch.zeros(3, 4, dtype=torch.float64); a[0] = v; a[1] = x[0] * 2",
    "into ones": "a = torch.ones(3, 4, dtype=torch.float64); a.mul_(x); a.mul_(y)",
    "swap": "a = x * 1; a[0], a[1] = a[1].clone(), a[0].clone()",
    "diagonal": "a = x * 1; a.diagonal().add_(v[:3])",
    "select": "a = x * 1; a.select(1, 2).fill_(7)",
    "narrow": "a = x * 1; a.narrow(0, 1, 2).mul_(y[:2])",
    "loop": "a = torch.zeros(3, 4, dtype=torch.float64)\nfor i in range(3):\n    a[i] = x[i] * (a[i - 1] + 1)",
    "detached": "a = x * 1; a.detach().mul_(2)",
}


def changes_give_the_gradients_of_what_they_compute(torch, note):
    for name, change in CHANGES.items():
        names = {"torch": torch, "x": _leaf(torch, 3, 4), "y": _leaf(torch, 3, 4, seed=1), "v": _leaf(torch, 4, seed=2)}
        exec(change, names)
        a = names["a"]
        note(name, a, a._version, name_of(a.grad_fn))
        weights = torch.tensor(np.cos(np.arange(a.numel())).reshape(tuple(a.shape)))
        (a * weights).sum().backward()
        note(name, names["x"].grad, names["y"].grad, names["v"].grad)


def nodes_of_a_changed_base_and_view(torch, note):
    x = _leaf(torch, 4)
    base = x * 1
    view = base[:2]
    note("before", chain(view.grad_fn))
    view.mul_(2)
    note("base", chain(base.grad_fn))
    base.add_(1)
    note("view", name_of(base.grad_fn), name_of(view.grad_fn), view._version, base._version)


def leaves_refuse(torch, note):
    x = _leaf(torch, 2)
    leaf = "leaf Variable that requires grad"
    for name, change in {
        "add_": lambda: x.add_(1),
        "zero_": lambda: x.zero_(),
        "copy_": lambda: x.copy_(torch.ones(2)),
        "item": lambda: x.__setitem__(0, 1.0),
        "exp_": lambda: x.exp_(),
    }.items():
        note.error(name, change, leaf)
    note.error("a view of a leaf", lambda: x[:1].mul_(2), "view of a leaf Variable")
    with torch.no_grad():
        x.add_(1)
        x[0] = 2.0
    note("without recording", x, x._version)
    x.data.mul_(3)
    note("data", x)


def leaves_that_are_views_refuse(torch, note):
    says = "a view of a leaf Variable that requires grad is being used in an in-place operation"
    changes = {
        "itself": lambda w: w.sub_(1),
        "by a tensor": lambda w: w.mul_(_leaf(torch, 3)),
        "an element": lambda w: w.__setitem__(0, 1),
        "a view of it": lambda w: w[:2].add_(1),
        "its shape": lambda w: w.unsqueeze_(0),
        "a copy": lambda w: w.copy_(torch.ones(3)),
    }
    for name, change in changes.items():
        flat = torch.zeros(5, dtype=torch.float64)
        w = flat[2:].requires_grad_()
        note.error(name, functools.partial(change, w), says)
        note("leaf", w.is_leaf, w.requires_grad, flat.requires_grad)
        with torch.no_grad():
            w.add_(1)
        (w * w).sum().backward()
        note("gradient", w.grad, flat)


def other_data_leaves_version_and_graph(torch, note):
    x = _leaf(torch, 3)
    y = x * 2
    y.add_(1)
    y.mul_(2)
    note("changes", y._version)
    y.data = torch.ones(3, dtype=torch.float64)
    note("other data", y, y._version, y.detach()._version, y[:2]._version)
    y.add_(1)
    note("one more change", y._version)
    y.sum().backward()
    note("gradient", x.grad)
    x.data = torch.ones(3, dtype=torch.float64)
    note("a leaf", x._version, x.is_leaf, x.grad, torch.autograd.grad((x * x).sum(), x))
    z = (x * 3).sum()
    x.data = torch.zeros(3, dtype=torch.float64)
    note("in a graph from before", torch.autograd.grad(z, x))


def what_does_not_fit_is_refused(torch, note):
    a = _leaf(torch, 2) * 1
    note.error("shape", lambda: a.add_(torch.ones(3, 2, dtype=torch.float64)))
    note.error("dtype", lambda: torch.tensor([1, 2]).add_(1.5), "can't be cast")
    note.error("copy", lambda: a.copy_(torch.ones(3)))
    note.error("index", lambda: a.__setitem__(5, 1.0))
    note.error("expanded", lambda: torch.ones(1).expand(3).add_(1))
    note("unchanged", a, a._version)


def views_of_several_outputs_and_of_unrecorded_times_refuse(torch, note):
    x = _leaf(torch, 2, 2)
    note.error("unbind", lambda: (x * 1).unbind(0)[0].mul_(2))
    note.error("split", lambda: (x * 1).split(1)[0].mul_(2))
    note.error("chunk", lambda: (x * 1).chunk(2)[0].mul_(2))
    base = torch.zeros(2, dtype=torch.float64)
    with torch.no_grad():
        view = base[:1]
    note.error("made in no_grad", lambda: view.mul_(x[0, :1]))


def versions_count_changes(torch, note):
    x = torch.zeros(4)
    view = x[:2]
    view.add_(1)
    x.mul_(2)
    x[0] = 3
    note("versions", x._version, view._version, x.detach()._version, x.clone()._version)
    x.zero_()
    note("zeroed", x._version, view)


def in_place_changes_keep_the_dtype(torch, note):
    x = torch.ones(2, dtype=torch.float32)
    x += torch.full((2,), 0.5, dtype=torch.float64)
    note("float32", x)
    i = torch.tensor([1, 2])
    i *= 3
    i += torch.tensor([1, 1], dtype=torch.int32)
    note("integers", i)
    b = torch.tensor([True, False])
    b |= torch.tensor([False, False])
    note("bool", b)
    x[0] = 7
    x[1] = torch.tensor(2.25, dtype=torch.float64)
    note("items", x)


def requires_grad_spreads_in_place(torch, note):
    a = torch.zeros(3, dtype=torch.float64)
    x = _leaf(torch, 3)
    note("before", a.requires_grad, a.is_leaf)
    a.add_(x)
    note("after", a.requires_grad, a.is_leaf, name_of(a.grad_fn))
    b = torch.zeros(4, dtype=torch.float64)
    b[1:] = x
    note("through a view", b.requires_grad, name_of(b.grad_fn))
    (a.sum() + b.sum()).backward()
    note("gradient", x.grad)


def second_derivatives_through_changes(torch, note):
    x = _leaf(torch, 3)
    a = x**3
    a[1:].mul_(x[:2])
    (g,) = torch.autograd.grad(a.sum(), x, create_graph=True)
    g.sum().backward()
    note("gradients", g, x.grad)


def hooks_pack_the_value_before_the_change(torch, note):
    x = _leaf(torch, 2)
    a = x * 1
    with torch.autograd.graph.saved_tensors_hooks(*note.pair(lambda t: t.clone())):
        a.mul_(a)
        a.exp_()
    a.sum().backward()
    note("gradient", x.grad)


# Each is a function of a non-leaf `a` (3 × 4) and `v` (4) that changes things in place and returns what to sum.
MORE_CHANGES = {
    "base, then view": "p = a[0]; a.mul_(2); return p * v",
    "view, then base": "p = a[0]; p.mul_(2); return a * v",
    "view, base, view": "p = a[0]; a.mul_(2); p.add_(v); return a + p",
    "view of a view": "p = a[:2]; q = p[1]; q.mul_(v); p.exp_(); return a + q",
    "siblings that overlap": "p = a[:2]; q = a[1:]; p.mul_(3); q.add_(v); p.sin_(); return a * q.sum()",
    "a column of a transposed view": "a.t()[1].mul_(a.t()[2]); return a",
    "reshaped and changed": "a.reshape(12)[3:7].mul_(v); return a",
    "unsqueezed": "a.unsqueeze(0)[0, 1].mul_(v); return a",
    "expanded source": "a[1].add_(v[:1].expand(4)); return a",
    "itself on both sides": "a.mul_(a); a.add_(a); return a",
    "a part of itself": "a[0].mul_(a[1]); a[1].mul_(a[0]); return a",
    "a row that moves": "a[1:] = a[:-1].clone(); return a",
    "a broadcast row of itself": "a[1:] *= a[:1]; return a",
    "in no_grad": "p = a * 1\nwith torch.no_grad():\n    p[0] = 0.0\nreturn p * v",
    "through data": "p = a * 1; p.data.mul_(3); return p * v",
    "through detach": "p = a * 1; p.detach()[0].fill_(2); return p * v",
    "a constant that takes part": "c = torch.ones(3, 4, dtype=torch.float64); c[1] = a[0]; c.mul_(a); return c",
    "a constant's view": "c = torch.ones(3, 4, dtype=torch.float64); c[1:].mul_(a[1:]); return c * v",
    "a view of a constant kept": "c = torch.zeros(3, 4, dtype=torch.float64); p = c[0]; p.add_(v); return c + p",
    "the same view twice": "a[0].mul_(2); a[0].mul_(3); return a",
    "index_put with repeats": "a[torch.tensor([0, 0])] = torch.stack((v, v)); return a",
    "a mask": "a[a > 1] *= 2; return a",
    "zero and add": "a.zero_(); a.add_(v); return a",
    "clone between": "b = a.clone(); a.mul_(2); b.mul_(3); return a + b",
    "copy of itself": "a.copy_(a * 2); return a",
    "copy of a transposed": "a[:, :3].copy_(a[:, :3].t().clone()); return a",
    "where out of place": "p = torch.where(a > 1, a, 0 * a); a.mul_(2); return p + a",
    "diagonal": "a.diagonal().mul_(v[:3]); return a",
    "select and narrow": "a.select(0, 1).narrow(0, 1, 2).exp_(); return a",
    "swapped": "a.transpose(0, 1).mul_(v[:, None]); return a",
    "clamped and sqrt": "a.clamp_(min=0.5); a.sqrt_(); return a",
    "addcmul and lerp": "a.addcmul_(a * 1, a * 2, value=0.5); a.lerp_(a * 3, 0.25); return a",
    "relu after bias": "a.add_(v).relu_(); return a",
    "masked_fill": "a.masked_fill_(a > 1, 0.0); return a",
    "index_fill and index_copy": "a.index_copy_(0, torch.tensor([2, 0]), a[:2] * 2); return a",
    "cumsum": "a.cumsum_(0); return a",
}


def more_changes_and_their_first_and_second_derivatives(torch, note):
    for name, body in MORE_CHANGES.items():
        lines = "\n".join("    " + line for line in body.replace("; ", "\n").split("\n"))
        names = {"torch": torch}
        exec(f"def function(a, v):\n{lines}", names)
        x, v = _leaf(torch, 3, 4), _leaf(torch, 4, seed=1)
        try:
            y = names["function"](x * 1, v)
            weights = torch.tensor(np.cos(np.arange(y.numel())).reshape(tuple(y.shape)))
            found = torch.autograd.grad((y * weights).sum(), [x, v], create_graph=True, allow_unused=True)
            total = sum((g * g).sum() for g in found if g is not None)
            second = torch.autograd.grad(total, [x, v], allow_unused=True) if total.requires_grad else None
        except RuntimeError:
            note(name, "RuntimeError")
        else:
            note(name, y, found, second)


def changes_of_what_backward_needs_are_errors(torch, note):
    changed = "modified by an inplace operation"
    for name, make in {
        "sin": lambda a: a.sin(),
        "exp": lambda a: a.exp(),
        "square": lambda a: a * a,
        "power": lambda a: a**3,
        "matrix product": lambda a: a @ a.t(),
        "softmax": lambda a: a.softmax(0),
        "division": lambda a: 1 / a,
        "sum": lambda a: a.sum(),
        "maximum": lambda a: a.max(1)[0],
        "relu": lambda a: a.relu(),
        "cat": lambda a: torch.cat((a, a)),
        "norm": lambda a: a.norm(),
        "prod": lambda a: a.prod(),
        "layer_norm": lambda a: torch.nn.functional.layer_norm(a, (4,)),
        "std": lambda a: a.std(),
        "index": lambda a: a[torch.tensor([0, 1])],
        "cumsum": lambda a: a.cumsum(0),
        "sort": lambda a: a.sort(0)[0],
    }.items():
        for which in ("input", "result"):
            x = _leaf(torch, 3, 4)
            a = x * 1
            y = make(a)
            (a if which == "input" else y).mul_(2)
            note.error(f"{name}: {which}", y.sum().backward, changed)


def versions_of_kinds_of_aliases(torch, note):
    x = torch.zeros(4)
    aliases = {"view": x[:2], "detached": x.detach(), "data": x.data, "reshaped": x.reshape(2, 2)}
    for name, alias in aliases.items():
        before = x._version
        alias.add_(1)
        note(name, x._version - before, alias._version)
