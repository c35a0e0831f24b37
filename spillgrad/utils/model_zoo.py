"""PyTorch's module `torch.utils.model_zoo`: refused, with what to do instead."""

from typing import Any

from spillgrad.hub import load_state_dict_from_url


def load_url(url: str, *args: Any, **kwargs: Any) -> Any:
    """Raise UnsupportedError: no weights are downloaded."""
    return load_state_dict_from_url(url)
