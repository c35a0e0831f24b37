"""Recurrent networks and their cells."""

import numbers
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.nn import init
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.nn.utils.rnn import PackedSequence
from spillgrad.ops import creation, dropout_masks, indexing, join_split, recurrent, recurrent_layer, shape
from spillgrad.tensor import Tensor

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNBase", "RNNCell", "RNNCellBase"]


class RNNBase(Module):
    """The base of recurrent networks: several layers and directions, run over padded or packed sequences.

    All parameters are drawn from U(-a, a) with a = 1/sqrt(hidden_size).

    Parameters
    ----------
    mode : {"RNN_TANH", "RNN_RELU", "LSTM", "GRU"}
        Kind of the step.
    input_size : int
        Size of an element of a sequence.
    hidden_size : int
        Size of the hidden state.
    num_layers : int, default 1
        Number of layers, each of which runs over the results of the one before.
    bias : bool, default True
        Whether to add biases.
    batch_first : bool, default False
        Whether input and output have the batch as first dimension; otherwise, time is first.
    dropout : float, default 0.0
        Probability of dropping an element of a layer's results in training, except those of the last layer.
    bidirectional : bool, default False
        Whether each layer runs over the sequences in both directions.
    proj_size : int, default 0
        Size to which hidden states are projected, below `hidden_size`; 0 for no projection.
    device : device, optional
        Where the parameters are; by default, the default device.
    dtype : dtype, optional
        Data type of the parameters; by default, the default data type.

    Raises
    ------
    ArgumentError
        If a size is less than 1, `dropout` is outside [0, 1], or `proj_size` is not for this kind.

    Warns
    -----
    UserWarning
        If there is dropout and one layer, after which nothing is dropped.
    """

    def __init__(
        self, mode: str, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.mode = mode
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = float(dropout)
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        name = type(self).__name__
        if isinstance(dropout, bool) or not isinstance(dropout, numbers.Number) or not 0 <= dropout <= 1:
            raise ArgumentError(f"{name}: dropout should be a number in range [0, 1], got {dropout!r}")
        if hidden_size < 1 or num_layers < 1:
            raise ArgumentError(
                f"{name}: got hidden_size {hidden_size} and num_layers {num_layers}; both must be greater than zero"
            )
        if not 0 <= proj_size < hidden_size:
            raise ArgumentError(
                f"{name}: got proj_size {proj_size}; it should be a positive integer smaller than hidden_size "
                f"{hidden_size}, or zero to disable projections"
            )
        if proj_size and mode != "LSTM":
            raise ArgumentError(f"{name}: proj_size argument is only supported for LSTM, not RNN or GRU")
        if dropout > 0 and num_layers == 1:
            warnings.warn(
                "dropout option adds dropout after all but last recurrent layer, so non-zero dropout expects "
                f"num_layers greater than 1, but got dropout={dropout} and num_layers={num_layers}",
                stacklevel=3,
            )
        rows = recurrent.STEPS[mode][1] * hidden_size
        self._suffixes = [
            f"_l{layer}{direction}" for layer in range(num_layers) for direction in ("", "_reverse")[: self._directions]
        ]
        for number, suffix in enumerate(self._suffixes):
            columns = input_size if number < self._directions else self._state_size * self._directions
            shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, columns), "weight_hh": (rows, self._state_size)}
            if bias:
                shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
            if proj_size:
                shapes["weight_hr"] = (proj_size, hidden_size)
            self._new_parameters(device, dtype, **{what + suffix: sizes for what, sizes in shapes.items()})
        self.reset_parameters()

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def _state_size(self) -> int:
        """The width of the hidden state."""
        return self.proj_size or self.hidden_size

    def reset_parameters(self) -> None:
        """Draw all parameters from U(-1/sqrt(hidden_size), 1/sqrt(hidden_size))."""
        init.uniform_by_fan(self.parameters(), self.hidden_size)

    def flatten_parameters(self) -> None:
        """Do nothing; PyTorch's programs call this method. No other layout of the parameters would be faster."""

    def _weights(self, suffix: str) -> list[Any]:
        """Return weight_ih, weight_hh, bias_ih, bias_hh and weight_hr (or None) of one direction of one layer."""
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
        return [self._parameters.get(name + suffix) for name in names]

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters of each direction of each layer."""
        return [[weight for weight in self._weights(suffix) if weight is not None] for suffix in self._suffixes]

    def _state(self, hx: Any, batch: int, batched: bool, like: Tensor) -> tuple[Tensor, ...]:
        """Check and return the initial hidden state, and an LSTM's cell state; if `hx` is None, return zeros.

        Shapes: states (layers · directions, batch, width).
        """
        lead = (self.num_layers * self._directions, batch)
        widths = (self._state_size, self.hidden_size) if self.mode == "LSTM" else (self.hidden_size,)
        if hx is None:
            return tuple([creation.zeros(*lead, width, dtype=like.dtype, device=like.device) for width in widths])
        given = tuple(hx) if self.mode == "LSTM" else (hx,)
        if len(given) != len(widths):
            raise ArgumentError(f"{type(self).__name__}: got {len(given)} states; wanted (h_0, c_0)")
        states = given if batched else tuple([shape.unsqueeze(part, 1) for part in given])
        for part, width, what in zip(states, widths, ("hidden", "cell"), strict=False):
            if part.shape != (*lead, width):
                wanted: tuple[int, ...] = (*lead, width)
                got = part.shape
                if not batched:
                    wanted, got = (lead[0], width), (got[0], *got[2:])
                raise ShapeError(f"{type(self).__name__}: Expected {what} size {wanted}, got {got}")
        return states

    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:
        """Return the last layer's hidden states at all time steps, and all layers' states after the last time step.

        Parameters
        ----------
        input : Tensor or PackedSequence
            Of shape (T, N, input_size), or (N, T, input_size) with `batch_first`, or (T, input_size).
        hx : Tensor or tuple of Tensor, optional
            First states of shape (num_layers · directions, N, hidden_size), or without N; an LSTM's are a pair (h, c).
            By default, zeros.

        Returns
        -------
        Tensor or PackedSequence
            Hidden states of shape (T, N, directions · hidden_size), with the first dimensions of `input`.
        Tensor or tuple of Tensor
            Last states, of the shapes of `hx`.

        Raises
        ------
        ShapeError
            If the input or a state has another shape, or there is no time step.
        ArgumentError
            If an LSTM gets other than two states.
        """
        if isinstance(input, PackedSequence):
            return self._run_packed(input, hx)
        name = type(self).__name__
        if input.ndim not in (2, 3):
            raise ShapeError(f"{name}: Expected input to be 2D or 3D, got {input.ndim}D instead")
        self._require_width(input)
        batched = input.ndim == 3
        if not batched:
            input = shape.unsqueeze(input, 1)
        elif self.batch_first:
            input = shape.transpose(input, 0, 1)
        steps, batch = input.shape[:2]
        if not steps:
            raise ShapeError(f"{name}: Expected sequence length to be larger than 0 in RNN")
        data, last = self._run(
            shape.reshape(input, (steps * batch, self.input_size)),
            [batch] * steps,
            self._state(hx, batch, batched, input),
        )
        output = shape.reshape(data, (steps, batch, data.shape[-1]))
        if not batched:
            return shape.squeeze(output, 1), self._returned([shape.squeeze(part, 1) for part in last])
        return shape.transpose(output, 0, 1) if self.batch_first else output, self._returned(last)

    def _run_packed(self, input: PackedSequence, hx: Any) -> tuple[PackedSequence, Any]:
        self._require_width(input.data)
        counts = input.batch_sizes.tolist()
        state = self._state(hx, counts[0], True, input.data)
        if hx is not None and input.sorted_indices is not None:
            state = tuple([indexing.index_select(part, 1, input.sorted_indices) for part in state])
        data, last = self._run(input.data, counts, state)
        if input.unsorted_indices is not None:
            last = [indexing.index_select(part, 1, input.unsorted_indices) for part in last]
        return input._replace(data=data), self._returned(last)

    def _require_width(self, data: Tensor) -> None:
        if data.shape[-1] != self.input_size:
            raise ShapeError(
                f"{type(self).__name__}: input.size(-1) must be equal to input_size. Expected {self.input_size}, got "
                f"{data.shape[-1]}"
            )

    def _returned(self, last: Sequence[Tensor]) -> Any:
        return tuple(last) if self.mode == "LSTM" else last[0]

    def _run(self, data: Tensor, counts: list[int], first: tuple[Tensor, ...]) -> tuple[Tensor, list[Tensor]]:
        """Return the last layer's outputs, packed like `data`, and the final states of all layers, stacked."""
        starts = list(zip(*(join_split.unbind(part, 0) for part in first), strict=True))
        ends = []
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(self._directions):
                number = layer * self._directions + direction
                weights = self._weights(self._suffixes[number])
                output, end = recurrent_layer.run_layer(
                    self.mode, data, counts, starts[number], weights, direction == 1
                )
                outputs.append(output)
                ends.append(end)
            data = outputs[0] if len(outputs) == 1 else join_split.cat(outputs, -1)
            if layer < self.num_layers - 1:
                data = dropout_masks.dropout(data, self.dropout, self.training)
        return data, [join_split.stack(parts) for parts in zip(*ends, strict=True)]

    def extra_repr(self) -> str:
        """Return the options to show in the layer's representation.

        Returns
        -------
        str
            Names and values.
        """
        shown = [f"{self.input_size}, {self.hidden_size}"]
        defaults = {
            "proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0, "bidirectional": False
        }  # fmt: skip
        shown += [f"{name}={getattr(self, name)}" for name, plain in defaults.items() if getattr(self, name) != plain]
        return ", ".join(shown)


