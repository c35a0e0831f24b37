"""Steps of recurrent networks, and runs of all steps over sequences of different lengths.

A batch of sequences is packed (see `PackedSequence`): the elements of the first time step, then those of the second,
and so on. `counts` are the numbers of sequences that run at each step; sequences are in descending order of length.
"""

from collections.abc import Callable, Sequence
from typing import Any

from spillgrad.errors import ShapeError
from spillgrad.ops.activations import relu, sigmoid
from spillgrad.ops.arithmetic import add, mul, sub
from spillgrad.ops.join_split import cat, chunk, narrow, split
from spillgrad.ops.matrix_products import linear
from spillgrad.ops.shape import unsqueeze
from spillgrad.ops.trigonometry import tanh
from spillgrad.tensor import Tensor

__all__ = ["gru_cell", "lstm_cell", "rnn_relu_cell", "rnn_tanh_cell"]

State = tuple[Tensor, ...]
# (input's part of the gates, state, weight_hh, bias_hh, weight_hr) -> state
Step = Callable[[Tensor, State, Tensor, Tensor | None, Tensor | None], State]


def _tanh_step(gates: Tensor, state: State, weight: Tensor, bias: Tensor | None, projection: Tensor | None) -> State:
    return (tanh(linear(state[0], weight, bias, residual=gates)),)


def _relu_step(gates: Tensor, state: State, weight: Tensor, bias: Tensor | None, projection: Tensor | None) -> State:
    return (relu(linear(state[0], weight, bias, residual=gates)),)


def _lstm_step(gates: Tensor, state: State, weight: Tensor, bias: Tensor | None, projection: Tensor | None) -> State:
    """Compute an LSTM step. Source: Hochreiter & Schmidhuber 1997; Gers et al. 2000; projections: Sak et al. 2014."""
    hidden, cell = state
    gates = linear(hidden, weight, bias, residual=gates)
    let_in, keep, new, let_out = chunk(gates, 4, -1)
    cell = add(mul(sigmoid(keep), cell), mul(sigmoid(let_in), tanh(new)))
    hidden = mul(sigmoid(let_out), tanh(cell))
    return hidden if projection is None else linear(hidden, projection), cell


def _gru_step(gates: Tensor, state: State, weight: Tensor, bias: Tensor | None, projection: Tensor | None) -> State:
    """Compute a GRU step with the reset gate after the product, as in cuDNN. Source: Cho et al. 2014."""
    (hidden,) = state
    input_reset, input_update, input_new = chunk(gates, 3, -1)
    hidden_reset, hidden_update, hidden_new = chunk(linear(hidden, weight, bias), 3, -1)
    reset, update = sigmoid(add(input_reset, hidden_reset)), sigmoid(add(input_update, hidden_update))
    new = tanh(add(input_new, mul(reset, hidden_new)))
    return (add(new, mul(update, sub(hidden, new))),)


# For each mode, its step and its number of gates.
STEPS: dict[str, tuple[Step, int]] = {
    "RNN_TANH": (_tanh_step, 1), "RNN_RELU": (_relu_step, 1), "LSTM": (_lstm_step, 4), "GRU": (_gru_step, 3),
}  # fmt: skip


def run_steps(
    mode: str, data: Tensor, counts: Sequence[int], state: State, weights: Sequence[Tensor | None], reverse: bool
) -> tuple[Tensor, State]:
    """Return the hidden states of all time steps, packed as `data` is, and the last state of every sequence.

    Each step is recorded separately; `recurrent_layer` records one operation for all steps, if it can.
    Shapes: data (sum(counts), inputs), state (counts[0], hidden) each; weights are weight_ih, weight_hh, bias_ih,
    bias_hh, weight_hr.
    """
    weight_ih, weight_hh, bias_ih, bias_hh, weight_hr = weights
    step = STEPS[mode][0]
    assert weight_ih is not None and weight_hh is not None
    gates = split(linear(data, weight_ih, bias_ih), counts)
    outputs: list[Any] = [None] * len(counts)
    first = state
    running = counts[-1] if reverse else counts[0]
    state = _rows(first, 0, running)
    ended: list[State] = []
    for t in reversed(range(len(counts))) if reverse else range(len(counts)):
        count = counts[t]
        if count > running:  # backwards: longer sequences begin
            state = _joined([state, _rows(first, running, count)])
        elif count < running:
            ended.append(_rows(state, count, running))
            state = _rows(state, 0, count)
        running = count
        state = step(gates[t], state, weight_hh, bias_hh, weight_hr)
        outputs[t] = state[0]
    return cat(outputs), _joined([state, *reversed(ended)])


def _rows(state: State, start: int, stop: int) -> State:
    return tuple([x if stop - start == x.shape[0] else narrow(x, 0, start, stop - start) for x in state])


