"""Optimizers of PyTorch whose state lives on disk; the state of the parameter being updated is in RAM."""

import collections
import contextlib
import functools
import os
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import torch

from spillgrad.errors import ArgumentError, OperandError
from spillgrad.interop.encoded_state import StateEncoding, encoding_for
from spillgrad.interop.torch.memory import is_plain, layout_of
from spillgrad.interop.torch.pieces import (
    Piece,
    StoredPieces,
    can_be_cut,
    piece_elements,
    pieces_of,
    stored_in_pieces,
)
from spillgrad.interop.torch.stored_tensor import StoredTensor
from spillgrad.optim.adam import Adam
from spillgrad.optim.sgd import SGD
from spillgrad.spill.offload.encoded import StateStores
from spillgrad.spill.offload.needs import members
from spillgrad.spill.offload.residents import Residents
from spillgrad.storage.sizes import parse_bytes
from spillgrad.storage.store import Label
from spillgrad.storage.store_owner import MIN_BYTES, StoreOwner

# The optimizers whose state can have fewer bits, and which tensors of it may be negative: as in `spillgrad.optim`.
ENCODABLE = {torch.optim.Adam: Adam.encodable, torch.optim.AdamW: Adam.encodable, torch.optim.SGD: SGD.encodable}


class _State:
    """A parameter's state between two steps, by key; a tensor that a caller reads stays in RAM until the next step.

    It has a mapping's methods, but is no Mapping, because Lightning moves the tensors of mappings to a device.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self.values_there = values

    def __getitem__(self, key: str) -> Any:
        value = self.values_there[key]
        if isinstance(value, StoredTensor | StoredPieces):
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


class StepContext:
    """What surrounds the updates of an offloaded optimizer: here, a step of the store."""

    def __init__(self, residents: Residents) -> None:
        self.residents = residents

    @contextlib.contextmanager
    def around_step(self) -> Iterator[None]:
        """Surround the updates of one step."""
        self.residents.store.begin_step()
        self.residents.store.begin_phase("update")
        try:
            yield
        finally:
            self.residents.store.begin_phase(None)

    @contextlib.contextmanager
    def around_update(self, param: Any, group: dict[str, Any]) -> Iterator[None]:
        """Surround the update of one parameter."""
        yield

    def label(self, param: Any, key: str) -> Label:
        """Return the label for the tensor `key` of a parameter's state."""
        return Label("state", key)


