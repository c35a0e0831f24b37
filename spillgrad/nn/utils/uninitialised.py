"""Make a layer without drawing its parameters."""

from collections.abc import Callable
from typing import Any

from spillgrad.nn import init


def skip_init(module_cls: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return a new module whose parameters are not drawn: their values are arbitrary.

    Parameters
    ----------
    module_cls : callable
        Class of the module.
    *args : object
        Arguments of its constructor.
    **kwargs : object
        Keyword arguments of its constructor.

    Returns
    -------
    Module
        The module.

    Notes
    -----
    Source: torch.nn.utils.skip_init.
    """
    with init.skipped(loads_all=False):
        return module_cls(*args, **kwargs)
