"""Adapters in files: of which layer they are, how they are scaled, and their sum with the layer's weight."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spillgrad.dtypes import DType, float16, is_floating_point
from spillgrad.errors import CheckpointError
from spillgrad.files.safetensors_io import StoredTensor
from spillgrad.models.quantized_files import QuantizedTensor
from spillgrad.nn.lora import AdapterOptions, adapt, load_lora_state_dict
from spillgrad.nn.module import Module

# Sums and conversions take memory for so many elements at once, beside the tensor and its result.
_ELEMENTS_AT_ONCE = 1 << 22

Stored = StoredTensor | QuantizedTensor | np.ndarray


@dataclass(frozen=True)
class Adapter:
    """The adapters of a layer: ``scaling * b @ a`` is added to its weight of shape (outputs, inputs), or its transpose.

    Shapes: a (rank, inputs), b (outputs, rank).
    """

    a: Stored
    b: Stored
    alpha: float
    is_transposed: bool = False

    @property
    def rank(self) -> int:
        """The rank."""
        return int(self.a.shape[0])

    @property
    def weight_shape(self) -> tuple[int, int]:
        """The shape of the layer's weight."""
        shape = int(self.b.shape[0]), int(self.a.shape[1])
        return shape[::-1] if self.is_transposed else shape


def paired(
    tensors: Mapping[str, Stored], alphas: Mapping[str, float], is_transposed: bool, where: Path
) -> dict[str, Adapter]:
    """Return the adapters of each layer by path, from tensors with names such as "lora_A.weight" after the path.

    Raises CheckpointError if one of a pair is missing, or if shapes do not fit each other.
    """
    found = {}
    for path, alpha in alphas.items():
        a, b = (tensors.get(f"{path}.lora_{part}.weight") for part in "AB")
        if a is None or b is None or a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1]:
            shapes = " and ".join("none" if part is None else str(tuple(part.shape)) for part in (a, b))
            raise CheckpointError(
                f"adapters: {where} has {shapes} for {path}, wanted lora_A (rank, inputs) and lora_B (outputs, rank); "
                "use another copy"
            )
        found[path] = Adapter(a, b, alpha, is_transposed)
    return found


def attach(model: Module, adapters: Mapping[str, Adapter], dropout: float = 0.0) -> None:
    """Freeze a model and give it adapters, in place. Raises ArgumentError for those of a layer that it lacks."""
    adapt(model, {path: AdapterOptions(each.rank, each.alpha, dropout) for path, each in adapters.items()})
    parts = ((path, part, stored) for path, each in adapters.items() for part, stored in (("A", each.a), ("B", each.b)))
    load_lora_state_dict(model, {f"{path}.lora_{part}.weight": stored for path, part, stored in parts})


class ConvertedTensor:
    """A tensor in files, in a dtype and with an adapter's product added; it is computed when it is asked for."""

    def __init__(self, name: str, stored: Stored, dtype: DType | None = None, adapter: Adapter | None = None) -> None:
        self.name = name
        self.stored = stored
        self.adapter = adapter
        # Masks and other tensors of integers stay as they are.
        self.numpy_dtype: DType = stored.dtype if dtype is None or not is_floating_point(stored.dtype) else dtype
        self.shape = tuple(map(int, stored.shape))

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return self.numpy_dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.itemsize

    def host_array(self) -> np.ndarray:
        """Return the elements.

        Raises CheckpointError if one is beyond the dtype's range, or if the file cannot be read.
        """
        if isinstance(self.stored, QuantizedTensor):
            result = self._converted(self.stored.rows, self.shape[0])
            self.stored.forget()
            return result
        found = np.asarray(self.stored)
        if found.dtype == self.numpy_dtype and self.adapter is None:
            return found
        source = np.atleast_1d(found)
        return self._converted(lambda start, stop: source[start:stop], len(source))

    def _converted(self, rows_of: Callable[[int, int], np.ndarray], count: int) -> np.ndarray:
        result = np.empty(self.shape, self.numpy_dtype)
        rows = max(1, _ELEMENTS_AT_ONCE * count // max(result.size, 1))
        factors = None if self.adapter is None else _factors(self.adapter)
        target = np.atleast_1d(result)
        for start in range(0, count, rows):
            part = rows_of(start, start + rows)
            if factors is not None:
                left, right = factors
                part = part.astype(np.float32) + left[start : start + rows] @ right
            target[start : start + rows] = cast(part, self.numpy_dtype, self.name)
        return result


def cast(array: np.ndarray, dtype: DType, name: str) -> np.ndarray:
    """Return an array in a floating-point dtype. Raises CheckpointError for numbers beyond the range of float16."""
    with np.errstate(over="ignore"):  # it is found here
        result = array.astype(dtype, copy=False)
    if dtype == float16 and not np.isfinite(result).all() and np.isfinite(array.astype(np.float32)).all():
        raise CheckpointError(
            f"models: {name} holds numbers beyond float16's range, 65504; give the dtype bfloat16 or float32"
        )
    return result


def _factors(adapter: Adapter) -> tuple[np.ndarray, np.ndarray]:
    """Return two matrices whose product is added to the weight."""
    a, b = (np.asarray(part).astype(np.float32) for part in (adapter.a, adapter.b))
    b *= np.float32(adapter.alpha / adapter.rank)
    return (a.T, b.T) if adapter.is_transposed else (b, a)
