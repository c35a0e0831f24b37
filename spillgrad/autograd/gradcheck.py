"""Check gradients against central differences.

A complex number counts as two real ones: an output's real and imaginary parts are differentiated apart, and an input
moves along both axes. As in PyTorch, the gradient by a complex input is the derivative along the real axis plus i times
the derivative along the imaginary axis.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from spillgrad.autograd.core.engine import run_backward
from spillgrad.autograd.core.grad_mode import enable_grad
from spillgrad.autograd.differentiate import grad
from spillgrad.device.device import moved
from spillgrad.dtypes import is_differentiable
from spillgrad.errors import ArgumentError, GradcheckError
from spillgrad.ops.creation import zeros_like
from spillgrad.tensor import Tensor

# A Jacobian of at most this many elements is printed whole.
_PRINTED = 64


class _Options(NamedTuple):
    """The options that all checks of one call share."""

    eps: float
    atol: float
    rtol: float
    nondet_tol: float
    check_undefined_grad: bool
    check_batched_grad: bool
    fast_mode: bool


class _Check:
    """One function at one point: its inputs that require a gradient, and its outputs."""

    def __init__(self, func: Callable[..., Any], inputs: Any, options: _Options) -> None:
        self.func, self.options = func, options
        self.arguments = [inputs] if isinstance(inputs, Tensor) else list(inputs)
        # By position among the arguments, as messages number them.
        self.sources = {i: a for i, a in enumerate(self.arguments) if isinstance(a, Tensor) and a.requires_grad}
        if not self.sources:
            raise ArgumentError(
                "gradcheck: none of the inputs requires a gradient, so there is nothing to check; set "
                "requires_grad=True on at least one"
            )
        for i, source in self.sources.items():
            _check_source(i, source)
        with enable_grad():
            results = _tensors(func(*self.arguments))
        self.outputs = {i: o for i, o in enumerate(results) if o.requires_grad}
        self.constant = {i: o for i, o in enumerate(results) if is_differentiable(o.dtype) and not o.requires_grad}
        self.rng = np.random.default_rng(0)

    def run(self) -> None:
        """Raise GradcheckError at the first check that fails."""
        if not self.outputs:
            self._check_constant()
            return
        self._check_zero_gradient()
        self._check_repeated()
        if self.options.check_undefined_grad:
            self._check_undefined()
        if self.options.check_batched_grad:
            self._check_batched()
        if self.options.fast_mode:
            self._check_projected()
        else:
            self._check_elements()

    # The function's own gradients

    def _backward(self, weights: dict[int, np.ndarray], **options: Any) -> list[Any]:
        """Return, for each source, the gradient of the sum of weights times outputs; None if there is no gradient."""
        outputs = [self.outputs[i] for i in weights]
        seeds = [Tensor.wrap(moved(w, self.outputs[i].device)) for i, w in weights.items()]
        return list(grad(outputs, list(self.sources.values()), seeds, retain_graph=True, allow_unused=True, **options))

    def _weights(self, draw: Callable[[tuple[int, ...]], np.ndarray]) -> dict[int, np.ndarray]:
        return {i: _drawn(draw, o).astype(o.dtype) for i, o in self.outputs.items()}

    def _check_zero_gradient(self) -> None:
        for i, gradient in zip(self.sources, self._backward(self._weights(np.zeros)), strict=True):
            # A later check reports NaN, with its element.
            if gradient is not None and np.nan_to_num(gradient.host_array()).any():
                raise GradcheckError(
                    f"gradcheck: backward not multiplied by grad_output: the gradient of input {i} is not zero when "
                    "those of all outputs are"
                )

    def _check_repeated(self) -> None:
        weights = self._weights(self.rng.standard_normal)
        first, second = (list(map(_precise, self._backward(weights))) for _ in range(2))
        for i, a, b in zip(self.sources, first, second, strict=True):
            differ = ~(np.abs(a - b) <= self.options.nondet_tol) & ~(np.isnan(a) & np.isnan(b))
            if differ.any():
                at = _first(differ)
                raise GradcheckError(
                    f"gradcheck: Backward is not reentrant: for input {i} at {at} it gave {a[at]:.6g}, then "
                    f"{b[at]:.6g} with the same gradient (nondet_tol={self.options.nondet_tol:g}); it must not "
                    "change what it saved"
                )

    def _check_undefined(self) -> None:
        """Check that an output without a gradient has the same effect as an output with a gradient of zeros."""
        cases: list[list[int]] = [list(self.outputs)]
        if len(self.outputs) > 1:
            cases += [[i] for i in self.outputs]
        for undefined in cases:
            roots = [o.gradient_edge() for o in self.outputs.values()]
            grads = [None if i in undefined else zeros_like(o) for i, o in self.outputs.items()]
            edges = [source.gradient_edge() for source in self.sources.values()]
            which = ", ".join(map(str, undefined))
            try:
                found = run_backward(roots, grads, inputs=edges, retain_graph=True, accumulate=False)
            except Exception as error:
                raise GradcheckError(
                    f"gradcheck: Expected backward function to handle undefined output grads: without a gradient of "
                    f"output {which} it raised {type(error).__name__}: {error}; let None count as zeros, or leave "
                    "set_materialize_grads(True)"
                ) from error
            for i, gradient in zip(self.sources, found, strict=True):
                if gradient is not None and np.nan_to_num(gradient.host_array()).any():
                    raise GradcheckError(
                        f"gradcheck: Expected all input grads to be undefined or zero when all output grads are "
                        f"undefined or zero; without a gradient of output {which}, input {i} got {gradient.tolist()}"
                    )

    def _check_batched(self) -> None:
        batch = [self._weights(self.rng.standard_normal) for _ in range(2)]
        together = self._backward(
            {i: np.stack([weights[i] for weights in batch]) for i in self.outputs}, is_grads_batched=True
        )
        for number, weights in enumerate(batch):
            for i, one, many in zip(self.sources, self._backward(weights), together, strict=True):
                alone, row = _precise(one), _precise(None if many is None else many[number])
                if not np.allclose(alone, row, self.options.rtol, self.options.atol):
                    raise GradcheckError(f"gradcheck: batched gradients of input {i} differ from those one by one")

    # Against differences

    def _evaluated(self, indices: Sequence[int]) -> list[np.ndarray]:
        """Call the function on the inputs' present values; return the outputs numbered `indices`, in double."""
        with enable_grad():
            results = _tensors(self.func(*self.arguments))
        return [_precise(results[i]) for i in indices]

    def _differences(self, source: Tensor, direction: np.ndarray, indices: Sequence[int]) -> list[np.ndarray]:
        """Return the slopes of outputs as `source` moves along `direction`."""
        values, kept = source.array, source.array.copy()
        step = direction * self.options.eps
        try:
            values[...] = kept + step
            above = self._evaluated(indices)
            values[...] = kept - step
            below = self._evaluated(indices)
        finally:
            values[...] = kept
        for i, a, b in zip(indices, above, below, strict=True):
            if a.shape != b.shape:
                raise GradcheckError(
                    f"gradcheck: Expected `func` to return outputs with the same shape when inputs are perturbed; "
                    f"output {i} has {a.shape} and {b.shape}"
                )
        return [(a - b) / (2 * self.options.eps) for a, b in zip(above, below, strict=True)]

    def _slopes(self, source: Tensor, place: tuple[int, ...], indices: Sequence[int]) -> list[np.ndarray]:
        """Return the derivatives of outputs by one element of `source`: of all real parts, then of all imaginary parts.

        For a complex element, these are the derivatives along the real axis plus i times those along the imaginary one.
        """
        total: list[Any] = [0.0] * len(indices)
        for unit in _units(source):
            direction = np.zeros(source.shape, source.numpy_dtype)
            direction[place] = unit
            for k, slopes in enumerate(self._differences(source, direction, indices)):
                parts = [slopes.real, slopes.imag] if slopes.dtype.kind == "c" else [slopes]
                total[k] = total[k] + unit * np.concatenate([part.reshape(-1) for part in parts])
        return total

    def _check_constant(self) -> None:
        """Check that outputs without a gradient do not depend on the inputs."""
        for i, source in self.sources.items():
            for place in np.ndindex(source.shape):
                for o, slopes in zip(self.constant, self._slopes(source, place, list(self.constant)), strict=True):
                    if slopes.any():
                        raise GradcheckError(
                            f"gradcheck: Numerical gradient for function expected to be zero: output {o} requires no "
                            f"gradient, but changes with input {i} at {place}"
                        )

    def _check_elements(self) -> None:
        """Compare all elements of all Jacobians: a row for each output element, a column for each input element.

        A complex output has a row for each real part, then one for each imaginary part.
        """
        outputs = list(self.outputs)
        numerical: dict[int, list[list[np.ndarray]]] = {
            i: [self._slopes(source, place, outputs) for place in np.ndindex(source.shape)]
            for i, source in self.sources.items()
        }
        for position, (o, output) in enumerate(self.outputs.items()):
            rows = list(self._rows(o, output))
            for j, (i, source) in enumerate(self.sources.items()):
                shape = (output.numel() * len(_units(output)), source.numel())
                found = np.array([row[j].reshape(-1) for row in rows]).reshape(shape)
                columns = [slopes[position] for slopes in numerical[i]]
                wanted = np.array(columns).reshape(shape[::-1]).T
                self._compare(o, output, i, source, found, wanted)

    def _rows(self, number: int, output: Tensor) -> Iterator[list[np.ndarray]]:
        for unit, place in itertools.product(_units(output), np.ndindex(output.shape)):
            weights = np.zeros(output.shape, output.numpy_dtype)
            weights[place] = unit
            found = self._backward({number: weights})
            yield [
                np.zeros(s.shape) if g is None else _precise(g)
                for s, g in zip(self.sources.values(), found, strict=True)
            ]

    def _compare(self, o: int, output: Tensor, i: int, source: Tensor, found: np.ndarray, wanted: np.ndarray) -> None:
        allowed = self.options.atol + self.options.rtol * np.abs(wanted)
        wrong = ~(np.abs(found - wanted) <= allowed)  # NaN is wrong too
        if not wrong.any():
            return
        excess = np.where(wrong, np.nan_to_num(np.abs(found - wanted) - allowed, nan=np.inf), -np.inf)
        row, column = map(int, np.unravel_index(int(excess.argmax()), wrong.shape))
        part, row_in_part = divmod(row, output.numel())
        what = f"output {o}"
        if output.is_complex():
            what = f"{('the real part', 'the imaginary part')[part]} of {what}"
        places = [
            tuple(map(int, np.unravel_index(flat, t.shape))) for flat, t in ((row_in_part, output), (column, source))
        ]
        message = (
            f"gradcheck: Jacobian mismatch for output {o} with respect to input {i}: the derivative of {what} at "
            f"{places[0]} by input {i} at {places[1]} is wrong: backward gives {found[row, column]:.6g}, central "
            f"differences {wanted[row, column]:.6g}; {int(wrong.sum())} of {wrong.size} elements differ by more than "
            f"atol={self.options.atol:g} + rtol={self.options.rtol:g} times the latter"
        )
        if wrong.size <= _PRINTED:
            message += f"\nnumerical:\n{wanted}\nanalytical:\n{found}"
        raise GradcheckError(message)

    def _check_projected(self) -> None:
        """Compare vᵀ J u for one random u per input and v per output. The number of calls does not grow with sizes."""
        directions = {i: _drawn(self.rng.random, source) for i, source in self.sources.items()}
        weights = {o: _drawn(self.rng.random, output) for o, output in self.outputs.items()}
        slopes = {i: self._differences(s, directions[i], list(self.outputs)) for i, s in self.sources.items()}
        for position, (o, output) in enumerate(self.outputs.items()):
            gradients = self._backward({o: weights[o].astype(output.dtype)})
            for i, gradient in zip(self.sources, gradients, strict=True):
                found = 0.0 if gradient is None else _inner(_precise(gradient), directions[i])
                wanted = _inner(slopes[i][position], weights[o])
                atol = self.options.atol * max(1.0, float(abs(directions[i].sum() * weights[o].sum())))
                if not abs(found - wanted) <= atol + self.options.rtol * abs(wanted):
                    self._check_elements()  # names the element, unless all of them are within the tolerance
                    raise GradcheckError(
                        f"gradcheck: Jacobian mismatch for output {o} with respect to input {i} in fast mode: "
                        f"projected on random directions, backward gives {found:.6g}, central differences {wanted:.6g}"
                    )


