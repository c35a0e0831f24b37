import math

import pytest

from spillgrad import models
from spillgrad.errors import ArgumentError, UnknownModelError
from spillgrad.nn.modules.module import register_module_parameter_registration_hook


def size(config):
    """Return how many parameters a model of these sizes has; a tied head adds none."""
    if isinstance(config, models.LlamaConfig):
        width, shared = config.hidden_size, config.key_value_heads * config.head_width
        block = 2 * width * (width + shared) + 3 * width * config.intermediate_size + 2 * width
        tables = 1 if config.tie_word_embeddings else 2
        return tables * config.vocab_size * width + config.num_hidden_layers * block + width
    width = config.n_embd
    block = 12 * width * width + 13 * width
    return (config.vocab_size + config.context) * width + config.n_layer * block + 2 * width


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("tiny", 0.12),
        ("small", 3.3),
        ("gpt2", 124.4),
        ("gpt2-medium", 354.8),
        ("gpt2-large", 774.0),
        ("gpt2-xl", 1557.6),
        ("llama-tiny", 0.109),
        ("tinyllama", 1100.0),
        ("llama-3.2-1b", 1235.8),
        ("llama-3.1-8b", 8030.3),
    ],
)
def test_models_have_the_size_their_name_says(name, millions):
    assert name in models.names()
    assert size(models.config(name)) / 1e6 == pytest.approx(millions, rel=0.01)


@pytest.mark.parametrize("name", ["tiny", "llama-tiny"])
def test_a_model_is_built_by_name(name):
    model = models.build(name)
    assert sum(math.prod(parameter.shape) for parameter in model.parameters()) == size(model.config)


@pytest.mark.parametrize("name", ["tiny", "llama-tiny"])
def test_no_weight_is_made_that_the_model_does_not_keep(name):
    made = []
    with register_module_parameter_registration_hook(lambda module, path, weight: made.append(weight)):
        model = models.build(name)
    assert sum(weight.numel() for weight in {id(weight): weight for weight in made}.values()) == size(model.config)


def test_sizes_can_be_replaced():
    model = models.build("tiny", context=8, n_layer=1, dropout=0.1)
    assert (model.config.context, model.config.n_layer, model.config.dropout) == (8, 1, 0.1)
    assert model.transformer.wpe.weight.shape == (8, 64)
    assert len(model.transformer.h) == 1


def test_the_context_of_a_llama_can_be_replaced():
    model = models.build("llama-tiny", context=8, vocab_size=9)
    assert (model.config.context, model.config.max_position_embeddings) == (8, 8)
    assert model.lm_head.weight.shape == (9, 64)


def test_an_unknown_name_lists_the_known_and_the_nearest():
    with pytest.raises(UnknownModelError) as caught:
        models.build("gpt2-x1")
    assert str(caught.value) == (
        "models: got 'gpt2-x1'; known are tiny, small, gpt2, gpt2-medium, gpt2-large, gpt2-xl, llama-tiny, tinyllama, "
        "llama-3.2-1b, llama-3.1-8b; did you mean 'gpt2-xl'?"
    )
    with pytest.raises(UnknownModelError, match="known are tiny"):
        models.build("zzz")


def test_a_size_that_does_not_exist_is_named():
    with pytest.raises(ArgumentError, match="got n_heads; the sizes are vocab_size"):
        models.build("tiny", n_heads=3)


def test_a_model_is_built_of_a_config_too():
    chosen = models.config("tiny", n_layer=1)
    assert models.build(chosen).config == chosen
    assert models.build(chosen, context=8).config == models.config("tiny", context=8, n_layer=1)
