"""Sums of products over named dimensions: two operands are multiplied by one matrix product.

Three or more operands are multiplied two at a time. If the package opt_einsum is installed (`pip install opt_einsum`),
it plans the order. Otherwise, each product takes the two operands with the fewest products of elements.
`opt_einsum.contract` takes tensors, too.
"""

import functools
import itertools
import math
import string
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from spillgrad.errors import ArgumentError, OperandError, ShapeError
from spillgrad.ops.arithmetic import add, mul, sub
from spillgrad.ops.array_casts import require_one_dtype
from spillgrad.ops.autocast import float32_in_autocast
from spillgrad.ops.complex_views import conjugate
from spillgrad.ops.declaration import declare
from spillgrad.ops.indexing import diagonal
from spillgrad.ops.matrix_products import matmul
from spillgrad.ops.rearrange import roll
from spillgrad.ops.reduce import sum
from spillgrad.ops.shape import normalize_dim, normalize_dims, permute, reshape, unsqueeze
from spillgrad.tensor import Tensor

__all__ = ["bilinear", "cross", "einsum", "inner", "kron", "tensordot", "vdot"]

Labels = tuple[Any, ...]
_ELLIPSIS = "..."


class Term(NamedTuple):
    """An operand and a different label for each of its dimensions."""

    tensor: Tensor
    labels: Labels

    def size(self, label: Any) -> int:
        """Return the size of the dimension `label`; 1 if the operand lacks it, as the operand then broadcasts."""
        return self.tensor.shape[self.labels.index(label)] if label in self.labels else 1


# --- Reading the equation --------------------------------------------------------------------------------------------


def _parsed(name: str, text: str) -> Labels:
    """Return the labels of one operand or the result. Raises ArgumentError unless all are letters or one "..."."""
    left, dots, right = text.partition(_ELLIPSIS)
    labels = [*left, *([_ELLIPSIS] if dots else []), *right]
    for label in labels:
        if label != _ELLIPSIS and label not in string.ascii_letters:
            raise ArgumentError(f"einsum: got {label!r} in {name} {text!r}; wanted letters, and at most one '...'")
    return tuple(labels)


def _from_equation(equation: str, count: int) -> tuple[list[Labels], Labels | None]:
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    subscripts = inputs.split(",")
    if len(subscripts) != count:
        raise ArgumentError(
            f"einsum: got {len(subscripts)} subscripts in {equation!r} for {count} operands; give one for each"
        )
    return [_parsed("the subscript", text) for text in subscripts], _parsed("the result", output) if arrow else None


def _from_lists(arguments: tuple[Any, ...]) -> tuple[list[Tensor], list[Labels], Labels | None]:
    """Return (operands, their labels, the result's labels or None) of operands that alternate with lists of labels."""
    operands, sublists = list(arguments[0::2]), list(arguments[1::2])
    output = operands.pop() if len(operands) > len(sublists) else None
    read = [tuple(_ELLIPSIS if x is Ellipsis else x for x in labels) for labels in sublists]
    return operands, read, None if output is None else tuple(_ELLIPSIS if x is Ellipsis else x for x in output)


def _spelled_out(labels: Labels, ndim: int, dots: int) -> Labels:
    """Return a label for each dimension: "..." becomes the last of `dots` labels that all operands have in common."""
    if _ELLIPSIS not in labels:
        return labels
    place = labels.index(_ELLIPSIS)
    covered = ndim - (len(labels) - 1)
    return (*labels[:place], *[(_ELLIPSIS, i) for i in range(dots - covered, dots)], *labels[place + 1 :])


def _covered(labels: Labels, tensor: Tensor) -> int:
    named = len(labels) - labels.count(_ELLIPSIS)
    if tensor.ndim < named or (tensor.ndim > named and _ELLIPSIS not in labels):
        shown = "".join(map(str, labels))
        raise ShapeError(
            f"einsum: got an operand of shape {tensor.shape} for the subscript {shown!r}; wanted a label for each "
            "dimension, or '...' for those without"
        )
    return tensor.ndim - named