def _check_source(number: int, source: Tensor) -> None:
    if not source.array.flags.writeable:
        raise ArgumentError(f"gradcheck: input {number} is read-only and cannot be perturbed; pass a clone() of it")
    strides = zip(source.array.strides, source.shape, strict=True)
    if source.numel() and any(stride == 0 and size > 1 for stride, size in strides):
        raise ArgumentError(
            f"gradcheck: The {number}th input has a dimension with stride 0, so that perturbing one element changes "
            "others; pass contiguous() of it"
        )


def _tensors(result: Any) -> list[Tensor]:
    """Return the tensors among the results of a function."""
    values = result if isinstance(result, tuple | list) else [result]
    return [value for value in values if isinstance(value, Tensor)]


def _precise(tensor: Any) -> np.ndarray:
    """Return the values as float64 or complex128; zero for None."""
    if tensor is None:
        return np.zeros(())
    return tensor.host_array().astype(np.complex128 if tensor.is_complex() else np.float64)  # type: ignore[no-any-return]


def _units(tensor: Tensor) -> tuple[complex, ...]:
    """Return the directions in which an element can move."""
    return (1.0, 1j) if tensor.is_complex() else (1.0,)


def _drawn(draw: Callable[[tuple[int, ...]], np.ndarray], like: Tensor) -> np.ndarray:
    values = np.asarray(draw(like.shape))
    return values + 1j * draw(like.shape) if like.is_complex() else values


