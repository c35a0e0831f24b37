"""What operations save, what hooks see of it, and how saved values are read."""

import gc
import threading
import weakref

import numpy as np


def _leaf(torch, *shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).uniform(0.2, 1.8, shape), requires_grad=True)


# Each is one operation of `x`, `y` (2 × 3), a vector `v` and a matrix `q` (3 × 3); all require gradients.
OPERATIONS = (
    "x + y",
    "x - 1",
    "x * y",
    "x * 2",
    "x * x",
    "x / y",
    "x / 2",
    "2 / x",
    "-x",
    "x ** 2",
    "x ** y",
    "2 ** x",
    "x.exp()",
    "x.log()",
    "x.sqrt()",
    "x.rsqrt()",
    "x.reciprocal()",
    "x.tanh()",
    "x.sigmoid()",
    "x.relu()",
    "x.sin()",
    "x.cos()",
    "x.abs()",
    "x.square()",
    "x.erf()",
    "x.clamp(0, 1)",
    "x.lerp(y, 0.3)",
    "torch.maximum(x, y)",
    "torch.where(x > 1, x, y)",
    "torch.nn.functional.gelu(x)",
    "torch.nn.functional.silu(x)",
    "torch.nn.functional.softplus(x)",
    "torch.nn.functional.leaky_relu(x)",
    "torch.nn.functional.mse_loss(x, y)",
    "x @ q",
    "x @ v",
    "torch.addmm(x, y, q)",
    "torch.nn.functional.linear(x, q, v)",
    "x.sum()",
    "x.sum(1)",
    "x.mean()",
    "x.prod()",
    "x.std()",
    "x.norm()",
    "x.max()",
    "x.max(1)",
    "x.amax(1)",
    "x.logsumexp(1)",
    "x.softmax(1)",
    "x.log_softmax(1)",
    "x.cumsum(1)",
    "x.sort(1)",
    "x.reshape(6)",
    "x.t()",
    "x[0]",
    "x[:, 1:]",
    "x[torch.tensor([0, 0])]",
    "x.expand(2, 2, 3)",
    "torch.cat((x, y))",
    "torch.stack((x, y))",
    "x.index_select(0, torch.tensor([1]))",
    "x.gather(1, torch.tensor([[0], [2]]))",
    "x.masked_fill(x > 1, 0.0)",
    "x.tril()",
    "torch.nn.functional.embedding(torch.tensor([1, 0]), x)",
    "torch.nn.functional.nll_loss(x, torch.tensor([1, 0]))",
    "torch.nn.functional.cross_entropy(x, torch.tensor([1, 0]))",
    "torch.nn.functional.layer_norm(x, (3,), v, v)",
)


def operations_pack_what_their_gradients_need_in_order(torch, note):
    for operation in OPERATIONS:
        x, y = _leaf(torch, 2, 3), _leaf(torch, 2, 3, seed=1)
        v, q = _leaf(torch, 3, seed=2), _leaf(torch, 3, 3, seed=3)
        seen = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, seen=seen: seen.append(t) or t, lambda t: t):
            eval(operation, {"torch": torch, "x": x, "y": y, "v": v, "q": q})
        note(operation, [t.detach() for t in seen])


def a_factor_that_needs_no_gradient_is_not_the_reason_to_pack(torch, note):
    with torch.autograd.graph.saved_tensors_hooks(*note.pair()):
        y = _leaf(torch, 2) * torch.tensor([3.0, 4.0], dtype=torch.float64)
        z = torch.tensor([3.0, 4.0], dtype=torch.float64) @ _leaf(torch, 2)
    (y.sum() + z).backward()


def nothing_is_packed_without_recording(torch, note):
    x = _leaf(torch, 2)
    with torch.autograd.graph.saved_tensors_hooks(*note.pair()):
        with torch.no_grad():
            y = x * x
        z = x.detach() * x.detach()
    note("requires", y.requires_grad, z.requires_grad)


