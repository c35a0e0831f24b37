"""The recorder of a running profile: recorded operations and backward report to it (see `spillgrad.profiler`)."""

from typing import Any, Protocol

from spillgrad.autograd.core import hooks


class Recorder(Protocol):
    """What a profile does at each operation."""

    def operation_ended(self, node: Any) -> None:
        """Note that an operation has just run, and was recorded as `node`."""

    def node_ended(self, node: Any, began_ns: int) -> None:
        """Note that backward has just run `node`, which began at the time `began_ns` of `time.perf_counter_ns`."""


# There is one for the whole process, because backward may run in another thread.
recorder: Recorder | None = None


def set_recorder(new: Recorder | None) -> None:
    """Let operations of all threads report to a recorder; None ends that."""
    global recorder
    recorder = new
    hooks.watch_every_thread("profile", new is not None)


def note(node: Any) -> None:
    """Tell the recorder, if there is one, that an operation has run, and was recorded as `node`."""
    current = recorder  # another thread may end the profile meanwhile
    if current is not None:
        current.operation_ended(node)
