"""Elementwise loops for a device, for dense, strided, broadcast and scalar operands, and for several results.

A loop walks over the operands' common shape in the order in which most arrays are dense, and merges dimensions if the
strides of all arrays permit it. If the layouts of all arrays permit it, a thread computes as many adjacent elements at
once as an access of 16 bytes holds. Threads repeat this in a grid-stride loop.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba.cuda import types

from spillgrad_kernels.cuda import logic, scalar_math
from spillgrad_kernels.cuda.array import Fresh, empty, fresh, to_device
from spillgrad_kernels.cuda.jit.compile import Kernel, blocks_for, cuda, device
from spillgrad_kernels.cuda.pointers import ACCESS_BYTES, HALF, kernel_types, loaders, quotient, storers
from spillgrad_kernels.device_array import DeviceArray, NotOnDevice, may_share_memory
from spillgrad_kernels.layout import Layout, dense
from spillgrad_kernels.tables.formula import CONVERSIONS, FUNCTIONS, Formula, Trace, trace
from spillgrad_kernels.tile_walk import tile_walk

Operand = DeviceArray | np.generic  # kernels get arrays by address, and numbers by value


class Loop(NamedTuple):
    """The properties of a loop that change a kernel's code, besides the formula.

    A thread computes `lanes` adjacent elements along the last of `dims` dimensions. `pattern` has a letter for each
    operand: "v" is an array with a stride along the last dimension, "s" an array with stride 0 along it, and "n" a
    number. `dtypes` are the dtypes of operands and results.
    """

    pattern: str
    dtypes: tuple[str, ...]
    dims: int
    lanes: int

    @property
    def arrays(self) -> list[int]:
        """The positions of arrays (not numbers) in the list of all operands, followed by all results."""
        return [i for i in range(len(self.dtypes)) if i >= len(self.pattern) or self.pattern[i] != "n"]

    @property
    def parameters(self) -> list[str]:
        """The kernel's parameters: turns, sizes of the inner dimensions, strides in bytes, addresses and numbers."""
        return [
            "count", *[f"n{d}" for d in range(1, self.dims)],
            *[f"s{i}_{d}" for i in self.arrays for d in range(self.dims)], *[f"a{i}" for i in range(len(self.dtypes))],
        ]  # fmt: skip


def device_function(body: Trace, kept: Callable[[Any], Any] | None = None) -> Callable[..., Any]:
    """Return a device function that computes the trace `body`. It returns several results as a tuple.

    `kept`, if given, is applied to the value that each line of the trace computes.
    """
    namespace: dict[str, Any] = {
        **FUNCTIONS, **{kind.__name__: kind for kind in CONVERSIONS.values()}, **logic.FUNCTIONS, **body.constants,
        "kept": kept,
    }  # fmt: skip
    written = body.lines if kept is None else [line.replace(" = ", " = kept(", 1) + ")" for line in body.lines]
    lines = [f"def formula({', '.join(body.inputs)}):", *written, f"return {', '.join(body.results)}"]
    exec("\n    ".join(lines), namespace)
    return device(namespace["formula"])


def _source(loop: Loop) -> str:
    """Return the Python code of a kernel that calls `formula` for each element."""
    operands = range(len(loop.pattern))
    results = range(len(loop.pattern), len(loop.dtypes))
    inner = range(loop.dims - 1, 0, -1)
    lanes = range(loop.lanes)

    def held(i: int, lane: int) -> str:
        """Return the name in the generated code of operand or result `i` in a lane; at stride 0, all lanes share it."""
        kind = loop.pattern[i : i + 1]
        return f"a{i}" if kind == "n" else f"x{i}_{0 if kind == 's' else lane}"

    def all_of(i: int) -> str:
        return ", ".join(dict.fromkeys(held(i, lane) for lane in lanes))

    lines = [
        f"def kernel({', '.join(loop.parameters)}):",
        "    turn = cuda.grid(1)",
        "    while turn < count:",
        "        i0 = turn",
        *(f"        i{d}, i0 = i0 - quotient(i0, n{d}) * n{d}, quotient(i0, n{d})" for d in inner),
        *(f"        p{i} = a{i} + {' + '.join(f'i{d} * s{i}_{d}' for d in range(loop.dims))}" for i in loop.arrays),
        *(f"        {all_of(i)} = load{i}(p{i})" for i in operands if loop.pattern[i] != "n"),
        *(
            f"        {', '.join(held(i, lane) for i in results)} = "
            f"formula({', '.join(held(i, lane) for i in operands)})"
            for lane in lanes
        ),
        *(f"        store{i}(p{i}, {all_of(i)})" for i in results),
        "        turn += cuda.gridsize(1)",
    ]  # fmt: skip
    return "\n".join(lines)