class OffloadedOptimizer(StoreOwner):
    """The methods that `disk_offload_optimizer` and `disk_offload` add to an optimizer.

    The optimizer's new class derives from this and its former class. Between steps, `state` has a mapping for each
    parameter. The mapping reads a tensor from the store when a caller asks for the tensor.
    """

    param_groups: list[dict[str, Any]]
    state: Any
    _kind: type
    _step_of_class: Callable[..., Any]
    _min_bytes: int
    _context: StepContext
    _encoding: StateEncoding

    def state_dict(self) -> Any:
        """Return the state dict of the original optimizer class, with copies of all tensors.

        Copies of tensors in the store are in files without a name, which the system reads as they are used.

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
                    {key: _copied(value) for key, value in as_they_are(state).items()} if is_ones else state
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
            "pickle state_dict()"
        )

    def state_formats(self) -> dict[Any, str]:
        """Return the format of the state of each parameter: "float32", "bf16" or "int8".

        Returns
        -------
        dict
            The formats, by parameter. "float32" is for state that is stored as it is.
        """
        return {param: self._encoding.format_of(param) for param, _ in members(self)}

    def _take_state(self, context: StepContext, min_bytes: int, encoding: StateEncoding) -> None:
        """Move the state to the store of `context`, except tensors of fewer than `min_bytes` bytes."""
        self._context, self._min_bytes, self._encoding = context, min_bytes, encoding
        self._stores = StateStores(context.residents.store)
        self._changed_groups: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._put_all_away()

    def _update_one_by_one(self, *args: Any, **kwargs: Any) -> Any:
        """Do a step: update each parameter as if the optimizer had no other parameter.

        Return the loss that the closure returns, if one is given.
        """
        self._opt_called = True  # learning rate schedulers read this
        closure, loss = args[0] if args else kwargs.pop("closure", None), None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
            args = (None, *args[1:])
        with self._context.around_step():
            for group in self.param_groups:
                for param in group["params"]:
                    if param.grad is not None:
                        self.update_parameter(param, group, *args, **kwargs)
            self.end_updates()
        return loss

    def update_parameter(self, param: Any, group: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Update one parameter of `group`. `end_updates` must follow the last update of a step.

        Parameters
        ----------
        param : torch.nn.Parameter
            The parameter, which has a gradient.
        group : dict
            The parameter's group in `param_groups`.
        *args, **kwargs : object
            What the `step` of the optimizer's class takes.
        """
        with self._context.around_update(param, group):
            count = piece_elements(self._kind, param)
            if count and can_be_cut(param.grad):
                self._update_in_pieces(param, count, group, *args, **kwargs)
            else:
                with self._state_in_ram(param):
                    self._update_alone(param, group, *args, **kwargs)

    def _update_alone(self, param: Any, group: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        # A copy of the group: if an optimizer counts steps in the group, this step must count once.
        alone = {**group, "params": [param]}
        groups, self.param_groups = self.param_groups, [alone]
        try:
            self._step_of_class(*args, **kwargs)
        finally:
            self.param_groups = groups
        del alone["params"]  # they hold memory
        self._changed_groups.append((group, alone))

    def _update_in_pieces(self, param: Any, count: int, group: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Update pieces of `count` elements each, one after another; state of the parameter's shape is kept in pieces.

        Each piece counts the step by itself, so other state is that of the last piece.
        """
        before = {
            key: value.copy() if isinstance(value, StoredPieces) and value.count != count else value
            for key, value in as_they_are(self.state.get(param, {})).items()
        }
        after: dict[str, Any] = {}
        for piece in pieces_of(param, count):
            if before:
                self.state[piece.param] = {key: _of_piece(value, piece, param.shape) for key, value in before.items()}
            self._context.residents.enter(id(piece.param))
            lent = self._lent(piece.param)
            try:
                self._update_alone(piece.param, group, *args, **kwargs)
            finally:
                self._put_away(piece.param, lent, piece_of=param)
                self._context.residents.leave(id(piece.param))
                values = as_they_are(self.state.pop(piece.param, {}))
            for key, value in values.items():
                if isinstance(value, StoredTensor):
                    known = before.get(key)
                    parts = known.pieces if isinstance(known, StoredPieces) else after.setdefault(key, [])
                    parts[piece.number : piece.number + 1] = [value]
                else:
                    after[key] = value
        torch.autograd.graph.increment_version(param)
        if before or after:
            self.state[param] = _State({
                key: StoredPieces(value, param.shape, count) if isinstance(value, list) else value
                for key, value in {**before, **after}.items()
            })  # fmt: skip

    def end_updates(self) -> None:
        """Let the groups have what the updates of a step changed in them, such as a count of steps."""
        for group, alone in self._changed_groups:
            group.update(alone)
        self._changed_groups = []

    @contextlib.contextmanager
    def _state_in_ram(self, param: Any) -> Iterator[None]:
        if param in self.state:
            values = {
                key: value.copy() if isinstance(value, StoredPieces) else value
                for key, value in as_they_are(self.state[param]).items()
            }
            self.state[param] = values
        lent = self._lent(param)
        try:
            yield
        finally:
            self._put_away(param, lent)

    def _lent(self, param: Any) -> dict[str, StoredTensor]:
        """Lend the optimizer the tensors of a parameter's state that are in the store; return them, by key."""
        lent = {}
        if param in self.state:
            values = self.state[param]
            lent = {key: value for key, value in values.items() if isinstance(value, StoredTensor)}
            for key, value in lent.items():
                values[key] = value.lend_tensor()
        return lent

    def _put_away(self, param: Any, lent: dict[str, StoredTensor], piece_of: Any = None) -> None:
        """Move the large tensors of a parameter's state to the store; `lent` has those that were lent, by key.

        Of the state of a piece, the tensors of the piece's shape are moved.
        """
        if param not in self.state:
            return
        # In place: a tensor taken back must have no other reference, and a tensor that the store refuses stays in RAM.
        values = as_they_are(self.state[param])
        self.state[param] = _State(values)
        count, owner = piece_elements(self._kind, param), param if piece_of is None else piece_of
        for key in list(values):
            known, value = lent.get(key), values[key]
            if known is not None and value is known.lent:
                values[key] = known
                del value
                known.take_back()
                continue
            if not isinstance(value, torch.Tensor) or not is_plain(value):
                continue
            label = self._context.label(owner, str(key))
            is_of_shape = value.shape == param.shape
            kind = self._encoding.kind_of(key, value.element_size(), owner) if is_of_shape else None
            store = self._stores.of(kind)
            if count and is_of_shape and value.is_contiguous():
                values[key] = stored_in_pieces(self._context.residents, value, count, label, store)
            elif is_of_shape if piece_of is not None else layout_of(value).span_bytes >= max(1, self._min_bytes):
                values[key] = StoredTensor(self._context.residents, value, label, store)
        self._context.residents.return_changed(with_last=True)

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
    state: str | None = None,
) -> Any:
    """Keep the state of a PyTorch optimizer on disk, with at most `ram_budget` bytes of it in RAM.

    The state of the parameter that is being updated comes on top of the budget. Unless `state` asks for fewer bits,
    results are the same, bit for bit, also with `foreach` and `fused`.

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
    state : {"float32", "bf16", "int8"}, optional
        The format in which the state of `Adam`, `AdamW` or `SGD` is stored, as for `disk_offload`; by default, float32.
        State of embeddings should stay exact, but which parameters they are is not known here: set ``exact_state =
        True`` of them first.

    Returns
    -------
    OffloadedOptimizer
        The same object. Its new class derives from its former class, so schedulers, gradient scalers and hooks go on
        working.

    Raises
    ------
    ArgumentError
        For an optimizer that updates all parameters together (LBFGS), is differentiable, is offloaded already, or has
        another `step` than its class; for a `state` that is no format, or that the optimizer does not have.
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

    ``state_dict()`` returns copies of all tensors, in files without a name, which the system reads as they are used.
    ``load_state_dict()`` also takes the state dict of an optimizer in RAM. A tensor of `state` that is used between two
    steps stays in RAM until the next step. The optimizer itself cannot be copied or pickled. ``stats()``, ``flush()``,
    ``preflight()`` and `directory` are those of the store.

    Examples
    --------
    Saved tensors may share the store and its budget::

        optimizer = disk_offload_optimizer(torch.optim.AdamW(model.parameters()), "spill/", ram_budget="1GiB")
        with save_on_disk(optimizer):
            loss = model(x)
    """
    who = "disk_offload_optimizer"
    smallest = parse_bytes(min_bytes)
    require_optimizer(who, optimizer)
    encoding = encoding_of(who, state, optimizer, least_bytes=smallest)
    with offloaded_class(who, optimizer):
        optimizer._open_store(
            who,
            directory,
            ram_budget,
            direct_io=direct_io,
            checksums=checksums,
            on_full=on_full,
            keep_journal=keep_journal,
        )
    optimizer._take_state(StepContext(Residents(optimizer._store)), smallest, encoding)
    return optimizer


def require_optimizer(who: str, optimizer: Any) -> None:
    """Raise ArgumentError or OperandError if `optimizer` is none whose parameters can be updated one after another."""
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


def encoding_of(who: str, state: str | None, optimizer: Any, **options: Any) -> StateEncoding:
    """Return the formats of an optimizer's state; see `encoding_for`, also for the options."""
    parameters = (param for param, _ in members(optimizer) if param.requires_grad)
    return encoding_for(
        who, state, optimizer, ENCODABLE, parameters, lambda param: param.dtype is torch.float32, **options
    )


@contextlib.contextmanager
def offloaded_class(who: str, optimizer: Any) -> Iterator[None]:
    """Give an optimizer the class for offloaded ones; after an error in the ``with`` block, its former class again.

    Raises the errors of `require_optimizer`.
    """
    require_optimizer(who, optimizer)
    # Hooks would not do: those before and after a step can neither run the step once per parameter nor return its loss.
    # The object stays the same, because schedulers, gradient scalers and callers hold it.
    kind: Any = type(optimizer)
    optimizer.__class__ = _offloaded(kind)
    try:
        yield
    except BaseException:
        optimizer.__class__ = kind
        raise
    vars(optimizer).pop("step", None)


@functools.cache
def _offloaded(kind: Any) -> Any:
    """Return the class for offloaded optimizers of the class `kind`."""
    update = without_hooks(kind.step)

    @functools.wraps(update)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._update_one_by_one(*args, **kwargs)

    around: Any = torch.optim.Optimizer.profile_hook_step(torch.compiler.disable(step))
    around.hooked = True
    around._wrapped_by_lr_sched = True  # schedulers would wrap it to set `_opt_called`
    methods = {"step": around, "_step_of_class": update, "_kind": kind, "__doc__": kind.__doc__}
    return type(f"Offloaded{kind.__name__}", (OffloadedOptimizer, kind), methods)


def without_hooks(step: Any) -> Any:
    """Return the `step` of a class of optimizers, without PyTorch's wrapper, which calls the hooks around steps."""
    return step.__wrapped__ if getattr(step, "hooked", False) else step


def as_they_are(state: Any) -> Any:
    """Return a parameter's state without reading what is in the store."""
    return state.values_there if isinstance(state, _State) else state


def _of_piece(value: Any, piece: Piece, shape: Any) -> Any:
    """Return what an entry of a parameter's state is for a piece of the parameter, which has this shape."""
    if isinstance(value, StoredPieces):
        return value.pieces[piece.number]
    if not isinstance(value, torch.Tensor):
        return value
    return value.view(-1)[piece.start : piece.stop] if value.shape == shape else value.clone()


def _copied(value: Any) -> Any:
    if isinstance(value, StoredTensor | StoredPieces):
        return value.copy_on_disk()
    return value.clone() if isinstance(value, torch.Tensor) else value
