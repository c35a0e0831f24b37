"""Pad tensors with a constant, or with their own elements: mirrored, repeated or taken from the other end."""

from collections.abc import Sequence

import numpy as np

from spillgrad.errors import ArgumentError
from spillgrad.ops.indexing import index_select
from spillgrad.ops.rearrange import constant_pad, crop
from spillgrad.tensor import Tensor
from spillgrad_kernels.device_array import beside

__all__ = ["pad"]

# PyTorch's names of the modes, and NumPy's for the positions that elements come from.
_OF_POSITIONS = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Return the tensor with elements added around it, or cropped.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    pad : sequence of int
        Widths before and after, for the last dimension first; negative widths crop.
    mode : {"constant", "reflect", "replicate", "circular"}, default "constant"
        What is added: `value`, or own elements. "reflect" mirrors the elements without the edge itself, "replicate"
        repeats the edge, "circular" continues with the other end.
    value : float, optional
        The number that "constant" adds; by default, 0.

    Returns
    -------
    Tensor
        Each padded dimension is larger by its two widths.

    Raises
    ------
    ArgumentError
        For an odd or too long list, another mode, a value for another mode than "constant", or more elements than the
        mode can give or the tensor has.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.nn.functional.pad(sg.tensor([1, 2, 3]), (1, 2)).tolist()
    [0, 1, 2, 3, 0, 0]
    """
    if mode != "constant" and mode not in _OF_POSITIONS:
        raise ArgumentError(f'pad: got mode={mode!r}; accepted are "constant", "reflect", "replicate" and "circular"')
    if len(pad) % 2 or len(pad) // 2 > input.ndim:
        raise ArgumentError(
            f"pad: got {len(pad)} widths for {input.ndim} dimensions; give (before, after) pairs, at most one each"
        )
    pairs = [(int(pad[i]), int(pad[i + 1])) for i in range(0, len(pad), 2)]
    widths = ((0, 0),) * (input.ndim - len(pairs)) + tuple(reversed(pairs))
    if mode != "constant":
        if value:
            raise ArgumentError(f'pad: got value={value} and mode={mode!r}; only "constant" takes a value')
        for dim, (before, after) in enumerate(widths):
            input = _with_own_elements(input, dim, before, after, mode)
        return input
    cropped = tuple((max(-before, 0), max(-after, 0)) for before, after in widths)
    added = tuple((max(before, 0), max(after, 0)) for before, after in widths)
    if any(before + after > size for size, (before, after) in zip(input.shape, cropped, strict=True)):
        raise ArgumentError(f"pad: got {tuple(pad)} for a tensor of shape {input.shape}; it crops more than there is")
    result = crop(input, cropped) if any(map(any, cropped)) else input
    return constant_pad(result, added, 0.0 if value is None else value)


def _with_own_elements(input: Tensor, dim: int, before: int, after: int, mode: str) -> Tensor:
    if not (before or after):
        return input
    size = input.shape[dim] + min(before, 0) + min(after, 0)
    most = {"reflect": size - 1, "replicate": max(before, after) if size else 0, "circular": size}[mode]
    if size < 0 or max(before, after) > most:
        raise ArgumentError(
            f"pad: got ({before}, {after}) in mode {mode!r} for dimension {dim} of a tensor of shape {input.shape}; "
            f"it takes at most {most} on each side"
        )
    kept = np.arange(size) + max(-before, 0)
    positions = np.pad(kept, (max(before, 0), max(after, 0)), _OF_POSITIONS[mode])  # type: ignore[call-overload]
    return index_select(input, dim, Tensor.wrap(beside(input.array, positions)))
