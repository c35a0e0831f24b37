"""Tensors of PyTorch whose memory is in a store, and in RAM while a function uses it: parameters and gradients.

A tensor stays the object it is: its class becomes one of `KINDS`, whose `__torch_function__` PyTorch calls for each
function that gets the tensor. The tensor has its memory until the function returns. Between functions it has the memory
of one NaN, expanded to its shape: code that no `__torch_function__` sees reads NaN, and no number that looks right.

What a function saves for backward of such memory is kept as a name, and read again in backward.
"""

import contextlib
import functools
import math
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.multiprocessing.reductions import StorageWeakRef

from spillgrad.errors import OperandError
from spillgrad.interop.arrays import MIN_BYTES
from spillgrad.interop.torch.memory import Version, is_plain, layout_of, over
from spillgrad.interop.torch.stored_tensor import StoredTensor
from spillgrad.spill.offload.residents import Residents
from spillgrad.spill.saved_memory import Packed
from spillgrad.storage.store import Label, nobody

# Signal handlers run before or after this code: `storage/threads/interrupts.py`.
SIGNALS_WAIT = True

plain_functions = torch._C.DisableTorchFunctionSubclass
_autograd = torch._C._autograd

# What can be said of a tensor, or set, without its memory.
_ATTRIBUTES = (
    "shape", "dtype", "device", "layout", "ndim", "itemsize", "nbytes", "requires_grad", "is_leaf", "grad_fn",
    "output_nr", "retains_grad", "is_sparse", "is_quantized", "is_meta", "is_cpu", "is_cuda", "is_mkldnn", "is_nested",
    "grad", "_base", "_backward_hooks", "_post_accumulate_grad_hooks", "_version",
)  # fmt: skip
_SETTABLE = ("requires_grad", "grad", "_backward_hooks", "_post_accumulate_grad_hooks")
_METHODS = (
    "size", "dim", "numel", "nelement", "element_size", "ndimension", "is_floating_point", "is_complex", "is_signed",
    "is_inference", "requires_grad_", "register_hook", "register_post_accumulate_grad_hook", "get_device", "__len__",
    "__hash__", "is_conj", "is_neg",
)  # fmt: skip
_ABOUT = frozenset([
    *(getattr(torch.Tensor, name).__get__ for name in _ATTRIBUTES),
    *(getattr(torch.Tensor, name).__set__ for name in _SETTABLE),
    *(getattr(torch.Tensor, name) for name in _METHODS),
    torch.Tensor.grad.__delete__, torch.is_tensor, torch.is_floating_point, torch.is_complex, torch.numel,
])  # fmt: skip

# The functions that hand out memory other than in a tensor.
_HANDING_OUT = frozenset([
    torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.data_ptr, torch.Tensor.untyped_storage,
    torch.Tensor.storage, torch.Tensor._typed_storage, torch.Tensor.__dlpack__,
])  # fmt: skip

# What puts the parameters of one module into a state dict; it detaches them.
_SAVE_TO_STATE_DICT = torch.nn.Module._save_to_state_dict.__code__

# What makes a parameter of a tensor; it wants `detach` to return a tensor of the same class.
_NEW_PARAMETER = torch.nn.Parameter.__new__.__code__

# Functions of lists of tensors, which compute an entry of their result from the same entries of the lists.
_OF_LISTS = ("_foreach_", "_amp_foreach_", "_fused_")


class _Saved(Packed):
    """The object that a graph keeps for a saved tensor over an offloaded tensor's memory."""

    __slots__ = ("_layout", "_stored", "_version")

    def __init__(self, stored: "StoredMemory", tensor: Any) -> None:
        self._stored, self._layout = stored, layout_of(tensor)
        self._version = Version(stored.version.counter)

    def tensor(self) -> Any:
        """Return the saved tensor, over memory that is read if needed. Raises SavedTensorError if it was changed."""
        self._version.require(self._layout)
        memory = self._stored.tensor() if self._stored.memory is None else self._stored.memory
        return over(memory.untyped_storage(), self._layout, self._version)


