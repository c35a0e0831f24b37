"""L-BFGS: a quasi-Newton method for losses that can be computed again at other parameters."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from spillgrad.autograd.core.grad_mode import enable_grad, no_grad
from spillgrad.errors import ArgumentError, GraphError
from spillgrad.ops.complex_views import view_as_real
from spillgrad.ops.creation import zeros_like
from spillgrad.ops.join_split import cat
from spillgrad.optim.optimizer import Optimizer, ParameterList, State
from spillgrad.tensor import Tensor

# The least curvature along a step that makes a step part of the history.
_LEAST_CURVATURE = 1e-10
# Wolfe's conditions: the decrease that is sufficient, the slope that is small enough, and the steps tried at most.
_DECREASE, _SLOPE, _SEARCHES = 1e-4, 0.9, 25
_LEAST_BRACKET = 1e-9


class LBFGS(Optimizer):
    """Minimise along directions made of the last steps and changes of the gradient.

    A step iterates until the gradient is below `tolerance_grad` or the change below `tolerance_change`. Complex
    parameters count as their real and imaginary parts. The state takes ``2 * history_size`` times the memory of all
    parameters, and stays in RAM.

    Parameters
    ----------
    params : iterable
        Parameters or (name, parameter) pairs; only one group.
    lr : float, default 1.0
        Length of an iteration's change along its direction.
    max_iter : int, default 20
        Largest number of iterations of a step.
    max_eval : int, optional
        Largest number of evaluations of a step; by default, 1.25 times `max_iter`.
    tolerance_grad : float, default 1e-7
        Largest element of a gradient that counts as none.
    tolerance_change : float, default 1e-9
        Change that counts as none.
    history_size : int, default 100
        Number of changes that make a direction.
    line_search_fn : {"strong_wolfe"}, optional
        Whether lengths fulfil Wolfe's strong conditions; by default, they are the learning rate.

    Raises
    ------
    ArgumentError
        If the learning rate is negative, or there are several groups.

    Notes
    -----
    Source: Nocedal, Wright 2006, "Numerical optimization", algorithms 7.4, 3.5 and 3.6.
    """

    state_has_dtype_of_parameter = True
    numbers_in_state = ("t", "ro", "H_diag", "prev_loss")

    def __init__(
        self, params: ParameterList, lr: float = 1.0, max_iter: int = 20, max_eval: int | None = None,
        tolerance_grad: float = 1e-7, tolerance_change: float = 1e-9, history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:  # fmt: skip
        if not lr >= 0:
            raise ArgumentError(f"LBFGS: got lr {lr}; it must not be negative")
        options = {
            "lr": lr, "max_iter": max_iter, "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
            "tolerance_grad": tolerance_grad, "tolerance_change": tolerance_change, "history_size": history_size,
            "line_search_fn": line_search_fn,
        }  # fmt: skip
        super().__init__(params, options)
        if len(self.param_groups) != 1:
            raise ArgumentError(
                f"LBFGS: got {len(self.param_groups)} groups; LBFGS doesn't support per-parameter options (parameter "
                "groups); give one"
            )
        self._params: list[Tensor] = self.param_groups[0]["params"]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Do up to `max_iter` iterations.

        Parameters
        ----------
        closure : callable
            Computes the loss and its gradients anew, and returns the loss.

        Returns
        -------
        object
            The loss at the beginning.

        Raises
        ------
        ArgumentError
            If there is no closure.
        GraphError
            If the parameters are offloaded.
        """
        if closure is None:
            raise ArgumentError("LBFGS: got no closure; step needs one that computes the loss and its gradients")
        if self.step_context is not Optimizer.step_context:
            raise GraphError("LBFGS: its parameters are offloaded; it needs all of them at once: use another optimizer")
        with no_grad():
            return _Minimisation(self._params, self.state[self._params[0]], self.param_groups[0], closure).run()


def _as_reals(tensor: Tensor) -> Tensor:
    """Return a view of a complex tensor's real and imaginary parts; return a real tensor itself."""
    return view_as_real(tensor) if tensor.is_complex() else tensor


