"""Parameters of Paddle whose memory is in a store, and in RAM while a layer or a method uses it.

A parameter stays the object it is: its class becomes `OffloadedParameter`. It has its memory while its layer runs
(`frames.py`), and during each call of a method. At other times it has none, and Paddle's functions raise an error.

What a function saves for backward of a parameter's memory is kept as the parameter's name, and read again in backward.
"""

import contextlib
import functools
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import paddle
from paddle.base.framework import EagerParamBase

from spillgrad.errors import OperandError
from spillgrad.interop.paddle.memory import alias
from spillgrad.interop.paddle.saved_tensors import enter_hooks, leave_hooks
from spillgrad.interop.paddle.stored_parameter import StoredParameter, open_memory, opened
from spillgrad.interop.paddle.stored_tensor import StoredTensor, clear_memory, is_storable
from spillgrad.spill.offload.residents import Residents
from spillgrad.storage.store import Label

# What can be said of a parameter, or done to its gradient, without its memory; and what makes no use of it.
_ABOUT = frozenset([
    "_bump_inplace_version", "_clear", "_clear_data", "_clear_dataptr", "_clear_to_zero_allocation",
    "_copy_gradient_from", "_create_init_op", "_grad_name", "_grad_value", "_inplace_version",
    "_is_dense_tensor_hold_allocation", "_register_backward_hook", "_register_grad_hook",
    "_remove_grad_hook", "_reset_grad_inplace_version", "_set_grad_type", "_tensor_use_gpudnn", "_unset_fake_empty",
    "_use_gpudnn", "create_parameter", "create_tensor", "data_ptr", "dim", "element_size", "from_tensor",
    "get_device", "get_strides", "is_complex", "is_contiguous", "is_dense", "is_dist", "is_floating_point",
    "is_integer", "is_same_shape", "is_selected_rows", "is_sparse", "is_sparse_coo", "is_sparse_csr", "is_tensor",
    "ndimension", "register_hook", "requires_grad_", "retain_grads", "set_init_func", "stride", "value",
])  # fmt: skip
_ABOUT_DUNDER = frozenset([
    "__class__", "__delattr__", "__dir__", "__dlpack_device__", "__format__", "__getattribute__", "__getstate__",
    "__hash__", "__init__", "__init_by_shape__", "__init_by_tensor__", "__init_subclass__", "__len__", "__new__",
    "__reduce__", "__setattr__", "__sizeof__", "__subclasshook__", "__tvm_ffi_env_stream__",
])  # fmt: skip
_PROPERTIES = ("T", "mT", "data")
# Methods that change a parameter, though their names do not end in "_".
_CHANGING = frozenset([
    "__setitem__", "_apply", "_inplace_assign", "_set_impl", "_setitem_dygraph", "get_tensor", "initialize",
    "set_tensor", "set_value", "to",
])  # fmt: skip


class _Methods(EagerParamBase):  # type: ignore[misc]
    """Paddle's methods, each of which has the memory of the parameters among its arguments until it returns."""


