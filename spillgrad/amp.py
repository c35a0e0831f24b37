"""Mixed precision under the names of `torch.amp`: `autocast`, `GradScaler`, and decorators for custom functions.

Put `custom_fwd` and `custom_bwd` on the static methods `forward` and `backward` of an `autograd.Function`; its backward
then runs in the mode of its forward.
"""

import functools
from collections.abc import Callable
from typing import Any

from spillgrad import dtypes
from spillgrad.errors import ArgumentError
from spillgrad.ops.autocast import autocast, is_autocast_enabled, present
from spillgrad.ops.convert import to_dtype
from spillgrad.optim.grad_scaler import GradScaler
from spillgrad.tensor import Tensor
from spillgrad_kernels.cuda.driver.availability import missing

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd", "is_autocast_available"]


def is_autocast_available(device_type: str) -> bool:
    """Return whether `autocast` works on a device type.

    Parameters
    ----------
    device_type : str
        Such as "cpu" or "cuda".

    Returns
    -------
    bool
        True for "cpu"; for "cuda", whether there is a CUDA device; else False.
    """
    return device_type == "cpu" or (device_type == "cuda" and missing() is None)


def custom_fwd(
    fwd: Callable[..., Any] | None = None, *, device_type: str = "cpu", cast_inputs: Any = None
) -> Callable[..., Any]:
    """Decorate a custom function's forward: store the mode of `autocast`, in which a backward with `custom_bwd` runs.

    Parameters
    ----------
    fwd : callable, optional
        Static method ``forward(ctx, ...)`` of a `Function`; None returns a decorator with these options.
    device_type : {"cpu", "cuda"}, default "cpu"
        Type of device whose mode `cast_inputs` depends on.
    cast_inputs : dtype, optional
        If `autocast` is enabled, forward runs with `autocast` disabled, and its floating-point inputs other than
        float64 are converted to this dtype. None converts nothing.

    Returns
    -------
    callable
        The decorated method.

    Raises
    ------
    ArgumentError
        For another `device_type`.
    """
    _require_device("custom_fwd", device_type)
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)
    dtype = None if cast_inputs is None else dtypes.as_dtype(cast_inputs)

    @functools.wraps(fwd)
    def forward(ctx: Any, *arguments: Any, **options: Any) -> Any:
        if dtype is None or not is_autocast_enabled(device_type):
            ctx._autocast = present()
            return fwd(ctx, *arguments, **options)
        ctx._autocast = autocast(enabled=False)
        with ctx._autocast:
            return fwd(ctx, *_converted(arguments, dtype), **_converted(options, dtype))

    return forward


def custom_bwd(bwd: Callable[..., Any] | None = None, *, device_type: str = "cpu") -> Callable[..., Any]:
    """Decorate a custom function's backward: run it in the mode of `autocast` that `custom_fwd` stored in forward.

    Parameters
    ----------
    bwd : callable, optional
        Static method ``backward(ctx, ...)`` of a `Function`; None returns a decorator with these options.
    device_type : {"cpu", "cuda"}, default "cpu"
        Accepted, as in PyTorch.

    Returns
    -------
    callable
        The decorated method.

    Raises
    ------
    ArgumentError
        For another `device_type`.
    """
    _require_device("custom_bwd", device_type)
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)

    @functools.wraps(bwd)
    def backward(ctx: Any, *gradients: Any) -> Any:
        with ctx._autocast:
            return bwd(ctx, *gradients)

    return backward


def _require_device(name: str, device_type: str) -> None:
    if device_type not in ("cpu", "cuda"):
        raise ArgumentError(f'{name}: got device_type={device_type!r}; wanted "cpu" or "cuda"')


def _converted(value: Any, dtype: dtypes.DType) -> Any:
    if isinstance(value, Tensor):
        return to_dtype(value, dtype) if value.is_floating_point() and value.dtype != dtypes.float64 else value
    if isinstance(value, dict):
        return {key: _converted(part, dtype) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([_converted(part, dtype) for part in value])
    return value
