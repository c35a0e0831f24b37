"""Recompute saved values: run a function again in backward instead of keeping what its operations save.

A recomputed function is a region of the graph. An ordinary pair of saved-tensor hooks packs the function's saved values
as empty slots. When backward unpacks the first slot, the function runs again, under hooks that fill the slots.

Source: Chen et al. 2016, "Training deep nets with sublinear memory cost"; torch.utils.checkpoint (use_reentrant=False).
`reentrant.py` has the other form.
"""

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
import xxhash

from spillgrad.autograd.core import hooks
from spillgrad.autograd.core.grad_mode import enable_grad, is_recording
from spillgrad.autograd.core.hooks import saved_tensors_hooks
from spillgrad.autograd.core.node import NO_EDGE
from spillgrad.autograd.core.saved import SavedTensor
from spillgrad.autograd.recompute.reentrant import checkpoint_reentrant
from spillgrad.autograd.recompute.state import recomputing
from spillgrad.errors import ArgumentError, GraphError, RecomputationError
from spillgrad.fork_safe_lock import ForkSafeLock
from spillgrad.generator import GeneratorState, default_generator
from spillgrad.ops import autocast
from spillgrad.tensor import Tensor

CheckpointError = RecomputationError

Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]


class _Override(threading.local):
    """Settings of this thread that override the arguments of `checkpoint`; None does not override."""

    early_stop: bool | None = None
    debug: bool | None = None


_override = _Override()


class _Description(NamedTuple):
    """The properties of a saved value that must be the same when it is recomputed."""

    operation: str
    slot: str
    shape: tuple[int, ...]
    dtype: Any
    device: Any
    checksum: str = ""

    def __str__(self) -> str:
        checksum = f", checksum {self.checksum}" if self.checksum else ""
        return f"{self.operation} saves '{self.slot}': {self.shape} {self.dtype} on {self.device}{checksum}"


def _by_metadata(tensor: Tensor) -> _Description:
    return _Description(*hooks.packing(), tensor.shape, tensor.dtype, tensor.device)


def _by_value(tensor: Tensor) -> _Description:
    values = np.ascontiguousarray(tensor.host_array()).reshape(-1).view(np.uint8)
    return _by_metadata(tensor)._replace(checksum=xxhash.xxh3_64_hexdigest(values.data))


_CHECKS: dict[str, Callable[[Tensor], _Description]] = {
    "default": _by_metadata,
    "none": lambda tensor: _Description("", "", (), None, None),
    "values": _by_value,
}


class _Stop(BaseException):
    """Raised to end a recomputation that has all values. A BaseException, because the function may catch Exception.

    The exception's argument is the recomputation to end.
    """


class _RegionHooks(saved_tensors_hooks):
    """The hooks that take what a region's function saves, in the forward pass or in a recomputation."""


def is_in_region() -> bool:
    """Return whether this thread runs a recomputed function, first or again, that takes what operations save now."""
    pairs = hooks.stack.pairs
    return bool(pairs) and isinstance(pairs[-1].owner, _RegionHooks)


class _Slot:
    """The place of one value that the region's operations saved: empty, or recomputed and not yet used."""

    __slots__ = ("__weakref__", "region", "value")

    def __init__(self, region: "_Region") -> None:
        self.region = region
        self.value: SavedTensor | None = None


class _Region:
    """One call of a recomputed function.

    Invariant: saved values of the graph refer to their slots, and slots to the region. The region refers to its slots
    weakly, and to nodes only through the edges of its arguments. So it dies when backward has released the last saved
    value.
    """

    def __init__(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any],
        context: AbstractContextManager[Any], state: GeneratorState | None, describe: Callable[[Tensor], _Description],
        early_stop: bool, is_verbose: bool,
    ) -> None:  # fmt: skip
        self._function = function
        # This runs outside the region's own hooks, so that the surrounding hooks pack the arguments.
        self._arguments = _mapped((arguments, keywords), Tensor, _save)
        self._context = context
        self._state = state
        self._autocast = autocast.present()
        self.describe = describe
        self.early_stop = early_stop
        self.is_verbose = is_verbose
        self._lock = ForkSafeLock()
        self._slots: list[weakref.ref[_Slot]] = []
        self.described: list[_Description] = []
        self.is_complete = False

    def pack(self, tensor: Tensor) -> _Slot:
        """Return an empty slot for a value that an operation saves; only a description of the value is kept."""
        slot = _Slot(self)
        self._slots.append(weakref.ref(slot))
        self.described.append(self.describe(tensor))
        return slot

    def value(self, slot: _Slot) -> Any:
        """Return a slot's value; run the function again if the slot is empty.

        Raises RecomputationError if the function saves other values than in the forward pass.
        """
        with self._lock:  # another thread may run backward through the region too, and take the values
            if slot.value is None:
                self._recompute()
            value, slot.value = slot.value, None
        if value is None:
            raise AssertionError("a recomputation that ends without error has filled the slots in use")
        return value.unpack()

    def _recompute(self) -> None:
        slots = [slot() for slot in self._slots]
        filling = _Filling(self, slots)
        arguments, keywords = _mapped(self._arguments, SavedTensor, SavedTensor.unpack)
        replay = contextlib.nullcontext() if self._state is None else default_generator.replay(self._state)
        try:
            hooked = _RegionHooks(filling.pack, lambda tensor: tensor)
            with enable_grad(), hooked, replay, recomputing(), self._autocast, self._context:
                self._function(*arguments, **keywords)
            filling.check_count(self.is_complete)
        except _Stop as stop:
            if stop.args[0] is not filling:
                raise
        except BaseException:
            for slot in slots:
                if slot is not None:
                    slot.value = None
            raise


