"""How exact products of float32 are, under PyTorch's names."""

from spillgrad.errors import ArgumentError
from spillgrad_kernels.cuda.precision import allow_tf32, tf32_is_allowed

_PRECISIONS = ("highest", "high", "medium")


def set_float32_matmul_precision(precision: str) -> None:
    """Say how exact products of float32 are on CUDA devices: "highest", in float32, is how it begins.

    With "high" or "medium" tensor cores round what they multiply to TF32: 10 bits after the point, not 23. Products on
    the CPU stay exact. Raises ArgumentError for another word.
    """
    if precision not in _PRECISIONS:
        raise ArgumentError(
            f"set_float32_matmul_precision: got {precision!r}; wanted {', '.join(map(repr, _PRECISIONS[:-1]))} or "
            f"{_PRECISIONS[-1]!r}"
        )
    allow_tf32(precision != "highest")


def get_float32_matmul_precision() -> str:
    """Return how exact products of float32 are: "highest" or "high"."""
    return "high" if tf32_is_allowed() else "highest"
