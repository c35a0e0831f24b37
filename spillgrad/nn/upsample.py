"""Layers that resize images."""

from collections.abc import Sequence

from spillgrad.nn.function_layer import FunctionLayer
from spillgrad.ops.interpolate import interpolate

__all__ = ["Upsample", "UpsamplingBilinear2d", "UpsamplingNearest2d"]


class Upsample(FunctionLayer):
    """Resize images to a given size or by a given factor.

    The input has shape (N, C, L), (N, C, H, W) or (N, C, D, H, W), the result the same with other sizes.

    Parameters
    ----------
    size : int or sequence of int, optional
        Size of the result; one of `size` and `scale_factor` is given.
    scale_factor : float or sequence of float, optional
        Factor of the input's size.
    mode : str, default "nearest"
        "nearest", "nearest-exact" or "area" for any input, "linear" for signals, "bilinear" or "bicubic" for images,
        "trilinear" for volumes.
    align_corners : bool, optional
        Whether the centres of the corner elements keep their places; by default, the outer corners of the image do.
    recompute_scale_factor : bool, optional
        Whether coordinates are computed from the sizes; by default, from `scale_factor` itself.

    See Also
    --------
    spillgrad.nn.functional.interpolate : The function.
    """

    _function = interpolate
    size: int | Sequence[int] | None = None
    scale_factor: float | Sequence[float] | None = None
    mode: str = "nearest"
    align_corners: bool | None = None
    recompute_scale_factor: bool | None = None

    def _set_up(self) -> None:
        if isinstance(self.scale_factor, Sequence):
            self.scale_factor = tuple(self.scale_factor)
        elif isinstance(self.scale_factor, int):
            self.scale_factor = float(self.scale_factor)

    def extra_repr(self) -> str:
        """Return the options to show in the layer's representation.

        Returns
        -------
        str
            Names and values.
        """
        chosen = f"size={self.size}" if self.scale_factor is None else f"scale_factor={self.scale_factor}"
        return f"{chosen}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Enlarge images by repeating elements.

    Parameters
    ----------
    size : int or sequence of int, optional
        Size of the result; one of `size` and `scale_factor` is given.
    scale_factor : float or sequence of float, optional
        Factor of the input's size.
    """

    def __init__(
        self, size: int | Sequence[int] | None = None, scale_factor: float | Sequence[float] | None = None
    ) -> None:
        super().__init__(size, scale_factor, "nearest")


class UpsamplingBilinear2d(Upsample):
    """Enlarge images by bilinear interpolation; the centres of the corner elements stay where they are.

    Parameters
    ----------
    size : int or sequence of int, optional
        Size of the result; one of `size` and `scale_factor` is given.
    scale_factor : float or sequence of float, optional
        Factor of the input's size.
    """

    def __init__(
        self, size: int | Sequence[int] | None = None, scale_factor: float | Sequence[float] | None = None
    ) -> None:
        super().__init__(size, scale_factor, "bilinear", align_corners=True)