def unpacking_happens_in_backward_once_a_use_in_reverse(torch, note):
    x, y = _leaf(torch, 2), _leaf(torch, 2, seed=1)
    with torch.autograd.graph.saved_tensors_hooks(*note.pair()):
        z = (x * y).exp().tanh() / y
    note("forward is done")
    z.sum().backward(retain_graph=True)
    note("again")
    z.sum().backward()
    note("gradients", x.grad, y.grad)


def the_innermost_pair_applies(torch, note):
    x = _leaf(torch, 2)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: note("outer pack") or t * 2, lambda t: t):
        y = x * x
        with torch.autograd.graph.saved_tensors_hooks(lambda t: note("inner pack") or t * 3, lambda t: t):
            z = y * y
        w = z.exp()
    w.sum().backward()
    note("gradient", x.grad)


def _times(torch, pack, unpack):
    return torch.autograd.graph.saved_tensors_hooks(lambda t: t * pack, lambda t: t * unpack)


FUNCTIONS = {
    "cube": lambda torch, x: x**3,
    "product": lambda torch, x: x * x,
    "threefold product": lambda torch, x: x * x * x,
    "exponential": lambda torch, x: x.exp(),
    "sine": lambda torch, x: x.sin(),
    "matrix product": lambda torch, x: x.reshape(1, 4) @ (x.reshape(4, 1) @ x.reshape(1, 4)),
}


def hooks_around_forward_scale_gradients_of_each_order(torch, note):
    for name, function in FUNCTIONS.items():
        x = _leaf(torch, 4)
        with _times(torch, 2, 3):
            y = function(torch, x).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        g.sum().backward()
        note(name, g, x.grad)


def hooks_around_the_backward_scale_the_second_order(torch, note):
    for name, function in FUNCTIONS.items():
        x = _leaf(torch, 4)
        y = function(torch, x).sum()
        with _times(torch, 2, 3):
            (g,) = torch.autograd.grad(y, x, create_graph=True)
        g.sum().backward()
        note(name, g, x.grad)


def hooks_around_both_multiply(torch, note):
    for name, function in FUNCTIONS.items():
        x = _leaf(torch, 4)
        with _times(torch, 2, 1):
            y = function(torch, x).sum()
            (g,) = torch.autograd.grad(y, x, create_graph=True)
        g.sum().backward()
        note(name, g, x.grad)


def hooks_of_one_thread_are_unseen_in_another(torch, note):
    def work():
        x = _leaf(torch, 2)
        (x * x).sum().backward()
        note("in the thread", x.grad)

    with torch.autograd.graph.saved_tensors_hooks(*note.pair()):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()


def a_thread_unpacks_what_another_packed(torch, note):
    x = _leaf(torch, 2)
    with torch.autograd.graph.saved_tensors_hooks(*note.pair(lambda t: t * 2)):
        y = (x * x).sum()
    thread = threading.Thread(target=y.backward)
    thread.start()
    thread.join()
    note("gradient", x.grad)


def contexts_may_be_left_and_entered_in_an_unpack_hook(torch, note):
    x = _leaf(torch, 2)
    inner = torch.autograd.graph.saved_tensors_hooks(lambda t: note("inner pack") or t, lambda t: t)

    def unpack(t):
        with inner:
            note("in unpack", (_leaf(torch, 2) * _leaf(torch, 2)).detach())
        return t

    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
        y = (x * x).exp()
    y.sum().backward()
    note("gradient", x.grad)


def an_unpack_hook_may_register_a_hook_on_the_running_node(torch, note):
    x = _leaf(torch, 2)
    nodes = []

    def unpack(t):
        if nodes:
            nodes.pop().register_hook(lambda inputs, outputs: note("node hook", inputs, outputs))
        return t

    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
        y = x.exp()
    nodes.append(y.grad_fn)
    y.sum().backward()
    note("gradient", x.grad)


def pack_hooks_may_return_anything(torch, note):
    x = _leaf(torch, 2)
    for pack, unpack in (
        (lambda t: t.detach().numpy().tolist(), lambda p: torch.tensor(p, dtype=torch.float64)),
        (lambda t: (t, "label"), lambda p: p[0]),
        (lambda t: [t], lambda p: p.pop()),
    ):
        x.grad = None
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            y = (x * x).exp()
        y.sum().backward()
        note("gradient", x.grad)


