"""Reading and writing tensors in safetensors files, with at most one tensor in memory at a time.

A set of tensors is one file, `model.safetensors`, or, above a given size, a sharded checkpoint as in Hugging Face's
libraries: several files (`model-00001-of-00003.safetensors` …), and an index that maps each tensor to its file.

Source: the safetensors format: 8 bytes with the header's length, a JSON header, the tensors' bytes in header order.
"""

import itertools
import json
import math
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import xxhash
from safetensors import SafetensorError, safe_open

from spillgrad import dtypes
from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.errors import CheckpointError, MissingFileError
from spillgrad.ops import inplace
from spillgrad.storage.disk.file_part import FilePart, FileState
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu.optim import CHUNK
from spillgrad_kernels.memory import buffers

NAMES = {
    "F64": dtypes.float64, "F32": dtypes.float32, "F16": dtypes.float16, "BF16": dtypes.bfloat16,
    "I64": dtypes.int64, "I32": dtypes.int32, "I16": dtypes.int16, "I8": dtypes.int8, "U64": dtypes.uint64,
    "U32": dtypes.uint32, "U16": dtypes.uint16, "U8": dtypes.uint8, "BOOL": dtypes.bool_, "C64": dtypes.complex64,
}  # fmt: skip
_DTYPE_NAMES = {dtype: name for name, dtype in NAMES.items()}
# Pieces are hashed while they are in the processor's cache.
_PIECE_BYTES = 1 << 20
# The disk gets as much at once: a multiple of the bytes of `CHECKED` elements.
_WRITTEN_BYTES = 4 << 20
# A hash is of so many elements of a tensor. Tensors are cut into parts there, so whoever has a part knows its hashes.
CHECKED = CHUNK
# What the checksums of files that `write` writes begin with. Those of other files are hashes of all bytes.
_BY_TENSORS = "by-tensors-"
_ALIGNMENT = 8
_MAX_DIMENSIONS = 64


class StoredTensor:
    """A tensor in a file; converting it to a NumPy array reads it into new memory.

    With a `state`, that of the file when its header was read, an offloaded tensor may be read there when it is used.
    """

    def __init__(
        self, path: Path, dtype: dtypes.DType, shape: tuple[int, ...], offset: int, state: FileState | None = None
    ) -> None:  # fmt: skip
        self.path = path
        self.dtype = dtype
        self.shape = shape
        self.offset = offset
        self.part = None if state is None else FilePart(os.fspath(path), state, offset, dtype, shape)
        self.nbytes = math.prod(shape) * dtype.itemsize

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        # Not from the buffer pool, which would keep the memory for a later tensor of the same size.
        array = np.empty(self.shape, self.dtype)
        self._read_into(array)
        return array if dtype is None else array.astype(dtype, copy=False)

    def tensor(self) -> Tensor:
        """Read the tensor from the file and return it."""
        array = buffers.empty(self.shape, self.dtype)
        self._read_into(array)
        return Tensor.wrap(array)

    def _read_into(self, array: np.ndarray) -> None:
        content = _bytes_of(array)
        with open_for_reading(self.path) as file:
            file.seek(self.offset)
            if file.readinto(content) != len(content):
                raise damaged(self.path, "it ends too early")

    def copy_to(self, tensor: Tensor) -> None:
        """Read this tensor into `tensor`, in place.

        This needs no further memory if `tensor` is contiguous, on the host, and of the same shape and dtype. Nothing is
        read if `tensor` can be read in the file whenever it is used.
        """
        if self.part is not None and tensor._read_in_place(self.part):
            return
        with no_grad():
            if tensor.numpy_dtype != self.dtype or tensor.shape != self.shape or tensor.is_cuda:
                inplace.copy_(tensor, self)
                return
            array = tensor.array_to_overwrite()  # this reference keeps it alive: the tensor may not hold it yet
            if not array.flags.c_contiguous:
                inplace.copy_(tensor, self)
                return
            inplace.begin_write(tensor, "copy_", self.shape, self.dtype)
            self._read_into(array)

    def checksums(self) -> Iterator[bytes]:
        """Yield the hashes of each `CHECKED` elements."""
        step = CHECKED * self.dtype.itemsize
        for piece in self.pieces():
            for start in range(0, len(piece), step):
                yield xxhash.xxh3_128_digest(piece[start : start + step])

    def pieces(self) -> Iterator[bytes]:
        """Yield the tensor's bytes in order, in pieces of at most `_PIECE_BYTES`."""
        with open_for_reading(self.path) as file:
            file.seek(self.offset)
            for start in range(0, self.nbytes, _PIECE_BYTES):
                yield file.read(min(_PIECE_BYTES, self.nbytes - start))

    def equals(self, other: "StoredTensor") -> bool:
        """Return whether `other` has the same dtype, shape and bytes."""
        if (self.dtype, self.shape) != (other.dtype, other.shape):
            return False
        return all(mine == its for mine, its in zip(self.pieces(), other.pieces(), strict=True))


