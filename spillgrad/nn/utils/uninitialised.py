"""Make a layer without drawing its parameters."""

from collections.abc import Callable
from typing import Any

from spillgrad.nn import init


def skip_init(module_cls: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return `module_cls(*args, **kwargs)` with parameters that are not drawn: their values are arbitrary.

    Source: torch.nn.utils.skip_init.
    """
    with init.skipped():
        return module_cls(*args, **kwargs)
