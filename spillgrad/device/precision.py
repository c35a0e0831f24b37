"""The precision of float32 products, under PyTorch's names."""

from spillgrad.errors import ArgumentError
from spillgrad_kernels.cuda.precision import allow_tf32, tf32_is_allowed

_PRECISIONS = ("highest", "high", "medium")


def set_float32_matmul_precision(precision: str) -> None:
    """Set the precision of float32 products on CUDA devices.

    Parameters
    ----------
    precision : {"highest", "high", "medium"}
        With "highest", which is set at first, products are computed in float32. With "high" or "medium", tensor cores
        round the operands to TF32, with 10 bits after the point instead of 23. Products on the CPU are not affected.

    Raises
    ------
    ArgumentError
        For another word.
    """
    if precision not in _PRECISIONS:
        raise ArgumentError(
            f"set_float32_matmul_precision: got {precision!r}; wanted {', '.join(map(repr, _PRECISIONS[:-1]))} or "
            f"{_PRECISIONS[-1]!r}"
        )
    allow_tf32(precision != "highest")


def get_float32_matmul_precision() -> str:
    """Return the precision of float32 products on CUDA devices.

    Returns
    -------
    str
        "highest", or "high" (also if "medium" was set).
    """
    return "high" if tf32_is_allowed() else "highest"
