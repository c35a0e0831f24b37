"""`save` and `load`: tensors in nested containers, in one file that holds no code.

The file is a safetensors file, and readable as such. Its tensors are named by their path in the containers
("model.0.weight"). The metadata entry "spillgrad" is JSON with everything that safetensors cannot express: the
containers, other values, which tensors are the same object, and the checksum of each tensor. The metadata entry
"checksum" is the checksum of this JSON.

Source: torch.save, torch.load; the safetensors format.
"""

import base64
import json
import math
import os
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import safetensors
import safetensors.numpy
import xxhash

from spillgrad import data_type, dtypes
from spillgrad.device.device import CPU, Device, as_device, moved
from spillgrad.errors import ArgumentError, CheckpointError, MissingFileError, OperandError
from spillgrad.files.safetensors_io import START_BYTES, known_layout, reason, refuse_pickles, sync_directory
from spillgrad.generator import GeneratorState
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.tensor import Tensor
from spillgrad.tensor_data import Size, Storage, native
from spillgrad_kernels.device_array import address_of
from spillgrad_kernels.memory import buffers

_VERSION = 1
_KEY = "spillgrad"
# The longest quotation from a file in a message.
_LONGEST = 200


def save(obj: Any, f: str | os.PathLike[str] | IO[bytes]) -> None:
    """Write tensors, and the containers and plain values around them, to a file or a binary stream.

    The file is a safetensors file, holds no code, and is read by `load`.

    Parameters
    ----------
    obj : object
        A tensor, or lists, tuples, dicts, sets and plain values around tensors. Dicts may be OrderedDicts and Counters.
        Plain values are None, bool, int, float, complex, str, bytes, sizes, NumPy arrays and scalars, dtypes, devices,
        and what `get_rng_state` returns.
    f : str, path or binary stream
        Where to write. An existing file is replaced only when everything is written, and the new one
        survives a power cut once `save` has returned.

    Raises
    ------
    OperandError
        For other objects.
    ArgumentError
        For a container that contains itself.
    CheckpointError
        If the file cannot be written.

    Notes
    -----
    A tensor found twice is stored once. Tensors with the same memory, shape, strides and dtype are stored once; any
    other view is stored with its own elements.

    Source: torch.save.

    Examples
    --------
    >>> import io
    >>> import spillgrad as sg
    >>> file = io.BytesIO()
    >>> sg.save({"weight": sg.ones(2), "step": 3}, file)
    >>> _ = file.seek(0)
    >>> sg.load(file)
    {'weight': tensor([1., 1.]), 'step': 3}
    """
    writer = _Writer()
    try:
        description = {"version": _VERSION, "value": writer.encode(obj, ())}
        description |= {"tensors": writer.tensors, "checksums": {n: _checksum(a) for n, a in writer.arrays.items()}}
        text = json.dumps(description)
    except RecursionError as error:
        raise ArgumentError("save: got containers within containers too deep to be read again; flatten them") from error
    metadata = {"format": "np", _KEY: text, "checksum": _checksum(text.encode())}
    if not isinstance(f, str | os.PathLike):
        f.write(safetensors.numpy.save(writer.arrays, metadata))
        return
    path = Path(os.path.realpath(f))
    new = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    try:
        try:
            safetensors.numpy.save_file(writer.arrays, new, metadata)
            with new.open("rb+") as file:
                os.fsync(file.fileno())
            os.replace(new, path)
            sync_directory(path.parent)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(
            f"save: {path} cannot be written ({reason(error)}); free space there or give another path"
        ) from error


