"""A value saved for backward: packed when its operation has finished, unpacked when backward reaches the node."""

import weakref
from typing import Any

import numpy as np

from spillgrad.autograd.core import hooks
from spillgrad.autograd.core.grad_mode import no_grad, state
from spillgrad.autograd.core.node import NO_EDGE, AccumulateGrad, Edge, Node, tensor_type
from spillgrad.errors import GraphError, HookTypeError, InferenceTensorError, SavedTensorError

FREED = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have "
    "already been freed). "
    "Saved values of the graph are freed by backward() or grad(). Specify retain_graph=True to go through it again."
)


class SavedTensor:
    """One saved value: an alias without graph or a packed object, and the value's place in the graph.

    Parameters
    ----------
    tensor : Tensor
        Value to save.
    operation : str
        Name of the operation that saves it.
    slot : str
        The operation's name for the value.
    edge : tuple of Node or None, int
        Where a gradient of the value flows.
    node : Node, optional
        Node that the value is an output of; the gradient then flows to this output, not to `edge`.
    output_nr : int, default 0
        Number of the output.

    Notes
    -----
    Invariant: this object refers to its node only weakly, and never to a tensor that keeps its own graph alive, so no
    reference cycle can form. A leaf itself is kept; of any other tensor, only an alias is kept.
    """

    # Few values set any of these; defaults on the class make saving cheaper.
    _freed = False
    _leaf: Any = None
    _node: Any = None
    _output_nr = 0
    _edge = NO_EDGE
    _original: Any = None
    _packed: Any = None
    _unpack: Any = None

    def __init__(
        self, tensor: Any, operation: str, slot: str, edge: Edge, node: Node | None = None, output_nr: int = 0
    ) -> None:  # fmt: skip
        """Save `tensor`. Its gradient flows to `edge` or, if `node` is given, to output `output_nr` of `node`."""
        self.operation = operation
        self.slot = slot
        self._array = tensor._array
        self._storage = storage = tensor._storage
        try:
            self._version = storage.version
        except InferenceTensorError:
            raise InferenceTensorError(
                "Inference tensors cannot be saved for backward. Please do not use Tensors created in inference mode "
                "in computation tracked by autograd. To work around this, you can make a clone to get a normal tensor "
                f"and use it in autograd, or use no_grad() instead of inference_mode(): {operation} saves '{slot}'"
            ) from None
        storage.aliased = True
        if node is not None:
            self._node = weakref.ref(node)
            self._output_nr = output_nr
        elif type(edge[0]) is AccumulateGrad:
            self._leaf = tensor
        else:
            self._original = weakref.ref(tensor)
            self._edge = edge

    def pack(self, pairs: list[hooks.HookPair] | None = None) -> None:
        """Pack the value with the innermost pair of hooks that takes it.

        If no pair takes the value, keep it unchanged. But if the value's memory is in a store, keep only an object by
        which the store finds the value again.

        Parameters
        ----------
        pairs : list of HookPair, optional
            Pairs of hooks, the innermost last; the active ones, by default.
        """
        pair = hooks.chosen(self._alias, self.operation, self.slot, pairs)
        if pair is not None:
            self.register_hooks(pair.pack, pair.unpack)
        elif self._storage.offloaded:
            self.register_hooks(self._storage.view_of, lambda view: view.tensor())

    def register_hooks(self, pack_hook: Any, unpack_hook: Any) -> None:
        """Pack the value now with `pack_hook`; `unpack_hook` will unpack it.

        Parameters
        ----------
        pack_hook : callable
            Takes a tensor, and returns the object to keep.
        unpack_hook : callable
            Takes the packed object, and returns a tensor of the same shape, dtype and device.

        Raises
        ------
        GraphError
            If hooks were set before, if the value was freed or changed in place, or if the pack hook changes its input.
        HookTypeError
            For a hook that cannot be called.
        """
        if self._freed:
            raise SavedTensorError(f"Calling register_hooks on a saved tensor after it has been freed. {FREED}")
        if self._unpack is not None:
            raise GraphError(
                "Calling register_hooks on a saved tensor whose hooks have already been set: only one pair of hooks is "
                "allowed at a time; chain two with compose()"
            )
        if not callable(pack_hook) or not callable(unpack_hook):
            raise HookTypeError(
                f"register_hooks: got {type(pack_hook).__name__} and {type(unpack_hook).__name__}; both hooks "
                f"must be callable"
            )
        value, storage = self._value, self._storage
        version = storage.version
        if version != self._version:  # the change could not be detected later, in the packed object
            raise self._changed(storage, value.shape, value.dtype)
        outer = hooks.packing()
        hooks.set_packing(self.operation, self.slot)
        try:
            with no_grad():
                packed = pack_hook(self._alias())
        finally:
            hooks.set_packing(*outer)
        if storage.version != version:
            raise SavedTensorError(
                f"{self.operation}: A saved tensor pack hook is modifying its input in place (slot '{self.slot}'); "
                "no in-place operations may change what a pack hook is given: work on a clone() of it"
            )
        self._packed = packed
        self._unpack = unpack_hook
        self._like = (value.shape, value.dtype, value.device)
        self._storage = weakref.ref(storage)  # weak: a value packed to disk must not stay in memory
        self._array = None

    @property
    def _value(self) -> Any:
        """The value as a tensor without graph, or the leaf itself. Valid only if no hook has packed the value."""
        return self._leaf if self._is_leaf else tensor_type().wrap(self._array, self._storage)

    def _alias(self) -> Any:
        return self._value.alias()

    @property
    def _is_leaf(self) -> bool:
        """Whether the value is a leaf whose memory has not been replaced."""
        return self._leaf is not None and self._has_its_memory(self._leaf)

    def _has_its_memory(self, original: Any) -> bool:
        """Return whether `original` and its base still have the saved memory. Assigning to `data` replaces the memory.

        If only the base's memory was replaced, the place of `original` in the graph no longer fits the saved values.
        """
        base = original._base
        return original._array is self._array and (base is None or base._storage is self._storage)

    @property
    def unpack_hook(self) -> Any:
        """The hook that will unpack the value, or None."""
        return self._unpack

    @property
    def data(self) -> Any:
        """The object that is kept: the packed object, or the tensor if no hook packed it."""
        if self._freed:
            raise SavedTensorError(FREED)
        return self._value if self._unpack is None else self._packed

    def release(self) -> None:
        """Free the value."""
        self._freed = True
        self._array = self._storage = self._packed = self._leaf = None
        self._edge = NO_EDGE

    def unpack(self, connected: bool = True) -> Any:
        """Return the saved tensor, connected to its former place in the graph.

        Exceptions of the hook pass through unchanged.

        Parameters
        ----------
        connected : bool, default True
            Whether a gradient of the returned tensor must flow to where the saved tensor came from. A derivative that
            is not recorded needs no such place, and takes less time without.

        Returns
        -------
        Tensor
            Of the saved values.

        Raises
        ------
        SavedTensorError
            If the value was freed or modified in place, or if the unpack hook returned another shape, dtype or device.
        HookTypeError
            If the unpack hook returned no tensor.
        """
        if self._freed:
            raise SavedTensorError(FREED)
        if self._unpack is None:
            if self._storage.version != self._version:
                raise self._changed(self._storage, self._array.shape, self._array.dtype)
            if self._is_leaf:
                return self._leaf
            original = self._original() if self._original is not None else None
            if original is not None and self._has_its_memory(original):
                if original.gradient_edge() == self._edge:  # it is still where it was in the graph
                    return original
                if original._detached:
                    raise self._detached()
            return self._connected(self._value) if connected else self._value
        mode = state.enabled
        value = self._unpack(self._packed)
        state.enabled = mode  # the hook may have switched it, which must not affect the derivative
        if not isinstance(value, tensor_type()):
            raise HookTypeError(
                f"{self.operation}: Output of saved tensor unpack_hook expected to be a Tensor but got result of type "
                f"{type(value).__name__} (slot '{self.slot}')"
            )
        shape, dtype, device = self._like
        if (value.shape, value.dtype, value.device) != (shape, dtype, device):
            raise SavedTensorError(
                f"{self.operation}: slot '{self.slot}' was packed as {shape} {dtype} on {device} and came back as "
                f"{value.shape} {value.dtype} on {value.device}; the unpack hook must return what was packed"
            )
        storage = self._storage()
        # A copy stays valid when the original changes; a tensor over the same memory does not.
        if storage is not None and storage.version != self._version and np.may_share_memory(value.array, storage.array):
            raise self._changed(storage, shape, dtype)
        return self._connected(value)

    def _changed(self, storage: Any, shape: tuple[int, ...], dtype: Any) -> SavedTensorError:
        earlier = storage.earlier_versions
        return SavedTensorError(
            f"one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"{dtype} {shape}, saved by {self.operation} as '{self.slot}', is at version {earlier + storage.version}; "
            f"expected version {earlier + self._version} instead. Clone it before changing it, or use the out-of-place "
            "operation"
        )

    def _detached(self) -> SavedTensorError:
        return SavedTensorError(
            f"Trying to use a saved tensor that has been detached in-place, by detach_(): {self.operation} saved it as "
            f"'{self.slot}'; use detach(), which leaves the tensor in the graph"
        )

    def _connected(self, value: Any) -> Any:
        if self._leaf is not None:
            return value.alias(self._leaf.gradient_edge())
        if self._node is not None:
            node = self._node()
            return value.alias() if node is None else value.alias((node, self._output_nr))
        return value.alias(self._edge)


class SavedNone(SavedTensor):
    """The placeholder for an optional tensor that was not given; there is nothing to pack."""

    data = None
    unpack_hook = None

    def __init__(self, operation: str, slot: str) -> None:
        self.operation = operation
        self.slot = slot

    def register_hooks(self, pack_hook: Any, unpack_hook: Any) -> None:
        """Raise GraphError: there is no tensor."""
        raise GraphError(
            "Calling register_hooks on a saved tensor with value None is forbidden: "
            f"{self.operation} was given no '{self.slot}'; look at `data` first"
        )

    def unpack(self, connected: bool = True) -> None:
        """Return None."""

    def release(self) -> None:
        """Do nothing: there is nothing to free."""
