"""Optimizers of Paddle whose state lives on disk; what updates the present parameter is in RAM."""

import collections
import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import paddle
from paddle.nn.clip import ClipGradByGlobalNorm, ClipGradByNorm, ClipGradByValue

from spillgrad.errors import ArgumentError, OperandError
from spillgrad.interop.encoded_state import StateEncoding
from spillgrad.interop.paddle.clipping import ClipByFactor, factor_and_norm, is_clipped
from spillgrad.interop.paddle.frames import leave_stopped
from spillgrad.interop.paddle.needs import is_offloaded, members, updated_state_bytes_of
from spillgrad.interop.paddle.stored_parameter import opened
from spillgrad.interop.paddle.stored_tensor import StoredTensor, clear_memory, is_storable
from spillgrad.interop.paddle.training import OffloadedTraining
from spillgrad.spill.offload.encoded import StateStores

# Paddle's ways to update: one parameter after the other.
_STEPS = (paddle.optimizer.Optimizer.step, paddle.optimizer.Adam.step, paddle.optimizer.AdamW.step)
_MOMENTS = {"moment1": True, "moment2": False, "moment2_max": False}
# The optimizers whose state can have fewer bits, and which tensors of it may be negative.
ENCODABLE = {
    paddle.optimizer.Adam: _MOMENTS,
    paddle.optimizer.AdamW: _MOMENTS,
    paddle.optimizer.Momentum: {"velocity": True},
}