class _Filling:
    """One recomputation, which puts the values that operations save into the slots, in order."""

    def __init__(self, region: _Region, slots: Sequence[_Slot | None]) -> None:
        self._slots, self._expected, self._describe = slots, region.described, region.describe
        self._is_verbose = region.is_verbose
        last = max((i for i, slot in enumerate(slots) if slot is not None), default=-1)
        self._stop = last if region.early_stop else -1
        self._found: list[_Description] = []

    def pack(self, tensor: Tensor) -> Tensor:
        """Check `tensor` against the forward's value, put it into the next slot if that is in use, and return it."""
        number = len(self._found)
        self._found.append(self._describe(tensor))
        if number < len(self._slots):
            if self._found[number] != self._expected[number]:
                raise RecomputationError(
                    f"checkpoint: recomputed values have different metadata than during the forward pass: value "
                    f"{number} was [{self._expected[number]}], and is [{self._found[number]}] now. {self._advice()}"
                )
            slot = self._slots[number]
            if slot is not None:
                # A SavedTensor, so that a change before its use is noticed.
                slot.value = SavedTensor(tensor, *hooks.packing(), NO_EDGE)
                slot.value.pack([])
            if number == self._stop:
                raise _Stop(self)
        return tensor

    def check_count(self, is_complete: bool) -> None:
        """Raise RecomputationError unless the recomputation saved as many values as the forward pass.

        If the function itself runs backward, it is recomputed before its forward pass has saved all values. Then
        `is_complete` is False, and the recomputation may save more values.
        """
        wanted, got = len(self._expected), len(self._found)
        if got < wanted or (is_complete and got > wanted):
            raise RecomputationError(
                f"checkpoint: A different number of tensors was saved during the original forward and recomputation: "
                f"{wanted}, then {got}. {self._advice()}"
            )

    def _advice(self) -> str:
        advice = (
            "The function must do the same each time: it may not depend on what changed since, such as global state, a "
            "module's mode, or a random generator other than the default one"
        )
        if not self._is_verbose:
            return f"{advice}; debug=True lists all that was saved."
        listed = [
            f"saved in the {when}:\n" + "\n".join(f"  {i}: {d}" for i, d in enumerate(descriptions))
            for when, descriptions in (("forward", self._expected), ("recomputation", self._found))
        ]
        return "\n".join([f"{advice}.", *listed])


def _unpack(slot: _Slot) -> Any:
    return slot.region.value(slot)


def _save(tensor: Tensor) -> SavedTensor:
    saved = SavedTensor(tensor, "checkpoint", "argument", tensor.gradient_edge())
    saved.pack()
    return saved


