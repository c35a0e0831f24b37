"""Custom differentiable functions in Paddle's dialect.

`PyLayer.backward` returns one gradient per tensor, and its errors are ValueErrors. An input that forward returns was
changed in place, unless `mark_not_inplace` named it.

Source: paddle.autograd.PyLayer, PyLayerContext.
"""

from typing import Any

from spillgrad.autograd.custom_function import Context, CustomFunction, is_among
from spillgrad.errors import ArgumentError, GradientMismatchError
from spillgrad.tensor import Tensor


class PyLayerContext(Context):
    """The `ctx` that forward and backward of a `PyLayer` get: forward saves in it what backward needs."""

    def saved_tensor(self) -> tuple[Any, ...] | None:
        """Return the tensors given to `save_for_backward`, unpacked.

        Returns
        -------
        tuple of Tensor or None
            None if forward did not call `save_for_backward`.
        """
        return None if self._to_save is None and not self._saved else self._unpacked()

    def mark_not_inplace(self, *inputs: Tensor) -> None:
        """Mark inputs that forward returns unchanged: each becomes a separate output, not an in-place change.

        Parameters
        ----------
        *inputs : Tensor
            Arguments of forward.
        """
        self._not_inplace = inputs


class PyLayer(CustomFunction):
    """A custom function in Paddle's dialect, called by ``apply``.

    Subclasses define static methods ``forward(ctx, ...)`` and ``backward(ctx, *grads)``. Tensors in lists and keyword
    arguments are inputs too. ``backward()`` of an output with many elements starts from a gradient of ones, as in
    Paddle, where other tensors need one.

    Raises
    ------
    ValueError
        For a wrong number or type of gradients, for a forward that returns no tensor, and for a leaf that forward
        returns without `mark_not_inplace`.
    """

    _context = PyLayerContext
    _in_place_hint = "forward returns an input; name it in ctx.mark_not_inplace() unless it was changed in place"
    _error = GradientMismatchError
    _forward_error = ArgumentError
    _into_lists = True
    _returns_a_tensor = True
    _starts_from_ones = True
    _none_for_non_tensors = False
    _several = (tuple, list)
    _repeats_are_one = False

    @staticmethod
    def _gradients_per_tensor(name: str, values: list[Any], layout: list[Any], count: int) -> list[Any]:
        arguments = [entry for entry in layout if entry]
        if len(values) == len(arguments) and any(isinstance(v, list | tuple) for v in values):
            flat: list[Any] = []
            for i, (entry, value) in enumerate(zip(arguments, values, strict=True)):
                parts = list(value) if isinstance(value, list | tuple) else [value]
                wanted = entry[0] if isinstance(entry, tuple) else 1
                if len(parts) != wanted:
                    raise GradientMismatchError(
                        f"{name}: backward returned {len(parts)} gradients for input {i}; it holds {wanted} tensors"
                    )
                flat.extend(parts)
            values = flat
        if len(values) != count:
            raise GradientMismatchError(
                f"{name}: backward returned {len(values)} gradients; forward took {count} tensors, return one "
                f"(or None) for each"
            )
        return values

    @staticmethod
    def _changes_in_place(ctx: Context, returned_input: Tensor) -> bool:
        return not is_among(returned_input, ctx._not_inplace)