class OffloadedOptimizer:
    """The methods that `disk_offload` adds to an optimizer; the optimizer's new class derives from this and its former.

    Between updates the state's tensors have no memory. `_on_disk` has their memory, by the tensor's id.
    """

    _accumulators: Any
    _master_weights: dict[str, Any]
    _param_groups: Any
    _parameter_list: Any
    _grad_clip: Any
    _training: OffloadedTraining
    _clip_all: ClipGradByGlobalNorm | None
    _groups: dict[int, Any]  # by the id of the parameter; None if there are no groups
    _on_disk: dict[int, tuple[Any, StoredTensor]]

    def step(self) -> None:
        """Update all parameters that have a gradient, one after the other."""
        leave_stopped()
        store = self._training.residents.store
        store.begin_phase("update")
        try:
            for parameters, clip in self._clipped_together():
                factor = None
                if isinstance(clip, ClipGradByGlobalNorm):
                    factor, self._training.grad_norm = factor_and_norm(clip, self._gradients(parameters))
                for parameter in parameters:
                    self.update_parameter(parameter, factor)
        finally:
            store.begin_phase(None)

    def minimize(
        self, loss: Any, startup_program: Any = None, parameters: Any = None, no_grad_set: Any = None
    ) -> tuple[None, None]:
        """Do a step, as Paddle's `minimize` does after ``loss.backward()``; see `step`.

        Raises
        ------
        ArgumentError
            If `parameters` or `no_grad_set` is given.
        """
        if parameters or no_grad_set:
            raise ArgumentError(
                "minimize: got parameters or no_grad_set for an offloaded optimizer, which updates all that have a "
                "gradient; set stop_gradient of the others, or clear their gradients"
            )
        self.step()
        return None, None

    def state_dict(self) -> Any:
        """Return the state dict of the original optimizer class, with copies of all tensors in RAM.

        Returns
        -------
        dict
            As Paddle's `state_dict` returns it.
        """
        return {
            key: {name: self._copied(tensor) for name, tensor in value.items()}
            if key == "master_weights"
            else self._copied(value)
            for key, value in super().state_dict().items()  # type: ignore[misc]
        }

    def set_state_dict(self, state_dict: Any) -> None:
        """Load a state dict, and move the state to the store.

        Parameters
        ----------
        state_dict : dict
            What `state_dict` returned; it may come from an optimizer in RAM.
        """
        accumulators, self._accumulators = self._accumulators, collections.defaultdict(dict)
        try:
            super().set_state_dict(state_dict)  # type: ignore[misc]
        finally:
            self._accumulators = accumulators
        self._master_weights = dict(self._master_weights)
        loaded = [tensor for some in accumulators.values() for tensor in some.values()]
        for tensor in loaded:
            if tensor.name not in state_dict:
                raise OperandError(f"set_state_dict: the state dict has no {tensor.name}; give that of this optimizer")
            with self._in_ram([tensor]):
                tensor.set_value(state_dict[tensor.name])
        if loaded:
            self._accumulators_holder: dict[str, Any] = {}
        self._put_all_away()

    load_state_dict = set_state_dict

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise OperandError(
            "disk_offload: the optimizer cannot be copied or pickled, as its files are those of this process; copy or "
            "save state_dict(), which is in RAM"
        )

    def has(self, parameter: Any) -> bool:
        """Return whether a parameter is one of the optimizer's."""
        return id(parameter) in self._groups

    def state_formats(self) -> dict[str, str]:
        """Return the format of the state of each parameter: "float32", "bf16" or "int8".

        Returns
        -------
        dict
            The formats, by the name of the parameter. "float32" is for state that is stored as it is.
        """
        return {parameter.name: self._encoding.format_of(parameter) for parameter, _ in members(self)}

    def _take_state(
        self, training: OffloadedTraining, max_grad_norm: float | None, encoding: StateEncoding
    ) -> None:  # fmt: skip
        self._training, self._on_disk, self._encoding = training, {}, encoding
        self._stores = StateStores(training.residents.store)
        self._clip_all = None if max_grad_norm is None else ClipGradByGlobalNorm(max_grad_norm)
        self._find_groups()
        self._put_all_away()

    def _find_groups(self) -> None:
        self._groups = {id(parameter): group for parameter, group in members(self)}

    def _clipped_together(self) -> Iterator[tuple[list[Any], Any]]:
        """Yield parameters that are clipped together, and what clips them."""
        groups = self._param_groups
        if self._clip_all is not None or not isinstance(groups[0], dict):
            yield [parameter for parameter, _ in members(self)], self._clip_all or self._grad_clip
        else:
            for group in groups:
                yield group["params"], group["grad_clip"]

    def _gradients(self, parameters: list[Any]) -> Iterator[Any]:
        for parameter in parameters:
            if not parameter.stop_gradient and is_clipped(parameter):
                with self._gradient_in_ram(parameter, is_changing=False) as there:
                    if there:
                        yield parameter._grad_ivar()

    def update_parameter(self, parameter: Any, factor: Any = None) -> None:
        """Update one parameter, if it has a gradient, as if the optimizer had no other parameter.

        Parameters
        ----------
        parameter : paddle.Tensor
            The parameter.
        factor : paddle.Tensor, optional
            Scales the gradient first.
        """
        if parameter.stop_gradient:
            return
        residents = self._training.residents
        residents.enter(id(parameter))
        try:
            is_scaled = factor is not None and is_clipped(parameter)
            with self._gradient_in_ram(parameter, is_changing=is_scaled) as there:
                if there:
                    self._update_with(parameter, ClipByFactor(factor) if is_scaled else None)
        finally:
            residents.leave(id(parameter))
        self._put_away(parameter)

    def _update_with(self, parameter: Any, clip: Any) -> None:
        state = self._state_of(parameter)
        made = 0 if state or not is_offloaded(parameter) else updated_state_bytes_of(self, parameter)
        with contextlib.ExitStack() as undo:
            if made:
                undo.enter_context(self._training.residents.store.room(made))
            if is_offloaded(parameter):
                undo.callback(opened(parameter, is_changing=True).close)
            undo.enter_context(self._in_ram(state))
            undo.enter_context(self._alone(parameter, clip))
            super().step()  # type: ignore[misc]

    @contextlib.contextmanager
    def _alone(self, parameter: Any, clip: Any) -> Iterator[None]:
        """Context manager: the optimizer has only `parameter`, and `clip` instead of a clip by global norm."""
        given = self._param_groups, self._parameter_list, self._grad_clip
        if not self.has(parameter):  # one of a group that was added later
            self._find_groups()
        group = self._groups[id(parameter)]
        clips = given[2] if group is None else group["grad_clip"]
        if clip is not None or isinstance(clips, ClipGradByGlobalNorm):
            clips = clip
        alone = parameter if group is None else {**group, "params": [parameter], "grad_clip": clips}
        self._param_groups = self._parameter_list = [alone]
        self._grad_clip = clips
        try:
            yield
        finally:
            self._param_groups, self._parameter_list, self._grad_clip = given

    @contextlib.contextmanager
    def _gradient_in_ram(self, parameter: Any, is_changing: bool) -> Iterator[bool]:
        """Context manager: a parameter's gradient is in RAM; gives whether there is one."""
        stored = parameter._stored if is_offloaded(parameter) else None
        if stored is None or not stored.has_gradient:
            yield parameter._grad_ivar() is not None
            return
        if stored.gradient is None:
            stored.updating_gradient = paddle.zeros(parameter.shape, parameter.dtype)
        else:
            if is_changing:
                stored.gradient.begin_change()
            stored.updating_gradient = stored.gradient.tensor()
        try:
            yield True
        finally:
            stored.updating_gradient = None
            self._training.residents.return_changed(with_last=True)

    def _state_of(self, parameter: Any) -> list[Any]:
        return [tensor for _, tensor in self._named_state_of(parameter)]

    def _named_state_of(self, parameter: Any) -> list[tuple[str, Any]]:
        master = self._master_weights.get(parameter.name)
        names = [parameter.name] if master is None else [parameter.name, master.name]
        state = [(key, some[name]) for key, some in self._accumulators.items() for name in names if name in some]
        return state if master is None else [*state, ("master", master)]

    @contextlib.contextmanager
    def _in_ram(self, state: list[Any]) -> Iterator[None]:
        """Context manager: tensors of the state have their memory, for a change."""
        given = []
        try:
            for tensor in state:
                _, stored = self._on_disk.get(id(tensor), (None, None))
                if stored is not None:
                    stored.begin_change()
                    stored.give_to(tensor)
                    given.append(tensor)
            yield
        finally:
            for tensor in given:
                clear_memory(tensor)
            self._training.residents.return_changed(with_last=True)

    def _put_away(self, parameter: Any) -> None:
        """Move the tensors of a parameter's state to the store, except small ones."""
        residents = self._training.residents
        for key, tensor in self._named_state_of(parameter):
            if id(tensor) not in self._on_disk and is_storable(tensor):
                label = self._training.label(parameter, tensor.name.removeprefix(f"{parameter.name}_"))
                kind = self._encoding.kind_of(key, tensor.element_size(), parameter)
                stored = StoredTensor(residents, tensor, label, self._stores.of(kind))
                self._on_disk[id(tensor)] = tensor, stored
                clear_memory(tensor)
        residents.return_changed(with_last=True)

    def _put_all_away(self) -> None:
        self._training.residents.return_changed(with_last=True)
        for parameter, _ in members(self):
            self._put_away(parameter)
        live = {id(tensor) for parameter, _ in members(self) for tensor in self._state_of(parameter)}
        for key in self._on_disk.keys() - live:
            del self._on_disk[key]

    def _copied(self, value: Any) -> Any:
        if not isinstance(value, paddle.Tensor):
            return value
        _, stored = self._on_disk.get(id(value), (None, None))
        copy = value.clone() if stored is None else stored.copy()
        copy.name = value.name
        return copy


