"""PyTorch's settings of threads, denormal numbers and warnings that change nothing here; they read back."""

from spillgrad.errors import ArgumentError

__all__ = [
    "get_num_interop_threads", "is_warn_always_enabled", "set_flush_denormal", "set_num_interop_threads",
    "set_warn_always",
]  # fmt: skip

_settings = {"interop_threads": 1, "warn_always": 0}


def set_num_interop_threads(num: int) -> None:
    """Keep the number, which changes nothing: operations run one after the other.

    Parameters
    ----------
    num : int
        At least 1.

    Raises
    ------
    ArgumentError
        For less than 1.

    See Also
    --------
    set_num_threads : Sets the number of threads that one operation uses.
    """
    if num < 1:
        raise ArgumentError(f"set_num_interop_threads: expected positive number of threads, got {num}")
    _settings["interop_threads"] = num


def get_num_interop_threads() -> int:
    """Return what `set_num_interop_threads` set.

    Returns
    -------
    int
        At first, 1.
    """
    return _settings["interop_threads"]


def set_flush_denormal(mode: bool) -> bool:
    """Do nothing; denormal numbers are not flushed to zero.

    Parameters
    ----------
    mode : bool
        Whether to flush them.

    Returns
    -------
    bool
        False, PyTorch's answer where denormal numbers cannot be flushed to zero.
    """
    return False


def set_warn_always(b: bool, /) -> None:
    """Keep the setting, which changes nothing: Python's filters decide how often a warning is shown.

    Parameters
    ----------
    b : bool
        Value that `is_warn_always_enabled` returns.
    """
    _settings["warn_always"] = int(b)


def is_warn_always_enabled() -> bool:
    """Return what `set_warn_always` set.

    Returns
    -------
    bool
        At first, False.
    """
    return bool(_settings["warn_always"])
