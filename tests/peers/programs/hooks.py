"""Hooks on tensors, nodes and modules, and edges of the graph as values."""

from collections import namedtuple

import numpy as np

from tests.peers.record import name_of


def _leaf(torch, *shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).uniform(0.2, 1.8, shape), requires_grad=True)


Parts = namedtuple("Parts", "product constant given")


def backward_hooks_of_modules(torch, note):
    class Module(torch.nn.Module):
        def forward(self, x, factor, y):
            note("arguments", x.requires_grad, y.requires_grad)
            return Parts(x * y * factor, x.detach() * 2, y)

    def call(name, requires_grad):
        module, packed = Module(), []
        module.register_full_backward_pre_hook(lambda m, grad_output: note("before", grad_output))
        module.register_full_backward_hook(lambda m, *gradients: note("after", gradients))
        x, y = _leaf(torch, 2), _leaf(torch, 2, seed=1).detach().requires_grad_(requires_grad)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
            results = module(x, 3.0, y)
        note(name, type(results).__name__, [r.requires_grad for r in results], len(packed))
        results.product.sum().backward()
        note("gradients", x.grad, y.grad)
        return module, x, y

    call("one", False)
    module, x, y = call("both", True)
    module(x, 3.0, y).given.sum().backward()
    note("of what was handed on", x.grad, y.grad)


def tensor_hooks_see_and_replace_gradients_in_order(torch, note):
    for name, tensor_of in (("leaf", lambda x: x), ("non-leaf", lambda x: x * 1)):
        x = _leaf(torch, 2)
        t = tensor_of(x)
        t.register_hook(lambda g: note("first", g))
        t.register_hook(lambda g: g * 2)
        t.register_hook(lambda g: note("third", g))
        (t * t + t).sum().backward()
        note(name, x.grad)


def hooks_can_be_removed(torch, note):
    x = _leaf(torch, 2)
    handle = x.register_hook(lambda g: g * 100)
    handle.remove()
    handle.remove()
    with x.register_hook(lambda g: g * 3):
        x.sum().backward()
    note("gradient", x.grad)
    x.sum().backward()
    note("after", x.grad)


def a_hook_may_remove_itself(torch, note):
    x = _leaf(torch, 2)
    y = x * 2
    handles = []

    def once(g):
        handles[0].remove()
        note("once", g)
        return g * 2

    handles.append(y.register_hook(once))
    y.register_hook(lambda g: note("then", g))
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    note("gradient", x.grad)


def wrong_hook_results_are_errors(torch, note):
    def run(hook):
        y = _leaf(torch, 2) * 2
        y.register_hook(hook)
        y.sum().backward()

    note.error("type", lambda: run(lambda g: 1.0))
    note.error("shape", lambda: run(lambda g: g.sum()))
    note.error("of a constant", lambda: torch.ones(2).register_hook(lambda g: g), "doesn't require gradient")
    note.error("raises", lambda: run(lambda g: 1 / 0), "division")


def the_order_of_all_hooks(torch, note):
    x = _leaf(torch, 2)
    y = x * 2
    y.register_hook(lambda g: note("tensor"))
    y.grad_fn.register_prehook(lambda g: note("node pre"))
    y.grad_fn.register_hook(lambda i, o: note("node post"))
    y.retain_grad()
    x.register_hook(lambda g: note("leaf tensor", x.grad is None))
    x.register_post_accumulate_grad_hook(lambda t: note("post accumulate", t.grad))
    accumulator = y.grad_fn.next_functions[0][0]
    accumulator.register_prehook(lambda g: note("accumulator pre", x.grad is None))
    accumulator.register_hook(lambda i, o: note("accumulator post", x.grad is None))
    y.sum().backward()
    note("retained", y.grad)


def node_hooks_replace_gradients(torch, note):
    x, y = _leaf(torch, 2), _leaf(torch, 2, seed=1)
    z = x * y
    z.grad_fn.register_prehook(lambda grads: (grads[0] * 2,))
    z.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] + outputs[0], None))
    z.sum().backward()
    note("gradients", x.grad, y.grad)
    z = x * y
    handle = z.grad_fn.register_hook(lambda inputs, outputs: (inputs[0], inputs[1], inputs[1]))
    note.error("too many", z.sum().backward, "incorrect number of")
    handle.remove()


def a_post_accumulate_hook_sees_the_sum(torch, note):
    x = _leaf(torch, 2)
    handle = x.register_post_accumulate_grad_hook(lambda t: note("seen", t is x, t.grad))
    (x * 2 + x * 3).sum().backward()
    x.sum().backward()
    handle.remove()
    x.sum().backward()
    note.error("of a non-leaf", lambda: (x * 2).register_post_accumulate_grad_hook(lambda t: None), "non-leaf tensors")
    constant = x.detach()
    note.error("constant", lambda: constant.register_post_accumulate_grad_hook(lambda t: None), "require gradient")


def a_post_accumulate_hook_may_step_and_forget(torch, note):
    x = _leaf(torch, 2)

    def step(t):
        with torch.no_grad():
            t.sub_(t.grad, alpha=0.1)
        t.grad = None

    x.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        (x * x).sum().backward()
    note("stepped", x, x.grad)