class RNN(RNNBase):
    """Run ``h = tanh(W_ih x + b_ih + W_hh h + b_hh)`` over sequences.

    The input has shape (T, N, input_size), or (N, T, input_size) with `batch_first`, or (T, input_size), or is a
    `PackedSequence`. The states have shape (num_layers · directions, N, hidden_size), the output
    (T, N, directions · hidden_size).

    Parameters
    ----------
    input_size : int
        Size of an element of a sequence.
    hidden_size : int
        Size of the hidden state.
    num_layers : int, default 1
        Number of layers, each of which runs over the results of the one before.
    nonlinearity : {"tanh", "relu"}, default "tanh"
        Function of the step.
    bias : bool, default True
        Whether to add biases.
    batch_first : bool, default False
        Whether input and output have the batch as first dimension; otherwise, time is first.
    dropout : float, default 0.0
        Probability of dropping an element of a layer's results in training, except those of the last layer.
    bidirectional : bool, default False
        Whether each layer runs over the sequences in both directions.
    device : device, optional
        Where the parameters are; by default, the default device.
    dtype : dtype, optional
        Data type of the parameters; by default, the default data type.

    Raises
    ------
    ArgumentError
        If a size is less than 1, or `dropout` is outside [0, 1].

    Warns
    -----
    UserWarning
        If there is dropout and one layer, after which nothing is dropped.

    Notes
    -----
    Source: Elman 1990, "Finding structure in time".
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh", bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        if nonlinearity not in ("tanh", "relu"):
            raise ArgumentError(f"RNN: Unknown nonlinearity {nonlinearity!r}. Select from 'tanh' or 'relu'.")
        super().__init__(
            f"RNN_{nonlinearity.upper()}", input_size, hidden_size, num_layers, bias, batch_first, dropout,
            bidirectional, 0, device, dtype,
        )  # fmt: skip
        self.nonlinearity = nonlinearity


class LSTM(RNNBase):
    """Run a long short-term memory over sequences.

    Shapes are as in `RNN`; the states are pairs (h, c), and c has the width `hidden_size` even with `proj_size`.

    Parameters
    ----------
    input_size : int
        Size of an element of a sequence.
    hidden_size : int
        Size of the hidden state.
    num_layers : int, default 1
        Number of layers, each of which runs over the results of the one before.
    bias : bool, default True
        Whether to add biases.
    batch_first : bool, default False
        Whether input and output have the batch as first dimension; otherwise, time is first.
    dropout : float, default 0.0
        Probability of dropping an element of a layer's results in training, except those of the last layer.
    bidirectional : bool, default False
        Whether each layer runs over the sequences in both directions.
    proj_size : int, default 0
        Size to which hidden states are projected, below `hidden_size`; 0 for no projection.
    device : device, optional
        Where the parameters are; by default, the default device.
    dtype : dtype, optional
        Data type of the parameters; by default, the default data type.

    Raises
    ------
    ArgumentError
        If a size is less than 1, or `dropout` is outside [0, 1].

    Warns
    -----
    UserWarning
        If there is dropout and one layer, after which nothing is dropped.

    Notes
    -----
    Source: Hochreiter, Schmidhuber 1997, "Long short-term memory"; Sak, Senior, Beaufays 2014.

    Examples
    --------
    >>> import spillgrad as sg
    >>> net = sg.nn.LSTM(input_size=3, hidden_size=4, batch_first=True)
    >>> output, (h, c) = net(sg.zeros(2, 5, 3))
    >>> output.shape, h.shape
    ((2, 5, 4), (1, 2, 4))
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(
            "LSTM", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device,
            dtype,
        )  # fmt: skip