def _counting_changes() -> Any:
    """Context manager: make tensors that count their changes, also in the ``with`` block of an inference mode."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else _NOTHING


_NOTHING = contextlib.nullcontext()


def _nothing(dtype: Any) -> Any:
    """Return a number that is wrong to see: NaN, or the least integer."""
    if dtype.is_floating_point or dtype.is_complex:
        return math.nan
    return False if dtype is torch.bool else torch.iinfo(dtype).min


class StoredMemory(StoredTensor):
    """The memory of an offloaded tensor. `memory` is the tensor over it while functions use the offloaded tensor."""

    def __init__(self, residents: Residents, tensor: Any, label: Label) -> None:
        super().__init__(residents, tensor.detach(), label)
        self.version = Version(tensor)
        self.memory: Any = None
        self.is_contiguous = tensor.is_contiguous()
        self.norm: Any = None  # that of order 2, if it is known
        self.copy_of: Callable[[], Any] = nobody  # the tensor that would have the same memory in RAM
        self._uses = 0
        self._lent: list[StorageWeakRef] | None = None  # the storages over memory that callers may have
        self._nothing = torch.full((), _nothing(tensor.dtype), dtype=tensor.dtype).expand(tensor.shape)

    def take(self, tensor: Any) -> None:
        """Become the memory of `tensor`, which gets the memory of one NaN, and the class of offloaded tensors."""
        tensor.__class__ = KINDS.get(type(tensor), type(tensor))
        tensor._stored = self
        with plain_functions():
            tensor.data = self._nothing

    def open(self, tensor: Any, is_changing: bool) -> None:
        """Give the tensor its memory, until `close`; with `is_changing`, for a change."""
        with self._residents.lock:
            if is_changing:
                self.begin_change()
            if not self._uses:
                with plain_functions(), _counting_changes():
                    self.memory = self.tensor()
                    tensor.data = self.memory
                _memories[self.memory.untyped_storage()._cdata] = self
            self._uses += 1

    def close(self, tensor: Any) -> None:
        """End a use of the tensor; after the last one, take the memory from it.

        If a function has given the tensor other memory, or another layout, that is offloaded in place of this one.
        """
        with self._residents.lock, plain_functions(), _counting_changes():
            self._uses -= 1
            if self._uses:
                return
            storage, is_as_before = self.memory.untyped_storage(), tensor.is_set_to(self.memory)
            self.memory = None
            if self._lent is None:
                del _memories[storage._cdata]
            else:
                self._lent.append(StorageWeakRef(storage))
            if is_as_before:
                self.take(tensor)
            else:
                tensor.__class__ = PLAIN.get(type(tensor), type(tensor))
                del tensor._stored
                offload_tensor(self._residents, tensor, self.label)

    def begin_change(self) -> None:
        self.norm = None
        super().begin_change()

    def lend(self) -> None:
        with self._residents.lock:
            self.norm = None
            super().lend()
            if self._lent is None:
                self._lent = []

    def end_change(self) -> bool:
        ended = super().end_change()
        if ended and self._lent is not None:
            lent, self._lent = self._lent, None
            for storage in lent:
                _memories.pop(storage.cdata, None)
        return ended


# By the address of its storage: the memory that an offloaded tensor has now, or that callers may have views of. The
# address of a lent storage is not used again while `StoredMemory` has a weak reference to the storage.
_memories: weakref.WeakValueDictionary[int, StoredMemory] = weakref.WeakValueDictionary()


class OffloadedTensor(torch.Tensor):  # type: ignore[misc]
    """A tensor whose memory is in a store: a gradient."""

    _stored: StoredMemory

    def __repr__(self) -> str:
        with plain_functions():
            return f"<{self._stored.label}, {self.dtype} {tuple(self.shape)}, in a store>"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise OperandError(
            f"{self._stored.label}: an offloaded tensor cannot be copied or pickled, as its files are those of this "
            "process; copy or pickle state_dict(), or a clone() of the tensor"
        )

    def __deepcopy__(self, memo: Any) -> Any:
        return self.__reduce_ex__(4)

    # PyTorch's methods of these names do not call `__torch_function__`.
    def set_(self, *args: Any, **kwargs: Any) -> Any:
        return type(self).__torch_function__(torch.Tensor.set_, (type(self),), (self, *args), kwargs)

    def as_subclass(self, cls: Any) -> Any:
        return type(self).__torch_function__(torch.Tensor.as_subclass, (type(self),), (self, cls))

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _ABOUT:
            with plain_functions():
                return func(*args, **kwargs)
        if func is torch.autograd.grad:
            return _gradients(*args, **kwargs)
        if func.__name__.startswith(_OF_LISTS) and len(args[0]) > 1:
            return _one_by_one(func, args, kwargs)
        if func is torch.Tensor.is_contiguous and len(args) == 1 and not kwargs:
            return vars(args[0])["_stored"].is_contiguous
        if func is torch.linalg.vector_norm and args[1:] == (2.0,) and not kwargs:
            norm = vars(args[0])["_stored"].norm
            if norm is not None:
                return norm.clone()
        if func is torch.Tensor.detach:
            caller = sys._getframe(1).f_code
            if caller is _SAVE_TO_STATE_DICT:
                return vars(args[0])["_stored"].copy_on_disk()
            if caller is _NEW_PARAMETER:
                return _another(args[0])
        used = {id(tensor): tensor for tensor in _tensors((args, kwargs)) if isinstance(tensor, OffloadedTensor)}
        others = tuple(each for each in types if not issubclass(each, OffloadedTensor) and each not in PLAIN.values())
        if others:
            func = _as_computed_by(others, func)
        with plain_functions():
            return _with_memory(list(used.values()), func, args, kwargs)


class OffloadedParameter(OffloadedTensor, torch.nn.Parameter):  # type: ignore[misc]
    """A parameter whose memory is in a store."""


KINDS: dict[type, type] = {torch.Tensor: OffloadedTensor, torch.nn.Parameter: OffloadedParameter}
PLAIN: dict[type, type] = {offloaded: plain for plain, offloaded in KINDS.items()}


def _as_computed_by(kinds: tuple[Any, ...], func: Any) -> Any:
    """Return `func` as the first of `kinds` computes it: other classes of tensors that are among the operands."""

    @functools.wraps(func)
    def compute(*args: Any, **kwargs: Any) -> Any:
        with torch._C._EnableTorchFunction():
            return kinds[0].__torch_function__(func, kinds, args, kwargs)

    return compute


def _another(tensor: Any) -> Any:
    """Return an offloaded tensor with a copy of another one's memory; in RAM, the two would share memory."""
    stored = vars(tensor)["_stored"]
    copy = PLAIN[type(tensor)](stored.copy())
    offload_tensor(stored._residents, copy, stored.label)
    copy._stored.copy_of = weakref.ref(tensor)
    return copy