def load(f: str | os.PathLike[str] | IO[bytes], map_location: Any = None, *, weights_only: bool | None = None) -> Any:
    """Return the object that `save` wrote to a file; for any other safetensors file, return its tensors by name.

    Parameters
    ----------
    f : str, path or binary stream
        What to read.
    map_location : device, dict or callable, optional
        Device to put tensors on; by default, the CPU. In files, all tensors are on the host: of a dict from devices to
        devices only the entry for "cpu" counts, and a function is ignored.
    weights_only : bool, optional
        Changes nothing, because no file can run code.

    Returns
    -------
    object
        What was saved, or a dict of tensors.

    Raises
    ------
    MissingFileError
        If the file does not exist; this is a FileNotFoundError.
    CheckpointError
        For a file that is damaged, cut off, of a newer version, or of PyTorch's format.
    DeviceError
        For a device that cannot be used.

    Notes
    -----
    Source: torch.load.
    """
    if isinstance(map_location, Mapping):
        map_location = {str(key): as_device(value) for key, value in map_location.items()}.get("cpu")
    device = CPU if map_location is None or callable(map_location) else as_device(map_location)
    if isinstance(f, str | os.PathLike):
        source: _File | _Stream = _File(Path(f))
    else:
        source = _Stream(f.read(), getattr(f, "name", "the stream"))
    metadata = source.metadata
    if _KEY not in metadata:
        return {name: Tensor.wrap(moved(array, device)) for name, array in source.arrays()}
    if _checksum(metadata[_KEY].encode()) != metadata.get("checksum"):
        raise _damaged(source.name, "the checksum of its description differs")
    try:
        description = json.loads(metadata[_KEY])
        version, checksums = description["version"], dict(description["checksums"])
        value, tensors = description["value"], description["tensors"]
    except _MALFORMED as error:
        raise _damaged(source.name, f"what it says of itself: {_words(error)}") from error
    if version != _VERSION:
        raise CheckpointError(
            f"load: {source.name} has format version {str(version)[:_LONGEST]}, this library reads {_VERSION}; use "
            "the release that wrote it"
        )
    arrays = {}
    for name, array in source.arrays():
        if _checksum(array) != checksums.get(name):
            raise _damaged(source.name, f"the checksum of '{name}' differs")
        arrays[name] = array
    missing = checksums.keys() - arrays.keys()
    if missing:
        raise _damaged(source.name, f"it lacks {', '.join(sorted(missing))}")
    try:
        return _decode(value, _rebuilt(tensors, arrays, device))
    except _MALFORMED as error:
        raise _damaged(source.name, f"what it says of itself: {_words(error)}") from error


