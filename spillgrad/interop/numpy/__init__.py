"""The methods of `Tensor` by which NumPy's functions, its ufuncs and the array API standard find our functions.

Our functions are loaded at the first call.
"""

from collections.abc import Callable
from typing import Any

from spillgrad.errors import ArgumentError


def _array_namespace(self: Any, /, *, api_version: str | None = None) -> Any:
    """Return the module of array API functions. Raises ArgumentError if `api_version` is not supported."""
    from spillgrad import array_api

    if api_version not in (None, "2021.12", "2022.12", "2023.12", array_api.__array_api_version__):
        raise ArgumentError(
            f"__array_namespace__: got api_version={api_version!r}; wanted {array_api.__array_api_version__!r} or older"
        )
    return array_api


def _array_ufunc(self: Any, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
    """Apply a NumPy ufunc, or one of its methods, to tensors, differentiably."""
    from spillgrad.interop.numpy import functions

    return functions.call_ufunc(ufunc, method, inputs, options)


def _array_function(self: Any, function: Any, types: Any, arguments: Any, options: Any) -> Any:
    """Apply a NumPy function to tensors, differentiably."""
    from spillgrad.interop.numpy import functions

    return functions.call_function(function, types, arguments, options)


# The methods that `Tensor` gets, which other libraries call.
PROTOCOLS: dict[str, Callable[..., Any]] = {
    "__array_namespace__": _array_namespace,
    "__array_ufunc__": _array_ufunc,
    "__array_function__": _array_function,
}
