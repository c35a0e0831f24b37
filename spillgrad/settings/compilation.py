"""`compile` and the functions of `torch.jit` and `torch.compiler`: they return what they are given, and warn once.

Operations run as they are called. `sg.fuse` makes one kernel of a function of elementwise operations.
"""

import warnings
from collections.abc import Callable
from typing import Any

from spillgrad.errors import CompilationWarning

__all__ = ["compile"]

_warned: set[str] = set()


def warn_once(name: str, stacklevel: int) -> None:
    """Warn, at the first call with this name in a process, that its argument runs as it is."""
    if name not in _warned:
        _warned.add(name)
        warnings.warn(
            f"{name}: spillgrad does not compile whole models; what it was given runs as it is. sg.fuse makes one "
            "kernel of a function of elementwise operations",
            CompilationWarning,
            stacklevel=stacklevel + 1,
        )


def compile(model: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Return the model or function itself, which PyTorch would compile, with a warning at the first call.

    Parameters
    ----------
    model : Module or callable, optional
        What runs as it is. Without it, the decorator that does so is returned.
    **options : object
        PyTorch's options (`fullgraph dynamic backend mode options disable`), which change nothing.

    Returns
    -------
    Module or callable
        The argument, or a decorator.

    Warns
    -----
    CompilationWarning
        At the first call in a process.

    See Also
    --------
    fuse : Makes one kernel of a function of elementwise operations.
    """
    if model is None:
        return lambda function: compile(function, **options)
    warn_once("compile", stacklevel=2)
    return model
