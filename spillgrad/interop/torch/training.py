"""The hooks by which an offloaded model of PyTorch is trained: around modules, after gradients, and around updates."""

import contextlib
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd.graph import _engine_run_backward
from torch.nn.utils.stateless import _functional_call

from spillgrad.errors import ArgumentError, GraphError, OperandError
from spillgrad.interop.torch.memory import is_plain
from spillgrad.interop.torch.offloaded_tensor import (
    PLAIN,
    OffloadedTensor,
    lend,
    offload_tensor,
    pop_hooks,
    push_hooks,
)
from spillgrad.interop.torch.optimizer import StepContext
from spillgrad.interop.torch.state_sizes import state_bytes_of, updated_state_bytes_of
from spillgrad.spill.offload.needs import Framework, GroupFinder, members
from spillgrad.spill.offload.residents import Residents
from spillgrad.storage.store import Label
from spillgrad.storage.trim_memory import release_if_due


def _named_parameters(module: Any, recurse: bool) -> list[tuple[str, Any]]:
    return list(module.named_parameters(recurse=recurse))


FRAMEWORK = Framework(
    torch.nn.Module, state_bytes_of, updated_state_bytes_of, named_tensors=_named_parameters, kinds="parameters",
    is_compiled=lambda module: isinstance(module, torch._dynamo.OptimizedModule),
)  # fmt: skip


class TorchResidents(Residents):
    """Decides which offloaded tensors of PyTorch are in RAM. Within frames, saved views of them are kept as names."""

    def begin(self, begins_step: bool) -> None:
        super().begin(begins_step)
        self.thread.has_hooks = push_hooks()

    def end(self) -> None:
        if self.thread.has_hooks:
            pop_hooks()


class _Thread(threading.local):
    """The backwards, and the compiled modules, that this thread runs."""

    def __init__(self) -> None:
        # For each backward, by number, the tensors that it needs in RAM until it has added to a gradient.
        self.adding: dict[int, list[Any]] = {}
        self.newest = 0
        # By the id of a compiled module: its parameters in RAM, and how often each had been changed before the call.
        self.opened: dict[int, list[tuple[Any, int]]] = {}
        self.given: Any = None  # the gradient that a caller gave a parameter, while backward adds to it


