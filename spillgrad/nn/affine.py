"""The base of normalisation layers: their scale and shift."""

from typing import Any

from spillgrad.nn import init
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.ops import creation


class Affine(Module):
    """A module with a scale `weight` and perhaps a shift `bias`, or None in place of either."""

    weight: Parameter | None
    bias: Parameter | None

    def _register_affine(self, shape: Any, device: Any, dtype: Any, **present: bool) -> None:
        for name, is_present in present.items():
            self.register_parameter(
                name, Parameter(creation.empty(shape, device=device, dtype=dtype)) if is_present else None
            )

    def reset_parameters(self) -> None:
        """Set weight to one and bias to zero."""
        for name, fill in (("weight", init.ones_), ("bias", init.zeros_)):
            parameter = self._parameters.get(name)
            if parameter is not None:
                fill(parameter)
