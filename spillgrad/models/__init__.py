"""Language models: their classes, and functions that build or load a model by its name."""

from spillgrad.models import decoder, gpt
from spillgrad.models.attended import KeyValueCache
from spillgrad.models.catalogue import build, config, config_of, from_safetensors, names
from spillgrad.models.decoder import Decoder
from spillgrad.models.decoder_config import DecoderConfig
from spillgrad.models.exporting import export, from_peft, to_peft
from spillgrad.models.gpt import GPT, GPTConfig
from spillgrad.models.language_model import LanguageModel
from spillgrad.models.model_files import ModelFiles, describe, from_pretrained
from spillgrad.models.quantizing import quantize

# The class that builds Llama builds the families that came after it, too.
Llama, LlamaConfig = Decoder, DecoderConfig

__all__ = [
    "GPT",
    "Decoder",
    "DecoderConfig",
    "GPTConfig",
    "KeyValueCache",
    "LanguageModel",
    "Llama",
    "LlamaConfig",
    "ModelFiles",
    "build",
    "config",
    "config_of",
    "decoder",
    "describe",
    "export",
    "from_peft",
    "from_pretrained",
    "from_safetensors",
    "gpt",
    "names",
    "quantize",
    "to_peft",
]  # fmt: skip
