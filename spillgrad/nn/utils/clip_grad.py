"""Clipping the gradients of many parameters."""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce

import numpy as np

from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.device.device import CPU, moved
from spillgrad.distributed import collective_steps, process_group
from spillgrad.distributed.process_group import ProcessGroup
from spillgrad.distributed.sharded_tensor import ShardedTensor
from spillgrad.dtypes import promote, real_part
from spillgrad.errors import ArgumentError, GraphError
from spillgrad.ops import creation
from spillgrad.ops.complex_views import as_pairs
from spillgrad.optim.arrays import Pending, run
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu import optim as kernels
from spillgrad_kernels.device_array import is_on_device


def _gradients(who: str, parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    if any(parameter._updated_in_backward for parameter in parameters):
        raise GraphError(
            f"{who}: got parameters that backward itself has updated, as disk_offload(step_in_backward=True) asked: "
            "their gradients are gone; give disk_offload max_grad_norm, which clips them before the updates"
        )
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def norm(gradient: Tensor, norm_type: float = 2.0) -> float:
    """Return the norm of one gradient."""
    return _norms([gradient.array], norm_type)[0]


def squares(part: Tensor) -> np.ndarray:
    """Return sums of squares of a part of a gradient; `norm_of_squares` takes those of all parts, in their order.

    Parts begin at multiples of `spillgrad_kernels.cpu.optim.CHUNK` elements.
    """
    array = as_pairs(part.array) if part.array.dtype.kind == "c" else part.array
    dtype = np.float64 if array.dtype == np.float64 else np.float32
    return kernels.squares_of_chunks([array.astype(dtype, copy=False)])[0]


def norm_of_squares(sums: np.ndarray) -> float:
    """Return the norm of a gradient, given its sums of squares: the bits that `norm` returns."""
    return math.sqrt(float(sums.sum()))


def total_norm(norms: list[float], norm_type: float = 2.0) -> float:
    """Return the joint norm of gradients, given the norm of each."""
    if norm_type == 2:
        return math.sqrt(math.fsum(norm * norm for norm in norms))
    return _norms([np.array(norms)], norm_type)[0]


def factor(total: float, max_norm: float) -> float | None:
    """Return the factor that reduces gradients of the joint norm `total` to `max_norm`; None for a smaller `total`."""
    by = max_norm / (total + 1e-6)
    return None if by >= 1 else by  # NaN is returned: it must reach the weights instead of being hidden


def norms(gradients: list[Tensor], norm_type: float = 2.0) -> list[float]:
    """Return the norm of each gradient; of those in parts, all processes of their group ask for it together."""
    found: dict[int, float] = {}
    in_parts = [gradient for gradient in gradients if isinstance(gradient, ShardedTensor)]
    if norm_type == 2 and in_parts:
        for gradient, sums in zip(in_parts, _squares_of_wholes(in_parts[0].group, in_parts), strict=True):
            found[id(gradient)] = norm_of_squares(sums)
    for gradient in in_parts if norm_type != 2 else ():
        found[id(gradient)] = _norms([gradient.full_tensor().array], norm_type)[0]
    for some in _in_ram_at_once([gradient for gradient in gradients if id(gradient) not in found]):
        found |= zip(map(id, some), _norms([gradient.array for gradient in some], norm_type), strict=True)
    return [found[id(gradient)] for gradient in gradients]


def _squares_of_wholes(group: ProcessGroup, gradients: Sequence[ShardedTensor]) -> Iterator[np.ndarray]:
    """Yield the sums of squares of each whole gradient, in the order of its elements."""
    numbers = [2 if gradient.is_complex() else 1 for gradient in gradients]  # of an element
    counts = [
        [-(-(part.stop - part.start) * each // kernels.CHUNK) for part in gradient.parts]
        for gradient, each in zip(gradients, numbers, strict=True)
    ]
    known = ((gradient, gradient.known_squares()) for gradient in gradients)
    mine = np.concatenate([squares(gradient.shard) if sums is None else sums for gradient, sums in known])
    whole = [np.empty(sum(of_rank)) for of_rank in zip(*counts, strict=True)]
    process_group.run(group, f"norms of {len(gradients)} gradients", collective_steps.all_gather(mine, whole))
    starts = [0] * group.size()
    for of_ranks in counts:
        yield np.concatenate(
            [sums[start : start + count] for sums, start, count in zip(whole, starts, of_ranks, strict=True)]
        )
        starts = [start + count for start, count in zip(starts, of_ranks, strict=True)]


def _norms(arrays: list[np.ndarray], norm_type: float) -> list[float]:
    if norm_type != 2:
        arrays = [np.abs(a) if a.dtype.kind == "c" else a for a in (moved(array, CPU) for array in arrays)]
        return [float(np.linalg.norm(a.reshape(-1).astype(np.float64), norm_type)) if a.size else 0.0 for a in arrays]
    arrays = [as_pairs(a) if a.dtype.kind == "c" else a for a in arrays]
    norms = [0.0] * len(arrays)
    dense = [i for i, a in enumerate(arrays) if a.dtype == np.float32 and a.flags.c_contiguous]
    together = [[i for i in dense if is_on_device(arrays[i]) is there] for there in (False, True)]
    # The other gradients are copied one at a time.
    alone = [[i] for i in sorted(set(range(len(arrays))).difference(dense))]
    for places in (*together, *alone):
        values = [
            arrays[i].astype(np.float64 if arrays[i].dtype == np.float64 else np.float32, copy=False) for i in places
        ]
        for place, total in zip(places, kernels.sums_of_squares(values), strict=True):
            norms[place] = math.sqrt(total)
    return norms


def _as_tensor(total: float, tensors: list[Tensor]) -> Tensor:
    """Return the joint norm of tensors in the real dtype to which they promote."""
    return creation.tensor(
        total, dtype=real_part(reduce(promote, [t.numpy_dtype for t in tensors])) if tensors else None
    )


def _in_ram_at_once(gradients: list[Tensor]) -> list[list[Tensor]]:
    offloaded = [[gradient] for gradient in gradients if gradient.storage.offloaded]
    return [[gradient for gradient in gradients if not gradient.storage.offloaded], *offloaded]


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:  # fmt: skip
    """Scale all gradients in place so that their joint norm is at most `max_norm`.

    Parameters
    ----------
    parameters : Tensor or iterable of Tensor
        Parameters whose gradients are meant; those without a gradient are skipped.
    max_norm : float
        Largest joint norm.
    norm_type : float, default 2.0
        The p of the norm; infinity for the largest element.
    error_if_nonfinite : bool, default False
        Whether a norm that is not finite is an error.
    foreach : bool, optional
        Accepted for PyTorch's programs.

    Returns
    -------
    Tensor
        The norm before the scaling.

    Raises
    ------
    ArgumentError
        If the norm is not finite, with `error_if_nonfinite`; no gradient has changed then.
    GraphError
        For parameters that are updated in backward.

    Examples
    --------
    >>> import spillgrad as sg
    >>> weight = sg.nn.Parameter(sg.zeros(2))
    >>> weight.grad = sg.tensor([3.0, 4.0])
    >>> sg.nn.utils.clip_grad_norm_([weight], max_norm=1.0)
    tensor(5.)
    >>> weight.grad
    tensor([0.6000, 0.8000])
    """
    gradients = _gradients("clip_grad_norm_", parameters)
    total = total_norm(norms(gradients, norm_type), norm_type)
    if error_if_nonfinite and not math.isfinite(total):
        raise ArgumentError(f"clip_grad_norm_: the gradients' norm is {total}; lower the learning rate")
    by = factor(total, max_norm)
    if by is not None:
        scale(gradients, by)
    return _as_tensor(total, gradients)


clip_grad_norm = clip_grad_norm_  # PyTorch's older name


def get_total_norm(
    tensors: Tensor | Iterable[Tensor], norm_type: float = 2.0, error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:  # fmt: skip
    """Return the joint norm of tensors.

    Parameters
    ----------
    tensors : Tensor or iterable of Tensor
        The tensors.
    norm_type : float, default 2.0
        The p of the norm; infinity for the largest element.
    error_if_nonfinite : bool, default False
        Whether a norm that is not finite is an error.
    foreach : bool, optional
        Accepted for PyTorch's programs.

    Returns
    -------
    Tensor
        The norm, a tensor of no dimensions.

    Raises
    ------
    ArgumentError
        If the norm is not finite, with `error_if_nonfinite`.
    """
    tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    total = total_norm(norms(tensors, norm_type), norm_type)
    if error_if_nonfinite and not math.isfinite(total):
        raise ArgumentError(f"get_total_norm: the norm is {total}; lower the learning rate")
    return _as_tensor(total, tensors)


def clip_grads_with_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, total_norm: Tensor, foreach: bool | None = None
) -> None:
    """Scale all gradients in place by what reduces their joint norm to `max_norm`.

    Parameters
    ----------
    parameters : Tensor or iterable of Tensor
        Parameters whose gradients are meant; those without a gradient are skipped.
    max_norm : float
        Largest joint norm.
    total_norm : Tensor
        The gradients' joint norm.
    foreach : bool, optional
        Accepted for PyTorch's programs.

    Raises
    ------
    GraphError
        For parameters that are updated in backward.
    """
    by = factor(float(total_norm), max_norm)
    if by is not None:
        scale(_gradients("clip_grads_with_norm_", parameters), by)


def scale(gradients: Iterable[Tensor], by: float) -> None:
    """Multiply gradients by a factor in place. Raises GraphError if the memory of a gradient is read-only."""
    gradients = [each.shard if isinstance(each, ShardedTensor) else each for each in gradients]
    for gradient in gradients:
        if not gradient.array.flags.writeable:
            raise GraphError("clip_grad_norm_: a gradient's memory is read-only; clone() it first")
    run(Pending(lambda array, _, by: kernels.scaled(array, by), g, g, (), (by,)) for g in gradients)


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Clamp all gradients in place to [-clip_value, clip_value].

    Parameters
    ----------
    parameters : Tensor or iterable of Tensor
        Parameters whose gradients are meant; those without a gradient are skipped.
    clip_value : float
        Largest absolute value.

    Raises
    ------
    GraphError
        For parameters that are updated in backward.
    """
    with no_grad():
        for each in _gradients("clip_grad_value_", parameters):
            gradient = each.shard if isinstance(each, ShardedTensor) else each
            gradient.copy_(gradient.clamp(-clip_value, clip_value))
