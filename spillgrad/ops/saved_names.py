"""PyTorch's names of the attributes `_saved_<name>` of nodes: other names of saved values, and metadata.

Programs that draw or explain graphs read these attributes. Recording an operation pays nothing for them: they are
computed from the node when they are read. Dimensions count from the front, whereas PyTorch shows -1 as 2 ** 64 - 1.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad.tensor import Tensor

# What an attribute shows: the saved value of this name, or the result of this function of the node.
Shown = str | Callable[[Any], Any]


def _shape_of(name: str) -> Callable[[Any], Any]:
    return lambda node: node.input_shape(name)


def _constant(value: Any) -> Callable[[Any], Any]:
    return lambda node: value


def _keeps_dims(node: Any) -> bool:
    return len(node.outputs[0].shape) == len(node.input_shape("self"))


def _limit(name: str) -> Callable[[Any], Any]:
    """Return a function that takes a node of `clamp` and returns its bound `name`, or None if the bound is infinite."""

    def limit(node: Any) -> Any:
        value = node.value(name)
        return None if isinstance(value, int | float) and math.isinf(value) else value

    return limit


_NO_END = 2**63 - 1  # as PyTorch


def _subscript(node: Any) -> tuple[int, Any]:
    """Return (dimension, subscript) of the last subscript of a basic index that is not `:`."""
    shape = node.input_shape("self")
    index = [part for part in node._saved["index"] if part is not None]
    if Ellipsis in index:
        place = index.index(Ellipsis)
        index[place : place + 1] = [slice(None)] * (len(shape) - len(index) + 1)
    last = max((i for i, part in enumerate(index) if part != slice(None)), default=0)
    return last, index[last] if index else slice(None)


def _selected(node: Any) -> tuple[int, int]:
    dim, index = _subscript(node)
    return dim, index


def _sliced(node: Any) -> tuple[int, int, int, int]:
    """Return dimension, start, end and step of a slice that `narrow` or an index took."""
    if "start" in node._saved:
        dim, start = node._saved["dim"], node._saved["start"]
        return dim, start, start + node.outputs[0].shape[dim], 1
    dim, part = _subscript(node)
    return dim, part.start or 0, _NO_END if part.stop is None else part.stop, part.step or 1


def _part(function: Callable[[Any], tuple[Any, ...]], number: int) -> Callable[[Any], Any]:
    return lambda node: function(node)[number]


def _indices(node: Any) -> tuple[Any, ...]:
    """Return the index tensors, None for dimensions that are taken whole."""
    return tuple([Tensor.wrap(part) if isinstance(part, np.ndarray) else None for part in node._saved["index"]])


def _sizes_of_pieces(node: Any) -> tuple[int, ...]:
    return tuple([output.shape[node._saved["dim"]] for output in node.outputs])


def _size_before(node: Any) -> tuple[int, ...]:
    dim, (piece, *_) = node._saved["dim"], node.outputs
    return (*piece.shape[:dim], sum(_sizes_of_pieces(node)), *piece.shape[dim + 1 :])


def _pad(node: Any) -> tuple[int, ...]:
    """Return widths as `pad` takes them: the last dimension first; leading dimensions without padding are left out."""
    widths = list(node._saved["widths"])
    while widths and widths[0] == (0, 0):
        widths.pop(0)
    return tuple([width for pair in reversed(widths) for width in pair])


_SIZES: dict[str, Shown] = {"self_sym_sizes": _shape_of("self")}


def _only_dim(node: Any) -> Any:
    """Return the dimension that `prod` reduced as an integer, as in PyTorch, or several dimensions as a tuple."""
    dims = node._saved["dims"]
    return dims[0] if len(dims) == 1 else dims


_DIM: dict[str, Shown] = {"dim": "dims"}
_FOLD: dict[str, Shown] = {**_DIM, "keepdim": _keeps_dims}
_ALONG: dict[str, Shown] = {"keepdim": _keeps_dims, **_SIZES}

KNOWN: dict[str, dict[str, Shown]] = {
    "add": {"alpha": _constant(1)},
    "sub": {"alpha": _constant(1)},
    "square": {"exponent": _constant(2)},
    "cube": {"exponent": _constant(3)},
    "gelu": {"approximate": _constant("none")},
    "gelu_tanh": {"approximate": _constant("tanh")},
    "clamp": {"min": _limit("min"), "max": _limit("max")},
    "mm": {**_SIZES, "mat2_sym_sizes": _shape_of("mat2")},
    "sum": {**_FOLD, **_SIZES},
    "mean": {**_FOLD, **_SIZES, "self_sym_numel": lambda node: math.prod(node.input_shape("self"))},
    "prod": {"dim": _only_dim, "keepdim": _keeps_dims},
    **dict.fromkeys(("amax", "amin"), _FOLD),
    **dict.fromkeys(("std", "var", "logsumexp", "median", "nanmedian"), _DIM),
    "linalg_vector_norm": {**_DIM, "ord": _constant(2)},
    **dict.fromkeys(("max", "min", "kthvalue", "mode"), _ALONG),
    **dict.fromkeys(
        ("view", "reshape", "expand", "squeeze", "sort", "topk", "diagonal", "index_select", "repeat", "trace"), _SIZES
    ),
    "select": {"dim": _part(_selected, 0), "index": _part(_selected, 1), **_SIZES},
    "slice": {**{name: _part(_sliced, i) for i, name in enumerate(("dim", "start", "end", "step"))}, **_SIZES},
    "index": {"indices": _indices, **_SIZES},
    "split": {
        "split_size": lambda node: _sizes_of_pieces(node)[0],
        "split_sizes": _sizes_of_pieces,
        "self_sym_sizes": _size_before,
    },
    "roll": {"dims": lambda node: node._saved["dims"] or ()},
    "constant_pad_nd": {"pad": _pad},
    "embedding": {"weight_sym_argsize_0": lambda node: node.input_shape("weight")[0]},
    "max_pool2d_with_indices": {"result1": "indices", **_SIZES},
    "scaled_dot_product_attention": {
        "output": "result",
        "logsumexp": "lse",
        "dropout_p": lambda node: 0.0 if node._saved["dropout"] is None else node._saved["dropout"][0],
    },
    "linalg_inv_ex": {"inverse": "result"},
}
