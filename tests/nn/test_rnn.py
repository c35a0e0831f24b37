"""Recurrent networks against plain loops in NumPy, sequence by sequence and step by step."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from tests.ops.checks import check_gradients

RNG = np.random.default_rng(0)
INPUTS, HIDDEN, STEPS, BATCH = 3, 4, 5, 2
X = RNG.normal(size=(STEPS, BATCH, INPUTS))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def step(mode, x, h, c, weights):
    """One step of one sequence by the papers' equations."""
    w_ih, w_hh, b_ih, b_hh, w_hr = weights
    from_x, from_h = w_ih @ x + b_ih, w_hh @ h + b_hh
    if mode == "GRU":
        (xr, xz, xn), (hr, hz, hn) = np.split(from_x, 3), np.split(from_h, 3)
        r, z = sigmoid(xr + hr), sigmoid(xz + hz)
        return (1 - z) * np.tanh(xn + r * hn) + z * h, c
    if mode == "LSTM":
        i, f, g, o = np.split(from_x + from_h, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        return (h if w_hr is None else w_hr @ h), c
    return (np.tanh if mode == "RNN_TANH" else lambda v: np.maximum(v, 0))(from_x + from_h), c


def run(model, sequence, h0=None, c0=None):
    """Return outputs (T, features) and last states (layers · directions, ...) of one sequence."""
    directions = 2 if model.bidirectional else 1
    width = model.proj_size or model.hidden_size
    h0 = np.zeros((model.num_layers * directions, width)) if h0 is None else h0
    c0 = np.zeros((model.num_layers * directions, model.hidden_size)) if c0 is None else c0
    hs, cs = [], []
    for layer in range(model.num_layers):
        outputs = []
        for direction in range(directions):
            suffix = f"_l{layer}" + ("_reverse" if direction else "")
            names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
            weights = [getattr(model, n + suffix, None) for n in names]
            weights = [None if w is None else w.detach().numpy() for w in weights]
            weights[2:4] = [0 if w is None else w for w in weights[2:4]]
            h, c = h0[len(hs)], c0[len(hs)]
            found = []
            for x in sequence[::-1] if direction else sequence:
                h, c = step(model.mode, x, h, c, weights)
                found.append(h)
            outputs.append(found[::-1] if direction else found)
            hs.append(h)
            cs.append(c)
        sequence = np.concatenate(outputs, 1)
    return sequence, np.stack(hs), np.stack(cs)


MODELS = {
    "RNN": lambda **k: nn.RNN(INPUTS, HIDDEN, **k),
    "RNN relu": lambda **k: nn.RNN(INPUTS, HIDDEN, nonlinearity="relu", **k),
    "LSTM": lambda **k: nn.LSTM(INPUTS, HIDDEN, **k),
    "LSTM projected": lambda **k: nn.LSTM(INPUTS, HIDDEN, proj_size=2, **k),
    "GRU": lambda **k: nn.GRU(INPUTS, HIDDEN, **k),
}
OPTIONS = [{}, {"num_layers": 2, "bias": False}, {"num_layers": 2, "bidirectional": True}]


def made(name, **options):
    sg.manual_seed(0)
    return MODELS[name](**options).double()


def states(model):
    directions = 2 if model.bidirectional else 1
    lead = (model.num_layers * directions, BATCH)
    h, c = RNG.normal(size=(*lead, model.proj_size or HIDDEN)), RNG.normal(size=(*lead, HIDDEN))
    return h, c, (sg.tensor(h), sg.tensor(c)) if model.mode == "LSTM" else sg.tensor(h)


def as_tuple(last):
    return last if isinstance(last, tuple) else (last,)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_a_network_runs_its_equations_over_every_sequence(name, options):
    model = made(name, **options)
    h0, c0, hx = states(model)
    for given, h, c in ((None, None, None), (hx, h0, c0)):
        output, last = model(sg.tensor(X), given)
        for n in range(BATCH):
            expected, *ends = run(model, X[:, n], *(None if s is None else s[:, n] for s in (h, c)))
            np.testing.assert_allclose(output.numpy()[:, n], expected, 1e-10, 1e-12)
            for got, end in zip(as_tuple(last), ends, strict=False):
                np.testing.assert_allclose(got.numpy()[:, n], end, 1e-10, 1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_the_batch_may_come_first_or_be_left_out(name):
    model = made(name, bidirectional=True)
    first = made(name, bidirectional=True, batch_first=True)
    output, last = model(sg.tensor(X))
    flipped, same = first(sg.tensor(X).transpose(0, 1))
    np.testing.assert_array_equal(flipped.numpy(), output.transpose(0, 1).numpy())
    _, _, hx = states(model)
    _, with_state = model(sg.tensor(X), hx)
    alone, ends = model(sg.tensor(X[:, 1]), tuple(s[:, 1] for s in hx) if isinstance(hx, tuple) else hx[:, 1])
    assert alone.shape == output.shape[::2]
    for a, b, c, d in zip(as_tuple(last), as_tuple(same), as_tuple(with_state), as_tuple(ends), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
        np.testing.assert_allclose(c.numpy()[:, 1], d.numpy(), 1e-12)


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_packed_sequences_run_as_each_alone(name, is_sorted):
    model = made(name, num_layers=2, bidirectional=True)
    lengths = [5, 2] if is_sorted else [2, 5]
    h0, c0, hx = states(model)
    packed = pack_padded_sequence(sg.tensor(X), lengths, enforce_sorted=is_sorted)
    output, last = model(packed, hx)
    padded, got_lengths = pad_packed_sequence(output)
    assert got_lengths.tolist() == lengths
    for n, length in enumerate(lengths):
        expected, *ends = run(model, X[:length, n], h0[:, n], c0[:, n])
        np.testing.assert_allclose(padded.numpy()[:length, n], expected, 1e-10, 1e-12)
        assert not padded.numpy()[length:, n].any()
        for got, end in zip(as_tuple(last), ends, strict=False):
            np.testing.assert_allclose(got.numpy()[:, n], end, 1e-10, 1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_differences(name):
    sg.manual_seed(1)
    model = MODELS[name](num_layers=2 if name == "LSTM" else 1, bidirectional=True).double()
    names = [key for key, _ in model.named_parameters()]

    def function(x, *weights):
        for key, weight in zip(names, weights, strict=True):
            model._parameters[key] = weight
        output, last = model(pack_padded_sequence(x, [3, 2]))
        return sg.cat([output.data.reshape(-1), *(part.reshape(-1) for part in as_tuple(last))])

    weights = [p.detach().numpy() * 2 for p in model.parameters()]
    check_gradients(function, X[:3], *weights, second=name == "GRU")


@pytest.mark.parametrize("make", [nn.RNNCell, nn.LSTMCell, nn.GRUCell])
@pytest.mark.parametrize("bias", [True, False])
def test_a_cell_is_one_step_of_its_network(make, bias):
    sg.manual_seed(0)
    cell = make(INPUTS, HIDDEN, bias=bias).double()
    network = getattr(nn, make.__name__.removesuffix("Cell"))(INPUTS, HIDDEN, bias=bias).double()
    network.load_state_dict({f"{key}_l0": value for key, value in cell.state_dict().items()})
    x = sg.tensor(X[0])
    zeros = sg.zeros(BATCH, HIDDEN, dtype="float64")
    state = (zeros + 0.5, zeros - 0.5) if make is nn.LSTMCell else zeros + 0.5
    _, last = network(x.unsqueeze(0), tuple(s.unsqueeze(0) for s in state) if make is nn.LSTMCell else state[None])
    for got, wanted in zip(as_tuple(cell(x, state)), as_tuple(last), strict=True):
        np.testing.assert_allclose(got.numpy(), wanted.numpy()[0], 1e-12)
    first = state[0][0], state[1][0]
    alone = cell(x[0], first if make is nn.LSTMCell else state[0])
    np.testing.assert_allclose(as_tuple(alone)[0].numpy(), as_tuple(last)[0].numpy()[0, 0], 1e-12)
    _, from_zero = network(x.unsqueeze(0))
    np.testing.assert_allclose(as_tuple(cell(x))[0].numpy(), as_tuple(from_zero)[0].numpy()[0], 1e-12)


def test_dropout_acts_between_layers_in_training_only():
    sg.manual_seed(0)
    model = nn.GRU(INPUTS, HIDDEN, num_layers=2, dropout=0.5)
    x = sg.tensor(X, dtype="float32")
    first, second = model(x)[0], model(x)[0]
    assert (first != second).any()
    model.eval()
    np.testing.assert_array_equal(model(x)[0].numpy(), model(x)[0].numpy())
    with pytest.warns(UserWarning, match="num_layers greater than 1"):
        nn.GRU(INPUTS, HIDDEN, dropout=0.5)


def test_parameters_have_pytorchs_names_and_first_values():
    model = nn.LSTM(INPUTS, 9, num_layers=2, bidirectional=True, proj_size=2)
    names = ["weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr"]
    suffixes = ["_l0", "_l0_reverse", "_l1", "_l1_reverse"]
    assert [name for name, _ in model.named_parameters()] == [n + s for s in suffixes for n in names]
    assert model.weight_ih_l1.shape == (36, 4)
    assert all(float(abs(p).max()) <= 1 / 3 for p in model.parameters())
    assert [len(weights) for weights in model.all_weights] == [5] * 4
    model.flatten_parameters()


def test_a_batch_without_sequences_has_no_outputs():
    output, last = nn.GRU(INPUTS, HIDDEN)(sg.zeros(STEPS, 0, INPUTS))
    assert (output.shape, last.shape) == ((STEPS, 0, HIDDEN), (1, 0, HIDDEN))


def test_a_recurrent_network_learns_to_remember():
    sg.manual_seed(0)
    model, head = nn.LSTM(1, 8, batch_first=True), nn.Linear(8, 1)
    signals = RNG.choice([-1.0, 1.0], size=(32, 6, 1)).astype(np.float32)
    optimizer = sg.optim.AdamW([*model.parameters(), *head.parameters()], lr=0.03)
    for _ in range(60):
        output, _ = model(sg.tensor(signals))
        loss = ((head(output[:, -1]) - sg.tensor(signals[:, 0])) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05


SHOWN = [
    (lambda: nn.RNN(3, 4), "RNN(3, 4)"),
    (
        lambda: nn.LSTM(3, 4, 2, bias=False, batch_first=True, dropout=0.1, bidirectional=True, proj_size=2),
        "LSTM(3, 4, proj_size=2, num_layers=2, bias=False, batch_first=True, dropout=0.1, bidirectional=True)",
    ),
    (lambda: nn.RNNCell(3, 4, nonlinearity="relu"), "RNNCell(3, 4, nonlinearity=relu)"),
    (lambda: nn.GRUCell(3, 4, bias=False), "GRUCell(3, 4, bias=False)"),
]


@pytest.mark.parametrize(("make", "shown"), SHOWN, ids=[shown for _, shown in SHOWN])
def test_the_representation_is_pytorchs(make, shown):
    assert repr(make()) == shown


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: nn.LSTM(3, 4)(sg.zeros(5, 2, 2)), ShapeError, r"input_size. Expected 3, got 2"),
        (lambda: nn.LSTM(3, 4)(sg.zeros(3)), ShapeError, "Expected input to be 2D or 3D, got 1D"),
        (lambda: nn.GRU(3, 4)(sg.zeros(0, 2, 3)), ShapeError, "sequence length to be larger than 0"),
        (lambda: nn.GRU(3, 4)(sg.zeros(5, 2, 3), sg.zeros(1, 3, 4)), ShapeError, r"hidden size \(1, 2, 4\), got"),
        (lambda: nn.GRU(3, 4)(sg.zeros(5, 3), sg.zeros(1, 3)), ShapeError, r"hidden size \(1, 4\), got \(1, 3\)"),
        (lambda: nn.LSTM(3, 4)(sg.zeros(5, 2, 3), (sg.zeros(1, 2, 4),)), ArgumentError, r"wanted \(h_0, c_0\)"),
        (lambda: nn.LSTM(3, 4)(sg.zeros(5, 2, 3), (sg.zeros(1, 2, 4), sg.zeros(1, 2, 3))), ShapeError, "cell size"),
        (lambda: nn.GRU(3, 4)(pack_padded_sequence(sg.zeros(5, 1, 2), [5])), ShapeError, "Expected 3, got 2"),
        (lambda: nn.LSTM(3, 4, dropout=2.0), ArgumentError, r"number in range \[0, 1\]"),
        (lambda: nn.LSTM(3, 4, proj_size=4), ArgumentError, "smaller than hidden_size"),
        (lambda: nn.LSTM(3, 0), ArgumentError, "greater than zero"),
        (lambda: nn.RNN(3, 4, nonlinearity="gelu"), ArgumentError, "Unknown nonlinearity 'gelu'"),
        (lambda: nn.RNNCell(3, 4, nonlinearity="gelu"), ArgumentError, "Unknown nonlinearity"),
        (lambda: nn.GRUCell(3, 4)(sg.zeros(2, 2, 3)), ShapeError, "Expected input to be 1D or 2D"),
        (lambda: nn.GRUCell(3, 4)(sg.zeros(2, 3), sg.zeros(3, 4)), ShapeError, r"wanted hidden \(2, 4\)"),
    ],
)
def test_what_does_not_fit_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
