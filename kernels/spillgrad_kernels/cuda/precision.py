"""The precision of float32 products on a device; this module imports no CUDA package."""

_tf32 = [False]


def allow_tf32(allowed: bool) -> None:
    """Permit or forbid tensor cores to round float32 to tf32 (10 fraction bits) in products; forbidden at first."""
    _tf32[0] = allowed


def tf32_is_allowed() -> bool:
    """Return whether tensor cores may round float32 to tf32."""
    return _tf32[0]