class _Point(NamedTuple):
    """A length of a step, and there the loss, the gradient and the slope along the step."""

    length: float
    loss: float
    gradient: Tensor
    slope: float


class _Minimisation:
    """One call of `step`: its parameters, its state, its options and its closure."""

    def __init__(
        self, params: list[Tensor], state: State, options: dict[str, Any], closure: Callable[[], Any]
    ) -> None:  # fmt: skip
        self.params, self.state, self.options = params, state, options
        self._closure = closure
        self._evaluations = 0

    def run(self) -> Any:
        """Iterate; return the first loss."""
        state, options = self.state, self.options
        state.setdefault("func_evals", 0)
        state.setdefault("n_iter", 0)
        first = self._evaluated()
        loss, gradient = float(first), self._gradient()
        iterations = 0
        while iterations < options["max_iter"] and not self._is_flat(gradient):
            iterations += 1
            state["n_iter"] += 1
            direction = self._direction(gradient)
            length = options["lr"]
            if state["n_iter"] == 1:
                length *= min(1.0, 1.0 / float(gradient.abs().sum()))
            state.update(t=length, d=direction, prev_flat_grad=gradient.clone(), prev_loss=loss)
            slope = float((gradient * direction).sum())
            if slope > -options["tolerance_change"]:
                break
            before = loss
            if options["line_search_fn"] is None:
                self._move(direction, length)
                if iterations < options["max_iter"]:
                    loss, gradient = float(self._evaluated()), self._gradient()
            elif options["line_search_fn"] == "strong_wolfe":
                start = _Point(0.0, loss, gradient, slope)
                found = _LineSearch(self, direction, start).run(length)
                self._move(direction, found.length)
                state["t"] = length = found.length
                loss, gradient = found.loss, found.gradient
            else:
                raise GraphError(
                    f"LBFGS: got line_search_fn {options['line_search_fn']!r}; only 'strong_wolfe' is supported"
                )
            if self._evaluations >= options["max_eval"]:
                break
            moved = float((direction * length).abs().max())
            if min(moved, abs(loss - before)) < options["tolerance_change"] or moved <= options["tolerance_change"]:
                break
        return first

    def at(self, start: list[Tensor], direction: Tensor, length: float) -> _Point:
        """Return the point at a length along a direction; the parameters end where they began."""
        self._move(direction, length)
        loss, gradient = float(self._evaluated()), self._gradient()
        for param, value in zip(self.params, start, strict=True):
            param.copy_(value)
        return _Point(length, loss, gradient, float((gradient * direction).sum()))

    def _evaluated(self) -> Any:
        self._evaluations += 1
        self.state["func_evals"] += 1
        with enable_grad():
            return self._closure()

    def _gradient(self) -> Tensor:
        parts = [zeros_like(param) if param.grad is None else param.grad for param in self.params]
        return cat([_as_reals(part).reshape(-1) for part in parts])

    def _is_flat(self, gradient: Tensor) -> bool:
        return float(gradient.abs().max()) <= float(self.options["tolerance_grad"])

    def _move(self, direction: Tensor, length: float) -> None:
        """Add the step to the parameters."""
        offset = 0
        for param in map(_as_reals, self.params):
            part = direction[offset : offset + param.numel()]
            param.add_(part.reshape(param.shape), alpha=length)
            offset += param.numel()

    def _direction(self, gradient: Tensor) -> Tensor:
        """Return the next direction, and add the last step to the history."""
        state = self.state
        if state["n_iter"] == 1:
            state.update(old_dirs=[], old_stps=[], ro=[], H_diag=1.0)
            return -gradient
        change, step = gradient - state["prev_flat_grad"], state["d"] * state["t"]
        curvature = float((change * step).sum())
        changes, steps, inverses = state["old_dirs"], state["old_stps"], state["ro"]
        if curvature > _LEAST_CURVATURE:
            if len(changes) == self.options["history_size"]:
                for history in (changes, steps, inverses):
                    history.pop(0)
            changes.append(change)
            steps.append(step)
            inverses.append(1.0 / curvature)
            state["H_diag"] = curvature / float((change * change).sum())
        direction: Tensor = -gradient
        weights: list[float] = []
        for past_change, past_step, inverse in zip(reversed(changes), reversed(steps), reversed(inverses), strict=True):
            weights.append(float((past_step * direction).sum()) * inverse)
            direction = direction - past_change * weights[-1]
        direction = direction * state["H_diag"]
        for past_change, past_step, inverse in zip(changes, steps, inverses, strict=True):
            share = float((past_change * direction).sum()) * inverse
            direction = direction + past_step * (weights.pop() - share)
        return direction


