"""Call a kernel by the address of its machine code: the caller is compiled once, whichever kernel it is given.

A kernel that is called by its address takes int64 arguments, returns nothing, allocates nothing and cannot fail.
"""

from typing import Any

from spillgrad_kernels.jit.compile import DISABLE_JIT, cgutils, intrinsic, types

_uncompiled: dict[int, Any] = {}  # keys stand for addresses; entries stay, as machine code does


def code_address(kernel: Any, parameters: int) -> int:
    """Compile `kernel` for `parameters` int64 arguments; return the address of the machine code.

    The address stays valid and is never 0. With `NUMBA_DISABLE_JIT=1`, return a number that `call` takes instead of an
    address. Declare a kernel that is called only by its address with `jit(by_address=True)`.
    """
    if DISABLE_JIT:
        _uncompiled[id(kernel)] = kernel
        return id(kernel)
    integers = (types.int64,) * parameters
    kernel.compile(integers)
    compiled = kernel.overloads[integers]
    address: int = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
    if address == 0:  # callers use 0 for "no kernel"
        raise RuntimeError(f"kernel {kernel.py_func.kernel_name}: got no address of its machine code")
    return address


if DISABLE_JIT:

    def call(address: int, arguments: tuple[int, ...]) -> None:
        """Call the kernel whose machine code is at `address` with the int64 numbers `arguments`; kernels call this."""
        _uncompiled[address](*arguments)

else:

    @intrinsic
    def call(typing_context: Any, address: Any, arguments: Any) -> Any:
        """Call the kernel whose machine code is at `address` with the int64 numbers `arguments`; kernels call this."""
        integers = types.UniTuple(types.int64, len(arguments))

        def codegen(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            address, values = given
            kind = context.call_conv.get_function_type(types.none, integers.types)
            # A compiled function writes its result and its error through its first two parameters.
            rooms = [cgutils.alloca_once(builder, pointer.pointee) for pointer in kind.args[:2]]
            words = [builder.extract_value(values, i) for i in range(len(integers))]
            builder.call(builder.inttoptr(address, kind.as_pointer()), [*rooms, *words])
            return context.get_dummy_value()

        return types.void(types.int64, integers), codegen