class OffloadedTraining(StepContext):
    """The hooks on a model, its parameters and its optimizer. The hooked objects keep this alive, not vice versa."""

    def __init__(self, residents: TorchResidents, step_in_backward: bool, max_grad_norm: float | None) -> None:
        super().__init__(residents)
        self.grad_norm: float | None = None
        self._step_in_backward = step_in_backward
        self._max_grad_norm = max_grad_norm
        self._model: Callable[[], Any] = lambda: None
        self._optimizer: Callable[[], Any] = lambda: None
        self._names: dict[int, str] = {}
        self._shapes: dict[str, tuple[int, Any]] = {}  # of each name: the parameter's id, and its shape
        self._hooked: set[int] = set()
        self._modules: set[int] = set()  # the numbers of those with hooks
        self._groups = GroupFinder()
        self._total_norm: Any = None  # clips the gradients during the updates of one step
        self._uses_up = False  # whether those updates are the last use of the gradients
        self._waiting: Callable[[], Any] = lambda: None  # the last parameter with a waiting gradient
        self._is_new_step = True  # whether the next call of a module belongs to a new step
        self._updated: set[int] = set()  # the parameters that backward has updated since the last forward
        self._thread = _Thread()

    def take_model(self, model: Any) -> None:
        """Offload parameters, and add hooks to modules and parameters."""
        self._model = weakref.ref(model)
        for name, param in model.named_parameters():
            self._names[id(param)] = name
            label = Label("parameter", None, name)
            if isinstance(param, OffloadedTensor):  # it was offloaded while the model was built
                param._stored.relabel(label)
            else:
                offload_tensor(self.residents, param, label)
            self._hook(param)
        self._shapes = {
            name: (id(param), param.shape) for name, param in model.named_parameters(remove_duplicate=False)
        }
        compiled = [module for module in model.modules() if FRAMEWORK.is_compiled(module)]
        inside = {id(module) for each in compiled for module in each._orig_mod.modules()}
        for module in model.modules():
            if id(module) in inside:  # its code runs as that of the compiled module, without hooks
                continue
            self._modules.add(id(module))
            module.register_forward_pre_hook(functools.partial(self._enter, is_model=module is model), prepend=True)
            module.register_forward_hook(self._leave, always_call=True)

    def take_optimizer(self, optimizer: Any) -> None:
        """Become the context of the updates of an offloaded optimizer."""
        self._optimizer = weakref.ref(optimizer)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise OperandError(
            "disk_offload: an offloaded model cannot be copied or pickled, as its files are those of this process; "
            "copy or pickle model.state_dict()"
        )

    def label(self, param: Any, key: str) -> Label:
        return Label("state", key, self._names.get(id(param)))

    def _hook(self, param: Any) -> None:
        if param.requires_grad and id(param) not in self._hooked:
            self._hooked.add(id(param))
            param.register_hook(functools.partial(self._before_adding, weakref.ref(param)))
            param.register_post_accumulate_grad_hook(self._after_adding)

    @torch.compiler.disable
    def _enter(self, module: Any, args: Any, is_model: bool) -> None:
        if _runs_compiled():
            raise ArgumentError(
                f"disk_offload: torch.compile compiled a call of {type(module).__name__}, and its code does not ask "
                "Python for parameters; compile parts of the model before you offload it: "
                "model.part = torch.compile(model.part)"
            )
        if torch._C._get_tracing_state():
            raise ArgumentError(
                "disk_offload: torch.jit.trace reads parameters other than by functions in Python; trace a model in RAM"
            )
        begins_step = False
        self._leave_stopped()
        if self.residents.frame.number is None and not _running_backward():
            self._end_updates()
            if is_model:
                self._require_same_parameters(module)
            begins_step = (is_model or self._is_new_step) and not self._adds_to_gradients()
            self._is_new_step = self._is_new_step and not begins_step
            self._end_failed()
        self.residents.enter(id(module), begins_step)
        if FRAMEWORK.is_compiled(module):
            self._open_all(module)
        release_if_due()

    @torch.compiler.disable
    def _leave(self, module: Any, args: Any, result: Any) -> None:
        if FRAMEWORK.is_compiled(module):
            lend(result)
        self._leave_frame(id(module))

    def _leave_frame(self, owner: int) -> None:
        for param, changes in self._thread.opened.pop(owner, ()):
            if param._stored.version.now() != changes:
                param._stored.begin_change()
            param._stored.close(param)
        self.residents.leave(owner)

    def _open_all(self, module: Any) -> None:
        """Have the parameters of a compiled module in RAM until its call ends, as parameters of PyTorch's class."""
        opened = self._thread.opened[id(module)] = []
        for param in module.parameters():
            if isinstance(param, OffloadedTensor) or hasattr(param, "_stored"):  # another thread may run it, too
                param._stored.open(param, is_changing=False)
                opened.append((param, param._stored.version.now()))
                param.__class__ = PLAIN.get(type(param), type(param))

    def _leave_stopped(self) -> None:
        """Leave the frames of modules that run no more: an interrupt is no Exception, and ends them without `_leave`.

        Called when a module's call begins.
        """
        owner = self.residents.frame.owner
        while owner is not None and owner in self._modules and not _is_running(owner):
            self._leave_frame(owner)
            owner = self.residents.frame.owner

    def _require_same_parameters(self, model: Any) -> None:
        """Raise ArgumentError if a parameter was replaced, or has another shape; add hooks to what was unfrozen."""
        for name, param in model.named_parameters():
            number, shape = self._shapes.get(name, (id(param), param.shape))
            if param.shape != shape or (number != id(param) and id(param) not in self._names):
                if _calls(_functional_call):
                    continue  # it gives the model other parameters for this call
                changed = "has another shape" if number == id(param) else "was replaced"
                raise ArgumentError(
                    f"disk_offload: {name} {changed}: {tuple(shape)} before, {tuple(param.shape)} now; change the "
                    "model before you offload it"
                )
            if id(param) in self._names:
                self._hook(param)

    def _adds_to_gradients(self) -> bool:
        """Return whether gradients wait for an update: then this batch belongs to the same step as the last batch."""
        waiting = self._waiting()
        return waiting is not None and waiting.grad is not None

    def _before_adding(self, reference: "weakref.ref[Any]", incoming: Any) -> None:
        """Before backward adds to a parameter's gradient: have in RAM what PyTorch's C++ code reads.

        It adds to the gradient that is there. A new gradient gets the strides of the parameter.
        """
        param = reference()
        if param is None:
            return
        backward = _running_backward()
        if backward not in self._thread.adding:
            self._begin_backward(backward)
        self._let_go(backward)  # what autograd.grad() was about to return, it does not add to a gradient
        needed = [param.grad] if isinstance(param.grad, OffloadedTensor) else []
        self._thread.given = None if needed else param.grad
        if isinstance(param, OffloadedTensor) and not param._stored.is_contiguous:
            needed.append(param)
        for tensor in needed:
            tensor._stored.open(tensor, is_changing=tensor is not param)
            self._thread.adding[backward].append(tensor)

    def _begin_backward(self, backward: int) -> None:
        if backward > self._thread.newest and not _is_nested():
            self._end_failed()
        self._thread.newest = max(self._thread.newest, backward)
        self._thread.adding[backward] = []
        torch.autograd.Variable._execution_engine.queue_callback(functools.partial(self._end_backward, backward))

    def _end_failed(self) -> None:
        """Forget the backwards of this thread before; those that ended with an error did not call `_end_backward`."""
        for backward in list(self._thread.adding):
            self._let_go(backward)
            del self._thread.adding[backward]
        self._updated = set()

    def _let_go(self, backward: int) -> None:
        tensors = self._thread.adding.get(backward)
        while tensors:
            tensor = tensors.pop()
            tensor._stored.close(tensor)

    def _after_adding(self, param: Any) -> None:
        """After backward has added to a parameter's gradient: update the parameter, or move the gradient to the store.

        Raises GraphError if backward adds to the gradient again after the update.
        """
        backward = _running_backward()
        if backward in self._thread.adding:
            self._let_go(backward)
        release_if_due()
        self.residents.store.begin_phase("backward")
        optimizer = self._optimizer() if self._step_in_backward else None
        group = None if optimizer is None else self._groups.of(optimizer, param)
        if optimizer is None or group is None:
            self._put_gradient_away(param)
            if self._optimizer() is not None:
                self._waiting = weakref.ref(param)
        elif self._max_grad_norm is None:
            if id(param) in self._updated:
                raise GraphError(
                    f"disk_offload: {self._names[id(param)]} got another gradient after backward had updated it: a "
                    "backward runs inside this one, as checkpoint(use_reentrant=True) runs one; give "
                    "use_reentrant=False, or step_in_backward=False"
                )
            optimizer.update_parameter(param, group)
            param.grad = None
            self._updated.add(id(param))
            self._is_new_step = True
            self.residents.return_changed()
        else:
            if _is_nested():
                raise GraphError(
                    f"disk_offload: {self._names[id(param)]} got its gradient in a backward that runs inside another "
                    "one, as checkpoint(use_reentrant=True) runs one, so that the norm of all gradients is not known "
                    "when it ends; give use_reentrant=False, or step_in_backward=False"
                )
            self._put_gradient_away(param)

    def _end_backward(self, backward: int) -> None:
        self._let_go(backward)
        self._thread.adding.pop(backward, None)
        self._thread.given = None
        if self._step_in_backward and self._max_grad_norm is not None:
            self._update_all()
        if not _is_nested():
            self._end_updates()

    def _end_updates(self) -> None:
        optimizer = self._optimizer()
        if optimizer is not None:
            optimizer.end_updates()

    def _update_all(self) -> None:
        """Update all parameters that have a gradient, and free the gradients."""
        optimizer = self._optimizer()
        if optimizer is None:
            return
        with self.around_step():
            self._uses_up = True
            for param, group in members(optimizer):
                if param.grad is not None:
                    optimizer.update_parameter(param, group)
                    param.grad = None

    def _put_gradient_away(self, param: Any) -> None:
        grad = param.grad
        given, self._thread.given = self._thread.given, None
        if is_plain(grad) and not grad.requires_grad and not (grad is given and grad._is_view()):
            norm = None if self._max_grad_norm is None else torch.linalg.vector_norm(grad, 2.0)
            offload_tensor(self.residents, grad, Label("gradient", None, self._names[id(param)]))
            if isinstance(grad, OffloadedTensor):
                grad._stored.norm = norm
        self.residents.return_changed()

    @contextlib.contextmanager
    def around_step(self) -> Iterator[None]:
        model = self._model()
        if self._max_grad_norm is not None and model is not None:
            grads = [param.grad for param in model.parameters() if param.grad is not None]
            if grads:
                self._total_norm = torch.nn.utils.get_total_norm(grads, 2.0)
                self.grad_norm = float(self._total_norm)
        try:
            yield
        finally:
            self._total_norm = None
            self._uses_up = False
            self._waiting = lambda: None
            self._is_new_step = True

    @contextlib.contextmanager
    def around_update(self, param: Any, group: dict[str, Any]) -> Iterator[None]:
        optimizer = self._optimizer()
        is_first = optimizer is not None and not optimizer.state.get(param)
        made_bytes = updated_state_bytes_of(optimizer, param, group) if is_first else 0
        with self._clipped(param), contextlib.ExitStack() as undo:
            self.residents.enter(id(param))
            undo.callback(self.residents.leave, id(param))
            self.residents.store.begin_phase("update")
            undo.callback(self.residents.store.begin_phase, "backward" if _running_backward() else None)
            for tensor in (param, param.grad):
                if isinstance(tensor, OffloadedTensor):
                    tensor._stored.open(tensor, is_changing=tensor is param)
                    undo.callback(tensor._stored.close, tensor)
            undo.enter_context(self.residents.store.room(made_bytes))
            yield

    @contextlib.contextmanager
    def _clipped(self, param: Any) -> Iterator[None]:
        """Give a parameter a clipped copy of its gradient for the ``with`` block, if gradients are clipped.

        If the updates are the last use of the gradients, the gradient is freed before.
        """
        if self._total_norm is None:
            yield
            return
        grad = param.grad
        with self.residents.store.room(grad.nbytes):
            param.grad = grad.clone()
            torch.nn.utils.clip_grads_with_norm_([param], self._max_grad_norm, self._total_norm)
            if self._uses_up:
                grad = None
            try:
                yield
            finally:
                param.grad = grad