def _joined(states: list[State]) -> State:
    return states[0] if len(states) == 1 else tuple([cat(parts) for parts in zip(*states, strict=True)])


def _cell(
    name: str, mode: str, input: Tensor, state: State, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None,
    b_hh: Tensor | None,
) -> State:  # fmt: skip
    for what, tensor in (("input", input), *(("hidden", part) for part in state)):
        if tensor.ndim not in (1, 2) or tensor.ndim != input.ndim:
            raise ShapeError(
                f"{name}: Expected {what} to be 1D or 2D, and as many dimensions as the input has, got {tensor.ndim}D"
            )
    alone = input.ndim == 1
    if alone:
        input, state = unsqueeze(input, 0), tuple([unsqueeze(part, 0) for part in state])
    for part in state:
        if part.shape != (input.shape[0], w_hh.shape[1]):
            wanted = input.shape[0], w_hh.shape[1]
            raise ShapeError(f"{name}: got input {input.shape} and hidden {part.shape}; wanted hidden {wanted}")
    state = STEPS[mode][0](linear(input, w_ih, b_ih), state, w_hh, b_hh, None)
    return tuple([part[0] for part in state]) if alone else state


def lstm_cell(
    input: Tensor, hx: Sequence[Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the hidden and the cell state after one step of a long short-term memory.

    Parameters
    ----------
    input : Tensor
        Of shape (N, inputs) or (inputs,).
    hx : sequence of Tensor
        Two of shape (N, hidden) or (hidden,): the hidden and the cell state before.
    w_ih : Tensor
        Of shape (4 hidden, inputs): weights of the input.
    w_hh : Tensor
        Of shape (4 hidden, hidden): weights of the hidden state.
    b_ih, b_hh : Tensor, optional
        Of shape (4 hidden,): biases.

    Returns
    -------
    hidden : Tensor
        Of the shape of the states before.
    cell : Tensor
        Of the same shape.

    Raises
    ------
    ShapeError
        If shapes do not fit.
    DtypeError
        If dtypes do not fit.
    """
    hidden, cell = _cell("lstm_cell", "LSTM", input, tuple(hx), w_ih, w_hh, b_ih, b_hh)
    return hidden, cell


def gru_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """Return the hidden state after one step of a gated recurrent unit.

    Parameters
    ----------
    input : Tensor
        Of shape (N, inputs) or (inputs,).
    hx : Tensor
        Of shape (N, hidden) or (hidden,): the hidden state before.
    w_ih : Tensor
        Of shape (3 hidden, inputs): weights of the input.
    w_hh : Tensor
        Of shape (3 hidden, hidden): weights of the hidden state.
    b_ih, b_hh : Tensor, optional
        Of shape (3 hidden,): biases.

    Returns
    -------
    Tensor
        Of the shape of `hx`.

    Raises
    ------
    ShapeError
        If shapes do not fit.
    DtypeError
        If dtypes do not fit.
    """
    return _cell("gru_cell", "GRU", input, (hx,), w_ih, w_hh, b_ih, b_hh)[0]


def rnn_tanh_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """Return tanh(w_ih input + b_ih + w_hh hx + b_hh).

    Parameters
    ----------
    input : Tensor
        Of shape (N, inputs) or (inputs,).
    hx : Tensor
        Of shape (N, hidden) or (hidden,): the hidden state before.
    w_ih : Tensor
        Of shape (hidden, inputs): weights of the input.
    w_hh : Tensor
        Of shape (hidden, hidden): weights of the hidden state.
    b_ih, b_hh : Tensor, optional
        Of shape (hidden,): biases.

    Returns
    -------
    Tensor
        Of the shape of `hx`.

    Raises
    ------
    ShapeError
        If shapes do not fit.
    DtypeError
        If dtypes do not fit.
    """
    return _cell("rnn_tanh_cell", "RNN_TANH", input, (hx,), w_ih, w_hh, b_ih, b_hh)[0]


def rnn_relu_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """Return relu(w_ih input + b_ih + w_hh hx + b_hh).

    Parameters
    ----------
    input : Tensor
        Of shape (N, inputs) or (inputs,).
    hx : Tensor
        Of shape (N, hidden) or (hidden,): the hidden state before.
    w_ih : Tensor
        Of shape (hidden, inputs): weights of the input.
    w_hh : Tensor
        Of shape (hidden, hidden): weights of the hidden state.
    b_ih, b_hh : Tensor, optional
        Of shape (hidden,): biases.

    Returns
    -------
    Tensor
        Of the shape of `hx`.

    Raises
    ------
    ShapeError
        If shapes do not fit.
    DtypeError
        If dtypes do not fit.
    """
    return _cell("rnn_relu_cell", "RNN_RELU", input, (hx,), w_ih, w_hh, b_ih, b_hh)[0]
