"""What a Paddle model and its optimizer have that can be on disk: parameters and state, and their bytes."""

import collections
import math
import weakref
from collections.abc import Iterator
from typing import Any

import paddle
from paddle.base.framework import EagerParamBase
from paddle.base.layer_helper import LayerHelper

from spillgrad.interop.encoded_state import EXACT_STATE, StateEncoding
from spillgrad.interop.paddle.stored_tensor import is_storable, nbytes_of
from spillgrad.spill.offload.needs import Framework


def stored_bytes(parameter: Any) -> int:
    """Return the bytes of a parameter that go to disk, or are there; 0 for a parameter that stays in RAM."""
    return nbytes_of(parameter) if is_offloaded(parameter) or is_storable(parameter) else 0


def is_offloaded(parameter: Any) -> bool:
    """Return whether the memory of a parameter is in a store."""
    return hasattr(parameter, "_stored")


def members(optimizer: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the parameters of an optimizer, each with its group, or None if there are no groups."""
    for group in optimizer._param_groups:
        if isinstance(group, dict):
            yield from ((parameter, group) for parameter in group["params"])
        else:
            yield group, None


_PROBED_SHAPE = (3, 5)
# The bytes of state for each element of a parameter, by optimizer, dtype and name of the state.
_probed: weakref.WeakKeyDictionary[Any, dict[Any, dict[str, float]]] = weakref.WeakKeyDictionary()


def state_bytes_of(optimizer: Any, parameter: Any, group: Any = None, encoding: StateEncoding = EXACT_STATE) -> int:
    """Return the bytes of a parameter's state after its first update, as they are stored.

    Return 0 for a parameter that stays in RAM.
    """
    sizes = _sizes(optimizer, parameter)
    return sum(encoding.stored_bytes(key, nbytes, parameter) for key, nbytes in sizes.items())


def updated_state_bytes_of(
    optimizer: Any, parameter: Any, group: Any = None, encoding: StateEncoding = EXACT_STATE
) -> int:
    """Return the bytes of a parameter's state that its update needs in RAM at once."""
    sizes = _sizes(optimizer, parameter)
    return sum(encoding.used_bytes(key, nbytes, parameter) for key, nbytes in sizes.items())


def _sizes(optimizer: Any, parameter: Any) -> dict[str, int]:
    if not stored_bytes(parameter):
        return {}
    known = _probed.setdefault(optimizer, {})
    if parameter.dtype not in known:
        known[parameter.dtype] = _probe(optimizer, parameter.dtype)
    count = int(math.prod(parameter.shape))
    return {key: math.ceil(nbytes * count) for key, nbytes in known[parameter.dtype].items()}


def _probe(optimizer: Any, dtype: Any) -> dict[str, float]:
    """Return the bytes of state for each element, by name: those that the optimizer makes for a small parameter."""
    probe: Any = object.__new__(type(optimizer))
    vars(probe).update(vars(optimizer))
    probe._accumulators, probe._accumulators_holder = collections.defaultdict(dict), {}
    probe._master_weights, probe._opti_name_list, probe._already_create_accumulator = {}, [], set()
    with paddle.no_grad(), paddle.utils.unique_name.guard():
        parameter = EagerParamBase(list(_PROBED_SHAPE), dtype)
        parameter.set_value(paddle.zeros(_PROBED_SHAPE, dtype))
        probe.helper = LayerHelper(type(optimizer).__name__)
        probe._create_accumulators(paddle.static.default_main_program().global_block(), [parameter])
    made = {**probe._accumulators, "master": probe._master_weights}
    return {
        key: sum(nbytes_of(tensor) for tensor in some.values() if math.prod(tensor.shape) > 1)
        / math.prod(_PROBED_SHAPE)
        for key, some in made.items()
    }


def _named_parameters(layer: Any, recurse: bool) -> list[tuple[str, Any]]:
    return list(layer.named_parameters(include_sublayers=recurse))


FRAMEWORK = Framework(
    paddle.nn.Layer,
    state_bytes_of,
    updated_state_bytes_of,
    members=members,
    named_tensors=_named_parameters,
    nbytes_of=stored_bytes,
    kinds="parameters",
    holds_lists=True,
)