class GRU(RNNBase):
    """Run a gated recurrent unit over sequences.

    Shapes are as in `RNN`.

    Parameters
    ----------
    input_size : int
        Size of an element of a sequence.
    hidden_size : int
        Size of the hidden state.
    num_layers : int, default 1
        Number of layers, each of which runs over the results of the one before.
    bias : bool, default True
        Whether to add biases.
    batch_first : bool, default False
        Whether input and output have the batch as first dimension; otherwise, time is first.
    dropout : float, default 0.0
        Probability of dropping an element of a layer's results in training, except those of the last layer.
    bidirectional : bool, default False
        Whether each layer runs over the sequences in both directions.
    device : device, optional
        Where the parameters are; by default, the default device.
    dtype : dtype, optional
        Data type of the parameters; by default, the default data type.

    Raises
    ------
    ArgumentError
        If a size is less than 1, or `dropout` is outside [0, 1].

    Warns
    -----
    UserWarning
        If there is dropout and one layer, after which nothing is dropped.

    Notes
    -----
    Source: Cho et al. 2014, "Learning phrase representations using RNN encoder-decoder".
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(
            "GRU", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0, device, dtype
        )


class RNNCellBase(Module):
    """The base of `RNNCell`, `LSTMCell` and `GRUCell`: the parameters and the initial state.

    All parameters are drawn from U(-a, a) with a = 1/sqrt(hidden_size).

    Parameters
    ----------
    input_size : int
        Size of the input.
    hidden_size : int
        Size of the hidden state.
    bias : bool, default True
        Whether to add biases.
    device : device, optional
        Where the parameters are; by default, the default device.
    dtype : dtype, optional
        Data type of the parameters; by default, the default data type.
    """

    _gates: ClassVar[int]
    weight_ih: Parameter
    weight_hh: Parameter
    bias_ih: Parameter | None
    bias_hh: Parameter | None

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.bias = bias
        rows = self._gates * hidden_size
        biases = (rows,) if bias else None
        weights = {"weight_ih": (rows, input_size), "weight_hh": (rows, hidden_size)}
        self._new_parameters(device, dtype, **weights, bias_ih=biases, bias_hh=biases)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters from U(-1/sqrt(hidden_size), 1/sqrt(hidden_size))."""
        init.uniform_by_fan(self.parameters(), self.hidden_size)

    def _begin(self, input: Tensor) -> Tensor:
        return creation.zeros(*input.shape[:-1], self.hidden_size, dtype=input.dtype, device=input.device)

    def extra_repr(self) -> str:
        """Return the options to show in the layer's representation.

        Returns
        -------
        str
            Names and values.
        """
        plain = "" if self.bias else f", bias={self.bias}"
        return f"{self.input_size}, {self.hidden_size}{plain}"


