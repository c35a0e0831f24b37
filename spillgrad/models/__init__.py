"""Language models: their classes, and functions that build or load a model by its name."""

from spillgrad.models import gpt, llama
from spillgrad.models.catalogue import build, config, config_of, from_safetensors, names
from spillgrad.models.exporting import export, from_peft, to_peft
from spillgrad.models.gpt import GPT, GPTConfig
from spillgrad.models.language_model import LanguageModel
from spillgrad.models.llama import Llama, LlamaConfig

__all__ = [
    "GPT", "GPTConfig", "LanguageModel", "Llama", "LlamaConfig", "build", "config", "config_of", "export",
    "from_peft", "from_safetensors", "gpt", "llama", "names", "to_peft",
]  # fmt: skip
