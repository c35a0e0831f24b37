"""PyTorch's package `torch.cuda.amp`: `autocast` and `GradScaler`, which take no type of device there."""

import functools
from typing import Any

from spillgrad import amp
from spillgrad.ops.autocast import autocast as _autocast
from spillgrad.optim.grad_scaler import GradScaler as _GradScaler

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


class autocast(_autocast):
    """Do what `sg.autocast("cuda")` does; the dtype is float16 by default, as in PyTorch."""

    def __init__(self, enabled: bool = True, dtype: Any = "float16", cache_enabled: bool | None = True) -> None:
        super().__init__("cuda", dtype, enabled, cache_enabled)


class GradScaler(_GradScaler):
    """Do what `sg.amp.GradScaler("cuda")` does."""

    def __init__(
        self, init_scale: float = 2.0**16, growth_factor: float = 2.0, backoff_factor: float = 0.5,
        growth_interval: int = 2000, enabled: bool = True,
    ) -> None:  # fmt: skip
        super().__init__("cuda", init_scale, growth_factor, backoff_factor, growth_interval, enabled)


custom_fwd = functools.partial(amp.custom_fwd, device_type="cuda")
custom_bwd = functools.partial(amp.custom_bwd, device_type="cuda")
