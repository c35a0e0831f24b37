"""A layer of a recurrent network, in one direction, as one operation.

One product over all time steps computes the input's part of all gates; each gradient of a weight or of the data is one
product over all steps, too. A step is one small product and one elementwise loop. Sequences are packed as the module
`recurrent` says. The state of a sequence that has ended, or has not begun, stays unchanged in its row.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from spillgrad.autograd.differentiate import grad
from spillgrad.ops.array_casts import on_floats
from spillgrad.ops.operation import Composed, Operation, operation
from spillgrad.ops.recurrent import STEPS, State, run_steps
from spillgrad.ops.shape import view_as
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu import matmul as products
from spillgrad_kernels.cpu import reductions
from spillgrad_kernels.cpu.elementwise import prepare
from spillgrad_kernels.layout import layout_of
from spillgrad_kernels.memory.buffers import empty
from spillgrad_kernels.tables.formula import Formula, Symbol, Trace, parameters
from spillgrad_kernels.tables.scalar_math import sigmoid, tanh, where
from spillgrad_kernels.threads.dispatch import get_num_threads


class _Mode(NamedTuple):
    """The elementwise formulas of a step.

    `forward` takes the sums of the gates, then the former state. It returns `kept` values, which `backward` needs;
    the last of them are the new cell state, if the mode has one, and the new hidden state.
    `backward` takes the gradients of the output and of the new states, the values that `forward` returned, and the
    former states. It returns the gradients of the sums of the gates. If `carries`, it also returns the gradient of the
    former cell state, or, if there is none, the part of the former hidden state's gradient that bypasses the product.
    With `apart`, the sums of the gates are two arguments, the input's sums and the state's, instead of their totals.
    """

    forward: Formula
    backward: Formula
    kept: int
    apart: bool = False
    carries: bool = False


def _lstm(let_in: Any, keep: Any, new: Any, let_out: Any, cell: Any) -> tuple[Any, ...]:
    let_in, keep, new, let_out = sigmoid(let_in), sigmoid(keep), tanh(new), sigmoid(let_out)
    cell = keep * cell + let_in * new
    return let_in, keep, new, let_out, cell, let_out * tanh(cell)


def _lstm_backward(
    g: Any, by_hidden: Any, by_cell: Any, let_in: Any, keep: Any, new: Any, let_out: Any, cell: Any, before: Any
) -> tuple[Any, ...]:
    by_hidden = g + by_hidden
    shown = tanh(cell)
    by_cell = by_cell + by_hidden * let_out * (1 - shown * shown)
    return (
        by_cell * new * (let_in * (1 - let_in)),
        by_cell * before * (keep * (1 - keep)),
        by_cell * let_in * (1 - new * new),
        by_hidden * shown * (let_out * (1 - let_out)),
        by_cell * keep,
    )


def _gru(
    input_reset: Any, input_update: Any, input_new: Any, reset: Any, update: Any, hidden_new: Any, hidden: Any
) -> tuple[Any, ...]:
    reset, update = sigmoid(input_reset + reset), sigmoid(input_update + update)
    new = tanh(input_new + reset * hidden_new)
    return reset, update, new, hidden_new, new + update * (hidden - new)


def _gru_backward(
    g: Any, by_hidden: Any, reset: Any, update: Any, new: Any, hidden_new: Any, before: Any
) -> tuple[Any, ...]:
    by_hidden = g + by_hidden
    by_update = by_hidden * (before - new) * (update * (1 - update))
    by_new = by_hidden * (1 - update) * (1 - new * new)
    by_reset = by_new * hidden_new * (reset * (1 - reset))
    return by_reset, by_update, by_new, by_reset, by_update, by_new * reset, by_hidden * update


def _rnn_tanh(gate: Any) -> tuple[Any, ...]:
    return (tanh(gate),)


def _rnn_tanh_backward(g: Any, by_hidden: Any, hidden: Any) -> tuple[Any, ...]:
    return ((g + by_hidden) * (1 - hidden * hidden),)


def _rnn_relu(gate: Any) -> tuple[Any, ...]:
    return (where(gate < 0, 0, gate),)  # NaN stays


def _rnn_relu_backward(g: Any, by_hidden: Any, hidden: Any) -> tuple[Any, ...]:
    return (where(hidden <= 0, 0, g + by_hidden),)


_MODES = {
    "RNN_TANH": _Mode(_rnn_tanh, _rnn_tanh_backward, 1),
    "RNN_RELU": _Mode(_rnn_relu, _rnn_relu_backward, 1),
    "LSTM": _Mode(_lstm, _lstm_backward, 6, carries=True),
    "GRU": _Mode(_gru, _gru_backward, 5, apart=True, carries=True),
}


@functools.cache
def _traced(formula: Formula, dtype: Any) -> Trace:
    """Return the trace of a formula of several results."""
    code = Trace([f"in_{name}" for name in parameters(formula)])
    results = code.apply(formula, [Symbol(code, name) for name in code.inputs], dtype.type)
    code.results = tuple(map(code.name_of, results))
    return code


class _Loop:
    """A formula of several results, run on arrays. Calls with the same number of rows must have the same layouts.

    Outputs must not be operands: a loop that may overwrite its operands is not vectorised, and takes ten times as long.
    """

    def __init__(self, formula: Formula, dtype: Any) -> None:
        self._trace = _traced(formula, dtype)
        self._name = formula.__name__.lstrip("_")
        self._dtypes = (dtype,) * len(self._trace.results)
        self._calls: dict[int, Any] = {}

    def __call__(self, operands: Sequence[np.ndarray], outs: tuple[np.ndarray, ...]) -> None:
        count = len(outs[0])
        call = self._calls.get(count)
        if call is None:
            layouts = tuple(map(layout_of, operands)), tuple(map(layout_of, outs))
            call = self._calls[count] = prepare(self._trace, self._name, self._dtypes, *layouts)
        call.run(operands, outs)


class _Product:
    """The product rows @ matrix + addend. Calls with the same number of rows must have the same layouts.

    The addend has the strides of the result, or is one row that is added to every row.
    """

    def __init__(self, matrix: np.ndarray) -> None:
        self._matrix = matrix
        self._calls: dict[int, Any] = {}

    def __call__(self, rows: np.ndarray, out: np.ndarray, addend: np.ndarray | None = None) -> None:
        call = self._calls.get(len(rows))
        if call is None:
            strides = (0, out.itemsize) if addend is not None and addend.ndim == 1 else None
            layouts = layout_of(rows), layout_of(self._matrix), layout_of(out)
            call = self._calls[len(rows)] = products.prepare(*layouts, get_num_threads(), strides)
        call.run(rows, self._matrix, out, addend=addend)


def _steps(counts: Sequence[int], reverse: bool) -> list[tuple[int, int]]:
    """Return (first row, row after the last) of each time step, in the order in which the steps run."""
    stops = np.cumsum(counts).tolist()
    steps = [(stop - count, stop) for stop, count in zip(stops, counts, strict=True)]
    return steps[::-1] if reverse else steps


def _parts(array: np.ndarray) -> list[np.ndarray]:
    return [array[:, k] for k in range(array.shape[1])]


def _states(first: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    return [np.array(state, order="C") for state in first if state is not None]


def _forward(
    mode: _Mode, counts: Sequence[int], reverse: bool, data: np.ndarray, weight_ih: np.ndarray, weight_hh: np.ndarray,
    bias_ih: np.ndarray | None, bias_hh: np.ndarray | None, *first: np.ndarray | None,
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """Return the hidden states of all steps, the last states, and values for backward: (rows, mode.kept, hidden)."""
    rows, width, dtype = len(data), weight_hh.shape[1], data.dtype
    if bias_ih is not None and not mode.apart:
        bias_ih, bias_hh = bias_ih + bias_hh, None  # there are both biases or none
    elif bias_hh is not None:
        bias_hh = np.ascontiguousarray(bias_hh)
    inputs = products.linear(data, weight_ih, bias_ih)
    kept = empty((rows, mode.kept, width), dtype)
    sums = empty((counts[0], len(weight_hh)), dtype)
    state = _states(first)
    multiply, compute = _Product(np.ascontiguousarray(weight_hh.T)), _Loop(mode.forward, dtype)
    input_parts, sum_parts, kept_parts = (
        _parts(a.reshape(len(a), -1, width)) for a in (inputs, sums, kept.reshape(rows, -1))
    )
    for start, stop in _steps(counts, reverse):
        count = stop - start
        multiply(state[0][:count], sums[:count], bias_hh if mode.apart else inputs[start:stop])
        operands = [part[:count] for part in sum_parts]
        if mode.apart:
            operands = [*(part[start:stop] for part in input_parts), *operands, state[0][:count]]
        operands += [cell[:count] for cell in state[1:]]
        compute(operands, tuple([part[start:stop] for part in kept_parts]))
        for values, part in zip(state, kept_parts[::-1], strict=False):
            values[:count] = part[start:stop]
    return np.array(kept_parts[-1], order="C"), *state, kept


def _backward(
    mode: _Mode, counts: Sequence[int], reverse: bool, needs: Sequence[bool], states: int, g: np.ndarray,
    data: np.ndarray, weight_ih: np.ndarray, weight_hh: np.ndarray, kept: np.ndarray, *given: np.ndarray,
) -> tuple[np.ndarray | None, ...]:  # fmt: skip
    """Return the gradients of data, weight_ih, weight_hh, bias_ih, bias_hh, and of the states before the first step.

    `given` are the gradients of the last states, then the states before the first step.
    """
    rows, width, dtype = len(data), weight_hh.shape[1], data.dtype
    by_state, first = _states(given[:states]), given[states:]
    kept_parts = _parts(kept)
    steps = _steps(counts, reverse)
    before = [_before(state, part, steps) for state, part in zip(first, kept_parts[::-1], strict=False)]
    by_sums = empty((rows, len(weight_hh)), dtype)
    by_inputs = empty(by_sums.shape, dtype) if mode.apart else by_sums
    carried = empty(by_state[0].shape, dtype)
    multiply, compute = _Product(weight_hh), _Loop(mode.backward, dtype)
    g = np.ascontiguousarray(g)
    # LSTM's gates act on the cell state of the step before, GRU's on its hidden state.
    read = [*(kept_parts if not mode.carries else kept_parts[:-1]), *(before[-1:] if mode.carries else [])]
    written = [
        part for a in ([by_inputs, by_sums] if mode.apart else [by_sums]) for part in _parts(a.reshape(rows, -1, width))
    ]
    for start, stop in reversed(steps):
        count = stop - start
        running = [values[:count] for values in by_state]
        outs = [part[start:stop] for part in written]
        if mode.carries:
            outs.append(carried[:count])
        compute([g[start:stop], *running, *(part[start:stop] for part in read)], tuple(outs))
        direct = mode.carries and states == 1
        multiply(by_sums[start:stop], running[0], carried[:count] if direct else None)
        if states > 1:
            running[1][...] = carried[:count]
    makers: tuple[Callable[[], np.ndarray], ...] = (
        lambda: products.matmul(by_inputs, weight_ih),
        lambda: products.matmul(by_inputs.T, data),
        lambda: products.matmul(by_sums.T, before[0]),
        lambda: reductions.sum(by_inputs, (0,)),
        lambda: reductions.sum(by_sums, (0,)),
    )
    return (*[make() if need else None for make, need in zip(makers, needs, strict=False)], *by_state)


def _before(first: np.ndarray, values: np.ndarray, steps: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return the states before each step, given those before the first step (`first`) and after each one (`values`)."""
    found = empty(values.shape, values.dtype)
    state = np.array(first)
    for start, stop in steps:
        found[start:stop] = state[: stop - start]
        state[: stop - start] = values[start:stop]
    return found


