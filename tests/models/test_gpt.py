import math

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.models import GPT, GPTConfig

CONFIG = GPTConfig(vocab_size=11, context=6, n_layer=2, n_head=2, n_embd=8)
IDX = np.random.default_rng(0).integers(0, 11, (2, 5))


def make(**changes):
    sg.manual_seed(0)
    return GPT(GPTConfig(**{**vars(CONFIG), **changes}))


def norm(x, weights, name):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def project(x, weights, name):
    return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]


def oracle(weights, idx, n_layer, n_head):
    """Return GPT-2's logits in NumPy, from a state dict."""
    w = {name: tensor.numpy().astype(np.float64) for name, tensor in weights.items()}
    batch, length = idx.shape
    x = w["transformer.wte.weight"][idx] + w["transformer.wpe.weight"][:length]
    hidden = np.triu(np.full((length, length), -np.inf), 1)
    for layer in range(n_layer):
        h = f"transformer.h.{layer}"
        q, k, v = (
            part.reshape(batch, length, n_head, -1).transpose(0, 2, 1, 3)
            for part in np.split(project(norm(x, w, f"{h}.ln_1"), w, f"{h}.attn.c_attn"), 3, -1)
        )
        scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1]) + hidden
        p = np.exp(scores - scores.max(-1, keepdims=True))
        heads = (p / p.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
        x = x + project(heads, w, f"{h}.attn.c_proj")
        y = project(norm(x, w, f"{h}.ln_2"), w, f"{h}.mlp.c_fc")
        y = y * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3))) / 2
        x = x + project(y, w, f"{h}.mlp.c_proj")
    return norm(x, w, "transformer.ln_f") @ w["lm_head.weight"].T


def test_names_and_shapes_are_gpt2s():
    shapes = {name: tensor.shape for name, tensor in make().state_dict().items()}
    block = {
        "ln_1.weight": (8,),
        "ln_1.bias": (8,),
        "attn.c_attn.weight": (8, 24),
        "attn.c_attn.bias": (24,),
        "attn.c_proj.weight": (8, 8),
        "attn.c_proj.bias": (8,),
        "ln_2.weight": (8,),
        "ln_2.bias": (8,),
        "mlp.c_fc.weight": (8, 32),
        "mlp.c_fc.bias": (32,),
        "mlp.c_proj.weight": (32, 8),
        "mlp.c_proj.bias": (8,),
    }
    assert shapes == {
        "transformer.wte.weight": (11, 8),
        "transformer.wpe.weight": (6, 8),
        **{f"transformer.h.{layer}.{name}": shape for layer in range(2) for name, shape in block.items()},
        "transformer.ln_f.weight": (8,),
        "transformer.ln_f.bias": (8,),
        "lm_head.weight": (11, 8),
    }


def test_the_head_shares_the_token_embeddings_weight():
    model = make()
    assert model.lm_head.weight is model.transformer.wte.weight
    assert "lm_head.weight" not in dict(model.named_parameters())
    assert (model.lm_head.in_features, model.lm_head.out_features) == (8, 11)


def test_the_logits_are_gpt2s():
    model = make()
    with sg.no_grad():
        for parameter in model.parameters():  # away from the initial values, which hide what is small
            parameter.add_(sg.randn(*parameter.shape) * 0.3)
    logits, loss = model(IDX)
    assert loss is None
    np.testing.assert_allclose(logits.numpy(), oracle(model.state_dict(), IDX, 2, 2), rtol=1e-3, atol=1e-4)


def test_the_loss_is_the_mean_cross_entropy_and_reaches_every_parameter():
    model = make()
    targets = np.roll(IDX, -1, 1)
    none, loss = model(sg.tensor(IDX), sg.tensor(targets))
    assert none is None
    log_p = model(IDX)[0].numpy().astype(np.float64)
    log_p -= np.log(np.exp(log_p).sum(-1, keepdims=True))
    assert loss.item() == pytest.approx(-np.take_along_axis(log_p, targets[..., None], -1).mean(), rel=1e-5)
    loss.backward()
    for name, parameter in model.named_parameters():
        assert np.abs(parameter.grad.numpy()).max() > 0, name


