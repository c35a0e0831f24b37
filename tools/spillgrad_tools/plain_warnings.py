"""Warnings as the command line prints them: one line, without the code that warned."""

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def warnings_for_users() -> Iterator[None]:
    """Inside the block, print only the message of a warning."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        print(f"spillgrad: warning: {' '.join(str(message).split())}", file=sys.stderr)

    former, warnings.showwarning = warnings.showwarning, show
    try:
        yield
    finally:
        warnings.showwarning = former