def _method(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    is_changing = name in _CHANGING or (name.endswith("_") and not name.endswith("__"))

    @functools.wraps(function)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        others = (value for value in (*args, *kwargs.values()) if isinstance(value, OffloadedParameter))
        with with_memory(self, others, is_changing):
            return _lent(function(self, *args, **kwargs))

    return method


def _property(given: Any) -> property:
    def get(self: Any) -> Any:
        with with_memory(self):
            return _lent(given.__get__(self))

    def set_(self: Any, value: Any) -> None:
        with with_memory(self, is_changing=True):
            given.__set__(self, value)

    return property(get, set_, doc=given.__doc__)


def _wrap_methods() -> None:
    for name in dir(EagerParamBase):
        given = getattr(EagerParamBase, name)
        if name in _PROPERTIES:
            setattr(_Methods, name, _property(given))
        elif callable(given) and name not in _ABOUT and name not in _ABOUT_DUNDER:
            setattr(_Methods, name, _method(name, given))


_wrap_methods()


class OffloadedParameter(_Methods):
    """A parameter whose memory is in a store."""

    _stored: StoredParameter
    __hash__ = EagerParamBase.__hash__

    def __repr__(self) -> str:
        return f"<{self._stored.label}, {self.dtype} {list(self.shape)}, in a store>"

    __str__ = __repr__

    @property
    def place(self) -> Any:
        """The host, where the memory is while it is used."""
        return paddle.CPUPlace()

    def numel(self, name: Any = None) -> Any:
        """Return the number of elements, as a tensor."""
        return paddle.to_tensor(math.prod(self.shape), dtype="int64")

    def _is_initialized(self) -> bool:
        # Layer.to asks whether the parameter has memory of its own to exchange.
        return sys._getframe(1).f_code is not paddle.nn.Layer._transform.__code__

    def get_tensor(self) -> Any:
        """Return Paddle's inner tensor, which has memory while the parameter has it."""
        return _Initialized() if _is_saved(sys._getframe(1)) else super().get_tensor()

    @property
    def grad(self) -> Any:
        """The gradient, in RAM while anything refers to it."""
        return self._grad_ivar()

    @grad.setter
    def grad(self, value: Any) -> None:
        stored = self._stored
        stored.gradient, stored.gradient_is_zero = None, False
        EagerParamBase.clear_gradient(self, False)
        if value is None:
            return
        if value.dtype != self.dtype or list(value.shape) != list(self.shape):
            raise OperandError(
                f"{stored.label}: got a gradient of {value.dtype} {list(value.shape)}; wanted one of {self.dtype} "
                f"{list(self.shape)}, as the parameter is"
            )
        stored.gradient = StoredTensor(stored._residents, value, Label("gradient", None, stored.label.module))

    grad_ = grad

    def _grad_ivar(self) -> Any:
        stored = self._stored
        if stored.updating_gradient is not None:
            return stored.updating_gradient
        if stored.gradient is not None:
            stored.gradient.lend()
            return stored.gradient.tensor()
        return paddle.zeros(self.shape, self.dtype) if stored.gradient_is_zero else EagerParamBase._grad_ivar(self)

    def _set_grad_ivar(self, value: Any) -> None:
        self.grad = value

    def gradient(self) -> Any:
        """Return the gradient as a NumPy array, or None if there is none."""
        grad = self._grad_ivar()
        return None if grad is None else grad.numpy()

    def clear_gradient(self, set_to_zero: bool = True) -> None:
        """Set the gradient to zero if there is one; drop it if `set_to_zero` is False."""
        stored = self._stored
        stored.gradient_is_zero = set_to_zero and stored.has_gradient
        stored.gradient = None
        EagerParamBase.clear_gradient(self, set_to_zero)

    def clear_grad(self) -> None:
        """Set the gradient to zero if there is one."""
        self.clear_gradient()

    def _zero_grads(self) -> None:
        self.clear_gradient()

    def __deepcopy__(self, memo: Any) -> Any:
        raise OperandError(
            f"{self._stored.label}: an offloaded parameter cannot be copied, as its files are those of this process; "
            "copy state_dict(), or clone() the parameter"
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        if _is_saved(sys._getframe(1)):  # as paddle.save writes parameters
            return tuple, ((self.name, np.array(self.cpu())),)
        return self.detach().clone().__reduce_ex__(protocol)


def _is_saved(caller: FrameType) -> bool:
    """Return whether `caller` is part of paddle.save."""
    return bool(caller.f_globals.get("__name__") == "paddle.framework.io")


class _Initialized:
    """What paddle.save asks before it reads a parameter."""

    def _is_initialized(self) -> bool:
        return True


@contextlib.contextmanager
def with_memory(parameter: Any, others: Iterable[Any] = (), is_changing: bool = False) -> Iterator[None]:
    """Context manager: parameters have their memory; with `is_changing`, `parameter` is about to be changed."""
    with contextlib.ExitStack() as undo:
        if paddle.is_grad_enabled():
            enter_hooks("disk_offload")
            undo.callback(leave_hooks)
        stored = opened(parameter, is_changing)
        if is_changing:
            undo.callback(stored._residents.return_changed, with_last=True)
        undo.callback(stored.close)
        for other in others:
            undo.callback(opened(other).close)
        yield


def _lent(result: Any) -> Any:
    """Return a method's result. If it is a view of a parameter's memory, prepare for a change through it."""
    if isinstance(result, list | tuple):
        return type(result)(map(_lent, result))
    if not isinstance(result, paddle.Tensor) or isinstance(result, OffloadedParameter):
        return result
    stored = open_memory(result)
    if stored is None:
        return result
    # A layer that runs has the memory longer, and looks at the counter of changes, which its views share.
    if result.stop_gradient or not stored.is_open_elsewhere:
        stored.lend()
    # A result of detach() would lose its memory with the parameter.
    return alias(result, by_layer=False) if stored.is_of(result) else result


def offload_parameter(residents: Residents, parameter: Any, label: Label) -> bool:
    """Move the memory of a parameter to the store of `residents`, and return whether it went.

    A parameter of few bytes stays in RAM, and so does one whose dtype NumPy lacks.
    """
    if not is_storable(parameter):
        return False
    _let_methods_read_parameters()
    stored = StoredParameter(residents, parameter, label)
    parameter.__class__ = OffloadedParameter
    parameter._stored = stored
    clear_memory(parameter)
    return True


@functools.cache
def _let_methods_read_parameters() -> None:
    # Without this, `copy_` would silently keep the old values of its tensor if the source has no memory.
    for name in ("copy_", "set_value"):
        given = getattr(paddle.Tensor, name)

        @functools.wraps(given)
        def method(self: Any, value: Any, *args: Any, given: Any = given, **kwargs: Any) -> Any:
            if not isinstance(value, OffloadedParameter):
                return given(self, value, *args, **kwargs)
            with with_memory(value):
                return given(self, value, *args, **kwargs)

        setattr(paddle.Tensor, name, method)
