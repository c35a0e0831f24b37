"""Backward: walk the graph from outputs to leaves, newest node first, without recursion."""

import contextvars
import functools
import heapq
import itertools
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from spillgrad import labels
from spillgrad.autograd.core import anomaly_mode, hooks, profiling
from spillgrad.autograd.core.grad_mode import state
from spillgrad.autograd.core.gradient_references import is_unshared
from spillgrad.autograd.core.node import NO_EDGE, Edge, Node, accumulate_gradients, add_gradients
from spillgrad.errors import GraphError

# A custom backward that runs backward itself takes a dozen Python frames per level; a thread has a thousand.
_LEVELS_PER_THREAD = 16


class Run:
    """One running backward: the nodes it visits, and the callbacks to call when it ends, or when it fails."""

    __slots__ = ("__weakref__", "_needed", "_outer", "_targets", "_waiting", "at_end", "at_failure")

    def __init__(
        self, waiting: Collection[Node], needed: Collection[Node] | None, targets: Collection[Node | None],
        outer: "Run | None",
    ) -> None:  # fmt: skip
        self._waiting = waiting
        self._needed = needed
        self._targets = targets
        self._outer = outer
        self.at_end: list[Callable[[], None]] = []
        self.at_failure: list[Callable[[], None]] = []

    def visits(self, node: Node | None) -> bool:
        """Return whether a gradient may arrive at the node."""
        needed = self._needed is None or node in self._needed or node in self._targets
        return needed and node is not None and node in self._waiting

    @property
    def outermost(self) -> "Run":
        """The outermost backward around this one: a derivative may itself run backward."""
        run = self
        while run._outer is not None:
            run = run._outer
        return run


class _Thread(threading.local):
    run: Run | None = None
    level = 0


_thread = _Thread()
# The state that a thread takes over from the thread that waits for it.
_INHERITED: tuple[threading.local, ...] = (state, hooks.stack, labels.current, anomaly_mode.running)


def current_run() -> Run:
    """Return the backward that this thread is running. Raises GraphError if it runs none."""
    if _thread.run is None:
        raise GraphError("backward: this thread is running none; only backward may call a gradient's hook")
    return _thread.run


def is_running() -> bool:
    """Return whether this thread is running backward."""
    return _thread.run is not None


def outermost_run() -> Run | None:
    """Return the outermost backward that this thread takes part in, or None if it takes part in none."""
    return None if _thread.run is None else _thread.run.outermost


def reaches_every_leaf() -> bool:
    """Return whether this thread's backward, and all backwards around it, add to the `.grad` of every leaf.

    Those with `inputs`, and those of `grad`, do not.
    """
    run = _thread.run
    while run is not None and run._needed is None:
        run = run._outer
    return run is None


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
    """Run backward from `roots` with the gradients `root_grads`. The node of a root with gradient None runs, too.

    With `inputs`, only nodes on a path from a root to an input run. With `accumulate=False`, return the gradients of
    `inputs` instead of adding them to `.grad`; an input that no gradient reaches gets None. A node runs when the
    gradients of all its outputs have arrived; an output without a gradient gets None. No gradient flows along the edges
    in `stopped`.

    Raises GraphError if an operation's derivative returns a gradient of the wrong shape.
    """
    if _thread.level == _LEVELS_PER_THREAD:
        return _in_another_thread(
            functools.partial(
                run_backward, roots, root_grads, inputs=inputs, retain_graph=retain_graph, create_graph=create_graph,
                accumulate=accumulate, stopped=stopped,
            )
        )  # fmt: skip
    waiting = _uses([root[0] for root in roots if root[0] is not None and root not in stopped], stopped)
    needed = None if inputs is None else _leading_to(waiting, inputs, stopped)
    targets = {node for node, _ in inputs or ()}
    wanted: dict[Node | None, list[int]] = {}  # positions in `inputs` whose gradient arrives at a node
    if inputs is not None and not accumulate:
        for position, (source, _) in enumerate(inputs):
            wanted.setdefault(source, []).append(position)
    captured: list[Any] = [None] * (0 if inputs is None else len(inputs))

    arrived: dict[Node, list[Any]] = {}
    leaves_that_wait: list[Any] = []  # for more gradients than have arrived
    for root, grad in zip(roots, root_grads, strict=True):
        if grad is not None and root not in stopped:
            _deliver(arrived, root, grad)
    # Leaves first, which frees their gradients' buffers early; then the newest operation: the reverse of the forward
    # order.
    ready = [(node.rank, -node.sequence, node) for node, uses in waiting.items() if uses == 0]
    heapq.heapify(ready)
    watched = anomaly_mode.run if anomaly_mode.is_anomaly_enabled() else None
    recorder, began_ns = profiling.recorder, 0
    grad_mode, autocast, frees_graph, pairs, outer, level = (
        state.enabled, state.autocast, state.frees_graph, hooks.stack.pairs, _thread.run, _thread.level
    )  # fmt: skip
    run = Run(waiting, needed, targets, outer)
    try:
        # Derivatives run in the dtypes of the forward.
        state.enabled, state.autocast, state.frees_graph = create_graph, None, not (retain_graph or create_graph)
        _thread.run, _thread.level = run, level + 1
        while ready:
            node = heapq.heappop(ready)[2]
            grads = arrived.pop(node, None) or [None] * node.output_count
            tensor_hooks = node.tensor_hooks()
            if tensor_hooks is not None or node._retain_hooks is not None:
                node.run_tensor_hooks(tensor_hooks, grads)
                state.enabled = create_graph  # a hook may have switched it, which must not affect the next node
            for position in wanted.get(node, ()) if wanted else ():
                captured[position] = grads[inputs[position][1]]  # type: ignore[index]
            results: Sequence[Any] | None = None
            if needed is None or node in needed or (accumulate and node.rank == 0 and node in targets):
                if recorder is not None:
                    began_ns = time.perf_counter_ns()
                if node.add_part is None or watched is not None or stopped or not _adds_part(arrived, node, grads):
                    results = _checked(node, node.run(grads)) if watched is None else watched(node, grads, _checked)
                    state.enabled = create_graph
                if recorder is not None:
                    recorder.node_ended(node, began_ns)
                if not retain_graph:
                    node.release()
            del grads
            edges = _flowing(node.edges, stopped) if stopped else node.edges
            # `_checked` has compared the numbers of edges and results.
            for (source, output_nr), grad in zip(edges, results or itertools.repeat(None), strict=False):
                if source is None:
                    continue
                if grad is not None and (needed is None or source in needed or source in targets):
                    if source not in arrived and source.output_count == 1:
                        arrived[source] = [grad]
                    else:
                        _deliver(arrived, (source, output_nr), grad)
                waiting[source] -= 1
                if waiting[source] == 0:
                    heapq.heappush(ready, (source.rank, -source.sequence, source))
                elif source.rank == 0:
                    leaves_that_wait.append(source)
            grad = results = None
            while leaves_that_wait:
                leaf = leaves_that_wait.pop()
                if leaf in arrived:
                    leaf.put_away(arrived[leaf])
        for end in run.at_end:
            end()
    except BaseException:
        for fail in run.at_failure:
            fail()
        raise
    finally:
        # This comes before any call, because a signal handler may raise after each call.
        _thread.run, _thread.level = outer, level
        state.enabled, state.autocast, state.frees_graph = grad_mode, autocast, frees_graph
        run.at_end.clear()  # they hold a reference to the run
        run.at_failure.clear()
        if hooks.stack.pairs is not pairs:  # a hook has entered a context without leaving it, or the reverse
            hooks.restore(pairs)
    return captured


