"""What a running layer keeps in RAM: its own parameters, and those of other layers that it asks for."""

import collections
import contextlib
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import paddle

from spillgrad.interop.paddle.offloaded_parameter import OffloadedParameter
from spillgrad.interop.paddle.saved_tensors import enter_hooks, leave_hooks
from spillgrad.interop.paddle.stored_parameter import StoredParameter, opened
from spillgrad.spill.offload.residents import Residents

# Signal handlers run before or after this code: `storage/threads/interrupts.py`.
SIGNALS_WAIT = True

# Layers that never change their parameters. Others may change those without a gradient, as BatchNorm does its averages,
# of which Paddle's counter of changes shows nothing.
_ONLY_READING = frozenset([
    paddle.nn.Linear, paddle.nn.Embedding, paddle.nn.LayerNorm, paddle.nn.GroupNorm, paddle.nn.Conv1D, paddle.nn.Conv2D,
    paddle.nn.Conv3D,
])  # fmt: skip
_NO_MEMORY = ("holder_ should not be null", "has_allocation()")


class _Frame:
    """The parameters that a running layer uses; the layer has them until it returns."""

    def __init__(self, residents: Residents, owner: Any) -> None:
        self.residents, self.owner, self.is_of_layer = residents, id(owner), isinstance(owner, paddle.nn.Layer)
        self.opened: dict[int, StoredParameter] = {}
        self.hooked = False

    def open(self, parameter: Any) -> None:
        if id(parameter) not in self.opened:
            self.opened[id(parameter)] = opened(parameter)

    def close(self) -> None:
        with contextlib.ExitStack() as undo:  # all of it, even if the store raises an error
            undo.callback(self.residents.leave, self.owner)
            if self.hooked:
                undo.callback(leave_hooks)
            for stored in self.opened.values():
                undo.callback(stored.close)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.frames: list[_Frame] = []


_thread = _Thread()


def enter(residents: Residents, owner: Any, begins_step: bool = False) -> None:
    """Begin a frame of `owner`, a layer; with `begins_step`, a training step begins. `leave` follows, come what may."""
    frames = _thread.frames
    if frames and begins_step:
        leave_stopped()
    residents.enter(id(owner), begins_step and not frames)
    frame = _Frame(residents, owner)
    frames.append(frame)
    if paddle.is_grad_enabled():
        enter_hooks("disk_offload")
        frame.hooked = True
    if frame.is_of_layer:
        for parameter in dict.values(owner._parameters):
            if isinstance(parameter, OffloadedParameter):
                frame.open(parameter)
                if parameter.stop_gradient and type(owner) not in _ONLY_READING:
                    parameter._stored.lend()


def leave(owner: Any) -> None:
    """End the innermost frame if it is of `owner`, and explain the error that ended it, if it is one of no memory."""
    frames = _thread.frames
    if frames and frames[-1].owner == id(owner):
        frames.pop().close()
    error = sys.exception()
    if error is not None and any(text in str(error) for text in _NO_MEMORY) and not hasattr(error, "__notes__"):
        error.add_note(
            "disk_offload: a parameter was used outside of its layer, where it has no memory; take it as an attribute "
            "of its layer (layer.weight) while a layer runs, or use it inside offload.in_ram(parameter)"
        )


def leave_stopped() -> None:
    """End the frames of layers that run no more: an interrupt ended them without `leave`."""
    call, running, frame = paddle.nn.Layer._dygraph_call_func.__code__, set(), sys._getframe()
    while frame is not None:
        if frame.f_code is call:
            running.add(id(frame.f_locals["self"]))
        frame = frame.f_back  # type: ignore[assignment]
    frames = _thread.frames
    while frames and frames[-1].is_of_layer and frames[-1].owner not in running:
        frames.pop().close()


@contextlib.contextmanager
def in_ram(residents: Residents, parameters: Iterable[Any]) -> Iterator[None]:
    """Context manager: parameters have their memory."""
    owner = object()
    try:
        enter(residents, owner)
        for parameter in parameters:
            if isinstance(parameter, OffloadedParameter):
                _thread.frames[-1].open(parameter)
        yield
    finally:
        leave(owner)


class Parameters(collections.OrderedDict[str, Any]):
    """A layer's parameters by name. While a layer runs, it has the memory of a parameter that is taken from here."""

    def __getitem__(self, name: str) -> Any:
        parameter = super().__getitem__(name)
        if isinstance(parameter, OffloadedParameter) and _thread.frames:
            _thread.frames[-1].open(parameter)
        return parameter

    def values(self) -> Any:
        """Return the parameters, as `ParameterList` iterates over them."""
        return [self[name] for name in self]
