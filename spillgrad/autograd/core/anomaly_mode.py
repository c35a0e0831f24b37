"""Anomaly detection: an error or a NaN in backward names the line of the forward pass that it comes from.

Source: torch.autograd.anomaly_mode.
"""

import threading
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from spillgrad import user_line
from spillgrad.autograd.core import hooks
from spillgrad.errors import GraphError

__all__ = ["detect_anomaly", "is_anomaly_check_nan_enabled", "is_anomaly_enabled", "set_detect_anomaly"]

_TRACEBACK, _PARENT = "traceback_", "parent_"  # PyTorch's keys in a node's metadata
_PACKAGE = str(Path(__file__).parents[2])


class _Node(Protocol):
    """The attributes of `Node` that detection uses. `Node` itself cannot be imported: its module imports this one."""

    _metadata: dict[Any, Any] | None

    @property
    def metadata(self) -> dict[Any, Any]: ...
    def name(self) -> str: ...
    def run(self, grads: list[Any]) -> list[Any]: ...


class _Mode:
    enabled = False
    check_nan = True


class _Running(threading.local):
    node: _Node | None = None


_mode = _Mode()  # one for the whole process, as in PyTorch: backward may run in another thread
running = _Running()


def is_anomaly_enabled() -> bool:
    """Return whether anomaly detection is on.

    Returns
    -------
    bool
        What `set_detect_anomaly` or `detect_anomaly` set; False by default.
    """
    return _mode.enabled


def is_anomaly_check_nan_enabled() -> bool:
    """Return whether anomaly detection looks for NaNs when it is on.

    Returns
    -------
    bool
        What `set_detect_anomaly` or `detect_anomaly` set; True by default.
    """
    return _mode.check_nan


def _set(enabled: bool, check_nan: bool) -> None:
    _mode.enabled, _mode.check_nan = enabled, check_nan
    hooks.watch_every_thread("anomaly detection", enabled)


class set_detect_anomaly:
    """Switch anomaly detection on or off in all threads. As a context manager, restore the former setting on exit.

    While detection is on, each operation records where it was called, which takes some 10 microseconds. An error in the
    operation's backward then shows that place.

    Parameters
    ----------
    mode : bool
        Whether detection is on.
    check_nan : bool, default True
        Whether a backward that computes NaN raises GraphError with the line of the forward pass.
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._before = _mode.enabled, _mode.check_nan
        _set(bool(mode), bool(check_nan))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        _set(*self._before)


class detect_anomaly:
    """Context manager: an error or a NaN in backward names the line of the forward pass that it comes from.

    Run both the forward and the backward pass in the context, because the forward pass records where each operation was
    called. This is slow and meant for debugging. Before any error of backward, a warning shows the traceback of the
    forward pass.

    Parameters
    ----------
    check_nan : bool, default True
        Whether a backward that computes NaN raises GraphError.

    Warns
    -----
    UserWarning
        Always, as a reminder that this mode is slow.
    """

    def __init__(self, check_nan: bool = True) -> None:
        warnings.warn(
            "Anomaly Detection has been enabled. This mode will increase the runtime and should only be enabled for "
            "debugging.",
            stacklevel=2,
        )
        self._check_nan = bool(check_nan)
        self._before: list[tuple[bool, bool]] = []

    def __enter__(self) -> None:
        self._before.append((_mode.enabled, _mode.check_nan))
        _set(True, self._check_nan)

    def __exit__(self, *exception: object) -> None:
        _set(*self._before.pop())


def note(node: _Node) -> None:
    """If detection is on, store in `node` where it is recorded, and the node whose backward is recording it, if any."""
    if _mode.enabled:
        frames = traceback.extract_stack()
        mine = len(frames)
        while mine and frames[mine - 1].filename.startswith((_PACKAGE, "<generated>")):
            mine -= 1
        node.metadata[_TRACEBACK] = traceback.format_list(frames[:mine] or frames)
        if running.node is not None:
            node.metadata[_PARENT] = running.node


def run(node: _Node, grads: list[Any], check: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """Run a node and check its results. Warn of the forward pass before any error. Raises GraphError for NaN."""
    outer, running.node = running.node, node
    try:
        results = check(node, node.run(grads))
        for number, gradient in enumerate(results):
            if _mode.check_nan and gradient is not None and bool((gradient.array != gradient.array).any()):
                raise GraphError(
                    f"Function '{node.name()}' returned nan values in its {number}th output. {_place(node)}"
                )
    except Exception:
        user_line.warn(_story(node))
        raise
    finally:
        running.node = outer
    return results


def _place(node: _Node) -> str:
    lines = (node._metadata or {}).get(_TRACEBACK)
    return f"It was recorded at:\n{lines[-1].rstrip()}" if lines else _UNKNOWN


_UNKNOWN = "No forward pass information available. Enable detect anomaly during forward pass for more information."


def _story(node: _Node) -> str:
    lines = [f"Error detected in {node.name()}. "]
    found: Any = node
    while True:
        metadata = found._metadata or {}
        trace = metadata.get(_TRACEBACK)
        lines += ["Traceback of forward call that caused the error:\n", *trace] if trace else [_UNKNOWN]
        found = metadata.get(_PARENT)
        if found is None:
            return "".join(lines).rstrip()
        lines.append(f"\nPrevious calculation was induced by {found.name()}. ")
