"""Parameters of PyTorch whose memory is in a store, and in RAM while a function uses it.

A parameter stays the object it is: its class becomes `OffloadedParameter`, whose `__torch_function__` PyTorch calls for
each function that gets the parameter. The parameter has its memory until the function returns. Between functions it has
the memory of one NaN, expanded to its shape: code that no `__torch_function__` sees reads NaN, and no number that looks
right.

What a function saves for backward of a parameter's memory is kept as the parameter's name, and read again in backward.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from spillgrad.errors import OperandError
from spillgrad.fork_safe_lock import ForkSafeLock
from spillgrad.interop.torch.memory import Version, layout_of, over
from spillgrad.interop.torch.stored_tensor import StoredTensor
from spillgrad.spill.offload.residents import Residents
from spillgrad.storage.store import Label
from spillgrad_kernels.memory import buffers

# Signal handlers run before or after this code: `storage/threads/interrupts.py`.
SIGNALS_WAIT = True

_plain = torch._C.DisableTorchFunctionSubclass
_autograd = torch._C._autograd

# From this many bytes on, the arrays of a store are aligned as PyTorch's tensors are. Over another array, a parameter
# would need a copy, in which a change through a view would be lost.
MIN_BYTES = buffers.POOLED_MIN_BYTES
# What can be said of a parameter, or set, without its memory.
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


class _Saved:
    """The object that a graph keeps for a saved tensor over a parameter's memory."""

    __slots__ = ("_layout", "_stored", "_version")

    def __init__(self, stored: "StoredParameter", tensor: Any) -> None:
        self._stored, self._layout = stored, layout_of(tensor)
        self._version = Version(stored.version.counter)

    def tensor(self) -> Any:
        """Return the saved tensor, over memory that is read if needed. Raises SavedTensorError if it was changed."""
        self._version.require(self._layout)
        memory = self._stored.tensor() if self._stored.memory is None else self._stored.memory
        return over(memory.untyped_storage(), self._layout, self._version)


class StoredParameter(StoredTensor):
    """The memory of an offloaded parameter. `memory` is the tensor over it while functions use the parameter."""

    def __init__(self, residents: Residents, parameter: Any, label: Label) -> None:
        super().__init__(residents, parameter.detach(), label)
        self.version = Version(parameter)
        self.memory: Any = None
        self._uses = 0
        nothing = math.nan if parameter.is_floating_point() or parameter.is_complex() else 0
        self._nothing = torch.full((), nothing, dtype=parameter.dtype).expand(parameter.shape)

    def take(self, parameter: Any) -> None:
        """Become the memory of `parameter`, which gets the memory of one NaN, and the class of offloaded parameters."""
        parameter.__class__ = OffloadedParameter
        parameter._stored = self
        with _plain():
            parameter.data = self._nothing

    def open(self, parameter: Any, is_changing: bool) -> None:
        """Give the parameter its memory, until `close`; with `is_changing`, for a change."""
        with _lock:
            if is_changing:
                self.begin_change()
            if not self._uses:
                self.memory = self.tensor()
                with _plain():
                    parameter.data = self.memory
                _open_memories[self.memory.untyped_storage()._cdata] = self
            self._uses += 1

    def close(self, parameter: Any) -> None:
        """End a use of the parameter; after the last one, take the memory from it.

        If a function has given the parameter other memory, that is offloaded in place of this one.
        """
        with _lock, _plain():
            self._uses -= 1
            if self._uses:
                return
            storage = self.memory.untyped_storage()._cdata
            del _open_memories[storage]
            self.memory = None
            if parameter.untyped_storage()._cdata == storage:
                self.take(parameter)
            else:
                parameter.__class__ = torch.nn.Parameter
                del parameter._stored
                offload_parameter(self._residents, parameter, self.label)


# By the address of its storage: the open parameter that has this memory.
_open_memories: dict[int, StoredParameter] = {}
_lock = ForkSafeLock()


