"""Quantized weights in safetensors files, in the layout of bitsandbytes and Hugging Face's libraries.

Of NF4, a file holds `X.weight` (codes), `X.weight.absmax`, `.quant_map`, `.nested_absmax`, `.nested_quant_map` and
`.quant_state.bitsandbytes__nf4` (JSON as bytes); of int8, `X.weight`, `X.SCB` and `X.weight_format`.
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from spillgrad import dtypes
from spillgrad.errors import CheckpointError
from spillgrad.nn import init
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.nn.quantize import quantizable, quantized_layer
from spillgrad.nn.quantized import BUFFERS, QuantizedWeight, empty_matrix, stored_shape
from spillgrad.nn.replacing import replaced
from spillgrad.ops import creation
from spillgrad.ops.quantized import QuantizedMatrix
from spillgrad_kernels.cpu import quantizing
from spillgrad_kernels.cpu.quantization import Quantized
from spillgrad_kernels.tables.quantization import BLOCK, LEVELS, NESTED_BLOCK, dynamic_map

Weights = Mapping[str, Any]
STATE = ".quant_state.bitsandbytes__nf4"
_OTHER_PARTS = (".quant_map", ".nested_quant_map")
# The bytes of the JSON text: long enough for any numbers, so that a file's layout is known before they are.
STATE_BYTES = 320


class StoredMatrix(NamedTuple):
    """What files say of a quantized weight before it is read."""

    shape: tuple[int, int]
    format: str
    nests: bool


class QuantizedTensor:
    """A quantized weight in files, as an array of the numbers that its codes stand for; `dtype` is that of its results.

    Rows that are asked for are float32. The codes are read at the first time, and stay in memory until `forget`.
    `is_transposed` says that the codes are those of the transposed weight, as GPT-2's are.
    """

    ndim = 2

    def __init__(self, matrix: StoredMatrix, parts: tuple[Any, ...], is_transposed: bool, dtype: dtypes.DType) -> None:
        self.shape = matrix.shape[::-1] if is_transposed else matrix.shape
        self.dtype = dtype
        self.nbytes = math.prod(self.shape) * dtype.itemsize
        self._matrix, self._parts, self._is_transposed = matrix, parts, is_transposed
        self._read: Quantized | None = None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        found = self.rows(0, self.shape[0])
        self.forget()
        return found.astype(self.dtype if dtype is None else dtype, copy=False)

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return some rows, in float32."""
        if self._read is None:
            parts = [None if part is None else np.asarray(part) for part in self._parts]
            self._read = Quantized(self._matrix.shape, *parts)  # type: ignore[arg-type]
        if self._is_transposed:
            return quantizing.dequantize(self._read).T[start:stop]
        return quantizing.dequantize(self._read, np.arange(start, min(stop, self.shape[0])))

    def forget(self) -> None:
        """Free the memory of the codes."""
        self._read = None


def dequantized(
    saved: Weights, is_transposed: Callable[[str], bool], dtype: dtypes.DType
) -> tuple[dict[str, Any], list[str]]:  # fmt: skip
    """Return tensors with quantized weights as `QuantizedTensor` in place of their parts, and the names of these.

    `is_transposed` says of a name whether its weight is that of GPT-2's layers. Raises CheckpointError as `split` does.
    """
    named, matrices = split(saved)
    found: dict[str, Any] = {}
    names = []
    for name, tensor in saved.items():
        matrix = matrices.get(id(tensor))
        if matrix is not None:
            path = name.removesuffix("weight")
            parts = tuple(named.get(path + part) for part in BUFFERS)
            found[name] = QuantizedTensor(matrix, parts, is_transposed(name), dtype)
            names.append(name)
        elif named.get(name) is tensor:
            found[name] = tensor
    return found, names


def split(saved: Weights) -> tuple[dict[str, Any], dict[int, StoredMatrix]]:
    """Return tensors with the names that `QuantizedLinear` has, and the quantized weights among them, by id.

    Raises CheckpointError for weights in formats that are not read, and for parts that do not fit together.
    """
    found: dict[str, Any] = {}
    matrices: dict[int, StoredMatrix] = {}
    left = dict(saved)
    for name, codes in saved.items():
        path = name.removesuffix(".weight")
        if name == path or codes.dtype not in (dtypes.uint8, dtypes.int8):
            continue
        parts = {each: left.pop(each) for each in _names_of(name, path) if each in left}
        matrix, read = (_nf4 if codes.dtype == dtypes.uint8 else _int8)(name, path, parts)
        matrices[id(codes)] = matrix
        found |= {f"{path}.{part}": tensor for part, tensor in read.items()}
    return left | found, matrices


def _names_of(name: str, path: str) -> tuple[str, ...]:
    nested = (".absmax", ".nested_absmax", STATE, *_OTHER_PARTS)
    return (name, *(name + part for part in nested), f"{path}.SCB", f"{name}_format")