def wrong_hooks_are_errors(torch, note):
    hooks = torch.autograd.graph.saved_tensors_hooks
    x = _leaf(torch, 2)

    def run(pack, unpack):
        with hooks(pack, unpack):
            y = x * x
        y.sum().backward()

    note.error("unpack returns a number", lambda: run(lambda t: t, lambda t: 1.0))
    note.error("unpack returns nothing", lambda: run(lambda t: t, lambda t: None))
    modifying = "modifying its input", "in-place"
    note.error("pack changes its input", lambda: run(lambda t: t.mul_(2), lambda t: t), *modifying)
    note.error("pack raises", lambda: run(lambda t: 1 / 0, lambda t: t), "division")
    note.error("unpack raises", lambda: run(lambda t: t, lambda t: {}["gone"]), "gone")
    note.error("too many arguments", lambda: run(lambda a, b: a, lambda t: t), "positional argument")
    run(lambda t: t, lambda t: t)
    note("and then all is well", x.grad)


def disabled_hooks_say_the_message(torch, note):
    graph = torch.autograd.graph

    def enter(disabled, hooks):
        with disabled, hooks:
            pass

    def pair():
        return graph.saved_tensors_hooks(lambda t: t, lambda t: t)

    note.error("hooks in disabled", lambda: enter(graph.disable_saved_tensors_hooks("not here"), pair()), "not here")

    def nested():
        with graph.disable_saved_tensors_hooks("outer"), graph.disable_saved_tensors_hooks("inner"), pair():
            pass

    note.error("nested", nested, "inner")

    def outer_again():
        with graph.disable_saved_tensors_hooks("outer"):
            with graph.disable_saved_tensors_hooks("inner"):
                pass
            with pair():
                pass

    note.error("after the inner one", outer_again, "outer")
    note.error(
        "disabling where hooks are", lambda: enter(pair(), graph.disable_saved_tensors_hooks("too late")), "too late"
    )
    with pair():
        note("possible again")


def save_on_cpu_changes_nothing_on_a_cpu(torch, note):
    x, y = _leaf(torch, 3), _leaf(torch, 3, seed=1)
    for pin_memory in (False,):
        with torch.autograd.graph.save_on_cpu(pin_memory=pin_memory):
            z = ((x * y).exp() * x).sum()
        z.backward()
    note("gradients", x.grad, y.grad)


def saved_values_have_names(torch, note):
    x, y = _leaf(torch, 2, 3), _leaf(torch, 2, 3, seed=1)
    z = x * y
    note("mul", z.grad_fn._saved_self, z.grad_fn._saved_other)
    note("they are the inputs", z.grad_fn._saved_self is x, z.grad_fn._saved_other is y)
    e = x.exp()
    note("exp", e.grad_fn._saved_result)
    note("it shares the node", e.grad_fn._saved_result.grad_fn is e.grad_fn, e.grad_fn._saved_result is e)
    p = x**3
    note("pow", p.grad_fn._saved_self)
    note("softmax", x.softmax(1).grad_fn._saved_result, x.log_softmax(0).grad_fn._saved_result)
    note("clamp", x.clamp(0.5, 1).grad_fn._saved_self)
    note("where", torch.where(x > 1, x, y).grad_fn._saved_condition)
    note("gather", x.gather(1, torch.tensor([[0], [1]])).grad_fn._saved_index)
    note.error("an unknown name", lambda: z.grad_fn._saved_nothing)
    note("has", hasattr(z.grad_fn, "_saved_self"), hasattr(z.grad_fn, "_saved_result"))


def plain_saved_values_survive_freeing_and_tensors_do_not(torch, note):
    x = _leaf(torch, 2, 3)
    y = x.softmax(1)
    z = (y * x).sum(0)
    z.sum().backward()
    note("dim", y.grad_fn._saved_dim)
    freed = "after they have already been freed"
    note.error("softmax", lambda: y.grad_fn._saved_result, freed)
    product = z.grad_fn.next_functions[0][0]
    note.error("mul", lambda: product._saved_self, freed)
    note.error("raw", lambda: product._raw_saved_self.register_hooks(lambda t: t, lambda t: t), freed)