def _without_repeats(tensor: Tensor, labels: Labels) -> Term:
    """Return the operand as a term, with dimensions that share a label replaced by their diagonal."""
    for label in set(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            if tensor.shape[first] != tensor.shape[second]:
                raise ShapeError(
                    f"einsum: got sizes {tensor.shape[first]} and {tensor.shape[second]} for the repeated label "
                    f"{label!r}; they must be equal"
                )
            tensor = diagonal(tensor, 0, first, second)
            labels = (*(x for i, x in enumerate(labels) if i not in (first, second)), label)
    return Term(tensor, labels)


# --- Products of two -------------------------------------------------------------------------------------------------


def _summed(term: Term, kept: Iterable[Any], sizes: dict[Any, int]) -> Term:
    """Sum over the dimensions that are not `kept`, and drop dimensions of size 1 that broadcast."""
    alone = [i for i, label in enumerate(term.labels) if label not in kept]
    if alone:
        labels = tuple(label for label in term.labels if label in kept)
        term = Term(sum(term.tensor, alone), labels)
    labels = tuple(x for x in term.labels if not (term.size(x) == 1 and sizes[x] != 1))
    shape = tuple(term.size(x) for x in labels)
    return term if labels == term.labels else Term(reshape(term.tensor, shape), labels)


def _arranged(term: Term, *groups: Sequence[Any]) -> Tensor:
    """Return the operand with its dimensions in the order of `groups`, each group joined to one dimension."""
    order = [term.labels.index(label) for group in groups for label in group]
    moved = permute(term.tensor, order) if order != list(range(len(order))) else term.tensor
    return reshape(moved, tuple(math.prod(term.size(label) for label in group) for group in groups))


def _product(first: Term, second: Term, kept: frozenset[Any], sizes: dict[Any, int]) -> Term:
    """Multiply two operands and sum over the dimensions that are not `kept`."""
    first = _summed(first, kept | frozenset(second.labels), sizes)
    second = _summed(second, kept | frozenset(first.labels), sizes)
    shared = [x for x in first.labels if x in second.labels]
    batch, inner = [x for x in shared if x in kept], [x for x in shared if x not in kept]
    left = [x for x in first.labels if x not in shared]
    right = [x for x in second.labels if x not in shared]
    labels = (*batch, *left, *right)
    shape = tuple(sizes[x] for x in labels)
    if not inner:  # nothing to sum: a product of elements, without a matrix product's copies
        one = permute(first.tensor, [first.labels.index(x) for x in (*batch, *left)])
        one = reshape(one, (*one.shape, *(1,) * len(right)))
        other = permute(second.tensor, [second.labels.index(x) for x in (*batch, *right)])
        other = reshape(other, (*other.shape[: len(batch)], *(1,) * len(left), *other.shape[len(batch) :]))
        return Term(mul(one, other), labels)
    a, b = _arranged(first, batch, left, inner), _arranged(second, batch, inner, right)
    if not batch:
        a, b = reshape(a, a.shape[1:]), reshape(b, b.shape[1:])
    return Term(reshape(matmul(a, b), shape), labels)


def einsum(equation: Any, *operands: Any) -> Tensor:
    """Return the sum of products of the operands over all dimensions that the result does not name.

    Labels are letters (or, in lists, numbers). A label repeated in one operand takes the operand's diagonal. "..."
    stands for dimensions that broadcast; dimensions of size 1 broadcast, too. Without "->", the result has the labels
    that appear once, in alphabetical order.

    Parameters
    ----------
    equation : str or Tensor
        Labels of the dimensions of each operand, then "->" and those of the result. In another form, the operands
        alternate with lists of labels: ``einsum(a, [0, 1], b, [1, 2], [0, 2])``.
    *operands : Tensor
        As many as the equation has.

    Returns
    -------
    Tensor
        With the dimensions that the equation names.

    Raises
    ------
    ArgumentError
        If the equation cannot be read.
    ShapeError
        If operands do not fit the equation.
    OperandError
        If an operand is not a tensor.

    Examples
    --------
    >>> import spillgrad as sg
    >>> a, b = sg.ones(2, 3, 4), sg.ones(2, 4, 5)
    >>> tuple(sg.einsum("bij,bjk->bik", a, b).shape)
    (2, 3, 5)
    >>> sg.einsum("...ii->...i", sg.eye(2)).tolist()
    [1.0, 1.0]
    """
    if isinstance(equation, str):
        if len(operands) == 1 and isinstance(operands[0], list | tuple):
            operands = tuple(operands[0])
        tensors = list(operands)
        subscripts, output = _from_equation(equation, len(tensors))
    else:
        tensors, subscripts, output = _from_lists((equation, *operands))
    if not tensors or not all(isinstance(x, Tensor) for x in tensors):
        raise OperandError("einsum: wanted an equation and tensors, or tensors in turn with lists of their labels")
    dots = max(_covered(labels, tensor) for labels, tensor in zip(subscripts, tensors, strict=True))
    named = [_spelled_out(labels, x.ndim, dots) for labels, x in zip(subscripts, tensors, strict=True)]
    if output is None:
        counts = [label for labels in subscripts for label in labels if label != _ELLIPSIS]
        once = sorted(label for label in set(counts) if counts.count(label) == 1)
        output = (*([_ELLIPSIS] if any(_ELLIPSIS in labels for labels in subscripts) else []), *once)
    elif _ELLIPSIS in output and not any(_ELLIPSIS in labels for labels in subscripts):
        output = tuple(label for label in output if label != _ELLIPSIS)
    result = _spelled_out(output, len(output) - 1 + dots, dots)
    sizes: dict[Any, int] = {}
    terms = [_without_repeats(x, labels) for x, labels in zip(tensors, named, strict=True)]
    for term in terms:
        for label, size in zip(term.labels, term.tensor.shape, strict=True):
            if sizes.setdefault(label, size) not in (size, 1) and size != 1:
                raise ShapeError(
                    f"einsum: got sizes {sizes[label]} and {size} for the label {label!r}; they must match"
                )
            sizes[label] = size if sizes[label] == 1 else sizes[label]
    wrong = [label for label in result if label not in sizes or result.count(label) > 1]
    if wrong:
        raise ArgumentError(
            f"einsum: got the label {wrong[0]!r} in the result; wanted each of the operands' at most once"
        )
    planned = _planned(tuple([term.labels for term in terms]), result, tuple(sizes.items())) if len(terms) > 2 else None
    for step in range(len(terms) - 1):
        i, j = planned[step] if planned else _cheapest(terms, sizes)
        rest = [term for place, term in enumerate(terms) if place not in (i, j)]
        kept = frozenset(result).union(*(term.labels for term in rest))
        terms = [*rest, _product(terms[i], terms[j], kept, sizes)]
    last = _summed(terms[0], result, sizes)
    order = [last.labels.index(label) for label in result]
    return permute(last.tensor, order) if order != list(range(len(order))) else last.tensor


@functools.lru_cache(maxsize=256)
def _planned(terms: tuple[Labels, ...], result: Labels, sizes: tuple[tuple[Any, int], ...]) -> Any:
    """Return the pairs of operands to multiply, in the order of opt_einsum; None if opt_einsum is not installed.

    A pair holds two positions in the list of operands: these two are removed, and their product is appended.
    """
    try:
        from opt_einsum import contract_path, get_symbol
    except ModuleNotFoundError:
        return None
    symbols = {label: get_symbol(place) for place, (label, _) in enumerate(sizes)}
    found = dict(sizes)
    subscripts = ["".join([symbols[label] for label in labels]) for labels in (*terms, result)]
    shapes = [tuple([found[label] for label in labels]) for labels in terms]
    path, _ = contract_path(f"{','.join(subscripts[:-1])}->{subscripts[-1]}", *shapes, shapes=True)
    return path


def _cheapest(terms: list[Term], sizes: dict[Any, int]) -> tuple[int, int]:
    """Return the positions of the two operands with the fewest products; of equal pairs, the first."""
    pairs = itertools.combinations(range(len(terms)), 2)
    return min(pairs, key=lambda p: math.prod(sizes[x] for x in {*terms[p[0]].labels, *terms[p[1]].labels}))


# --- Products with names of their own --------------------------------------------------------------------------------


@declare(method=True)
def tensordot(a: Tensor, b: Tensor, dims: Any = 2, *, axes: Any = None) -> Tensor:
    """Return the sum of products over the last dimensions of `a` and the first of `b`.

    Parameters
    ----------
    a, b : Tensor
        Of one dtype.
    dims : int or pair of lists, default 2
        How many dimensions, or a pair of lists: the dimensions of `a`, and those of `b`.
    axes : int or pair of lists, optional
        Paddle's and NumPy's name of `dims`.

    Returns
    -------
    Tensor
        With the other dimensions of `a`, then those of `b`.

    Raises
    ------
    ShapeError
        If the sizes of these dimensions differ.
    ArgumentError
        If there are fewer dimensions.
    """
    dims = dims if axes is None else axes
    if isinstance(dims, Tensor):
        dims = dims.tolist()
    if isinstance(dims, int | np.integer):
        if not 0 <= dims <= min(a.ndim, b.ndim):
            raise ArgumentError(
                f"tensordot: got dims={dims} for {a.ndim} and {b.ndim} dimensions; wanted at most so many"
            )
        dims = (range(a.ndim - dims, a.ndim), range(dims))
    first, second = ((d,) if isinstance(d, int) else tuple(d) for d in dims)
    first, second = normalize_dims("tensordot", first, a.ndim), normalize_dims("tensordot", second, b.ndim)
    if len(first) != len(second) or any(a.shape[i] != b.shape[j] for i, j in zip(first, second, strict=True)):
        raise ShapeError(
            f"tensordot: got {a.shape} and {b.shape} with dims {first} and {second}; their sizes must be equal"
        )
    others = [i for i in range(a.ndim) if i not in first], [i for i in range(b.ndim) if i not in second]
    shape = (*(a.shape[i] for i in others[0]), *(b.shape[i] for i in others[1]))
    inner = math.prod(a.shape[i] for i in first)
    rows = reshape(permute(a, (*others[0], *first)), (math.prod(a.shape[i] for i in others[0]), inner))
    columns = reshape(permute(b, (*second, *others[1])), (inner, math.prod(b.shape[i] for i in others[1])))
    return reshape(matmul(rows, columns), shape)


@declare(method=True, numpy=True)
def inner(input: Tensor, other: Tensor) -> Tensor:
    """Return the sum of products over the last dimensions.

    Parameters
    ----------
    input, other : Tensor
        Of equal last sizes; with a 0-d tensor, the result is the product.

    Returns
    -------
    Tensor
        With the other dimensions of `input`, then those of `other`.

    Raises
    ------
    ShapeError
        If the last sizes differ.
    """
    if not input.ndim or not other.ndim:
        return mul(input, other)
    if input.shape[-1] != other.shape[-1]:
        raise ShapeError(f"inner: got {input.shape} and {other.shape}; the last sizes must be equal")
    return tensordot(input, other, ((input.ndim - 1,), (other.ndim - 1,)))


@declare(method=True, numpy=True)
def kron(input: Tensor, other: Tensor) -> Tensor:
    """Return the Kronecker product: `other` times each element of `input`, in the element's place.

    Parameters
    ----------
    input, other : Tensor
        Of any shape.

    Returns
    -------
    Tensor
        Of sizes that are the products of the sizes.
    """
    ndim = max(input.ndim, other.ndim)
    sizes = [(1,) * (ndim - x.ndim) + x.shape for x in (input, other)]
    one = reshape(input, tuple(size for s in sizes[0] for size in (s, 1)))
    two = reshape(other, tuple(size for s in sizes[1] for size in (1, s)))
    return reshape(mul(one, two), tuple(s * t for s, t in zip(*sizes, strict=True)))


@declare(method=True)
def cross(input: Tensor, other: Tensor, dim: int | None = None, *, axis: int | None = None) -> Tensor:
    """Return the cross products of 3-vectors along a dimension.

    Parameters
    ----------
    input, other : Tensor
        Of size 3 in the dimension; other dimensions broadcast.
    dim : int, optional
        Dimension of the vectors; by default, the first of size 3.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        Of the shape that the operands broadcast to.

    Raises
    ------
    ShapeError
        If the size of the dimension is not 3.
    """
    dim = axis if dim is None else dim
    if dim is None:
        dim = next((i for i, size in enumerate(input.shape) if size == 3), -1)
    place = normalize_dim("cross", dim, input.ndim) - input.ndim
    if not input.ndim or input.shape[place] != 3 or other.ndim < -place or other.shape[place] != 3:
        raise ShapeError(f"cross: got {input.shape} and {other.shape}; dimension {dim} must be of size 3")
    return sub(mul(roll(input, -1, place), roll(other, -2, place)), mul(roll(input, -2, place), roll(other, -1, place)))


@declare(method=True)
@float32_in_autocast
def vdot(input: Tensor, other: Tensor) -> Tensor:
    """Return the dot product of two vectors, the first conjugated.

    Parameters
    ----------
    input, other : Tensor
        Of shape (n,).

    Returns
    -------
    Tensor
        Of shape ().

    Raises
    ------
    ShapeError
        If they are not two vectors of one size.
    """
    if input.ndim != 1 or input.shape != other.shape:
        raise ShapeError(f"vdot: got {input.shape} and {other.shape}; wanted two vectors of one size")
    return matmul(conjugate(input), other)


@float32_in_autocast
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``input1 A input2 + bias`` for each of several matrices A.

    Parameters
    ----------
    input1 : Tensor
        Of shape (..., m).
    input2 : Tensor
        Of shape (..., n).
    weight : Tensor
        The matrices, of shape (k, m, n).
    bias : Tensor, optional
        Of shape (k,).

    Returns
    -------
    Tensor
        Of shape (..., k).

    Raises
    ------
    ShapeError
        If the shapes do not fit together.
    DtypeError
        If the dtypes differ.
    """
    name = "bilinear"
    if weight.ndim != 3 or not input1.ndim or not input2.ndim:
        raise ShapeError(
            f"{name}: got inputs {input1.shape} and {input2.shape} and weight {weight.shape}; wanted (..., m), (..., "
            "n) and (k, m, n)"
        )
    outputs, first, second = weight.shape
    if input1.shape[:-1] != input2.shape[:-1]:
        raise ShapeError(f"{name}: input batch dimensions do not match: got {input1.shape} and {input2.shape}")
    if (input1.shape[-1], input2.shape[-1]) != (first, second):
        raise ShapeError(
            f"{name}: got inputs {input1.shape} and {input2.shape} and weight {weight.shape}; their last sizes must be "
            f"{first} and {second}"
        )
    if bias is not None and bias.shape != (outputs,):
        raise ShapeError(f"{name}: got bias {bias.shape}; wanted one for each of {outputs} outputs")
    require_one_dtype(name, input1=input1, input2=input2, weight=weight, bias=bias)
    lead = input1.shape[:-1]
    rows = math.prod(lead)
    # For each row the products of input1 with every column of every matrix, then with input2.
    columns = reshape(permute(weight, (1, 0, 2)), (first, outputs * second))
    halves = reshape(matmul(reshape(input1, (rows, first)), columns), (rows, outputs, second))
    result = reshape(sum(mul(halves, unsqueeze(reshape(input2, (rows, second)), 1)), -1), (*lead, outputs))
    return result if bias is None else add(result, bias)