def _mapped(value: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """Apply `function` to every object of type `kind` in nested lists, tuples and dicts; keep other objects."""
    if isinstance(value, kind):
        return function(value)
    if type(value) is list:
        return [_mapped(part, kind, function) for part in value]
    if type(value) is dict:
        return {key: _mapped(part, kind, function) for key, part in value.items()}
    if isinstance(value, tuple):
        parts = [_mapped(part, kind, function) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def noop_context_fn() -> Contexts:
    """Return two context managers that do nothing.

    Returns
    -------
    tuple of two context managers
        What `checkpoint` uses by default.
    """
    return contextlib.nullcontext(), contextlib.nullcontext()


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    context_fn: Callable[[], Contexts] = noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """Call `function` and keep only its arguments for backward, which calls it again to recompute the saved values.

    The gradients are the same as without checkpoint, also for repeated backwards, higher derivatives and nested
    checkpoints. Tensors among the arguments, also in lists, tuples and dicts, are packed by the hooks that are active
    around the call; within `save_on_disk` they go to disk. Other tensors that the function uses must not change before
    backward. In `no_grad` the function just runs.

    The recomputation runs in the forward's mode of `autocast`. Running statistics of `batch_norm` are updated once,
    unlike PyTorch's. Other side effects of the function happen again.

    Parameters
    ----------
    function : callable
        Function to recompute.
    *args : object
        Arguments of the function.
    use_reentrant : bool, optional
        True records nothing of the function in the forward pass, and runs a backward within backward; see the notes.
    context_fn : callable, optional
        Returns two context managers, one for the function and one for its recomputations: see
        `create_selective_checkpoint_contexts`.
    determinism_check : {"default", "values", "none"}, default "default"
        "default" compares the operation, shape, dtype and device of every saved value. "values" also compares
        checksums, which finds a function whose results changed. "none" compares nothing.
    debug : bool, default False
        Whether errors list all saved values.
    early_stop : bool, default True
        Whether the recomputation ends after the last value that backward needs.
    preserve_rng_state : bool, default True
        Whether the recomputation draws the same random numbers from the default generator.
    **kwargs : object
        Keyword arguments of the function.

    Returns
    -------
    object
        What the function returns.

    Raises
    ------
    ArgumentError
        For keywords that are not accepted.
    RecomputationError
        In backward, if the recomputation saves other values. An alias is `CheckpointError`.
    SavedTensorError
        In backward, if an argument was changed in place.

    Warns
    -----
    UserWarning
        With ``use_reentrant=True``, if none of the arguments requires a gradient.

    Notes
    -----
    ``use_reentrant=True`` is for programs that rely on it. Only tensors that are arguments themselves get gradients,
    and at least one of them must require a gradient. All of the function runs again. `grad`, backward with `inputs` and
    second derivatives raise GraphError. All options but `preserve_rng_state` are refused or unused.

    Examples
    --------
    >>> import spillgrad as sg
    >>> from spillgrad.utils.checkpoint import checkpoint
    >>> x = sg.tensor([1.0, 2.0], requires_grad=True)
    >>> checkpoint(lambda x: x.square().square(), x).sum().backward()
    >>> x.grad
    tensor([ 4., 32.])
    """
    if use_reentrant:
        if kwargs:
            raise ArgumentError(
                f"checkpoint: Unexpected keyword arguments: {','.join(kwargs)}; pass them by position, or set "
                "use_reentrant=False"
            )
        if context_fn is not noop_context_fn or debug:
            raise ArgumentError(
                "checkpoint: Passing `context_fn` or `debug` is only supported when use_reentrant=False."
            )
        return checkpoint_reentrant(function, preserve_rng_state, args)
    if determinism_check not in _CHECKS:
        raise ArgumentError(
            f"checkpoint: got determinism_check={determinism_check!r}; wanted one of {', '.join(_CHECKS)}"
        )
    if not is_recording():
        return function(*args, **kwargs)
    forward_context, recompute_context = context_fn()
    region = _Region(
        function,
        args,
        kwargs,
        recompute_context,
        default_generator.get_state() if preserve_rng_state else None,
        _CHECKS[determinism_check],
        early_stop if _override.early_stop is None else _override.early_stop,
        debug if _override.debug is None else _override.debug,
    )
    with _RegionHooks(region.pack, _unpack), forward_context:
        result = function(*args, **kwargs)
        region.is_complete = True
    if not region.is_complete:
        raise GraphError(
            "checkpoint: the forward context that context_fn returned suppressed an exception of the function, which "
            "leaves no result; let it pass"
        )
    return result


def checkpoint_sequential(
    functions: Iterable[Callable[[Any], Any]],
    segments: int,
    input: Any,
    use_reentrant: bool | None = None,
    *,
    preserve_rng_state: bool = True,
) -> Any:
    """Call `functions` one after the other, in groups. Backward recomputes all groups except the last.

    Parameters
    ----------
    functions : iterable of callable
        Functions of one argument, such as the layers of an `nn.Sequential`.
    segments : int
        Number of groups, at least 1 and at most the number of functions.
    input : object
        Argument of the first function.
    use_reentrant : bool, optional
        As in `checkpoint`.
    preserve_rng_state : bool, default True
        As in `checkpoint`.

    Returns
    -------
    object
        What the last function returns.

    Raises
    ------
    ArgumentError
        For another number of segments.
    """
    steps = list(functions)
    if not 1 <= segments <= len(steps):
        raise ArgumentError(
            f"checkpoint_sequential: got {segments} segments of {len(steps)} functions; wanted 1 to {len(steps)}"
        )
    length = len(steps) // segments
    for start in range(0, length * (segments - 1), length):
        part = functools.partial(_run, steps[start : start + length])
        input = checkpoint(part, input, use_reentrant=use_reentrant, preserve_rng_state=preserve_rng_state)
    return _run(steps[length * (segments - 1) :], input)


def _run(steps: Sequence[Callable[[Any], Any]], value: Any) -> Any:
    """Call functions of one argument, one after the other."""
    for step in steps:
        value = step(value)
    return value


@contextlib.contextmanager
def set_checkpoint_early_stop(enable: bool) -> Iterator[None]:
    """Return a context manager that overrides `early_stop` of all checkpoints that are made in this thread.

    Parameters
    ----------
    enable : bool
        The value in its place.
    """
    before, _override.early_stop = _override.early_stop, enable
    try:
        yield
    finally:
        _override.early_stop = before


@contextlib.contextmanager
def set_checkpoint_debug_enabled(enabled: bool | None) -> Iterator[None]:
    """Return a context manager that overrides `debug` of all checkpoints that are made in this thread.

    Parameters
    ----------
    enabled : bool or None
        The value in its place; None does not override.
    """
    before, _override.debug = _override.debug, enabled
    try:
        yield
    finally:
        _override.debug = before
