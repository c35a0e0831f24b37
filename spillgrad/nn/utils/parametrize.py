"""Parametrizations: a parameter of a module that is computed, at each use, from other parameters.

Source: torch.nn.utils.parametrize.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.errors import ArgumentError
from spillgrad.nn.containers import ModuleDict, ModuleList
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.tensor import Tensor

__all__ = [
    "ParametrizationList", "cached", "is_parametrized", "register_parametrization", "remove_parametrizations",
    "type_before_parametrizations",
]  # fmt: skip


class _Cache:
    """The values computed within `cached()` blocks, by module and name."""

    depth = 0
    values: dict[tuple[int, str], Tensor]


_cache = _Cache()
_cache.values = {}


@contextmanager
def cached() -> Iterator[None]:
    """Compute each parametrized tensor at most once within the block."""
    _cache.depth += 1
    try:
        yield
    finally:
        _cache.depth -= 1
        if not _cache.depth:
            _cache.values.clear()


class ParametrizationList(ModuleList):
    """The parametrizations of one tensor, applied one after the other, and the tensors that they begin with.

    These are `original`, or `original0`, `original1`, … if the first parametrization takes several.

    Parameters
    ----------
    modules : sequence of Module
        The parametrizations, one or more.
    original : Tensor
        The tensor as it is; from it, the methods `right_inverse` of the parametrizations compute the tensors that they
        begin with.
    unsafe : bool, default False
        Whether the parametrized tensor may have another shape or dtype than `original`.

    Raises
    ------
    ArgumentError
        If there are no modules, or a shape, dtype or type does not fit.
    """

    def __init__(self, modules: Sequence[Module], original: Tensor, unsafe: bool = False) -> None:
        if not modules:
            raise ArgumentError("ParametrizationList requires one or more modules.")
        super().__init__(modules)
        self.unsafe = unsafe
        with no_grad():
            first = self._inverted(original)
        if not isinstance(first, Tensor | Sequence):
            raise ArgumentError(
                f"'right_inverse' must return a Tensor or a Sequence of tensors (list, tuple...). Got "
                f"{type(first).__name__}"
            )
        self.is_tensor = isinstance(first, Tensor)
        self.ntensors = 1 if isinstance(first, Tensor) else len(first)
        wanted = original.shape, original.dtype
        if isinstance(first, Tensor):
            if first.dtype != original.dtype:
                raise ArgumentError(
                    "When `right_inverse` outputs one tensor, it may not change the dtype.\n"
                    f"original.dtype: {original.dtype}\nright_inverse(original).dtype: {first.dtype}"
                )
            original.data = first
            self._hold("original", original)
        else:
            for i, tensor in enumerate(first):
                detached = tensor.detach()
                trained = isinstance(original, Parameter)
                self._hold(f"original{i}", Parameter(detached, original.requires_grad) if trained else detached)
        if not unsafe:
            with no_grad():
                found = self()
            _require_alike("A parametrization", found, wanted)

    def _hold(self, name: str, tensor: Tensor) -> None:
        if isinstance(tensor, Parameter):
            self.register_parameter(name, tensor)
        else:
            self.register_buffer(name, tensor)

    def _inverted(self, value: Any) -> Any:
        for module in reversed(list(self)):
            if hasattr(module, "right_inverse"):
                with suppress(NotImplementedError):  # as PyTorch: it begins with the value itself then
                    value = module.right_inverse(value)
        return value

    def originals(self) -> list[Tensor]:
        """Return the tensors that the first parametrization takes.

        Returns
        -------
        list of Tensor
            The tensors.
        """
        return [getattr(self, name) for name in self._names()]

    def _names(self) -> list[str]:
        return ["original"] if self.is_tensor else [f"original{i}" for i in range(self.ntensors)]

    def right_inverse(self, value: Tensor) -> None:
        """Set the original tensors so that the parametrized tensor becomes `value`.

        Parameters
        ----------
        value : Tensor
            New value of the parametrized tensor.

        Raises
        ------
        ArgumentError
            If a parametrization has no method `right_inverse`.
        """
        with no_grad():
            for original, new in zip(self.originals(), self.originals_of(value).values(), strict=True):
                original.data = new

    def originals_of(self, value: Tensor) -> dict[str, Tensor]:
        """Return, by name, the original tensors of which the parametrized tensor would be `value`.

        Parameters
        ----------
        value : Tensor
            Value of the parametrized tensor.

        Returns
        -------
        dict
            Original tensors by name.

        Raises
        ------
        ArgumentError
            If a parametrization has no method `right_inverse`.
        """
        found: Any = value
        for module in reversed(list(self)):
            if not hasattr(module, "right_inverse"):
                raise ArgumentError(
                    f"parametrization {type(module).__name__} does not implement right_inverse; define it, "
                    "or assign to the original tensors"
                )
            found = module.right_inverse(found)
        return dict(zip(self._names(), [found] if self.is_tensor else found, strict=True))

    def forward(self) -> Tensor:
        """Return the parametrized tensor.

        Returns
        -------
        Tensor
            Result of the last parametrization.
        """
        first, *others = self
        value: Tensor = first(*self.originals())
        for module in others:
            value = module(value)
        return value


def _require_alike(what: str, found: Any, wanted: tuple[Any, Any]) -> None:
    if not isinstance(found, Tensor):
        raise ArgumentError(f"{what} must return a tensor. Got {type(found).__name__}.")
    for name, old, new in zip(("shape", "dtype"), wanted, (found.shape, found.dtype), strict=True):
        if old != new:
            raise ArgumentError(
                f"{what} may not change the {name} of the tensor, unless the `unsafe` flag is enabled: {old} became "
                f"{new}"
            )


def _read(module: Any, name: str) -> Tensor:
    if not _cache.depth:
        return module.parametrizations[name]()  # type: ignore[no-any-return]
    key = id(module), name
    if key not in _cache.values:
        _cache.values[key] = module.parametrizations[name]()
    return _cache.values[key]


class _Parametrized(Module):
    """The methods of modules with parametrized tensors, which stand before those of the module's own class."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(getattr(type(self), name, None), property):
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)


