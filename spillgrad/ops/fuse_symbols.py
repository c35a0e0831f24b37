"""Symbols: the placeholders for tensors with which `fuse` calls a function, to record its operations as a program.

A symbol is a tensor with a dtype and a number of dimensions but without values. Operations take it like any tensor
until they would read memory: then elementwise operations are recorded, and all others raise.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from spillgrad import data_type, dtypes
from spillgrad.autograd.core.grad_mode import is_recording
from spillgrad.errors import DtypeError, FusionError
from spillgrad.tensor import Tensor
from spillgrad.tensor_data import Storage
from spillgrad_kernels.tables.elementwise_derivatives import ROWS
from spillgrad_kernels.tables.formula import Formula
from spillgrad_kernels.tables.program import Program, Step, Value


class Recorder:
    """Records the operations on its symbols as a program; `name` is the name of the fused function."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.program = Program()

    def input(self, dtype: dtypes.DType, ndim: int) -> "Symbol":
        """Add an argument to the program and return its symbol."""
        return Symbol(self, self.program.add_input(computed(dtype)), dtype, ndim)

    def step(
        self, formula: Formula, derivatives: dict[str, Formula], operands: Sequence[Any], constants: dtypes.DType,
        dtype: dtypes.DType,
    ) -> "Symbol":  # fmt: skip
        """Record `formula` of symbols and of numbers, which get the dtype `constants`; return the result's symbol."""
        number = (bool, int, float)[dtypes.category(constants)]
        values = tuple([o.value if isinstance(o, Symbol) else number(o) for o in operands])
        value = self.program.add_step(Step(formula, derivatives, values, computed(constants)), computed(dtype))
        symbol = Symbol(self, value, dtype, max(o.ndim for o in operands if isinstance(o, Symbol)))
        return symbol if is_recording() or not derivatives else symbol.detach()


class Symbol(Tensor):
    """The placeholder for a tensor inside a function that is being fused."""

    _requires_grad = False
    _base = _base_fn = _grad_fn = None
    _output_nr = 0

    def __init__(self, recorder: Recorder, value: Value, dtype: dtypes.DType, ndim: int) -> None:
        self.recorder = recorder
        self.value = value
        self._dtype = dtype
        self._ndim = ndim

    @property
    def dtype(self) -> data_type.dtype:
        return data_type.BY_NUMPY[self._dtype]

    @property
    def numpy_dtype(self) -> dtypes.DType:
        return self._dtype

    @property
    def ndim(self) -> int:
        return self._ndim

    @property
    def _array(self) -> np.ndarray:  # type: ignore[override]
        raise Unrecorded

    @property
    def _storage(self) -> Storage:  # type: ignore[override]
        raise Unrecorded

    def __bool__(self) -> NoReturn:
        raise FusionError(
            f"{self.recorder.name}: got a branch (if, and, or, while) on a value; use where(), & or |, or branch on an "
            "argument that is no tensor and no float"
        )

    def __repr__(self) -> str:
        return f"<value {self.value.index} of {self.recorder.name}, {self.dtype}, {self.ndim} dimensions>"

    def detach(self) -> "Symbol":
        return self.recorder.step(_DETACH, {}, (self,), self._dtype, self._dtype)

    def detach_(self) -> NoReturn:
        raise Unrecorded


class Unrecorded(Exception):  # it never leaves fuse, which knows the operation and raises FusionError
    """Raised if an operation reads or changes the memory of a symbol."""


def computed(dtype: dtypes.DType) -> dtypes.DType:
    """Return the dtype in which a kernel holds values of `dtype`. Raises DtypeError for complex numbers."""
    if dtypes.is_complex(dtype):
        raise DtypeError(f"fuse: got {dtype}; pass real and imaginary parts")
    return dtypes.float32 if dtype in dtypes.HALF else dtype


