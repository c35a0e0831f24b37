"""PyTorch's former class of tensors with gradients, and its engine, which libraries still reach through the class.

Source: torch.autograd.Variable.
"""

from collections.abc import Callable
from typing import Any

from spillgrad.autograd.core.engine import current_run, is_running
from spillgrad.errors import GraphError
from spillgrad.tensor import Tensor


class ExecutionEngine:
    """The engine that runs backward."""

    def queue_callback(self, callback: Callable[[], Any]) -> None:
        """Call `callback()` when the backward that this thread is running has computed all gradients.

        A callback may queue others. Raises GraphError if no backward is running.
        """
        if not is_running():
            raise GraphError(
                "queue_callback: Final callbacks can only be installed during backward pass; call it in a hook, or in "
                "the backward of a custom function"
            )
        current_run().at_end.append(callback)


class _Tensors(type(Tensor)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Tensor)


class Variable(Tensor, metaclass=_Tensors):
    """PyTorch's former name of tensors: a call makes a tensor, and all tensors are instances.

    Parameters
    ----------
    data : Tensor or array, optional
        Values; a tensor is not copied, and the new one shares its memory. None makes an empty tensor.
    requires_grad : bool, default False
        Whether to record operations on the result.
    """

    _execution_engine = ExecutionEngine()

    def __new__(cls, data: Any = None, requires_grad: bool = False) -> Any:
        return Tensor(*(() if data is None else (data,)), requires_grad=requires_grad)
