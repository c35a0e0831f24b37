"""Load and store memory by address in kernels.

`loaders[dtype, lanes](address)` and `storers[dtype, lanes](address, *values)` access device memory. `shared_loaders`
and `shared_storers` access a block's shared memory, whose address is `shared_address(array)`.

`lanes` is the number of adjacent elements that one access moves, at most 16 bytes; the address must be a multiple of
the access's size. In a kernel, float16 and bfloat16 become float32; in memory, a bool is one byte. Stores convert as in
NumPy: floats lose their fraction in integers, and integers wrap around. No address is checked.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numba.cuda import types

from spillgrad_kernels.cuda.jit.compile import SIMULATED, device
from spillgrad_kernels.device_array import ACCESS_BYTES as ACCESS_BYTES  # modules of kernels import the name from here

_GLOBAL, _SHARED = 1, 3  # the address spaces of LLVM's NVPTX target
WORD_BYTES = 8  # the size of an int64 in tables for kernels

HALF = frozenset({"float16", "bfloat16"})
_DTYPES: dict[str, Any] = {
    "bool": np.bool_, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16,
    **{name: getattr(np, name) for name in ("float32", "float64")},
    **{f"{kind}{bits}": getattr(np, f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}  # fmt: skip
# The types that kernels compute with, by the name of the dtype in memory.
kernel_types = {
    name: types.boolean if name == "bool" else types.float32 if name in HALF else getattr(types, name)
    for name in _DTYPES
}


def computing_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which kernels compute and add up: float32 for half precision, else `dtype` itself."""
    return np.dtype(np.float32) if dtype.name in HALF else dtype


def _lanes_of(itemsize: int) -> list[int]:
    return [2**k for k in range(5) if 2**k * itemsize <= ACCESS_BYTES]


def widest(itemsize: int, *places: int) -> int:
    """Return the most lanes, of `itemsize` bytes, for which all `places` (addresses and strides) are aligned."""
    return max(lanes for lanes in _lanes_of(itemsize) if not any(place % (lanes * itemsize) for place in places))


if SIMULATED:

    def _memory(dtype: np.dtype[Any], lanes: int, address: int) -> np.ndarray:
        words = (ctypes.c_byte * (lanes * dtype.itemsize)).from_address(int(address))
        return np.ndarray((lanes,), dtype, memoryview(words))

    def _loader(dtype: np.dtype[Any], lanes: int, space: int) -> Callable[..., Any]:
        def load(address: int) -> Any:
            values = _memory(dtype, lanes, address)
            values = values.astype(np.float32) if dtype.name in HALF else values
            return values[0] if lanes == 1 else tuple(values)

        return load

    def quotient(number: int, divisor: int) -> int:
        """Return the whole part of `number` / `divisor`. Neither may be negative."""
        return number // divisor

    def shared_address(array: np.ndarray) -> int:
        """Return the address of the first element of an array in shared memory."""
        return int(array.ctypes.data)

    def _storer(dtype: np.dtype[Any], lanes: int, space: int) -> Callable[..., None]:
        def store(address: int, *values: Any) -> None:
            for i, value in enumerate(values):
                _memory(dtype, lanes, address)[i] = np.asarray(value).astype(dtype)

        return store

