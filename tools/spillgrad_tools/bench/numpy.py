"""NumPy as a library of the benchmark: it is timed for operations that it has, and computes all references."""

from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from spillgrad_tools.bench.operations import Call, Library, Operation


class NumPy(Library):
    """NumPy, which records no graph."""

    version = f"NumPy {np.__version__}"
    has_gradients = False

    def set_num_threads(self, count: int) -> None:
        """Do nothing: the environment of the process already limits the threads of NumPy's BLAS library."""

    def no_grad(self) -> Any:
        """Return a context manager under which no graph is recorded."""
        return nullcontext()

    def prepare(self, operand: np.ndarray, requires_grad: bool) -> np.ndarray:
        """Return the operand as it is."""
        return operand

    def as_numpy(self, result: Any) -> np.ndarray:
        """Return a result as an array."""
        return np.asarray(result)

    def call(self, operation: Operation, *operands: Any) -> Call | None:
        """Return a call of NumPy's own function with the operands; None if NumPy has no function for the operation."""
        function = operation.numpy_function()
        return None if function is None else partial(function, *operands)

    def into(self, operation: Operation, *operands: Any) -> Call | None:
        """Return a call of NumPy's function that writes to its last operand; None if NumPy has no such function."""
        return partial(_copy, *operands) if operation.name == "copy" else self.call(operation, *operands)


def _copy(x: np.ndarray, out: np.ndarray) -> np.ndarray:
    np.copyto(out, x)
    return out


LIBRARY = NumPy
