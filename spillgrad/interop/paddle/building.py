"""Building a Paddle model whose parameters go to a store one by one."""

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import paddle

from spillgrad.errors import ArgumentError, OperandError
from spillgrad.interop.paddle.needs import is_offloaded, members
from spillgrad.interop.paddle.offloaded_parameter import offload_parameter
from spillgrad.spill.offload.residents import Residents
from spillgrad.storage.store import Label

# Layers that move all of their parameters to one piece of memory once they have created them.
_TOGETHER = (paddle.nn.RNNCellBase, paddle.nn.layer.rnn.RNNBase)


@contextlib.contextmanager
def offloading_what_is_registered(residents: Residents) -> Iterator[None]:
    """Context manager: move parameters to the store as soon as this thread's layers create them."""
    given, thread = paddle.nn.Layer.create_parameter, threading.get_ident()

    @functools.wraps(given)
    def create_parameter(self: Any, *args: Any, **kwargs: Any) -> Any:
        parameter = given(self, *args, **kwargs)
        wanted = isinstance(parameter, paddle.Tensor) and not isinstance(self, _TOGETHER)
        if wanted and threading.get_ident() == thread:
            offload_parameter(residents, parameter, Label("parameter", None, type(self).__name__))
        return parameter

    paddle.nn.Layer.create_parameter = create_parameter
    try:
        yield
    finally:
        paddle.nn.Layer.create_parameter = given


def require_offloadable(model: Any, residents: Residents | None) -> None:
    """Raise an error if a model has parts that cannot be offloaded, or are offloaded, but not to `residents`."""
    owners: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        if is_offloaded(parameter):
            if parameter._stored._residents is not residents:
                raise ArgumentError(f"disk_offload: {name} is offloaded already; offload a model once")
            continue
        if parameter.is_dist() or not parameter.is_dense() or not parameter.place.is_cpu_place():
            raise OperandError(
                f"disk_offload: got {name} on {parameter.place}; wanted dense parameters in host memory, of one "
                "process; build the model after paddle.set_device('cpu')"
            )
        other = owners.setdefault(parameter.data_ptr(), name)
        if other != name:
            raise ArgumentError(
                f"disk_offload: {name} and {other} share memory; clone() one, or register one parameter"
            )
    for path, layer in model.named_sublayers(include_self=True):
        if isinstance(layer.forward, paddle.jit.dy2static.program_translator.StaticFunction):
            raise ArgumentError(
                f"disk_offload: {path or type(layer).__name__} is compiled by to_static, and its program reads "
                "parameters without hooks; offload the layer without to_static"
            )


def require_own_parameters(model: Any, optimizer: Any) -> None:
    """Raise ArgumentError if an optimizer has parameters that are not the model's."""
    own = {id(parameter) for parameter in model.parameters()}
    foreign = [parameter.name for parameter, _ in members(optimizer) if id(parameter) not in own]
    if foreign:
        some = ", ".join(foreign[:3]) + (", …" if len(foreign) > 3 else "")
        raise ArgumentError(
            f"disk_offload: the optimizer updates {some}, which the model does not have; give a model that has all of "
            "its parameters, such as a LayerList"
        )