def raw_saved_values_take_hooks_once(torch, note):
    x = _leaf(torch, 2)
    y = x * x
    y.grad_fn._raw_saved_self.register_hooks(*note.pair(lambda t: t * 2, lambda t: t * 3))
    note.error(
        "a second time", lambda: y.grad_fn._raw_saved_self.register_hooks(lambda t: t, lambda t: t), "already been set"
    )
    note("self", y.grad_fn._saved_self)
    note("it keeps its place in the graph", y.grad_fn._saved_other is x)
    y.sum().backward()
    note("gradient", x.grad)
    note.error("not callable", lambda: (_leaf(torch, 2) ** 2).grad_fn._raw_saved_self.register_hooks(1, 2))
    note.error("one hook", lambda: (_leaf(torch, 2) ** 2).grad_fn._raw_saved_self.register_hooks(lambda t: t))


def raw_hooks_that_misbehave_are_errors(torch, note):
    def node():
        return (_leaf(torch, 2) * _leaf(torch, 2)).grad_fn

    def registered(pack, unpack):
        def act():
            n = node()
            n._raw_saved_self.register_hooks(pack, unpack)
            return n._saved_self

        return act

    note.error(
        "in-place",
        registered(lambda t: t.add_(1), lambda t: t),
        "A saved tensor pack hook is modifying its input in place",
        "in-place operations",
    )
    note.error("raises", registered(lambda t: 1 / 0, lambda t: t), "division")
    note.error("no tensor", registered(lambda t: t, lambda t: 1))
    note.error("wrong signature", registered(lambda: None, lambda t: t), "positional argument")


def a_hooked_input_keeps_its_own_node(torch, note):
    x = _leaf(torch, 2)
    a = x * 1
    y = a.sin()
    y.grad_fn._raw_saved_self.register_hooks(lambda t: t, lambda t: t)
    saved = y.grad_fn._saved_self
    note("value", saved)
    note("node", saved.grad_fn is a.grad_fn, saved.requires_grad, saved.is_leaf)
    y.sum().backward()
    note("gradient", x.grad)


def a_hooked_output_equals_the_output_and_shares_its_node(torch, note):
    x = _leaf(torch, 2)
    y = x.exp()
    y.grad_fn._raw_saved_result.register_hooks(lambda t: t, lambda t: t)
    saved = y.grad_fn._saved_result
    note("value", saved)
    note("node", saved.grad_fn is y.grad_fn, saved.requires_grad, saved.is_leaf, saved is y)
    y.sum().backward()
    note("gradient", x.grad)


def a_hooked_leaf_keeps_its_accumulator(torch, note):
    x = _leaf(torch, 2)
    y = x * x
    y.grad_fn._raw_saved_self.register_hooks(lambda t: t.clone(), lambda t: t)
    saved = y.grad_fn._saved_self
    note("leaf", saved.is_leaf, saved.requires_grad, saved is x)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    g.sum().backward()
    note("gradients", g, x.grad)


def a_saved_tensor_that_was_detached_is_an_error_and_an_output_is_not(torch, note):
    a = torch.tensor(1.0, requires_grad=True).clone()
    b = a.sin()
    a.detach_()
    note.error("input", b.backward, "Trying to use a saved tensor that has been detached")
    a = torch.tensor(1.0, requires_grad=True).clone()
    b = a.exp()
    b.detach_()
    note("output", b.requires_grad, b.is_leaf)


def changed_values_are_an_error(torch, note):
    changed = "modified by an inplace operation"
    x = _leaf(torch, 2)
    a = x * 1
    y = a.sin()
    a.add_(1)
    note.error("input", y.sum().backward, changed)
    y = x.exp()
    y.add_(1)
    note.error("output", y.sum().backward, changed)
    a = x * 1
    y = a * 2 + a
    a.add_(1)
    y.sum().backward()
    note("not saved", x.grad)
    a = x * 1
    y = a.sin()
    a[0] = 5.0
    note.error("item", y.sum().backward, changed)
    a = x * 1
    y = a[:1].sin()
    a.mul_(2)
    note.error("base", y.sum().backward, changed)
    note.error("reading", lambda: y.grad_fn._saved_self, changed)
    weight = _leaf(torch, 2)
    y = x * weight
    with torch.no_grad():
        weight.add_(1)
    note.error("leaf", y.sum().backward, changed)