class _Writer:
    """Converts an object to JSON, and collects the object's tensors as arrays by name."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self.tensors: list[dict[str, Any]] = []  # one entry per tensor or array object
        self._numbers: dict[int, int] = {}  # the index of an object's entry in `tensors`, by the object's id
        self._names: dict[Any, str] = {}  # the name of an array, by its address, shape, strides and dtype
        self._open: set[int] = set()  # the ids of the containers that are being written
        self._kept: list[Any] = []  # keeps objects alive, so that no two objects get the same id

    def encode(self, value: Any, path: tuple[Any, ...]) -> Any:
        """Convert the value at `path` to JSON: the value itself, a list, or an object whose only key names the kind."""
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if isinstance(value, Tensor | np.ndarray):
            return {"tensor": self._tensor(value, path)}
        if kind in _CONTAINERS:
            if id(value) in self._open:
                raise ArgumentError(f"save: the {kind.__name__} at {_where(path)} contains itself; break the cycle")
            self._open.add(id(value))
            encoded = self._container(value, path)
            self._open.remove(id(value))
            return encoded
        if isinstance(value, np.generic):
            return {"scalar": [str(value.dtype), self.encode(_plain(value), path)]}
        if kind is complex:
            return {"complex": [repr(value.real), repr(value.imag)]}
        if kind is bytes:
            return {"bytes": base64.b64encode(value).decode()}
        if isinstance(value, np.dtype):
            return {"dtype": str(dtypes.as_dtype(value))}
        if isinstance(value, Device):
            return {"device": str(value)}
        if isinstance(value, GeneratorState):
            return {"generator_state": [value.seed, value.offset]}
        advice = "save its state_dict()" if isinstance(value, Module) else "keep its values in a dict"
        raise OperandError(
            f"save: got {kind.__name__} at {_where(path)}; wanted tensors, lists, tuples, dicts, sets and plain "
            f"values: {advice}, and build the object anew after load()"
        )

    def _container(self, value: Any, path: tuple[Any, ...]) -> Any:
        kind = type(value)
        if isinstance(value, dict):
            pairs = [[self.encode(key, path), self.encode(part, (*path, key))] for key, part in value.items()]
            if kind is dict and all(type(key) is str for key in value):
                return {"dict": dict(pairs)}
            return {"pairs" if kind is dict else kind.__name__: pairs}
        parts = [self.encode(part, (*path, i)) for i, part in enumerate(value)]
        return parts if kind is list else {kind.__name__: parts}

    def _tensor(self, value: Tensor | np.ndarray, path: tuple[Any, ...]) -> int:
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self.tensors)
            self._kept.append(value)
            self.tensors.append(self._entry(value, path))
        return number

    def _entry(self, value: Tensor | np.ndarray, path: tuple[Any, ...]) -> dict[str, Any]:
        array = value.array if isinstance(value, Tensor) else native(value)
        looks_at = address_of(array), array.shape, array.strides, str(array.dtype)
        name = self._names.get(looks_at)
        if name is None:
            name = self._names[looks_at] = self._free_name(path)
            self._kept.append(array)
            dense = np.asarray(moved(array, CPU), order="C")
            # Complex128 is not in safetensors.
            self.arrays[name] = dense.reshape(-1).view(np.float64) if dense.dtype == dtypes.complex128 else dense
        entry: dict[str, Any] = {"name": name, "kind": "array"}
        if isinstance(value, Tensor):
            entry["kind"] = "parameter" if isinstance(value, Parameter) else "tensor"
            entry["requires_grad"] = value.requires_grad
        if array.dtype == dtypes.complex128:
            entry["complex128"] = list(array.shape)
        return entry

    def _free_name(self, path: tuple[Any, ...]) -> str:
        name = ".".join(map(str, path)) or "tensor"
        if name == "__metadata__":  # safetensors' own
            name = "tensor.__metadata__"
        free, tries = name, 1
        while free in self.arrays:
            tries += 1
            free = f"{name}#{tries}"
        return free


_CONTAINERS = {list, tuple, set, frozenset, dict, OrderedDict, Counter, Size}


def _plain(scalar: np.generic) -> Any:
    return float(scalar) if scalar.dtype == dtypes.bfloat16 else scalar.item()


def _where(path: tuple[Any, ...]) -> str:
    return "".join(f"[{key!r}]" for key in path) or "the top"


# The errors that decoding raises for a description that no save wrote, even if its checksum is correct.
_MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}, {error}".replace("\n", " ")[:_LONGEST]


def _require(holds: object, what: str) -> None:
    """Raise ValueError with the text `what` unless `holds`, a condition that all files of `save` meet, is true."""
    if not holds:
        raise ValueError(what)


def _decode(value: Any, tensors: list[Any]) -> Any:
    """Return the value that `_Writer.encode` converted to JSON; the JSON refers to `tensors` by number.

    Raises one of the errors in `_MALFORMED` for any other JSON.
    """
    if isinstance(value, list):
        return [_decode(part, tensors) for part in value]
    if not isinstance(value, dict):
        return value
    _require(len(value) == 1, f"an object of {len(value)} kinds")
    ((kind, content),) = value.items()
    if kind == "tensor":
        _require(type(content) is int and 0 <= content < len(tensors), f"tensor {content!r} of {len(tensors)}")
        return tensors[content]
    if kind == "dict":
        return {key: _decode(part, tensors) for key, part in content.items()}
    if kind in _BUILT:
        return _BUILT[kind](content)
    _require(isinstance(content, list), f"a {kind} that is no list")
    if kind == "scalar":
        dtype, plain = content
        scalar = np.dtype(dtypes.as_dtype(dtype)).type(_decode(plain, tensors))
        _require(isinstance(scalar, np.generic), "a scalar of several values")
        return scalar
    if kind not in _MAPPINGS:
        return _COLLECTIONS[kind](_decode(part, tensors) for part in content)
    _require(all(isinstance(pair, list) and len(pair) == 2 for pair in content), f"a {kind} of other than pairs")
    return _MAPPINGS[kind]({_decode(key, tensors): _decode(part, tensors) for key, part in content})


_COLLECTIONS: dict[str, Callable[[Iterable[Any]], Any]] = {
    "tuple": tuple, "set": set, "frozenset": frozenset, "Size": Size,
}  # fmt: skip
_MAPPINGS: dict[str, Callable[[dict[Any, Any]], Any]] = {"pairs": dict, "OrderedDict": OrderedDict, "Counter": Counter}


def _complex(parts: Any) -> complex:
    real, imag = map(float, parts)
    return complex(real, imag)


def _device(name: Any) -> Device:
    _require(isinstance(name, str) and name.partition(":")[0] in ("cpu", "cuda"), f"a device {name!r}")
    return as_device(name)


def _generator_state(state: Any) -> GeneratorState:
    seed, offset = state
    _require(type(seed) is type(offset) is int and 0 <= seed < 1 << 64 and offset >= 0, f"a generator at {state!r}")
    return GeneratorState(seed, offset)


_BUILT: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "complex": _complex,
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "dtype": data_type.dtype,
    "device": _device,
    "generator_state": _generator_state,
}


def _rebuilt(entries: list[dict[str, Any]], arrays: dict[str, np.ndarray], device: Device) -> list[Any]:
    """Return the array or tensor that each entry describes; tensors are on `device`, NumPy arrays on the host.

    Tensors whose entries have the same name share memory. Raises one of the errors in `_MALFORMED` for entries that no
    save writes.
    """
    for entry in entries:
        array, kind, shape = arrays[entry["name"]], entry["kind"], entry.get("complex128")
        _require(kind in ("array", "tensor", "parameter"), f"a tensor that is a {kind}")
        if shape is not None:
            _require(array.dtype == dtypes.float64, f"complex numbers of {array.dtype}")
            _require(all(size >= 0 for size in shape), f"shape {shape}")
            array = array.view(np.complex128).reshape(shape)
        if kind != "array" and entry["requires_grad"]:
            _require(dtypes.is_differentiable(array.dtype), f"gradients of {array.dtype}")
    there = {entry["name"]: moved(arrays[entry["name"]], device) for entry in entries if entry["kind"] != "array"}
    storages: dict[str, Storage] = {}
    objects: list[Any] = []
    for entry in entries:
        array = (arrays if entry["kind"] == "array" else there)[entry["name"]]
        if "complex128" in entry:
            array = array.view(np.complex128).reshape(entry["complex128"])
        if entry["kind"] == "array":
            objects.append(array)
            continue
        tensor = Tensor.wrap(array, storages.get(entry["name"]))
        storages[entry["name"]] = tensor.storage
        if entry["kind"] == "parameter":
            objects.append(Parameter(tensor, entry["requires_grad"]))
        else:
            objects.append(tensor.requires_grad_() if entry["requires_grad"] else tensor)
    return objects


class _File:
    """A safetensors file at a path: its metadata, and its arrays, which are read on demand."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        if path.is_dir():
            raise CheckpointError(f"load: {path} is a directory; load_checkpoint() reads the checkpoints of runs")
        if not path.exists():
            raise MissingFileError(f"load: {path} does not exist; give a file that save() wrote")
        try:
            with path.open("rb") as file:
                refuse_pickles(file.read(START_BYTES), self.name)
            with safetensors.safe_open(path, framework="np") as file:
                self.metadata: dict[str, str] = file.metadata() or {}
        except (OSError, safetensors.SafetensorError) as error:
            raise _damaged(self.name, reason(error)) from error

    def arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the name and the array of each tensor; every array has its own memory."""
        try:
            with safetensors.safe_open(self.name, framework="np") as file:
                for name in file.keys():  # noqa: SIM118 - no mapping
                    part = file.get_slice(name)
                    known_layout(part.get_dtype(), part.get_shape(), f"'{name}' in {self.name}")
                    yield name, buffers.copy(file.get_tensor(name))
        except (OSError, safetensors.SafetensorError) as error:
            raise _damaged(self.name, reason(error)) from error


class _Stream:
    """A safetensors file given as bytes: its metadata and its arrays."""

    def __init__(self, content: bytes, name: str) -> None:
        self.name = name
        refuse_pickles(content[:START_BYTES], name)
        try:
            self._entries = safetensors.deserialize(content)  # type: ignore[no-untyped-call]
        except safetensors.SafetensorError as error:
            raise _damaged(name, reason(error)) from error
        length = int.from_bytes(content[:8], "little")
        self.metadata: dict[str, str] = json.loads(content[8 : 8 + length]).get("__metadata__") or {}

    def arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the name and the array of each tensor; every array has its own memory."""
        for name, entry in self._entries:
            dtype, shape = known_layout(entry["dtype"], entry["shape"], f"'{name}' in {self.name}")
            yield name, buffers.copy(np.frombuffer(entry["data"], dtype).reshape(shape))


def _checksum(content: Any) -> str:
    if isinstance(content, np.ndarray):
        content = content.reshape(-1).view(np.uint8).data
    return xxhash.xxh3_128_hexdigest(content)


def _damaged(name: str, reason: str) -> CheckpointError:
    return CheckpointError(f"load: {name} is damaged, or no safetensors file ({reason}); use another copy")
