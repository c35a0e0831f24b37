"""Say, without measuring anything, in how much memory a training certainly runs if all of it stays in RAM."""

from spillgrad.models.catalogue import Config
from spillgrad.models.gpt import GPTConfig
from spillgrad_tools.train.options import TrainSettings

_FLOAT_BYTES = 4
# A parameter, its gradient, two numbers of AdamW's state, and a copy in fewer bits or for the sum of several processes.
_ARRAYS_A_PARAMETER = 5
# What the compiler, threads and open files take at most beside what a process has when it begins.
_BEGUN_BYTES = 320 << 20
# What a layer saves for a token is at most so many times its width, and so many times that of its feed-forward network:
# twice what profiles of each family show.
_SAVED_WIDTHS, _SAVED_INNER_WIDTHS = 12, 5
# Logits, their softmax, their gradient, and a copy.
_LOGITS = 4


def rough_need(config: Config, settings: TrainSettings) -> int:
    """Return the bytes that suffice to train a model in RAM, beside those of its process and its data.

    It is two to three times what a training takes.
    """
    if isinstance(config, GPTConfig):
        width, inner, layers = config.n_embd, 4 * config.n_embd, config.n_layer
        widest, matrices, positions = width, 2, config.context
    else:
        width, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
        widest, matrices, positions = max(width, config.num_attention_heads * config.head_width), 3, 0
    # Weights and biases of attention, of the feed-forward network, and of normalisations.
    of_layer = 4 * width * widest + matrices * width * inner + 16 * widest + 2 * inner
    of_adapters = 0 if settings.lora is None else settings.lora * (8 * widest + matrices * (width + inner))
    parameters = layers * (of_layer + of_adapters) + (2 * config.vocab_size + positions + 2) * width
    tokens = settings.batch * settings.context
    saved = tokens * layers * (_SAVED_WIDTHS * widest + _SAVED_INNER_WIDTHS * inner)
    logits = _LOGITS * tokens * config.vocab_size
    return _FLOAT_BYTES * (_ARRAYS_A_PARAMETER * parameters + saved + logits) + _BEGUN_BYTES
