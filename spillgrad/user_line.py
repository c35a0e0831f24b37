"""Warnings that point at the user's line, however many of spillgrad's functions lie between it and the cause."""

import sys
import warnings
from pathlib import Path

_OURS = (str(Path(__file__).parent), "<generated>")


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning at the innermost line of code outside of the package, or at the caller if there is none."""
    level, frame = 3, sys._getframe(1).f_back
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=2 if frame is None else level)
