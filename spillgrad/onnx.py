"""PyTorch's module `torch.onnx`: refused, with what to do instead."""

from typing import Any

from spillgrad.errors import UnsupportedError


def export(*args: Any, **kwargs: Any) -> Any:
    """Raise UnsupportedError: graphs are not written as ONNX."""
    raise UnsupportedError(
        "onnx.export: spillgrad writes no ONNX; write the weights by safetensors.numpy.save_file, load them into the "
        "same model of PyTorch, and export there"
    )


def is_in_onnx_export() -> bool:
    """Return False: nothing is exported."""
    return False
