"""The hooks by which an offloaded model is trained: around modules, after gradients, and around updates."""

import collections
import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np

from spillgrad.autograd.core.engine import Run, outermost_run
from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.autograd.core.node import HookDict, OwnHook, RemovableHandle
from spillgrad.errors import ArgumentError, GraphError
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.nn.utils import clip_grad
from spillgrad.optim.optimizer import Group, Optimizer, State, StepContext
from spillgrad.spill.offload.needs import Framework, GroupFinder, members
from spillgrad.spill.offload.pieces import PiecedStorage, PiecingResidents, piece_elements, pieces_of, raised_at_end
from spillgrad.spill.offload.tables import checksum_bytes_of, tables_of
from spillgrad.spill.offload.tensors import Offloaded, OffloadedPart, OffloadedStorage, OffloadedTensor, TensorResidents
from spillgrad.storage.store import Label
from spillgrad.tensor import Tensor
from spillgrad.tensor_data import Storage


class OffloadedTraining(StepContext):
    """The hooks on a model, its parameters and its optimizer. The hooked objects keep this alive, not vice versa."""

    who = "disk_offload"

    def __init__(self, residents: TensorResidents, step_in_backward: bool, max_grad_norm: float | None) -> None:
        self.residents = residents
        self.grad_norm: float | None = None
        self._step_in_backward = step_in_backward
        self._max_grad_norm = max_grad_norm
        self._optimizer: Callable[[], Optimizer | None] = lambda: None
        self._handles: list[RemovableHandle] = []
        self._names: dict[int, str] = {}
        self._groups = GroupFinder()
        self._factor: float | None = None  # scales the gradients during the updates of one step
        self._uses_up = False  # whether those updates are the last use of the gradients
        self._waiting: Callable[[], Tensor | None] = lambda: None  # the last parameter with a waiting gradient
        # For each outermost backward that is running, the parameters that got their gradient in it.
        self._finished: weakref.WeakKeyDictionary[Run, dict[int, Tensor]] = weakref.WeakKeyDictionary()

    def take_model(self, model: Module) -> None:
        """Offload parameters and buffers, and add hooks to modules and parameters."""
        tensors = [*model.named_parameters(), *model.named_buffers()]
        owners: dict[Storage, str] = {}
        for name, tensor in tensors:
            other = owners.setdefault(tensor.storage, name)
            if other != name:
                raise ArgumentError(f"{self.who}: {name} and {other} share memory; clone() one, or register one tensor")
        for name, tensor in tensors:
            self._names[id(tensor)] = name
            label = Label("parameter", None, name)
            if isinstance(tensor, Offloaded):  # it was offloaded while the model was built
                tensor._storage.relabel(label)
                self.residents.split(tensor, label)
            else:
                if tensor.array is not tensor.storage.array:  # a view of larger memory
                    tensor.data = tensor.detach().clone()
                self.residents.offload(tensor, label)
            if isinstance(tensor, Parameter):  # also a frozen one
                hooks = tensor.__dict__.setdefault("_post_accumulate_hooks", HookDict())
                self._handles.append(hooks.add(self._accumulated))
        for table in tables_of(model):
            if isinstance(table._storage, OffloadedStorage):
                table._storage.is_table = True
        residents = self.residents
        for module in model.modules():
            enter = OwnHook(functools.partial(self._enter, begins_step=module is model))
            leave = OwnHook(lambda module, args, kwargs, result: residents.leave(id(module)))
            self._handles += [
                module.register_forward_pre_hook(enter, with_kwargs=True),
                module.register_forward_hook(leave, with_kwargs=True, always_call=True),
            ]

    def take_optimizer(self, optimizer: Optimizer) -> None:
        """Offload the state of an optimizer, and become its `step_context`, which surrounds each parameter's update."""
        self._optimizer = weakref.ref(optimizer)
        optimizer.step_context = self
        for param, _ in members(optimizer):
            self._put_state_away(optimizer, param)
            if isinstance(param._storage, OffloadedStorage):
                param._storage.updated_elements = piece_elements(optimizer, param)
            if self._step_in_backward and (self._max_grad_norm is not None or id(param) in self._names):
                param._updated_in_backward = True

    def _enter(self, module: Module, args: object, kwargs: object, begins_step: bool) -> None:
        self.residents.enter(id(module), begins_step and not self._adds_to_gradients())

    def _adds_to_gradients(self) -> bool:
        """Return whether gradients wait for an update: then this batch belongs to the same step as the last batch."""
        waiting = self._waiting()
        return waiting is not None and waiting.grad is not None

    def _accumulated(self, param: Tensor) -> None:
        """After backward has added to a parameter's gradient: update the parameter, or move the gradient to the store.

        Raises GraphError if backward adds to the gradient again after the update.
        """
        self.residents.store.begin_phase("backward")
        optimizer = self._optimizer() if self._step_in_backward else None
        group = None if optimizer is None else self._groups.of(optimizer, param)
        if optimizer is None or group is None:
            self._put_gradient_away(param)
            self._wait_for_update(param)
            return
        run = outermost_run()
        finished = {} if run is None else self._finished.setdefault(run, {})
        if self._max_grad_norm is None:
            if id(param) in finished:
                raise GraphError(
                    f"disk_offload: {self._names[id(param)]} got another gradient after backward had updated it: a "
                    "backward runs inside this one, in a custom function or hook; give max_grad_norm=math.inf, which "
                    "puts updates off to the end of the outer one"
                )
            optimizer.step_parameter(param, group)
            param.grad = None
            self.residents.return_changed()
        else:
            self._put_gradient_away(param)
            if run is None:
                self._update_all()
            elif not finished:
                run.at_end.append(self._update_all)
        finished[id(param)] = param

    def _wait_for_update(self, param: Tensor) -> None:
        """Remember a parameter whose gradient waits for an update by the optimizer."""
        if self._optimizer() is not None:
            self._waiting = weakref.ref(param)

    def _update_all(self) -> None:
        """Update all parameters that have a gradient, and free the gradients."""
        optimizer = self._optimizer()
        if optimizer is None:
            return
        with no_grad(), self.around_step():
            self._uses_up = True
            for param, group in members(optimizer):
                optimizer.step_parameter(param, group)
                param.grad = None

    def _put_gradient_away(self, param: Tensor) -> None:
        grad = param.grad
        if grad is not None:
            if not isinstance(grad, Offloaded) and grad.array is not grad.storage.array:
                param.grad = grad = grad.detach().clone()
            norm = None if self._max_grad_norm is None else _norm(grad)
            label = Label("gradient", None, self._names[id(param)])
            self.residents.offload_in_pieces(grad, self._piece_elements(param), label)
            if isinstance(grad, OffloadedTensor):
                grad._storage.norm = norm
        self.residents.return_changed()

    @contextlib.contextmanager
    def around_step(self) -> Iterator[None]:
        optimizer = self._optimizer()
        if optimizer is not None and self._max_grad_norm is not None:
            norms = self._norms(optimizer)
            if norms:
                self.grad_norm = clip_grad.total_norm(norms)
                self._factor = clip_grad.factor(self.grad_norm, self._max_grad_norm)
        try:
            yield
        finally:
            self._factor = None
            self._uses_up = False
            self._waiting = lambda: None

    def _norms(self, optimizer: Optimizer) -> list[float]:
        """Return the norm of each gradient."""
        return [_norm(param.grad) for param, _ in members(optimizer) if param.grad is not None]

    def _piece_elements(self, param: Tensor) -> int:
        """Return how many elements of a parameter are updated at once; 0 for all."""
        return piece_elements(self._optimizer(), param)

    def gradient(self, param: Tensor) -> Tensor | None:
        grad = param.grad
        if grad is None or self._factor is None:
            return grad
        if self._uses_up:
            param.grad = None  # freed with the update: no caller may see it scaled, and it need not be written
        if isinstance(grad._storage, PiecedStorage):
            return grad  # each piece is scaled when it is used
        if not self._uses_up:
            grad = grad.detach().clone()
        clip_grad.scale([grad], self._factor)
        return grad

    def pieces(self, param: Tensor, grad: Tensor, state: State) -> Iterator[tuple[Tensor, Tensor, State]]:
        count, optimizer, residents = self._piece_elements(param), self._optimizer(), self.residents
        can_cut = count and isinstance(param, Offloaded)
        if isinstance(param, Offloaded):
            param._storage.hold_planes()
        if not can_cut or optimizer is None or not isinstance(residents, PiecingResidents):
            yield from super().pieces(param, grad, state)
            return
        self._put_state_away(optimizer, param)  # what was loaded is cut
        wholes = {
            key: value
            for key, value in state.items()
            if isinstance(value, Tensor) and value.shape == optimizer.state_shape(key, param)
        }
        cut = {
            key: found
            for key, value in wholes.items()
            if (found := pieces_of(value, count // optimizer.elements_each(key))) is not None
        }
        if len(cut) < len(wholes):  # somebody uses a whole array of state, or it is of a kind that is not cut
            yield from super().pieces(param, self._scaled(grad) if _is_in_pieces(grad) else grad, state)
            return
        of_grad = pieces_of(grad, count)
        made: dict[str, list[Tensor]] = collections.defaultdict(list)
        of_param = pieces_of(param, count)
        # A view of it, which is updated, does not keep it from being stored.
        whole = (
            param._storage.array if of_param is None else cast(PiecedStorage, param._storage).begin_change_of_pieces()
        )
        with raised_at_end() as errors:
            for number, start in enumerate(range(0, param.numel(), count)):
                part = OffloadedPart.of(param, slice(start, start + count))
                before = {key: cut[key][number] if key in cut else value for key, value in state.items()}
                after = dict(before)
                residents.enter(id(after))
                try:
                    piece = grad.detach().reshape(-1)[start : start + count] if of_grad is None else of_grad[number]
                    own = part if of_param is None else of_param[number]
                    cast(OffloadedStorage, own._storage).hold_planes()
                    yield own, self._scaled(piece) if _is_in_pieces(grad) else piece, after
                    del piece
                finally:
                    with errors.postponed():
                        residents.leave(id(after))
                for key, value in after.items():
                    is_made = isinstance(value, Tensor) and value is not before.get(key)
                    if is_made and value.shape == optimizer.state_shape(key, part):
                        made[key].append(value)
                        with errors.postponed():  # else the state would be lost, of which a part was used
                            residents.offload(value, self._state_label(key, param))
                with errors.postponed():
                    residents.return_changed()
            del whole
            state |= {key: value for key, value in after.items() if key not in cut and key not in made}
            labels = {key: self._state_label(key, param) for key in made}
            shapes = {key: optimizer.state_shape(key, param) for key in made}
            state |= {key: residents.joined(some, shapes[key], labels[key]) for key, some in made.items()}

    def _scaled(self, grad: Tensor) -> Tensor:
        """Return a gradient that is in pieces, or a piece of it, as it is or scaled."""
        if self._factor is None:
            return grad
        grad = grad.detach().clone()
        clip_grad.scale([grad], self._factor)
        return grad

    @contextlib.contextmanager
    def around_update(self, param: Tensor) -> Iterator[None]:
        optimizer = self._optimizer()
        self.residents.enter(id(param))
        self.residents.store.begin_phase("update")
        try:
            made_bytes = self._made_in_update(optimizer, param)
            with self.residents.store_of(param.device).room(made_bytes) if made_bytes else contextlib.nullcontext():
                yield
        finally:
            self.residents.store.begin_phase(None if outermost_run() is None else "backward")
            self.residents.leave(id(param))
        if optimizer is not None:
            self._put_state_away(optimizer, param)

    def _made_in_update(self, optimizer: Optimizer | None, param: Tensor) -> int:
        """Return the bytes that a parameter's update allocates: a scaled gradient, and state in the first update."""
        group = None if optimizer is None else self._groups.of(optimizer, param)
        if optimizer is None or group is None or param.grad is None:
            return 0
        is_in_pieces = isinstance(param.grad._storage, PiecedStorage)
        is_copied = self._factor is not None and (is_in_pieces or not self._uses_up)
        scaled_bytes = updated_bytes_of(optimizer, param, param.grad.nbytes) if is_copied else 0
        return scaled_bytes + (0 if optimizer.state.get(param) else updated_state_bytes_of(optimizer, param, group))

    def _put_state_away(self, optimizer: Optimizer, param: Tensor) -> None:
        for key, value in optimizer.state.get(param, {}).items():
            if isinstance(value, Tensor):
                is_cut = value.shape == optimizer.state_shape(key, param)
                count = piece_elements(optimizer, param) // optimizer.elements_each(key) if is_cut else 0
                self.residents.offload_in_pieces(value, count, self._state_label(key, param))
        self.residents.return_changed()

    def _state_label(self, key: str, param: Tensor) -> Label:
        return Label("state", key, self._names.get(id(param)))


def _is_in_pieces(value: Any) -> bool:
    return isinstance(value, Tensor) and isinstance(value._storage, PiecedStorage)


def _norm(grad: Tensor) -> float:
    known = grad._storage.norm if isinstance(grad, OffloadedTensor) else None
    if known is not None:
        return known
    pieces = pieces_of(grad)
    if pieces is None:
        return clip_grad.norm(grad)
    each = cast(PiecedStorage, grad._storage).each(pieces)
    return clip_grad.norm_of_squares(np.concatenate([clip_grad.squares(piece) for piece in each]))


def state_bytes_of(optimizer: Optimizer, param: Tensor, group: Group) -> int:
    """Return the bytes of a parameter's state, including state that its first update will make."""
    there = [value.nbytes for value in optimizer.state.get(param, {}).values() if isinstance(value, Tensor)]
    expected = optimizer.state_bytes(param, group) if param.requires_grad else 0
    return max(sum(there), expected)


def updated_bytes_of(optimizer: Optimizer, param: Tensor, nbytes: int) -> int:
    """Return the bytes of a parameter's gradient or state, of `nbytes`, that an update needs at once."""
    count = piece_elements(optimizer, param)
    return -(-nbytes * count // param.numel()) if count else nbytes


def updated_state_bytes_of(optimizer: Optimizer, param: Tensor, group: Group) -> int:
    """Return the bytes of a parameter's state that an update needs at once."""
    return updated_bytes_of(optimizer, param, state_bytes_of(optimizer, param, group))


def is_in_place(tensor: Tensor) -> bool:
    """Return whether an offloaded tensor is read from a file that is not of the store."""
    storage = tensor._storage
    return isinstance(storage, OffloadedStorage) and storage.is_read_in_place


FRAMEWORK = Framework(
    Module, state_bytes_of, updated_state_bytes_of, updated_gradient_bytes_of=updated_bytes_of, is_in_place=is_in_place,
    checksum_bytes_of=checksum_bytes_of,
)  # fmt: skip