def a_copy_made_by_a_pack_hook_outlives_a_change(torch, note):
    x = _leaf(torch, 2)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        a = x * 1
        y = a.sin()
    a.add_(1)
    y.sum().backward()
    note("gradient", x.grad)


def packed_values_have_no_graph(torch, note):
    x = _leaf(torch, 2)
    seen = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t):
        ((x * 2) * (x * 3)).exp()
    note("graphs", [[t.requires_grad, t.grad_fn is None, t.is_leaf] for t in seen])


class _Mark:
    """Lives as long as the node in whose metadata it is."""


def _watched(node):
    node.metadata["mark"] = mark = _Mark()
    return weakref.ref(mark)


def graphs_with_hooks_die_without_the_collector(torch, note):
    gc.disable()
    try:
        x = _leaf(torch, 2)
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
            y = (x * x).exp()
        node = _watched(y.grad_fn)
        del y
        note("alive", node() is not None)
        y = (x * x).exp()
        y.grad_fn._raw_saved_result.register_hooks(lambda t: t, lambda t: t)
        node = _watched(y.grad_fn)
        del y
        note("alive", node() is not None)
    finally:
        gc.enable()


def hooks_see_views_as_they_are(torch, note):
    x = _leaf(torch, 3, 4)
    seen = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t):
        y = x.t()[1:].sin()
    note("saved", [[list(t.shape), list(t.stride()), t.storage_offset()] for t in seen])
    y.sum().backward()
    note("gradient", x.grad)


