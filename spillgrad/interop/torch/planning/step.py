"""A training step on tensors without values: what it saves and uses, and the memory and the work that it takes."""

import collections
import dataclasses
import math
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedOperatorException,
)
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from spillgrad.errors import ArgumentError
from spillgrad.interop.arrays import MIN_BYTES
from spillgrad.interop.torch.cross_entropy import LeanCrossEntropy
from spillgrad.interop.torch.memory import is_of_leaf, layout_of
from spillgrad.interop.torch.planning.shadow import Shadows, WithoutValues
from spillgrad.interop.torch.planning.speeds import Work
from spillgrad.interop.torch.state_sizes import state_bytes_of, updated_state_bytes_of
from spillgrad.spill.keep_or_spill import outcome_in_ram
from spillgrad.spill.offload.needs import members
from spillgrad.storage.residency.belady import PHASES, Event, Item

_aten = torch.ops.aten
# These read as many bytes of their first operand as they return.
_READING_PARTS = frozenset([_aten.embedding, _aten.index_select, _aten.gather, _aten.index])


class Moment:
    """The bytes in use after a function.

    `stored` are in the store. `shared` of them are in tensors that are used besides, which are among the bytes
    `beside` the store. `lent` of them are in use by backward.
    """

    __slots__ = ("beside", "lent", "shared", "stored")

    def __init__(self, beside: int, stored: int, shared: int, lent: int) -> None:
        self.beside, self.stored, self.shared, self.lent = beside, stored, shared, lent

    def bytes_within(self, budget_bytes: int) -> int:
        """Return the bytes in RAM if the store keeps at most `budget_bytes` of its bytes there."""
        # What a caller still uses is the newest of what was saved, and stays in RAM longest.
        return self.beside + max(self.lent, min(self.stored, budget_bytes) - self.shared)


@dataclasses.dataclass
class TracedStep:
    """What a step does.

    `items` and `events` are those of the store, `work` is by phase, `saved_bytes` are saved for backward,
    `resident_bytes` are of parameters and states that are not in the store.
    """

    items: list[Item]
    events: list[Event]
    moments: list[Moment]
    work: dict[str, Work]
    saved_bytes: int = 0
    resident_bytes: int = 0


