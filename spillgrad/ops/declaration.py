"""The further names of functions of tensors: as methods, in place, in NumPy and in the array API standard.

    tanh = row_function("tanh", "Return the hyperbolic tangent.", in_place=True, numpy=True, standard=True)


    @declare(in_place=True, numpy="divide", standard="divide")
    def div(input, other, *, rounding_mode=None, out=None): ...


    divide = true_divide = div

An argument is False, a string of names separated by spaces, or True. True means every public name that its module gives
the function, aliases by assignment included; for the standard, which has no aliases, it means the function's own name.
From the declarations, `tensor_methods` makes methods, `spillgrad.array_api` makes the standard's functions, and
`spillgrad.interop.numpy` makes the implementations of NumPy's functions.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
Names = bool | str


class Declaration(NamedTuple):
    """A function and its further names."""

    function: Callable[..., Any]
    method: Names
    in_place: Names
    numpy: Names
    standard: Names

    def method_names(self) -> tuple[str, ...]:
        """Return the names under which this function is a method of tensors."""
        return _names(self.method or self.in_place, self._aliases)

    def in_place_names(self) -> tuple[str, ...]:
        """Return the names of the in-place methods, without the underscore at the end."""
        return _names(self.in_place, self._aliases)

    def numpy_names(self) -> tuple[str, ...]:
        """Return the names of the NumPy functions that this function implements, such as "tanh" and "linalg.norm"."""
        return _names(self.numpy, self._aliases)

    def standard_names(self) -> tuple[str, ...]:
        """Return the names of the array API standard's functions that this function implements."""
        return _names(self.standard, self._own_name)

    def _own_name(self) -> tuple[str, ...]:
        return (self.function.__name__,)

    def _aliases(self) -> tuple[str, ...]:
        return tuple(_names_within(self.function.__module__)[self.function])


declarations: list[Declaration] = []


def declare(
    *, method: Names = False, in_place: Names = False, numpy: Names = False, standard: Names = False
) -> Callable[[Function], Function]:
    """Return a decorator that records further names of a function; without `method`, `in_place` also names methods."""

    def note(function: Function) -> Function:
        declarations.append(Declaration(function, method, in_place, numpy, standard))
        return function

    return note


def named(function: Function, name: str, doc: str | None) -> Function:
    """Give a function a name and a docstring, and return it."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def numpy_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield (name, function) for every NumPy function that a function declared so far implements."""
    for declaration in declarations:
        if declaration.numpy:
            yield from ((name, declaration.function) for name in declaration.numpy_names())


def _names(names: Names, own: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
    if isinstance(names, str):
        return tuple(names.split())
    return own() if names else ()


@functools.cache
def _names_within(module: str) -> dict[Any, list[str]]:
    """Return, for each function defined in a module, the public names that the module gives it."""
    found: dict[Any, list[str]] = {}
    for name, value in vars(sys.modules[module]).items():
        if name[0] != "_" and getattr(value, "__module__", None) == module and callable(value):
            found.setdefault(value, []).append(name)
    return found