# What nodes show: names, as they stand after `_saved_`, of values that an operation of `x` (2 × 3) and others has.
SHOWN = {
    "x + y": "alpha",
    "x - y": "alpha",
    "x * y": "self other",
    "x / y": "self other",
    "x ** 2": "self exponent",
    "x ** 3": "self exponent",
    "x ** 2.5": "self exponent",
    "x.square()": "self exponent",
    "x ** y": "self exponent result",
    "2 ** x": "self exponent result",
    "x.exp()": "result",
    "x.sigmoid()": "result",
    "x.clamp(0.5, 1)": "self min max",
    "x.clamp(min=0.5)": "self min max",
    "x.lerp(y, 0.3)": "weight",
    "torch.where(x > 1, x, y)": "condition",
    "F.gelu(x)": "self approximate",
    "F.gelu(x, approximate='tanh')": "self approximate",
    "F.leaky_relu(x)": "self negative_slope",
    "F.softplus(x, 2.5, 15.5)": "self beta threshold",
    "F.hardtanh(x)": "self min_val max_val",
    "F.elu(x, 2.0)": "self alpha",
    "F.threshold(x, 1.0, 2.0)": "self threshold",
    "x @ q": "self mat2 self_sym_sizes mat2_sym_sizes",
    "x[None].bmm(q[None])": "self mat2",
    "x.mv(v)": "self vec",
    "v.dot(v)": "self tensor",
    "x.sum()": "self_sym_sizes",
    "x.sum(1)": "dim keepdim self_sym_sizes",
    "x.sum((0, 1), keepdim=True)": "dim keepdim self_sym_sizes",
    "x.mean()": "self_sym_numel self_sym_sizes",
    "x.mean(0)": "dim keepdim self_sym_numel self_sym_sizes",
    "x.prod(1)": "dim keepdim self",
    "x.std(1, correction=0.5)": "dim correction self result",
    "x.var(1, correction=0.5)": "dim correction self",
    "x.norm(dim=1)": "dim ord self result",
    "x.amax(1)": "dim keepdim self result",
    "x.max(1)": "dim keepdim indices self_sym_sizes",
    "x.logsumexp(1)": "dim self result",
    "x.softmax(1)": "dim result",
    "x.log_softmax(0)": "dim result",
    "x.cumsum(1)": "dim",
    "x.cumprod(1)": "dim self",
    "x.sort(1)": "dim indices self_sym_sizes",
    "x.topk(2, 1)": "dim indices self_sym_sizes",
    "x.reshape(6)": "self_sym_sizes",
    "x[None].squeeze()": "self_sym_sizes",
    "x.expand(2, 2, 3)": "self_sym_sizes",
    "x.transpose(0, 1)": "dim0 dim1",
    "x.permute(1, 0)": "dims",
    "x.flip(0)": "dims",
    "x.roll(1)": "shifts dims",
    "x.roll((1, 2), (0, 1))": "shifts dims",
    "x[1]": "dim index self_sym_sizes",
    "x[:, 2]": "dim index self_sym_sizes",
    "x[..., 2]": "dim index self_sym_sizes",
    "x[1:]": "dim start end step self_sym_sizes",
    "x[:, 0:2]": "dim start end step self_sym_sizes",
    "x[:, ::2]": "dim start end step self_sym_sizes",
    "x.narrow(1, 1, 2)": "dim start end step self_sym_sizes",
    "x[torch.tensor([0, 0])]": "indices self_sym_sizes",
    "x[:, torch.tensor([0, 2])]": "indices self_sym_sizes",
    "torch.cat((x, y))": "dim",
    "torch.stack((x, y), 1)": "dim",
    "x.unbind(1)": "dim",
    "x.split(2, 1)": "dim split_size self_sym_sizes",
    "x.split((1, 2), 1)": "dim split_sizes self_sym_sizes",
    "x.index_select(0, torch.tensor([1]))": "dim index self_sym_sizes",
    "x.gather(1, torch.tensor([[0], [2]]))": "dim index",
    "x.scatter(1, torch.tensor([[0], [2]]), y)": "dim index",
    "x.index_add(0, torch.tensor([1]), y[:1])": "dim index",
    "x.masked_fill(x > 1, 0.0)": "mask",
    "x.repeat(2, 1)": "repeats self_sym_sizes",
    "x.tril(1)": "diagonal",
    "q.diagonal()": "offset dim1 dim2 self_sym_sizes",
    "q.trace()": "self_sym_sizes",
    "F.pad(x, (1, 2))": "pad",
    "F.embedding(torch.tensor([1, 0]), x, padding_idx=0)": "indices padding_idx weight_sym_argsize_0",
    "F.layer_norm(x, (3,), v, v)": "input weight normalized_shape",
    "F.layer_norm(x, (3,))": "input weight normalized_shape",
    "F.group_norm(x[None], 2)": "input weight eps",
    "F.conv2d(x[None, None], q[None, None, :2, :2])": "input weight groups",
    "F.max_pool2d(x[None, None], 2)": "result1",
    "torch.linalg.inv(q)": "inverse",
}


def _shown(torch, value):
    if isinstance(value, tuple):
        return [_shown(torch, v) for v in value]
    return value.detach() if isinstance(value, torch.Tensor) else value


def nodes_show_what_they_saved_under_their_names(torch, note):
    x, y = _leaf(torch, 2, 3), _leaf(torch, 2, 3, seed=1)
    v, q = _leaf(torch, 3, seed=2), _leaf(torch, 3, 3, seed=3)
    for operation, names in SHOWN.items():
        result = eval(operation, {"torch": torch, "F": torch.nn.functional, "x": x, "y": y, "v": v, "q": q})
        node = (result[0] if isinstance(result, tuple) else result).grad_fn
        for name in names.split():
            listed = f"_saved_{name}" in dir(node)
            note(f"{operation}: {name}", listed, _shown(torch, getattr(node, f"_saved_{name}", "missing")))