def test_gradients_are_those_of_central_differences():
    model = make().double()
    targets = np.roll(IDX, -1, 1)
    model(IDX, targets)[1].backward()
    state = model.state_dict()
    random = np.random.default_rng(1)
    for name, parameter in model.named_parameters():
        direction = random.standard_normal(parameter.shape)
        losses = []
        for step in (1e-5, -1e-5):
            moved = state | {name: sg.tensor(parameter.numpy() + step * direction)}
            moved["lm_head.weight"] = moved["transformer.wte.weight"]
            log_p = oracle(moved, IDX, 2, 2)
            log_p -= np.log(np.exp(log_p).sum(-1, keepdims=True))
            losses.append(-np.take_along_axis(log_p, targets[..., None], -1).mean())
        slope = (parameter.grad.numpy() * direction).sum()
        assert slope == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=1e-5, abs=1e-9), name


def test_no_token_sees_a_later_one():
    model = make()
    changed = IDX.copy()
    changed[:, 3:] = (changed[:, 3:] + 1) % 11
    before, after = model(IDX)[0].numpy(), model(changed)[0].numpy()
    np.testing.assert_allclose(after[:, :3], before[:, :3], atol=1e-6)
    assert np.abs(after[:, 3:] - before[:, 3:]).max() > 1e-3


def test_weights_begin_as_gpt2s_do():
    model = make(n_embd=64, vocab_size=256, context=128)
    spreads = {name: tensor.numpy().std() for name, tensor in model.named_parameters()}
    for name, std in (
        ("transformer.wte.weight", 0.02),
        ("transformer.wpe.weight", 0.02),
        ("transformer.h.0.attn.c_attn.weight", 0.02),
        ("transformer.h.1.mlp.c_proj.weight", 0.02 / math.sqrt(4)),
        ("transformer.h.0.attn.c_proj.weight", 0.02 / math.sqrt(4)),
        ("transformer.h.0.attn.c_proj.bias", 0),
    ):
        assert spreads[name] == pytest.approx(std, rel=0.05), name


def test_a_few_steps_learn_a_sequence_by_heart():
    model = make(n_embd=32)
    optimizer = sg.optim.AdamW(model.parameters(), lr=1e-2)
    text = np.arange(6)[None] * 2 % 11
    for _ in range(40):
        optimizer.zero_grad()
        _, loss = model(text[:, :-1], text[:, 1:])
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05
    assert model.generate(text[:, :1], 5, temperature=0).tolist() == text.tolist()


def test_generation_depends_on_the_seed_alone_and_leaves_the_mode():
    model = make(dropout=0.5)
    first = model.generate(IDX, 12, seed=1)
    assert first.shape == (2, 17)
    assert str(first.dtype) == "int64"
    assert (first.numpy()[:, :5] == IDX).all()
    assert model.training
    assert model.generate(sg.tensor(IDX), 12, seed=1).tolist() == first.tolist()
    assert model.generate(IDX, 12, seed=2).tolist() != first.tolist()


def test_sampling_follows_the_probabilities_and_top_k_keeps_the_likeliest():
    model = make(n_layer=1)
    idx = np.zeros((4000, 1), np.int64)
    with sg.no_grad():
        model.transformer.wte.weight.mul_(30.0)
        logits = model(idx[:1])[0].numpy()[0, -1].astype(np.float64)
    p = np.exp(logits / 2.0)
    p /= p.sum()
    drawn = model.generate(idx, 1, temperature=2.0).numpy()[:, 1]
    np.testing.assert_allclose(np.bincount(drawn, minlength=11) / 4000, p, atol=4 / math.sqrt(4000) / 2)
    drawn = model.generate(idx, 1, top_k=3).numpy()[:, 1]
    assert set(drawn) <= set(np.argsort(logits)[-3:])
    assert set(model.generate(idx, 1, temperature=0).numpy()[:, 1]) == {logits.argmax()}


def test_dropout_acts_in_training_only():
    model = make(dropout=0.5)
    assert model(IDX)[0].tolist() != model(IDX)[0].tolist()
    model.eval()
    assert model(IDX)[0].tolist() == model(IDX)[0].tolist()


@pytest.mark.parametrize("shape", [(2, 7), (2, 0), (5,)])
def test_tokens_that_do_not_fit_the_context_are_refused(shape):
    with pytest.raises(ShapeError, match="1 to 6"):
        make()(np.zeros(shape, np.int64))


@pytest.mark.parametrize("changes", [{"n_head": 3}, {"n_layer": 0}, {"vocab_size": -1}])
def test_sizes_that_make_no_model_are_refused(changes):
    with pytest.raises(ArgumentError, match=next(iter(changes))):
        make(**changes)


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"top_k": 0}])
def test_sampling_options_out_of_range_are_refused(wrong):
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        make().generate(IDX, 1, **wrong)
