"""The user's line, however many of spillgrad's functions lie between it and what needs it, such as a warning."""

import sys
import warnings
from pathlib import Path
from types import FrameType

_OURS = (str(Path(__file__).parent), "<generated>")
_BETWEEN = "torch._dynamo."  # `torch.compiler.disable` wraps functions of the package


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning at the innermost line of code outside of the package, or at the caller if there is none."""
    level, frame = _outside()
    warnings.warn(message, category, stacklevel=2 if frame is None else level)


def place() -> str:
    """Return the innermost line of code outside of the package, such as "train.py:40"."""
    _, frame = _outside()
    return "?" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def position() -> tuple[str, int]:
    """Return the file and the number of the innermost line of code outside of the package."""
    _, frame = _outside()
    return ("?", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _outside() -> tuple[int, FrameType | None]:
    """Return the innermost frame outside of the package, and how many levels above the caller's caller it is."""
    level, frame = 3, sys._getframe(2).f_back
    while frame is not None and (
        frame.f_code.co_filename.startswith(_OURS) or str(frame.f_globals.get("__name__")).startswith(_BETWEEN)
    ):
        level, frame = level + 1, frame.f_back
    return level, frame
