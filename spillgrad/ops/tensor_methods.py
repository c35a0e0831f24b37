"""Methods and operators of `Tensor`: declared operations, and methods that differ from every function of `sg`."""

from collections.abc import Callable, Mapping
from typing import Any

from spillgrad import dtypes
from spillgrad.autograd import differentiate
from spillgrad.autograd.core import node as graph
from spillgrad.errors import ArgumentError, DtypeError
from spillgrad.ops import (
    arithmetic,
    clamp_where,
    comparison,
    complex_numbers,
    complex_views,
    convert,
    creation,
    elementwise,
    getitem_setitem,
    inplace,
    logic,
    matrix_products,
    promotion,
    shape,
    special,
    typed_tensors,
)
from spillgrad.ops.declaration import declarations
from spillgrad.tensor import Tensor

_DTYPE_NAMES = ("bfloat16", "bool", "cdouble", "cfloat", "double", "float", "half", "int", "long", "short")
_DTYPE_METHODS = {
    "byte": dtypes.uint8, "char": dtypes.int8,
    **{n: dtypes.as_dtype(n) for n in _DTYPE_NAMES},
}  # fmt: skip

_NEW = (creation.empty, creation.zeros, creation.ones, creation.full, creation.tensor)


def _operator(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` as an operator that, as Python expects, returns NotImplemented for other types of operands."""

    def operate(self: Tensor, other: Any) -> Any:
        return function(self, other) if isinstance(other, promotion.OPERANDS) else NotImplemented

    return operate


def _swapped(function: Callable[..., Any]) -> Callable[..., Any]:
    return _operator(lambda self, other: function(other, self))


def _operators(methods: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    operators: dict[str, Callable[..., Any]] = {}
    two_sided: dict[str, Callable[..., Any]] = {
        "add": arithmetic.add,
        "sub": arithmetic.sub,
        "mul": arithmetic.mul,
        "truediv": arithmetic.div,
        "pow": arithmetic.pow,
        "floordiv": arithmetic.floor_divide,
        "mod": arithmetic.remainder,
        "matmul": matrix_products.matmul,
        "and": logic.bitwise_and,
        "or": logic.bitwise_or,
        "xor": logic.bitwise_xor,
        "lshift": logic.bitwise_left_shift,
        "rshift": logic.bitwise_right_shift,
    }
    for symbol, function in two_sided.items():
        operators[f"__{symbol}__"] = _operator(function)
        operators[f"__r{symbol}__"] = _swapped(function)
        if in_place := methods.get(f"{function.__name__}_"):
            operators[f"__i{symbol}__"] = _operator(in_place)
    for symbol in ("eq", "ne", "lt", "le", "gt", "ge"):
        operators[f"__{symbol}__"] = _operator(getattr(comparison, symbol))
    operators["__neg__"] = arithmetic.neg
    operators["__pos__"] = lambda self: self
    operators["__abs__"] = arithmetic.abs
    operators["__invert__"] = logic.bitwise_not
    operators["__getitem__"] = getitem_setitem.getitem
    operators["__setitem__"] = getitem_setitem.setitem
    return operators


def _new(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def method(self: Tensor, *arguments: Any, dtype: Any = None, device: Any = None, **options: Any) -> Tensor:
        """Do `{0}`, in this tensor's dtype and on its device if none are given.

        Parameters
        ----------
        *arguments
            What `{0}` takes: sizes, or values.
        dtype : dtype, optional
            Data type of the result; by default, that of the tensor.
        device : device or str, optional
            Where the result is; by default, the device of the tensor.
        **options
            Further options of `{0}`.

        Returns
        -------
        Tensor
            A new tensor.
        """
        dtype, device = self.dtype if dtype is None else dtype, self.device if device is None else device
        return function(*arguments, dtype=dtype, device=device, **options)

    method.__doc__ = (method.__doc__ or "").format(function.__name__)
    return method


def _conversion(dtype: dtypes.DType) -> Callable[..., Tensor]:
    def method(self: Tensor, memory_format: Any = None) -> Tensor:
        """Return the tensor as {0}.

        Parameters
        ----------
        memory_format : memory_format, optional
            Not used.

        Returns
        -------
        Tensor
            A copy, or the tensor itself if it has this dtype.
        """
        return convert.to_dtype(self, dtype)

    method.__doc__ = (method.__doc__ or "").format(dtype)
    return method


class _Further(Tensor):
    """Methods that differ from the function of the same name in `sg`, or have none; `bind` sets them on `Tensor`."""

    backward = differentiate.tensor_backward

    def cpu(self, memory_format: Any = None) -> Tensor:
        """Return the tensor on the host.

        Parameters
        ----------
        memory_format : memory_format, optional
            Not used.

        Returns
        -------
        Tensor
            A copy, or the tensor itself if it is on the host.
        """
        return convert.to(self, device="cpu")

    def cuda(self, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Tensor:
        """Return the tensor on a CUDA device.

        Parameters
        ----------
        device : device, int or str, optional
            The device; by default, the CUDA device.
        non_blocking : bool, default False
            Not used.
        memory_format : memory_format, optional
            Not used.

        Returns
        -------
        Tensor
            A copy, or the tensor itself if it is there.

        Raises
        ------
        DeviceError
            If there is no such device.
        """
        return convert.to(self, device="cuda" if device is None else device)

    def to_device(self, device: Any, /, *, stream: Any = None) -> Tensor:
        """Return the tensor on a device.

        Parameters
        ----------
        device : device or str
            The device.
        stream : None, optional
            Must be None: a copy is always in order with the computations.

        Returns
        -------
        Tensor
            A copy, or the tensor itself if it is there.

        Raises
        ------
        ArgumentError
            If `stream` is not None.
        """
        if stream is not None:
            raise ArgumentError(
                f"to_device: got stream={stream!r}; wanted None: the copy is in order with what computes"
            )
        return convert.to(self, device=device)

    def abs_(self) -> Tensor:
        """Do `abs` in place; return the tensor.

        Returns
        -------
        Tensor
            The tensor itself.

        Raises
        ------
        DtypeError
            For complex numbers: the result would be real.
        """
        if self.is_complex():
            raise DtypeError("abs_: In-place abs is not supported for complex tensors; use abs()")
        return inplace.change(self, "abs_", arithmetic.abs)

    absolute_ = abs_

    def type_as(self, other: Tensor) -> Tensor:
        """Return the tensor in the dtype and on the device of another.

        Parameters
        ----------
        other : Tensor
            Has the wanted dtype and device.

        Returns
        -------
        Tensor
            A copy, or the tensor itself if it has both.
        """
        return convert.to(self, other)

    def type(self, dtype: Any = None, non_blocking: bool = False) -> Any:
        """Return the tensor converted to a dtype or a type; without one, the name of its type.

        Parameters
        ----------
        dtype : dtype, type or str, optional
            A dtype, or a type such as `LongTensor`.
        non_blocking : bool, default False
            Not used.

        Returns
        -------
        Tensor or str
            The converted tensor, or PyTorch's name of the type, such as "torch.FloatTensor", since its programs compare
            with it.
        """
        if dtype is None:
            return typed_tensors.type_name(self)
        wanted, device = typed_tensors.dtype_and_device(dtype, self.device)
        return convert.to(self, dtype=wanted, device=device)

    def new(self, *data: Any, device: Any = None) -> Tensor:
        """Return a tensor of this one's dtype and device.

        Parameters
        ----------
        *data : int, list, ndarray or Tensor
            Sizes of an uninitialised tensor, or the values.
        device : device or str, optional
            Must be this tensor's device.

        Returns
        -------
        Tensor
            The new tensor.

        Raises
        ------
        DeviceError
            If `device` is another one.
        """
        return typed_tensors.made("new", data, self.dtype, self.device, device)

    def pin_memory(self, device: Any = None) -> Tensor:
        """Return the tensor itself: its memory is not pinned for a device.

        Parameters
        ----------
        device : device or str, optional
            Not used.

        Returns
        -------
        Tensor
            The tensor itself.
        """
        return self

    def share_memory_(self) -> Tensor:
        """Return the tensor itself: another process gets a copy.

        Returns
        -------
        Tensor
            The tensor itself.
        """
        return self

    @property
    def is_cpu(self) -> bool:
        """Whether the memory is on the host."""
        return not self.is_cuda

    is_sparse = False

    def to_dense(self) -> Tensor:
        """Return the tensor itself: it is not sparse.

        Returns
        -------
        Tensor
            The tensor itself.
        """
        return self

    def to_sparse(self) -> Any:
        """Return the elements that are not 0 as a sparse tensor.

        Returns
        -------
        SparseTensor
            A `spillgrad.sparse.SparseTensor` of the same shape.
        """
        from spillgrad.sparse import coo

        return coo.to_sparse(self)

    def is_nonzero(self) -> bool:
        """Return whether the only element is not zero.

        Returns
        -------
        bool
            Whether it is not zero.

        Raises
        ------
        ArgumentError
            For more or fewer elements.
        """
        return bool(self)

    def is_same_size(self, other: Tensor) -> bool:
        """Return whether two tensors have the same shape.

        Parameters
        ----------
        other : Tensor
            Of any shape.

        Returns
        -------
        bool
            Whether the shapes are equal.
        """
        return self.shape == other.shape

    def where(self, condition: Tensor, other: Any) -> Any:
        """Return elements of the tensor where a condition holds, and elements of another elsewhere.

        Parameters
        ----------
        condition : Tensor
            Of bool, and of a shape that broadcasts with the tensor's.
        other : Tensor or float
            Its elements, or one number, are taken elsewhere.

        Returns
        -------
        Tensor
            Of the broadcast shape.
        """
        return clamp_where.where(condition, self, other)

    def polygamma(self, n: int) -> Tensor:
        """Return the n-th derivative of digamma.

        Parameters
        ----------
        n : int
            Order of the derivative: 0, 1, 2, and so on.

        Returns
        -------
        Tensor
            Of the tensor's shape.

        Raises
        ------
        ArgumentError
            If `n` is negative or not whole.
        """
        return special.polygamma(n, self)

    @property
    def T(self) -> Tensor:
        """The view with all dimensions in reverse order."""
        return shape.permute(self, tuple(reversed(range(self.ndim))))

    @property
    def mT(self) -> Tensor:
        """The view with the last two dimensions swapped."""
        return shape.transpose(self, -2, -1)

    mH = property(complex_numbers.adjoint)

    @property
    def H(self) -> Tensor:
        """The conjugate transpose of a matrix."""
        return complex_numbers.conj(shape.t(self))

    @property
    def real(self) -> Tensor:
        """A view of the real parts; of a real tensor, the tensor itself. On assignment, the parts are overwritten."""
        return complex_views.real(self)

    @real.setter
    def real(self, value: Any) -> None:
        inplace.copy_(complex_views.real(self), value)

    @property
    def imag(self) -> Tensor:
        """A view of the imaginary parts. On assignment, the parts are overwritten."""
        return complex_views.imag(self)

    @imag.setter
    def imag(self, value: Any) -> None:
        inplace.copy_(complex_views.imag(self), value)


def bind(protocols: Mapping[str, Callable[..., Any]]) -> None:
    """Set all declared operations and further methods on `Tensor`, and register `Tensor` in the autograd core.

    `protocols` are the methods that other libraries call, such as NumPy's `__array_function__`.
    """
    methods: dict[str, Any] = {}
    for declared in declarations:
        methods |= dict.fromkeys(declared.method_names(), declared.function)
        for name in declared.in_place_names():
            methods[f"{name}_"] = inplace.in_place_form(f"{name}_", declared.function)
    methods |= {name: _conversion(dtype) for name, dtype in _DTYPE_METHODS.items()}
    methods |= {f"new_{function.__name__}": _new(function) for function in _NEW}
    methods |= {name: method for name, method in vars(_Further).items() if name[:2] != "__"}
    methods |= _operators(methods) | dict(protocols)
    for name, method in methods.items():
        setattr(Tensor, name, method)
    graph.register_tensor(Tensor, arithmetic.add, elementwise.accumulate)
