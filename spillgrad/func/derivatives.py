"""Functions that return the derivatives of a function. Arguments may be nested dicts, lists and tuples of tensors.

Source: torch.func.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from spillgrad.errors import ArgumentError, GraphError, OperandError, ShapeError
from spillgrad.func.recorded_call import Argnums, RecordedCall, unit
from spillgrad.func.trees import leaves, rebuilt
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.creation import ones_like, zeros_like
from spillgrad.ops.join_split import stack
from spillgrad.ops.shape import reshape
from spillgrad.tensor import Tensor

__all__ = ["grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "vjp"]

Function = Callable[..., Any]


def grad_and_value(func: Function, argnums: Argnums = 0, has_aux: bool = False) -> Function:
    """Return a function of the same arguments that returns (gradient, value) of `func`, whose result is one number.

    The gradient has the structure of the argument number `argnums`; for a tuple of numbers it is a tuple. With
    `has_aux`, `func` returns (output, aux), and the result is (gradient, (output, aux)).
    """

    @functools.wraps(func)
    def computed(*arguments: Any, **options: Any) -> Any:
        call = RecordedCall("grad_and_value(f)(*args)", func, arguments, argnums, options, has_aux)
        output = call.output
        if not isinstance(output, Tensor):
            raise OperandError(f"grad_and_value(f)(*args): Expected f(*args) to return a tensor, got {type(output)}")
        if output.ndim:
            raise ShapeError(
                f"grad_and_value(f)(*args): Expected f(*args) to return a scalar tensor, got tensor with {output.ndim} "
                "dims. Maybe you wanted to use the vjp or jacrev APIs instead?"
            )
        if output.is_complex():
            raise GraphError(
                "grad_and_value(f)(*args): grad can be implicitly created only for real scalar outputs but got "
                f"{output.dtype}; take its real part or abs(), or use vjp"
            )
        gradient = rebuilt(call.tree, iter(call.pull([ones_like(output)])))
        value = call.plain(output)
        return gradient, (value, call.aux) if has_aux else value

    return computed


def grad(func: Function, argnums: Argnums = 0, has_aux: bool = False) -> Function:
    """Return a function of the same arguments that returns the gradient of `func`, whose result is one number.

    The gradient has the structure of the argument number `argnums`; for a tuple of numbers it is a tuple. With
    `has_aux`, `func` returns (output, aux), and the result is (gradient, aux).
    """
    both = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def computed(*arguments: Any, **options: Any) -> Any:
        gradient, value = both(*arguments, **options)
        return (gradient, value[1]) if has_aux else gradient

    return computed


def _matching(who: str, what: str, vectors: Any, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the leaves of `vectors`. Raises ShapeError unless they have the shapes of `tensors`."""
    found = leaves(vectors)
    got, wanted = ([getattr(tensor, "shape", type(tensor)) for tensor in group] for group in (found, tensors))
    if got != wanted:
        raise ShapeError(f"{who}: Expected {what} of the shapes {wanted}, got {got}")
    return found


def vjp(func: Function, *primals: Any, has_aux: bool = False) -> Any:
    """Return (output, function), or (output, function, aux); the function takes v and returns vᵀ J.

    v has the structure of the output. The product is a tuple with an entry for each primal.
    """
    call = RecordedCall("vjp", func, primals, tuple(range(len(primals))), {}, has_aux)

    def pulled(*cotangents: Any) -> Any:
        given = cotangents[0] if len(cotangents) == 1 else cotangents
        vectors = _matching("vjp", "cotangents", given, call.outputs)
        return rebuilt(call.tree, iter(call.pull(vectors)))

    output = call.plain(call.output)
    return (output, pulled, call.aux) if has_aux else (output, pulled)


