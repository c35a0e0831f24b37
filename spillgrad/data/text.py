"""Text to train on, as bytes."""

import importlib
import os
import stat
from pathlib import Path

from spillgrad.errors import DataError


def load_text(path: str | os.PathLike[str] | None = None) -> bytes:
    """Return the bytes of a text file, or of all files of a folder in the order of their paths, joined by newlines.

    Parameters
    ----------
    path : str or path, optional
        The file or folder, whose hidden files are skipped; by default, the English reference text that ships with
        CPython (``pydoc_data.topics``, about 466 KB).

    Returns
    -------
    bytes
        The text.

    Raises
    ------
    DataError
        When there is nothing to read.
    """
    if path is None:
        return _python_reference()
    source = Path(path)
    try:
        mode = source.stat().st_mode
        if stat.S_ISDIR(mode):
            return _folder(source)
        if stat.S_ISREG(mode):
            return _non_empty(source, source.read_bytes())
    except FileNotFoundError as error:
        raise DataError(f"data: {source} does not exist; give a text file or a folder of them") from error
    except OSError as error:
        raise DataError(
            f"data: {source} cannot be read ({error.strerror}); give a readable text file or a folder of them"
        ) from error
    raise DataError(f"data: {source} is neither a file nor a folder; give a text file or a folder of them")


def _python_reference() -> bytes:
    try:  # half a megabyte of text, which some distributions of Python omit
        topics = importlib.import_module("pydoc_data.topics").topics
    except ImportError as error:
        raise DataError("data: this Python comes without pydoc_data, the default text; give a text file") from error
    return "\n".join(topics.values()).encode()


def _folder(folder: Path) -> bytes:
    paths = sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not paths:
        raise DataError(f"data: the folder {folder} holds no files; give a text file or a folder of them")
    return _non_empty(folder, b"\n".join(text for path in paths if (text := path.read_bytes())))


def _non_empty(source: Path, text: bytes) -> bytes:
    if not text:
        raise DataError(f"data: {source} is empty; give a text file or a folder of them")
    return text
