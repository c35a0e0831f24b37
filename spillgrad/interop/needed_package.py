"""Raise an error for a package that is not installed; the error says how to install the package."""

import contextlib
from collections.abc import Iterator
from importlib.util import find_spec

from spillgrad.errors import MissingPackageError


@contextlib.contextmanager
def needed_package(name: str, to_install: str | None = None) -> Iterator[None]:
    """Context manager: raise MissingPackageError if an import finds that the package `name` is not installed.

    `to_install` is the package's name for pip, if it is not `name`. If the package is installed, but a module that it
    needs is missing, the ModuleNotFoundError passes unchanged.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or find_spec(name) is not None:
            raise
        raise MissingPackageError(
            f"spillgrad.interop.{name}: got no package {name}; pip install {to_install or name}", name=name
        ) from error
