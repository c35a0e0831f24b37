"""What users get as a dtype, such as `sg.float32` and `x.dtype`: PyTorch's attributes on an object that NumPy takes.

Code of the library itself uses NumPy's dtypes instead; `spillgrad.dtypes` says where one becomes the other.
"""

from typing import TYPE_CHECKING, Any, final

import numpy as np

from spillgrad import dtypes
from spillgrad.errors import DtypeError

if TYPE_CHECKING:
    # A type checker accepts a `dtype` wherever it accepts NumPy's, as NumPy does. NumPy's class has no real subclasses.
    _NumpyDtype = np.dtype[Any]
else:
    _NumpyDtype = object


@final
class dtype(_NumpyDtype):  # type: ignore[misc]  # NumPy's class is final
    """The data type of a tensor's elements.

    There is one object for each data type, so that ``is`` compares them, too. It is equal to NumPy's dtype and has the
    same hash and attributes, such as `name`, `kind` and `type`. NumPy and h5py take it where they take a dtype. `str`
    gives the name, such as "float32".

    Parameters
    ----------
    wanted : str, dtype or type
        A name, a NumPy dtype or a type, such as "float32", ``np.float32`` or ``float``.

    Raises
    ------
    DtypeError
        If there is no such dtype.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.dtype("float32") is sg.float32
    True
    >>> sg.float32.itemsize, sg.float32.is_floating_point
    (4, True)
    """

    __slots__ = (
        "__numpy_dtype__", "_hash", "dtype", "is_complex", "is_floating_point", "is_signed", "itemsize", "kind", "name",
    )  # fmt: skip

    if TYPE_CHECKING:
        __numpy_dtype__: np.dtype[Any]
        is_floating_point: bool
        is_complex: bool
        is_signed: bool
        _hash: int

    def __new__(cls, wanted: Any) -> "dtype":
        """Return the dtype that a name, a NumPy dtype or a type stands for. Raises DtypeError if there is none."""
        return BY_NUMPY[dtypes.as_dtype(wanted)]

    def __init_subclass__(cls) -> None:
        raise TypeError("dtype: type 'spillgrad.dtype' is not an acceptable base type")

    def to_real(self) -> "dtype":
        """Return the dtype of the real and imaginary parts.

        Returns
        -------
        dtype
            That of the parts of a complex dtype; another dtype itself.
        """
        return _PARTS.get(self, self)

    def to_complex(self) -> "dtype":
        """Return the complex dtype whose parts can hold this dtype.

        Returns
        -------
        dtype
            Complex64 for bfloat16 and float32, complex128 for float64; a complex dtype itself.

        Raises
        ------
        DtypeError
            If there is none.
        """
        if self.is_complex:
            return self
        if self not in _COMPLEX:
            raise DtypeError(f"to_complex: got {self}; wanted bfloat16, float32, float64 or a complex dtype")
        return _COMPLEX[self]

    def __eq__(self, other: object) -> bool:
        if self is other or type(other) is dtype or other is None:  # NumPy takes None for float64
            return self is other
        return bool(self.__numpy_dtype__ == other)

    def __hash__(self) -> int:
        return self._hash

    @property  # type: ignore[misc]  # nothing assigns it
    def __class__(self) -> Any:
        # `isinstance(d, np.dtype)` holds, as programs and NumPy itself ask: `np.isdtype` would give False for others.
        return type(self.__numpy_dtype__)

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(self.__numpy_dtype__, name)
        except AttributeError:
            raise AttributeError(f"'spillgrad.dtype' object has no attribute '{name}'") from None

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"attribute '{name}' of 'spillgrad.dtype' objects is not writable")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"attribute '{name}' of 'spillgrad.dtype' objects is not writable")

    def __str__(self) -> str:
        return str(self.name)

    def __repr__(self) -> str:
        return f"spillgrad.{self.name}"

    def __reduce__(self) -> Any:
        return dtype, (self.name,)


def _made(of: np.dtype[Any]) -> dtype:
    made: dtype = object.__new__(dtype)
    values = {
        # What NumPy asks an object for where it wants a dtype: from 2.4 on `__numpy_dtype__`, before that `dtype`.
        "__numpy_dtype__": of, "dtype": of, "_hash": hash(of), "name": of.name, "kind": of.kind,
        "itemsize": of.itemsize, "is_floating_point": dtypes.is_floating_point(of), "is_complex": dtypes.is_complex(of),
        "is_signed": of.kind not in "ub",
    }  # fmt: skip
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


# The dtype of each NumPy dtype that a tensor can have.
BY_NUMPY: dict[np.dtype[Any], dtype] = {known: _made(known) for known in dtypes.KNOWN}

float16 = BY_NUMPY[dtypes.float16]
bfloat16 = BY_NUMPY[dtypes.bfloat16]
float32 = BY_NUMPY[dtypes.float32]
float64 = BY_NUMPY[dtypes.float64]
int8 = BY_NUMPY[dtypes.int8]
int16 = BY_NUMPY[dtypes.int16]
int32 = BY_NUMPY[dtypes.int32]
int64 = BY_NUMPY[dtypes.int64]
uint8 = BY_NUMPY[dtypes.uint8]
uint16 = BY_NUMPY[dtypes.uint16]
uint32 = BY_NUMPY[dtypes.uint32]
uint64 = BY_NUMPY[dtypes.uint64]
bool_ = BY_NUMPY[dtypes.bool_]
complex64 = BY_NUMPY[dtypes.complex64]
complex128 = BY_NUMPY[dtypes.complex128]

_PARTS = {complex64: float32, complex128: float64}
_COMPLEX = {bfloat16: complex64, float32: complex64, float64: complex128}


def get_default_dtype() -> dtype:
    """Return the dtype of floating-point tensors that are made without a dtype.

    Returns
    -------
    dtype
        What `set_default_dtype` set; at first, float32.
    """
    return BY_NUMPY[dtypes.get_default_dtype()]


def promote_types(type1: Any, type2: Any) -> dtype:
    """Return the dtype that two dtypes promote to.

    Parameters
    ----------
    type1, type2 : dtype
        The dtypes of the operands.

    Returns
    -------
    dtype
        By PyTorch's rules: one of the higher kind (bool, integer, floating-point, complex); of the same kind, one at
        least as wide as both. Float64 and complex64 give complex128.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.promote_types(sg.int64, sg.float16)
    spillgrad.float16
    """
    return BY_NUMPY[dtypes.promote(type1, type2)]
