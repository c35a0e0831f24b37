"""The base of normalisation layers: their scale and shift."""

from typing import Any

from spillgrad.nn import init
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.ops import creation


class Affine(Module):
    """A module with a scale `weight` and a shift `bias`, or None in place of either."""

    weight: Parameter | None
    bias: Parameter | None

    def _register_affine(self, shape: Any, scaled: bool, shifted: bool, device: Any, dtype: Any) -> None:
        for name, present in (("weight", scaled), ("bias", shifted)):
            self.register_parameter(
                name, Parameter(creation.empty(shape, device=device, dtype=dtype)) if present else None
            )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set weight to one and bias to zero."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)
