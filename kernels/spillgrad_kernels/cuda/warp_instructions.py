"""The instructions of a warp on tensor cores, and those that copy to shared memory without registers.

In the simulator, one thread of a warp computes for all its threads, and copies happen when a thread waits for them.

Source: NVIDIA, "Parallel Thread Execution ISA", sections on matrix fragments for mma.m16n8k16 and mma.m16n8k8 of tf32,
on ldmatrix, and on cp.async.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numba.cuda import types

from spillgrad_kernels.cuda.jit.compile import SIMULATED, cuda, device
from spillgrad_kernels.cuda.pointers import ACCESS_BYTES, shared_loaders

WARP = 32
ROWS, COLUMNS = 16, 8  # the rows and columns of the result of one multiplication

if SIMULATED:
    _held: dict[int, Any] = {}  # for each thread of the running block: its argument, then its result

    def _by_warp(own: Any, work: Callable[[list[Any]], list[Any]]) -> Any:
        """Let one thread of each warp call `work` with a list of the warp's `own` values; return this thread's result.

        All threads of the block must call this function.
        """
        thread = cuda.threadIdx.x
        _held[thread] = own
        cuda.syncthreads()
        if thread % WARP == 0:
            members = range(thread, thread + WARP)
            _held.update(zip(members, work([_held[i] for i in members]), strict=True))
        cuda.syncthreads()
        return _held[thread]

    def loader(turned: bool) -> Callable[..., Any]:
        load_row = shared_loaders["int16", 8]

        def of_warp(addresses: list[Any]) -> list[Any]:
            rows = np.array([load_row(address) for address in addresses], np.int16).reshape(4, 8, 8)
            rows = rows.transpose(0, 2, 1) if turned else rows
            return [tuple(words) for words in np.ascontiguousarray(rows).view(np.int32).reshape(4, WARP).T]

        return lambda address: _by_warp(address, of_warp)

    def multiplier(name: str, depth: int) -> Callable[..., Any]:
        dtype = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32}[name]

        def of_warp(given: list[Any]) -> list[Any]:
            words = np.array([own[:6] for own in given], np.int32)
            elements = words.view(dtype).astype(np.float32).reshape(8, 4, 6, -1)
            # The axes are the row, the thread (of four) in the row, (upper or lower half, left or right half), and the
            # element of a word. For B, columns take the place of rows.
            a = elements[:, :, :4].reshape(8, 4, 2, 2, -1).transpose(3, 0, 2, 1, 4).reshape(ROWS, depth)
            b = elements[:, :, 4:].transpose(2, 1, 3, 0).reshape(depth, COLUMNS)
            c = np.array([own[6:] for own in given], np.float32).reshape(8, 4, 2, 2)
            c += (a @ b).reshape(2, 8, 4, 2).transpose(1, 2, 0, 3)
            return [tuple(sums) for sums in c.reshape(WARP, 4)]

        return lambda *own: _by_warp(own, of_warp)

    # For each thread of the running block, the groups of copies that it has not waited for; the last group is open.
    _copies: dict[int, list[list[tuple[int, int, int]]]] = {}

    def copy(to: int, address: int, nbytes: int) -> None:
        _copies.setdefault(cuda.threadIdx.x, [[]])[-1].append((int(to), int(address), int(nbytes)))

    def close_group() -> None:
        _copies.setdefault(cuda.threadIdx.x, [[]]).append([])

    def waiter(newest: int) -> Callable[[], None]:
        def wait() -> None:
            groups = _copies.get(cuda.threadIdx.x, [[]])
            while len(groups) > newest + 1:
                for to, address, nbytes in groups.pop(0):
                    ctypes.memset(to, 0, ACCESS_BYTES)
                    ctypes.memmove(to, address, nbytes)

        return wait

    def rounded(word: Any) -> Any:
        upper = np.array(word, np.int32).view(np.uint32) + np.uint32(1 << 12)
        return (upper & np.uint32(~((1 << 13) - 1) & 0xFFFFFFFF)).view(np.int32)

else:
    from llvmlite import ir
    from numba.cuda.extending import intrinsic

    _INT32, _FLOAT = ir.IntType(32), ir.FloatType()

    def _assembled(builder: Any, code: str, result: Any, constraints: str, arguments: list[Any]) -> list[Any]:
        """Emit the instruction `code`, which has four results; return the results."""
        kind = ir.LiteralStructType([result] * 4)
        function = ir.FunctionType(kind, [argument.type for argument in arguments])
        assembly = ir.InlineAsm(function, code, constraints, side_effect="memory" in constraints)
        made = builder.call(assembly, arguments, attrs=("convergent",))
        return [builder.extract_value(made, i) for i in range(4)]

    def loader(turned: bool) -> Callable[..., Any]:
        result = types.UniTuple(types.int32, 4)
        code = f"ldmatrix.sync.aligned.m8n8.x4{'.trans' if turned else ''}.shared.b16 {{$0, $1, $2, $3}}, [$4];"

        def load_matrices(typing_context: Any, address: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                place = builder.trunc(arguments[0], _INT32)
                words = _assembled(builder, code, _INT32, "=r,=r,=r,=r,r,~{memory}", [place])
                return context.make_tuple(builder, result, words)

            return result(types.int64), codegen

        return intrinsic(load_matrices)  # type: ignore[no-any-return]

    def multiplier(name: str, depth: int) -> Callable[..., Any]:
        result = types.UniTuple(types.float32, 4)
        code = (
            f"mma.sync.aligned.m16n8k{depth}.row.col.f32.{name}.{name}.f32 "
            "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
        )
        constraints = ",".join(["=f"] * 4 + ["r"] * 6 + ["f"] * 4)

        def multiply(
            typing_context: Any, a0: Any, a1: Any, a2: Any, a3: Any, b0: Any, b1: Any, c0: Any, c1: Any, c2: Any,
            c3: Any,
        ) -> Any:  # fmt: skip
            def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                sums = _assembled(builder, code, _FLOAT, constraints, list(arguments))
                return context.make_tuple(builder, result, sums)

            return result(*[types.int32] * 6, *[types.float32] * 4), codegen

        return intrinsic(multiply)  # type: ignore[no-any-return]

    def _emitted(code: str, *kinds: Any) -> Callable[..., Any]:
        """Return an intrinsic that emits an instruction on shared memory, without a result, for numbers of `kinds`."""

        def emit(builder: Any, arguments: Any) -> None:
            given = [builder.trunc(a, kind) if kind is _INT32 else a for a, kind in zip(arguments, kinds, strict=True)]
            constraints = ",".join([*("r" if kind is _INT32 else "l" for kind in kinds), "~{memory}"])
            function = ir.FunctionType(ir.VoidType(), list(kinds))
            builder.call(ir.InlineAsm(function, code, constraints, side_effect=True), given)

        return emit

    _INT64 = ir.IntType(64)
    _emit_copy = _emitted("cp.async.cg.shared.global [$0], [$1], 16, $2;", _INT32, _INT64, _INT32)
    _emit_close = _emitted("cp.async.commit_group;")

    @intrinsic
    def copy(typing_context: Any, to: Any, address: Any, nbytes: Any) -> Any:
        """Copy `nbytes` (0 or 16) from global to shared memory without waiting; the rest of 16 bytes becomes 0."""

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _emit_copy(builder, arguments)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), codegen

    @intrinsic
    def close_group(typing_context: Any) -> Any:
        """Make a group of this thread's copies since the last group."""

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _emit_close(builder, arguments)
            return context.get_dummy_value()

        return types.void(), codegen

    def waiter(newest: int) -> Callable[[], None]:
        """Return an intrinsic that waits for all groups of this thread's copies but the `newest`."""
        emit_wait = _emitted(f"cp.async.wait_group {newest};")

        def wait(typing_context: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                emit_wait(builder, arguments)
                return context.get_dummy_value()

            return types.void(), codegen

        return intrinsic(wait)  # type: ignore[no-any-return]

    @intrinsic
    def rounded(typing_context: Any, word: Any) -> Any:
        """Return the bits of a float32 rounded to the nearest tf32."""

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            assembly = ir.InlineAsm(ir.FunctionType(_INT32, [_INT32]), "cvt.rna.tf32.f32 $0, $1;", "=r,r")
            return builder.call(assembly, arguments)

        return types.int32(types.int32), codegen


# These functions load four matrices of 8 rows of 16 bytes from shared memory. Each thread passes the address of one
# row, and gets a word of each matrix. `load_turned` transposes matrices of half precision.
load_matrices, load_turned = loader(False), loader(True)


@device
def paired(low: int, high: int) -> Any:
    """Return two elements of 16 bits in a word, `low` in its lower half."""
    return np.int32((np.int32(low) & np.int32(0xFFFF)) | (np.int32(high) << np.int32(16)))
