"""Recomputation that keeps the results of chosen operations and does not compute these results again.

Source: torch.utils.checkpoint.create_selective_checkpoint_contexts.
"""

import difflib
import enum
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from spillgrad.autograd.core import hooks
from spillgrad.autograd.core.node import NO_EDGE
from spillgrad.autograd.core.saved import SavedTensor
from spillgrad.errors import ArgumentError, HookTypeError
from spillgrad.ops.intercept import intercept
from spillgrad.ops.operation import Operation, all_operations
from spillgrad.tensor import Tensor
from spillgrad_kernels.memory.buffers import copy


class CheckpointPolicy(enum.Enum):
    """Whether an operation's results are kept for the recomputation: a policy returns one of these.

    ``MUST_SAVE`` and ``PREFER_SAVE`` keep the results, ``MUST_RECOMPUTE`` and ``PREFER_RECOMPUTE`` do not; MUST and
    PREFER mean the same here.
    """

    MUST_SAVE = 0
    PREFER_SAVE = 1
    MUST_RECOMPUTE = 2
    PREFER_RECOMPUTE = 3


class SelectiveCheckpointContext:
    """The first argument of a policy: it holds the operation's output.

    Parameters
    ----------
    is_recompute : bool
        Always False, because policies are called only in the forward.
    op_output : Tensor or tuple of Tensor, optional
        The operation's output.
    """

    def __init__(self, *, is_recompute: bool, op_output: Any = None) -> None:
        self.is_recompute = is_recompute
        self.op_output = op_output


Policy = Callable[..., CheckpointPolicy | bool]
_SAVED = (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)

# Operations that are created when first called with a given number of tensors.
_MADE_ON_DEMAND = frozenset(("cat", "stack"))

# One call's kept results, as SavedTensors or aliases.
_Kept = list[Any]


def create_selective_checkpoint_contexts(
    policy_fn_or_list: Policy | Sequence[str | Callable[..., Any]], allow_cache_entry_mutation: bool = False
) -> tuple[intercept, intercept]:
    """Return the context managers for ``checkpoint(context_fn=…)`` that keep the results of chosen operations.

    Kept results stay until the graph is freed, so that several backwards are possible. Unlike in PyTorch, the hooks
    that are active around the checkpoint pack these results; within `save_on_disk` they go to disk::

        keep = functools.partial(create_selective_checkpoint_contexts, ["linear", "scaled_dot_product_attention"])
        y = checkpoint(block, x, context_fn=keep)

    Parameters
    ----------
    policy_fn_or_list : callable or sequence of str or callable
        Operations to keep: a list of their nodes' names ("mm", "matmul", "linear", "scaled_dot_product_attention", …)
        or of functions with these names, or a ``policy(context, name, *arguments)`` that returns a `CheckpointPolicy`
        or a bool. The policy is never called for views, which cost nothing.
    allow_cache_entry_mutation : bool, default False
        Whether kept results may be changed in place; they then stay in RAM. Otherwise, backward raises SavedTensorError
        for a changed one.

    Returns
    -------
    tuple of two context managers
        One for the forward, one for recomputations.

    Raises
    ------
    ArgumentError
        For a name that no operation has.
    """
    names, policy = None, policy_fn_or_list
    if not callable(policy):
        names = chosen = _names_of(policy)
        policy = lambda context, name, *arguments: name in chosen  # noqa: E731 - the other case of one name
    outside = hooks.stack.pairs  # `checkpoint` asks for the contexts before it enters hooks of its own
    kept: dict[Operation, list[_Kept | None]] = defaultdict(list)

    def keep(operation: Operation, arguments: tuple[Any, ...]) -> Any:
        taken, results = operation.results(arguments)
        output = operation.again(taken, results)
        context = SelectiveCheckpointContext(is_recompute=False, op_output=output)
        choice = policy(context, operation.name, *arguments)
        if not isinstance(choice, CheckpointPolicy | bool):
            raise HookTypeError(
                f"checkpoint policy: got {type(choice).__name__} for {operation.name}; wanted a CheckpointPolicy or a "
                "bool"
            )
        entry: _Kept | None = None
        if choice is True or choice in _SAVED:
            outputs = list(output) if isinstance(output, tuple) else [output]
            tensors = [*outputs, *map(Tensor.wrap, results[len(outputs) :])]
            entry = [_kept(tensor, operation, None if allow_cache_entry_mutation else outside) for tensor in tensors]
        kept[operation].append(entry)
        return output

    return intercept(keep, names), _Reuse(_Reader(kept), names)


def _kept(tensor: Tensor, operation: Operation, pairs: list[hooks.HookPair] | None) -> Any:
    """Return what to keep of a result: a SavedTensor packed with `pairs`, or, if `pairs` is None, an alias."""
    if pairs is None:
        return tensor.alias()
    saved = SavedTensor(tensor.alias(), operation.name, "kept result", NO_EDGE)
    saved.pack(pairs)
    return saved


def _array_of(kept: Any) -> np.ndarray:
    """Return the values of a kept result."""
    if not isinstance(kept, SavedTensor):
        return kept.array  # type: ignore[no-any-return]
    array: np.ndarray = kept.unpack().array
    # The function may change its results in place, and hooks may return the same memory for the next use.
    return array if kept.unpack_hook is None else copy(array)


class _Reader:
    """Called in a recomputation, for an operation's n-th call: returns what the n-th call in the forward pass kept."""

    def __init__(self, kept: dict[Operation, list[_Kept | None]]) -> None:
        self._kept = kept
        self.calls: dict[Operation, int] = defaultdict(int)

    def __call__(self, operation: Operation, arguments: tuple[Any, ...]) -> Any:
        number = self.calls[operation]
        self.calls[operation] += 1
        known = self._kept.get(operation, [])
        entry = known[number] if number < len(known) else None
        if entry is None:
            return operation(*arguments)
        results = list(map(_array_of, entry))
        output = operation.again(operation.promoted(arguments), results)
        for tensor in output if isinstance(output, tuple) else [output]:
            tensor.mark_shared()  # its memory belongs to the kept result, which the next recomputation needs
        return output


class _Reuse(intercept):
    """The context manager of recomputations. Each time it is entered, the kept results are read from the beginning."""

    def __init__(self, reader: _Reader, names: Collection[str] | None) -> None:
        self._reader = reader
        super().__init__(reader, names)

    def __enter__(self) -> None:
        self._reader.calls.clear()
        super().__enter__()


def _names_of(operations: Sequence[str | Callable[..., Any]]) -> frozenset[str]:
    known = {operation.name for operation in all_operations} | _MADE_ON_DEMAND
    names = [choice if isinstance(choice, str) else getattr(choice, "__name__", str(choice)) for choice in operations]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 3, 0.5)
            raise ArgumentError(
                f"create_selective_checkpoint_contexts: got {name!r}, which no operation is called; "
                f"{'near it: ' + ', '.join(near) if near else 'a grad_fn shows the name of its operation'}"
            )
    return frozenset(names)