class _LineSearch:
    """The search for a length along a direction that fulfils Wolfe's strong conditions."""

    def __init__(self, minimisation: _Minimisation, direction: Tensor, start: _Point) -> None:
        self._minimisation, self._direction, self._start = minimisation, direction, start
        self._params = [param.clone() for param in minimisation.params]
        self._left = _SEARCHES

    def run(self, length: float) -> _Point:
        """Return a point that fulfils the conditions, or the best one that was found."""
        bracket = self._bracketed(self._at(length))
        if isinstance(bracket, _Point):
            return bracket
        return self._zoomed(*bracket)

    def _at(self, length: float) -> _Point:
        return self._minimisation.at(self._params, self._direction, length)

    def _is_too_high(self, point: _Point) -> bool:
        return point.loss > self._start.loss + _DECREASE * point.length * self._start.slope

    def _is_level(self, point: _Point) -> bool:
        return abs(point.slope) <= -_SLOPE * self._start.slope

    def _bracketed(self, point: _Point) -> _Point | tuple[_Point, _Point]:
        """Go on until a point fulfils the conditions, or two points have one between them."""
        before, tried = self._start, 0
        while tried < _SEARCHES:
            if self._is_too_high(point) or (tried > 1 and point.loss >= before.loss):
                return before, point
            if self._is_level(point):
                return point
            if point.slope >= 0:
                return before, point
            bounds = point.length + 0.01 * (point.length - before.length), point.length * 10
            before, point = point, self._at(_lowest_of_cubic(before, point, bounds))
            tried += 1
            self._left -= 1
        return self._start, point

    def _zoomed(self, first: _Point, second: _Point) -> _Point:
        """Shorten the interval between two points until the lower one fulfils the conditions."""
        low, high = (first, second) if first.loss <= second.loss else (second, first)
        first_is_low, hardly_moved = low is first, False
        size = float(self._direction.abs().max())
        while self._left > 0 and abs(first.length - second.length) * size >= _LEAST_BRACKET:
            ends = sorted((first.length, second.length))
            length = _lowest_of_cubic(first, second, (ends[0], ends[1]))
            margin = 0.1 * (ends[1] - ends[0])
            is_near_end = min(ends[1] - length, length - ends[0]) < margin
            if is_near_end and (hardly_moved or length >= ends[1] or length <= ends[0]):
                length = ends[1] - margin if abs(length - ends[1]) < abs(length - ends[0]) else ends[0] + margin
                hardly_moved = False
            else:
                hardly_moved = is_near_end
            point = self._at(length)
            self._left -= 1
            if self._is_too_high(point) or point.loss >= low.loss:
                high = point
                if low.loss > high.loss:
                    low, high, first_is_low = high, low, not first_is_low
            else:
                if self._is_level(point):
                    return point
                if point.slope * (high.length - low.length) >= 0:
                    high = low
                low = point
            first, second = (low, high) if first_is_low else (high, low)
        return low


def _lowest_of_cubic(first: _Point, second: _Point, bounds: tuple[float, float]) -> float:
    """Return the length, within bounds, at which the cubic through two points with their slopes is lowest.

    Source: Nocedal, Wright 2006, "Numerical optimization", eq. 3.59.
    """
    if first.length > second.length:
        first, second = second, first
    mean = first.slope + second.slope - 3 * (first.loss - second.loss) / (first.length - second.length)
    square = mean * mean - first.slope * second.slope
    if square < 0:
        return sum(bounds) / 2
    root = math.sqrt(square)
    share = (second.slope + root - mean) / (second.slope - first.slope + 2 * root)
    return min(max(second.length - (second.length - first.length) * share, bounds[0]), bounds[1])