def jvp(func: Function, primals: Any, tangents: Any, *, strict: bool = False, has_aux: bool = False) -> Any:
    """Return (output, J v), or (output, J v, aux), where v, the `tangents`, has the structure of `primals`.

    Two backwards compute J v, whatever the number of outputs. Raises ArgumentError for `strict`.
    """
    if strict:
        raise ArgumentError("jvp: got strict=True; an output that depends on no input has a product of zeros")
    if not isinstance(primals, tuple) or not primals:
        raise OperandError("jvp(f, primals, tangents): Expected primals to be a tuple, and not an empty one")
    call = RecordedCall("jvp", func, primals, tuple(range(len(primals))), {}, has_aux)
    vectors = [
        to_dtype(vector, x.numpy_dtype) if x.is_complex() else vector
        for x, vector in zip(call.inputs, _matching("jvp", "tangents", tangents, call.inputs), strict=True)
    ]
    product = rebuilt(call.output, iter(call.push(vectors)))
    output = call.plain(call.output)
    return (output, product, call.aux) if has_aux else (output, product)


def _jacobian(
    who: str, func: Function, argnums: Argnums, has_aux: bool, blocks: Callable[[RecordedCall], list[list[Tensor]]]
) -> Function:
    @functools.wraps(func)
    def computed(*arguments: Any, **options: Any) -> Any:
        call = RecordedCall(who, func, arguments, argnums, options, has_aux)
        for what, tensors in (("inputs", call.inputs), ("outputs", call.outputs)):
            for place, tensor in enumerate(tensors):
                if tensor.is_complex():
                    raise GraphError(
                        f"{who}: Expected all {what} to be real but received complex tensor at flattened input idx: "
                        f"{place}; use view_as_real"
                    )
        rows = [rebuilt(call.tree, iter(row)) for row in blocks(call)]
        found = rebuilt(call.output, iter(rows))
        return (found, call.aux) if has_aux else found

    return computed


def _joined(parts: list[Tensor], dim: int, output: Tensor, x: Tensor) -> Tensor:
    shape = (*output.shape, *x.shape)
    return reshape(stack(parts, dim), shape) if parts else zeros_like(output).new_zeros(shape)


def _by_rows(call: RecordedCall) -> list[list[Tensor]]:
    """Return the derivatives of each output by each input, one backward for each element of the outputs."""
    blocks = []
    for number, output in enumerate(call.outputs):
        rows = []
        for place in range(output.numel()):
            vectors = [unit(o, place) if i == number else zeros_like(o) for i, o in enumerate(call.outputs)]
            rows.append(call.pull(vectors))
        blocks.append([_joined([row[j] for row in rows], 0, output, x) for j, x in enumerate(call.inputs)])
    return blocks


def _by_columns(call: RecordedCall) -> list[list[Tensor]]:
    """Return the derivatives of each output by each input, one backward for each element of the inputs."""
    columns = []
    for number, x in enumerate(call.inputs):
        found = []
        for place in range(x.numel()):
            found.append(
                call.push([unit(v, place) if j == number else zeros_like(v) for j, v in enumerate(call.inputs)])
            )
        columns.append(found)
    return [
        [_joined([column[i] for column in columns[j]], -1, output, x) for j, x in enumerate(call.inputs)]
        for i, output in enumerate(call.outputs)
    ]


def jacrev(func: Function, argnums: Argnums = 0, *, has_aux: bool = False, chunk_size: int | None = None) -> Function:
    """Return a function that returns all derivatives of `func`, by one backward for each element of the outputs.

    Shapes: the output's, then the input's. The result has the structure of the output, with that of the argument in
    place of each tensor. `chunk_size` changes nothing: rows are computed one by one.
    """
    return _jacobian("jacrev", func, argnums, has_aux, _by_rows)


def jacfwd(func: Function, argnums: Argnums = 0, has_aux: bool = False, *, randomness: str = "error") -> Function:
    """Return a function that returns what `jacrev` does, by one backward for each element of the inputs.

    `randomness` changes nothing: the function is called once.
    """
    return _jacobian("jacfwd", func, argnums, has_aux, _by_columns)


def hessian(func: Function, argnums: Argnums = 0) -> Function:
    """Return a function that returns the second derivatives of `func`: `jacfwd` of `jacrev`."""
    return jacfwd(jacrev(func, argnums), argnums)
