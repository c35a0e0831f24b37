"""Train Paddle models that do not fit your RAM: saved tensors, parameters, gradients and state live on disk."""

from spillgrad.interop.needed_package import needed_package

with needed_package("paddle", to_install="paddlepaddle"):
    from spillgrad.interop.paddle.disk_offload import disk_offload
    from spillgrad.interop.paddle.saved_tensors import save_on_disk

__all__ = ["disk_offload", "save_on_disk"]