def _in_another_thread(work: Callable[[], list[Any]]) -> list[Any]:
    """Run `work` in a new thread, whose call stack is empty, with this thread's modes and hooks; return the result."""
    inherited = [(local, dict(local.__dict__)) for local in _INHERITED]
    outer = _thread.run
    results: list[list[Any]] = []
    errors: list[BaseException] = []

    def run() -> None:
        for local, values in inherited:
            local.__dict__.update(values)
        _thread.run = outer
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name="spillgrad-backward")
    thread.start()
    thread.join()
    if errors:
        raise errors.pop()  # popped, because a frame of its traceback refers to this list and would keep it alive
    return results.pop()


def _flowing(edges: Sequence[Edge], stopped: Collection[Edge]) -> Sequence[Edge]:
    """Return `edges`, with an edge to no node in place of each edge in `stopped`."""
    return [NO_EDGE if edge in stopped else edge for edge in edges]


def _uses(roots: Sequence[Node], stopped: Collection[Edge]) -> dict[Node, int]:
    """Return every node that backward from `roots` could visit, with the number of edges that lead to the node."""
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
    if grads[output_nr] is None:
        grads[output_nr] = grad
    elif state.enabled or grad.shape != grads[output_nr].shape or not is_unshared(grads, output_nr):
        grads[output_nr] = add_gradients(grads[output_nr], grad)
    else:
        accumulate_gradients(grads[output_nr], grad)


def _adds_part(arrived: dict[Node, list[Any]], node: Node, grads: list[Any]) -> bool:
    """Add the gradient of a part to the gradient of the whole, if one has arrived that nothing else refers to.

    Return whether that was done. If not, the node must run. Through whole gradients, a loop that reads a slice of a
    tensor in each of its T steps would move the tensor's bytes 3 T times.
    """
    (source, output_nr), grad = node.edges[0], grads[0]
    if state.enabled or source is None or grad is None or node._prehooks or node._posthooks:
        return False
    totals = arrived.get(source)
    if totals is None:
        return False
    total, meta = totals[output_nr], source.output(output_nr)
    if total is None or total.shape != meta[0] or not total.numpy_dtype == grad.numpy_dtype == meta[1]:
        return False
    if total.is_cuda or grad.is_cuda or total._storage.offloaded:
        return False
    del total
    if not is_unshared(totals, output_nr):
        return False
    assert node.add_part is not None
    node.add_part(grad, totals[output_nr])
    return True


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


def _checked(node: Node, results: list[Any]) -> list[Any]:
    """Return gradients of the shapes and dtypes that the edges of `node` need. Raises the error of `_converted`."""
    for i, ((source, output_nr), grad) in enumerate(zip(node.edges, results, strict=True)):
        if grad is not None and source is not None and not source._accepts(output_nr, grad):
            results[i] = _converted(node, i, grad)
    return results


def _converted(node: Node, i: int, grad: Any) -> Any:
    """Return the gradient of edge `i`, which does not accept it, in the dtype that the edge needs.

    Raises GraphError for a wrong shape, and for a complex gradient of a real input.
    """
    source, output_nr = node.edges[i]
    assert source is not None
    shape, dtype, _ = source.output(output_nr)
    if grad.shape != shape:
        raise GraphError(
            f"{node.name()}: returned an invalid gradient at index {i}: got shape {grad.shape}, wanted {shape}; "
            "a backward must return a gradient of its input's shape"
        )
    if grad.numpy_dtype.kind == "c" and dtype.kind != "c":
        raise GraphError(
            f"{node.name()}: returned an invalid gradient at index {i}: got {grad.dtype}, wanted {dtype}; "
            "a real input has a real gradient: take the real part"
        )
    return grad if grad.numpy_dtype == dtype else grad.to(dtype)
