"""Print warnings as the command line does: in one line, without the place in the source."""

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def warnings_for_users() -> Iterator[None]:
    """Context manager: print of each warning only its message, in one line."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        print(f"spillgrad: warning: {' '.join(str(message).split())}", file=sys.stderr)

    former, warnings.showwarning = warnings.showwarning, show
    try:
        yield
    finally:
        warnings.showwarning = former