else:
    from llvmlite import ir
    from numba.cuda.extending import intrinsic

    _INT16, _INT32, _FLOAT = ir.IntType(16), ir.IntType(32), ir.FloatType()

    def _in_memory(dtype: np.dtype[Any]) -> Any:
        if dtype.name == "float64":
            return ir.DoubleType()
        return _FLOAT if dtype.name == "float32" else ir.IntType(8 * dtype.itemsize)

    def _widened(builder: Any, dtype: np.dtype[Any], value: Any) -> Any:
        if dtype.name == "bool":
            return builder.icmp_unsigned("!=", value, value.type(0))
        if dtype.name == "bfloat16":
            return builder.bitcast(builder.shl(builder.zext(value, _INT32), _INT32(16)), _FLOAT)
        if dtype.name == "float16":
            return builder.fpext(builder.bitcast(value, ir.HalfType()), _FLOAT)
        return value

    def _truncated(builder: Any, dtype: np.dtype[Any], x: Any) -> Any:
        """Emit code that converts a float to an integer: to the lowest integer if out of range, as on x86-64."""
        word = ir.IntType(64 if dtype.itemsize == 8 or dtype.name == "uint32" else 32)
        # The lower half of uint64's range is converted as int64. The upper half is converted as int64 after subtracting
        # 2**63.
        limit = x.type(2.0 ** (word.width - 1))
        upper = builder.fcmp_ordered(">=", x, limit) if dtype.name == "uint64" else None
        if upper is not None:
            x = builder.select(upper, builder.fsub(x, limit), x)
        fits = builder.and_(builder.fcmp_ordered(">=", x, x.type(-limit.constant)), builder.fcmp_ordered("<", x, limit))
        lowest = word(1 << (word.width - 1))
        found = builder.select(fits, builder.fptosi(x, word), lowest)
        if upper is not None:
            found = builder.select(upper, builder.xor(found, lowest), found)
        return builder.trunc(found, ir.IntType(8 * dtype.itemsize)) if word.width > 8 * dtype.itemsize else found

    def _stored(context: Any, builder: Any, dtype: np.dtype[Any], kind: Any, value: Any) -> Any:
        """Emit code that converts `value`, of the kernel type `kind`, to the bits that represent it in memory."""
        if isinstance(kind, types.Float) and dtype.kind in "iu":
            return _truncated(builder, dtype, value)
        if kind == types.float64 and dtype.name == "float16":  # converted in one step, so as to round once
            return builder.bitcast(builder.fptrunc(value, ir.HalfType()), _INT16)
        return _narrowed(builder, dtype, context.cast(builder, value, kind, kernel_types[dtype.name]))

    def _narrowed(builder: Any, dtype: np.dtype[Any], value: Any) -> Any:
        if dtype.name == "bool":
            return builder.zext(value, ir.IntType(8))
        if dtype.name == "bfloat16":  # round to nearest, ties to even; a NaN stays NaN
            word = builder.bitcast(value, _INT32)
            odd = builder.and_(builder.lshr(word, _INT32(16)), _INT32(1))
            nearest = builder.add(builder.add(word, _INT32(0x7FFF)), odd)
            is_nan = builder.fcmp_unordered("uno", value, value)
            word = builder.select(is_nan, builder.or_(word, _INT32(1 << 22)), nearest)
            return builder.trunc(builder.lshr(word, _INT32(16)), _INT16)
        if dtype.name == "float16":
            return builder.bitcast(builder.fptrunc(value, ir.HalfType()), _INT16)
        return value

    @intrinsic
    def quotient(typing_context: Any, number: Any, divisor: Any) -> Any:
        """Return the whole part of `number` / `divisor`. Neither may be negative."""

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.udiv(*arguments)

        return types.int64(types.int64, types.int64), codegen

    @intrinsic
    def shared_address(typing_context: Any, array: Any) -> Any:
        """Return the address of the first element of an array in shared memory."""

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data = context.make_array(array)(context, builder, arguments[0]).data
            here = builder.addrspacecast(data, data.type.pointee.as_pointer(_SHARED))
            return builder.ptrtoint(here, ir.IntType(64))

        return types.int64(array), codegen

    def _loader(dtype: np.dtype[Any], lanes: int, space: int) -> Callable[..., Any]:
        element, value = _in_memory(dtype), kernel_types[dtype.name]
        kind = ir.VectorType(element, lanes) if lanes > 1 else element
        result = types.UniTuple(value, lanes) if lanes > 1 else value

        def load(typing_context: Any, address: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                loaded = builder.load(builder.inttoptr(arguments[0], kind.as_pointer(space)))
                loaded.align = lanes * dtype.itemsize
                if lanes == 1:
                    return _widened(builder, dtype, loaded)
                parts = [builder.extract_element(loaded, _INT32(i)) for i in range(lanes)]
                return context.make_tuple(builder, result, [_widened(builder, dtype, part) for part in parts])

            return result(types.int64), codegen

        return intrinsic(load)  # type: ignore[no-any-return]

    def _storer(dtype: np.dtype[Any], lanes: int, space: int) -> Callable[..., None]:
        element = _in_memory(dtype)
        kind = ir.VectorType(element, lanes) if lanes > 1 else element

        def store(typing_context: Any, address: Any, *values: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                parts = [
                    _stored(context, builder, dtype, given, part)
                    for given, part in zip(signature.args[1:], arguments[1:], strict=True)
                ]
                stored = parts[0] if lanes == 1 else kind(ir.Undefined)
                for i, part in enumerate(parts if lanes > 1 else ()):
                    stored = builder.insert_element(stored, part, _INT32(i))
                place = builder.inttoptr(arguments[0], kind.as_pointer(space))
                builder.store(stored, place).align = lanes * dtype.itemsize
                return context.get_dummy_value()

            return types.void(types.int64, *map(types.unliteral, values)), codegen

        # Numba reads the number of arguments from the signature, so an intrinsic cannot take *values.
        names = ", ".join(f"v{i}" for i in range(lanes))
        source = f"def store_{dtype.name}_x{lanes}(context, address, {names}): return store(context, address, {names})"
        namespace: dict[str, Any] = {"store": store}
        exec(source, namespace)
        return intrinsic(namespace[f"store_{dtype.name}_x{lanes}"])  # type: ignore[no-any-return]


_KINDS = [(np.dtype(kind), lanes) for kind in _DTYPES.values() for lanes in _lanes_of(np.dtype(kind).itemsize)]
# Keys are the name of a dtype and the number of lanes.
loaders = {(dtype.name, lanes): _loader(dtype, lanes, _GLOBAL) for dtype, lanes in _KINDS}
storers = {(dtype.name, lanes): _storer(dtype, lanes, _GLOBAL) for dtype, lanes in _KINDS}
shared_loaders = {(dtype.name, lanes): _loader(dtype, lanes, _SHARED) for dtype, lanes in _KINDS}
shared_storers = {(dtype.name, lanes): _storer(dtype, lanes, _SHARED) for dtype, lanes in _KINDS}


def lane_loader(dtype: str, lanes: int) -> Callable[[int], Any]:
    """Return the device function load(address) for `lanes` elements. It returns a tuple even if `lanes` is 1."""
    load = loaders[dtype, lanes]
    return load if lanes > 1 else device(lambda address: (load(address),))
