"""The error for a package that is not installed, which says how to install it."""

import contextlib
from collections.abc import Iterator

from spillgrad.errors import MissingPackageError


@contextlib.contextmanager
def needed_package(name: str, to_install: str | None = None) -> Iterator[None]:
    """Raise MissingPackageError if an import inside does not find a package; pip knows the package as `to_install`.

    The package may be there, but not what it needs: that error passes unchanged.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != name:
            raise
        raise MissingPackageError(
            f"spillgrad.interop.{name}: got no package {name}; pip install {to_install or name}", name=name
        ) from error
