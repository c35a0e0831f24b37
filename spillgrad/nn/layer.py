"""The base of layers in Paddle's dialect.

Source: paddle.nn.Layer.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from spillgrad import dtypes
from spillgrad.autograd.core.node import RemovableHandle
from spillgrad.errors import ArgumentError
from spillgrad.nn import init
from spillgrad.nn.module import Module
from spillgrad.nn.module_state import IncompatibleKeys
from spillgrad.nn.parameter import Parameter
from spillgrad.ops import creation
from spillgrad.tensor import Tensor

__all__ = ["Layer"]

_numbers: defaultdict[str, "itertools.count[int]"] = defaultdict(itertools.count)


class Layer(Module):
    """A `Module` with the names of Paddle's ``nn.Layer``.

    Modules may be its sub-layers, and it may be a sub-module.

    Parameters
    ----------
    name_scope : str, optional
        First part of `full_name()`; by default, the class's name in lower case.
    dtype : dtype, default "float32"
        Data type of the parameters that `create_parameter` makes.
    """

    def __init__(self, name_scope: str | None = None, dtype: Any = "float32") -> None:
        super().__init__()
        scope = name_scope or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()
        self._full_name = f"{scope}_{next(_numbers[scope])}"
        self._parameter_dtype = dtypes.as_dtype(dtype)

    def full_name(self) -> str:
        """Return the layer's name: the name scope, and a number that no other layer of this scope has.

        Returns
        -------
        str
            Name, such as "linear_0".
        """
        return self._full_name

    def add_sublayer(self, name: str, sublayer: Module) -> Module:
        """Register a sub-layer under a name.

        Parameters
        ----------
        name : str
            Name of the attribute.
        sublayer : Module
            The sub-layer.

        Returns
        -------
        Module
            The sub-layer.
        """
        self.register_module(name, sublayer)
        return sublayer

    def add_parameter(self, name: str, parameter: Parameter | None) -> Parameter | None:
        """Register a parameter under a name.

        Parameters
        ----------
        name : str
            Name of the attribute.
        parameter : Parameter or None
            The parameter; None reserves the name.

        Returns
        -------
        Parameter or None
            The parameter.
        """
        self.register_parameter(name, parameter)
        return parameter

    def create_parameter(
        self, shape: Any, attr: Any = None, dtype: Any = None, is_bias: bool = False,
        default_initializer: Callable[[Tensor], Any] | None = None,
    ) -> Parameter | None:  # fmt: skip
        """Return a new parameter, which an assignment to an attribute registers.

        Parameters
        ----------
        shape : sequence of int
            Its shape.
        attr : bool, optional
            False for no parameter; None and True say nothing.
        dtype : dtype, optional
            Data type; by default, the layer's.
        is_bias : bool, default False
            Whether it begins as zeros; others are drawn from Glorot's uniform distribution.
        default_initializer : callable, optional
            Takes the parameter and fills it.

        Returns
        -------
        Parameter or None
            The parameter; None if `attr` is False.

        Raises
        ------
        ArgumentError
            If `attr` is anything but None, True and False.
        """
        if attr is False:
            return None
        if attr is not None and attr is not True:
            raise ArgumentError(
                f"create_parameter: got attr of {type(attr).__name__}; give default_initializer, and the rest to the "
                "optimizer's groups"
            )
        parameter = Parameter(creation.empty(tuple(shape), dtype=self._parameter_dtype if dtype is None else dtype))
        if default_initializer is not None:
            default_initializer(parameter)
        elif is_bias or parameter.ndim == 0:
            init.zeros_(parameter)
        else:
            fan = parameter.shape[0] if parameter.ndim == 1 else None
            bound = (6 / (2 * fan)) ** 0.5 if fan else 0.0
            init.uniform_(parameter, -bound, bound) if parameter.ndim == 1 else init.xavier_uniform_(parameter)
        return parameter

    def parameters(  # type: ignore[override]
        self, include_sublayers: bool = True, *, recurse: bool | None = None
    ) -> list[Parameter]:
        """Return the parameters, a shared one once.

        Parameters
        ----------
        include_sublayers : bool, default True
            Whether to include those of sub-layers.
        recurse : bool, optional
            PyTorch's name of `include_sublayers`.

        Returns
        -------
        list of Parameter
            The parameters.
        """
        return list(super().parameters(include_sublayers if recurse is None else recurse))

    def buffers(  # type: ignore[override]
        self, include_sublayers: bool = True, *, recurse: bool | None = None
    ) -> list[Tensor]:
        """Return the buffers, a shared one once.

        Parameters
        ----------
        include_sublayers : bool, default True
            Whether to include those of sub-layers.
        recurse : bool, optional
            PyTorch's name of `include_sublayers`.

        Returns
        -------
        list of Tensor
            The buffers.
        """
        return list(super().buffers(include_sublayers if recurse is None else recurse))

    def named_parameters(  # type: ignore[override]
        self, prefix: str = "", include_sublayers: bool = True, remove_duplicate: bool = True, *,
        recurse: bool | None = None,
    ) -> Iterator[tuple[str, Parameter]]:  # fmt: skip
        """Yield the parameters with their paths.

        Parameters
        ----------
        prefix : str, default ""
            Beginning of the paths.
        include_sublayers : bool, default True
            Whether to include those of sub-layers.
        remove_duplicate : bool, default True
            Whether a shared parameter is yielded only once, under its first path.
        recurse : bool, optional
            PyTorch's name of `include_sublayers`.

        Returns
        -------
        iterator of (str, Parameter)
            Pairs of a path, such as "layers.0.weight", and what is there.
        """
        return super().named_parameters(prefix, include_sublayers if recurse is None else recurse, remove_duplicate)

    def sublayers(self, include_self: bool = False) -> list[Module]:
        """Return all layers below, each once.

        Parameters
        ----------
        include_self : bool, default False
            Whether this layer comes first.

        Returns
        -------
        list of Module
            The layers.
        """
        return [layer for _, layer in self.named_sublayers(include_self=include_self)]

    def named_sublayers(
        self, prefix: str = "", include_self: bool = False, layers_set: set[Module] | None = None
    ) -> Iterator[tuple[str, Module]]:  # fmt: skip
        """Yield all layers below with their paths, each once.

        Parameters
        ----------
        prefix : str, default ""
            Beginning of the paths.
        include_self : bool, default False
            Whether this layer comes first.
        layers_set : set of Module, optional
            Layers to leave out; yielded layers are added to it.

        Returns
        -------
        iterator of (str, Module)
            Pairs of a path, such as "layers.0", and a module. The path of this module is `prefix`.
        """
        return (
            (path, layer)
            for path, layer in self.named_modules(layers_set, prefix)
            if include_self or layer is not self
        )  # fmt: skip

    def register_buffer(self, name: str, tensor: Tensor | None, persistable: bool = True) -> None:
        """Register a tensor that is state but is not trained.

        Parameters
        ----------
        name : str
            Name of the attribute.
        tensor : Tensor or None
            The buffer; None reserves the name.
        persistable : bool, default True
            Whether `state_dict` includes the buffer.
        """
        super().register_buffer(name, tensor, persistable)

    def register_forward_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(layer, inputs, output)`` after forward; a result other than None replaces the output.

        Parameters
        ----------
        hook : callable
            The hook.

        Returns
        -------
        RemovableHandle
            Its `remove()` removes the hook.
        """
        return self.register_forward_hook(hook)

    def set_state_dict(self, state_dict: Any, use_structured_name: bool = True) -> IncompatibleKeys:
        """Copy tensors or arrays into the parameters and buffers of the same paths.

        Parameters
        ----------
        state_dict : mapping
            Tensors or arrays by path.
        use_structured_name : bool, default True
            Whether keys are paths, as they must be.

        Returns
        -------
        IncompatibleKeys
            The missing keys and the unexpected keys.

        Raises
        ------
        StateDictError
            If a tensor has another shape.
        ArgumentError
            If `use_structured_name` is False.
        """
        if not use_structured_name:
            raise ArgumentError("set_state_dict: got use_structured_name=False; parameters are known by their paths")
        return self.load_state_dict(state_dict, strict=False)

    set_dict = load_dict = set_state_dict

    def clear_gradients(self, set_to_zero: bool = True) -> None:
        """Fill the parameters' gradients with zeros, or set them to None.

        Parameters
        ----------
        set_to_zero : bool, default True
            Whether to fill them with zeros.
        """
        for parameter in self.parameters():
            parameter.clear_grad(set_to_zero)