def _running_backward() -> int:
    """Return the number of the backward that this thread runs, which is not 0; 0 if it runs none."""
    return int(torch._C._current_graph_task_id()) + 1


def _calls(function: Any) -> bool:
    """Return whether this thread is in a call of a function of Python."""
    frame = sys._getframe()
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None


_COMPILED_CALL = torch._dynamo.eval_frame.__file__


def _runs_compiled() -> bool:
    """Return whether this thread is in a call that torch.compile has compiled."""
    frame = sys._getframe(2)  # the caller's caller: what compiled code calls is not compiled itself
    while frame is not None:
        if frame.f_code.co_name == "compile_wrapper" and frame.f_code.co_filename == _COMPILED_CALL:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


_CALL = torch.nn.Module._call_impl.__code__


def _is_running(module: int) -> bool:
    """Return whether a module, given by its id, is being called by this thread, besides the innermost call."""
    frame, calls = sys._getframe(), 0
    while frame is not None:
        if frame.f_code is _CALL:
            if calls and id(frame.f_locals["self"]) == module:
                return True
            calls += 1
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _is_nested() -> bool:
    """Return whether the backward that this thread runs was called within another backward."""
    frame, found = sys._getframe(), 0
    while frame is not None and found < 2:
        found += frame.f_code is _engine_run_backward.__code__
        frame = frame.f_back  # type: ignore[assignment]
    return found == 2
