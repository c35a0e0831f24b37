"""Combine two pairs of saved-tensor hooks into one pair."""

from typing import Any

from spillgrad.autograd.core.hooks import HookPair, Predicate, saved_tensors_hooks
from spillgrad.errors import HookTypeError, SavedTensorError
from spillgrad.tensor import Tensor


class compose(saved_tensors_hooks):
    """Context manager: pack with `inner`, then pack the result with `outer`; unpack in the reverse order.

    ``pack_hook(x)`` is ``outer.pack(inner.pack(x))``, ``unpack_hook(p)`` is ``inner.unpack(outer.unpack(p))``. The
    context can be entered again.

    Parameters
    ----------
    outer : saved_tensors_hooks or tuple of two callables
        Object with a pair of hooks (`saved_tensors_hooks`, `save_on_cpu`, `save_on_disk`, another `compose`), or a
        tuple (pack, unpack).
    inner : saved_tensors_hooks or tuple of two callables
        The same. It must pack to a tensor, because `outer` packs nothing else.
    only : callable, optional
        Chooses the values that the two pairs take, as in `saved_tensors_hooks`; neither pair may have a separate
        `only`.

    Raises
    ------
    HookTypeError
        If an argument is not a pair of hooks, or if `inner` packs to something other than a tensor.
    SavedTensorError
        If the outer pack hook changes its input.

    Notes
    -----
    This example saves float32 activations as bfloat16, and keeps at most 1 GiB of them in RAM::

        def pack(x):
            return x.to(sg.bfloat16) if x.dtype == sg.float32 else x

        half = (pack, lambda x: x.to(sg.float32) if x.dtype == sg.bfloat16 else x)
        with sg.autograd.graph.compose(sg.save_on_disk(ram_budget="1GiB"), half):
            loss = model(batch)
    """

    def __init__(self, outer: Any, inner: Any, *, only: Predicate | None = None) -> None:
        outer, inner = _pair("outer", outer), _pair("inner", inner)

        def pack(tensor: Tensor) -> Any:
            between = inner.pack(tensor)
            if not isinstance(between, Tensor):
                raise HookTypeError(
                    f"compose: the inner pack hook returned {type(between).__name__}; wanted a Tensor, which the outer "
                    "one packs; let the hook that returns something else be the outer one"
                )
            version = between.storage.version
            packed = outer.pack(between.detach())
            if between.storage.version != version:
                raise SavedTensorError(
                    "compose: the outer pack hook is modifying its input in place; no in-place operations may change "
                    "what a pack hook is given: work on a clone() of it"
                )
            return packed

        def unpack(packed: Any) -> Any:
            return inner.unpack(outer.unpack(packed))

        super().__init__(pack, unpack, only=only)


def _pair(who: str, hooks: Any) -> HookPair:
    if isinstance(hooks, tuple) and len(hooks) == 2:
        pair = HookPair(*hooks)
    else:
        pair = HookPair(getattr(hooks, "pack_hook", None), getattr(hooks, "unpack_hook", None))  # type: ignore[arg-type]
    if not callable(pair.pack) or not callable(pair.unpack):
        raise HookTypeError(
            f"compose: got {type(hooks).__name__} as {who}; wanted an object with pack_hook and unpack_hook, such as "
            "saved_tensors_hooks(...) or save_on_disk(...), or a tuple of two functions (pack, unpack)"
        )
    if getattr(hooks, "only", None) is not None:
        raise HookTypeError(f"compose: got {who} with only=; wanted it without, give only= to compose")
    return pair
