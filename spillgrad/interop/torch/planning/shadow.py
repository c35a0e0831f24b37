"""Models without values: their parameters have shapes, strides and dtypes, but no memory."""

import contextlib
import copy
import ctypes
import dataclasses
import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils._python_dispatch import TorchDispatchMode

from spillgrad.errors import ArgumentError
from spillgrad.interop.torch.offloaded_tensor import OffloadedTensor
from spillgrad_kernels.memory import buffers

_aten = torch.ops.aten
# The last of what `isfinite` computes, and what asks whether all are so.
_TRUE = frozenset([_aten.mul.Tensor, _aten.all.default, _aten.all.dim])


class Shadows:
    """Makes tensors without values. PyTorch computes the shape of each function's result, and no value."""

    def __init__(self) -> None:
        # Tensors with values, such as a batch, may meet those without. What is computed of the former alone has values:
        # models ask for those of masks.
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)

    def of(self, tensor: Any) -> Any:
        """Return a tensor on the CPU like `tensor`, without values."""
        shadow = self.empty(tensor.shape, tensor.stride(), tensor.dtype)
        if not isinstance(tensor, torch.nn.Parameter):
            return shadow
        return torch.nn.Parameter(shadow, requires_grad=tensor.requires_grad)

    def empty(self, shape: Any, strides: Any, dtype: Any) -> Any:
        """Return a tensor on the CPU without values."""
        with self._mode:
            return torch.empty_strided(shape, strides, dtype=dtype, device="cpu")

    def new(self, shape: Any, dtype: Any) -> Any:
        """Return a contiguous tensor on the CPU without values."""
        with self._mode:
            return torch.empty(shape, dtype=dtype, device="cpu")

    def model(self, model: Any) -> Any:
        """Return a copy of a module, whose parameters have no values, or of the module that a function builds.

        The function's parameters lose their values one by one, as modules register them. Raises ArgumentError for a
        model that is offloaded, on another device than the CPU or meta, not materialized, or cannot be copied.
        """
        if not isinstance(model, torch.nn.Module):
            with self._instead_of_what_is_registered(), WithoutValues(self):
                model = model()
        if not isinstance(model, torch.nn.Module):
            raise ArgumentError(f"plan: got a function that returned a {type(model).__name__}; wanted a module")
        known: dict[int, Any] = {}
        for name, param in model.named_parameters():
            _require_plannable(name, param)
            known[id(param)] = self.of(param)
        for buffer in model.buffers():
            if buffer.is_meta:
                known[id(buffer)] = self.of(buffer)
        try:
            return copy.deepcopy(model, known)
        except Exception as error:
            raise ArgumentError(
                f"plan: a copy of the model was to be planned, but it cannot be copied: {error}; plan before the first "
                "call, or give a function that builds the model"
            ) from error

    def batch(self, batch: Any) -> Any:
        """Return a copy of a batch, whose tensors on the meta device are on the CPU, without values."""
        copies = {}
        for tensor in _tensors(batch):
            like = self.of(tensor) if tensor.is_meta else tensor.detach().clone()
            copies[id(tensor)] = like.requires_grad_(tensor.requires_grad)
        return copy.deepcopy(batch, copies)

    @contextlib.contextmanager
    def _instead_of_what_is_registered(self) -> Iterator[None]:
        thread = threading.get_ident()
        made: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        given: dict[int, weakref.ref[Any]] = {}

        def instead(module: Any, name: str, param: Any) -> Any:
            if type(param) is not torch.nn.Parameter or threading.get_ident() != thread:
                return param
            known = given.get(id(param))
            if known is None or known() is not param:  # not one that another module has registered, too
                given[id(param)] = weakref.ref(param)
                made[id(param)] = shadow = self.of(param)
                return shadow
            return made.get(id(param), param)

        handle = register_module_parameter_registration_hook(instead)
        try:
            yield
        finally:
            handle.remove()


class WithoutValues(TorchDispatchMode):  # type: ignore[misc]
    """Answers where PyTorch itself would ask for values."""

    def __init__(self, shadows: Shadows) -> None:
        super().__init__()
        self._shadows = shadows

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = _known_value(func, args)
        if known is not None:
            return known
        if func in _TRUE and any(isinstance(arg, FakeTensor) for arg in args):
            result = func(*args, **(kwargs or {}))
            if result.dtype is torch.bool:
                result._spillgrad_is_true = True  # until it is computed with
            return result
        if func is _aten._grouped_mm.default and isinstance(args[0], FakeTensor):
            # PyTorch computes it on the CPU for all dtypes, and says the shape for bfloat16 only.
            a, b = args[:2]
            offsets = args[2] if len(args) > 2 else kwargs["offs"]
            groups = offsets.shape[:1] if a.ndim == b.ndim == 2 else a.shape[:-2] if b.ndim == 3 else ()
            return self._shadows.new((*groups, a.shape[-2], b.shape[-1]), a.dtype)
        if func is _aten.mkldnn_rnn_layer.default and any(isinstance(arg, FakeTensor) for arg in args):
            # PyTorch does not say the size of what it saves, which oneDNN knows.
            given = [torch.zeros(arg.shape, dtype=arg.dtype) if isinstance(arg, FakeTensor) else arg for arg in args]
            return tuple(self._shadows.new(result.shape, result.dtype) for result in func(*given, **(kwargs or {})))
        return func(*args, **(kwargs or {}))


def _tensors(value: Any) -> Iterator[Any]:
    """Yield the tensors in mappings, sequences and dataclasses, one in another."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
    elif dataclasses.is_dataclass(value):
        yield from _tensors(vars(value))


def resident_bytes(tensor: Any) -> int:
    """Return how many bytes of a tensor on the CPU are in RAM; memory that was never written to is not."""
    storage = tensor.untyped_storage()
    start = storage.data_ptr() // buffers.PAGE_BYTES * buffers.PAGE_BYTES
    span = storage.data_ptr() + storage.nbytes() - start
    pages = np.zeros(-(-span // buffers.PAGE_BYTES), np.uint8)
    if not span or _mincore(ctypes.c_void_p(start), ctypes.c_size_t(span), ctypes.c_void_p(pages.ctypes.data)):
        return 0
    return int((pages & 1).sum()) * buffers.PAGE_BYTES


_mincore = ctypes.CDLL(None).mincore


def _known_value(func: Any, args: Any) -> Any:
    """Return the number to go on with where a model asks for that of a computed tensor; None if there is none.

    Steps branch on whether numbers are finite, initialisers draw until no number is out of bounds, and optimizers use
    norms. All numbers are taken to be finite, and no number to be out of bounds.
    """
    if func is not _aten._local_scalar_dense.default or not isinstance(args[0], FakeTensor):
        return None
    if args[0].constant is not None:
        return None
    if args[0].dtype is torch.bool:
        return getattr(args[0], "_spillgrad_is_true", False)
    return 1.0 if args[0].dtype.is_floating_point else None


def _require_plannable(name: str, param: Any) -> None:
    if torch.nn.parameter.is_lazy(param):
        raise ArgumentError(f"plan: {name} has no shape yet; call the model once before you plan")
    if isinstance(param, OffloadedTensor):
        raise ArgumentError(f"plan: {name} is offloaded already; plan before you offload a model")
    if param.device.type not in ("cpu", "meta"):
        raise ArgumentError(
            f"plan: {name} is on {param.device}; wanted a model on the CPU or meta; move it with .to('meta')"
        )
