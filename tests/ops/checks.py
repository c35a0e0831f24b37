"""Gradients against central differences, in float64."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spillgrad.autograd.differentiate import grad
from spillgrad.ops.creation import from_numpy
from spillgrad.tensor import Tensor

# Truncation error falls with the square of the step, rounding error grows with its inverse: both near 1e-10 here.
STEP = 1e-5
TOLERANCE = 2e-7


def leaf(values: Any) -> Tensor:
    return from_numpy(np.array(values, np.float64)).requires_grad_()


def weighted(tensor: Tensor, seed: int) -> Any:
    """Return a scalar that depends on every element in its own measure."""
    weights = np.asarray(np.random.default_rng(seed).normal(size=tensor.shape))
    return (tensor * from_numpy(weights)).sum()


def central_differences(function: Callable[..., float], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the derivative of a number by each element of each array."""
    slopes = []
    for array in arrays:
        slope = np.zeros(array.shape)
        for place in np.ndindex(array.shape):
            kept = array[place]
            array[place] = kept + STEP
            above = function(*arrays)
            array[place] = kept - STEP
            slope[place] = (above - function(*arrays)) / (2 * STEP)
            array[place] = kept
        slopes.append(slope)
    return slopes


def check_gradients(function: Callable[..., Tensor], *values: Any, second: bool = True) -> None:
    """Compare the first and second derivatives of a function of tensors with central differences.

    The first is checked twice: as `backward` computes it (fused kernels) and under `create_graph` (composed formulas).
    """
    arrays = [np.array(v, np.float64) for v in values]

    def value(*at: np.ndarray) -> float:
        return weighted(function(*map(from_numpy, at)), 0).item()

    def first(*at: np.ndarray, create_graph: bool) -> tuple[list[Tensor], tuple[Any, ...]]:
        leaves = [leaf(a) for a in at]
        return leaves, grad(weighted(function(*leaves), 0), leaves, create_graph=create_graph, materialize_grads=True)

    expected = central_differences(value, arrays)
    for create_graph in (False, True):
        _, gradients = first(*arrays, create_graph=create_graph)
        for position, (gradient, wanted) in enumerate(zip(gradients, expected, strict=True)):
            message = f"input {position}, create_graph={create_graph}"
            np.testing.assert_allclose(gradient.numpy(), wanted, TOLERANCE, TOLERANCE, err_msg=message)
    if not second:
        return

    def projected(gradients: Sequence[Tensor]) -> Any:
        return sum(weighted(g, 1 + i) for i, g in enumerate(gradients))

    # `backward` without a graph is the function that is differentiated numerically: two independent paths agree.
    expected = central_differences(lambda *at: projected(first(*at, create_graph=False)[1]).item(), arrays)
    leaves, gradients = first(*arrays, create_graph=True)
    total = projected(gradients)
    if not total.requires_grad:  # a linear function: its gradient is constant
        assert not any(wanted.any() for wanted in expected)
        return
    seconds = grad(total, leaves, materialize_grads=True)
    for position, (gradient, wanted) in enumerate(zip(seconds, expected, strict=True)):
        np.testing.assert_allclose(
            gradient.numpy(), wanted, TOLERANCE, TOLERANCE, err_msg=f"second derivative by input {position}"
        )


def check_half_precision(function: Callable[..., Tensor], *values: Any, tolerance: float = 2e-2) -> None:
    """Compare results and gradients in float32 and bfloat16 with those in float64; each keeps its dtype."""
    check_precision(function, *values, tolerances={"float32": 1e-4, "bfloat16": tolerance})


def check_precision(function: Callable[..., Tensor], *values: Any, tolerances: dict[str, float]) -> None:
    """Compare results and gradients in other dtypes with those in float64; each keeps its dtype."""
    reference = [leaf(v) for v in values]
    wanted = function(*reference)
    wanted_gradients = grad(weighted(wanted, 0), reference, materialize_grads=True)
    for dtype, allowed in tolerances.items():
        leaves = [leaf(v).detach().to(dtype).requires_grad_() for v in values]
        result = function(*leaves)
        weights = from_numpy(np.asarray(np.random.default_rng(0).normal(size=result.shape))).to(dtype)
        gradients = grad((result * weights).sum(), leaves, materialize_grads=True)
        for got, want in zip((result, *gradients), (wanted, *wanted_gradients), strict=True):
            assert str(got.dtype) == dtype
            scale = max(1.0, float(np.abs(want.numpy()).max(initial=0.0)))
            np.testing.assert_allclose(got.numpy().astype(np.float64), want.numpy(), allowed, allowed * scale)
