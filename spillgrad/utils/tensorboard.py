"""PyTorch's module `torch.utils.tensorboard`: refused, with what to use instead."""

from typing import Any

from spillgrad.errors import UnsupportedError


class SummaryWriter:
    """Raises UnsupportedError: the package tensorboardX has the same class, and needs no PyTorch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise UnsupportedError(
            "tensorboard.SummaryWriter: pip install tensorboardX, and import SummaryWriter from it; give it numbers by "
            ".item() and arrays by .numpy()"
        )