class Trace(WithoutValues):
    """Sees each function of PyTorch that a step calls, as those who compute it do: below autograd and autocast.

    Parameters
    ----------
    shadows : Shadows
        Made the model.
    model : torch.nn.Module
        A model without values.
    optimizer : torch.optim.Optimizer
        An optimizer of its parameters.
    offloads : bool
        Whether a store holds the parameters, the gradients and the optimizer's state.
    updates_at_once : bool
        Whether backward updates each parameter as soon as it has the gradient.
    min_bytes : int
        Saved tensors of fewer bytes stay in RAM.
    """

    def __init__(
        self, shadows: Shadows, model: Any, optimizer: Any, offloads: bool, updates_at_once: bool, min_bytes: int
    ) -> None:
        super().__init__(shadows)
        self._model, self._optimizer = model, optimizer
        self._offloads, self._updates_at_once, self._min_bytes = offloads, updates_at_once, min_bytes
        self._phase = PHASES[0]
        self.step = TracedStep([], [], [], {phase: Work() for phase in PHASES})
        self._beside = self._stored = self._shared = self._lent = 0
        self._is_quiet = False
        self._counted: dict[int, int] = {}  # the bytes of each living storage, by address
        # Of a living storage's bytes after so many changes: the item, and how many of its bytes are counted here, too.
        self._saved: dict[tuple[int, int], tuple[int, int]] = {}
        self._lent_items: set[int] = set()  # those that backward uses
        self._holders: collections.Counter[int] = collections.Counter()  # of each saved item, the nodes that have it
        self._parameters: dict[int, int] = {}  # the item of a parameter's storage
        self._states: dict[int, list[int]] = {}  # the items of a parameter's state
        self._gradients: dict[int, int] = {}  # the item of a parameter's gradient
        self._optimized = {id(param) for param, _ in members(optimizer)}
        self._hooks: list[Any] = []
        self._take_parameters()

    def run(self, loss: Callable[[Any], Any]) -> TracedStep:
        """Run a step, and return what it did. Raises ArgumentError if it asks for values that there are not."""
        try:
            with self:
                self._run(loss)
        except (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException) as error:
            raise ArgumentError(
                f"plan: the model asks for values of a computed tensor, or for a shape that depends on them "
                f"({error.func}), and a plan computes no values; give disk_offload a small ram_budget instead: it says "
                "the least"
            ) from error
        finally:
            for hook in self._hooks:
                hook.remove()
        return self.step

    def _run(self, loss: Callable[[Any], Any]) -> None:
        with saved_tensors_hooks(self._pack, self._unpack), LeanCrossEntropy(_is_fake):
            value = loss(self._model)
        if not isinstance(value, torch.Tensor) or value.numel() != 1 or not value.requires_grad:
            got = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise ArgumentError(f"plan: the loss is {got}; wanted a tensor of one element that requires a gradient")
        self._phase = "backward"
        value.backward()
        del value
        self._phase = "update"
        if not self._offloads:
            self._optimizer.step()
        elif not self._updates_at_once:
            for param, _ in members(self._optimizer):
                if id(param) in self._gradients:
                    self._update(param)
        self._optimizer.zero_grad()

    def _take_parameters(self) -> None:
        """Note where parameters and states are: in the store if the model is offloaded, and if they are not small."""
        for param in self._model.parameters():
            self._counted[param.untyped_storage()._cdata] = 0
            if self._offloads and param.nbytes >= MIN_BYTES:
                self._parameters[param.untyped_storage()._cdata] = self._item(param.nbytes, is_persistent=True)
            else:
                self.step.resident_bytes += param.nbytes
            if self._offloads and param.requires_grad:
                self._hooks.append(param.register_post_accumulate_grad_hook(self._after_gradient))
        if not self._offloads:
            for state in tree_leaves([list(values.values()) for values in self._optimizer.state.values()]):
                if isinstance(state, torch.Tensor):
                    self._counted[state.untyped_storage()._cdata] = 0
                    self.step.resident_bytes += state.nbytes
            return
        for param, group in members(self._optimizer):
            nbytes = state_bytes_of(self._optimizer, param, group)
            at_once = updated_state_bytes_of(self._optimizer, param, group)
            if param.nbytes < MIN_BYTES:
                self.step.resident_bytes += nbytes
            elif nbytes:
                pieces = math.ceil(nbytes / max(1, at_once))
                self._states[id(param)] = [self._item(nbytes // pieces, is_persistent=True) for _ in range(pieces)]

    def _item(self, nbytes: int, is_persistent: bool = False) -> int:
        self.step.items.append(Item(nbytes, is_persistent))
        self._stored += nbytes
        return len(self.step.items) - 1

    def _note(self, kind: str, item: int) -> None:
        self.step.events.append(Event(kind, item, self._phase))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if not self._is_quiet:
            self._see(func, args, kwargs or {}, result)
        return result

    def _see(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Count a function's work and the memory of its results, and note the stored parameters that it uses."""
        results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if not results or func.is_view:
            return
        new_bytes = sum(map(self._count, results))
        operands = {id(leaf): leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        if not new_bytes and not func._schema.is_mutable:
            return  # it returns an operand, or memory that there was
        used = [_span_bytes(operand) for operand in operands.values()]
        for operand in operands.values():
            item = self._parameters.get(operand.untyped_storage()._cdata)
            if item is not None:
                self._note("use", item)
        if func.overloadpacket in _READING_PARTS and used:
            used[0] = min(used[0], new_bytes)
        work = Work(new_bytes=new_bytes, calls=1)
        flops = _flops(func.overloadpacket, args, kwargs, result)
        if flops:
            work.flops[results[0].dtype] = flops
        else:
            work.used_bytes = sum(used) + (0 if new_bytes else sum(map(_span_bytes, results)))
        self.step.work[self._phase].add(work)
        self.step.moments.append(Moment(self._beside, self._stored, self._shared, self._lent))

    def _count(self, tensor: Any, is_given: bool = False) -> int:
        """Count the memory of a tensor, unless it `is_given`; return its bytes, or 0 if they are counted already."""
        storage = tensor.untyped_storage()
        if storage._cdata in self._counted:
            return 0
        nbytes: int = 0 if is_given else storage.nbytes()
        self._counted[storage._cdata] = nbytes
        self._beside += nbytes
        weakref.finalize(storage, self._freed, storage._cdata).atexit = False
        return nbytes

    def _freed(self, address: int) -> None:
        self._beside -= self._counted.pop(address)
        for key in [key for key in self._saved if key[0] == address]:
            self._end_sharing(key)

    def _end_sharing(self, key: tuple[int, int]) -> None:
        self._shared -= self._saved.pop(key)[1]

    def _pack(self, tensor: Any) -> Any:
        """Do as `save_on_disk` does, without writing."""
        if tensor.layout is not torch.strided or is_of_leaf(tensor):
            return tensor.detach()
        layout, storage = layout_of(tensor), tensor.untyped_storage()
        if outcome_in_ram(layout.span_bytes, storage.nbytes(), self._min_bytes) is not None:
            return tensor.detach()
        key = storage._cdata, tensor._version
        if key not in self._saved:
            item = self._item(storage.nbytes())
            self.step.saved_bytes += storage.nbytes()
            self._note("put", item)
            self._count(tensor, is_given=True)  # a batch, or a buffer
            self._saved[key] = item, self._counted[storage._cdata]
            self._shared += self._counted[storage._cdata]
        return _Saved(self, self._saved[key][0], tensor)

    def _unpack(self, packed: Any) -> Any:
        if not isinstance(packed, _Saved):
            return packed
        self._note("use", packed.item)
        self._is_quiet = True
        try:
            tensor = packed.tensor(self._shadows)
        finally:
            self._is_quiet = False
        storage = tensor.untyped_storage()
        self._counted[storage._cdata] = 0  # it is the store's
        is_new = packed.item not in self._lent_items
        if is_new:
            self._lent_items.add(packed.item)
            self._lent += self.step.items[packed.item].nbytes
        weakref.finalize(storage, self._returned, storage._cdata, packed.item if is_new else None).atexit = False
        return tensor

    def _returned(self, address: int, item: int | None) -> None:
        self._freed(address)
        if item is not None:
            self._lent_items.discard(item)
            self._lent -= self.step.items[item].nbytes

    def hold(self, item: int) -> None:
        """Note that another node has a saved item."""
        self._holders[item] += 1

    def let_go(self, item: int) -> None:
        """Note that a node has a saved item no more."""
        self._holders[item] -= 1
        if not self._holders[item]:
            self._note("drop", item)
            self._stored -= self.step.items[item].nbytes
            for key in [key for key, saved in self._saved.items() if saved[0] == item]:
                self._end_sharing(key)

    def _after_gradient(self, param: Any) -> None:
        if self._updates_at_once and id(param) in self._optimized:
            self._update(param)
        elif param.grad.nbytes >= MIN_BYTES:
            item = self._gradients[id(param)] = self._item(param.grad.nbytes)
            self._note("put", item)
        else:
            self.step.resident_bytes += param.grad.nbytes
        param.grad = None

    def _update(self, param: Any) -> None:
        gradient = self._gradients.pop(id(param), None)
        if gradient is not None:
            self._note("use", gradient)
        item = self._parameters.get(param.untyped_storage()._cdata)
        if item is not None:
            self._note("change", item)
        for state in self._states.get(id(param), ()):
            self._note("change", state)
        if gradient is not None:
            self._note("drop", gradient)
            self._stored -= self.step.items[gradient].nbytes


def _is_fake(tensor: Any) -> bool:
    return isinstance(tensor, FakeTensor)


class _Saved:
    """What a graph keeps for a saved tensor: an item of the store, and the tensor's layout."""

    def __init__(self, trace: Trace, item: int, tensor: Any) -> None:
        self.item = item
        self._shape, self._strides, self._dtype = tensor.shape, tensor.stride(), tensor.dtype
        trace.hold(item)
        weakref.finalize(self, trace.let_go, item).atexit = False

    def tensor(self, shadows: Shadows) -> Any:
        """Return a tensor like the saved one."""
        return shadows.empty(self._shape, self._strides, self._dtype)


def _flops(packet: Any, args: Any, kwargs: Any, result: Any) -> int:
    """Return the floating-point operations of a product, a convolution or attention; 0 for other functions."""
    if packet is _aten._scaled_dot_product_flash_attention_for_cpu:
        return int(sdpa_flop_count(*(operand.shape for operand in args[:3])))
    if packet is _aten._scaled_dot_product_flash_attention_for_cpu_backward:
        return int(sdpa_backward_flop_count(*(operand.shape for operand in args[:4])))
    if packet is _aten._grouped_mm:  # each row or column of one operand meets one group of the other
        a, b = args[:2]
        return int(2 * min(a.numel() * b.shape[-1], b.numel() * a.shape[-2]))
    count = flop_registry.get(packet)
    return 0 if count is None else int(count(*args, **kwargs, out_val=result))


def _span_bytes(tensor: Any) -> int:
    """Return the bytes of the memory that a tensor refers to; an expanded one refers to fewer than it has."""
    if tensor.layout is not torch.strided:
        return 0
    return int(min(tensor.numel() * tensor.itemsize, tensor.untyped_storage().nbytes()))


def without_repeats(moments: list[Moment]) -> list[Moment]:
    """Return the moments that may be the ones with the most bytes in RAM, for some budget."""
    most: dict[tuple[int, int, int], Moment] = {}
    for moment in moments:
        key = moment.stored, moment.shared, moment.lent
        if key not in most or most[key].beside < moment.beside:
            most[key] = moment
    return list(most.values())
