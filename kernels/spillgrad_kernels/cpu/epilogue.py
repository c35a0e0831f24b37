"""Epilogues: formulas that are applied to each block of a product while it is still in the cache.

An epilogue is a formula (see `formula.py`) of the product and, if it has a second parameter, of another matrix, such as
`lambda product, other: other + gelu(product)`. Kernels call an epilogue by its address, so that the product is compiled
once for all epilogues.
"""

import functools
from typing import Any

import numpy as np

from spillgrad_kernels.cpu.pointers import array_at
from spillgrad_kernels.jit.by_address import call, code_address, integers
from spillgrad_kernels.jit.compile import jit, register_jitable
from spillgrad_kernels.tables.formula import FUNCTIONS, Formula, trace

NO_EPILOGUE = 0

# For a block of `rows` x `columns` elements: the addresses of the matrices product, other and result, each followed by
# the matrix's row stride in bytes.
_PARAMETERS = ("rows", "columns", "product", "product_row", "other", "other_row", "result", "result_row")


@functools.cache
def epilogue(formula: Formula, name: str, dtype: np.dtype[Any]) -> int:
    """Compile the code that applies `formula` to a block of a product; return the code's address, which stays valid.

    `dtype` is float32 or float64. The code takes the parameters that `_PARAMETERS` names.
    """
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
    ]
    like: Any = np.zeros(1, dtype)
    namespace = {**FUNCTIONS, **body.constants, "array_at": array_at, "like": like, "__name__": __name__}
    exec(compile("\n".join(lines), f"<epilogue {name}>", "exec"), namespace)
    kernel = jit(namespace["epilogue"], name=f"epilogue.{name}.{dtype}", by_address=True)
    return code_address(kernel, integers(len(_PARAMETERS)))


@register_jitable
def apply_epilogue(epilogue: int, rows: int, columns: int, product: Any, other: Any, result: Any) -> None:
    """Apply the epilogue at an address to a block; a matrix is its address, followed by its strides."""
    call(epilogue, (rows, columns, product[0], product[1], other[0], other[1], result[0], result[1]))
