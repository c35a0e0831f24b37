"""Check gradients against central differences."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spillgrad.autograd.differentiate import grad
from spillgrad.autograd.grad_mode import enable_grad, no_grad
from spillgrad.errors import GraphError
from spillgrad.tensor import Tensor


def _outputs(function: Callable[..., Any], inputs: Sequence[Any]) -> list[Tensor]:
    result = function(*inputs)
    values = result if isinstance(result, tuple | list) else [result]
    return [v for v in values if isinstance(v, Tensor) and v.is_floating_point()]


def _numerical(
    function: Callable[..., Any], inputs: Sequence[Any], source: Tensor, direction: list[np.ndarray], eps: float
) -> np.ndarray:
    """Return the gradient of sum(direction · outputs) with respect to `source` by central differences."""
    result = np.zeros(source.shape, np.float64)
    values = source.array

    def weighted() -> float:
        with no_grad():
            return float(
                sum(
                    (w * o.numpy().astype(np.float64)).sum()
                    for w, o in zip(direction, _outputs(function, inputs), strict=True)
                )
            )

    for place in np.ndindex(values.shape):
        before = values[place]
        values[place] = before + eps
        above = weighted()
        values[place] = before - eps
        below = weighted()
        values[place] = before
        result[place] = (above - below) / (2 * eps)
    return result


def gradcheck(
    func: Callable[..., Any],
    inputs: Tensor | Sequence[Any],
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
) -> bool:
    """Return whether the gradients of `func` at `inputs` equal central differences; use float64 inputs.

    Raises GraphError that names the input, the worst element and both values, unless `raise_exception` is False.
    Source: torch.autograd.gradcheck.
    """
    arguments = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    rng = np.random.default_rng(0)
    with enable_grad():
        outputs = _outputs(func, arguments)
        direction = [rng.standard_normal(o.shape) for o in outputs]
        roots = [o for o in outputs if o.requires_grad]
        seeds = [w.astype(o.dtype) for o, w in zip(outputs, direction, strict=True) if o.requires_grad]
        sources = [a for a in arguments if isinstance(a, Tensor) and a.requires_grad]
        if not roots or not sources:
            raise GraphError(
                "gradcheck: no output depends on an input that requires a gradient; set requires_grad=True on one"
            )
        found = grad(roots, sources, [Tensor.wrap(w) for w in seeds], allow_unused=True, materialize_grads=True)
    for number, (source, gradient) in enumerate(zip(sources, found, strict=True)):
        analytical = gradient.numpy().astype(np.float64)  # type: ignore[union-attr]
        numerical = _numerical(func, arguments, source, direction, eps)
        wrong = np.abs(analytical - numerical) > atol + rtol * np.abs(numerical)
        if wrong.any() or np.isnan(analytical).any():
            if not raise_exception:
                return False
            difference = np.where(np.isnan(analytical), np.inf, np.abs(analytical - numerical))
            worst = np.unravel_index(int(difference.argmax()), difference.shape)
            raise GraphError(
                f"gradcheck: gradient of input {number} is wrong at {tuple(map(int, worst))}: backward gives "
                f"{analytical[worst]:.6g}, "
                f"central differences {numerical[worst]:.6g}"
            )
    return True


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Tensor | Sequence[Any],
    grad_outputs: Any = None,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
) -> bool:
    """Return whether the second derivatives of `func` equal central differences of its gradients.

    Arguments as `gradcheck`.
    """
    arguments = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    with enable_grad():
        outputs = [o for o in _outputs(func, arguments) if o.requires_grad]
    if grad_outputs is None:
        rng = np.random.default_rng(1)
        seeds = [Tensor.wrap(rng.standard_normal(o.shape).astype(o.dtype)).requires_grad_() for o in outputs]
    else:
        seeds = [grad_outputs] if isinstance(grad_outputs, Tensor) else list(grad_outputs)

    def gradients(*values: Any) -> tuple[Tensor | None, ...]:
        given, directions = values[: len(arguments)], values[len(arguments) :]
        with enable_grad():
            results = [o for o in _outputs(func, given) if o.requires_grad]
            sources = [a for a in given if isinstance(a, Tensor) and a.requires_grad]
            return grad(
                results, sources, list(directions), create_graph=True, allow_unused=True, materialize_grads=True
            )

    return gradcheck(gradients, [*arguments, *seeds], eps, atol, rtol, raise_exception)
