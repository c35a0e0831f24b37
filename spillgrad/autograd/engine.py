"""Backward: walk the graph from outputs to leaves, newest node first, without recursion."""

import heapq
from collections.abc import Sequence
from typing import Any

from spillgrad.autograd.grad_mode import set_grad_enabled
from spillgrad.autograd.node import AccumulateGrad, Edge, Node, add_gradients, reachable
from spillgrad.errors import GraphError


def run_backward(
    roots: Sequence[Edge],
    root_grads: Sequence[Any],
    *,
    inputs: Sequence[Edge] | None = None,
    retain_graph: bool = False,
    create_graph: bool = False,
    accumulate: bool = True,
) -> list[Any]:
    """Send `root_grads` backward from `roots`.

    With `inputs`, only what leads to them is computed; with `accumulate=False` their gradients are returned (None where
    none arrived) instead of being added to `.grad`. A node runs when all gradients of its outputs have come together,
    with None for those that nothing computed.

    Raises GraphError when an operation's derivative returns a gradient of the wrong shape.
    """
    nodes = list(reachable([node for node, _ in roots if node is not None]))
    waiting: dict[int, int] = {id(node): 0 for node in nodes}
    for node in nodes:
        for source, _ in node.edges:
            if source is not None:
                waiting[id(source)] += 1
    needed = None if inputs is None else _leading_to(nodes, inputs)
    wanted: dict[int, list[int]] = {}  # node -> positions in `inputs` whose gradient is one of its output gradients
    if inputs is not None and not accumulate:
        for position, (source, _) in enumerate(inputs):
            wanted.setdefault(id(source), []).append(position)
    captured: list[Any] = [None] * (0 if inputs is None else len(inputs))

    arrived: dict[int, list[Any]] = {}
    for root, grad in zip(roots, root_grads, strict=True):
        _deliver(arrived, root, grad)
    ready = [_entry(node) for node in nodes if waiting[id(node)] == 0]
    heapq.heapify(ready)
    with set_grad_enabled(create_graph):
        while ready:
            node = heapq.heappop(ready)[2]
            grads = arrived.pop(id(node), None) or [None] * len(node.outputs)
            results: Sequence[Any] = ()
            node.run_tensor_hooks(grads)
            for position in wanted.get(id(node), ()):
                captured[position] = grads[inputs[position][1]]  # type: ignore[index]
            if _runs(node, needed, inputs, accumulate):
                results = _checked(node, node.run(grads))
                if not retain_graph:
                    node.release()
            del grads
            for position, edge in enumerate(node.edges):
                source = edge[0]
                if source is None:
                    continue
                if position < len(results) and results[position] is not None:
                    _deliver(arrived, edge, results[position])
                waiting[id(source)] -= 1
                if waiting[id(source)] == 0:
                    heapq.heappush(ready, _entry(source))
            del results
    return captured


def _entry(node: Node) -> tuple[bool, int, Node]:
    # Leaves first, which frees their gradients' buffers early; then the newest operation: the reverse of the forward
    # order.
    return (not isinstance(node, AccumulateGrad), -node.sequence, node)


def _deliver(arrived: dict[int, list[Any]], edge: Edge, grad: Any) -> None:
    node, output_nr = edge
    if node is None:
        return
    grads = arrived.get(id(node))
    if grads is None:
        grads = arrived[id(node)] = [None] * len(node.outputs)
    before = grads[output_nr]
    grads[output_nr] = grad if before is None else add_gradients(before, grad)


def _leading_to(nodes: list[Node], inputs: Sequence[Edge]) -> set[int]:
    """Return the ids of nodes through which a gradient must pass to reach one of `inputs`."""
    targets = {id(target) for target, _ in inputs}
    users: dict[int, list[Node]] = {}
    for node in nodes:
        for source, _ in node.edges:
            if source is not None:
                users.setdefault(id(source), []).append(node)
    needed: set[int] = set()
    stack = [user for target in targets for user in users.get(target, ())]
    while stack:
        node = stack.pop()
        if id(node) not in needed:
            needed.add(id(node))
            stack.extend(users.get(id(node), ()))
    return needed


def _runs(node: Node, needed: set[int] | None, inputs: Sequence[Edge] | None, accumulate: bool) -> bool:
    if needed is None or inputs is None or id(node) in needed:
        return True
    return accumulate and isinstance(node, AccumulateGrad) and any(target is node for target, _ in inputs)


def _checked(node: Node, results: list[Any]) -> list[Any]:
    for i, ((source, output_nr), grad) in enumerate(zip(node.edges, results, strict=True)):
        if grad is None or source is None:
            continue
        meta = source.outputs[output_nr]
        if grad.shape != meta.shape:
            raise GraphError(
                f"{node.name()}: returned an invalid gradient at index {i}: got shape {grad.shape}, wanted "
                f"{meta.shape}; "
                "a backward must return a gradient of its input's shape"
            )
        if grad.dtype != meta.dtype:
            results[i] = grad.to(meta.dtype)
    return results
