import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, CheckpointError, ShapeError
from spillgrad.models import Decoder, DecoderConfig
from spillgrad.models.rotations import rotate

SIZES = {
    "vocab_size": 11, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 6,
}  # fmt: skip
IDX = np.random.default_rng(0).integers(0, 11, (2, 5))


def make(**changes):
    sg.manual_seed(0)
    return Decoder(DecoderConfig(**{**SIZES, **changes}))


def test_parameters_have_hugging_faces_names():
    names = [name for name, _ in make(num_hidden_layers=1, attention_bias=True).named_parameters()]
    assert names == [
        "model.embed_tokens.weight",
        *(f"model.layers.0.self_attn.{p}_proj.{part}" for p in "qkvo" for part in ("weight", "bias")),
        *(f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.post_attention_layernorm.weight",
        "model.norm.weight",
        "lm_head.weight",
    ]
    tied = make(tie_word_embeddings=True)
    assert tied.lm_head.weight is tied.model.embed_tokens.weight


def test_rotations_keep_lengths_and_make_products_depend_on_distances_alone():
    random = np.random.default_rng(1)
    q, k = (np.tile(random.standard_normal((1, 8)), (6, 1)) for _ in range(2))
    angles = np.arange(6)[:, None] * (100.0 ** -(np.arange(4) / 4))
    rotation = sg.tensor(np.cos(angles)), sg.tensor(np.sin(angles))
    turned_q, turned_k = (rotate(sg.tensor(x), rotation).numpy() for x in (q, k))
    np.testing.assert_allclose(np.linalg.norm(turned_q, axis=1), np.linalg.norm(q, axis=1))
    products = turned_q @ turned_k.T
    for distance in range(-5, 6):
        diagonal = np.diagonal(products, distance)
        np.testing.assert_allclose(diagonal, diagonal[0])
    assert np.ptp(products[0]) > 0.1


def test_gradients_are_those_of_central_differences():
    model = make().double()
    targets = np.roll(IDX, -1, 1)
    model(IDX, targets)[1].backward()
    random = np.random.default_rng(1)
    for name, parameter in model.named_parameters():
        direction = sg.tensor(random.standard_normal(parameter.shape))
        losses = []
        for step in (1e-5, -2e-5):
            parameter.data.add_(direction * step)
            losses.append(model(IDX, targets)[1].item())
        parameter.data.add_(direction * 1e-5)
        slope = (parameter.grad * direction).sum().item()
        assert slope == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=1e-4, abs=1e-8), name


def test_no_token_sees_a_later_one():
    model = make()
    changed = IDX.copy()
    changed[:, 3:] = (changed[:, 3:] + 1) % 11
    before, after = model(IDX)[0].numpy(), model(changed)[0].numpy()
    np.testing.assert_allclose(after[:, :3], before[:, :3], atol=1e-6)
    assert np.abs(after[:, 3:] - before[:, 3:]).max() > 1e-4


def test_a_few_steps_learn_a_sequence_by_heart():
    model = make(hidden_size=32)
    optimizer = sg.optim.AdamW(model.parameters(), lr=1e-2)
    text = np.arange(6)[None] * 2 % 11
    for _ in range(40):
        optimizer.zero_grad()
        _, loss = model(text[:, :-1], text[:, 1:])
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05
    assert model.generate(text[:, :1], 5, temperature=0).tolist() == text.tolist()


