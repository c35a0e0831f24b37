"""Optimizers of PyTorch whose state lives on disk; the state of the parameter being updated is in RAM."""

import collections
import contextlib
import functools
import os
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import torch

from spillgrad.errors import ArgumentError, OperandError
from spillgrad.interop.torch.memory import is_plain, layout_of
from spillgrad.interop.torch.stored_tensor import StoredTensor
from spillgrad.spill.offload.residents import Residents
from spillgrad.storage.sizes import parse_bytes
from spillgrad.storage.store import Label
from spillgrad.storage.store_owner import MIN_BYTES, StoreOwner


class _State:
    """A parameter's state between two steps, by key; a tensor that a caller reads stays in RAM until the next step.

    It has a mapping's methods, but is no Mapping, because Lightning moves the tensors of mappings to a device.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self.values_there = values

    def __getitem__(self, key: str) -> Any:
        value = self.values_there[key]
        if isinstance(value, StoredTensor):
            value = self.values_there[key] = value.copy()
        return value

    def __setitem__(self, key: str, value: Any) -> None:
        self.values_there[key] = value

    def __delitem__(self, key: str) -> None:
        del self.values_there[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_there)

    def __len__(self) -> int:
        return len(self.values_there)

    def __repr__(self) -> str:
        return f"<state on disk: {', '.join(map(str, self.values_there))}>"

    __contains__, get = MutableMapping.__contains__, MutableMapping.get
    keys, values, items = MutableMapping.keys, MutableMapping.values, MutableMapping.items
    pop, setdefault, update = MutableMapping.pop, MutableMapping.setdefault, MutableMapping.update


class OffloadedOptimizer(StoreOwner):
    """The methods that `disk_offload_optimizer` adds to an optimizer.

    The optimizer's new class derives from this and its former class. Between steps, `state` has a mapping for each
    parameter. The mapping reads a tensor from the store when a caller asks for the tensor.
    """

    param_groups: list[dict[str, Any]]
    state: Any
    _min_bytes: int
    _residents: Residents

    def state_dict(self) -> Any:
        """Return the state dict of the original optimizer class, with copies of all tensors in RAM.

        Returns
        -------
        dict
            As PyTorch's `state_dict` returns it.
        """
        on_disk = self.state
        self.state = collections.defaultdict(dict)
        try:
            for param, state in on_disk.items():
                is_ones = isinstance(param, torch.Tensor)
                self.state[param] = (
                    {key: _copied(value) for key, value in _as_they_are(state).items()} if is_ones else state
                )
            return super().state_dict()  # type: ignore[misc]
        finally:
            self.state = on_disk

    def load_state_dict(self, state_dict: Any) -> None:
        """Load a state dict, and move the state to the store.

        Parameters
        ----------
        state_dict : dict
            What `state_dict` returned; it may come from an optimizer in RAM.
        """
        super().load_state_dict(state_dict)  # type: ignore[misc]
        self._put_all_away()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise OperandError(
            "disk_offload_optimizer: cannot be copied or pickled, as its files are those of this process; copy or "
            "pickle state_dict(), which is in RAM"
        )

    def _update_one_by_one(self, update: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Do a step: call `update`, the original `step`, for each parameter as if the optimizer had no other parameter.

        Return the loss that the closure returns, if one is given.
        """
        self._opt_called = True  # learning rate schedulers read this
        closure, loss = args[0] if args else kwargs.pop("closure", None), None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
            args = (None, *args[1:])
        self._store.begin_step()
        self._store.begin_phase("update")
        groups = self.param_groups
        try:
            for group in groups:
                alone: dict[str, Any] = {}
                for param in group["params"]:
                    if param.grad is not None:
                        # A copy of the group: if an optimizer counts steps in the group, this step must count once.
                        alone = {**group, "params": [param]}
                        self.param_groups = [alone]
                        with self._state_in_ram(param):
                            update(self, *args, **kwargs)
                group.update({key: value for key, value in alone.items() if key != "params"})
        finally:
            self.param_groups = groups
            self._store.begin_phase(None)
        return loss

    @contextlib.contextmanager
    def _state_in_ram(self, param: Any) -> Iterator[None]:
        stored: dict[str, StoredTensor] = {}
        if param in self.state:
            values = dict(_as_they_are(self.state[param]))
            for key, value in values.items():
                if isinstance(value, StoredTensor):
                    stored[key] = value
                    values[key] = value.lend_tensor()
            self.state[param] = values
        try:
            yield
        finally:
            self._put_away(param, stored)

    def _put_away(self, param: Any, stored: dict[str, StoredTensor]) -> None:
        """Move the large tensors of a parameter's state to the store; `stored` has those that were lent, by key."""
        if param not in self.state:
            return
        # In place: a tensor taken back must have no other reference, and a tensor that the store refuses stays in RAM.
        values = _as_they_are(self.state[param])
        self.state[param] = _State(values)
        for key in list(values):
            known, value = stored.get(key), values[key]
            if known is not None and value is known.lent:
                values[key] = known
                del value
                known.take_back()
                continue
            is_large = isinstance(value, torch.Tensor) and is_plain(value)
            if is_large and layout_of(value).span_bytes >= max(1, self._min_bytes):
                values[key] = StoredTensor(self._residents, value, Label("state", str(key)))
        self._residents.return_changed(with_last=True)

    def _put_all_away(self) -> None:
        for param in list(self.state):
            if isinstance(param, torch.Tensor):
                self._put_away(param, {})