def _nf4(name: str, path: str, parts: dict[str, Any]) -> tuple[StoredMatrix, dict[str, Any]]:
    state = _state_of(name, parts.get(name + STATE))
    shape = tuple(state["shape"])
    nests = "nested_offset" in state
    _require_map(name, parts.get(f"{name}.quant_map"), LEVELS)
    if nests:
        _require_map(name, parts.get(f"{name}.nested_quant_map"), dynamic_map())
    blocks = -(-math.prod(shape) // BLOCK)
    wanted: dict[str, tuple[str, tuple[int, ...], Any]] = {
        "weight": (name, stored_shape(shape, "nf4"), dtypes.uint8),
        "absmax": (f"{name}.absmax", (blocks,), dtypes.uint8 if nests else dtypes.float32),
    }
    if nests:
        wanted["nested_absmax"] = f"{name}.nested_absmax", (-(-blocks // NESTED_BLOCK),), dtypes.float32
    read = _checked(name, parts, wanted)
    if nests:
        read["nested_offset"] = np.array(state["nested_offset"], np.float32)
    return StoredMatrix(shape, "nf4", nests), read


def _int8(name: str, path: str, parts: dict[str, Any]) -> tuple[StoredMatrix, dict[str, Any]]:
    shape = tuple(parts[name].shape)
    if len(shape) != 2:
        raise CheckpointError(f"{name}: got int8 codes of shape {shape}; wanted those of a matrix")
    wanted = {"weight": (name, shape, dtypes.int8), "absmax": (f"{path}.SCB", (shape[0],), dtypes.float32)}
    read = _checked(name, parts, wanted)
    order = parts.get(f"{name}_format")
    if order is not None and np.asarray(order).reshape(-1).tolist() != [0]:
        raise CheckpointError(f"{name}: its codes are not in the order of rows; quantize the weights anew")
    return StoredMatrix(shape, "int8", False), read


def _state_of(name: str, stored: Any) -> dict[str, Any]:
    """Return what a file says of codes of four bits. Raises CheckpointError for what is not read."""
    if stored is None:
        raise CheckpointError(
            f"{name}: holds codes of no format that is read, which are bitsandbytes' nf4 and int8; quantize the "
            "weights as one of these"
        )
    try:
        if stored.nbytes > 1 << 16:
            raise ValueError("too long")
        state = json.loads(bytes(np.asarray(stored).reshape(-1)).decode())
        shape = state["shape"]
        sizes = state["quant_type"], state["blocksize"], state.get("nested_blocksize", NESTED_BLOCK)
        is_shape = len(shape) == 2 and all(type(size) is int and 0 < size < 1 << 40 for size in shape)
        is_number = abs(float(state.get("nested_offset", 0))) <= float(np.finfo(np.float32).max)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"{name}: its quant_state is damaged; use another copy") from error
    if sizes != ("nf4", BLOCK, NESTED_BLOCK) or not is_shape or not is_number:
        raise CheckpointError(
            f"{name}: got {sizes[0]} in blocks of {sizes[1]}, of shape {shape}; wanted a matrix as nf4 in blocks of "
            f"{BLOCK}"
        )
    return state  # type: ignore[no-any-return]


def _require_map(name: str, stored: Any, values: np.ndarray) -> None:
    if stored is not None and (
        tuple(stored.shape) != values.shape or not np.allclose(np.asarray(stored), values, rtol=0, atol=1e-6)
    ):
        raise CheckpointError(f"{name}: its codes stand for other numbers than nf4's; quantize the weights anew")


def _checked(
    name: str, parts: dict[str, Any], wanted: Mapping[str, tuple[str, tuple[int, ...], Any]]
) -> dict[str, Any]:
    found = {}
    for part, (stored_name, shape, dtype) in wanted.items():
        stored = parts.get(stored_name)
        if stored is None or tuple(stored.shape) != shape or stored.dtype != dtype:
            got = "nothing" if stored is None else f"{stored.dtype} {tuple(stored.shape)}"
            raise CheckpointError(f"{name}: got {got} as {stored_name}, wanted {dtype} {shape}; use another copy")
        found[part] = stored
    return found


def prepare(model: Module, saved: Weights, matrices: Mapping[int, StoredMatrix]) -> Module:
    """Replace layers of a model, in place, by quantized ones for the weights among `saved` that are in `matrices`.

    Their buffers have no values yet. Raises CheckpointError for a weight of another shape, or of no linear layer.
    """
    wanted = {
        name.removesuffix(".weight"): matrices[id(tensor)] for name, tensor in saved.items() if id(tensor) in matrices
    }
    layers = dict(quantizable(model))
    for path, matrix in wanted.items():
        layer = layers.pop(path, None)
        if layer is None or isinstance(layer, QuantizedWeight):
            raise CheckpointError(
                f"{path}.weight is quantized, and the model has no linear layer or table of that name"
            )
        shape = tuple(layer._parameters["weight"].shape)  # type: ignore[union-attr]
        if (shape[::-1] if "Conv1D" in type(layer).__name__ else shape) != matrix.shape:
            raise CheckpointError(f"{path}.weight is quantized with shape {matrix.shape}, and the model's has {shape}")
        made = quantized_layer(layer, path, matrix.format, _empty(matrix))
        model = replaced(model, {layer: made})
    return model


def _empty(matrix: StoredMatrix) -> QuantizedMatrix:
    return empty_matrix(
        matrix.shape, matrix.format, matrix.nests, lambda shape, dtype: creation.empty(shape, dtype=dtype)
    )


def give_memory(model: Module) -> None:
    """Give memory to the parameters of a model that `init.skipped(without_memory=True)` left without."""
    made: dict[int, Parameter] = {}
    for module in model.modules():
        for name, param in list(module._parameters.items()):
            if param is None or not init.lacks_memory(param):
                continue
            if id(param) not in made:
                made[id(param)] = Parameter(
                    creation.empty(param.shape, dtype=param.dtype, device=param.device), param.requires_grad
                )
                made[id(param)].exact_state = param.exact_state
            module.register_parameter(name, made[id(param)])
