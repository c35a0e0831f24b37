"""`backward` and `grad`: the two ways to ask for gradients."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from spillgrad import user_line
from spillgrad.autograd.core.engine import run_backward
from spillgrad.autograd.core.node import Edge, GradientEdge, OutputMeta
from spillgrad.device.device import filled, moved
from spillgrad.dtypes import is_complex
from spillgrad.errors import ArgumentError, DeviceError, GraphError, OperandError, ShapeError
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.creation import zeros_like
from spillgrad.ops.join_split import stack
from spillgrad.tensor import Tensor

Tensors = Tensor | GradientEdge | Iterable[Tensor | GradientEdge]
_Meta = OutputMeta | Tensor  # what has a shape and a dtype


def _as_list(value: Any) -> list[Any]:
    alone = isinstance(value, Tensor | GradientEdge | np.ndarray) or not isinstance(value, Iterable)
    return [value] if alone else list(value.values() if isinstance(value, Mapping) else value)


def _place(name: str, value: Any) -> tuple[Edge, _Meta]:
    """Return the edge to which a gradient of `value` flows, and an object with the gradient's required shape and dtype.

    If no gradient flows to `value`, the edge has no node. Shape and dtype are those with which the tensor was computed,
    even if its `data` has been replaced.
    """
    if isinstance(value, Tensor):
        edge: Edge = value.gradient_edge()
    elif isinstance(value, GradientEdge) and value.node is not None:
        edge = value
    else:
        raise OperandError(
            f"{name}: all inputs have to be Tensors or GradientEdges, but got {type(value).__name__}; an edge is what "
            "get_gradient_edge() returns"
        )
    node, output_nr = edge
    return edge, value if node is None else node.output(output_nr)


def _roots(name: str, outputs: Tensors, grads: Any, create_graph: bool) -> tuple[list[Edge], list[Tensor]]:
    tensors = _as_list(outputs)
    given = [None] * len(tensors) if grads is None else _as_list(grads)
    if len(given) != len(tensors):
        raise ArgumentError(
            f"{name}: got {len(tensors)} tensors and {len(given)} gradients; give one (or None) for each"
        )
    roots, root_grads = [], []
    for i, (value, grad) in enumerate(zip(tensors, given, strict=True)):
        edge, like = _place(name, value)
        if edge[0] is None:
            raise GraphError(
                f"{name}: element {i} of tensors does not require grad and does not have a grad_fn; "
                "set requires_grad=True on what it is computed from"
            )
        if grad is None:
            if math.prod(like.shape) != 1 and not edge[0].starts_from_ones:
                raise GraphError(
                    f"{name}: grad can be implicitly created only for scalar outputs, got shape {like.shape}; "
                    "sum() it or pass the gradient"
                )
            if is_complex(like.dtype):
                raise GraphError(
                    f"{name}: grad can be implicitly created only for real scalar outputs but got {like.dtype}; take "
                    "its real part or abs(), or pass the gradient"
                )
            grad = Tensor.wrap(filled(like.device, like.shape, like.dtype, 1))
        else:
            if not isinstance(grad, Tensor):
                grad = Tensor.wrap(moved(np.asarray(grad, like.dtype), like.device))
            if grad.shape != like.shape:
                raise ShapeError(
                    f"{name}: Mismatch in shape: grad_output[{i}] has a shape of {grad.shape} and output[{i}] has a "
                    f"shape of {like.shape}; a gradient is like its output"
                )
            if grad.device is not like.device:
                raise DeviceError(
                    f"{name}: got a gradient on '{grad.device}' for a tensor on '{like.device}'; move it with "
                    ".to(device)"
                )
            if is_complex(grad.numpy_dtype) != is_complex(like.dtype):
                raise GraphError(
                    f"{name}: For complex Tensors, both grad_output and output are required to have the same dtype. "
                    f"Mismatch in dtype: grad_output[{i}] has a dtype of {grad.dtype} and output[{i}] has a dtype of "
                    f"{like.dtype}; convert the gradient"
                )
            grad = to_dtype(grad.mark_shared(), like.dtype)
        roots.append(edge)
        root_grads.append(grad if create_graph else grad.detach())
    return roots, root_grads


def backward(
    tensors: Tensors,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensors | None = None,
) -> None:
    """Add the gradient of `tensors` to the ``.grad`` of the leaves they were computed from (or of `inputs` only).

    Parameters
    ----------
    tensors : Tensor or sequence of Tensor
        Tensors to differentiate. A gradient edge may replace a tensor.
    grad_tensors : Tensor or sequence of Tensor, optional
        Gradient with respect to each tensor, of its shape; None for tensors of one element, which start from 1.
    retain_graph : bool, optional
        Whether the graph's saved values stay for another backward; by default, as `create_graph`.
    create_graph : bool, default False
        Whether the gradients can be differentiated again.
    inputs : Tensor or sequence of Tensor, optional
        Tensors whose ``.grad`` changes; all leaves, by default. A non-leaf retains its gradient. A gradient edge may
        replace a tensor; for the edge of a non-leaf, no ``.grad`` is changed.

    Raises
    ------
    GraphError
        If one of `tensors` does not require a gradient.

    Warns
    -----
    UserWarning
        With `create_graph`, because a leaf and its gradient then keep each other alive.

    Examples
    --------
    >>> import spillgrad as sg
    >>> x = sg.tensor([1.0, 2.0], requires_grad=True)
    >>> sg.autograd.backward((x * x).sum())
    >>> x.grad
    tensor([2., 4.])
    """
    roots, grads = _roots("backward", tensors, grad_tensors, create_graph)
    edges = None
    if inputs is not None:
        wanted = _as_list(inputs)
        if not wanted:
            raise GraphError("backward: inputs cannot be empty; leave it out to reach all leaves")
        for value in wanted:
            if isinstance(value, Tensor):
                value.retain_grad()
        edges = [_place("backward", value)[0] for value in wanted]
    if create_graph:
        user_line.warn(
            "Using backward() with create_graph=True will create a reference cycle between the parameter and its "
            "gradient which can cause a memory leak. We recommend using autograd.grad when creating the graph to avoid "
            "this. If you have to use this function, make sure to reset the .grad fields of your parameters to None "
            "after use to break the cycle and avoid the leak."
        )
    keep = create_graph if retain_graph is None else retain_graph
    run_backward(roots, grads, inputs=edges, retain_graph=keep, create_graph=create_graph)


def tensor_backward(
    tensor: Tensor,
    gradient: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensors | None = None,
    *,
    grad_tensor: Any = None,
) -> None:
    """Add the gradient of this tensor to the ``.grad`` of the leaves it was computed from (or of `inputs` only).

    Parameters
    ----------
    gradient : Tensor, optional
        Gradient with respect to this tensor, of its shape; None for a tensor of one element, which starts from 1.
    retain_graph : bool, optional
        Whether the graph's saved values stay for another backward; by default, as `create_graph`.
    create_graph : bool, default False
        Whether the gradients can be differentiated again.
    inputs : Tensor or sequence of Tensor, optional
        Tensors whose ``.grad`` changes; all leaves, by default. A non-leaf retains its gradient.
    grad_tensor : Tensor, optional
        Paddle's name of `gradient`.

    Raises
    ------
    GraphError
        If this tensor does not require a gradient.

    Warns
    -----
    UserWarning
        With `create_graph`, because a leaf and its gradient then keep each other alive.

    See Also
    --------
    spillgrad.autograd.backward : The same for several tensors.

    Examples
    --------
    >>> import spillgrad as sg
    >>> x = sg.tensor([1.0, 2.0], requires_grad=True)
    >>> x.square().sum().backward()
    >>> x.grad
    tensor([2., 4.])
    """
    backward(tensor, grad_tensor if gradient is None else gradient, retain_graph, create_graph, inputs)


def grad(
    outputs: Tensors,
    inputs: Tensors | Mapping[str, Tensor],
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
    *,
    no_grad_vars: Tensors | None = None,
) -> Any:
    """Return the gradients of `outputs` with respect to `inputs`; nothing is added to ``.grad``.

    Parameters
    ----------
    outputs : Tensor or sequence of Tensor
        Tensors to differentiate; a gradient edge may replace a tensor.
    inputs : Tensor, sequence of Tensor, or dict
        Tensors to differentiate by; a gradient edge may replace a tensor.
    grad_outputs : Tensor or sequence of Tensor, optional
        Gradient with respect to each output, of its shape; None for outputs of one element, which start from 1.
    retain_graph : bool, optional
        Whether the graph's saved values stay for another backward; by default, as `create_graph`.
    create_graph : bool, default False
        Whether the gradients can be differentiated again.
    only_inputs : bool, default True
        Only True is accepted.
    allow_unused : bool, optional
        Whether an input that was not used gets None as gradient.
    is_grads_batched : bool, default False
        Whether each of `grad_outputs` has an additional first dimension. One backward runs for each index, and the
        results (also materialized zeros, unlike PyTorch's) have this dimension too.
    materialize_grads : bool, default False
        Whether an input that was not used gets zeros as gradient; with `create_graph`, they are a leaf that requires a
        gradient.
    no_grad_vars : Tensor or sequence of Tensor, optional
        Tensors that count as constants: no gradient flows through them.

    Returns
    -------
    tuple of Tensor or dict
        Gradient of each input, of its shape. For a dict of inputs, a dict of the same keys.

    Raises
    ------
    GraphError
        If an input was not used, and neither `allow_unused` nor `materialize_grads` is set.
    ArgumentError
        For ``only_inputs=False``, and for ``allow_unused=False`` with `materialize_grads`.

    Notes
    -----
    Source: torch.autograd.grad, paddle.grad.

    Examples
    --------
    >>> import spillgrad as sg
    >>> x = sg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    >>> sg.grad((x**2).sum(), x)
    (tensor([2., 4., 6.]),)
    """
    if materialize_grads and allow_unused is False:
        raise ArgumentError(
            "grad: got allow_unused=False with materialize_grads=True; leave allow_unused out or set it to True"
        )
    if not only_inputs:
        raise ArgumentError("grad: got only_inputs=False; use backward(), which adds to the .grad of all leaves")
    if not isinstance(is_grads_batched, bool):
        raise ArgumentError(
            f"grad: got is_grads_batched of {type(is_grads_batched).__name__}; wanted True or False: pass no_grad_vars "
            "by name"
        )
    places = [_place("grad", value) for value in _as_list(inputs)]
    if not places:
        raise GraphError("grad: inputs cannot be empty; give the tensors to differentiate by")
    edges = [edge for edge, _ in places]
    if any(node is None for node, _ in edges):
        raise GraphError(
            "grad: one of the differentiated tensors does not require grad; set requires_grad=True before the forward"
        )
    stopped = _edges_of(no_grad_vars)
    keep = create_graph if retain_graph is None else retain_graph

    def gradients(given: Any, retain: bool) -> list[Any]:
        roots, grads = _roots("grad", outputs, given, create_graph)
        return run_backward(
            roots, grads, inputs=edges, retain_graph=retain, create_graph=create_graph, accumulate=False,
            stopped=stopped,
        )  # fmt: skip

    batch: tuple[int, ...] = ()
    if is_grads_batched:
        rows = _batch_rows(grad_outputs)
        batch = (len(rows),)
        found = [gradients(row, keep or i < len(rows) - 1) for i, row in enumerate(rows)]
        results = [_stacked(parts) for parts in zip(*found, strict=True)] if found else [None] * len(edges)
    else:
        results = gradients(grad_outputs, keep)
    for i, ((_, like), result) in enumerate(zip(places, results, strict=True)):
        if result is None and materialize_grads:
            zeros = Tensor.wrap(filled(like.device, (*batch, *like.shape), like.dtype, 0))
            results[i] = zeros.requires_grad_(create_graph)  # so that they can be differentiated as the others can
        elif result is None and not allow_unused:
            raise GraphError(
                f"grad: the differentiated tensor at index {i} appears to not have been used in the graph; set "
                "allow_unused=True if this is wanted"
            )
    return dict(zip(inputs, results, strict=True)) if isinstance(inputs, Mapping) else tuple(results)


def _edges_of(constants: Tensors | None) -> frozenset[Edge]:
    edges = [_place("grad: no_grad_vars", value)[0] for value in ([] if constants is None else _as_list(constants))]
    return frozenset(edge for edge in edges if edge[0] is not None)


def _batch_rows(grad_outputs: Any) -> list[list[Any]]:
    """Return, for each index of the batched gradients' common first dimension, the list of gradients at this index."""
    given = [] if grad_outputs is None else _as_list(grad_outputs)
    sizes = {g.shape[0] if g.ndim else -1 for g in given if g is not None}
    if len(sizes) != 1 or -1 in sizes:
        raise ArgumentError(
            "grad: got is_grads_batched=True and no grad_outputs that share a first dimension; give each one more "
            "dimension than its output, the first of one length"
        )
    return [[None if g is None else g[i] for g in given] for i in range(sizes.pop())]


def _stacked(parts: Sequence[Any]) -> Any:
    """Stack the gradients of one input, with zeros in place of None; return None if no backward reached the input."""
    known = next((part for part in parts if part is not None), None)
    if known is None:
        return None
    zeros = zeros_like(known)
    return stack([zeros if part is None else part for part in parts])