_TO: dict[str, tuple[Formula, Formula]] = {
    "float16": (lambda self: float16(self), lambda g: float16(g)),  # type: ignore[name-defined]  # noqa: F821
    "bfloat16": (lambda self: bfloat16(self), lambda g: bfloat16(g)),  # type: ignore[name-defined]  # noqa: F821
    "float32": (lambda self: float32(self), lambda g: float32(g)),  # type: ignore[name-defined]  # noqa: F821
    "float64": (lambda self: float64(self), lambda g: float64(g)),  # type: ignore[name-defined]  # noqa: F821
}
_DETACH: Formula = lambda self: detach(self)  # type: ignore[name-defined]  # noqa: E731, F821
_LOGIC: dict[str, Formula] = {
    "and": lambda self, other: self & other,
    "or": lambda self, other: self | other,
    "xor": lambda self, other: self != other,
    "not": lambda self: ~self,
}


def record(name: str, operands: Sequence[Any]) -> Any:
    """Record the operation `name` and return the symbol of its result; at least one operand must be a symbol.

    Raises FusionError for an operation that is not elementwise, a tensor that is no argument, and integer arithmetic.
    """
    first = next(o for o in operands if isinstance(o, Symbol))
    who = first.recorder.name
    if any(isinstance(o, Tensor) and (not isinstance(o, Symbol) or o.recorder is not first.recorder) for o in operands):
        raise FusionError(f"{who}: got a tensor from outside in {name}; pass it as an argument")
    if name in ROWS:
        return _record_row(name, operands)
    if name == "to_copy":
        return _convert(first, operands[1])
    if name == "clone":
        return first
    family, _, operator = name.partition("_")
    if family in ("logical", "bitwise") and operator in _LOGIC:
        if family == "bitwise" and any(isinstance(o, Symbol) and o.dtype != dtypes.bool_ for o in operands):
            raise FusionError(f"{who}: got {name} of numbers; only that of truth values can be fused")
        truths = [_convert(o, dtypes.bool_) if isinstance(o, Symbol) else bool(o) for o in operands]
        return first.recorder.step(_LOGIC[operator], {}, truths, dtypes.bool_, dtypes.bool_)
    raise refusal(who, name)


def refusal(who: str, name: str) -> FusionError:
    """Return (not raise) the FusionError for an operation that is not elementwise."""
    return FusionError(
        f"{who}: got {name}, which is no elementwise operation with a kernel; take it out of the fused function, and "
        "pass what it returns as an argument"
    )


def _record_row(name: str, operands: Sequence[Any]) -> Symbol:
    row = ROWS[name]
    values = operands[1:] if name == "where" else operands
    recorder = next(o for o in operands if isinstance(o, Symbol)).recorder
    found = [o.numpy_dtype for o in values if isinstance(o, Symbol)]
    dtype = found[0] if found else dtypes.result_type([], list(values))
    exact = row.result == "bool" or name == "where"
    if dtypes.category(dtype) < 2 and not exact:
        raise FusionError(
            f"{recorder.name}: got {name} of {dtype}; integers and bools can be compared, chosen by where, or take "
            "part in arithmetic with floats: convert with .to(float32)"
        )
    # Python numbers are compared as they are: 300 is above every uint8.
    constants = dtypes.int64 if dtypes.category(dtype) == 1 else dtype
    return recorder.step(
        row.forward, row.derivatives, operands, constants, dtypes.bool_ if row.result == "bool" else dtype
    )


def _convert(symbol: Symbol, dtype: dtypes.DType) -> Symbol:
    present = symbol.numpy_dtype
    if present == dtype:
        return symbol
    if dtype == dtypes.bool_:
        return symbol.recorder.step(lambda self: self != 0, {}, (symbol,), present, dtype)
    if not dtypes.is_floating_point(dtype):
        raise FusionError(f"{symbol.recorder.name}: got a conversion to {dtype}; only to floats and bool can be fused")
    back = {"self": _TO[str(present)][1]} if dtypes.is_floating_point(present) else {}
    return symbol.recorder.step(_TO[str(dtype)][0], back, (symbol,), dtype, dtype)