def disk_offload_optimizer(
    optimizer: Any,
    directory: str | os.PathLike[str] | None = None,
    *,
    ram_budget: int | str,
    min_bytes: int | str = MIN_BYTES,
    direct_io: bool | None = None,
    checksums: bool = True,
    on_full: str = "raise",
    keep_journal: str | os.PathLike[str] | None = None,
) -> Any:
    """Keep the state of a PyTorch optimizer on disk, with at most `ram_budget` bytes of it in RAM.

    The state of the parameter that is being updated comes on top of the budget. Results are the same, bit for bit, also
    with `foreach` and `fused`.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        The optimizer, which may have a state already.
    directory : str or path, optional
        Folder for the files, which is made if it does not exist. By default, a folder of this user in the directory for
        temporary files.
    ram_budget : int or str
        The most bytes of state in RAM, or a size such as "512MiB".
    min_bytes : int or str, default 4096
        Tensors of fewer bytes stay in RAM. Bytes, or a size.
    direct_io : bool, optional
        Whether to bypass the page cache, if the file system can. With None, a short measurement decides.
    checksums : bool, default True
        Whether to take a checksum of each array that is written, and to compare it when the array is read.
    on_full : {"raise", "ram"}, default "raise"
        What happens when the disk is full or reports an error: raise SpillError, or warn once and keep arrays in RAM
        beyond the budget until the disk accepts them again.
    keep_journal : str or path, optional
        File for the journal, which `spillgrad inspect` reads.

    Returns
    -------
    OffloadedOptimizer
        The same object. Its new class derives from its former class, so schedulers, gradient scalers and hooks go on
        working.

    Raises
    ------
    ArgumentError
        For an optimizer that updates all parameters together (LBFGS), is differentiable, is offloaded already, or has
        another `step` than its class.
    OperandError
        If `optimizer` is no PyTorch optimizer.
    BudgetError
        If a size does not parse.
    SpillError
        If the directory cannot be used.

    Notes
    -----
    ``step()`` updates one parameter after another. Once a step has shown the order, later steps read the state ahead of
    time. A closure is called once, before the updates.

    ``state_dict()`` returns copies of all tensors in RAM. ``load_state_dict()`` also takes the state dict of an
    optimizer in RAM. A tensor of `state` that is used between two steps stays in RAM until the next step. The optimizer
    itself cannot be copied or pickled. ``stats()``, ``flush()``, ``preflight()`` and `directory` are those of the
    store.

    Examples
    --------
    Saved tensors may share the store and its budget::

        optimizer = disk_offload_optimizer(torch.optim.AdamW(model.parameters()), "spill/", ram_budget="1GiB")
        with save_on_disk(optimizer):
            loss = model(x)
    """
    who = "disk_offload_optimizer"
    kind: Any = type(optimizer)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise OperandError(
            f"{who}: got {kind.__name__}; wanted an optimizer of torch.optim, or one that derives from it"
        )
    if isinstance(optimizer, OffloadedOptimizer):
        raise ArgumentError(f"{who}: the state of this {kind.__name__} is on disk already; offload an optimizer once")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ArgumentError(f"{who}: got LBFGS, which updates all parameters together; use another optimizer")
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise ArgumentError(f"{who}: got an optimizer with differentiable=True, whose state is part of a graph")
    if not hasattr(vars(optimizer).get("step"), "_wrapped_by_lr_sched") and "step" in vars(optimizer):
        raise ArgumentError(f"{who}: something has replaced step() of this {kind.__name__}; offload it before that")
    smallest = parse_bytes(min_bytes)
    # Hooks would not do: those before and after a step can neither run the step once per parameter nor return its loss.
    # The object stays the same, because schedulers, gradient scalers and callers hold it.
    optimizer.__class__ = _offloaded(kind)
    try:
        optimizer._open_store(
            who,
            directory,
            ram_budget,
            direct_io=direct_io,
            checksums=checksums,
            on_full=on_full,
            keep_journal=keep_journal,
        )
    except BaseException:
        optimizer.__class__ = kind
        raise
    vars(optimizer).pop("step", None)
    optimizer._min_bytes = smallest
    optimizer._residents = Residents(optimizer._store)
    optimizer._put_all_away()
    return optimizer


@functools.cache
def _offloaded(kind: Any) -> Any:
    """Return the class for offloaded optimizers of the class `kind`."""
    hooked: Any = kind.step
    update = hooked.__wrapped__ if getattr(hooked, "hooked", False) else hooked

    @functools.wraps(update)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._update_one_by_one(update, *args, **kwargs)

    around: Any = torch.optim.Optimizer.profile_hook_step(torch.compiler.disable(step))
    around.hooked = True
    around._wrapped_by_lr_sched = True  # schedulers would wrap it to set `_opt_called`
    return type(f"Offloaded{kind.__name__}", (OffloadedOptimizer, kind), {"step": around, "__doc__": kind.__doc__})


def _as_they_are(state: Any) -> Any:
    return state.values_there if isinstance(state, _State) else state


def _copied(value: Any) -> Any:
    if isinstance(value, StoredTensor):
        return value.copy()
    return value.clone() if isinstance(value, torch.Tensor) else value
