"""Train Paddle models that do not fit your RAM: tensors saved for backward live on disk."""

try:
    import paddle
except ModuleNotFoundError as error:
    from spillgrad.errors import MissingPackageError

    if error.name != "paddle":  # Paddle is here, but not what it needs
        raise
    raise MissingPackageError(
        "spillgrad.interop.paddle: got no package paddle; pip install paddlepaddle", name="paddle"
    ) from error

from spillgrad.interop.paddle.saved_tensors import save_on_disk

__all__ = ["save_on_disk"]