def _inner(a: np.ndarray, b: np.ndarray) -> float:
    """Return the sum of products, of real and of imaginary parts apart: how much a value changes along a direction."""
    return float((np.conj(a) * b).real.sum())


def _first(mask: np.ndarray) -> tuple[int, ...]:
    return tuple(map(int, np.unravel_index(int(mask.argmax()), mask.shape)))


def gradcheck(
    func: Callable[..., Any],
    inputs: Tensor | Sequence[Any],
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
) -> bool:
    """Return whether the gradients of `func` at `inputs` equal central differences; use float64 or complex128 inputs.

    The derivative of each output element by each input element is compared. Two more checks are always made: a second
    run of backward must give the same gradients, and gradients of zeros must give zeros.

    Parameters
    ----------
    func : callable
        Function of the inputs that returns a tensor or several.
    inputs : Tensor or sequence
        Arguments of `func`. The tensors that require a gradient are checked.
    eps : float, default 1e-6
        Step of the differences.
    atol, rtol : float
        Tolerance: a derivative may differ by ``atol + rtol * abs(difference)``. The defaults are 1e-5 and 1e-3.
    raise_exception : bool, default True
        Whether to raise GradcheckError where a check fails; else the result is False.
    nondet_tol : float, default 0.0
        Largest difference between two runs of backward.
    check_undefined_grad : bool, default True
        Whether outputs without a gradient must give zeros too.
    check_grad_dtypes : bool, default False
        Changes nothing: a gradient always gets its input's dtype.
    check_batched_grad : bool, default False
        Whether `grad` with ``is_grads_batched=True`` must give the same gradients.
    check_batched_forward_grad : bool, default False
        Only False is accepted.
    check_forward_ad : bool, default False
        Only False is accepted, because spillgrad has no forward-mode differentiation.
    check_backward_ad : bool, default True
        Only True is accepted.
    fast_mode : bool, default False
        Whether to compare only one random combination of the derivatives for each output and input.
    masked : bool, optional
        Changes nothing: tensors are dense.

    Returns
    -------
    bool
        True if all checks pass.

    Raises
    ------
    GradcheckError
        If a check fails, unless `raise_exception` is False; it names output, input, element and both values.
    ArgumentError
        If no input requires a gradient, if elements of an input share memory, or for an option of forward-mode
        differentiation.

    Notes
    -----
    Source: torch.autograd.gradcheck.

    Examples
    --------
    >>> import spillgrad as sg
    >>> x = sg.tensor([0.5, 1.5], dtype=sg.float64, requires_grad=True)
    >>> sg.autograd.gradcheck(sg.sin, (x,))
    True
    """
    if check_forward_ad or check_batched_forward_grad or not check_backward_ad:
        raise ArgumentError(
            "gradcheck: got options of forward-mode differentiation, which spillgrad does not have; leave "
            "check_forward_ad, check_batched_forward_grad and check_backward_ad as they are"
        )
    options = _Options(eps, atol, rtol, nondet_tol, check_undefined_grad, check_batched_grad, fast_mode)
    try:
        _Check(func, inputs, options).run()
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Tensor | Sequence[Any],
    grad_outputs: Any = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True,
    fast_mode: bool = False,
    masked: bool = False,
) -> bool:
    """Return whether the second derivatives of `func` equal central differences of its gradients.

    `gradcheck` checks the gradients as a function of inputs and `grad_outputs`. Its errors number both together.

    Parameters
    ----------
    func : callable
        Function of the inputs that returns a tensor or several.
    inputs : Tensor or sequence
        Arguments of `func`. The tensors that require a gradient are checked.
    grad_outputs : Tensor or sequence of Tensor, optional
        Gradient with respect to each output; random values, by default.
    eps : float, default 1e-6
        Step of the differences.
    atol, rtol : float
        Tolerance: a derivative may differ by ``atol + rtol * abs(difference)``. The defaults are 1e-5 and 1e-3.
    gen_non_contig_grad_outputs : bool, default False
        Whether the random `grad_outputs` have gaps in memory.
    raise_exception : bool, default True
        Whether to raise GradcheckError where a check fails; else the result is False.
    nondet_tol : float, default 0.0
        Largest difference between two runs of backward.
    check_undefined_grad : bool, default True
        Whether outputs without a gradient must give zeros too.
    check_grad_dtypes : bool, default False
        Changes nothing: a gradient always gets its input's dtype.
    check_batched_grad : bool, default False
        Whether `grad` with ``is_grads_batched=True`` must give the same gradients.
    check_fwd_over_rev : bool, default False
        Only False is accepted, because spillgrad has no forward-mode differentiation.
    check_rev_over_rev : bool, default True
        Only True is accepted.
    fast_mode : bool, default False
        Whether to compare only one random combination of the derivatives for each output and input.
    masked : bool, default False
        Changes nothing: tensors are dense.

    Returns
    -------
    bool
        True if all checks pass.

    Raises
    ------
    GradcheckError
        If a check fails, unless `raise_exception` is False.
    ArgumentError
        As `gradcheck` does.
    """
    if check_fwd_over_rev or not check_rev_over_rev:
        raise ArgumentError(
            "gradgradcheck: got options of forward-mode differentiation, which spillgrad does not have; leave "
            "check_fwd_over_rev and check_rev_over_rev as they are"
        )
    arguments = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    with enable_grad():
        outputs = [o for o in _tensors(func(*arguments)) if o.requires_grad]
    if grad_outputs is None:
        seeds = [_seed(o, gen_non_contig_grad_outputs) for o in outputs]
    else:
        seeds = [grad_outputs] if isinstance(grad_outputs, Tensor) else list(grad_outputs)

    def gradients(*values: Any) -> tuple[Tensor, ...]:
        given, directions = values[: len(arguments)], values[len(arguments) :]
        with enable_grad():
            results = [o for o in _tensors(func(*given)) if o.requires_grad]
            sources = [a for a in given if isinstance(a, Tensor) and a.requires_grad]
            found: tuple[Any, ...] = grad(results, sources, list(directions), create_graph=True, allow_unused=True)
            return tuple(g for g in found if g is not None)

    return gradcheck(
        gradients, [*arguments, *seeds], eps=eps, atol=atol, rtol=rtol, raise_exception=raise_exception,
        nondet_tol=nondet_tol, check_undefined_grad=check_undefined_grad, check_batched_grad=check_batched_grad,
        fast_mode=fast_mode,
    )  # fmt: skip


def _seed(output: Tensor, has_gaps: bool) -> Tensor:
    """Return a random gradient of `output`, from -1 to 1, that requires a gradient; if `has_gaps`, not contiguous."""
    rng = np.random.default_rng(1)
    has_gaps = has_gaps and output.ndim > 0
    shape = (*output.shape[:-1], 2 * output.shape[-1]) if has_gaps else output.shape
    values = rng.uniform(-1, 1, shape)
    if output.is_complex():
        values = values + 1j * rng.uniform(-1, 1, shape)
    values = values[..., ::2] if has_gaps else values
    seed = np.asarray(values).astype(output.dtype, order="K", copy=False)
    return Tensor.wrap(moved(seed, output.device)).requires_grad_()
