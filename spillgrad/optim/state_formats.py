"""The formats of an optimizer's state: float32, bfloat16, and 8 bits with a scale for each block of elements."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from spillgrad import dtypes
from spillgrad.errors import ArgumentError, StateDictError, UnsupportedError
from spillgrad.ops import creation
from spillgrad.ops.convert import to_dtype
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu import state_codes
from spillgrad_kernels.tables.state_codes import BLOCK, SIGNED, Encoded

EXACT, BF16, INT8 = FORMATS = ("float32", "bf16", "int8")
# Parameters with fewer elements keep exact state: they are sensitive, and save next to nothing.
EXACT_BELOW = 4096
# For each format, how state that may be negative is encoded, and how state that is never negative.
_KINDS = {INT8: ("unsigned", "signed"), BF16: ("random", "nearest")}
_SCALE = "_scale"


class EncodedState(NamedTuple):
    """A tensor of state in fewer bits: how it is encoded, its codes, and in 8 bits the scales of its blocks."""

    kind: str
    codes: Tensor
    scales: Tensor | None


def require_format(who: str, state_format: Any) -> None:
    """Raise ArgumentError for what is no format."""
    if state_format not in FORMATS:
        raise ArgumentError(f"{who}: got state={state_format!r}; wanted 'float32', 'bf16' or 'int8'")


def scale_name(name: str) -> str:
    """Return the name of the entry that has the scales of the entry `name`."""
    return name + _SCALE


def elements_each(key: str, names: Mapping[str, bool]) -> int:
    """Return how many elements of a parameter one element of the entry `key` stands for: of scales, a block's."""
    return BLOCK if key.endswith(_SCALE) and key.removesuffix(_SCALE) in names else 1


def kind_of(state_format: str, is_signed: bool) -> str:
    """Return how state is encoded in a format of fewer bits: a key of `KINDS`."""
    return _KINDS[state_format][is_signed]


def is_small(param: Any) -> bool:
    """Return whether a parameter, of any framework, has so few elements or axes that its state stays exact."""
    return len(param.shape) < 2 or math.prod(param.shape) < EXACT_BELOW


def format_for(who: str, param: Tensor, wanted: str, keep_exact: bool) -> str:
    """Return the format of a parameter's state. Raises UnsupportedError for fewer bits on a CUDA device."""
    if wanted == EXACT or not param.is_floating_point() or param.itemsize > np.dtype(np.float32).itemsize:
        return EXACT
    if keep_exact and (param.exact_state or is_small(param)):
        return EXACT
    if param.is_cuda:
        raise UnsupportedError(
            f"{who}: got state={wanted!r} for a parameter on {param.device}; state in fewer bits is updated by the "
            "processor; move the model to the CPU, or give state='float32'"
        )
    return wanted


def nbytes_of(param: Tensor, state_format: str) -> int:
    """Return the bytes of a tensor of a parameter's state in a format."""
    return param.nbytes if state_format == EXACT else encoded_bytes(param.numel(), state_format)


def encoded_bytes(count: int, state_format: str) -> int:
    """Return the bytes of `count` elements of state in a format of fewer bits."""
    return 2 * count if state_format == BF16 else count + 4 * -(-count // BLOCK)


def zeros(name: str, param: Tensor, state_format: str, is_signed: bool) -> dict[str, Tensor]:
    """Return the entries of a tensor of state in fewer bits, all zeros, for a parameter or a part of it."""
    if state_format == BF16:
        return {name: creation.zeros(param.shape, dtype=dtypes.bfloat16)}
    blocks = (-(-param.numel() // BLOCK),)
    code = int(np.searchsorted(SIGNED, 0)) if is_signed else 0
    return {
        name: creation.full(param.shape, code, dtype=dtypes.uint8),
        scale_name(name): creation.zeros(blocks, dtype=dtypes.float32),
    }


def taken(name: str, state: Mapping[str, Any], param: Tensor, is_signed: bool) -> Tensor | EncodedState:
    """Return a tensor of state as an update takes it."""
    value: Tensor = state[name]
    scales = state.get(scale_name(name))
    if scales is not None:
        return EncodedState(kind_of(INT8, is_signed), value, scales)
    if value.numpy_dtype == dtypes.bfloat16 != param.numpy_dtype:
        return EncodedState(kind_of(BF16, is_signed), value, None)
    return value


def converted(
    name: str, entries: Mapping[str, Tensor], param: Tensor, state_format: str, is_signed: bool
) -> dict[str, Tensor]:
    """Return the entries of a tensor of state in another format: `entries` has it and, in 8 bits, its scales."""
    value, scales = entries[name], entries.get(scale_name(name))
    found = INT8 if scales is not None else BF16 if value.numpy_dtype == dtypes.bfloat16 else EXACT
    if found == state_format and (found != EXACT or value.numpy_dtype == param.numpy_dtype):
        return dict(entries)
    array = value.numpy()
    if scales is not None:
        array = state_codes.decode(Encoded(kind_of(INT8, is_signed), array, scales.numpy()))
    if state_format == EXACT:
        return {name: to_dtype(Tensor.wrap(array), param.numpy_dtype)}
    encoded = state_codes.encode(array, kind_of(state_format, is_signed), recovers_scales=True)
    made = {name: Tensor.wrap(encoded.codes)}
    return made if encoded.scales is None else {**made, scale_name(name): Tensor.wrap(encoded.scales)}


def misfits(state: Mapping[str, Any], names: Mapping[str, bool]) -> list[str]:
    """Return what is wrong with the entries of a parameter's state that have fewer bits."""
    wrong = []
    for key, value in state.items():
        is_codes = getattr(value, "dtype", None) == dtypes.uint8
        is_scale = elements_each(key, names) > 1
        if is_scale and getattr(value, "dtype", None) != dtypes.float32:
            wrong.append(f"{key} of {getattr(value, 'dtype', type(value).__name__)}, not float32")
        elif is_codes and key not in names:
            wrong.append(f"{key} in 8 bits")
        elif is_codes != (key in names and scale_name(key) in state):
            wrong.append(f"{key} without {scale_name(key)}" if is_codes else f"{scale_name(key)} for {value.dtype}")
        elif is_scale and key.removesuffix(_SCALE) not in state:
            wrong.append(f"{key} alone")
    return wrong


def require_fits(who: str, number: int, state: Mapping[str, Any], names: Mapping[str, bool]) -> None:
    """Raise StateDictError if entries of a parameter's state that have fewer bits do not fit."""
    wrong = misfits(state, names)
    if wrong:
        raise StateDictError(
            f"{who}: got state that does not fit: {number}: {', '.join(wrong)}; give the state of the same kind of "
            "optimizer"
        )
