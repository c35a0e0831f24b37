"""PyTorch's switch for backward in several threads, which spillgrad's backward does not need.

Source: torch.autograd.grad_mode.set_multithreading_enabled.
"""

import threading

from spillgrad.autograd.core.grad_mode import decorated

__all__ = ["is_multithreading_enabled", "set_multithreading_enabled"]


class _Setting(threading.local):
    enabled = True


_setting = _Setting()


def is_multithreading_enabled() -> bool:
    """Return what `set_multithreading_enabled` has set in this thread.

    Returns
    -------
    bool
        True if nothing was set.
    """
    return _setting.enabled


class set_multithreading_enabled:
    """Set whether backward may use several threads, from now on; as a context manager or decorator, only within.

    Programs may set it, and nothing changes: the nodes of a graph run one after the other, in the caller's thread, and
    each kernel uses the threads of `set_num_threads`.

    Parameters
    ----------
    mode : bool
        What `is_multithreading_enabled` returns.
    """

    def __init__(self, mode: bool) -> None:
        self.mode = bool(mode)
        self._before = _setting.enabled
        _setting.enabled = self.mode

    def __enter__(self) -> None:
        _setting.enabled = self.mode

    def __exit__(self, *exception: object) -> None:
        _setting.enabled = self._before

    def __call__(self, function: object) -> object:
        _setting.enabled = self._before
        return decorated(function, lambda: set_multithreading_enabled(self.mode))  # type: ignore[arg-type]

    def clone(self) -> "set_multithreading_enabled":
        """Return a new context with the same mode.

        Returns
        -------
        set_multithreading_enabled
            A context of its own.
        """
        return set_multithreading_enabled(self.mode)
