"""Access to the memory of NumPy arrays by address: one machine code serves all layouts, and integers are cheap to pass.

No function here checks an address or an id. The caller ensures that the array lives as long as the call, and that it
has the dtype that the kernel reads, in this machine's byte order. The array's elements must be aligned. An array that
the kernel writes must be writeable.
"""

import ctypes
from typing import Any

import numpy as np
from llvmlite import ir

from spillgrad_kernels.cpu.vector_instructions import prefetch_line
from spillgrad_kernels.jit.compile import (
    DISABLE_JIT,
    c_function,
    carray,
    cgutils,
    emitted,
    intrinsic,
    jit,
    register_jitable,
    types,
)
from spillgrad_kernels.layout import DATA_FIELD
from spillgrad_kernels.threads.atomics import WORD_BYTES, load

_INT64 = np.zeros(1, np.int64)
_LINE_BYTES = 64  # of the cache


@jit
def data_of(array_id: int) -> int:
    """Return the address of the first element of the NumPy array whose `id` is `array_id`."""
    return load(array_id, DATA_FIELD // WORD_BYTES)


if DISABLE_JIT:

    def array_at(like: np.ndarray, address: int, count: int) -> np.ndarray:
        """Return the `count` elements at `address` as a 1-D array of the dtype of `like`, without a copy."""
        memory = (ctypes.c_byte * int(count * like.itemsize)).from_address(int(address))
        return np.ndarray((count,), like.dtype, memoryview(memory))

    row_at = array_at

    def row_of(array: np.ndarray) -> Any:
        """Return the row of all elements of a C-contiguous array."""
        return array

    def words_on_stack(count: int) -> Any:
        """Return a function for kernels. It returns an array of `count` int64, valid until the calling kernel ends."""
        return lambda: np.empty(count, np.int64)

    def floats_on_stack(count: int) -> Any:
        """Return a function for kernels. It returns a row of `count` float32, valid until the calling kernel ends.

        LLVM knows that no array overlaps it. It begins at a line of the cache.
        """
        return lambda: np.empty(count, np.float32)

    def promise_no_overlap() -> None:
        """Promise that no array that the calling kernel gets overlaps another; LLVM then checks that no more.

        Arrays that the kernel does not access, or only reads, may overlap. The kernel must call this itself.
        """

    def prefer_widest_vectors() -> None:
        """Let LLVM use vectors of 512 bits in the calling kernel, also where it prefers 256.

        The kernel must call this itself.
        """

    def prefetching(count: int, to_write: bool) -> Any:
        """Return a function for kernels that moves `count` elements of a row of float32 or of integers to the cache.

        The function takes a result of `row_at` and the number of the first element.
        """
        return lambda row, i: None

    def element(row: Any, i: int) -> Any:
        """Return element `i` of `row`, a result of `row_at` or of `floats_on_stack`."""
        return row[i]

    def set_element(row: Any, i: int, value: Any) -> None:
        """Set element `i` of `row`, a result of `row_at` or of `floats_on_stack`, to `value`."""
        row[i] = value

    def copy_bytes(target: int, source: int, count: int) -> None:
        """Copy `count` bytes from address `source` to address `target`. The two ranges must not overlap."""
        ctypes.memmove(int(target), int(source), int(count))

else:

    @intrinsic
    def row_at(typing_context: Any, like: Any, address: Any, count: Any) -> Any:
        """Return a row: a pointer to `count` elements at `address`, of the dtype of `like`.

        `element` and `set_element` access the row. A loop over a row compiles in two thirds of the time that a loop
        over an array takes.
        """

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[1], context.get_value_type(signature.return_type))

        return types.CPointer(like.dtype)(like, types.intp, types.intp), codegen

    @register_jitable
    def row_of(array: np.ndarray) -> Any:
        return row_at(array, array.ctypes.data, array.size)

    @intrinsic
    def element(typing_context: Any, row: Any, i: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return context.unpack_value(builder, row.dtype, builder.gep(arguments[0], arguments[1:], inbounds=True))

        return row.dtype(row, types.intp), codegen

    @intrinsic
    def set_element(typing_context: Any, row: Any, i: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            place = builder.gep(arguments[0], arguments[1:2], inbounds=True)
            context.pack_value(builder, row.dtype, arguments[2], place)
            return context.get_dummy_value()

        return types.void(row, types.intp, row.dtype), codegen

    @register_jitable
    def array_at(like: np.ndarray, address: int, count: int) -> Any:
        return carray(row_at(like, address, count), count)

    def words_on_stack(count: int) -> Any:
        @intrinsic
        def address(typing_context: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                word = ir.IntType(64)
                return builder.ptrtoint(cgutils.alloca_once(builder, word, size=count), word)

            return types.int64(), codegen

        @register_jitable(inline="always")  # the memory belongs to the function that contains `address`
        def words() -> Any:
            return array_at(_INT64, address(), count)

        return words

    def floats_on_stack(count: int) -> Any:
        @intrinsic
        def pointer(typing_context: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                memory = cgutils.alloca_once(builder, ir.FloatType(), size=count)
                memory.align = _LINE_BYTES
                return memory

            return types.CPointer(types.float32)(), codegen

        @register_jitable(inline="always")  # the memory belongs to the function that contains `pointer`
        def floats() -> Any:
            return pointer()

        return floats

    @emitted(lambda: types.void())
    def promise_no_overlap(builder: Any) -> None:
        for argument in builder.function.args:
            # An array is passed as several values, of which number 4 is the address; a row is its address.
            _, _, part = argument.name.removeprefix("arg.").partition(".")
            if part in ("", "4") and isinstance(argument.type, ir.PointerType):
                argument.add_attribute("noalias")

    @emitted(lambda: types.void())
    def prefer_widest_vectors(builder: Any) -> None:
        # The set's own `add` refuses attributes with a value.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')

    def prefetching(count: int, to_write: bool) -> Any:
        @emitted(lambda row, i: types.void(row, types.intp))
        def prefetch(builder: Any, row: Any, i: Any) -> None:
            bits = 32 if isinstance(row.type.pointee, ir.FloatType) else row.type.pointee.width
            address = builder.ptrtoint(builder.gep(row, [i]), ir.IntType(64))
            for line in range(0, count * bits // 8, _LINE_BYTES):
                prefetch_line(builder, builder.add(address, address.type(line)), to_write)

        return prefetch

    # copy_bytes(target, source, count) takes half the time of a loop over a row of an image.
    copy_bytes = c_function("memcpy", 3)


def aligned(array: np.ndarray) -> np.ndarray:
    """Return `array`, or a copy of it if the elements are not aligned, as in packed records."""
    return array if array.flags.aligned else array.copy()
