"""After `import spillgrad.interop.einops`, einops takes our tensors: `rearrange reduce repeat einsum pack unpack`.

    import spillgrad.interop.einops  # once; needs `pip install einops`
    from einops import rearrange

    rearrange(x, "b (h d) t -> b h t d", h=8)

Gradients flow through. einops tries every subclass of its `AbstractBackend`, so defining a subclass registers it. The
functions of `einops.array_api` need no registration: they find our functions by `__array_namespace__`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from spillgrad.errors import ArgumentError
from spillgrad.interop.needed_package import needed_package
from spillgrad.ops import creation, einsum, join_split, rearrange, reduce, shape, truth
from spillgrad.tensor import Tensor

with needed_package("einops"):
    from einops._backends import AbstractBackend

_REDUCTIONS = {
    "all": truth.all, "any": truth.any, "max": reduce.amax, "mean": reduce.mean, "min": reduce.amin,
    "prod": reduce.prod, "sum": reduce.sum,
}  # fmt: skip


class SpillgradBackend(AbstractBackend):  # type: ignore[misc]
    """The operations on tensors that einops calls."""

    framework_name = "spillgrad"
    from_numpy = staticmethod(creation.from_numpy)
    arange = staticmethod(creation.arange)
    transpose = staticmethod(shape.permute)
    add_axis = staticmethod(shape.unsqueeze)
    tile = staticmethod(rearrange.tile)
    stack_on_zeroth_dimension = staticmethod(join_split.stack)
    concat = staticmethod(join_split.cat)
    einsum = staticmethod(einsum.einsum)

    def is_appropriate_type(self, tensor: Any) -> bool:
        return isinstance(tensor, Tensor)

    def to_numpy(self, x: Tensor) -> np.ndarray:
        return x.numpy(force=True)

    def reduce(self, x: Tensor, operation: str, axes: Sequence[int]) -> Tensor:
        if operation not in _REDUCTIONS:
            raise ArgumentError(f"einops: got the reduction {operation!r}; wanted one of {', '.join(_REDUCTIONS)}")
        return _REDUCTIONS[operation](x, axes)

    def add_axes(self, x: Tensor, n_axes: int, pos2len: dict[int, int]) -> Tensor:
        """Return a view with `n_axes` axes: `x` repeated along new axes, whose lengths `pos2len` gives by position."""
        sizes = [-1] * n_axes
        for position, size in pos2len.items():
            x = self.add_axis(x, position)
            sizes[position] = size
        return shape.expand(x, sizes)

    def is_float_type(self, x: Tensor) -> bool:
        return x.is_floating_point()