def _property(name: str) -> property:
    return property(
        lambda self: _read(self, name), lambda self, value: self.parametrizations[name].right_inverse(value)
    )


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Return whether a module has a parametrized tensor, or one of a given name.

    Parameters
    ----------
    module : Module
        The module.
    tensor_name : str, optional
        Name of the tensor; by default, any tensor counts.

    Returns
    -------
    bool
        Whether there is one.
    """
    found = vars(module).get("_modules", {}).get("parametrizations")
    if not isinstance(found, ModuleDict) or not isinstance(module, _Parametrized):
        return False
    return len(found) > 0 if tensor_name is None else tensor_name in found


def type_before_parametrizations(module: Module) -> type:
    """Return the class that a module had before its first parametrization.

    Parameters
    ----------
    module : Module
        The module.

    Returns
    -------
    type
        The class.
    """
    return type(module).__bases__[1] if isinstance(module, _Parametrized) else type(module)


def register_parametrization(
    module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> Module:
    """Compute a parameter or buffer of a module by a parametrization at each use.

    The class of the module becomes a subclass. Its sub-module ``parametrizations[tensor_name]`` holds the tensors that
    are trained.

    Parameters
    ----------
    module : Module
        Module that has the tensor.
    tensor_name : str
        Name of the parameter or buffer. If it is parametrized, the new parametrization takes what the former ones give.
    parametrization : Module
        Computes the tensor. If it has a method `right_inverse`, the trained tensors are what this returns for the
        present value.
    unsafe : bool, default False
        Whether the tensor's shape or dtype may change.

    Returns
    -------
    Module
        The module.

    Raises
    ------
    ArgumentError
        If there is no such tensor or, unless `unsafe`, if its shape or dtype would change.

    Examples
    --------
    >>> import spillgrad as sg
    >>> class Positive(sg.nn.Module):
    ...     def forward(self, x):
    ...         return x.exp()
    >>> layer = sg.nn.Linear(2, 2)
    >>> parametrized = sg.nn.utils.parametrize.register_parametrization(layer, "weight", Positive())
    >>> bool((layer.weight > 0).all())
    True
    """
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        parametrizations: Any = module.parametrizations
        if not unsafe:
            with no_grad():
                present = getattr(module, tensor_name)
                _require_alike("A parametrization", parametrization(present), (present.shape, present.dtype))
        parametrizations[tensor_name].append(parametrization)
        parametrizations[tensor_name].unsafe |= unsafe
        return module
    if tensor_name not in module._parameters and tensor_name not in module._buffers:
        raise ArgumentError(
            f"Module '{module}' does not have a parameter, a buffer, or a parametrized element with name "
            f"'{tensor_name}'"
        )
    made = ParametrizationList([parametrization], getattr(module, tensor_name), unsafe)
    delattr(module, tensor_name)
    if not is_parametrized(module):
        own = type(module)
        module.__class__ = type(f"Parametrized{own.__name__}", (_Parametrized, own), {"__module__": own.__module__})
        module.parametrizations = ModuleDict()
    setattr(type(module), tensor_name, _property(tensor_name))
    module.parametrizations[tensor_name] = made
    return module


def remove_parametrizations(module: Module, tensor_name: str, leave_parametrized: bool = True) -> Module:
    """Make a parametrized tensor a parameter or buffer again.

    Parameters
    ----------
    module : Module
        Module that has the tensor.
    tensor_name : str
        Name of the tensor.
    leave_parametrized : bool, default True
        Whether the tensor has its computed value; otherwise, it has the original one.

    Returns
    -------
    Module
        The module.

    Raises
    ------
    ArgumentError
        If the tensor is not parametrized, or its original value consists of several tensors and is to be left.
    """
    if not is_parametrized(module, tensor_name):
        raise ArgumentError(f"Module {module} does not have a parametrization on {tensor_name}")
    parametrizations: Any = module.parametrizations
    made = parametrizations[tensor_name]
    value = getattr(module, tensor_name)
    if made.is_tensor:
        tensor = made.original
        if leave_parametrized:
            tensor.data = value.detach()
    elif leave_parametrized:
        tensor = Parameter(value.detach()) if value.requires_grad else value
    else:
        raise ArgumentError(
            "Cannot leave unparametrized (`leave_parametrized=False`) a tensor that is parametrized in terms of a "
            "sequence of tensors."
        )
    delattr(type(module), tensor_name)
    del parametrizations[tensor_name]
    if not len(parametrizations):
        delattr(module, "parametrizations")
        module.__class__ = type_before_parametrizations(module)
    if isinstance(tensor, Parameter):
        module.register_parameter(tensor_name, tensor)
    else:
        module.register_buffer(tensor_name, tensor)
    return module
