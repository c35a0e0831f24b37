"""Tensors that a module registers: parameters, which are trained, and buffers, which are not.

Those of lazy modules are uninitialised at first: they have a dtype and a device, and no shape yet.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Self

from spillgrad.errors import ArgumentError
from spillgrad.ops import creation
from spillgrad.tensor import Tensor

__all__ = ["Buffer", "Parameter", "UninitializedBuffer", "UninitializedParameter"]


class Parameter(Tensor):
    """A leaf tensor that modules register when it is assigned to one of their attributes.

    Parameters
    ----------
    data : Tensor or array_like, default ()
        Its elements; a tensor's memory is shared.
    requires_grad : bool, default True
        Whether backward computes its gradient.

    Attributes
    ----------
    exact_state : bool
        Whether optimizers whose state has fewer bits (``state="int8"``) keep this parameter's state exact, unless they
        have ``keep_exact=False``. True for tables of embeddings; False, by default, for all others.
    """

    def __init__(self, data: Any = (), requires_grad: bool = True) -> None:
        self._share(data, requires_grad)

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"


class Buffer(Tensor):
    """A tensor that modules register as a buffer when it is assigned to one of their attributes.

    Parameters
    ----------
    data : Tensor or array_like, default ()
        Its elements; a tensor's memory is shared.
    persistent : bool, default True
        Whether state dicts include it.
    """

    persistent = True

    def __init__(self, data: Any = (), *, persistent: bool = True) -> None:
        self._share(data, False)
        self.persistent = persistent


_CONVERSION_DOC = """Return an uninitialised tensor with the dtype and device that `Tensor.{0}` would give.

Parameters
----------
*args : object
    As of `Tensor.{0}`.
**kwargs : object
    As of `Tensor.{0}`.

Returns
-------
UninitializedParameter or UninitializedBuffer
    Another one of the same kind.
"""


def _conversion(name: str) -> Callable[..., Any]:
    """Return the method `name` of uninitialised tensors, which converts their future dtype and device."""

    def convert(self: "_Uninitialized", *args: Any, **kwargs: Any) -> Any:
        return self._like(getattr(self._empty, name)(*args, **kwargs))

    convert.__name__, convert.__qualname__ = name, f"UninitializedTensor.{name}"
    convert.__doc__ = _CONVERSION_DOC.format(name)
    return convert


class _Uninitialized(Tensor):
    """The base of tensors without shape: only `materialize` and conversions of dtype and device may use them."""

    cls_to_become: ClassVar[type[Tensor]]
    _empty: Tensor  # it has no elements, and the dtype and device that the tensor will have

    def materialize(self, shape: Any, device: Any = None, dtype: Any = None) -> None:
        """Become an ordinary parameter or buffer of a shape, whose elements are not set.

        Parameters
        ----------
        shape : int or sequence of int
            The shape.
        device : device, optional
            Where the memory is; by default, where the tensor was made for or moved to.
        dtype : dtype, optional
            Data type; by default, the one that the tensor was made with or converted to.
        """
        empty = vars(self).pop("_empty")
        made = creation.empty(
            shape, device=empty.device if device is None else device, dtype=empty.dtype if dtype is None else dtype
        )
        self.__class__ = self.cls_to_become  # type: ignore[assignment]
        self._set(made._array, made._storage)
        if self._requires_grad:
            self.requires_grad = True  # which the memory has to know too

    def _like(self, empty: Tensor) -> Self:
        """Return another uninitialised tensor of this kind, with the dtype and device of `empty`."""
        made = type(self).__new__(type(self))
        made.__dict__.update(vars(self), _empty=empty)
        return made

    to, cpu, cuda, type_as = map(_conversion, ("to", "cpu", "cuda", "type_as"))
    half, float, double, bfloat16 = map(_conversion, ("half", "float", "double", "bfloat16"))
    char, short, int, long = map(_conversion, ("char", "short", "int", "long"))

    @property
    def dtype(self) -> Any:
        """The data type that the elements will have."""
        return self._empty.dtype

    @property
    def numpy_dtype(self) -> Any:
        """The data type as NumPy's object."""
        return self._empty.numpy_dtype

    @property
    def device(self) -> Any:
        """The device that the memory will be on."""
        return self._empty.device

    @property
    def data(self) -> Tensor:
        """The tensor itself. On assignment, it takes the dtype and device of another uninitialised tensor."""
        return self

    @data.setter
    def data(self, value: Tensor) -> None:
        if not isinstance(value, _Uninitialized):
            raise ArgumentError(
                f"data: got a {type(value).__name__} for a {type(self).__name__}; call materialize(shape) first"
            )
        self._empty = value._empty

    @property
    def shape(self) -> Any:
        """Raise ArgumentError: there is no shape yet."""
        raise ArgumentError(
            "Can't access the shape of an uninitialized parameter or buffer; this happens when an uninitialized "
            "parameter is loaded into an initialized one: call the module once, which sets the shapes"
        )

    def _unusable(self) -> Any:
        raise ArgumentError(
            f"Attempted to use an uninitialized parameter, an {type(self).__name__}, which has no elements yet; call "
            "the module that it belongs to once, with inputs of the sizes to come"
        )

    _array = _storage = property(_unusable)

    def share_memory_(self) -> Self:
        """Raise ArgumentError: there is no memory yet."""
        raise ArgumentError("Can't share memory on an uninitialized parameter or buffer; call the module once before")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __copy__(self) -> Self:
        return self._like(self._empty)

    def __deepcopy__(self, memo: dict[Any, Any]) -> Self:
        memo[id(self)] = made = self._like(self._empty)
        return made

    def __reduce__(self) -> Any:
        return type(self), (self._requires_grad, self.device.type, self.dtype)


class UninitializedParameter(_Uninitialized, Parameter):
    """A parameter whose shape is not known yet; ``materialize(shape)`` makes it a `Parameter`.

    It can be converted to another dtype or device, copied, pickled and registered. Anything else raises ArgumentError.

    Parameters
    ----------
    requires_grad : bool, default True
        Whether backward will compute its gradient.
    device : device, optional
        Where the memory will be; by default, the default device.
    dtype : dtype, optional
        Data type that the elements will have; by default, the default data type.
    """

    cls_to_become = Parameter

    def __init__(self, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> None:
        self._empty = creation.empty(0, device=device, dtype=dtype)
        self._requires_grad = requires_grad


class UninitializedBuffer(_Uninitialized, Buffer):
    """A buffer whose shape is not known yet; ``materialize(shape)`` makes it a tensor (see `UninitializedParameter`).

    Parameters
    ----------
    requires_grad : bool, default False
        Whether backward will compute its gradient.
    device : device, optional
        Where the memory will be; by default, the default device.
    dtype : dtype, optional
        Data type that the elements will have; by default, the default data type.
    persistent : bool, default True
        Whether state dicts include it.
    """

    cls_to_become = Tensor

    def __init__(
        self, requires_grad: bool = False, device: Any = None, dtype: Any = None, persistent: bool = True
    ) -> None:  # fmt: skip
        self._empty = creation.empty(0, device=device, dtype=dtype)
        self._requires_grad = requires_grad
        self.persistent = persistent


def is_lazy(param: Any) -> bool:
    """Return whether an object is an `UninitializedParameter` or an `UninitializedBuffer`."""
    return isinstance(param, _Uninitialized)
