"""PyTorch's settings of determinism. Every operation here is deterministic, so that they change nothing.

Sums have a fixed order on all devices, whatever the number of threads, and no algorithm is chosen by timing. The
settings read back as they were set.
"""

from spillgrad.errors import ArgumentError

__all__ = [
    "are_deterministic_algorithms_enabled", "get_deterministic_debug_mode",
    "is_deterministic_algorithms_warn_only_enabled", "set_deterministic_debug_mode", "use_deterministic_algorithms",
]  # fmt: skip

_MODES = ("default", "warn", "error")
_mode = [0]


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Keep the setting, which changes nothing: every operation is deterministic.

    Parameters
    ----------
    mode : bool
        Value that `are_deterministic_algorithms_enabled` returns.
    warn_only : bool, default False
        Value that `is_deterministic_algorithms_warn_only_enabled` returns, if `mode` is true.
    """
    _mode[0] = 0 if not mode else 1 if warn_only else 2


def are_deterministic_algorithms_enabled() -> bool:
    """Return what `use_deterministic_algorithms` set; every operation is deterministic in any case.

    Returns
    -------
    bool
        At first, False.
    """
    return _mode[0] > 0


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """Return whether `use_deterministic_algorithms` was called with `warn_only`.

    Returns
    -------
    bool
        At first, False.
    """
    return _mode[0] == 1


def set_deterministic_debug_mode(debug_mode: int | str) -> None:
    """Keep a setting, which changes nothing: every operation is deterministic.

    Parameters
    ----------
    debug_mode : int or str
        One of 0, 1 and 2, or of "default", "warn" and "error", which mean the same.

    Raises
    ------
    ArgumentError
        For another mode.
    """
    if debug_mode not in (0, 1, 2, *_MODES):
        raise ArgumentError(f"set_deterministic_debug_mode: got {debug_mode!r}; wanted 0, 1, 2, {', '.join(_MODES)}")
    _mode[0] = _MODES.index(debug_mode) if isinstance(debug_mode, str) else debug_mode


def get_deterministic_debug_mode() -> int:
    """Return what `set_deterministic_debug_mode` or `use_deterministic_algorithms` set.

    Returns
    -------
    int
        Zero, 1 (warn) or 2 (error); at first, 0.
    """
    return _mode[0]