class Writable(Protocol):
    """A tensor to write: a `Tensor`, or what computes its elements when they are asked for."""

    @property
    def numpy_dtype(self) -> dtypes.DType:
        """The dtype."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""

    def host_array(self) -> np.ndarray:
        """Return the elements."""


W = TypeVar("W", bound=Writable)


class Place(NamedTuple):
    """Where the bytes of a tensor are: the name of a file, and their first byte in it."""

    file: str
    offset: int


class Range(NamedTuple):
    """Elements of a tensor to write, and where; `elements` returns them, as a contiguous array."""

    place: Place
    elements: Callable[[], np.ndarray]


class _File(NamedTuple):
    """A file to write: its name, what it begins with, and the names of its tensors in their order."""

    name: str
    header: bytes
    tensors: list[str]


# Writes tensors to their places in the files of a folder, and returns each one's checksums, as `write_ranges` does.
WriteTensors = Callable[[Path, Mapping[str, Tensor], Mapping[str, Place]], Mapping[str, bytes]]


def write_tensors(folder: Path, tensors: Mapping[str, Writable], places: Mapping[str, Place]) -> dict[str, bytes]:
    """Write tensors to their places in existing files of a folder. Raises OSError if a file cannot be written."""
    checksums = write_ranges(folder, [Range(place, tensors[name].host_array) for name, place in places.items()])
    return dict(zip(places, checksums, strict=True))


def write(
    folder: Path, stem: str, tensors: Mapping[str, W], max_shard_bytes: int,
    contents: Callable[[Path, Mapping[str, W], Mapping[str, Place]], Mapping[str, bytes]],
    metadata: Mapping[str, str] = types.MappingProxyType({}),
) -> dict[str, str]:  # fmt: skip
    """Write tensors into new files of a folder; return the checksum of each file by its name.

    If all tensors fit into `max_shard_bytes`, they are written to one file; otherwise, to a sharded checkpoint. Each
    tensor's memory is read once, by `contents`. In a file, tensors with wider elements come first; tensors of equal
    width keep the order of `tensors`. When this function returns, the content of the files is on the disk; the names of
    the files are on the disk only after the folder is synchronised. `metadata` goes into the header of each file.
    Raises CheckpointError, before anything is written, for a dtype that the format lacks. Raises OSError if a file
    cannot be written.
    """
    foreign = [
        f"{name} ({tensor.numpy_dtype})" for name, tensor in tensors.items() if tensor.numpy_dtype not in _DTYPE_NAMES
    ]
    if foreign:
        raise CheckpointError(
            f"checkpoint: safetensors files cannot hold {', '.join(foreign)}; convert them, or write them with save()"
        )
    shards = _shards(tensors, max_shard_bytes)
    single = f"{stem}.safetensors"
    names = [single] if len(shards) == 1 else [
        f"{stem}-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)
    ]  # fmt: skip
    files: list[_File] = []
    places: dict[str, Place] = {}
    for name, of_shard in zip(names, shards, strict=True):
        file, offsets = _layout(name, {each: tensors[each] for each in of_shard}, metadata)
        with (folder / name).open("xb") as opened:
            opened.write(file.header)
            opened.truncate(len(file.header) + sum(tensors[each].nbytes for each in of_shard))
            opened.flush()
            os.fsync(opened.fileno())
        files.append(file)
        places |= offsets
    of_tensors = contents(folder, tensors, places)
    checksums = {file.name: _joined(file.header, [of_tensors[name] for name in file.tensors]) for file in files}
    if len(files) == 1:
        return checksums
    total_bytes = sum(tensor.nbytes for tensor in tensors.values())
    index = {
        "metadata": {"total_size": total_bytes},
        "weight_map": {name: file.name for file, of_shard in zip(files, shards, strict=True) for name in of_shard},
    }
    return checksums | {f"{single}.index.json": write_json(folder / f"{single}.index.json", index)}


def _shards(tensors: Mapping[str, Writable], max_shard_bytes: int) -> list[list[str]]:
    """Return the tensor names of each file, in order: as many as fit into `max_shard_bytes`, but at least one."""
    shards: list[list[str]] = [[]]
    filled_bytes = 0
    for name, tensor in tensors.items():
        if shards[-1] and filled_bytes + tensor.nbytes > max_shard_bytes:
            shards.append([])
            filled_bytes = 0
        shards[-1].append(name)
        filled_bytes += tensor.nbytes
    return shards


def _layout(file: str, tensors: Mapping[str, Writable], metadata: Mapping[str, str]) -> tuple[_File, dict[str, Place]]:
    """Return a file for these tensors, and where each one is in it."""
    # Tensors with wide elements come first, so that all are aligned.
    names = sorted(tensors, key=lambda name: -tensors[name].itemsize)
    # Hugging Face's loaders refuse files that do not say whose format their tensors have.
    said: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata}}
    offset = 0
    for name in names:
        tensor = tensors[name]
        end = offset + tensor.nbytes
        dtype = _DTYPE_NAMES[tensor.numpy_dtype]
        said[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(said, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    header = len(text).to_bytes(8, "little") + text
    places = {name: Place(file, len(header) + said[name]["data_offsets"][0]) for name in names}
    return _File(file, header, names), places


def write_ranges(folder: Path, ranges: Sequence[Range]) -> list[bytes]:
    """Write elements of tensors to existing files, which are on the disk then; return the checksums of each range.

    These are the XXH3 hashes (128 bits, seed 0) of each `CHECKED` elements, one behind the other. Raises OSError.
    """
    checksums = []
    for name, of_file in itertools.groupby(ranges, lambda each: each.place.file):
        with open_for_writing(folder / name) as file:
            checksums += [_write_range(file, each) for each in of_file]
            os.fsync(file.fileno())
    return checksums


def open_for_writing(path: Path) -> Any:
    """Open an existing file for writing bytes. Raises OSError.

    For writing alone: an NFS client that may read, too, writes whole pages, over what another process has written.
    """
    return open(os.open(path, os.O_WRONLY | os.O_CLOEXEC), "wb", buffering=0)


def _write_range(file: Any, range_: Range) -> bytes:
    array = np.asarray(range_.elements(), order="C")
    content, step = _bytes_of(array), CHECKED * array.itemsize
    checksums = []
    file.seek(range_.place.offset)
    for start in range(0, len(content), _WRITTEN_BYTES):
        piece = content[start : start + _WRITTEN_BYTES]
        checksums += [xxhash.xxh3_128_digest(piece[at : at + step]) for at in range(0, len(piece), step)]
        begin, left = file.tell(), piece
        while left:
            left = left[file.write(left) :]
        # The disk begins to write while we go on; pages that are written already are forgotten.
        os.posix_fadvise(file.fileno(), begin, len(piece), os.POSIX_FADV_DONTNEED)
    return b"".join(checksums)


def _joined(header: bytes, of_tensors: Iterable[bytes]) -> str:
    """Return the checksum of a file whose header and tensors these are: the hash of the header and of their hashes."""
    digest = xxhash.xxh3_128(header)
    for checksums in of_tensors:
        digest.update(checksums)
    return _BY_TENSORS + digest.hexdigest()


def _bytes_of(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def read(path: Path, in_place: bool = False) -> dict[str, StoredTensor]:
    """Return the tensors of a file, or of the sharded checkpoint whose index is at `path`, without reading them.

    With `in_place`, offloaded tensors to which they are copied may be read in the files whenever they are used.
    Raises CheckpointError if a file is missing, damaged or of another format.
    """
    return _read_index(path, in_place) if path.name.endswith(".index.json") else _read_file(path, in_place)


def _read_file(path: Path, in_place: bool = False) -> dict[str, StoredTensor]:
    try:
        with open_for_reading(path) as file:
            state = FileState.of(file.fileno()) if in_place else None
            start = file.read(START_BYTES)
        refuse_pickles(start, str(path))
        offset = 8 + int.from_bytes(start[:8], "little")
        found = {}
        # safe_open checks the header and that tensors lie side by side. Its arrays are not used, because the memory
        # that it maps would count as this process's while it is open.
        with safe_open(path, framework="np") as file:
            for name in file.offset_keys():
                part = file.get_slice(name)
                dtype, shape = known_layout(part.get_dtype(), part.get_shape(), f"'{name}' in {path}")
                found[name] = StoredTensor(path, dtype, shape, offset, state)
                offset += found[name].nbytes
    except (OSError, SafetensorError) as error:
        raise damaged(path, reason(error)) from error
    return found


def known_layout(name: str, shape: Sequence[int], where: str) -> tuple[dtypes.DType, tuple[int, ...]]:
    """Return the dtype that safetensors calls `name`, and the shape as a tuple.

    Raises CheckpointError, which names the tensor as `where`, if no tensor can have this dtype or shape.
    """
    if name not in NAMES:
        raise CheckpointError(
            f"load: {where} has dtype {name}, which no tensor has; convert it to one of {', '.join(NAMES)}"
        )
    dtype = NAMES[name]
    # NumPy has no larger arrays, even if a size of zero makes them empty.
    if len(shape) > _MAX_DIMENSIONS or math.prod(size or 1 for size in shape) * dtype.itemsize > sys.maxsize:
        sizes = ", ".join(map(str, shape[:_MAX_DIMENSIONS]))
        raise CheckpointError(f"load: {where} has shape ({sizes}, …), which no tensor has; use another copy")
    return dtype, tuple(shape)


START_BYTES = 9


def refuse_pickles(start: bytes, name: str) -> None:
    """Raise CheckpointError if `start`, the first `START_BYTES` of a file, begins a pickle or an archive of pickles."""
    # The length of a safetensors header may begin with the same byte, but zeros and the header's brace follow it.
    if start.startswith((b"PK\x03\x04", b"\x80")) and start[4:] != b"\0\0\0\0{":
        raise CheckpointError(
            f"load: {name} is a file of PyTorch's (pickle) format, and reading one can run code; in PyTorch, write its "
            "tensors with safetensors.torch.save_file(torch.load(path), new_path)"
        )


def _read_index(path: Path, in_place: bool) -> dict[str, StoredTensor]:
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise damaged(path, "it has no weight_map")
    files = {file: _read_file(path.parent / Path(file).name, in_place) for file in dict.fromkeys(weight_map.values())}
    missing = [f"{name} ({file})" for name, file in weight_map.items() if name not in files[file]]
    if missing:
        raise damaged(path, f"the files lack tensors it names: {', '.join(missing)}")
    return {name: files[file][name] for name, file in weight_map.items()}


def find(folder: Path, stem: str) -> Path | None:
    """Return the path of the safetensors file named after `stem`, if it exists.

    Otherwise, return the path of the index of a sharded checkpoint, if it exists. Otherwise, return None.
    """
    single = folder / f"{stem}.safetensors"
    index = folder / f"{stem}.safetensors.index.json"
    return single if single.is_file() else index if index.is_file() else None


def write_json(path: Path, value: Mapping[str, Any]) -> str:
    """Write a JSON object to a file, wait until the file is on the disk, and return its checksum."""
    content = json_bytes(value)
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return xxhash.xxh3_128_hexdigest(content)


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """Return the content of a JSON file of a checkpoint."""
    return json.dumps(value, indent=1).encode()


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file. Raises CheckpointError if the file cannot be read or holds no JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(path, reason(error)) from error
    if not isinstance(value, dict):
        raise damaged(path, "it holds no JSON object")
    return value


def checksum(path: Path) -> str:
    """Return the hash (XXH3, 128 bits) of a file. Raises OSError if the file cannot be read."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def checksums(paths: Set[Path]) -> dict[str, str]:
    """Return the hashes of files, by the files' names. Raises CheckpointError if one cannot be read."""
    found = {}
    for path in sorted(paths):
        try:
            found[path.name] = checksum(path)
        except OSError as error:
            raise damaged(path, reason(error)) from error
    return found