class RNNCell(RNNCellBase):
    """Do one step of `RNN`.

    Parameters
    ----------
    input_size : int
        Size of the input.
    hidden_size : int
        Size of the hidden state.
    bias : bool, default True
        Whether to add biases.
    nonlinearity : {"tanh", "relu"}, default "tanh"
        Function of the step.
    device : device, optional
        Where the parameters are; by default, the default device.
    dtype : dtype, optional
        Data type of the parameters; by default, the default data type.

    Raises
    ------
    ArgumentError
        For another nonlinearity.
    """

    _gates = 1

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh", device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        if nonlinearity not in ("tanh", "relu"):
            raise ArgumentError(f"RNNCell: Unknown nonlinearity: {nonlinearity}; accepted are tanh and relu")
        super().__init__(input_size, hidden_size, bias, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """Return the state after one step.

        Parameters
        ----------
        input : Tensor
            Of shape (N, input_size) or (input_size,).
        hx : Tensor, optional
            Hidden state of shape (N, hidden_size) or (hidden_size,); by default, zeros.

        Returns
        -------
        Tensor
            The new hidden state, of the same shape.
        """
        cell = recurrent.rnn_tanh_cell if self.nonlinearity == "tanh" else recurrent.rnn_relu_cell
        hx = self._begin(input) if hx is None else hx
        return cell(input, hx, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)

    def extra_repr(self) -> str:
        """Return the options to show in the layer's representation.

        Returns
        -------
        str
            Names and values.
        """
        return super().extra_repr() + ("" if self.nonlinearity == "tanh" else f", nonlinearity={self.nonlinearity}")


class LSTMCell(RNNCellBase):
    """Do one step of `LSTM`.

    Parameters
    ----------
    input_size : int
        Size of the input.
    hidden_size : int
        Size of the hidden state.
    bias : bool, default True
        Whether to add biases.
    device : device, optional
        Where the parameters are; by default, the default device.
    dtype : dtype, optional
        Data type of the parameters; by default, the default data type.
    """

    _gates = 4

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Return the state after one step.

        Parameters
        ----------
        input : Tensor
            Of shape (N, input_size) or (input_size,).
        hx : tuple of Tensor, optional
            Hidden state and cell state, each of shape (N, hidden_size) or (hidden_size,); by default, zeros.

        Returns
        -------
        tuple of Tensor
            The new hidden state and cell state, of the same shapes.
        """
        hx = (self._begin(input), self._begin(input)) if hx is None else hx
        return recurrent.lstm_cell(input, hx, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)


class GRUCell(RNNCellBase):
    """Do one step of `GRU`.

    Parameters
    ----------
    input_size : int
        Size of the input.
    hidden_size : int
        Size of the hidden state.
    bias : bool, default True
        Whether to add biases.
    device : device, optional
        Where the parameters are; by default, the default device.
    dtype : dtype, optional
        Data type of the parameters; by default, the default data type.
    """

    _gates = 3

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """Return the state after one step.

        Parameters
        ----------
        input : Tensor
            Of shape (N, input_size) or (input_size,).
        hx : Tensor, optional
            Hidden state of shape (N, hidden_size) or (hidden_size,); by default, zeros.

        Returns
        -------
        Tensor
            The new hidden state, of the same shape.
        """
        hx = self._begin(input) if hx is None else hx
        return recurrent.gru_cell(input, hx, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
