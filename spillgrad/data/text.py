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
    files = files_of(source)
    try:
        text = b"\n".join(text for file in files if (text := file.read_bytes()))
    except OSError as error:
        raise unreadable(Path(error.filename or source), error) from error
    if not text:
        raise DataError(f"data: {source} is empty; give a text file or a folder of them")
    return text


def files_of(source: Path) -> list[Path]:
    """Return a file, or all files of a folder in the order of their paths, without hidden ones."""
    try:
        mode = source.stat().st_mode
    except FileNotFoundError as error:
        raise DataError(f"data: {source} does not exist; give a file or a folder of them") from error
    except OSError as error:
        raise unreadable(source, error) from error
    if stat.S_ISREG(mode):
        return [source]
    if not stat.S_ISDIR(mode):
        raise DataError(f"data: {source} is neither a file nor a folder; give a file or a folder of them")
    files = sorted(
        path
        for path in source.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(source).parts)
    )
    if not files:
        raise DataError(f"data: the folder {source} holds no files; give a file or a folder of them")
    return files


def unreadable(path: Path, error: OSError) -> DataError:
    """Return the error to raise for a file that cannot be read."""
    return DataError(f"data: {path} cannot be read ({error.strerror or error}); give a readable file or folder")


def _python_reference() -> bytes:
    try:  # half a megabyte of text, which some distributions of Python omit
        topics = importlib.import_module("pydoc_data.topics").topics
    except ImportError as error:
        raise DataError("data: this Python comes without pydoc_data, the default text; give a text file") from error
    return "\n".join(topics.values()).encode()
