"""The formats in which gradients travel between processes: as they are, or in fewer bits.

A format rounds each gradient by itself, in blocks that begin anew with each tensor. So the numbers that arrive are the
same for any number of processes, and wherever a bucket is cut.
"""

from collections.abc import Sequence
from typing import NamedTuple

import ml_dtypes
import numpy as np

from spillgrad.distributed.collective_steps import all_to_all
from spillgrad.distributed.protocol import Steps
from spillgrad.errors import ArgumentError
from spillgrad_kernels.memory import buffers

# Elements that share a scale: those of the store's codec.
_BLOCK = 128
# The number of blocks packed at a time: intermediate results fit the processor's cache, and need not be counted.
_BLOCKS_AT_ONCE = 256
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class Packed(NamedTuple):
    """Numbers as they travel: one for each element, and, if blocks have scales, these and the blocks' first elements.

    `starts` ends with the number of elements.
    """

    values: np.ndarray
    scales: np.ndarray | None = None
    starts: np.ndarray | None = None

    def blocks(self, run: slice) -> slice:
        """Return the blocks that have elements in a run."""
        assert self.starts is not None
        if run.start == run.stop:
            return slice(0, 0)
        first, last = np.searchsorted(self.starts, [run.start, run.stop - 1], side="right") - 1
        return slice(int(first), int(last) + 1)

    def exchange_scales(self, rank: int, runs: Sequence[slice]) -> Steps:
        """Send each rank the scales of its run; return those that each rank has for the run of `rank`."""
        if self.scales is None:
            return [None] * len(runs)
        mine = self.blocks(runs[rank])
        received = [np.empty(mine.stop - mine.start, np.float32) for _ in runs]
        yield from all_to_all([self.scales[self.blocks(run)] for run in runs], received)
        return received

    def scales_in(self, scales: np.ndarray | None, run: slice, part: slice) -> "Scales | None":
        """Return the scales of a part of a run, of which all blocks' `scales` are given."""
        if scales is None or self.starts is None:
            return None
        first, blocks = self.blocks(run).start, self.blocks(part)
        edges = self.starts[blocks.start : blocks.stop + 1].clip(part.start, part.stop)
        return Scales(scales[blocks.start - first : blocks.stop - first], edges - part.start)


class Scales(NamedTuple):
    """The scales of blocks, and the edges between these: one more number."""

    scales: np.ndarray
    edges: np.ndarray


class Wire:
    """The format `float32`: gradients travel as they are. Other formats derive from it.

    Attributes
    ----------
    name : str
        Name of the format.
    value_bytes : float
        Bytes of each element of a float32 gradient, scales included.
    back : Wire
        The format in which sums travel back.
    """

    name = "float32"
    value_bytes = 4.0

    @property
    def back(self) -> "Wire":
        return self

    @property
    def is_exact(self) -> bool:
        """Whether numbers arrive as they were sent."""
        return self.value_bytes == 4

    def of(self, dtype: np.dtype) -> "Wire":
        """Return the format for gradients of a dtype: all but float32 travel as they are."""
        return self if dtype == np.float32 else EXACT

    def pack(self, flat: np.ndarray, parts: Sequence[slice]) -> Packed:
        """Return the gradients at `parts` of a flat array as they travel."""
        return Packed(flat)

    def unpack(self, values: np.ndarray, scales: Scales | None) -> np.ndarray:
        """Return the numbers that have arrived as `values`."""
        return values

    def packed_bytes(self, nbytes: int, tensors: int = 1) -> int:
        """Return the most bytes that packing gradients of `nbytes` takes; 0 if they travel as they are."""
        return 0


class _Bfloat16(Wire):
    """Numbers are rounded to bfloat16, to nearest, ties to even; beyond 3.39e38, they become infinite."""

    name = "bfloat16"
    value_bytes = 2.0

    def pack(self, flat: np.ndarray, parts: Sequence[slice]) -> Packed:
        return Packed(_converted(flat, _BFLOAT16))

    def unpack(self, values: np.ndarray, scales: Scales | None) -> np.ndarray:
        return _converted(values, np.dtype(np.float32))

    def packed_bytes(self, nbytes: int, tensors: int = 1) -> int:
        return nbytes // 2


class _Int8(Wire):
    """Numbers are rounded to 255 levels, which 128 neighbours share; sums travel back in bfloat16.

    A number arrives within 0.4 % of the largest magnitude of its block. A block with a number that is not finite
    arrives as NaN.
    """

    name = "int8"
    value_bytes = 1.0 + 4 / _BLOCK

    @property
    def back(self) -> Wire:
        return WIRES["bfloat16"]

    def pack(self, flat: np.ndarray, parts: Sequence[slice]) -> Packed:
        starts = np.concatenate([*(np.arange(part.start, part.stop, _BLOCK) for part in parts), [flat.size]])
        values, scales = buffers.empty((flat.size,), np.int8), np.empty(len(starts) - 1, np.float32)
        for first in range(0, len(scales), _BLOCKS_AT_ONCE):
            edges = starts[first : first + _BLOCKS_AT_ONCE + 1]
            some = slice(edges[0], edges[-1])
            magnitudes = np.abs(flat[some])
            largest = np.maximum.reduceat(magnitudes, edges[:-1] - edges[0])
            # The division by 127 comes first: it cannot overflow. A scale of 0 stands for numbers too small for one.
            scale = largest / np.float32(127)
            is_finite = np.isfinite(largest)
            usable = is_finite & (scale >= np.finfo(np.float32).tiny)
            each = np.where(usable, scale, np.inf).astype(np.float32).repeat(np.diff(edges))
            levels = np.rint(np.divide(flat[some], each, out=magnitudes), out=magnitudes)
            np.copyto(values[some], levels, casting="unsafe")
            scales[first : first + len(scale)] = np.where(is_finite, np.where(usable, scale, 0), np.nan)
        return Packed(values, scales, starts)

    def unpack(self, values: np.ndarray, scales: Scales | None) -> np.ndarray:
        assert scales is not None
        numbers = _converted(values, np.dtype(np.float32))
        for first in range(0, len(scales.scales), _BLOCKS_AT_ONCE):
            edges = scales.edges[first : first + _BLOCKS_AT_ONCE + 1]
            numbers[edges[0] : edges[-1]] *= scales.scales[first : first + _BLOCKS_AT_ONCE].repeat(np.diff(edges))
        return numbers

    def packed_bytes(self, nbytes: int, tensors: int = 1) -> int:
        blocks = nbytes // 4 // _BLOCK + tensors
        return nbytes // 4 + 4 * blocks + 8 * (blocks + 1)


def _converted(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    out = buffers.empty(array.shape, dtype)
    np.copyto(out, array, casting="unsafe")
    return out


EXACT = Wire()
WIRES: dict[str, Wire] = {wire.name: wire for wire in (EXACT, _Bfloat16(), _Int8())}


def wire_named(name: str, who: str) -> Wire:
    """Return the format of a name. Raises ArgumentError for other names; `who` says whose argument it is."""
    if not isinstance(name, str) or name not in WIRES:
        raise ArgumentError(f"{who}: got wire={name!r}; wanted {', '.join(map(repr, WIRES))}")
    return WIRES[name]


def arriving_bytes(wire: Wire, itemsize: int) -> int:
    """Return the bytes of each element that arrives: as it travels and, if that is not the same, as it is added."""
    return itemsize if wire.is_exact else int(wire.value_bytes) + itemsize
