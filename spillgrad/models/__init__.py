"""Models, by name or by class."""

from spillgrad.models import gpt
from spillgrad.models.catalogue import build, config, names
from spillgrad.models.gpt import GPT, GPTConfig

__all__ = ["GPT", "GPTConfig", "build", "config", "gpt", "names"]
