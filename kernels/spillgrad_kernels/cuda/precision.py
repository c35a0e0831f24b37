"""How exact products of float32 are on a device; imports nothing of CUDA's."""

_tf32 = [False]


def allow_tf32(allowed: bool) -> None:
    """Say whether tensor cores may round float32 to 10 bits after the point for products; at first they may not."""
    _tf32[0] = allowed


def tf32_is_allowed() -> bool:
    """Return whether they may."""
    return _tf32[0]