def _one_by_one(func: Any, args: Any, kwargs: Any) -> Any:
    """Call a function of lists for one entry of the lists after another, so that one tensor at a time is in RAM."""
    count = len(args[0])

    def entry(value: Any, index: int) -> Any:
        return [value[index]] if isinstance(value, list | tuple) and len(value) == count else value

    results = [
        func(*(entry(arg, index) for arg in args), **{name: entry(value, index) for name, value in kwargs.items()})
        for index in range(count)
    ]
    return None if results[0] is None else type(results[0])(entry for result in results for entry in result)


def _gradients(outputs: Any, inputs: Any, *args: Any, materialize_grads: bool = False, **kwargs: Any) -> Any:
    """Call `torch.autograd.grad`, which needs no parameter's memory, and may call functions that do."""
    wanted = (inputs,) if isinstance(inputs, torch.Tensor | GradientEdge) else tuple(inputs)
    with plain_functions():
        edges = [
            get_gradient_edge(each) if isinstance(each, OffloadedTensor) and each.requires_grad else each
            for each in wanted
        ]
        if any(isinstance(each, OffloadedTensor) for each in (*_tensors(outputs), *_tensors(edges))):
            return torch.autograd.grad(outputs, inputs, *args, materialize_grads=materialize_grads, **kwargs)
    if materialize_grads:
        kwargs["allow_unused"] = True
    found = torch.autograd.grad(outputs, edges, *args, **kwargs)
    if materialize_grads:
        new = [torch.zeros_like(each, requires_grad=True) if one is None else one
               for one, each in zip(found, wanted, strict=True)]  # fmt: skip
        return tuple(new)
    return found


class _Hooks:
    """Hooks that keep saved memory of offloaded tensors as names, and leave other tensors to the hooks `outer`."""

    def __init__(self, outer: Any) -> None:
        self._outer = outer

    def pack(self, tensor: Any) -> Any:
        named = saved_name(tensor)
        if named is not None:
            return named
        return tensor if self._outer is None else self._outer[0](tensor)

    def unpack(self, packed: Any) -> Any:
        if isinstance(packed, _Saved):
            return packed.tensor()
        return packed if self._outer is None else self._outer[1](packed)


