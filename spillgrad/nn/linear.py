"""Linear layers: the identity, the affine map, and the bilinear map."""

from typing import Any

from spillgrad.errors import ArgumentError
from spillgrad.nn import init
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.ops import matrix_products
from spillgrad.ops.einsum import bilinear
from spillgrad.tensor import Tensor

__all__ = ["Bilinear", "Identity", "Linear"]


class Identity(Module):
    """Return the input; the constructor ignores all arguments, so that it can replace any layer.

    Parameters
    ----------
    *args : object
        Ignored.
    **kwargs : object
        Ignored.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        """Return the input.

        Parameters
        ----------
        x : Tensor
            Of any shape.

        Returns
        -------
        Tensor
            The same object.
        """
        return x


class Linear(Module):
    """Compute ``x @ weight.T + bias``.

    The weight has shape (out_features, in_features), the bias (out_features,). Both are drawn from U(-a, a) with
    a = 1/sqrt(in_features).

    Parameters
    ----------
    in_features : int
        Size of the input's last dimension.
    out_features : int
        Size of the result's last dimension.
    bias : bool, default True
        Whether to add a bias.
    device : device, optional
        Where the parameters are; by default, the default device.
    dtype : dtype, optional
        Data type of the parameters; by default, the default data type.

    Examples
    --------
    >>> import spillgrad as sg
    >>> layer = sg.nn.Linear(20, 30)
    >>> layer(sg.randn(128, 20)).shape
    (128, 30)
    """

    weight: Parameter
    bias: Parameter | None

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        shapes = self._shapes()
        self._new_parameters(device, dtype, weight=shapes["weight"], bias=shapes["bias"] if bias else None)
        self.reset_parameters()

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {"weight": (self.out_features, self.in_features), "bias": (self.out_features,)}

    def reset_parameters(self) -> None:
        """Draw weight and bias from U(-1/sqrt(in_features), 1/sqrt(in_features))."""
        init.uniform_by_fan((self.weight, self.bias), self.in_features)

    def forward(self, x: Tensor) -> Tensor:
        """Return the affine map of the input.

        Parameters
        ----------
        x : Tensor
            Of shape (..., in_features).

        Returns
        -------
        Tensor
            Of shape (..., out_features).
        """
        return matrix_products.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Return the options to show in the layer's representation.

        Returns
        -------
        str
            Names and values.
        """
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Bilinear(Module):
    """Compute ``x1 @ A @ x2 + b``, with one matrix A for each output.

    The weight has shape (out_features, in1_features, in2_features), the bias (out_features,). Both are drawn from
    U(-a, a) with a = 1/sqrt(in1_features).

    Parameters
    ----------
    in1_features, in2_features : int
        Size of the last dimension of the first and of the second input.
    out_features : int
        Size of the result's last dimension.
    bias : bool, default True
        Whether to add a bias.
    device : device, optional
        Where the parameters are; by default, the default device.
    dtype : dtype, optional
        Data type of the parameters; by default, the default data type.

    Raises
    ------
    ArgumentError
        If `in1_features` is less than 1.
    """

    weight: Parameter
    bias: Parameter | None

    def __init__(
        self, in1_features: int, in2_features: int, out_features: int, bias: bool = True, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if in1_features < 1:
            raise ArgumentError(f"Bilinear: in1_features must be > 0, but got {in1_features}")
        self.in1_features = in1_features
        self.in2_features = in2_features
        self.out_features = out_features
        shapes = {"weight": (out_features, in1_features, in2_features), "bias": (out_features,) if bias else None}
        self._new_parameters(device, dtype, **shapes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias from U(-1/sqrt(in1_features), 1/sqrt(in1_features))."""
        init.uniform_by_fan((self.weight, self.bias), self.in1_features)

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Return the bilinear map of two inputs.

        Parameters
        ----------
        x1 : Tensor
            Of shape (..., in1_features).
        x2 : Tensor
            Of shape (..., in2_features).

        Returns
        -------
        Tensor
            Of shape (..., out_features).
        """
        return bilinear(x1, x2, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Return the options to show in the layer's representation.

        Returns
        -------
        str
            Names and values.
        """
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )
