"""A call of a function on fresh leaves in place of its arguments, by which its results can be differentiated."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from spillgrad.autograd.core.grad_mode import enable_grad, is_recording
from spillgrad.autograd.core.node import AccumulateGrad
from spillgrad.autograd.differentiate import grad
from spillgrad.device.device import moved
from spillgrad.errors import ArgumentError, OperandError
from spillgrad.func.trees import leaves, mapped, rebuilt
from spillgrad.ops.creation import zeros_like
from spillgrad.ops.shape import view
from spillgrad.tensor import Tensor

Argnums = int | tuple[int, ...]

# The leaves that calls made for themselves, by id, once the function has returned: no caller can ask for a derivative
# by them, so a result that depends on no other leaf needs no graph.
_done: WeakValueDictionary[int, Tensor] = WeakValueDictionary()


class RecordedCall:
    """The outputs of `function`, called on aliases of its arguments, and products with its Jacobian.

    Results carry a graph only if they depend on other tensors that require a gradient: on arguments or vectors that do,
    on tensors that the function captured, or on the leaves of an enclosing transform.
    """

    def __init__(
        self, who: str, function: Callable[..., Any], arguments: Sequence[Any], argnums: Argnums,
        options: dict[str, Any], has_aux: bool,
    ) -> None:  # fmt: skip
        self.who = who
        outer = is_recording()
        with enable_grad():
            given = [arguments[number] for number in _numbers(who, argnums, len(arguments))]
            self.inputs = [self._fresh(leaf) for leaf in leaves(given)]
            fresh = rebuilt(given, iter(self.inputs))
            self.tree = fresh[0] if isinstance(argnums, int) else tuple(fresh)
            called = list(arguments)
            for number, value in zip(_numbers(who, argnums, len(arguments)), fresh, strict=True):
                called[number] = value
            self.output, self.aux = self._output(function(*called, **options), has_aux)
        self.outputs: list[Tensor] = leaves(self.output)
        for output in self.outputs:
            if not isinstance(output, Tensor):
                raise OperandError(f"{who}: Expected f(*args) to return only tensors, got type {type(output).__name__}")
        _end(leaf for leaf in self.inputs if leaf.is_leaf)
        self.keeps_graph = outer and self._depends_on_others(self.outputs)
        self._pulled_duals: tuple[list[Tensor], list[Tensor]] | None = None

    def _fresh(self, leaf: Any) -> Tensor:
        if not isinstance(leaf, Tensor):
            raise OperandError(
                f"{self.who}: got {type(leaf).__name__} in an argument to differentiate by; wanted tensors"
            )
        return view(leaf, leaf.shape) if leaf.requires_grad else leaf.detach().requires_grad_()

    def _output(self, result: Any, has_aux: bool) -> tuple[Any, Any]:
        if not has_aux:
            return result, None
        if not (isinstance(result, tuple) and len(result) == 2):
            raise OperandError(f"{self.who}: output of function f should be a tuple: (output, aux) if has_aux is True")
        return result[0], self.plain(result[1])

    def plain(self, tree: Any) -> Any:
        """Return tensors without the graph of the call, if it leads to nothing but the call's own leaves."""

        def detached(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or self._depends_on_others([leaf]):
                return leaf
            return leaf.detach()

        return mapped(detached, tree)

    def _depends_on_others(self, tensors: Sequence[Tensor]) -> bool:
        own = {id(leaf) for leaf in self.inputs}
        return any(id(leaf) not in own and id(leaf) not in _done for leaf in _leaves_behind(tensors))

    def _recorded(self, vectors: Sequence[Tensor]) -> bool:
        """Return whether the product with `vectors` carries a graph."""
        return self.keeps_graph or (is_recording() and any(vector.requires_grad for vector in vectors))

    def pull(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        """Return vᵀ J for each input, for a vector v of each output."""
        return self._differentiated(self.outputs, self.inputs, vectors, self._recorded(vectors))

    def push(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        """Return J v for each output, for a vector v of each input: the derivative of uᵀ J v by u."""
        if self._pulled_duals is None:
            with enable_grad():
                duals = [zeros_like(output).requires_grad_() for output in self.outputs]
            _end(duals)
            self._pulled_duals = duals, self._differentiated(self.outputs, self.inputs, duals, True)
        duals, pulled = self._pulled_duals
        return self._differentiated(pulled, duals, vectors, self._recorded(vectors))

    @staticmethod
    def _differentiated(
        roots: Sequence[Tensor], inputs: Sequence[Tensor], vectors: Sequence[Tensor], create_graph: bool
    ) -> list[Tensor]:  # fmt: skip
        pairs = [(root, vector) for root, vector in zip(roots, vectors, strict=True) if root.requires_grad]
        if not pairs:
            return [zeros_like(x) for x in inputs]
        with enable_grad():
            found = grad(
                [root for root, _ in pairs], list(inputs), [vector for _, vector in pairs], retain_graph=True,
                create_graph=create_graph, allow_unused=True,
            )  # fmt: skip
        return [zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]


def _end(leaves_of_a_call: Iterable[Tensor]) -> None:
    _done.update((id(leaf), leaf) for leaf in leaves_of_a_call)


def _numbers(who: str, argnums: Argnums, count: int) -> tuple[int, ...]:
    """Return the positions of the chosen arguments. Raises ArgumentError for one that is not there, or named twice."""
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    for number in numbers:
        if not -count <= number < count:
            raise ArgumentError(f"{who}: Got argnum={number}, but only {count} positional inputs")
    found = tuple(number % count for number in numbers)
    if not found or len(set(found)) != len(found):
        raise ArgumentError(f"{who}: argnums must be non-empty and unique, got {argnums}")
    return found


def _leaves_behind(tensors: Iterable[Tensor]) -> Iterable[Tensor]:
    """Yield each tensor to whose ``.grad`` a backward from `tensors` would add."""
    waiting = [tensor.gradient_edge()[0] for tensor in tensors]
    seen: set[int] = set()
    while waiting:
        node = waiting.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, AccumulateGrad):
            yield node.variable
        else:
            waiting.extend(source for source, _ in node.next_functions)


def unit(like: Tensor, place: int) -> Tensor:
    """Return zeros in the shape of `like`, with a single 1 at index `place` of the flattened tensor."""
    values = np.zeros(like.shape, like.numpy_dtype)
    values.reshape(-1)[place] = 1
    return Tensor.wrap(moved(values, like.device))