def checksum_as(written: object, path: Path) -> str:
    """Return the checksum of a file, made in the way of another checksum of it.

    Raises OSError if the file cannot be read, CheckpointError if it should be a safetensors file and is none.
    """
    if not isinstance(written, str) or not written.startswith(_BY_TENSORS):
        return checksum(path)
    tensors = sorted(_read_file(path).values(), key=lambda tensor: tensor.offset)
    with open_for_reading(path) as file:
        header = file.read(8)
        header += file.read(int.from_bytes(header, "little"))
    return _joined(header, (checksum for tensor in tensors for checksum in tensor.checksums()))


def absolute(path: str | os.PathLike[str]) -> Path:
    """Return `path` as an absolute path, which stays valid if the process changes its current directory.

    Raises MissingFileError if the current directory was removed.
    """
    try:
        return Path(path).absolute()
    except FileNotFoundError as error:
        raise MissingFileError(
            f"checkpoint: got {path}, and the current directory was removed; give an absolute path"
        ) from error


def open_for_reading(path: Path) -> Any:
    """Open a file for reading bytes. Raises MissingFileError if it does not exist, CheckpointError for other errors."""
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise MissingFileError(f"load: {path} does not exist; give another copy") from error
    except (OSError, ValueError) as error:  # such as a name with a null byte
        raise damaged(path, reason(error)) from error


def damaged(path: Path, why: str) -> CheckpointError:
    """Return a CheckpointError that says why the file at `path` cannot be used."""
    return CheckpointError(f"checkpoint: {path} is damaged ({why}); use another copy")


def reason(error: Exception) -> str:
    """Return the text of an error without the path, which our messages already contain."""
    return getattr(error, "strerror", None) or str(error)
