"""After `import spillgrad.interop.einops`, einops takes tensors: `rearrange reduce repeat einsum pack unpack`.

    import spillgrad.interop.einops  # once; needs `pip install einops`
    from einops import rearrange

    rearrange(x, "b (h d) t -> b h t d", h=8)

Gradients flow through. einops tries every subclass of its `AbstractBackend`, so that defining one registers it. The
functions of `einops.array_api` need no registration: they find ours by `__array_namespace__`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from spillgrad.errors import ArgumentError
from spillgrad.interop.needed_package import needed_package
from spillgrad.ops import creation, einsum, join_split, rearrange, reduce, shape
from spillgrad.tensor import Tensor

with needed_package("einops"):
    from einops._backends import AbstractBackend

_REDUCTIONS = {
    "all": reduce.all, "any": reduce.any, "max": reduce.amax, "mean": reduce.mean, "min": reduce.amin,
    "prod": reduce.prod, "sum": reduce.sum,
}  # fmt: skip


class SpillgradBackend(AbstractBackend):  # type: ignore[misc]
    """The operations on tensors that einops calls."""

    framework_name = "spillgrad"

    def is_appropriate_type(self, tensor: Any) -> bool:
        return isinstance(tensor, Tensor)

    def from_numpy(self, x: np.ndarray) -> Tensor:
        return creation.from_numpy(x)

    def to_numpy(self, x: Tensor) -> np.ndarray:
        return x.numpy(force=True)

    def arange(self, start: int, stop: int) -> Tensor:
        return creation.arange(start, stop)

    def shape(self, x: Tensor) -> tuple[int, ...]:
        return x.shape

    def reshape(self, x: Tensor, sizes: Sequence[int]) -> Tensor:
        return shape.reshape(x, sizes)

    def transpose(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        return shape.permute(x, axes)

    def reduce(self, x: Tensor, operation: str, axes: Sequence[int]) -> Tensor:
        if operation not in _REDUCTIONS:
            raise ArgumentError(f"einops: got the reduction {operation!r}; wanted one of {', '.join(_REDUCTIONS)}")
        return _REDUCTIONS[operation](x, axes)

    def stack_on_zeroth_dimension(self, tensors: Sequence[Tensor]) -> Tensor:
        return join_split.stack(tensors)

    def add_axis(self, x: Tensor, new_position: int) -> Tensor:
        return shape.unsqueeze(x, new_position)

    def add_axes(self, x: Tensor, n_axes: int, pos2len: dict[int, int]) -> Tensor:
        """Return a view with `n_axes` dimensions; those that `pos2len` gives a length are new, and repeat `x`."""
        sizes = [-1] * n_axes
        for position, size in pos2len.items():
            x = self.add_axis(x, position)
            sizes[position] = size
        return shape.expand(x, sizes)

    def tile(self, x: Tensor, repeats: Sequence[int]) -> Tensor:
        return rearrange.tile(x, repeats)

    def concat(self, tensors: Sequence[Tensor], axis: int) -> Tensor:
        return join_split.cat(tensors, axis)

    def is_float_type(self, x: Tensor) -> bool:
        return x.is_floating_point()

    def einsum(self, pattern: str, *x: Tensor) -> Tensor:
        return einsum.einsum(pattern, *x)
