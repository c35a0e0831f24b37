"""Forward functions that keep a plan for each combination of operand layouts.

Operands with the same shapes, strides and dtypes as earlier operands find their plan in one dictionary lookup. A plan
holds the kernel, the layout of the result and the metadata of the autograd node.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from spillgrad import dtypes
from spillgrad.autograd.core.node import OutputMeta
from spillgrad.device.device import CPU, CUDA
from spillgrad.fork_safe_lock import lazy_property
from spillgrad.ops import operation_source
from spillgrad.ops.array_casts import as_array, compute_dtype
from spillgrad_kernels.device_array import ACCESS_BYTES, DeviceArray
from spillgrad_kernels.jit.compile import FLOATS
from spillgrad_kernels.layout import Layout, address_of, layout_of
from spillgrad_kernels.memory.buffers import allocator
from spillgrad_kernels.threads.dispatch import Kernel, launches, run_observed

# The most plans that an operation keeps; a loop over ever new shapes must not fill memory.
_REMEMBERED = 1024


class Large(Protocol):
    """A computation that needs several threads, or copies of its operands."""

    def run(self, operands: Sequence[np.ndarray], outs: tuple[np.ndarray, ...]) -> Any:
        """Compute the result and write it to `outs`."""


class CallPlan(NamedTuple):
    """How to compute an operation on operands with certain layouts, and the metadata of its nodes."""

    code: Kernel | None  # called with a range of units, `words` and the arrays' ids (0 for an absent array)
    units: int
    words: int
    allocate: Callable[..., np.ndarray]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: dtypes.DType
    large: Large | None  # computes if that needs several threads or copies; None: `code` computes
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    kept: np.ndarray  # the memory whose address is `words`


class DevicePlan(NamedTuple):
    """How to compute an operation on device arrays, and the metadata of its nodes."""

    call: Any
    numbers: tuple[int, ...]  # the positions of the operands that are Python numbers
    dtype: dtypes.DType  # the dtype in which these numbers are passed
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


class CallOnDevice(NamedTuple):
    """An adapter that makes a function of device arrays the `call` of a `DevicePlan`."""

    function: Callable[..., Any]

    def run(self, operands: Sequence[Any], outs: Sequence[Any]) -> tuple[Any]:
        """Call the function and return its only result as a tuple of one; `outs` is not used."""
        return (self.function(*operands),)


class Planned:
    """A function of operands (arrays or numbers) and then attributes, with its plans for operand layouts seen so far.

    `absent` is the number of further arrays in the kernels' signature; 0 is passed for each. Subclasses make the plans,
    and compute results without a plan.
    """

    takes_complex = False  # whether plans are made for complex arrays, too

    def __init__(self, name: str, parameters: tuple[str, ...], arrays: int | None = None, absent: int = 0) -> None:
        self.name = name
        self.parameters = parameters
        self.arrays = len(parameters) if arrays is None else arrays
        self.absent = absent
        self.plans: dict[Any, CallPlan] = {}
        self.device_plans: dict[Any, DevicePlan] = {}

    def plan(self, layouts: tuple[Layout, ...], *attributes: Any) -> CallPlan | None:
        """Make and return the plan for operands of these layouts; return None if operands must be converted first."""
        raise NotImplementedError

    def converted(self, *arguments: Any, out: np.ndarray | None = None) -> np.ndarray:
        """Return the result without a plan: for dtypes that no kernel computes in, or an `out` of another layout.

        The result is written to `out` if it fits there.
        """
        raise NotImplementedError

    def plan_on_device(self, operands: tuple[Any, ...], out: Any, is_aligned: bool, *attributes: Any) -> Any:
        """Return (call, shape, dtype) for device arrays and numbers of one dtype; None if there is no such plan.

        `call.run(operands, outs)` returns the results, of this shape and dtype, for operands of the same layouts. `out`
        is the array for the result, or None. `is_aligned` says that the address of every array is a multiple of the
        device's widest access.
        """
        return None

    def _device_key(self, arguments: tuple[Any, ...], out: Any) -> Any:
        key: list[Any] = [out if out is None else out.layout, *arguments[self.arrays :]]
        addresses = 0 if out is None else out.address
        for operand in arguments[: self.arrays]:
            kind = type(operand)
            if kind is DeviceArray:
                key.append(operand.layout)
                addresses |= operand.address
            else:
                key.append(kind)
        key.append(addresses % ACCESS_BYTES == 0)
        return tuple(key)

    def _on_device(self, *arguments: Any, out: Any = None) -> tuple[Any, DevicePlan] | None:
        """Do what `compute` does, for operands of which at least one is a device array."""
        plan = self.device_plans.get(self._device_key(arguments, out))
        if plan is None:
            return None
        operands = arguments[: self.arrays]
        if plan.numbers:
            given = list(operands)
            for position in plan.numbers:
                given[position] = as_array(operands[position], plan.dtype)[()]
            operands = tuple(given)
        return plan.call.run(operands, () if out is None else (out,))[0], plan

    def _prepare_on_device(self, arguments: tuple[Any, ...], out: Any) -> bool:
        operands, attributes = arguments[: self.arrays], arguments[self.arrays :]
        arrays = [operand for operand in operands if type(operand) is DeviceArray]
        dtype = next((array.dtype for array in arrays if array.dtype != dtypes.bool_), dtypes.bool_)
        numbers = tuple([i for i, operand in enumerate(operands) if type(operand) in (float, int, bool)])
        if (
            not dtypes.is_floating_point(dtype)
            or any([array.dtype not in (dtype, dtypes.bool_) for array in arrays])
            or len(numbers) + len(arrays) < len(operands)
            or (out is not None and type(out) is not DeviceArray)
        ):
            return False
        computed = compute_dtype(dtype)
        given = tuple([as_array(x, computed)[()] if i in numbers else x for i, x in enumerate(operands)])
        key = self._device_key(arguments, out)
        found = self.plan_on_device(given, out, key[-1], *attributes)
        if found is None:
            return False
        call, shape, result_dtype = found
        if len(self.device_plans) >= _REMEMBERED:
            self.device_plans.clear()
        inputs = tuple([(operand.shape, operand.dtype) for operand in given])
        self.device_plans[key] = DevicePlan(call, numbers, computed, inputs, (OutputMeta(shape, result_dtype, CUDA),))
        return True

    def promoted(self, *arguments: Any) -> tuple[Any, ...]:
        """Return the arguments, with tensors converted to the dtype of the computation; subclasses override this."""
        return arguments

    @lazy_property
    def compute(self) -> "Callable[..., tuple[np.ndarray, CallPlan | DevicePlan] | None]":
        """The generated function of the arguments and `out`: it returns (result, plan), or None if there is no plan.

        It writes the result to `out`, if given, and returns None if a new result would have another layout than `out`.
        """
        names = {
            "plans": self.plans, "ndarray": np.ndarray, "arrays_of": _arrays_of, "DeviceArray": DeviceArray,
            "on_device": self._on_device, "complex_arrays_of": _complex_arrays_of, "launches": launches,
            "run_observed": run_observed,
        }  # fmt: skip
        further = len(self.parameters) - self.arrays
        source = _compute_source(self.arrays, further, self.absent, self.takes_complex)
        return operation_source.function(source, self.name, names)

    def prepare(self, *arguments: Any, out: Any = None) -> bool:
        """Make the plan for arguments with these layouts, unless it exists; return whether there now is a plan."""
        if any([type(operand) is DeviceArray for operand in arguments[: self.arrays]]):
            return self._prepare_on_device(arguments, out)
        operands, attributes = arguments[: self.arrays], arguments[self.arrays :]
        arrays = _arrays_of(*operands)
        if arrays is None and self.takes_complex:
            arrays = _complex_arrays_of(*operands)
        if arrays is None:
            return False
        key = (*[part for array in arrays for part in (array.shape, array.strides, array.dtype)], *attributes)
        if key in self.plans:
            return True
        plan = self.plan(tuple(map(layout_of, arrays)), *attributes)
        if plan is None:
            return False
        if len(self.plans) >= _REMEMBERED:
            self.plans.clear()
        self.plans[key] = plan
        return True

    def result(self, *arguments: Any, out: np.ndarray | None = None) -> np.ndarray:
        """Return the result for any arguments, written to `out` if it fits there."""
        found = self.compute(*arguments, out=out)
        if found is None and self.prepare(*arguments, out=out):
            found = self.compute(*arguments, out=out)
        return self.converted(*arguments, out=out) if found is None else found[0]


def new_plan(
    layouts: tuple[Layout, ...], code: Kernel | None, units: int, words: np.ndarray, shape: tuple[int, ...],
    dtype: dtypes.DType, large: Large | None,
) -> CallPlan:  # fmt: skip
    """Return a plan for operands of these layouts and a result of this shape and dtype."""
    return CallPlan(
        code, units, address_of(words), allocator(shape, dtype), shape, np.empty(shape, dtype).strides, dtype, large,
        tuple([(layout.shape, layout.dtype) for layout in layouts]), (OutputMeta(shape, dtype, CPU),), words,
    )  # fmt: skip


def _compute_source(arrays: int, attributes: int, absent: int, takes_complex: bool) -> str:
    """Return the source of `Planned.compute` for these numbers of arrays, attributes and absent arrays.

    The key of a plan is the shape, strides and dtype of every array, and the attributes.
    """
    names = [f"a{i}" for i in range(arrays)]
    further = [f"a{i}" for i in range(arrays, arrays + attributes)]
    ids = ", ".join([*[f"id({a})" for a in names], *["0"] * absent, "id(r0)"])
    key = ", ".join([*[f"{a}.shape, {a}.strides, {a}.dtype" for a in names], *further])
    return f"""def compute({", ".join([*names, *further])}, out=None):
    if {" or ".join(f"type({a}) is not ndarray" for a in names)}:
        arrays = arrays_of({", ".join(names)})
        if arrays is None:
            if {" or ".join(f"type({a}) is DeviceArray" for a in names)}:
                return on_device({", ".join([*names, *further])}, out=out)
            {f"arrays = complex_arrays_of({', '.join(names)})" if takes_complex else ""}
            if arrays is None:
                return None
        {", ".join(names)}, = arrays
    plan = plans.get(({key}))
    if plan is None:
        return None
    code, units, words, allocate, shape, strides, dtype, large, _, _, _ = plan
    if out is None:
        r0 = allocate(shape, dtype)
    elif out.shape == shape and out.strides == strides and out.dtype == dtype:
        r0 = out
    else:
        return None
    if large is not None:
        large.run(({", ".join(names)},), (r0,))
        return r0, plan
    if launches.observer is None:
        code(0, units, words, {ids})
    else:
        run_observed(code, 0, units, words, {ids})
    return r0, plan