def require_optimizer(optimizer: Any) -> None:
    """Raise ArgumentError if `optimizer` is none whose parameters can be updated one after another."""
    kind = type(optimizer)
    if isinstance(optimizer, OffloadedOptimizer):
        raise ArgumentError(
            "disk_offload: the optimizer is that of another offload already; offload models that share one together, "
            "in a LayerList"
        )
    if kind.step not in _STEPS or "step" in vars(optimizer):
        raise ArgumentError(
            f"disk_offload: got {kind.__name__}, whose step() is its own, as it updates all parameters together; use "
            "an optimizer whose step() is Paddle's, such as SGD, Momentum, AdamW or Lamb"
        )
    if optimizer._use_multi_tensor:
        raise ArgumentError(
            f"disk_offload: got {kind.__name__} with use_multi_tensor=True, which updates all parameters together; "
            "leave it out: the results are the same"
        )
    for clip in clips_of(optimizer):
        if type(clip) not in (ClipGradByGlobalNorm, ClipGradByNorm, ClipGradByValue):
            raise ArgumentError(
                f"disk_offload: got {type(clip).__name__} as grad_clip; wanted ClipGradByGlobalNorm, ClipGradByNorm or "
                "ClipGradByValue of paddle.nn, whose sums are known"
            )


def clips_of(optimizer: Any) -> list[Any]:
    """Return what clips an optimizer's gradients."""
    groups = optimizer._param_groups
    clips = [group["grad_clip"] for group in groups] if isinstance(groups[0], dict) else [optimizer._grad_clip]
    return [clip for clip in clips if clip is not None]


def offload_optimizer(
    optimizer: Any, training: OffloadedTraining, max_grad_norm: float | None, encoding: StateEncoding
) -> None:  # fmt: skip
    """Change the class of an optimizer to the one for offloaded ones, and move its state to the store of `training`.

    If `max_grad_norm` is given, all gradients are clipped together. The state is stored as `encoding` says.
    """
    kind: Any = type(optimizer)
    optimizer.__class__ = _offloaded(kind)
    optimizer._take_state(training, max_grad_norm, encoding)


@functools.cache
def _offloaded(kind: Any) -> Any:
    """Return the class for offloaded optimizers of the class `kind`."""
    return type(kind.__name__, (OffloadedOptimizer, kind), {"__doc__": kind.__doc__, "__module__": kind.__module__})
