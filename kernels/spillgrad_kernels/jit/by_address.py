"""Call a kernel by the address of its machine code: the caller is compiled once, whichever kernel it is given.

The caller's machine code does not contain the kernel's. A kernel that `call` runs takes int64 arguments, returns
nothing, allocates nothing and cannot fail; `emit_call` is for all others.
"""

from typing import Any

from spillgrad_kernels.jit.compile import DISABLE_JIT, cgutils, intrinsic, types

# What Numba's functions return if no exception was raised: that there is a result, or that it is None.
_DONE = 0, -2
_uncompiled: dict[int, Any] = {}  # keys stand for addresses; entries stay, as machine code does


def integers(count: int) -> tuple[Any, ...]:
    """Return the types of `count` int64 arguments: none with `NUMBA_DISABLE_JIT=1`, where Numba is not imported."""
    return () if DISABLE_JIT else (types.int64,) * count


def compiled_for(kernel: Any, kinds: tuple[Any, ...]) -> Any:
    """Compile `kernel` for arguments of the types `kinds`, or load it; return what Numba made."""
    if kinds not in kernel.overloads:  # `compile` waits for other compiling threads: for ever in a forked child
        kernel.compile(kinds)
    return kernel.overloads[kinds]


def code_address(kernel: Any, kinds: tuple[Any, ...]) -> int:
    """Compile `kernel` for arguments of the types `kinds`, or load it; return the address of the machine code.

    The address stays valid and is never 0. With `NUMBA_DISABLE_JIT=1`, return a number that `call` takes instead of an
    address. Declare a kernel that is called only by its address with `jit(by_address=True)`.
    """
    if DISABLE_JIT:
        _uncompiled[id(kernel)] = kernel
        return id(kernel)
    compiled = compiled_for(kernel, kinds)
    address: int = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
    if address == 0:  # callers use 0 for "no kernel"
        raise RuntimeError(f"kernel {kernel.py_func.kernel_name}: got no address of its machine code")
    return address


def emit_call(context: Any, builder: Any, address: Any, result: Any, kinds: Any, arguments: Any) -> tuple[Any, Any]:
    """Emit LLVM code that calls the machine code at `address`, compiled for arguments of the types `kinds`.

    `result` is the type of the result. Return the LLVM values of whether an exception was raised, and of the pointer to
    the result.
    """
    kind = context.call_conv.get_function_type(result, kinds)
    # A compiled function writes its result and its error through its first two parameters.
    rooms = [cgutils.alloca_once(builder, pointer.pointee) for pointer in kind.args[:2]]
    values = context.get_arg_packer(kinds).as_arguments(builder, arguments)
    status = builder.call(builder.inttoptr(address, kind.as_pointer()), [*rooms, *values])
    done = [builder.icmp_signed("==", status, status.type(code)) for code in _DONE]
    return builder.not_(builder.or_(*done)), rooms[0]


if DISABLE_JIT:

    def call(address: int, arguments: tuple[int, ...]) -> None:
        """Call the kernel whose machine code is at `address` with the int64 numbers `arguments`; kernels call this."""
        _uncompiled[address](*arguments)

else:

    @intrinsic
    def call(typing_context: Any, address: Any, arguments: Any) -> Any:
        """Call the kernel whose machine code is at `address` with the int64 numbers `arguments`; kernels call this."""
        words_of = types.UniTuple(types.int64, len(arguments))

        def codegen(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            address, values = given
            words = [builder.extract_value(values, i) for i in range(len(words_of))]
            emit_call(context, builder, address, types.none, words_of.types, words)
            return context.get_dummy_value()

        return types.void(types.int64, words_of), codegen