"""


def computed_dtype(found: Sequence[dtypes.DType]) -> dtypes.DType:
    """Return the dtype of arithmetic on operands of these dtypes: of bool and one other dtype or its complex form."""
    dtype = found[0]
    for other in found:
        if other.kind == "c":
            return other
        if dtype.kind == "b":
            dtype = other
    return dtype


def _arrays_of(*operands: Any) -> tuple[np.ndarray, ...] | None:
    """Return the operands, with numbers as arrays of the arrays' dtype; None if no kernel computes in that dtype."""
    dtype = None
    for operand in operands:
        if isinstance(operand, np.ndarray) and (dtype is None or dtype == dtypes.bool_):
            dtype = operand.dtype
    if dtype is None or dtype not in FLOATS:
        return None
    arrays = []
    for operand in operands:
        if isinstance(operand, np.ndarray):
            arrays.append(operand)
        elif type(operand) is float or type(operand) is int or type(operand) is bool:
            arrays.append(as_array(operand, dtype))
        else:
            return None
    return tuple(arrays)


def _complex_arrays_of(*operands: Any) -> tuple[np.ndarray, ...] | None:
    """Return the operands, with numbers as arrays of the arrays' complex dtype; None if no array is complex."""
    found = [operand.dtype for operand in operands if isinstance(operand, np.ndarray)]
    if not found or not dtypes.is_complex(dtype := computed_dtype(found)):
        return None
    if any(not isinstance(operand, np.ndarray | complex | float | int) for operand in operands):
        return None
    return tuple([operand if isinstance(operand, np.ndarray) else as_array(operand, dtype) for operand in operands])
