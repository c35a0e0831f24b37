"""The setting for the precision of float32 products on a device. This module imports no CUDA package."""

_tf32 = [False]


def allow_tf32(allowed: bool) -> None:
    """Set whether tensor cores may round float32 operands of products to tf32 (10 fraction bits); by default, no."""
    _tf32[0] = allowed


def tf32_is_allowed() -> bool:
    """Return whether tensor cores may round float32 to tf32."""
    return _tf32[0]