def test_a_half_precision_model_stays_in_half_precision():
    assert str(make().bfloat16()(IDX)[0].dtype) == "bfloat16"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers 0"),
        ({"num_attention_heads": 3}, "hidden_size 8 and num_attention_heads 3"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3"),
        ({"head_dim": 3}, "heads of 3"),
        ({"rope_scaling": {"rope_type": "ntk"}}, "'ntk'; accepted are linear, llama3, yarn, longrope"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "without original_max_position_embeddings"),
        (
            {
                "rope_scaling": {
                    "rope_type": "longrope",
                    "original_max_position_embeddings": 4,
                    "short_factor": [1.0],
                    "long_factor": [1.0, 0.0],
                }
            },
            r"long_factor \[1.0, 0.0\]; wanted 1 positive",
        ),
        (
            {
                "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4},
                "rope_theta": 1.0,
            },
            "no finite angles",
        ),
        ({"model_type": "mamba"}, "'mamba'; accepted are llama, mistral"),
        ({"hidden_act": "relu"}, "'relu'; accepted are silu"),
        ({"sliding_window": 4}, "sliding_window 4 for model_type llama, which has none"),
        ({"model_type": "mistral", "layer_types": ["full_attention"] * 2}, "for model_type mistral"),
        ({"model_type": "mistral", "sliding_window": 0}, "sliding_window 0"),
        ({"model_type": "qwen2", "layer_types": ["full_attention"]}, "1 layer_types for 2 layers"),
        ({"model_type": "qwen2", "layer_types": ["sliding_attention"] * 2}, "no sliding_window"),
        ({"model_type": "qwen2", "layer_types": ["chunked_attention"] * 2}, "'chunked_attention'"),
        ({"model_type": "phi3", "partial_rotary_factor": 0.1}, "of which 0.1 rotate"),
        ({"model_type": "gemma2", "attn_logit_softcapping": -1.0}, "attn_logit_softcapping -1.0"),
        ({"rope_scaling": {"rope_type": "linear"}}, "without factor"),
    ],
)
def test_sizes_that_make_no_model_are_refused(changes, says):
    with pytest.raises(ArgumentError, match=says):
        make(**changes)


def test_tokens_that_do_not_fit_the_context_are_refused():
    with pytest.raises(ShapeError, match=r"Decoder: got tokens of shape .*1 to 6"):
        make()(np.zeros((1, 7), np.int64))


def test_old_and_new_files_mean_the_same_rotations():
    old = {"model_type": "llama", "rope_theta": 5.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    new = {"model_type": "llama", "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5.0}}
    configs = [DecoderConfig.from_hugging_face(description) for description in (old, new)]
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    wanted = DecoderConfig(rope_theta=5.0, rope_scaling={"rope_type": "linear", "factor": 2.0}, **ends)
    assert configs == [wanted, wanted]
    plain = {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}
    assert DecoderConfig.from_hugging_face(plain) == DecoderConfig(rope_theta=7.0, **ends)
    assert DecoderConfig.from_hugging_face(DecoderConfig(**SIZES).to_hugging_face()).num_key_value_heads == 2


@pytest.mark.parametrize(
    ("description", "says"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba'"),
        ({"hidden_act": "relu"}, "hidden_act 'relu'"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "use_bidirectional_attention True"),
        ({"model_type": "qwen2", "use_sliding_window": True, "layer_types": "all"}, "layer_types 'all'"),
        ({"rope_parameters": {"full_attention": 3}}, "rotations"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        (
            {"model_type": "phi3", "rope_parameters": {"rope_type": "default", "partial_rotary_factor": "half"}},
            "partial_rotary_factor 'half'",
        ),
        ({"num_attention_heads": 3}, "num_attention_heads 3"),
    ],
)
def test_a_config_of_another_model_is_refused(description, says):
    with pytest.raises(CheckpointError, match=says):
        DecoderConfig.from_hugging_face(description)


def test_what_a_familys_class_ignores_is_ignored():
    description = {
        "model_type": "llama",
        "sliding_window": 4,
        "partial_rotary_factor": 0.5,
        "final_logit_softcapping": 3.0,
    }
    assert DecoderConfig.from_hugging_face(description) == DecoderConfig(bos_token_id=1, eos_token_id=2)


@pytest.mark.parametrize("model_type", ["gemma2", "gemma3_text", "qwen2"])
def test_layers_that_all_see_everything_are_written_and_read(model_type):
    layers = {"layer_types": ["full_attention"] * 2, "num_hidden_layers": 2}
    given = {"model_type": model_type, "use_sliding_window": True, **layers}
    config = DecoderConfig.from_hugging_face(given)
    again = DecoderConfig.from_hugging_face(config.to_hugging_face())
    assert again.to_hugging_face() == config.to_hugging_face()
    assert [again.layer_type(layer) for layer in range(2)] == layers["layer_types"]
