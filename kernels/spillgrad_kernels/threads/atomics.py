"""Atomic operations of compiled code on words that threads share.

A word is an int64 at `address + 8 * index`. All operations are sequentially consistent. Without compilation there is
one thread, for which plain reads and writes suffice.
"""

import ctypes
from typing import Any

import llvmlite.binding
from llvmlite import ir

from spillgrad_kernels.jit.compile import DISABLE_JIT, c_function, cgutils, emitted, jit, types

WORD_BYTES = 8
# How often a waiting thread reads a word that another thread will change soon, before it yields its core.
_YIELD_AFTER = 1_000
_PAUSES = {"x86_64": ("llvm.x86.sse2.pause", ()), "aarch64": ("llvm.aarch64.hint", (1,))}


def word_pointer(builder: Any, address: Any, index: Any) -> Any:
    """Return the LLVM pointer to the word at `address` + 8 * `index`."""
    integer = ir.IntType(64)
    place = builder.add(address, builder.mul(index, integer(WORD_BYTES)))
    return builder.inttoptr(place, integer.as_pointer())


if DISABLE_JIT:

    def _word(address: int, index: int) -> ctypes.c_int64:
        return ctypes.c_int64.from_address(int(address) + WORD_BYTES * int(index))

    def load(address: int, index: int) -> int:
        """Return the word at `address` + 8 * `index`."""
        return _word(address, index).value

    def store(address: int, index: int, value: int) -> None:
        """Set the word at `address` + 8 * `index` to `value`."""
        _word(address, index).value = value

    def fetch_add(address: int, index: int, value: int) -> int:
        """Add `value` to the word at `address` + 8 * `index`; return the word's former value."""
        before = load(address, index)
        store(address, index, before + value)
        return before

else:

    @emitted(lambda address, index: types.int64(types.int64, types.int64))
    def load(builder: Any, address: Any, index: Any) -> Any:
        return builder.load_atomic(word_pointer(builder, address, index), "seq_cst", WORD_BYTES)

    @emitted(lambda address, index, value: types.void(*[types.int64] * 3))
    def store(builder: Any, address: Any, index: Any, value: Any) -> None:
        builder.store_atomic(value, word_pointer(builder, address, index), "seq_cst", WORD_BYTES)

    @emitted(lambda address, index, value: types.int64(*[types.int64] * 3))
    def fetch_add(builder: Any, address: Any, index: Any, value: Any) -> Any:
        return builder.atomic_rmw("add", word_pointer(builder, address, index), value, "seq_cst")


# Without compilation, nothing calls the functions below: no other thread works on the words.


@emitted(lambda address, index, value: types.int64(*[types.int64] * 3))
def exchange(builder: Any, address: Any, index: Any, value: Any) -> Any:
    """Set the word at `address` + 8 * `index` to `value`; return the word's former value."""
    return builder.atomic_rmw("xchg", word_pointer(builder, address, index), value, "seq_cst")


@emitted(lambda: types.void())
def pause(builder: Any) -> None:
    """Tell the processor core that the caller is a waiting loop."""
    processor = llvmlite.binding.get_process_triple().partition("-")[0]
    if processor in _PAUSES:
        name, operands = _PAUSES[processor]
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(32)] * len(operands))
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        builder.call(function, [ir.IntType(32)(operand) for operand in operands])


yield_core = c_function("sched_yield", 0)


@jit
def wait_for(address: int, index: int, value: int) -> None:
    """Wait until the word at `address` + 8 * `index` is at least `value`; another running thread must set it soon."""
    looks = 0
    while load(address, index) < value:
        looks += 1
        if looks < _YIELD_AFTER:
            pause()
        else:
            yield_core()
