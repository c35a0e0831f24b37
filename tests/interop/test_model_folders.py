"""A folder that `transformers` writes gives its logits and gradients here, for each family; and the other way round."""

import json

import numpy as np
import pytest
import torch
import transformers

import spillgrad as sg
from spillgrad.models.families import FAMILIES

SIZES = {
    "vocab_size": 37, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": None, "bos_token_id": 1,
    "eos_token_id": [2, 3],
}  # fmt: skip
LENGTH = 13
LONG = {
    "rope_type": "longrope", "short_factor": [1.0, 1.5, 2.0], "long_factor": [2.0, 3.0, 5.0], "rope_theta": 100.0,
    "original_max_position_embeddings": 8,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 100.0}
LLAMA3 = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 100.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
# For each model: its kind in transformers, and what its config has beside SIZES.
MODELS = {
    "llama": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-3": ("Llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 8}),
    "mistral-window": ("Mistral", {"sliding_window": 5}),
    "qwen2": ("Qwen2", {}),
    "qwen2.5-yarn": ("Qwen2", {"rope_parameters": YARN, "tie_word_embeddings": True}),
    "qwen2-windows": ("Qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 8, "tie_word_embeddings": True}),
    "phi3": ("Phi3", {}),
    "phi3-window": ("Phi3", {"sliding_window": 6}),
    "phi3-long": ("Phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 8}),
    "phi4-mini": ("Phi3", {"num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True,
                           "rope_parameters": {"rope_theta": 100.0, "partial_rotary_factor": 0.7}}),
    "gemma2": ("Gemma2", {"head_dim": 8, "query_pre_attn_scalar": 6, "sliding_window": 4,
                          "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma2-uncapped": ("Gemma2", {"head_dim": 8, "attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma3": ("Gemma3Text", {"head_dim": 8, "query_pre_attn_scalar": 12, "sliding_window": 4,
                              "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    "gemma3-scaled": ("Gemma3Text", {"head_dim": 8, "sliding_window": 4, "sliding_window_pattern": 2,
                                     "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}}),
}  # fmt: skip
IDX = np.random.default_rng(5).integers(0, 37, (2, LENGTH))
TARGETS = np.roll(IDX, -1, 1)


def made(name):
    """Return the model of transformers, with weights that all matter."""
    kind, changes = MODELS[name]
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **changes})
    config._attn_implementation = "eager"
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.3 if parameter.ndim > 1 else 0.2))
    return model


@pytest.fixture(scope="module", params=MODELS)
def both(request, tmp_path_factory):
    theirs = made(request.param)
    folder = tmp_path_factory.mktemp("folder") / request.param
    theirs.save_pretrained(folder)
    return theirs, sg.models.from_safetensors(folder), folder


def assert_near(got, wanted, tolerance):
    wanted = np.asarray(wanted)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())


def gradients_of(theirs):
    logits = theirs(torch.tensor(IDX)).logits
    theirs.zero_grad()
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(TARGETS).flatten()).backward()
    return logits, {name: parameter.grad.numpy() for name, parameter in theirs.named_parameters()}


def test_logits_and_gradients_are_those_of_transformers(both):
    theirs, ours, _ = both
    logits, gradients = gradients_of(theirs)
    assert_near(ours(IDX)[0].numpy(force=True), logits.detach(), 2e-5)
    ours.zero_grad()
    ours(IDX, TARGETS)[1].backward()
    found = {name: parameter.grad.numpy() for name, parameter in ours.named_parameters()}
    assert found.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert np.abs(gradient).max() > 1e-5, name
        assert_near(found[name], gradient, 1e-4)


def test_a_folder_written_here_is_read_by_transformers(both, tmp_path):
    theirs, ours, _ = both
    version = sg.save_checkpoint(tmp_path, ours)
    again = transformers.AutoModelForCausalLM.from_pretrained(version, attn_implementation="eager")
    assert type(again) is type(theirs)
    with torch.no_grad():
        assert_near(again(torch.tensor(IDX)).logits, theirs(torch.tensor(IDX)).logits, 1e-6)
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        assert getattr(again.config, name) == SIZES[name]
    assert sg.models.config_of(version).to_hugging_face() == ours.config.to_hugging_face()


def test_documents_in_a_row_are_as_if_each_were_alone(both):
    theirs, ours, _ = both
    lengths = (5, 1, 7)
    starts = np.repeat(np.cumsum((0, *lengths[:-1])), lengths)
    packed = ours(IDX, starts=np.stack([starts, starts]))[0].numpy(force=True)
    place = 0
    for length in lengths:
        with torch.no_grad():
            alone = theirs(torch.tensor(IDX[:, place : place + length])).logits
        assert_near(packed[:, place : place + length], alone, 2e-5)
        place += length


def test_generated_tokens_are_those_of_transformers(both):
    theirs, ours, _ = both
    count = 20  # beyond windows, and beyond the original context of long rotations
    prompt = torch.tensor(IDX[:, :5])
    theirs.generation_config.eos_token_id = None
    wanted = theirs.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count, do_sample=False, use_cache=False,
    )  # fmt: skip
    assert ours.generate(IDX[:, :5], count, temperature=0).tolist() == wanted.tolist()


def test_every_family_is_tried():
    kinds = {json.loads(made(name).config.to_json_string())["model_type"] for name in MODELS}
    assert kinds == FAMILIES.keys()
