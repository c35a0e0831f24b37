"""Read segments that this user's runs wrote, whether these runs are live or dead."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import ml_dtypes  # noqa: F401  # gives NumPy its dtypes' names
import numpy as np

from spillgrad.storage.codecs import EXACT_BF16, Codec, Encoding, Lossless, codec_named
from spillgrad.storage.disk import hdf5
from spillgrad.storage.disk.chunks import compressed_chunks
from spillgrad.storage.disk.segment import ATTRIBUTE, FORMAT_VERSION
from spillgrad.storage.format_version import check_version
from spillgrad.storage.store import Handle


class Stored(NamedTuple):
    """An array of a segment, with what the file says about it.

    Parameters
    ----------
    about : dict
        The array's attributes in the file.
    array : ndarray or None
        The array; None if only the key of the run can decrypt it.
    """

    about: dict[str, Any]
    array: np.ndarray | None


def read_segment(path: str | os.PathLike[str]) -> Iterator[Stored]:
    """Yield the decoded arrays of a segment, as of its last flush.

    HDF5 reads the file in this process. If somebody else may have written the file, use `inspect_segment` instead.

    Parameters
    ----------
    path : str or path
        A segment of a run of this user, live or dead.

    Yields
    ------
    Stored
        An array and its attributes.

    Raises
    ------
    SpillFormatError
        For a file of an unknown version.
    OSError
        If the file cannot be read or is not HDF5.
    """
    with hdf5.load().File(path, "r", locking=False) as file:
        for dataset in file.values():
            text = dataset.attrs.get(ATTRIBUTE.decode())
            if text is None:  # the run was killed in the middle of a flush
                continue
            about = json.loads(text)
            check_version(Path(path), about.get("format"), FORMAT_VERSION)
            yield Stored(about, _array(dataset, about))


def _array(dataset: Any, about: dict[str, Any]) -> np.ndarray | None:
    codec = about.get("codec")
    if codec is None:
        return np.asarray(dataset[()])
    if codec.endswith("aes256gcm"):
        return None
    if codec == EXACT_BF16:
        halves = np.empty(about["shape"], np.uint16)
        # As they are: a conversion by HDF5 would change the digits of NaN.
        dataset.id.read(hdf5.h5s.ALL, hdf5.h5s.ALL, halves, mtype=dataset.id.get_type())
        return (halves.astype(np.uint32) << 16).view(np.float32)
    into = np.empty(about["shape"], about["dtype"])
    chunks: list[bytes] = []
    if codec == Lossless.name:
        offsets = compressed_chunks(into.shape, into.itemsize)[1]
        chunks = [dataset.id.read_direct_chunk(offset)[1] for offset in offsets]
        stored = np.frombuffer(b"".join(chunks), np.uint8)
    else:
        stored = dataset[()]
    encoding = Encoding(codec, into.shape, into.dtype, stored.nbytes, tuple(map(len, chunks)))
    cast(Codec, codec_named(codec)).decode(stored, encoding, Handle(into, about["sequence"], None), into)
    return into
