"""What integers and truth values are computed by on a device, with operands that lie at the ends of their ranges."""

import itertools

import numpy as np

from spillgrad_kernels.cuda import logic
from spillgrad_kernels.tables.elementwise_derivatives import ROWS
from spillgrad_kernels.tables.formula import parameters

INTEGERS = [np.dtype(f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)] + [np.dtype(bool)]

_ROWS = {name: row.forward for name, row in ROWS.items() if row.result != "float"}
FORMULAS = {**_ROWS, **logic.BITWISE, **logic.LOGICAL}
_BOOLEAN = {name for name, row in ROWS.items() if row.result == "bool"} | set(logic.LOGICAL)
# What NumPy computes in float64, through which not all of 64 bits come.
_THROUGH_FLOATS = ("heaviside", "elu", "celu")


def operands_of(name, dtype):
    """Operands for every combination of a few values."""
    names = parameters(FORMULAS[name])
    values = {0, 1} if dtype == np.bool_ else {0, 1, 2, 3, 7, 13, 31, 100}
    if dtype != np.bool_ and not (dtype.itemsize == 8 and name in _THROUGH_FLOATS):
        limits = np.iinfo(dtype)
        values |= {limits.min, limits.min + 1, limits.max - 1, limits.max}
    if dtype.kind == "i":
        values |= {-1, -2, -7, -8}
    chosen = np.array(sorted(values), dtype)
    chosen = chosen[:: 1 if len(names) < 3 else 2]
    grid = np.array(list(itertools.product(chosen, repeat=len(names))), dtype)
    operands = [np.ascontiguousarray(column) for column in grid.T]
    if name == "where":
        operands[0] = operands[0] != 0
    if name == "celu":  # what an integer becomes of 0 / 0 is anything
        operands[1] = np.maximum(operands[1], 1)
    if name == "pow":
        operands[1] = np.where(operands[1] < 0, 3, operands[1]).astype(dtype)
    return operands


def as_by_numpy(name, operands, dtype):
    """What NumPy makes of them, or None where it does not take this dtype, or gives another."""
    if dtype == np.bool_ and "shift" in name:
        return None
    with np.errstate(all="ignore"):
        try:
            result = FORMULAS[name](*operands)
        except TypeError:
            return None
        return np.broadcast_to(np.asarray(result).astype(bool if name in _BOOLEAN else dtype), operands[0].shape)
