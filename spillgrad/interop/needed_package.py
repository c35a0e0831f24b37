"""The error for a package that is not installed, which says how to install it."""

import contextlib
from collections.abc import Iterator
from importlib.util import find_spec

from spillgrad.errors import MissingPackageError


@contextlib.contextmanager
def needed_package(name: str, to_install: str | None = None) -> Iterator[None]:
    """Context manager: raise MissingPackageError if the import of a package inside does not find the package.

    pip knows the package as `to_install`. If the package is installed, but a module that it needs is missing, that
    error passes unchanged.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or find_spec(name) is not None:
            raise
        raise MissingPackageError(
            f"spillgrad.interop.{name}: got no package {name}; pip install {to_install or name}", name=name
        ) from error
