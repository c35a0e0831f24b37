"""Hand the tokens of a run over to the next program of the same process, so that they are made once."""

import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import spillgrad as sg
from spillgrad.errors import ArgumentError, DataError
from spillgrad.storage.disk.file_system import free_bytes
from spillgrad_tools.train.data import Content, TrainingData

# The share of a disk's free space that tokens may take meanwhile.
_MOST_SHARE = 0.5
_NAME = "data"
# The first numbers are those of the standard streams.
_LEAST_FD = 3


def hand_over(data: TrainingData, folder: Path) -> dict[str, Any]:
    """Write tokens to a file of the folder that has no name, and return what `taken` needs to read them.

    Nothing is written, and nothing returned, for the bytes of a text, which are as quickly read again, and where the
    disk has no room.
    """
    contents = [each for each in (data.content, data.held_out) if each is not None]
    if data.tokenizer is None and not any(isinstance(each, sg.data.Documents) for each in contents):
        return {}
    try:
        if data.nbytes > _MOST_SHARE * free_bytes(folder):
            return {}
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            for content in contents:
                for array in _arrays(content):
                    np.ascontiguousarray(array).tofile(file)
            fd = os.dup(file.fileno())
    except OSError:
        return {}
    os.set_inheritable(fd, True)
    about = [[[array.dtype.str, len(array)] for array in _arrays(content)] for content in contents]
    return {_NAME: {"fd": fd, "contents": about, "left_out": data.left_out, "digest": data.digest}}


def taken(handed: Mapping[str, Any], tokenizer: str | None) -> TrainingData | None:
    """Return the data that the former program has handed over; None if there are none, or others than it says."""
    about = handed.get(_NAME)
    if about is None:
        return None
    try:
        fd = int(about["fd"])
        if fd < _LEAST_FD or os.get_inheritable(fd) is False:
            return None
        with os.fdopen(fd, "rb", buffering=0) as file:
            kinds = [[(np.dtype(str(name)), int(count)) for name, count in arrays] for arrays in about["contents"]]
            whole_bytes = sum(dtype.itemsize * count for arrays in kinds for dtype, count in arrays)
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_size != whole_bytes:
                return None
            file.seek(0)
            contents = [_content([_read(file, *kind) for kind in arrays]) for arrays in kinds]
        read = None if tokenizer is None else sg.data.ChatTokenizer.load(tokenizer)
        held_out = contents[1] if len(contents) > 1 else None
        data = TrainingData(contents[0], held_out, read, str(about["left_out"]))
    except (OSError, LookupError, TypeError, ValueError, ArgumentError, DataError):
        return None
    return data if data.digest == about.get("digest") else None


def _arrays(content: Content) -> Iterator[np.ndarray]:
    if isinstance(content, sg.data.Documents):
        yield from (content.tokens, content.offsets, content.counted)
    else:
        yield content


def _content(arrays: list[np.ndarray]) -> Content:
    if len(arrays) == 1:
        return arrays[0]
    return sg.data.Documents(*arrays)


def _read(file: Any, dtype: np.dtype, count: int) -> np.ndarray:
    if dtype.kind not in "iub" or count < 0:
        raise ValueError(f"got {count} of {dtype}; wanted integers or truth values")
    found = np.fromfile(file, dtype, count)
    if len(found) != count:
        raise ValueError(f"got {len(found)} of {count} elements")
    return found
