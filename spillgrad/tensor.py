"""The tensor: an array in memory (`spillgrad.tensor_data`) that can be part of a graph.

Operations live in `spillgrad.ops` and are bound to this class by `spillgrad.ops.tensor_methods`.
"""

import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from spillgrad import dtypes
from spillgrad.autograd.core import node as graph
from spillgrad.autograd.core.grad_mode import is_recording, state
from spillgrad.autograd.core.node import (
    AccumulateGrad,
    Edge,
    HookDict,
    Node,
    RemovableHandle,
    accumulator_lock,
    next_sequence,
)
from spillgrad.constructor_arguments import array_of
from spillgrad.device.device import as_device, moved
from spillgrad.errors import ArgumentError, DeviceError, DtypeError, GraphError, HookTypeError, InferenceTensorError
from spillgrad.formatting import format_tensor
from spillgrad.tensor_data import Storage, TensorData, native
from spillgrad_kernels.device_array import is_on_device

_new = object.__new__
_reference = weakref.ref


class Tensor(TensorData):
    """An n-dimensional array that can record how it was computed.

    Make one with `tensor`, `zeros` and other functions: `tensor` copies, and takes its dtype from the data. Names,
    defaults and return values are PyTorch's; Paddle's spellings are accepted too.

    Parameters
    ----------
    *data : int, sequence, ndarray or Tensor
        Sizes of an uninitialised tensor, or the values as nested lists, an array or a tensor. An array of the default
        dtype, and any tensor, share their memory with the new tensor.
    requires_grad : bool, default False
        Whether to record operations on the tensor.
    device : device or str, optional
        The device that the data are on; the constructor takes no other one.

    Raises
    ------
    DeviceError
        If `device` is another one.

    Examples
    --------
    >>> import spillgrad as sg
    >>> x = sg.tensor([1.0, 2.0], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> x.grad.tolist()
    [2.0, 4.0]
    """

    def __init__(self, *data: Any, requires_grad: bool = False, device: Any = None) -> None:
        if len(data) == 1 and isinstance(data[0], Tensor):
            self._share(data[0], requires_grad)
            return
        self._share(array_of("Tensor", data, dtypes.get_default_dtype()), requires_grad)
        if device is not None and as_device(device) is not self.device:
            raise DeviceError(
                f"Tensor: legacy constructor expects device type: {self.device} but device type: {device} was passed; "
                "tensor() takes any"
            )

    def _share(self, data: Any, requires_grad: bool) -> None:
        """Take the memory of a tensor or array, or else the values of nested data, as a new leaf."""
        if isinstance(data, Tensor):
            self._set(data._array, data._storage)
            data._storage.aliased = True
        else:
            is_array = isinstance(data, np.ndarray)
            array = native(data) if is_array else np.asarray(data, dtypes.get_default_dtype())
            self._set(array, Storage(array))
        if requires_grad:
            self.requires_grad = True

    # A new tensor has no place in a graph; defaults on the class make tensors cheap.
    _requires_grad = False
    _grad: "Tensor | None" = None
    _grad_fn: Node | None = None
    _output_nr = 0
    _accumulator: Callable[[], AccumulateGrad | None] | None = None  # a leaf's is a weak reference
    _leaf_hooks: HookDict | None = None
    _pre_accumulate_hooks: HookDict | None = None  # called before backward adds to `grad` of this leaf
    _post_accumulate_hooks: HookDict | None = None
    # A view knows the tensor it views: an in-place change of one moves the other in the graph.
    _base: "Tensor | None" = None
    _base_fn: Node | None = None
    _leaf_views: "tuple[weakref.ref[Tensor], ...]" = ()
    _detached = False  # by detach_()
    # Whether backward itself updates this leaf and frees its gradient; see `disk_offload`.
    _updated_in_backward = False
    # Whether optimizers whose state has fewer bits keep this leaf's as it is.
    exact_state = False
    # What an optimizer that gets this parameter is given to; see `fully_shard`. A weak reference to a function.
    _take_optimizer: Callable[[], Callable[[Any], None] | None] | None = None

    @staticmethod
    def wrap(array: np.ndarray, storage: Storage | None = None) -> "Tensor":
        """Return a tensor over `array`; it shares `storage`, or has a new storage if `storage` is None."""
        tensor: Tensor = _new(Tensor)
        tensor._array = array
        if storage is None:
            tensor._storage = Storage(array)
        else:
            storage.aliased = True
            tensor._storage = storage
        return tensor

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        suffixes = [f"device='{self.device}'"] if self.is_cuda else []
        grad_fn = self.grad_fn
        if grad_fn is not None:
            suffixes.append(f"grad_fn=<{grad_fn.name()}>")
        elif self.requires_grad:
            suffixes.append("requires_grad=True")
        return format_tensor(self.host_array(), *suffixes)

    def __copy__(self) -> "Tensor":
        """Return another tensor of the same class over the same storage."""
        copied = type(self).__new__(type(self))
        copied._set(self._array, self._storage)
        copied.__dict__.update({key: value for key, value in self.__dict__.items() if not key.startswith("_")})
        copied._requires_grad = self._requires_grad and self.is_leaf
        self._storage.aliased = True
        return copied

    def __reduce__(self) -> Any:
        requires_grad = self._requires_grad and self.is_leaf
        return _rebuild, (
            type(self), self.host_array(), requires_grad, self.__dict__.get("name"), self.device.type, self.exact_state,
        )  # fmt: skip

    def __deepcopy__(self, memo: dict[int, Any]) -> "Tensor":
        if not self.is_leaf:
            raise GraphError(
                "deepcopy: Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol; "
                "detach() this one first"
            )
        copied = _rebuild(type(self), self._array.copy(), self._requires_grad, self.__dict__.get("name"))
        if self.exact_state:
            copied.exact_state = True
        if self._grad is not None:
            copied._grad = self._grad.__deepcopy__(memo)
        memo[id(self)] = copied
        return copied

    # Graph

    @property
    def requires_grad(self) -> bool:
        """Whether operations on the tensor are recorded (Paddle: `not stop_gradient`)."""
        if self._base is not None:
            return self.grad_fn is not None or self._requires_grad  # a change of the base may have connected the view
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if not isinstance(value, bool | np.bool_):
            raise ArgumentError(f"requires_grad must be a bool, but got {type(value).__name__}")
        if value and not (self.is_floating_point() or self.is_complex()):
            raise DtypeError(
                f"requires_grad: got a tensor of {self.dtype}; only Tensors of floating point and complex dtype can "
                "require gradients: convert it to a floating-point dtype first"
            )
        if not value and not self.is_leaf:
            raise GraphError(
                "requires_grad: you can only change requires_grad flags of leaf variables. If you want to use a "
                "computed variable in a subgraph that doesn't require differentiation use var_no_grad = var.detach()."
            )
        if value and self._storage.is_inference and not state.inference:
            raise InferenceTensorError(
                "Setting requires_grad=True on inference tensor outside InferenceMode is not allowed; clone() it first"
            )
        self._requires_grad = bool(value)
        if value and self.is_leaf:
            self._storage.trainable = True
            if self._base is not None:
                others = [weakref.ref(view) for view in self._base.leaf_views() if view is not self]
                self._base._leaf_views = (*others, weakref.ref(self))

    def _is_view(self) -> bool:
        """Return whether the tensor is a view of another, by an operation; `_base` is that tensor."""
        return self._base is not None

    def leaf_views(self) -> "list[Tensor]":
        """Return the views of this tensor that are themselves leaves and require a gradient."""
        views = [view() for view in self._leaf_views]
        return [v for v in views if v is not None and v._base is self and v.requires_grad and v.is_leaf]

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set `requires_grad` and return the tensor.

        Parameters
        ----------
        requires_grad : bool, default True
            Whether to record operations on the tensor.

        Returns
        -------
        Tensor
            The tensor itself.

        Raises
        ------
        DtypeError
            For integers and bool.
        GraphError
            If a tensor that an operation computed is to record nothing; `detach` makes a tensor that does not.
        """
        self.requires_grad = requires_grad
        return self

    @property
    def stop_gradient(self) -> bool:
        """Paddle's name for the opposite of `requires_grad`; setting it to True makes a non-leaf a leaf."""
        return not self.requires_grad

    @stop_gradient.setter
    def stop_gradient(self, value: bool) -> None:
        if value and self.grad_fn is not None:
            self._base = None  # from here on the view is a tensor of its own over the same memory
            self._cut()
        else:
            self.requires_grad = not value

    @property
    def is_leaf(self) -> bool:
        """Whether the tensor has no `grad_fn`: no recorded operation computed it."""
        return self.grad_fn is None

    @property
    def grad_fn(self) -> Node | None:
        """The node of the operation that computed the tensor; None for a leaf."""
        base = self._base
        if base is not None and base._grad_fn is not self._base_fn:
            _view_again(self, base)
        return self._grad_fn

    @property
    def output_nr(self) -> int:
        """The number of the tensor among the outputs of `grad_fn`."""
        return self._output_nr

    @property
    def grad(self) -> "Tensor | None":
        """The gradient that backward has accumulated; None before the first backward.

        Warns for a non-leaf without `retain_grad()`, which backward gives no gradient.
        """
        grad = self._grad
        if grad is None and self.grad_fn is not None and not self.retains_grad:
            warnings.warn(
                "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed. Its .grad attribute "
                "won't be populated during autograd.backward(). If you indeed want the .grad field to be populated for "
                "a non-leaf Tensor, use .retain_grad() on the non-leaf Tensor. If you access the non-leaf Tensor by "
                "mistake, make sure you access the leaf Tensor instead.",
                stacklevel=2,
            )
        return grad

    @grad.setter
    def grad(self, value: "Tensor | None") -> None:
        if value is self:
            raise GraphError("grad: can't assign a tensor as its own grad, which would keep it alive; use detach()")
        if value is not None:
            if not isinstance(value, Tensor):
                raise HookTypeError(
                    f"assigned grad expected to be a Tensor or None but got grad of type {type(value).__name__}"
                )
            if value.shape != self.shape:
                raise GraphError(
                    f"attempting to assign a gradient of size '{list(value.shape)}' to a tensor of size "
                    f"'{list(self.shape)}'. Please ensure that the gradient and the tensor are the same size"
                )
            if value.dtype != self.dtype or value.device is not self.device:
                raise GraphError(
                    f"attempting to assign a gradient with dtype '{value.dtype}' on '{value.device}' to a tensor of "
                    f"dtype '{self.dtype}' on '{self.device}'; a gradient is like its tensor: convert it with .to()"
                )
        self._grad = value

    @grad.deleter
    def grad(self) -> None:
        self._grad = None

    @property
    def data(self) -> "Tensor":
        """A tensor over the same memory without a graph. On assignment, it takes the memory of the given tensor.

        Values that were saved for backward before the assignment keep the former memory. `_version` never decreases.
        """
        return self.detach()

    @data.setter
    def data(self, value: "Tensor") -> None:
        if not isinstance(value, Tensor):
            raise HookTypeError(f"Variable data has to be a tensor, but got {type(value).__name__}")
        if self.requires_grad and not (value.is_floating_point() or value.is_complex()):
            raise DtypeError(
                "data set to a tensor that requires gradients must be floating point or complex dtype, but got "
                f"{value.dtype}; convert it first"
            )
        if value._storage is not self._storage:
            self._base = None  # it no longer shares memory with its base
        has_version = not (self._storage.is_inference or value._storage.is_inference)
        version = self._version if has_version else 0
        self._array, self._storage = value._array, value._storage
        self._storage.aliased = True
        if has_version:
            self._storage.earlier_versions += max(version - self._version, 0)
        if self._requires_grad and self._grad_fn is None:
            self._storage.trainable = True

    @data.deleter
    def data(self) -> None:
        raise GraphError("Deleting tensor data is not allowed. Delete tensor instead!")

    def gradient_edge(self) -> Edge:
        """Return the edge for the gradient: (`grad_fn`, `output_nr`), (accumulator, 0) for a leaf, else NO_EDGE."""
        grad_fn = self._grad_fn if self._base is None else self.grad_fn
        if grad_fn is not None:
            return grad_fn, self._output_nr
        if not self._requires_grad:
            return graph.NO_EDGE
        present = self._accumulator
        accumulator = None if present is None else present()
        if accumulator is None:
            made = _new(AccumulateGrad)
            made.sequence, made.variable = next_sequence(), self
            reference = _reference(made)
            with accumulator_lock:
                present = self._accumulator
                if present is None or (accumulator := present()) is None:
                    self._accumulator, accumulator = reference, made
        return accumulator, 0

    def attach(self, node: Node, output_nr: int) -> None:
        """Connect the tensor to the graph as output number `output_nr` of `node`."""
        self._grad_fn = node
        self._output_nr = output_nr
        self._requires_grad = True

    def alias(self, edge: Edge = graph.NO_EDGE) -> "Tensor":
        """Return another tensor over the same memory. Its gradient flows to `edge`; by default it has no graph."""
        tensor = Tensor.wrap(self._array, self._storage)
        if edge is not graph.NO_EDGE:
            tensor.connect(edge)
        return tensor

    def connect(self, edge: Edge) -> None:
        """Connect this new tensor to the graph: its gradient will flow to `edge`."""
        node, output_nr = edge
        if isinstance(node, AccumulateGrad):  # another tensor over a leaf: its gradient goes to the leaf
            self._requires_grad, self._accumulator = True, lambda: node
        elif node is not None:
            self.attach(node, output_nr)

    def detach(self) -> "Tensor":
        """Return a tensor over the same memory that has no graph.

        Returns
        -------
        Tensor
            An in-place change of either tensor changes both.
        """
        return self.alias()

    def detach_(self) -> Self:
        """Turn this tensor into a leaf that requires no gradient.

        Returns
        -------
        Tensor
            The tensor itself.

        Raises
        ------
        GraphError
            For a view that is no leaf.
        """
        if self._base is not None and self.grad_fn is not None:
            raise GraphError("detach_: Can't detach views in-place. Use detach() instead")
        self._cut()
        self._detached = True
        return self

    def _cut(self) -> None:
        self._grad_fn = None
        self._requires_grad = False
        self._output_nr = 0

    def accumulate_grad(self, grad: "Tensor") -> None:
        """Add `grad` to `.grad`, in place if grad mode is off. Raises DeviceError if `grad` is on another device."""
        if grad.device is not self.device:
            raise DeviceError(
                f"backward: got a gradient on '{grad.device}' for a leaf on '{self.device}'; a hook or a custom "
                "function returned it: move it with .to(device)"
            )
        if self._grad is not None:
            if self._grad.shape != grad.shape:  # a sum would broadcast
                raise GraphError(
                    f"backward: got a gradient of shape {grad.shape} for a leaf whose .grad is {self._grad.shape}, as "
                    "before its data was replaced; set .grad to None then"
                )
            if is_recording():
                self._grad = graph.add_gradients(self._grad, grad)
            else:
                graph.accumulate_gradients(self._grad, grad)
        else:
            if not is_recording() and grad._grad_fn is not None:
                grad = grad.detach()
            self._grad = grad.clone() if grad._storage.aliased or not grad.is_contiguous() else grad

    def register_hook(self, hook: Callable[["Tensor"], Any]) -> RemovableHandle:
        """Call a function when the tensor's gradient is computed.

        Parameters
        ----------
        hook : callable
            Called as ``hook(grad)``; a tensor that it returns replaces the gradient.

        Returns
        -------
        RemovableHandle
            Its `remove` ends the calls.

        Raises
        ------
        GraphError
            For a tensor that requires no gradient.
        """
        if not self.requires_grad:
            raise GraphError("register_hook: cannot register a hook on a tensor that doesn't require gradient")
        if self.grad_fn is not None:
            return self.grad_fn.register_tensor_hook(self._output_nr, hook)
        return self.__dict__.setdefault("_leaf_hooks", HookDict()).add(hook)  # type: ignore[no-any-return]

    def register_post_accumulate_grad_hook(self, hook: Callable[["Tensor"], None]) -> RemovableHandle:
        """Call a function whenever backward has added a gradient to the `grad` of this leaf.

        Parameters
        ----------
        hook : callable
            Called as ``hook(tensor)``.

        Returns
        -------
        RemovableHandle
            Its `remove` ends the calls.

        Raises
        ------
        GraphError
            For a tensor that is no leaf or requires no gradient.
        """
        if not self.requires_grad:
            raise GraphError(
                "register_post_accumulate_grad_hook: cannot register a hook on a tensor that doesn't require gradient"
            )
        if self.grad_fn is not None:
            raise GraphError(
                "register_post_accumulate_grad_hook: post accumulate grad hooks cannot be registered on non-leaf "
                "tensors; use register_hook()"
            )
        return self.__dict__.setdefault("_post_accumulate_hooks", HookDict()).add(hook)  # type: ignore[no-any-return]

    def retain_grad(self) -> None:
        """Keep the gradient of this non-leaf in `grad` when backward computes it.

        Raises
        ------
        GraphError
            For a tensor that requires no gradient.
        """
        if not self.requires_grad:
            raise GraphError("retain_grad: can't retain_grad on Tensor that has requires_grad=False")
        if self.grad_fn is None:
            return
        tensor = weakref.ref(self)

        def store(grad: "Tensor") -> None:
            alive = tensor()
            if alive is not None:
                grad = grad if is_recording() else grad.detach()
                alive._grad = grad if alive._grad is None else graph.add_gradients(alive._grad, grad)

        self.grad_fn.retain_gradient(self._output_nr, store)

    retain_grads = retain_grad

    @property
    def retains_grad(self) -> bool:
        """Whether the tensor is a non-leaf that keeps its gradient in `.grad`."""
        return self.grad_fn is not None and self._output_nr in (self.grad_fn._retain_hooks or ())

    def clear_grad(self, set_to_zero: bool = True) -> None:
        """Fill the gradient with zeros in place, or set it to None. The name is Paddle's.

        Parameters
        ----------
        set_to_zero : bool, default True
            Whether to fill it with zeros; False sets it to None.
        """
        self._grad = self._grad.detach().zero_() if set_to_zero and self._grad is not None else None

    clear_gradient = clear_grad

    def zero_grad(self) -> None:
        """Set the gradient to None."""
        self._grad = None

    def __iter__(self) -> Iterator["Tensor"]:
        if self.ndim == 0:
            raise DtypeError("iteration over a 0-d tensor; index it with [()] or take item()")
        return (self[i] for i in range(self.shape[0]))

    if TYPE_CHECKING:
        # Bound by spillgrad.ops.tensor_methods: the operators, and every operation as a method.
        def __getattr__(self, name: str) -> Any: ...
        def __getitem__(self, index: Any) -> "Tensor": ...
        def __setitem__(self, index: Any, value: Any) -> None: ...
        def __neg__(self) -> "Tensor": ...
        def __pos__(self) -> "Tensor": ...
        def __abs__(self) -> "Tensor": ...
        def __invert__(self) -> "Tensor": ...
        def __eq__(self, other: Any) -> "Tensor": ...  # type: ignore[override]
        def __ne__(self, other: Any) -> "Tensor": ...  # type: ignore[override]
        def _operator(self, other: Any) -> "Tensor": ...

        __lt__ = __le__ = __gt__ = __ge__ = __matmul__ = __rmatmul__ = _operator
        __add__ = __sub__ = __mul__ = __truediv__ = __pow__ = __floordiv__ = __mod__ = _operator
        __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rpow__ = __rfloordiv__ = __rmod__ = _operator
        __iadd__ = __isub__ = __imul__ = __itruediv__ = __ipow__ = __ifloordiv__ = __imod__ = _operator
        __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _operator


def _rebuild(
    kind: type[Tensor], array: np.ndarray, requires_grad: bool, name: str | None, device: str = "cpu",
    exact_state: bool = False,
) -> Tensor:  # fmt: skip
    """Return a tensor of class `kind` over `array`, moved from the host to `device`, for unpickling and deep copies."""
    tensor = kind.__new__(kind)
    if not is_on_device(array):
        array = moved(array, as_device(device))
    tensor._set(array, Storage(array))
    if requires_grad:
        tensor.requires_grad = True
    if name is not None:
        tensor.name = name  # type: ignore[attr-defined]
    if exact_state:
        tensor.exact_state = True
    return tensor


# Set by `spillgrad.ops.inplace`, which knows the operation that re-reads a view from its changed base.
_view_again: Callable[[Tensor, Tensor], None] = NotImplemented


def register_view_again(function: Callable[[Tensor, Tensor], None]) -> None:
    """Set the function(view, base) that computes a view again after its base has changed; called once, at import."""
    global _view_again
    _view_again = function
