"""Backward: walk the graph from outputs to leaves, newest node first, without recursion."""

import heapq
from collections.abc import Collection, Sequence
from typing import Any

from spillgrad.autograd.grad_mode import state
from spillgrad.autograd.node import NO_EDGE, AccumulateGrad, Edge, Node, add_gradients
from spillgrad.errors import GraphError


def run_backward(
    roots: Sequence[Edge],
    root_grads: Sequence[Any],
    *,
    inputs: Sequence[Edge] | None = None,
    retain_graph: bool = False,
    create_graph: bool = False,
    accumulate: bool = True,
    stopped: Collection[Edge] = frozenset(),
) -> list[Any]:
    """Send `root_grads` backward from `roots`; None sends nothing, but the root's node runs.

    With `inputs`, only what leads to them is computed; with `accumulate=False` their gradients are returned (None where
    none arrived) instead of being added to `.grad`. A node runs when all gradients of its outputs have come together,
    with None for those that nothing computed. Nothing flows along the edges in `stopped`.

    Raises GraphError when an operation's derivative returns a gradient of the wrong shape.
    """
    waiting = _uses([root[0] for root in roots if root[0] is not None and root not in stopped], stopped)
    needed = None if inputs is None else _leading_to(waiting, inputs, stopped)
    wanted: dict[Node | None, list[int]] = {}  # positions in `inputs` whose gradient arrives at a node
    if inputs is not None and not accumulate:
        for position, (source, _) in enumerate(inputs):
            wanted.setdefault(source, []).append(position)
    captured: list[Any] = [None] * (0 if inputs is None else len(inputs))

    arrived: dict[Node, list[Any]] = {}
    for root, grad in zip(roots, root_grads, strict=True):
        if grad is not None and root not in stopped:
            _deliver(arrived, root, grad)
    # Leaves first, which frees their gradients' buffers early; then the newest operation: the reverse of the forward
    # order.
    ready = [(node.rank, -node.sequence, node) for node, uses in waiting.items() if uses == 0]
    heapq.heapify(ready)
    grad_mode, state.enabled = state.enabled, create_graph
    try:
        while ready:
            node = heapq.heappop(ready)[2]
            grads = arrived.pop(node, None) or [None] * node.output_count
            hooks = node.tensor_hooks()
            if hooks is not None or node._retain_hooks is not None:
                node.run_tensor_hooks(hooks, grads)
            for position in wanted.get(node, ()) if wanted else ():
                captured[position] = grads[inputs[position][1]]  # type: ignore[index]
            results: Sequence[Any] | None = None
            if needed is None or node in needed or (accumulate and _is_leaf_among(node, inputs)):
                results = _checked(node, node.run(grads))
                if not retain_graph:
                    node.release()
            del grads
            for position, edge in enumerate(_flowing(node.edges, stopped) if stopped else node.edges):
                source = edge[0]
                if source is None:
                    continue
                if results is not None and results[position] is not None:
                    _deliver(arrived, edge, results[position])
                waiting[source] -= 1
                if waiting[source] == 0:
                    heapq.heappush(ready, (source.rank, -source.sequence, source))
            del results
    finally:
        state.enabled = grad_mode
    return captured


def _flowing(edges: Sequence[Edge], stopped: Collection[Edge]) -> Sequence[Edge]:
    """Return edges with no node in place of those in `stopped`."""
    return [NO_EDGE if edge in stopped else edge for edge in edges]


def _uses(roots: Sequence[Node], stopped: Collection[Edge]) -> dict[Node, int]:
    """Return every node that backward from `roots` could visit, with the number of edges that lead to it."""
    uses = dict.fromkeys(roots, 0)  # two roots may be outputs of one node
    stack = list(uses)
    while stack:
        edges: Sequence[Edge] = stack.pop().edges
        for source, _ in _flowing(edges, stopped) if stopped else edges:
            if source in uses:
                uses[source] += 1
            elif source is not None:
                uses[source] = 1
                stack.append(source)
    return uses


def _deliver(arrived: dict[Node, list[Any]], edge: Edge, grad: Any) -> None:
    node, output_nr = edge
    if node is None:
        return
    grads = arrived.get(node)
    if grads is None:
        grads = arrived[node] = [None] * node.output_count
    before = grads[output_nr]
    grads[output_nr] = grad if before is None else add_gradients(before, grad)


def _leading_to(nodes: dict[Node, int], inputs: Sequence[Edge], stopped: Collection[Edge]) -> set[Node]:
    """Return the nodes through which a gradient must pass to reach one of `inputs`."""
    users: dict[Node, list[Node]] = {}
    for node in nodes:
        for source, _ in _flowing(node.edges, stopped) if stopped else node.edges:
            if source is not None:
                users.setdefault(source, []).append(node)
    needed: set[Node] = set()
    stack = [user for target in {target for target, _ in inputs if target} for user in users.get(target, ())]
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack.extend(users.get(node, ()))
    return needed


def _is_leaf_among(node: Node, inputs: Sequence[Edge] | None) -> bool:
    return isinstance(node, AccumulateGrad) and any(target is node for target, _ in inputs or ())


def _checked(node: Node, results: list[Any]) -> list[Any]:
    for i, ((source, output_nr), grad) in enumerate(zip(node.edges, results, strict=True)):
        if grad is None or source is None:
            continue
        shape, dtype, _ = source.output(output_nr)
        if grad.shape != shape:
            raise GraphError(
                f"{node.name()}: returned an invalid gradient at index {i}: got shape {grad.shape}, wanted {shape}; "
                "a backward must return a gradient of its input's shape"
            )
        if grad.dtype is not dtype and grad.dtype != dtype:
            results[i] = grad.to(dtype)
    return results
