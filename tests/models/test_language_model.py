"""What all language models do: losses of chosen tokens, documents in a row, and generation with kept keys."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.models import language_model
from spillgrad.models.families import FAMILIES
from spillgrad.nn.functional import cross_entropy

SIZES = {
    "vocab_size": 19, "hidden_size": 16, "intermediate_size": 12, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 24, "initializer_range": 0.4,
}  # fmt: skip
LONG = {
    "rope_type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 3.0],
    "original_max_position_embeddings": 8,
}  # fmt: skip
CONFIGS = {
    "gpt": sg.models.GPTConfig(vocab_size=19, context=24, n_layer=2, n_head=2, n_embd=16),
    **{name: sg.models.DecoderConfig(model_type=name, **SIZES) for name in FAMILIES},
    "windows": sg.models.DecoderConfig(model_type="mistral", sliding_window=4, **SIZES),
    "capped": sg.models.DecoderConfig(
        model_type="gemma2", sliding_window=4, layer_types=["sliding_attention", "full_attention", "full_attention"],
        attn_logit_softcapping=2.0, final_logit_softcapping=3.0, hidden_act="gelu_pytorch_tanh", **SIZES,
    ),
    "long": sg.models.DecoderConfig(model_type="phi3", rope_scaling=LONG, **SIZES),
}  # fmt: skip
IDX = np.random.default_rng(0).integers(0, 19, (2, 12))
TARGETS = np.where(np.arange(12) % 3 == 0, -100, np.roll(IDX, -1, 1))


@pytest.fixture(params=CONFIGS)
def model(request):
    sg.manual_seed(0)
    made = sg.models.build(CONFIGS[request.param])
    for parameter in made.parameters():
        parameter.data.add_(sg.randn(*parameter.shape) * 0.1)
    return made.eval()


def greedy(model, idx, count):
    """Continue sequences with a whole pass for each token: the plain way."""
    tokens = idx
    with sg.no_grad():
        for _ in range(count):
            logits = model(tokens[:, -model.config.context :])[0].numpy()
            tokens = np.concatenate([tokens, logits[:, -1].argmax(-1)[:, None]], 1)
    return tokens


def test_kept_keys_give_the_tokens_of_whole_passes_even_beyond_the_context(model):
    count = 16  # 12 + 16 is more than the context
    assert model.generate(IDX, count, temperature=0).tolist() == greedy(model, IDX, count).tolist()


def test_hidden_states_in_pieces_are_those_of_one_pass(model):
    if not model.keeps_keys(3, 12):
        return  # its angles hang on the length
    with sg.no_grad():
        whole = model.hidden_states(sg.tensor(IDX)).numpy()
        cache = sg.models.KeyValueCache(model.layers)
        parts = [model.hidden_states(sg.tensor(IDX[:, a:b]), cache=cache).numpy() for a, b in ((0, 3), (3, 4), (4, 12))]
    assert cache.length == 12
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_kept_keys_of_other_dtypes_give_what_whole_passes_do(model, dtype):
    model = model.to(dtype) if dtype == "float64" else model
    with sg.no_grad(), sg.autocast("cpu", enabled=dtype == "bfloat16"):
        whole = model(IDX[:, :6])[0].float().numpy()[:, -1:]
        cache = sg.models.KeyValueCache(model.layers)
        model(IDX[:, :5], cache=cache)
        next_alone = model(IDX[:, 5:6], cache=cache)[0].float().numpy()
    if model.keeps_keys(5, 6):
        np.testing.assert_allclose(next_alone, whole, rtol=0, atol=1e-5 if dtype == "float64" else 0.2)


def test_tokens_without_a_target_count_neither_in_the_loss_nor_in_its_gradients(model):
    logits = model(IDX)[0]
    wanted = cross_entropy(logits.flatten(0, 1), sg.tensor(TARGETS).flatten())
    wanted.backward()
    gradients = {name: parameter.grad.numpy().copy() for name, parameter in model.named_parameters()}
    model.zero_grad()
    found = model(IDX, TARGETS)[1]
    found.backward()
    assert found.item() == pytest.approx(wanted.item(), rel=1e-6)
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(parameter.grad.numpy(), gradients[name], rtol=0, atol=1e-5, err_msg=name)


def test_a_loss_in_parts_is_the_loss_of_all(monkeypatch):
    model = sg.models.build(CONFIGS["capped"])
    losses = []
    for nbytes in (1 << 20, 5 * 4 * 19):
        monkeypatch.setattr(language_model, "_LOGIT_BYTES", nbytes)
        model.zero_grad()
        loss = model(IDX, TARGETS)[1]
        loss.backward()
        losses.append([loss.item(), *(parameter.grad.abs().sum().item() for parameter in model.parameters())])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_documents_in_a_row_are_as_if_each_were_alone(model):
    lengths = (4, 1, 7)
    starts = np.tile(np.repeat((0, 4, 5), lengths), (2, 1))
    with sg.no_grad():
        packed = model(IDX, starts=starts)[0].numpy()
        for start, length in zip((0, 4, 5), lengths, strict=True):
            alone = model(IDX[:, start : start + length])[0].numpy()
            np.testing.assert_allclose(packed[:, start : start + length], alone, rtol=0, atol=2e-5)


def test_nothing_is_saved_for_each_pair_of_positions():
    length, saved = 400, []
    model = sg.models.build(sg.models.DecoderConfig(**{**vars(CONFIGS["capped"]), "max_position_embeddings": length}))
    starts = np.repeat((0, 100), (100, 300))[None]
    with sg.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        model.hidden_states(sg.tensor(np.zeros((1, length), np.int64)), starts)
    assert max(saved) < length**2


def test_long_and_short_documents_of_a_row_turn_as_if_each_were_alone():
    model = sg.models.build(CONFIGS["long"]).eval()  # whose rotations change beyond 8 positions
    starts = np.tile(np.repeat((0, 2), (2, 10)), (2, 1))
    with sg.no_grad():
        packed = model(IDX, starts=starts)[0].numpy()
        for part in (slice(0, 2), slice(2, 12)):
            np.testing.assert_allclose(packed[:, part], model(IDX[:, part])[0].numpy(), rtol=0, atol=2e-5)


def test_losses_in_parts_check_targets_and_do_not_overflow_in_half_precision():
    model = sg.models.build(CONFIGS["capped"])
    with pytest.raises(ShapeError, match=r"targets of shape \(1, 24\) for tokens of shape \(2, 12\)"):
        model(IDX, TARGETS.reshape(1, 24))
    many = np.tile(IDX, (2000, 1))
    wanted = model(many, many)[1].item()
    loss = model.half()(many, many)[1]
    assert str(loss.dtype) == "float16"
    assert loss.item() == pytest.approx(wanted, rel=0.01)


def test_an_adapted_output_layer_learns():
    model = sg.nn.lora(sg.models.build(CONFIGS["llama"]), 2)
    model(IDX, TARGETS)[1].backward()
    assert model.lm_head.lora_B.weight.grad.abs().max().item() > 1e-4


@pytest.mark.parametrize("policy", [{"lm_head": "recompute"}, {"*": "recompute"}])
@pytest.mark.parametrize("name", ["capped", "adapted"])
def test_output_layers_whose_loss_is_recomputed_in_parts_may_be_recomputed(name, policy, tmp_path):
    model = sg.models.build(CONFIGS["llama" if name == "adapted" else name])
    if name == "adapted":
        model = sg.nn.lora(model, 2)
    gradients = []
    for chosen in ("spill", policy):
        model.zero_grad()
        with sg.save_on_disk(tmp_path, ram_budget=0, policy=chosen):
            loss = model(IDX, TARGETS)[1]
        loss.backward()
        gradients.append([p.grad.numpy().tobytes() for p in model.parameters() if p.requires_grad])
    assert gradients[0] == gradients[1]


@pytest.mark.parametrize("name", ["gpt", "llama"])
@pytest.mark.parametrize("length", [1, 2])
def test_a_cache_is_no_place_for_what_is_differentiated(name, length):
    model = sg.models.build(CONFIGS[name])
    cache = sg.models.KeyValueCache(model.layers)
    with sg.no_grad():
        model(IDX[:, :5], cache=cache)
    with pytest.raises(sg.errors.GraphError, match=r"call the model in no_grad\(\)"):
        model(IDX[:, 5 : 5 + length], cache=cache)


@pytest.mark.parametrize("projection", ["k_proj", "q_proj"])
def test_a_next_position_is_differentiated_through_its_query_alone(projection):
    model = sg.models.build(CONFIGS["llama"]).requires_grad_(False)
    last = model.model.layers[-1].self_attn
    getattr(last, projection).weight.requires_grad_(True)
    cache = sg.models.KeyValueCache(model.layers)
    with sg.no_grad():
        model(IDX[:, :5], cache=cache)
    if projection == "k_proj":
        with pytest.raises(sg.errors.GraphError, match=r"call the model in no_grad\(\)"):
            model(IDX[:, 5:6], cache=cache)
        return
    model(IDX[:, 5:6], cache=cache)[0].sum().backward()
    found = last.q_proj.weight.grad.numpy().copy()
    model.zero_grad()
    model(IDX[:, :6])[0][:, -1].sum().backward()
    np.testing.assert_allclose(found, last.q_proj.weight.grad.numpy(), rtol=0, atol=1e-5)


def test_a_cache_of_other_sequences_is_refused(model):
    cache = sg.models.KeyValueCache(model.layers)
    with sg.no_grad():
        model(IDX[:, :5], cache=cache)
        with pytest.raises(sg.errors.ShapeError, match="got keys of 1 sequences; it has those of 2"):
            model(IDX[:1, 5:6], cache=cache)


def test_tokens_are_yielded_as_they_come_and_stop_where_they_should():
    model = sg.models.build(CONFIGS["llama"]).eval()
    free = model.generate(IDX, 6, temperature=0).numpy()[:, 12:]
    stops = [int(free[0, 2]), int(free[1, 4])]
    ends = [next(place for place, token in enumerate(row) if token in stops) for row in free]
    stream = model.stream(IDX, 6, temperature=0, stop=stops)
    assert next(stream).tolist() == free[:, 0].tolist()
    assert len(list(stream)) == max(ends)
    found = model.generate(IDX, 6, temperature=0, stop=stops).numpy()[:, 12:]
    for row, end, all_tokens in zip(found, ends, free, strict=True):
        assert row[: end + 1].tolist() == all_tokens[: end + 1].tolist()
        assert set(row[end:]) == {all_tokens[end]}


def test_only_the_likeliest_tokens_are_drawn():
    logits = np.log(np.array([[0.1, 0.5, 0.15, 0.25]]))
    drawn = {
        share: {
            int(language_model._sample(logits, 1.0, None, share, np.array([u]))[0]) for u in np.linspace(0, 0.999, 99)
        }
        for share in (0.4, 0.6, 0.8, 1.0)
    }
    assert drawn == {0.4: {1}, 0.6: {1, 3}, 0.8: {1, 2, 3}, 1.0: {0, 1, 2, 3}}


@pytest.mark.parametrize("wrong", [{"temperature": -1}, {"top_k": 0}, {"top_p": 0}, {"top_p": 1.5}])
def test_draws_out_of_range_are_refused(wrong):
    with pytest.raises(ArgumentError, match="generate: got temperature"):
        sg.models.build("tiny").generate(np.zeros((1, 1), np.int64), 1, **wrong)


@pytest.mark.parametrize("starts", [np.zeros((2, 3)), np.full((2, 12), -1), np.full((2, 12), 1)])
def test_starts_that_do_not_fit_are_refused(starts):
    with pytest.raises(ShapeError, match="got starts of shape"):
        sg.models.build(CONFIGS["llama"])(IDX, starts=starts.astype(np.int64))
