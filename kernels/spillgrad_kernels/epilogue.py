"""Epilogues: what is done to a block of a product while it is still in the cache.

An epilogue is a formula (see `formula.py`) of the product and, if it has a second parameter, of another matrix:
`lambda product, other: other + gelu(product)`. Kernels get it as the address of a native function, so that one machine
code of the product serves all of them.
"""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from spillgrad_kernels.compile import DISABLE_JIT, intrinsic, jit, types
from spillgrad_kernels.formula import FUNCTIONS, Formula, trace
from spillgrad_kernels.pointers import array_at

NO_EPILOGUE = 0

_PARAMETERS = ("rows", "columns", "product", "product_row", "other", "other_row", "result", "result_row")

if DISABLE_JIT:

    def run_epilogue(epilogue: int, *arguments: int) -> None:
        """Call an epilogue for a block of `rows` x `columns` elements.

        The arguments are `_PARAMETERS`: `product`, `other` and `result` are addresses, followed by the bytes from one
        row to the next.
        """
        ctypes.cast(int(epilogue), ctypes.py_object).value(*arguments)

else:

    @intrinsic
    def run_epilogue(
        typing_context: Any, epilogue: Any, rows: Any, columns: Any, product: Any, product_row: Any, other: Any,
        other_row: Any, result: Any, result_row: Any,
    ) -> Any:  # fmt: skip
        """Call an epilogue for a block of `rows` x `columns` elements.

        The arguments are `_PARAMETERS`: `product`, `other` and `result` are addresses, followed by the bytes from one
        row to the next.
        """

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            word = ir.IntType(64)
            kind = ir.FunctionType(word, [word] * len(_PARAMETERS))
            builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])
            return context.get_dummy_value()

        return types.void(*[types.int64] * (1 + len(_PARAMETERS))), codegen


@functools.cache
def _function(formula: Formula, name: str, dtype: np.dtype[Any]) -> Callable[..., int]:
    """Return the function of a formula with `_PARAMETERS`."""
    body = trace(formula, dtype.type)
    inputs = dict(zip(("product", "other"), body.inputs, strict=False))
    lines = [
        f"def epilogue({', '.join(_PARAMETERS)}):",
        "    for r in range(rows):",
        *(f"        {array}s = array_at(like, {array} + r * {array}_row, columns)" for array in [*inputs, "result"]),
        "        for i in range(columns):",
        *(f"            {value} = {array}s[i]" for array, value in inputs.items()),
        *(f"            {line}" for line in body.lines),
        f"            results[i] = {body.results[0]}",
        "    return 0",
    ]
    like: Any = np.zeros(1, dtype)
    namespace = {**FUNCTIONS, **body.constants, "array_at": array_at, "like": like, "__name__": __name__}
    exec(compile("\n".join(lines), f"<epilogue {name}>", "exec"), namespace)
    return jit(namespace["epilogue"], name=f"epilogue.{name}.{dtype}", has_address=True)  # type: ignore[no-any-return]


@functools.cache
def epilogue(formula: Formula, name: str, dtype: np.dtype[Any]) -> int:
    """Return where the machine code is of a formula for products of `dtype`, float32 or float64, for good.

    Without compilation, the id of a Python function.
    """
    function: Any = _function(formula, name, dtype)
    if DISABLE_JIT:
        return id(function)
    signature = (types.int64,) * len(_PARAMETERS)
    function.compile(signature)
    compiled = function.overloads[signature]
    address: int = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_cfunc_wrapper_name)
    if address == NO_EPILOGUE:  # products would be left as they are
        raise RuntimeError(f"epilogue {name}: the machine code has no address; compile it with has_address=True")
    return address