class OffloadedParameter(torch.nn.Parameter):  # type: ignore[misc]
    """A parameter whose memory is in a store."""

    _stored: StoredParameter

    def __repr__(self) -> str:
        with _plain():
            return f"<{self._stored.label}, {self.dtype} {tuple(self.shape)}, in a store>"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise OperandError(
            f"{self._stored.label}: an offloaded parameter cannot be copied or pickled, as its files are those of this "
            "process; copy or pickle state_dict()"
        )

    def __deepcopy__(self, memo: Any) -> Any:
        return self.__reduce_ex__(4)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _ABOUT:
            with _plain():
                return func(*args, **kwargs)
        used = {id(tensor): tensor for tensor in _tensors((args, kwargs)) if type(tensor) is OffloadedParameter}
        with _plain():
            return _with_memory(list(used.values()), func, args, kwargs)


# The classes of tensors that certainly have a storage; others may be wrappers without one.
_WITH_STORAGE = (torch.Tensor, torch.nn.Parameter, OffloadedParameter)


def _with_memory(used: list[Any], func: Any, args: Any, kwargs: Any) -> Any:
    """Call a function while the parameters `used` have their memory."""
    stored = [vars(parameter)["_stored"] for parameter in used]
    is_changing = _may_change(func, kwargs)
    opened = 0
    try:
        for each, parameter in zip(stored, used, strict=True):
            each.open(parameter, is_changing)
            opened += 1
        versions = [each.version.now() for each in stored]
        if torch.is_grad_enabled():
            outer = _autograd._top_saved_tensors_default_hooks(False)
            _autograd._push_saved_tensors_default_hooks(*_hooks(outer))
            try:
                result = func(*args, **kwargs)
            finally:
                _autograd._pop_saved_tensors_default_hooks()
        else:
            result = func(*args, **kwargs)
        for each, version in zip(stored, versions, strict=True):
            if not is_changing and each.version.now() != version:  # by a function whose name does not say so
                each.begin_change()
        _lend(stored, func, result)
        return result
    finally:
        for each, parameter in zip(stored[:opened], used, strict=False):
            each.close(parameter)
        if is_changing:
            for each in stored:
                each.return_changed()


def _hooks(outer: Any) -> tuple[Any, Any]:
    """Return hooks that keep saved memory of open parameters as names, and leave other tensors to the hooks `outer`."""

    def pack(tensor: Any) -> Any:
        stored = _open_memory(tensor)
        if stored is not None:
            return _Saved(stored, tensor)
        return tensor if outer is None else outer[0](tensor)

    def unpack(packed: Any) -> Any:
        if isinstance(packed, _Saved):
            return packed.tensor()
        return packed if outer is None else outer[1](packed)

    return pack, unpack


def _may_change(func: Any, kwargs: Any) -> bool:
    """Return whether a function changes operands in place, by PyTorch's rules for names, or writes to `out`."""
    name = getattr(func, "__name__", "")
    return (
        (name.endswith("_") and not name.endswith("__"))
        or name in ("__setitem__", "__set__")
        or (name.startswith("__i") and name.endswith("__") and name not in ("__invert__", "__int__", "__index__"))
        or kwargs.get("out") is not None
    )


def _lend(stored: Iterable[StoredParameter], func: Any, result: Any) -> None:
    """Prepare for a result that is a view of a parameter's memory."""
    if func in _HANDING_OUT:
        for each in stored:
            each.lend()
        return
    for tensor in _tensors(result):
        memory = _open_memory(tensor)
        if memory is not None and type(tensor) is not OffloadedParameter:
            memory.lend()


def _open_memory(tensor: Any) -> StoredParameter | None:
    """Return the open parameter whose memory a tensor has; None if there is none."""
    has_storage = type(tensor) in _WITH_STORAGE and tensor.layout is torch.strided
    return _open_memories.get(tensor.untyped_storage()._cdata) if has_storage else None


def _tensors(values: Any) -> Iterator[Any]:
    """Yield the tensors in nested tuples, lists and dicts."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, dict):
        yield from _tensors(list(values.values()))
    elif isinstance(values, tuple | list):
        for value in values:
            yield from _tensors(value)


def offload_parameter(residents: Residents, parameter: Any, label: Label) -> None:
    """Move the memory of a parameter to the store of `residents`. A parameter of few bytes stays in RAM.

    Raises OperandError for a parameter that is not on the host, and the errors of `Store.put`.
    """
    if not parameter.is_cpu:
        raise OperandError(
            f"{label}: got a parameter on {parameter.device}; wanted one on the CPU; move the model with .to('cpu')"
        )
    if parameter.nbytes >= MIN_BYTES:
        StoredParameter(residents, parameter, label).take(parameter)
