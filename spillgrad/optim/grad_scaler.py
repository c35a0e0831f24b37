"""`GradScaler`: scale the loss so that gradients in float16 do not become zero.

Source: Micikevicius et al. 2018, "Mixed precision training", section 3.2; torch.amp.GradScaler.
"""

import warnings
from typing import Any

from spillgrad import dtypes
from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.errors import ArgumentError, GraphError, UnsupportedError
from spillgrad.ops import comparison
from spillgrad.tensor import Tensor
from spillgrad_kernels.cuda.driver.availability import missing

_LARGEST_SCALE = float(dtypes.finfo("float32").max)  # scaled losses in float32 would be infinite


class GradScaler:
    """Scale losses, and skip the steps of an optimizer whose gradients overflowed.

    After a skipped step the scale is multiplied by `backoff_factor`; after `growth_interval` steps in a row that were
    not skipped, by `growth_factor`.

    Parameters
    ----------
    device : {"cuda", "cpu"}, default "cuda"
        Device of the training.
    init_scale : float, default 65536.0
        First scale.
    growth_factor : float, default 2.0
        Factor of a growing scale, above 1.
    backoff_factor : float, default 0.5
        Factor after a skipped step, below 1.
    growth_interval : int, default 2000
        Number of steps after which the scale grows.
    enabled : bool, default True
        Whether to scale; if not, all methods pass on what they are given.

    Raises
    ------
    ArgumentError
        For factors that do not grow and shrink, and for another device.

    Warns
    -----
    UserWarning
        If `device` is "cuda" and there is no CUDA device: the scaler is not enabled then, as in PyTorch.

    Examples
    --------
    >>> import spillgrad as sg
    >>> model = sg.nn.Linear(2, 1)
    >>> optimizer = sg.optim.SGD(model.parameters(), lr=0.1)
    >>> scaler = sg.GradScaler("cpu", init_scale=8.0, growth_interval=1)
    >>> scaler.scale(model(sg.ones(2)).sum()).backward()
    >>> scaler.step(optimizer)
    >>> scaler.update()
    >>> scaler.get_scale()
    16.0
    """

    def __init__(
        self, device: str = "cuda", init_scale: float = 2.0**16, growth_factor: float = 2.0,
        backoff_factor: float = 0.5, growth_interval: int = 2000, enabled: bool = True,
    ) -> None:  # fmt: skip
        if device not in ("cpu", "cuda"):
            raise ArgumentError(f'GradScaler: got device={device!r}; wanted "cpu" or "cuda"')
        if enabled and device == "cuda" and (lack := missing()) is not None:
            warnings.warn(f"GradScaler: got device='cuda'; {lack}. Disabling", stacklevel=2)
            enabled = False
        if enabled and not growth_factor > 1:
            raise ArgumentError(f"GradScaler: got growth_factor {growth_factor}; The growth factor must be > 1.0.")
        if enabled and not backoff_factor < 1:
            raise ArgumentError(f"GradScaler: got backoff_factor {backoff_factor}; The backoff factor must be < 1.0.")
        self._enabled = bool(enabled)
        self._scale = float(init_scale)
        self._growth_factor = growth_factor
        self._backoff_factor = backoff_factor
        self._growth_interval = growth_interval
        self._growth_tracker = 0
        self._overflowed: dict[int, bool] = {}  # by the optimizers whose gradients were unscaled since `update`
        self._stepped: set[int] = set()

    def scale(self, outputs: Any) -> Any:
        """Return the scaled tensor, or the scaled tensors of an iterable.

        Parameters
        ----------
        outputs : Tensor, list or tuple
            A loss, or losses.

        Returns
        -------
        Tensor, list or tuple
            The losses times the scale.

        Raises
        ------
        ArgumentError
            For anything else.
        """
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return outputs * self._scale
        if isinstance(outputs, list | tuple):
            return type(outputs)([self.scale(output) for output in outputs])
        raise ArgumentError(f"GradScaler.scale: got {type(outputs).__name__}; outputs must be a Tensor or an iterable")

    def unscale_(self, optimizer: Any) -> None:
        """Divide the gradients of an optimizer's parameters by the scale, before they are clipped, for example.

        Parameters
        ----------
        optimizer : Optimizer
            The optimizer.

        Raises
        ------
        GraphError
            If that was done since the last `update`.
        ArgumentError
            For gradients in float16, in which unscaled ones would become zero.
        UnsupportedError
            If backward itself updates the parameters, as with ``disk_offload(step_in_backward=True)``.
        """
        if not self._enabled:
            return
        if id(optimizer) in self._overflowed:
            raise GraphError(
                "unscale_: unscale_() has already been called on this optimizer since the last update(); call it once"
            )
        if id(optimizer) in self._stepped:
            raise GraphError("unscale_: unscale_() is being called after step(); call it between backward and step")
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if any(parameter._updated_in_backward for parameter in parameters):
            raise UnsupportedError(
                "GradScaler: got parameters that backward updates, with scaled gradients; use bfloat16, which needs no "
                "scaling, or let the optimizer step after backward"
            )
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if any(gradient.dtype == dtypes.float16 for gradient in gradients):
            raise ArgumentError(
                "GradScaler: Attempting to unscale FP16 gradients. Keep the parameters in float32, and let autocast "
                "compute in float16"
            )
        overflowed = False
        with no_grad():
            for gradient in gradients:
                gradient.mul_(1 / self._scale)
                overflowed |= not bool(comparison.isfinite(gradient).all())
        self._overflowed[id(optimizer)] = overflowed

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Unscale the gradients unless that was done, and let the optimizer step if all are finite.

        Parameters
        ----------
        optimizer : Optimizer
            The optimizer.
        *args : object
            Arguments of its step.
        **kwargs : object
            Keyword arguments of its step.

        Returns
        -------
        object
            What the optimizer's step returned; None if it was skipped.

        Raises
        ------
        GraphError
            For a second step without `update`.
        ArgumentError
            For a closure.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs:
            raise ArgumentError("step: Closure use is not currently supported if GradScaler is enabled.")
        if id(optimizer) in self._stepped:
            raise GraphError("step: step() has already been called since the last update(); call update() between")
        if id(optimizer) not in self._overflowed:
            self.unscale_(optimizer)
        self._stepped.add(id(optimizer))
        return None if self._overflowed[id(optimizer)] else optimizer.step(*args, **kwargs)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Set the scale for the next iteration.

        Parameters
        ----------
        new_scale : float or Tensor, optional
            The scale; by default, it follows from what happened in this iteration.

        Raises
        ------
        GraphError
            If no optimizer's gradients were unscaled since the last `update`.
        """
        if not self._enabled:
            return
        if new_scale is not None:
            self._scale = float(new_scale)
        elif not self._overflowed:
            raise GraphError("update: No inf checks were recorded prior to update; call step() or unscale_() before")
        elif any(self._overflowed.values()):
            self._scale *= self._backoff_factor
            self._growth_tracker = 0
        else:
            self._growth_tracker += 1
            if self._growth_tracker == self._growth_interval:
                grown = self._scale * self._growth_factor
                self._scale = grown if grown <= _LARGEST_SCALE else self._scale
                self._growth_tracker = 0
        self._overflowed.clear()
        self._stepped.clear()

    def get_scale(self) -> float:
        """Return the scale.

        Returns
        -------
        float
            The scale; 1.0 if not enabled.
        """
        return self._scale if self._enabled else 1.0

    def is_enabled(self) -> bool:
        """Return whether losses are scaled.

        Returns
        -------
        bool
            Whether they are.
        """
        return self._enabled

    def get_growth_factor(self) -> float:
        """Return the factor of a growing scale.

        Returns
        -------
        float
            The factor.
        """
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Set the factor of a growing scale.

        Parameters
        ----------
        new_factor : float
            The factor.
        """
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """Return the factor after a skipped step.

        Returns
        -------
        float
            The factor.
        """
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set the factor after a skipped step.

        Parameters
        ----------
        new_factor : float
            The factor.
        """
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """Return the number of steps after which the scale grows.

        Returns
        -------
        int
            The number.
        """
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Set the number of steps after which the scale grows.

        Parameters
        ----------
        new_interval : int
            The number.
        """
        self._growth_interval = new_interval

    def state_dict(self) -> dict[str, Any]:
        """Return what the scaler needs to continue.

        Returns
        -------
        dict
            The scale, the factors, and the count of steps since the scale changed; empty if not enabled.
        """
        if not self._enabled:
            return {}
        return {
            "scale": self._scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._growth_tracker,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned.

        Parameters
        ----------
        state_dict : dict
            The state.

        Raises
        ------
        ArgumentError
            For the state of a scaler that was not enabled.
        """
        if not self._enabled:
            return
        if not state_dict:
            raise ArgumentError(
                "load_state_dict: The source state dict is empty, possibly because it was saved from a disabled "
                "instance of GradScaler."
            )
        self._scale = float(state_dict["scale"])
        self._growth_factor = state_dict["growth_factor"]
        self._backoff_factor = state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]
        self._growth_tracker = state_dict["_growth_tracker"]