def _operation(name: str) -> Operation:
    mode, states = _MODES[name], 2 if name == "LSTM" else 1

    def forward(
        data: np.ndarray, weight_ih: np.ndarray, weight_hh: np.ndarray, bias_ih: np.ndarray | None,
        bias_hh: np.ndarray | None, hidden: np.ndarray, cell: np.ndarray | None, counts: tuple[int, ...], reverse: bool,
    ) -> tuple[np.ndarray, ...]:  # fmt: skip
        run = functools.partial(_forward, mode, counts, reverse)
        return on_floats(run, data, weight_ih, weight_hh, bias_ih, bias_hh, hidden, cell)

    def fused(
        grads: Sequence[Tensor], data: Tensor, weight_ih: Tensor, weight_hh: Tensor, hidden: Tensor,
        cell: Tensor | None, kept: Tensor, counts: tuple[int, ...], reverse: bool, needs: tuple[bool, ...],
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        run = functools.partial(_backward, mode, counts, reverse, needs, states)
        given = [grads[0], data, weight_ih, weight_hh, kept, *grads[1:], hidden, *([] if cell is None else [cell])]
        found = on_floats(run, *[tensor.array for tensor in given])
        return tuple([None if a is None else Tensor.wrap(a) for a in (*found, *[None] * (2 - states))])

    def composed(
        grads: Sequence[Tensor], data: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor | None,
        bias_hh: Tensor | None, hidden: Tensor, cell: Tensor | None, counts: tuple[int, ...], reverse: bool,
        needs: tuple[bool, ...],
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        given = (data, weight_ih, weight_hh, bias_ih, bias_hh, hidden, cell)
        # Aliases: a weight may itself be computed from the data, and the gradient must not flow further than to it.
        inputs = [None if tensor is None else view_as(tensor, tensor) for tensor in given]
        state = tuple([part for part in inputs[5:] if part is not None])
        output, last = run_steps(name, inputs[0], counts, state, (*inputs[1:5], None), reverse)  # type: ignore[arg-type]
        wanted = [x for x, need in zip(inputs, needs, strict=True) if need and x is not None and x.requires_grad]
        if not wanted:  # frozen since forward
            return (None,) * len(inputs)
        found = dict(zip(map(id, wanted), grad((output, *last), wanted, grads, create_graph=True), strict=True))
        return tuple([found.get(id(x)) for x in inputs])

    inputs = ("data", "weight_ih", "weight_hh", "bias_ih", "bias_hh", "hidden", "cell")
    outputs = ("output", "hidden_n", "cell_n")[: 1 + states]
    return operation(
        name.lower(), forward, outputs=outputs, aux=("kept",), joint=(inputs, Composed(fused=fused, composed=composed))
    )


_OPERATIONS = {name: _operation(name) for name in _MODES}


def _fits(mode: str, data: Tensor, counts: Sequence[int], state: State, weights: Sequence[Tensor | None]) -> bool:
    """Return whether one operation can compute the layer: no projection, and shapes and dtypes that fit."""
    weight_ih, weight_hh, bias_ih, bias_hh, weight_hr = weights
    assert weight_ih is not None and weight_hh is not None
    width = weight_hh.shape[-1]
    rows = STEPS[mode][1] * width
    biases = [bias for bias in (bias_ih, bias_hh) if bias is not None]
    tensors = (data, weight_ih, weight_hh, *biases, *state)
    return (
        weight_hr is None and len(biases) != 1 and data.ndim == 2 and min(data.shape) > 0
        and data.is_floating_point() and all([tensor.dtype is data.dtype for tensor in tensors])
        and weight_ih.shape == (rows, data.shape[1]) and weight_hh.shape == (rows, width)
        and all([bias.shape == (rows,) for bias in biases])
        and all([part.shape == (counts[0], width) for part in state])
    )  # fmt: skip


def run_layer(
    mode: str, data: Tensor, counts: Sequence[int], state: State, weights: Sequence[Tensor | None], reverse: bool
) -> tuple[Tensor, State]:
    """Return the hidden states of all time steps, packed as `data` is, and the last state of every sequence.

    Layers with projections and layers on a device run step by step (`recurrent.run_steps`). So do operands that do not
    fit together, for which `run_steps` raises.
    Shapes: data (sum(counts), inputs), state (counts[0], hidden) each; weights are weight_ih, weight_hh, bias_ih,
    bias_hh, weight_hr.
    """
    if data.is_cuda or not _fits(mode, data, counts, state, weights):
        return run_steps(mode, data, counts, state, weights, reverse)
    hidden, cell = state if len(state) > 1 else (*state, None)
    output, *last = _OPERATIONS[mode](data, *weights[:4], hidden, cell, tuple(counts), reverse)
    return output, tuple(last)
