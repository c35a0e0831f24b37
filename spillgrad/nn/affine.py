"""The base of normalisation layers: their scale and shift."""

from spillgrad.nn import init
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter


class Affine(Module):
    """A module with a scale `weight` and perhaps a shift `bias`, or None in place of either."""

    weight: Parameter | None
    bias: Parameter | None

    def reset_parameters(self) -> None:
        """Set weight to one and bias to zero."""
        for name, fill in (("weight", init.ones_), ("bias", init.zeros_)):
            parameter = self._parameters.get(name)
            if parameter is not None:
                fill(parameter)
