"""The memory of NumPy arrays by its address: one machine code serves every layout, and an integer costs a call least.

Nothing checks an address or an id. Who passes one sees to it that the array lives as long as the call, has the dtype it
is read as, in this machine's byte order and at addresses its elements are aligned to, and is writeable where it is
written.
"""

import ctypes
from typing import Any

import numpy as np

from spillgrad_kernels.atomics import WORD_BYTES, load
from spillgrad_kernels.compile import DISABLE_JIT, c_function, carray, intrinsic, jit, register_jitable, types

# NumPy's C interface: the first field of an array object, behind what every Python object begins with.
_DATA_FIELD = object.__basicsize__


def address_of(array: np.ndarray) -> int:
    """Return the address of the first element: `array.ctypes.data`, at a seventh of its cost. Not for kernels."""
    return ctypes.c_size_t.from_address(id(array) + _DATA_FIELD).value


@jit
def data_of(array_id: int) -> int:
    """Return the address of the first element of the array with an id."""
    return load(array_id, _DATA_FIELD // WORD_BYTES)


if DISABLE_JIT:

    def array_at(like: np.ndarray, address: int, count: int) -> np.ndarray:
        """Return the `count` elements at `address` as a 1-D array of the dtype of `like`."""
        memory = (ctypes.c_byte * int(count * like.itemsize)).from_address(int(address))
        return np.ndarray((count,), like.dtype, memoryview(memory))

    def copy_bytes(target: int, source: int, count: int) -> None:
        """Copy memory that does not overlap."""
        ctypes.memmove(int(target), int(source), int(count))

else:

    @intrinsic
    def _pointer_at(typing_context: Any, like: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[1], context.get_value_type(signature.return_type))

        return types.CPointer(like.dtype)(like, types.intp), codegen

    @register_jitable
    def array_at(like: np.ndarray, address: int, count: int) -> Any:
        """Return the `count` elements at `address` as a 1-D array of the dtype of `like`."""
        return carray(_pointer_at(like, address), count)

    # Of (target, source, count): half the time of a loop over a row of an image.
    copy_bytes = c_function("memcpy", 3)


def aligned(array: np.ndarray) -> np.ndarray:
    """Return `array`, or a copy if its elements lie at odd addresses, as in packed records."""
    return array if array.flags.aligned else array.copy()
