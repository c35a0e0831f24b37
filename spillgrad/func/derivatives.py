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
    """Return a function that returns both the gradient and the value of `func`.

    Parameters
    ----------
    func : callable
        Returns one number, a real tensor of no dimensions; its arguments may be nested dicts, lists and tuples of
        tensors.
    argnums : int or tuple of int, default 0
        Which arguments to derive by.
    has_aux : bool, default False
        Whether `func` returns (output, aux), of which only the output is derived.

    Returns
    -------
    callable
        Takes the arguments of `func` and returns (gradient, value), with `has_aux` (gradient, (output, aux)). The
        gradient has the structure of the argument; for a tuple `argnums`, it is a tuple.

    Raises
    ------
    OperandError
        In a call, if the output is no tensor.
    ShapeError
        In a call, if the output has dimensions.
    GraphError
        In a call, if the output is complex.
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
    """Return a function that returns the gradient of `func`.

    Parameters
    ----------
    func : callable
        Returns one number, a real tensor of no dimensions; its arguments may be nested dicts, lists and tuples of
        tensors.
    argnums : int or tuple of int, default 0
        Which arguments to derive by.
    has_aux : bool, default False
        Whether `func` returns (output, aux), of which only the output is derived.

    Returns
    -------
    callable
        Takes the arguments of `func` and returns the gradient, with `has_aux` (gradient, aux). The gradient has the
        structure of the argument; for a tuple `argnums`, it is a tuple.

    Raises
    ------
    OperandError
        In a call, if the output is no tensor.
    ShapeError
        In a call, if the output has dimensions.
    GraphError
        In a call, if the output is complex.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.func.grad(lambda x: (x * x).sum())(sg.tensor([1.0, 2.0]))
    tensor([2., 4.])
    >>> second = sg.func.grad(sg.func.grad(lambda x: x**3))
    >>> second(sg.tensor(2.0))
    tensor(12.)
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
    """Return the output of `func`, and a function that multiplies a vector by the Jacobian: vᵀ J.

    Parameters
    ----------
    func : callable
        Its arguments and its output may be nested dicts, lists and tuples of tensors.
    *primals : object
        Arguments of `func`.
    has_aux : bool, default False
        Whether `func` returns (output, aux), of which only the output is derived.

    Returns
    -------
    output : object
        What `func` returned.
    function : callable
        Takes v, which has the structure of the output; returns a tuple with an entry for each primal.
    aux : object
        With `has_aux`, what `func` returned besides.
    """
    call = RecordedCall("vjp", func, primals, tuple(range(len(primals))), {}, has_aux)

    def pulled(*cotangents: Any) -> Any:
        given = cotangents[0] if len(cotangents) == 1 else cotangents
        vectors = _matching("vjp", "cotangents", given, call.outputs)
        return rebuilt(call.tree, iter(call.pull(vectors)))

    output = call.plain(call.output)
    return (output, pulled, call.aux) if has_aux else (output, pulled)


def jvp(func: Function, primals: Any, tangents: Any, *, strict: bool = False, has_aux: bool = False) -> Any:
    """Return the output of `func`, and the product of the Jacobian and a vector: J v.

    Two backwards compute J v, whatever the number of outputs.

    Parameters
    ----------
    func : callable
        Its arguments and its output may be nested dicts, lists and tuples of tensors.
    primals : tuple
        Arguments of `func`.
    tangents : tuple
        The vector v, which has the structure of `primals`.
    strict : bool, default False
        Must be False: an output that depends on no input has a product of zeros.
    has_aux : bool, default False
        Whether `func` returns (output, aux), of which only the output is derived.

    Returns
    -------
    output : object
        What `func` returned.
    product : object
        J v, which has the structure of the output.
    aux : object
        With `has_aux`, what `func` returned besides.

    Raises
    ------
    ArgumentError
        If `strict` is True.
    OperandError
        If `primals` is no tuple, or an empty one.
    ShapeError
        If the shapes of `tangents` are not those of `primals`.
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

    Parameters
    ----------
    func : callable
        Its arguments and its output may be nested dicts, lists and tuples of tensors.
    argnums : int or tuple of int, default 0
        Which arguments to derive by.
    has_aux : bool, default False
        Whether `func` returns (output, aux), of which only the output is derived.
    chunk_size : int, optional
        Accepted for PyTorch's programs: rows are computed one by one.

    Returns
    -------
    callable
        Takes the arguments of `func`. Its result has the structure of the output, with that of the argument in place of
        each tensor; its tensors have the shape of the output's tensor, then that of the input's. With `has_aux`, it
        returns (result, aux).

    Raises
    ------
    GraphError
        In a call, for complex inputs or outputs.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.func.jacrev(lambda x: x * x)(sg.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """
    return _jacobian("jacrev", func, argnums, has_aux, _by_rows)


def jacfwd(func: Function, argnums: Argnums = 0, has_aux: bool = False, *, randomness: str = "error") -> Function:
    """Return a function that returns what that of `jacrev` does, by one backward for each element of the inputs.

    Parameters
    ----------
    func : callable
        Its arguments and its output may be nested dicts, lists and tuples of tensors.
    argnums : int or tuple of int, default 0
        Which arguments to derive by.
    has_aux : bool, default False
        Whether `func` returns (output, aux), of which only the output is derived.
    randomness : str, default "error"
        Accepted for PyTorch's programs: the function is called once.

    Returns
    -------
    callable
        Takes the arguments of `func` and returns its derivatives.

    Raises
    ------
    GraphError
        In a call, for complex inputs or outputs.
    """
    return _jacobian("jacfwd", func, argnums, has_aux, _by_columns)


def hessian(func: Function, argnums: Argnums = 0) -> Function:
    """Return a function that returns the second derivatives of `func`: `jacfwd` of `jacrev`.

    Parameters
    ----------
    func : callable
        Its arguments and its output may be nested dicts, lists and tuples of tensors.
    argnums : int or tuple of int, default 0
        Which arguments to derive by.

    Returns
    -------
    callable
        Takes the arguments of `func` and returns its second derivatives.
    """
    return jacfwd(jacrev(func, argnums), argnums)
