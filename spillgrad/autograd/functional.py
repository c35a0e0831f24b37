"""Whole derivatives of functions of tensors: Jacobians, Hessians and their products with vectors.

`func` takes tensors and returns a tensor or a tuple of them; `inputs` is a tensor or a tuple, and results have the
structure of the inputs and outputs they belong to. An output that does not depend on an input has a derivative of
zeros, or raises GraphError with `strict=True`. With both `strict=True` and `create_graph=True`, a derivative that
cannot be differentiated further also raises GraphError. Only with `create_graph=True` do results carry a graph, back to
the inputs that require a gradient.

Source: torch.autograd.functional.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from spillgrad.autograd.core.grad_mode import enable_grad
from spillgrad.autograd.differentiate import grad
from spillgrad.device.device import filled, moved
from spillgrad.errors import ArgumentError, GraphError, OperandError, ShapeError
from spillgrad.ops.creation import ones_like, zeros_like
from spillgrad.ops.join_split import stack
from spillgrad.ops.shape import reshape, view
from spillgrad.tensor import Tensor

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]

Function = Callable[..., Any]
Tensors = Tensor | tuple[Tensor, ...]
_STRATEGIES = ("reverse-mode", "forward-mode")


class _Group(NamedTuple):
    """Tensors, and whether they were given as a tuple or list, not alone."""

    tensors: tuple[Tensor, ...]
    is_tuple: bool

    @classmethod
    def of(cls, who: str, what: str, value: Any) -> "_Group":
        is_tuple = isinstance(value, tuple | list)
        tensors = tuple(value) if is_tuple else (value,)
        for i, tensor in enumerate(tensors):
            if not isinstance(tensor, Tensor):
                place = f" at index {i}" if is_tuple else ""
                raise OperandError(
                    f"{who}: got {type(tensor).__name__} in the {what}{place}; wanted a tensor or a tuple of tensors"
                )
        return cls(tensors, is_tuple)

    def like(self, values: Sequence[Any]) -> Any:
        """Return `values`, one for each tensor: as a tuple if the tensors were a tuple, else the only value."""
        return tuple(values) if self.is_tuple else values[0]


class _Call:
    """A call of the user's function on aliases of the inputs, so that tensors the function captured are constants."""

    def __init__(self, who: str, func: Function, inputs: Any, create_graph: bool, strict: bool) -> None:
        self.who, self.create_graph, self.strict = who, create_graph, strict
        given = _Group.of(who, "inputs", inputs)
        self.inputs = _Group(tuple(_fresh(tensor, create_graph) for tensor in given.tensors), given.is_tuple)
        result = func(*self.inputs.tensors)
        self.outputs = _Group.of(who, "outputs of the function", result)
        if strict:
            for i, output in enumerate(self.outputs.tensors):
                if not output.requires_grad:
                    raise GraphError(f"{who}: output {i} does not depend on the inputs, which strict=True asks for")

    def vector(self, v: Any, like: _Group) -> tuple[Tensor, ...]:
        """Return the vector of a product: `v`, which must have the shapes of `like`; if `v` is None, a single 1."""
        if v is None:
            if len(like.tensors) != 1 or like.tensors[0].numel() != 1:
                raise GraphError(
                    f"{self.who}: v can only be left out for a single tensor with a single element; give one of shape "
                    f"{', '.join(str(tensor.shape) for tensor in like.tensors)}"
                )
            return (ones_like(like.tensors[0]),)
        vector = _Group.of(self.who, "vector v", v)
        got, wanted = ([tensor.shape for tensor in group.tensors] for group in (vector, like))
        if got != wanted:
            raise ShapeError(
                f"{self.who}: got v of {', '.join(map(str, got))}; wanted {', '.join(map(str, wanted))}, as what it is "
                "multiplied with"
            )
        return vector.tensors if self.create_graph else tuple(tensor.detach() for tensor in vector.tensors)

    def scalar(self) -> Tensor:
        """Return the only output. Raises GraphError if there are several, or if it has more than one element."""
        if self.outputs.is_tuple or self.outputs.tensors[0].numel() != 1:
            got = ", ".join(str(tensor.shape) for tensor in self.outputs.tensors)
            raise GraphError(
                f"{self.who}: the function returned {'a tuple of ' if self.outputs.is_tuple else ''}{got}; it should "
                "return a single tensor with a single element"
            )
        return self.outputs.tensors[0]

    def gradient(self) -> list[Tensor]:
        """Return the gradients of the only output, which can be differentiated again; zeros for an unused input."""
        output = self.scalar()
        found = _pulled((output,), self.inputs.tensors, (ones_like(output),), create_graph=True)
        if self.strict:
            for i, gradient in enumerate(found):
                if gradient is None or not gradient.requires_grad:
                    raise GraphError(
                        f"{self.who}: the gradient by input {i} does not depend on the inputs, which strict=True asks "
                        "for: the function must be twice differentiable, and not linear"
                    )
        return self.filled(found, self.inputs.tensors, strict=False)

    def filled(self, found: Sequence[Any], like: Sequence[Tensor], strict: bool | None = None) -> list[Tensor]:
        """Return the derivatives `found`, with zeros in place of None. If strict, raise GraphError for None instead."""
        results: list[Tensor] = []
        for i, (derivative, tensor) in enumerate(zip(found, like, strict=True)):
            if self.strict if strict is None else strict:
                if derivative is None:
                    raise GraphError(
                        f"{self.who}: nothing depends on entry {i}, which strict=True asks for; with strict=False its "
                        "derivative is zeros"
                    )
                if self.create_graph and not derivative.requires_grad:
                    raise GraphError(
                        f"{self.who}: the derivative by entry {i} does not depend on the inputs, which strict=True "
                        "with create_graph=True asks for"
                    )
            results.append(zeros_like(tensor) if derivative is None else derivative)
        return results

    def finished(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return `tensors` as a list, detached from the graph unless `create_graph` is set."""
        return list(tensors) if self.create_graph else [tensor.detach() for tensor in tensors]


def _fresh(tensor: Tensor, create_graph: bool) -> Tensor:
    """Return an alias of `tensor` that requires a gradient. With `create_graph`, it stays connected to the graph."""
    if create_graph and tensor.requires_grad:
        return view(tensor, tensor.shape)
    return tensor.detach().requires_grad_()


def _unit(like: Tensor, place: int) -> Tensor:
    """Return zeros in the shape of `like`, with a single 1 at index `place` of the flattened tensor."""
    values = np.zeros(like.shape, like.numpy_dtype)
    values.reshape(-1)[place] = 1
    return Tensor.wrap(moved(values, like.device))


def _pulled(
    outputs: Sequence[Tensor | None], inputs: Sequence[Tensor], vectors: Sequence[Tensor], *, create_graph: bool,
    retain_graph: bool | None = None,
) -> list[Any]:  # fmt: skip
    """Return vᵀ J for each input; None for an input on which no output depends."""
    pairs = [(o, v) for o, v in zip(outputs, vectors, strict=True) if o is not None and o.requires_grad]
    if not pairs:
        return [None] * len(inputs)
    roots, seeds = zip(*pairs, strict=True)
    return list(grad(roots, list(inputs), list(seeds), retain_graph, create_graph, allow_unused=True))


def vjp(
    func: Function, inputs: Tensors, v: Tensors | None = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:  # fmt: skip
    """Return ``func(*inputs)`` and vᵀ J, where J is the Jacobian.

    Parameters
    ----------
    func : callable
        Function of the inputs that returns a tensor or a tuple of them.
    inputs : Tensor or tuple of Tensor
        Where to differentiate.
    v : Tensor or tuple of Tensor, optional
        Vector, in the shapes of the outputs; may be left out for an output of one element.
    create_graph : bool, default False
        Whether the results can be differentiated; else they are detached from the graph.
    strict : bool, default False
        Whether to raise an error for a derivative that is zero because nothing depends on the input; else it is zeros.

    Returns
    -------
    tuple
        ``func(*inputs)``, and vᵀ J in the shapes of the inputs.

    Raises
    ------
    GraphError
        With `strict`, for an output that does not depend on the inputs, or an input that nothing depends on; with
        `create_graph` too, for a derivative that does not depend on the inputs.
    """
    with enable_grad():
        call = _Call("vjp", func, inputs, create_graph, strict)
        vector = call.vector(v, call.outputs)
        found = _pulled(call.outputs.tensors, call.inputs.tensors, vector, create_graph=create_graph)
        product = call.filled(found, call.inputs.tensors)
    return call.outputs.like(call.finished(call.outputs.tensors)), call.inputs.like(call.finished(product))


def jvp(
    func: Function, inputs: Tensors, v: Tensors | None = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:  # fmt: skip
    """Return ``func(*inputs)`` and J v, where J is the Jacobian.

    J v is computed as the derivative of uᵀ J v with respect to u, by two backwards, whatever the number of outputs.

    Parameters
    ----------
    func : callable
        Function of the inputs that returns a tensor or a tuple of them.
    inputs : Tensor or tuple of Tensor
        Where to differentiate.
    v : Tensor or tuple of Tensor, optional
        Vector, in the shapes of the inputs; may be left out for an input of one element.
    create_graph : bool, default False
        Whether the results can be differentiated; else they are detached from the graph.
    strict : bool, default False
        Whether to raise an error for a derivative that is zero because nothing depends on the input; else it is zeros.

    Returns
    -------
    tuple
        ``func(*inputs)``, and J v in the shapes of the outputs.

    Raises
    ------
    GraphError
        With `strict`, for an output that does not depend on the inputs, or an input that nothing depends on; with
        `create_graph` too, for a derivative that does not depend on the inputs.
    """
    with enable_grad():
        call = _Call("jvp", func, inputs, create_graph, strict)
        vector = call.vector(v, call.inputs)
        pushed = _Pushed(call.outputs.tensors, call.inputs.tensors)
        pushed.check(call)
        product = call.filled(pushed(vector, create_graph=create_graph), call.outputs.tensors)
    return call.outputs.like(call.finished(call.outputs.tensors)), call.outputs.like(call.finished(product))


class _Pushed:
    """Computes J v for any v: uᵀ J is linear in u, so its derivative with respect to u, times v, is J v for every u."""

    def __init__(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        self._duals = [zeros_like(output).requires_grad_() for output in outputs]
        self._pulled = _pulled(outputs, inputs, self._duals, create_graph=True)

    def check(self, call: _Call) -> None:
        """If the call is strict, raise GraphError for an input on which no output depends."""
        for i, pulled in enumerate(self._pulled):
            if call.strict and pulled is None:
                raise GraphError(f"{call.who}: nothing depends on input {i}, which strict=True asks for")

    def __call__(self, vectors: Sequence[Tensor], *, create_graph: bool, retain_graph: bool | None = None) -> list[Any]:
        """Return J v for each output; None for an output that depends on no input."""
        return _pulled(self._pulled, self._duals, vectors, create_graph=create_graph, retain_graph=retain_graph)

    def by_element(self, position: int, place: int, *, create_graph: bool) -> list[Any]:
        """Return, for each output, its derivative by element `place` of the input at index `position`."""
        source = self._pulled[position]
        if source is None:
            return [None] * len(self._duals)
        unit = _unit(source, place)
        return _pulled([source], self._duals, [unit], create_graph=create_graph, retain_graph=True)


def jacobian(
    func: Function,
    inputs: Tensors,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """Return all derivatives of the outputs of a function by its inputs.

    Parameters
    ----------
    func : callable
        Function of the inputs that returns a tensor or a tuple of them.
    inputs : Tensor or tuple of Tensor
        Where to differentiate.
    create_graph : bool, default False
        Whether the results can be differentiated; else they are detached from the graph.
    strict : bool, default False
        Whether to raise an error for a derivative that is zero because nothing depends on the input; else it is zeros.
    vectorize : bool, default False
        Changes nothing: the same backwards run.
    strategy : {"reverse-mode", "forward-mode"}, default "reverse-mode"
        "reverse-mode" runs one backward for each element of the outputs; "forward-mode" runs one, through a recorded
        backward, for each element of the inputs. Choose the mode with fewer elements.

    Returns
    -------
    Tensor or tuple
        ``result[i][j]`` holds the derivatives of output i by input j, in the shape of output i, then that of input j.
        If outputs or inputs are a single tensor, that level of the result is left out.

    Raises
    ------
    ArgumentError
        For another strategy.
    GraphError
        For complex outputs; in "forward-mode", for complex inputs. With `strict`, for an output that does not depend on
        the inputs, or an input that nothing depends on; with `create_graph` too, for a derivative that does not depend
        on the inputs.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.autograd.functional.jacobian(lambda x: x**2, sg.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """
    _check_strategy("jacobian", strategy)
    with enable_grad():
        call = _Call("jacobian", func, inputs, create_graph, strict)
        _require_real("jacobian", call.outputs.tensors if strategy == "reverse-mode" else call.inputs.tensors)
        blocks = (_by_rows if strategy == "reverse-mode" else _by_columns)(call)
    return call.outputs.like([call.inputs.like(call.finished(row)) for row in blocks])


def _check_strategy(who: str, strategy: str) -> None:
    if strategy not in _STRATEGIES:
        raise ArgumentError(f"{who}: got strategy {strategy!r}; wanted one of {', '.join(_STRATEGIES)}")


def _require_real(who: str, tensors: Sequence[Tensor]) -> None:
    """Raise GraphError for a complex tensor, whose elements have two derivatives each."""
    for tensor in tensors:
        if tensor.is_complex():
            raise GraphError(
                f"{who}: grad can be implicitly created only for real scalar outputs but got {tensor.dtype}; use "
                "view_as_real"
            )


def _by_rows(call: _Call) -> list[list[Tensor]]:
    blocks = []
    for output in call.outputs.tensors:
        rows = []
        for place in range(output.numel()):
            unit = _unit(output, place)
            found = _pulled([output], call.inputs.tensors, [unit], create_graph=call.create_graph, retain_graph=True)
            rows.append(call.filled(found, call.inputs.tensors))
        blocks.append([_joined([row[j] for row in rows], 0, output, x) for j, x in enumerate(call.inputs.tensors)])
    return blocks


def _by_columns(call: _Call) -> list[list[Tensor]]:
    pushed = _Pushed(call.outputs.tensors, call.inputs.tensors)
    columns: list[list[list[Tensor]]] = [
        [
            call.filled(pushed.by_element(j, place, create_graph=call.create_graph), call.outputs.tensors)
            for place in range(x.numel())
        ]
        for j, x in enumerate(call.inputs.tensors)
    ]
    return [
        [_joined([column[i] for column in columns[j]], -1, output, x) for j, x in enumerate(call.inputs.tensors)]
        for i, output in enumerate(call.outputs.tensors)
    ]


def _joined(parts: list[Tensor], dim: int, output: Tensor, x: Tensor) -> Tensor:
    """Stack `parts`, one for each element of `output` or of `x`, along `dim`: the derivatives of `output` by `x`."""
    shape = (*output.shape, *x.shape)
    return reshape(stack(parts, dim), shape) if parts else Tensor.wrap(filled(x.device, shape, x.dtype, 0))


def hessian(
    func: Function,
    inputs: Tensors,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """Return the second derivatives of the output of a function, which must have one element, by its inputs.

    The Hessian is the `jacobian` of the gradient.

    Parameters
    ----------
    func : callable
        Function of the inputs that returns a tensor or a tuple of them; the output must have one element.
    inputs : Tensor or tuple of Tensor
        Where to differentiate.
    create_graph : bool, default False
        Whether the results can be differentiated; else they are detached from the graph.
    strict : bool, default False
        Whether to raise an error for a derivative that is zero because nothing depends on the input; else it is zeros.
    vectorize : bool, default False
        Changes nothing: the same backwards run.
    outer_jacobian_strategy : {"reverse-mode", "forward-mode"}, default "reverse-mode"
        Strategy of the Jacobian.

    Returns
    -------
    Tensor or tuple
        ``result[i][j]`` holds the derivatives by input i and input j, in the shape of input i, then that of input j.
        For a single input tensor, the result is a tensor.

    Raises
    ------
    ArgumentError
        For another strategy.
    GraphError
        With `strict`, for an output that does not depend on the inputs, or an input that nothing depends on; with
        `create_graph` too, for a derivative that does not depend on the inputs.
    """
    _check_strategy("hessian", outer_jacobian_strategy)
    given = _Group.of("hessian", "inputs", inputs)

    def gradient(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(_Call("hessian", func, tensors, True, strict).gradient())

    rows = jacobian(gradient, given.tensors, create_graph, strict, vectorize, outer_jacobian_strategy)
    return given.like([given.like(row) for row in rows])


def vhp(
    func: Function, inputs: Tensors, v: Tensors | None = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:  # fmt: skip
    """Return ``func(*inputs)`` and vᵀ H, where H is the Hessian.

    Parameters
    ----------
    func : callable
        Function of the inputs that returns a tensor or a tuple of them; the output must have one element.
    inputs : Tensor or tuple of Tensor
        Where to differentiate.
    v : Tensor or tuple of Tensor, optional
        Vector, in the shapes of the inputs; may be left out for an input of one element.
    create_graph : bool, default False
        Whether the results can be differentiated; else they are detached from the graph.
    strict : bool, default False
        Whether to raise an error for a derivative that is zero because nothing depends on the input; else it is zeros.

    Returns
    -------
    tuple
        ``func(*inputs)``, and vᵀ H in the shapes of the inputs.

    Raises
    ------
    GraphError
        With `strict`, for an output that does not depend on the inputs, or an input that nothing depends on; with
        `create_graph` too, for a derivative that does not depend on the inputs.
    """
    with enable_grad():
        call = _Call("vhp", func, inputs, create_graph, strict)
        vector = call.vector(v, call.inputs)
        found = _pulled(call.gradient(), call.inputs.tensors, vector, create_graph=create_graph)
        product = call.filled(found, call.inputs.tensors)
    return call.outputs.like(call.finished(call.outputs.tensors)), call.inputs.like(call.finished(product))


def hvp(
    func: Function, inputs: Tensors, v: Tensors | None = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:  # fmt: skip
    """Return ``func(*inputs)`` and H v, where H is the Hessian.

    This takes three backwards. `vhp` takes two, and gives the same, because H is symmetric.

    Parameters
    ----------
    func : callable
        Function of the inputs that returns a tensor or a tuple of them; the output must have one element.
    inputs : Tensor or tuple of Tensor
        Where to differentiate.
    v : Tensor or tuple of Tensor, optional
        Vector, in the shapes of the inputs; may be left out for an input of one element.
    create_graph : bool, default False
        Whether the results can be differentiated; else they are detached from the graph.
    strict : bool, default False
        Whether to raise an error for a derivative that is zero because nothing depends on the input; else it is zeros.

    Returns
    -------
    tuple
        ``func(*inputs)``, and H v in the shapes of the inputs.

    Raises
    ------
    GraphError
        With `strict`, for an output that does not depend on the inputs, or an input that nothing depends on; with
        `create_graph` too, for a derivative that does not depend on the inputs.
    """
    with enable_grad():
        call = _Call("hvp", func, inputs, create_graph, strict)
        vector = call.vector(v, call.inputs)
        pushed = _Pushed(call.gradient(), call.inputs.tensors)
        product = call.filled(pushed(vector, create_graph=create_graph), call.inputs.tensors)
    return call.outputs.like(call.finished(call.outputs.tensors)), call.inputs.like(call.finished(product))
