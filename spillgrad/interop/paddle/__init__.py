"""Train Paddle models that do not fit your RAM: tensors saved for backward live on disk."""

from spillgrad.interop.needed_package import needed_package

with needed_package("paddle", to_install="paddlepaddle"):
    from spillgrad.interop.paddle.saved_tensors import save_on_disk

__all__ = ["save_on_disk"]