def a_drawing_program_finds_saved_tensors(torch, note):
    """Do what torchviz's `make_dot(..., show_saved=True)` does."""
    x, w = _leaf(torch, 2, 3), _leaf(torch, 3, 2, seed=1)
    seen = []

    def walk(node):
        if node is None:
            return
        for name in sorted(dir(node)):
            if name.startswith("_saved_"):
                value = getattr(node, name)
                if isinstance(value, torch.Tensor):
                    seen.append([node.name(), name, list(value.shape)])
        for source, _ in node.next_functions:
            walk(source)

    walk((x @ w).tanh().sum().grad_fn)
    note("tensors", seen)


def raw_saved_values_have_data_and_an_unpack_hook(torch, note):
    x = _leaf(torch, 2)
    y = x.exp() * x
    raw = y.grad_fn._raw_saved_other
    note("before", raw.data, raw.unpack_hook is None)

    def unpack(t):
        return t / 2

    raw.register_hooks(lambda t: t * 2, unpack)
    note("after", raw.data, raw.unpack_hook is unpack)
    note("unpacked", y.grad_fn._saved_other)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: [t, "packed"], lambda p: p[0]):
        z = x.exp()
    raw = z.grad_fn._raw_saved_result
    note("packed", type(raw.data).__name__, raw.data[1])


def raw_hooks_see_each_kind_of_value(torch, note):
    x = _leaf(torch, 2)
    for name, tensor in {"leaf": x, "non-leaf": x * 1, "view": (x * 1)[:], "constant": x.detach()}.items():
        y = tensor * x
        node = tensor.grad_fn
        y.grad_fn._raw_saved_self.register_hooks(lambda t: note("pack", t.requires_grad) or 2 * t, lambda t: t / 2)
        saved = y.grad_fn._saved_self
        note(name, saved, saved.grad_fn is node, saved.requires_grad, saved.is_leaf, saved is tensor)
        x.grad = None
        y.sum().backward()
        note("gradient", x.grad)


def raw_hooks_and_second_derivatives(torch, note):
    for name, tensor_of in {"leaf": lambda x: x, "non-leaf": lambda x: x * 1}.items():
        x = _leaf(torch, 2)
        a = tensor_of(x)
        y = a**3
        y.grad_fn._raw_saved_self.register_hooks(lambda t: t, lambda t: t)
        (g,) = torch.autograd.grad(y.sum(), a, create_graph=True)
        note(name, g, y.grad_fn._saved_self.grad_fn is a.grad_fn)
        g.sum().backward()
        note("second", x.grad)
        x = _leaf(torch, 2)
        y = tensor_of(x).exp()
        y.grad_fn._raw_saved_result.register_hooks(lambda t: t * 3, lambda t: t)
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        g.sum().backward()
        note("of a result", g, x.grad)


def pack_hooks_that_return_nothing(torch, note):
    x = _leaf(torch, 2)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: note("packed"), lambda p: p):
        y = x * x
    note.error("unpack returns what was packed", y.sum().backward)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: None, lambda p: torch.ones(2, dtype=torch.float64) * 5):
        y = x.sin()
    y.sum().backward()
    note("gradient", x.grad)


def what_was_unpacked_may_have_another_dtype_or_shape(torch, note):
    for name, back in {"dtype": lambda t: t.float(), "shape": lambda t: t[:1], "more dims": lambda t: t[None]}.items():
        x = _leaf(torch, 2)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, back):
            y = x * x
        note.error(name, y.sum().backward)


def changes_after_packing(torch, note):
    changed = "modified by an inplace operation"
    for name, pack in {
        "identity": lambda t: t,
        "clone": lambda t: t.clone(),
        "array": lambda t: t.numpy().copy(),
    }.items():
        x = _leaf(torch, 2)
        a = x * 1
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda p: p if hasattr(p, "sin") else torch.tensor(p)):
            y = a.sin()
        a.mul_(3)
        note.error(name, y.sum().backward, changed)
        note("gradient", x.grad)
    x = _leaf(torch, 2)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        y = x.exp()
    y.mul_(3)
    note.error("result", y.sum().backward, changed)