def hooks_of_several_outputs(torch, note):
    x = _leaf(torch, 2, 2)
    a, b = x.unbind(0)
    a.register_hook(lambda g: g * 2)
    b.register_hook(lambda g: g * 3)
    (a + b).sum().backward()
    note("gradient", x.grad)


def hooks_stay_with_what_a_tensor_was_when_it_changes_in_place(torch, note):
    x = _leaf(torch, 2)
    y = x * 2
    y.register_hook(lambda g: note("before", g))
    y.mul_(3)
    y.register_hook(lambda g: note("after", g))
    y.retain_grad()
    y.sum().backward()
    note("gradients", x.grad, y.grad)


def a_graph_under_create_graph_goes_through_hooks(torch, note):
    x = _leaf(torch, 2)
    y = x * 2
    y.register_hook(lambda g: g * x)
    (g,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
    g.sum().backward()
    note("gradients", g, x.grad)


def edges_are_values(torch, note):
    x = _leaf(torch, 2)
    y = (x * 2).exp()
    edge = torch.autograd.graph.get_gradient_edge(y)
    note("edge", edge.node.name(), edge.output_nr, edge.node is y.grad_fn)
    leaf = torch.autograd.graph.get_gradient_edge(x)
    note("leaf", name_of(leaf.node), leaf.output_nr)
    note.error("constant", lambda: torch.autograd.graph.get_gradient_edge(torch.ones(2)))


def edges_stand_for_tensors_in_grad_and_backward(torch, note):
    x = _leaf(torch, 2)
    a = x * 2
    y = a.exp()
    edge_of = torch.autograd.graph.get_gradient_edge
    inner, leaf, root = edge_of(a), edge_of(x), edge_of(y)
    note("inputs", torch.autograd.grad(y.sum(), [inner, leaf], retain_graph=True))
    note("outputs", torch.autograd.grad(root, x, torch.ones(2, dtype=torch.float64), retain_graph=True))
    note.error("without a gradient", lambda: torch.autograd.grad(root, x))
    torch.autograd.backward(root, torch.ones(2, dtype=torch.float64))
    note("backward", x.grad)


def hooks_on_several_gradients(torch, note):
    graph = torch.autograd.graph
    for mode in ("all", "any"):
        x, y, z = (_leaf(torch, 2, seed=seed) for seed in range(3))
        a, b = x * 2, y * 3
        handle = graph.register_multi_grad_hook((a, b, z), lambda found, mode=mode: note(mode, found), mode=mode)
        (a * b).sum().backward(retain_graph=True)
        (a * z).sum().backward()
        handle.remove()
        b.sum().backward()
    note.error("mode", lambda: graph.register_multi_grad_hook((_leaf(torch, 2),), note, mode="some"), "mode")


def which_hooks_run_when_gradients_are_captured(torch, note):
    a = torch.tensor(1.0, requires_grad=True)
    b = a * 2
    c = b * 2
    for tensor, name in ((a, "a"), (b, "b")):
        tensor.register_hook(lambda g, name=name: note(f"tensor {name}"))
    accumulator = b.grad_fn.next_functions[0][0]
    for node, name in ((accumulator, "accumulator"), (b.grad_fn, "node")):
        node.register_prehook(lambda g, name=name: note(f"{name} pre"))
        node.register_hook(lambda i, o, name=name: note(f"{name} post"))
    note("grad by b")
    torch.autograd.grad(c, b, retain_graph=True)
    note("grad by both")
    torch.autograd.grad(c, (a, b), retain_graph=True)
    note("backward")
    c.backward(retain_graph=True)
    note("backward to both")
    c.backward(inputs=(a, b), retain_graph=True)


def the_node_of_a_non_leaf_among_inputs(torch, note):
    x = _leaf(torch, 2)
    y = x * 2
    ran = []
    y.grad_fn.register_hook(lambda i, o: ran.append(1))
    y.exp().sum().backward(inputs=[y])
    note("gradient", y.grad)
    note("its node ran", bool(ran))


def what_hooks_of_nodes_may_return(torch, note):
    def run(name, pre=None, post=None, *phrases):
        x = _leaf(torch, 2)
        y = x.exp()
        if pre:
            y.grad_fn.register_prehook(pre)
        if post:
            y.grad_fn.register_hook(post)
        try:
            y.sum().backward()
        except Exception as error:
            wanted = error
            note.error(name, lambda: _raise(wanted), *phrases)
        else:
            note(name, x.grad)

    run("pre nothing", pre=lambda g: None)
    run("pre tuple", pre=lambda g: (g[0] * 2,))
    run("pre tensor", pre=lambda g: g[0] * 2)
    run("pre none in a tuple", pre=lambda g: (None,))
    run("pre too many", pre=lambda g: (g[0], g[0]))
    run("pre number", pre=lambda g: 1.0)
    run("pre shape", pre=lambda g: (g[0].sum(),))
    run("post nothing", post=lambda i, o: None)
    run("post tuple", post=lambda i, o: (i[0] * 2,))
    run("post none in a tuple", post=lambda i, o: (None,))
    run("post too few", post=lambda i, o: ())
    run("post number", post=lambda i, o: 1.0)
    run("post raises", post=lambda i, o: 1 / 0)


def _raise(error):
    raise error


def prehooks_see_none_for_outputs_that_nothing_used(torch, note):
    x = _leaf(torch, 2, 2)
    first, second = x.unbind(0)
    first.grad_fn.register_prehook(lambda grads: note("pre", len(grads), [g is None for g in grads]))
    second.sum().backward()
    note("gradient", x.grad)


def a_post_accumulate_hook_returns_nothing(torch, note):
    x = _leaf(torch, 2)
    x.register_post_accumulate_grad_hook(lambda t: t.grad)
    note.error("a tensor", lambda: x.sum().backward(), "should return None")


def post_accumulate_hooks_come_in_order_and_may_be_removed(torch, note):
    x = _leaf(torch, 2)
    first = x.register_post_accumulate_grad_hook(lambda t: note("first"))
    x.register_post_accumulate_grad_hook(lambda t: note("second"))
    x.register_hook(lambda g: note("tensor"))
    (x * 2).sum().backward()
    first.remove()
    (x * 2).sum().backward()
    note("grad does not accumulate")
    torch.autograd.grad((x * 2).sum(), x)


def hooks_of_tensors_that_change_in_place(torch, note):
    x = _leaf(torch, 2)
    a = x * 1
    a.register_hook(lambda g: note("before", g))
    a.retain_grad()
    a.add_(1).mul_(2)
    a.register_hook(lambda g: note("after", g))
    (a * 3).sum().backward()
    note("gradients", a.grad, x.grad)
    x = _leaf(torch, 4)
    base = x * 1
    view = base[:2]
    view.register_hook(lambda g: note("view", g))
    base.mul_(2)
    (base.sum() + (view * 5).sum()).backward()
    note("gradient", x.grad)


def retained_gradients_and_in_place_changes_of_views(torch, note):
    x = _leaf(torch, 4)
    base = x * 1
    base.retain_grad()
    view = base[:2]
    view.retain_grad()
    view.mul_(3)
    base.sum().backward()
    note("gradients", base.grad, x.grad, view.grad)


def hooks_may_have_no_name(torch, note):
    class Hook:
        def __call__(self, g):
            return g * 2

    x = _leaf(torch, 2)
    x.register_hook(Hook())
    x.sum().backward()
    note("gradient", x.grad)


def hooks_know_the_mode(torch, note):
    x = _leaf(torch, 2)
    y = x * x
    y.register_hook(lambda g: note("tensor", torch.is_grad_enabled(), g.requires_grad))
    y.grad_fn.register_prehook(lambda g: note("pre", torch.is_grad_enabled()))
    y.grad_fn.register_hook(lambda i, o: note("post", torch.is_grad_enabled()))
    y.sum().backward(retain_graph=True)
    (y * y).sum().backward(create_graph=True)
    x.grad = None


def a_hook_may_free_what_it_saw(torch, note):
    x = _leaf(torch, 2)
    seen = []
    y = x * 2
    y.register_hook(seen.append)
    (y * y).sum().backward()
    seen[0].mul_(100)
    note("gradient", x.grad)


def edges_may_be_inputs_beside_tensors(torch, note):
    x, y = _leaf(torch, 2), _leaf(torch, 2, seed=1)
    a = x * y
    z = a.exp()
    edge = torch.autograd.graph.get_gradient_edge(a)
    note("both", torch.autograd.grad(z.sum(), (x, edge, y), retain_graph=True))
    note("the same twice", torch.autograd.grad(z.sum(), (edge, a, edge), retain_graph=True))
    a.add_(1)
    note("after a change", torch.autograd.grad((z * 2).sum(), edge, retain_graph=True))
    note.error(
        "of an unrelated",
        lambda: torch.autograd.grad(z.sum(), torch.autograd.graph.get_gradient_edge(_leaf(torch, 2))),
        "not have been used",
    )


def multi_grad_hooks_count_what_is_on_the_way(torch, note):
    graph = torch.autograd.graph
    x, y, z = (_leaf(torch, 2, seed=seed) for seed in range(3))
    a, b = x * 2, y * 3
    graph.register_multi_grad_hook((a, b), lambda grads: note("a and b", [g is not None for g in grads]))
    graph.register_multi_grad_hook((a, a), lambda grads: note("a twice", [g is not None for g in grads]))
    graph.register_multi_grad_hook((x, z), lambda grads: note("x and z", [g is not None for g in grads]))
    for name, output in {"both": a * b, "a alone": a.exp(), "none": z * 2}.items():
        note(name)
        output.sum().backward(retain_graph=True)
    c, d = x.exp(), y.exp()
    graph.register_multi_grad_hook((c, d), lambda grads: note("c and d", [g is not None for g in grads]))
    note("grad by c")
    torch.autograd.grad((c * d).sum(), c, retain_graph=True)