def push_hooks() -> bool:
    """Keep what this thread saves of offloaded memory as names; return whether `pop_hooks` must end it."""
    outer = _autograd._top_saved_tensors_default_hooks(False)
    if outer is not None and isinstance(getattr(outer[0], "__self__", None), _Hooks):
        return False
    hooks = _Hooks(outer)
    _autograd._push_saved_tensors_default_hooks(hooks.pack, hooks.unpack)
    return True


pop_hooks = _autograd._pop_saved_tensors_default_hooks


def saved_name(tensor: Any) -> Packed | None:
    """Return the object that stands in a graph for a tensor over offloaded memory; None for another tensor."""
    stored = _memory_of(tensor)
    return None if stored is None else _Saved(stored, tensor)


def _with_memory(used: list[Any], func: Any, args: Any, kwargs: Any) -> Any:
    """Call a function while the offloaded tensors `used` have their memory."""
    stored = [vars(tensor)["_stored"] for tensor in used]
    is_changing = _may_change(func, kwargs)
    opened = 0
    try:
        for each, tensor in zip(stored, used, strict=True):
            each.open(tensor, is_changing)
            opened += 1
        versions = [each.version.now() for each in stored]
        is_ours = torch.is_grad_enabled() and push_hooks()
        try:
            result = func(*args, **kwargs)
        finally:
            if is_ours:
                pop_hooks()
        for each, version in zip(stored, versions, strict=True):
            if not is_changing and each.version.now() != version:  # by a function whose name does not say so
                each.begin_change()
        _lend(stored, func, result)
        return result
    finally:
        for each, tensor in zip(stored[:opened], used, strict=False):
            each.close(tensor)
        if is_changing:
            for each in stored:
                each.return_changed()


def _may_change(func: Any, kwargs: Any) -> bool:
    """Return whether a function changes operands in place, by PyTorch's rules for names, or writes to `out`."""
    name = getattr(func, "__name__", "")
    return (
        (name.endswith("_") and not name.endswith("__"))
        or name in ("__setitem__", "__set__")
        or (name.startswith("__i") and name.endswith("__") and name not in ("__invert__", "__int__", "__index__"))
        or kwargs.get("out") is not None
    )


def _lend(stored: Iterable[StoredMemory], func: Any, result: Any) -> None:
    """Prepare for a result that is a view of an offloaded tensor's memory."""
    if func in _HANDING_OUT:
        for each in stored:
            each.lend()
    else:
        lend(result)


def lend(result: Any) -> None:
    """Prepare for tensors in a result that are views of an offloaded tensor's memory."""
    for tensor in _tensors(result):
        memory = _memory_of(tensor)
        if memory is not None and not isinstance(tensor, OffloadedTensor):
            memory.lend()


# The classes of tensors that certainly have a storage; others may be wrappers without one.
_WITH_STORAGE = frozenset([*KINDS, *PLAIN])


def _memory_of(tensor: Any) -> StoredMemory | None:
    """Return the offloaded memory that a tensor has; None if it has other memory."""
    has_storage = (
        type(tensor) in _WITH_STORAGE
        and tensor.layout is torch.strided
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )
    return _memories.get(tensor.untyped_storage()._cdata) if has_storage else None


def _tensors(values: Any) -> Iterator[Any]:
    """Yield the tensors in nested tuples, lists and dicts."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, dict):
        yield from _tensors(list(values.values()))
    elif isinstance(values, tuple | list):
        for value in values:
            yield from _tensors(value)


def offload_tensor(residents: Residents, tensor: Any, label: Label) -> None:
    """Move the memory of a parameter or gradient to the store of `residents`. A tensor of few bytes stays in RAM.

    Raises OperandError for a tensor that is not on the host, or not plain memory, and the errors of `Store.put`.
    """
    if not tensor.is_cpu:
        raise OperandError(
            f"{label}: got a tensor on {tensor.device}; wanted one on the CPU; move the model with .to('cpu')"
        )
    if tensor.nbytes >= MIN_BYTES:
        if not is_plain(tensor):
            raise OperandError(
                f"{label}: got a {type(tensor).__name__} with layout {tensor.layout}; wanted plain memory, of the "
                "class Parameter or Tensor"
            )
        StoredMemory(residents, tensor, label).take(tensor)