def packing_of_in_place_operations(torch, note):
    x = _leaf(torch, 2)
    with torch.autograd.graph.saved_tensors_hooks(*note.pair(lambda t: t.clone())):
        a = x * 1
        for name in ("exp_", "sin_", "tanh_", "sqrt_", "sigmoid_", "neg_", "abs_"):
            note(name)
            getattr(a, name)()
        note("with others")
        a.mul_(x)
        a.div_(x)
        a.pow_(2)
        a.add_(x)
        a.clamp_(0.1, 0.9)
        a[0] = 3.0
    a.sum().backward()
    note("gradient", x.grad)


def hooks_within_hooks(torch, note):
    x = _leaf(torch, 2)

    def pack(t):
        note("outer pack", t)
        with torch.enable_grad():  # packing what hooks compute would never end
            w = _leaf(torch, 2)
            note("inner", (w * 2).requires_grad)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = x.sin()
    y.sum().backward()
    note("gradient", x.grad)


def an_exception_within_the_context_leaves_it(torch, note):
    def fails():
        with torch.autograd.graph.saved_tensors_hooks(*note.pair()):
            raise KeyError("inside")

    note.error("inside", fails, "inside")
    x = _leaf(torch, 2)
    (x * x).sum().backward()
    note("gradient", x.grad)


def hooks_are_objects_and_reusable(torch, note):
    hooks = torch.autograd.graph.saved_tensors_hooks(*note.pair())
    x = _leaf(torch, 2)
    for _ in range(2):
        with hooks:
            (x * x).sum().backward()
    with hooks, hooks:
        x.exp().sum().backward()
    note("gradient", x.grad)


def hooks_around_views_and_their_changes(torch, note):
    x = _leaf(torch, 2, 3)
    with torch.autograd.graph.saved_tensors_hooks(*note.pair(lambda t: t.clone())):
        base = x * 1
        view = base[1]
        view.mul_(base[0])
        base.t()[0].exp_()
        y = base.sin()
    y.sum().backward()
    note("gradient", x.grad)


def unpacking_stops_where_no_gradient_is_wanted(torch, note):
    x, y = _leaf(torch, 2), _leaf(torch, 2, seed=1)
    with torch.autograd.graph.saved_tensors_hooks(*note.pair()):
        a = x.exp()
        b = a * y
        c = b.sin()
    note("grad by b")
    torch.autograd.grad(c.sum(), b, retain_graph=True)
    note("grad by y")
    torch.autograd.grad(c.sum(), y, retain_graph=True)
    note("backward to y")
    c.sum().backward(inputs=[y], retain_graph=True)
    note("all")
    c.sum().backward()


def saved_values_of_frozen_branches(torch, note):
    x, frozen = _leaf(torch, 2), _leaf(torch, 2, seed=1).detach()
    with torch.autograd.graph.saved_tensors_hooks(*note.pair()):
        a = frozen * frozen
        b = a * x
        c = frozen.exp() + b
    c.sum().backward()
    note("gradient", x.grad)


def allowed_mutations(torch, note):
    allow = torch.autograd.graph.allow_mutation_on_saved_tensors

    def case(name, function, *phrases):
        x = _leaf(torch, 3)
        with allow():
            y = function(x * 1)
            y.sum().backward()
        note(name, x.grad)

    def twice(a):
        y = a.sin() * a.exp()
        a.mul_(2)
        z = y + a.sin()
        a.zero_()
        return z

    def result(a):
        y = a.exp()
        z = y * 1
        y.mul_(2)
        return z

    def view(a):
        part = a[:2]
        y = part.sin().sum() + a.exp()
        part.fill_(7)
        return y

    def base(a):
        part = a[1:]
        y = part.sin()
        a.mul_(3)
        return y

    def item(a):
        y = a.sin()
        a[0] = 5.0
        a[a > 4] = 0.0
        return y + a

    def out_of_order(a):
        b = a.clone()
        y = a.sin() + b.cos()
        b.mul_(2)
        a.mul_(3)
        z = a.tanh() * b.tanh()
        b.zero_()
        return y + z

    for function in (twice, result, view, base, item, out_of_order):
        case(function.__name__, function)

    def nested():
        with allow(), allow():
            pass

    note.error("nested", nested, "allow_mutation_on_saved_tensors contexts cannot be nested")
