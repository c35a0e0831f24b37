"""The bytes of an optimizer's state in PyTorch, also of state that its first update will make."""

import collections
from typing import Any

import torch

from spillgrad.interop.encoded_state import EXACT_STATE, StateEncoding
from spillgrad.interop.torch.optimizer import OffloadedOptimizer, as_they_are, without_hooks
from spillgrad.interop.torch.pieces import StoredPieces, piece_elements
from spillgrad.interop.torch.stored_tensor import StoredTensor

# The most elements along an axis of the parameter by which sizes are measured.
_PROBE_SIZE = 4


def state_bytes_of(optimizer: Any, param: Any, group: dict[str, Any], encoding: StateEncoding = EXACT_STATE) -> int:
    """Return the bytes of the tensors in a parameter's state that are as large as it, as they are stored.

    Return 0 for an optimizer that cannot update a small dense parameter.
    """
    sizes = _sizes(optimizer, param, group)
    return sum(encoding.stored_bytes(key, nbytes, param) for key, nbytes in sizes.items())


def updated_state_bytes_of(
    optimizer: Any, param: Any, group: dict[str, Any], encoding: StateEncoding = EXACT_STATE
) -> int:  # fmt: skip
    """Return the bytes of a parameter's state that its update needs in RAM at once."""
    kind = optimizer._kind if isinstance(optimizer, OffloadedOptimizer) else type(optimizer)
    count, sizes = piece_elements(kind, param), _sizes(optimizer, param, group)
    used_bytes = sum(encoding.used_bytes(key, nbytes, param) for key, nbytes in sizes.items())
    return -(-used_bytes * count // param.numel()) if count else used_bytes


def _sizes(optimizer: Any, param: Any, group: dict[str, Any]) -> dict[str, int]:
    """Return the bytes of the tensors in a parameter's state, by key."""
    there = as_they_are(optimizer.state.get(param, {}))
    kinds = torch.Tensor | StoredTensor | StoredPieces
    sizes = {key: value.nbytes for key, value in there.items() if isinstance(value, kinds)}
    if sum(sizes.values()) or not param.requires_grad:
        return sizes
    shape = tuple(min(size, _PROBE_SIZE) for size in param.shape)
    probe = torch.nn.Parameter(torch.ones(shape, dtype=param.dtype))
    probe.grad = torch.ones_like(probe)
    # The optimizer itself, and the states of the other parameters, must stay as they are.
    other = object.__new__(type(optimizer))
    vars(other).update(
        vars(optimizer), state=collections.defaultdict(dict), param_groups=[{**group, "params": [probe]}]
    )
    kind: Any = type(optimizer)
    step = kind._step_of_class if isinstance(optimizer, OffloadedOptimizer) else without_hooks(kind.step)
    try:
        step(other)
    except Exception:  # such as SparseAdam's, for a dense gradient; what is wrong shows in the first step
        return {}
    if not probe.ndim:
        return {}
    made = {key: value for key, value in other.state[probe].items() if getattr(value, "shape", None) == probe.shape}
    return {key: param.nbytes * value.nbytes // probe.nbytes for key, value in made.items()}
