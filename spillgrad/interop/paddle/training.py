"""The hooks by which an offloaded Paddle model is trained: around layers, and after gradients."""

import functools
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import paddle
from paddle.base.core import eager
from paddle.base.framework import EagerParamBase

from spillgrad.errors import GraphError
from spillgrad.interop.paddle import frames
from spillgrad.interop.paddle.needs import is_offloaded
from spillgrad.interop.paddle.offloaded_parameter import OffloadedParameter, offload_parameter
from spillgrad.interop.paddle.stored_tensor import StoredTensor, clear_memory
from spillgrad.spill.offload.residents import Residents
from spillgrad.storage.store import Label

# The modules whose functions `backward` run through a graph.
_BACKWARD = ("paddle.base.dygraph.tensor_patch_methods", "paddle.autograd.backward_mode")


class OffloadedTraining:
    """The hooks on a model and its parameters. The hooked objects keep this alive, not vice versa."""

    def __init__(self, residents: Residents, step_in_backward: bool) -> None:
        self.residents = residents
        self.grad_norm: float | None = None  # set by the optimizer
        self.names: dict[int, str] = {}
        self._step_in_backward = step_in_backward
        self._optimizer: Callable[[], Any] = lambda: None
        self._waiting: Callable[[], Any] = lambda: None  # the last parameter with a waiting gradient
        self._hooked: set[int] = set()  # parameters whose gradients come here
        self._updated: set[int] = set()  # parameters that the present backward has updated
        self._will_end = False  # whether Paddle will call `_end_backward`
        self._failure: BaseException | None = None

    def take_model(self, model: Any) -> None:
        """Offload parameters, and add hooks to layers and parameters."""
        for name, parameter in model.named_parameters():
            self.names[id(parameter)] = name
            label = Label("parameter", None, name)
            if is_offloaded(parameter):  # it was offloaded while the model was built
                parameter._stored.relabel(label)
            else:
                offload_parameter(self.residents, parameter, label)
        for layer in model.sublayers(include_self=True):
            _free_common_memory(layer)
            layer._parameters = frames.Parameters(layer._parameters)
            hook = layer.register_forward_pre_hook(functools.partial(self._enter, begins_step=layer is model))
            # Before other hooks: those of weight_norm use the layer's parameters.
            layer._forward_pre_hooks.move_to_end(hook._hook_id, last=False)
            layer.register_forward_post_hook(_leave, always_call=True)
        self._watch_gradients(model.parameters())

    def take_optimizer(self, optimizer: Any) -> None:
        """Let backward update parameters with an offloaded optimizer, if it shall."""
        self._optimizer = weakref.ref(optimizer)

    def label(self, parameter: Any, key: str) -> Label:
        """Return the label for the tensor `key` of a parameter's state."""
        return Label("state", key, self.names.get(id(parameter)))

    def _watch_gradients(self, parameters: Any) -> None:
        # Paddle takes no hook for a parameter without a gradient: one that is unfrozen later gets its hook later.
        for parameter in parameters:
            wanted = is_offloaded(parameter) or self._step_in_backward
            if wanted and not parameter.stop_gradient and id(parameter) not in self._hooked:
                self._hooked.add(id(parameter))
                parameter._register_backward_hook(functools.partial(self._accumulated, weakref.ref(parameter)))

    def _enter(self, layer: Any, args: Any, begins_step: bool) -> None:
        if begins_step and not _running_backwards():
            self._updated.clear()
            self._failure = None
        frames.enter(self.residents, layer, begins_step and not self._adds_to_gradients())
        self._watch_gradients(dict.values(layer._parameters))

    def _adds_to_gradients(self) -> bool:
        """Return whether gradients wait for an update: then this batch belongs to the same step as the last batch."""
        waiting = self._waiting()
        return waiting is not None and waiting._stored.gradient is not None

    def _accumulated(self, reference: Any) -> None:
        """After backward has added to a parameter's gradient: update the parameter, or move the gradient to the store.

        Errors reach the caller at the end of backward: with an error at this point, Paddle would go on regardless.
        """
        parameter = reference()
        if parameter is None or self._failure is not None:
            return
        try:
            with paddle.no_grad(), paddle.amp.auto_cast(enable=False):
                self._take_gradient(parameter)
        except BaseException as error:
            self._failure = error
            self._call_at_end()

    def _take_gradient(self, parameter: Any) -> None:
        store = self.residents.store
        optimizer = self._optimizer() if self._step_in_backward else None
        if optimizer is None or not optimizer.has(parameter):
            store.begin_phase("backward")
            self._put_gradient_away(parameter)
            return
        if id(parameter) in self._updated:
            raise GraphError(
                f"disk_offload: {self.names[id(parameter)]} got another gradient after backward had updated it: a "
                "backward runs inside this one, as that of recompute does; leave out step_in_backward, or use the "
                "parameter in one recomputed part only"
            )
        self._call_at_end()
        if is_offloaded(parameter) and parameter._stored.has_gradient:
            self._put_gradient_away(parameter)
        store.begin_phase("update")
        optimizer.update_parameter(parameter)
        store.begin_phase("backward")
        self._updated.add(id(parameter))
        parameter.clear_gradient(False)

    def _call_at_end(self) -> None:
        if not self._will_end:
            self._will_end = True
            eager._add_backward_final_hook(self._end_backward)

    def _end_backward(self) -> None:
        """At the end of a backward, an inner one or the outermost: see what the hooks have left to do."""
        self._will_end = False
        is_inner = _running_backwards() > 1
        if not is_inner:  # an inner one is followed by more gradients, which ask for another call
            self._updated.clear()
        failure, self._failure = self._failure, None
        if failure is not None:
            if is_inner:
                warnings.warn(f"the error that ends backward: {failure}", stacklevel=2)  # Paddle drops its text there
            try:
                raise failure
            finally:
                del failure  # it refers to this frame

    def _put_gradient_away(self, parameter: Any) -> None:
        """Add the gradient that Paddle has for a parameter to that in the store."""
        if not isinstance(parameter, OffloadedParameter):
            return
        native, stored = EagerParamBase._grad_ivar(parameter), parameter._stored
        if native is None or not native.is_dense():
            return
        if stored.gradient is None:
            label = Label("gradient", None, self.names[id(parameter)])
            stored.gradient = StoredTensor(self.residents, native, label)
        else:
            stored.gradient.add(native)
        stored.gradient_is_zero = False
        del native
        EagerParamBase.clear_gradient(parameter, False)
        self.residents.return_changed(with_last=True)
        self._waiting = weakref.ref(parameter)


def _running_backwards() -> int:
    """Return how many backwards run in this thread, one inside the other."""
    count, frame = 0, sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "backward" and frame.f_globals.get("__name__") in _BACKWARD:
            count += 1
        frame = frame.f_back  # type: ignore[assignment]
    return count


def _free_common_memory(layer: Any) -> None:
    """Free the memory in which an RNN has all of its parameters, for GPUs; small ones would keep all of it in RAM."""
    for together in getattr(layer, "_flat_weight", ()):
        for parameter in layer.parameters():
            if not is_offloaded(parameter):
                with paddle.no_grad():
                    parameter.clone()._unsafe_share_buffer_to(parameter)
        clear_memory(together)


def _leave(layer: Any, args: Any, result: Any) -> None:
    frames.leave(layer)
