"""Hooks on tensors and nodes, and edges of the graph as values."""

import numpy as np

from tests.peers.record import name_of


def _leaf(torch, *shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).uniform(0.2, 1.8, shape), requires_grad=True)


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
    note.error("of a non-leaf", lambda: (x * 2).register_post_accumulate_grad_hook(lambda t: None), "leaf")


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