@functools.lru_cache(maxsize=1024)
def build(body: Trace, name: str, loop: Loop, computed: np.dtype[Any] | None = None) -> Kernel:
    """Return the kernel that computes `body` in a loop. If `computed` is an integer dtype, results wrap around."""
    wraps = computed is not None and computed.name not in CONVERSIONS
    formula = device_function(body, scalar_math.integers_kept_in(computed) if wraps else None)
    namespace: dict[str, Any] = {"cuda": cuda, "quotient": quotient, "formula": formula}
    for i in loop.arrays:
        still = loop.pattern[i : i + 1] == "s"
        chosen = loaders if i < len(loop.pattern) else storers
        namespace[f"{'load' if chosen is loaders else 'store'}{i}"] = chosen[loop.dtypes[i], 1 if still else loop.lanes]
    exec(compile(_source(loop), f"<{name}>", "exec"), namespace)
    numbers = {f"a{i}": kernel_types[dtype] for i, dtype in enumerate(loop.dtypes) if i not in loop.arrays}
    kinds = [numbers.get(parameter, types.int64) for parameter in loop.parameters]
    return Kernel(namespace["kernel"], name.replace(".", "_"), kinds)


_trace = functools.cache(trace)


def _computed_in(operands: Sequence[np.dtype[Any]], result: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which a formula computes: the first float dtype of `operands`, else their promoted dtype.

    If all operands are bool, return `result`.
    """
    for dtype in operands:
        if dtype.name in CONVERSIONS:
            return dtype
    promoted = np.result_type(np.bool_, *operands)
    return result if promoted == np.bool_ else promoted


@functools.cache
def _constants(computed: np.dtype[Any]) -> Callable[[float], Any]:
    """Return the function that converts a formula's constants to `computed`; for integers, floats become float64."""
    if computed.name in CONVERSIONS:
        return CONVERSIONS[computed.name]
    return lambda value: np.float64(value) if isinstance(value, float) else np.asarray(value).astype(computed)[()]


def traced(formula: Formula, computed: np.dtype[Any]) -> Trace:
    """Return the trace of a formula, with its constants converted for computing in the dtype `computed`."""
    return _trace(formula, _constants(computed))


class CallPlan(NamedTuple):
    """The kernel for operands of given layouts. `words` are sizes and strides; `results` allocate new arrays."""

    kernel: Kernel
    turns: int
    words: tuple[int, ...]
    results: tuple[Fresh, ...]

    def run(self, operands: Sequence[Operand], outs: Sequence[DeviceArray] = ()) -> Sequence[DeviceArray]:
        """Compute the results into new arrays or into `outs`."""
        results = outs or [fresh.array() for fresh in self.results]
        if self.turns:
            given = [x.address if type(x) is DeviceArray else x for x in (*operands, *results)]
            self.kernel.launch(blocks_for(-(-self.turns // self.kernel.threads)), self.turns, *self.words, *given)
        return results


@functools.lru_cache(maxsize=4096)
def prepare(
    formula: Formula | Trace, name: str, dtypes: tuple[Any, ...], operands: tuple[Layout | np.dtype[Any], ...],
    outs: tuple[Layout, ...] = (), is_aligned: bool = False,
) -> CallPlan:  # fmt: skip
    """Return the plan for a formula, or for a trace with several results, over operands of these layouts.

    For a number, `operands` has a dtype in place of a layout. `is_aligned` says that all arrays begin at multiples of
    16 bytes.
    Raises ValueError if shapes do not broadcast together, or not to the shapes of `outs`. Raises NotOnDevice for
    complex numbers.
    """
    layouts = [operand if isinstance(operand, Layout) else Layout.made((), (), operand) for operand in operands]
    shape = np.broadcast_shapes(*[layout.shape for layout in layouts]) or (outs[0].shape if outs else ())
    kinds = tuple([np.dtype(dtype) for dtype in dtypes])
    if "c" in [kind.kind for kind in (*[layout.dtype for layout in (*layouts, *outs)], *kinds)]:
        raise NotOnDevice(f"{name}: no kernel of the device computes with complex numbers")
    for out in outs:
        if out.shape != shape:
            raise ValueError(f"{name}: got out of shape {out.shape}; the result has shape {shape}")
    all_layouts = [*layouts, *(outs or [dense(shape, kind) for kind in kinds])]
    loops = tile_walk(shape, all_layouts).loops
    sizes, strides = [int(n) for n in loops[0]], loops[2:].tolist()
    while len(sizes) > 1 and sizes[0] == 1:
        sizes, strides = sizes[1:], [own[1:] for own in strides]
    lanes = _lanes(sizes, strides, all_layouts) if is_aligned else 1
    sizes[-1] //= lanes
    strides = [[*own[:-1], own[-1] * lanes] for own in strides]
    pattern = "".join(
        "n" if not isinstance(operand, Layout) else "s" if own[-1] == 0 else "v"
        for operand, own in zip(operands, strides, strict=False)
    )
    loop = Loop(pattern, tuple([layout.dtype.name for layout in all_layouts]), len(sizes), lanes)
    computed = None
    if not isinstance(formula, Trace):
        computed = _computed_in([layout.dtype for layout in layouts], kinds[-1])
        formula = traced(formula, computed)
    kernel = build(formula, name, loop, computed)
    turns = int(np.prod(sizes, dtype=np.int64))
    words = (*sizes[1:], *[stride for i in loop.arrays for stride in strides[i]])
    return CallPlan(kernel, turns, words, tuple([fresh(shape, kind) for kind in kinds]))


def _lanes(sizes: list[int], strides: list[list[int]], layouts: Sequence[Layout]) -> int:
    """Return how many adjacent elements a thread computes.

    The number is more than 1 only if, along the last dimension, each array is dense or has stride 0.
    """
    lanes = ACCESS_BYTES // max(layout.dtype.itemsize for layout in layouts)
    for own, layout in zip(strides, layouts, strict=True):
        itemsize = layout.dtype.itemsize
        if own[-1] not in (0, itemsize):
            return 1
        while own[-1] and any(stride % (lanes * itemsize) for stride in own[:-1]):
            lanes //= 2
    while sizes[-1] % lanes:
        lanes //= 2
    return lanes


def _layout(operand: Operand) -> Layout | np.dtype[Any]:
    return operand.layout if type(operand) is DeviceArray else operand.dtype


def compute(
    formula: Formula | Trace, name: str, operands: Sequence[Operand], dtypes: tuple[Any, ...],
    outs: Sequence[DeviceArray] = (),
) -> Sequence[DeviceArray]:  # fmt: skip
    """Compute a formula, or a trace with several results, over broadcast operands into new arrays or into `outs`.

    Shapes: operands broadcast together, to the shape of every array in `outs`. An array in `outs` may have any strides.
    It may be an operand itself; otherwise it must not overlap an operand. Raises ValueError if shapes do not fit.
    """
    addresses = 0
    for x in (*operands, *outs):
        if type(x) is DeviceArray:
            addresses |= x.address
    is_aligned = addresses % ACCESS_BYTES == 0
    call = prepare(
        formula, name, dtypes, tuple(map(_layout, operands)), tuple([x.layout for x in outs]), is_aligned,
    )  # fmt: skip
    return call.run(operands, outs)


def elementwise(
    formula: Formula, name: str, operands: Sequence[Operand | np.ndarray], dtype: Any, out: DeviceArray | None = None
) -> DeviceArray:
    """Compute `formula` over broadcast operands into a new array of `dtype`, or into `out` (see `compute`).

    Host arrays without dimensions count as numbers. The formula computes in the dtype of the first floating operand. If
    no operand is floating, the formula computes in the dtype to which the operands promote, and integers wrap around.
    """
    given = [_number(x) if isinstance(x, np.ndarray | np.generic) else x for x in operands]
    return compute(formula, name, given, (dtype,), () if out is None else (out,))[0]


def _number(value: Any) -> np.generic:
    """Return `value` as a NumPy number, as kernels take numbers. Raises TypeError for a host array with dimensions."""
    if value.ndim:
        raise TypeError(
            f"elementwise: got an array of shape {value.shape} in the host's memory; wanted it on the device; copy it"
        )
    return np.float32(value) if value.dtype.name in HALF else value[()]


def contiguous(a: DeviceArray) -> DeviceArray:
    """Return `a` if it is dense, else a dense copy."""
    return a if a.layout.dense else copy(a)


def copy(a: DeviceArray, dtype: Any = None, out: DeviceArray | None = None) -> DeviceArray:
    """Return a dense copy, as `dtype` if it is given. If `out` is given, write the elements to `out` and return it."""
    if out is not None:
        a, target = _as_moved(a, out)
        compute(_same, "copy", [a], (target.dtype,), (target,))
        return out
    wanted = a.dtype if dtype is None else np.dtype(dtype)
    if a.dtype != wanted and "c" not in (a.dtype.kind, wanted.kind):
        return compute(_same, "copy", [a], (wanted,))[0]
    made = empty(a.shape, wanted)
    assign(made, a)
    return made


def converted(a: DeviceArray, dtype: Any) -> DeviceArray:
    """Return `a` if it has this dtype, else a copy of it with this dtype."""
    return a if a.dtype == dtype else compute(_same, "copy", [a], (dtype,))[0]


def _as_moved(a: DeviceArray, target: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
    """Return both arrays as they are to be copied: half precision without conversion, so that NaN keep their bits."""
    if a.dtype == target.dtype and a.dtype.name in HALF:
        return a.view(np.int16), target.view(np.int16)
    return a, target


def _parts(a: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
    """Return views of the real and of the imaginary parts of an array of complex numbers."""
    layout = Layout.made(a.shape, a.strides, np.dtype(f"f{a.itemsize // 2}"), a.layout.writeable)
    base = a if a.base is None else a.base
    return DeviceArray(a.address, layout, None, base), DeviceArray(a.address + a.itemsize // 2, layout, None, base)


def assign(target: DeviceArray, value: Any) -> None:
    """Overwrite `target` with `value`, a number or an array, broadcast and converted. The two arrays may overlap.

    A host array is copied to the device first. A real target gets the real parts of complex numbers. Raises ValueError
    if the value does not broadcast.
    """
    if isinstance(value, np.ndarray):
        value = value[()] if not value.ndim else to_device(value)
    if target.dtype.kind == "c":
        if not isinstance(value, DeviceArray):
            values: tuple[Any, Any] = (complex(value).real, complex(value).imag)
        else:
            values = _parts(value) if value.dtype.kind == "c" else (value, 0)
        for part, its_value in zip(_parts(target), values, strict=True):
            assign(part, its_value)
        return
    if isinstance(value, DeviceArray) and value.dtype.kind == "c":
        value = _parts(value)[0]
    if not isinstance(value, DeviceArray):
        value = np.asarray(value).astype(target.dtype)[()]
    elif may_share_memory(value, target):
        value = copy(value)
    if isinstance(value, DeviceArray):
        value, target = _as_moved(value.broadcast_to(target.shape), target)
    compute(_same, "copy", [value], (target.dtype,), (target,))


def _same(self: Any) -> Any:
    return self
