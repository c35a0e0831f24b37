"""The base of layers and models: named parameters, buffers and sub-modules."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self

from spillgrad import dtypes
from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.autograd.core.node import HookDict
from spillgrad.device.device import CPU
from spillgrad.errors import ArgumentError, DtypeError, OperandError
from spillgrad.nn import init
from spillgrad.nn.module_calls import ModuleCalls
from spillgrad.nn.module_state import ModuleState
from spillgrad.nn.parameter import Buffer, Parameter
from spillgrad.nn.registration import to_register
from spillgrad.ops import creation
from spillgrad.ops.convert import wanted
from spillgrad.ops.typed_tensors import dtype_and_device
from spillgrad.tensor import Tensor

__all__ = ["Module"]

# What assigned parameters, buffers and modules are kept in, by name.
_REGISTRIES = ("_parameters", "_buffers", "_modules")

_COMPLEX_IS_NEW = (
    "Complex modules are a new feature under active development whose design may change, and some modules might not "
    "work as expected when using complex tensors as parameters or buffers."
)


def _is_inexact(dtype: Any) -> bool:
    return dtypes.is_floating_point(dtype) or dtypes.is_complex(dtype)


class Module(ModuleCalls, ModuleState):
    """The base of layers and models; assigning parameters, buffers and sub-modules to attributes registers them.

    Subclasses call ``super().__init__()`` first and define `forward`.

    Attributes
    ----------
    training : bool
        Whether the module is in training mode, as at first; `train` and `eval` set it.

    Examples
    --------
    >>> import spillgrad as sg
    >>> class Doubled(sg.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.linear = sg.nn.Linear(3, 2)
    ...
    ...     def forward(self, x):
    ...         return 2 * self.linear(x)
    >>> model = Doubled()
    >>> [name for name, _ in model.named_parameters()]
    ['linear.weight', 'linear.bias']
    >>> model(sg.ones(5, 3)).shape
    (5, 2)
    """

    # The number of changes to the children of any module. While it is unchanged, cached paths of sub-modules are valid.
    _structure_version: ClassVar[int] = 0

    training: bool
    _modules: "dict[str, Module | None]"
    _known_paths: "tuple[int, dict[ModuleCalls, str]]"

    def __init__(self) -> None:
        vars(self).update(
            training=True,
            _parameters={},
            _buffers={},
            _modules={},
            _transient_buffers=set(),
            _forward_pre_hooks=HookDict(),
            _forward_hooks=HookDict(),
            _always_called=set(),
            _backward_hooks=HookDict(),
            _backward_pre_hooks=HookDict(),
            _state_dict_pre_hooks=HookDict(),
            _state_dict_hooks=HookDict(),
            _load_pre_hooks=HookDict(),
            _load_post_hooks=HookDict(),
            _known_paths=(-1, {}),
        )

    # -- attributes

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Register a parameter under a name.

        Parameters
        ----------
        name : str
            Name of the attribute; not empty, and without a dot.
        param : Parameter or None
            The parameter; None reserves the name for a parameter that the module does not have.

        Raises
        ------
        TypeError
            If `param` is no parameter, or `name` no text.
        KeyError
            If the name is not allowed, or another attribute has it.
        AttributeError
            If the constructor of `Module` has not run.
        """
        self._register("parameter", Parameter, name, param)

    def _new_parameters(self, device: Any, dtype: Any, **shapes: tuple[int, ...] | None) -> None:
        """Register uninitialised parameters of given shapes by name; for a shape of None, register None."""
        for name, shape in shapes.items():
            parameter = None if shape is None else Parameter(init.uninitialised(*shape, device=device, dtype=dtype))
            self.register_parameter(name, parameter)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Register a tensor that is state but is not trained.

        Parameters
        ----------
        name : str
            Name of the attribute; not empty, and without a dot.
        tensor : Tensor or None
            The buffer; None reserves the name for a buffer that the module does not have.
        persistent : bool, default True
            Whether `state_dict` includes the buffer.

        Raises
        ------
        TypeError
            If `tensor` is no tensor, or is sparse and persistent: files hold dense ones.
        KeyError
            If the name is not allowed, or another attribute has it.
        """
        if getattr(tensor, "is_sparse", False) and persistent:
            raise TypeError(
                self._misfit(name, "a dense tensor, as files hold; register it with persistent=False", tensor)
            )
        self._register("buffer", type(tensor) if getattr(tensor, "is_sparse", False) else Tensor, name, tensor)
        if persistent:
            self._transient_buffers.discard(name)
        else:
            self._transient_buffers.add(name)

    def register_module(self, name: str, module: "Module | None") -> None:
        """Register a sub-module under a name.

        Parameters
        ----------
        name : str
            Name of the attribute; not empty, and without a dot.
        module : Module or None
            The sub-module; None reserves the name for a sub-module that the module does not have.

        Raises
        ------
        TypeError
            If `module` is no module.
        KeyError
            If the name is not allowed, or another attribute has it.
        """
        self._register("module", Module, name, module)
        Module._structure_version += 1

    add_module = register_module

    def _register(self, kind: str, wanted: type, name: str, value: Any) -> None:
        """Register a value, or its replacement by registration hooks, under a name; `kind` names the registry.

        Raises TypeError unless the value is None or of the type `wanted`. Raises AttributeError before the constructor
        has run. Raises KeyError for a name that is empty, has a dot or belongs to another attribute.
        """
        owner, registry = type(self).__name__, f"_{kind}s"
        if value is not None and not isinstance(value, wanted):
            raise TypeError(self._misfit(name, f"a {wanted.__name__} or None", value))
        if registry not in vars(self):
            raise AttributeError(f"{owner}: assigned {name!r} too early; call super().__init__() first")
        if not isinstance(name, str):
            raise TypeError(f"{owner}: got {type(name).__name__} as a name; it should be a string")
        if not name or "." in name:
            raise KeyError(f"{owner}: got the name {name!r}; a name must not be empty or contain a dot")
        if name not in vars(self)[registry] and hasattr(self, name):
            raise KeyError(f"{owner}: attribute {name!r} already exists; take another name, or delete it before")
        if value is not None or kind != "parameter":  # as documented, hooks of parameters get no None
            value = to_register(kind, wanted, self, name, value)
        vars(self)[registry][name] = value

    def _make_free(self, name: str, registry: str) -> None:
        """Remove a name from all registries except `registry`, and from plain attributes: a name has one meaning."""
        for other in _REGISTRIES:
            if other != registry and name in vars(self).get(other, ()):
                delattr(self, name)
        vars(self).pop(name, None)

    def _misfit(self, name: str, wanted: str, got: object) -> str:
        return f"{type(self).__name__}.{name}: got {type(got).__name__}, wanted {wanted}"

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Parameter):
            self._make_free(name, "_parameters")
            self.register_parameter(name, value)
        elif isinstance(value, Module):
            self._make_free(name, "_modules")
            self.register_module(name, value)
        elif isinstance(value, Buffer):
            self._make_free(name, "_buffers")
            self.register_buffer(name, value, value.persistent)
        elif name in vars(self).get("_parameters", ()):
            self.register_parameter(name, value)
        elif name in vars(self).get("_modules", ()):
            self.register_module(name, value)
        elif name in vars(self).get("_buffers", ()):
            self.register_buffer(name, value, persistent=name not in self._transient_buffers)
        else:
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        for registry in _REGISTRIES:
            entries = own.get(registry)
            if entries and name in entries:
                return entries[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        for registry in _REGISTRIES:
            if name in vars(self).get(registry, {}):
                del vars(self)[registry][name]
                Module._structure_version += 1
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._parameters, *self._buffers, *self._modules})

    # -- walking

    def _submodule_paths(self) -> "dict[ModuleCalls, str]":
        """Return {sub-module: path}; this module is left out, as it caches the result and would refer to itself."""
        version, paths = self._known_paths
        if version != Module._structure_version:
            paths = {module: name for name, module in self.named_modules() if module is not self}
            vars(self)["_known_paths"] = (Module._structure_version, paths)
        return paths

    def named_modules(
        self, memo: "set[Module] | None" = None, prefix: str = "", remove_duplicate: bool = True
    ) -> "Iterator[tuple[str, Module]]":
        """Yield this module and all below it with their paths.

        Parameters
        ----------
        memo : set of Module, optional
            Modules to leave out; with `remove_duplicate`, yielded modules are added to it.
        prefix : str, default ""
            Beginning of the paths.
        remove_duplicate : bool, default True
            Whether a shared module is yielded only once.

        Returns
        -------
        iterator of (str, Module)
            Pairs of a path, such as "layers.0", and a module. The path of this module is `prefix`.
        """
        return self._walk(set() if memo is None else memo, prefix, remove_duplicate)

    def _walk(self, seen: "set[Module]", path: str, remove_duplicate: bool) -> "Iterator[tuple[str, Module]]":
        if self in seen:
            return
        if remove_duplicate:
            seen.add(self)
        yield path, self
        for name, child in self._modules.items():
            if child is not None:
                yield from child._walk(seen, f"{path}.{name}" if path else name, remove_duplicate)

    def modules(self, remove_duplicate: bool = True) -> "Iterator[Module]":
        """Yield this module and all below it.

        Parameters
        ----------
        remove_duplicate : bool, default True
            Whether a shared module is yielded only once.

        Returns
        -------
        iterator of Module
            The modules in order of registration.
        """
        return (module for _, module in self.named_modules(remove_duplicate=remove_duplicate))

    def named_children(self) -> "Iterator[tuple[str, Module]]":
        """Yield the modules directly below this module with their names; a shared module only once.

        Returns
        -------
        iterator of (str, Module)
            Pairs of a name and a module.
        """
        unique = {module: name for name, module in reversed(self._modules.items()) if module is not None}
        return ((name, module) for module, name in reversed(unique.items()))

    def children(self) -> "Iterator[Module]":
        """Yield the modules directly below this module; a shared module only once.

        Returns
        -------
        iterator of Module
            The modules in order of registration.
        """
        return (module for _, module in self.named_children())

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Yield the parameters with their paths.

        Parameters
        ----------
        prefix : str, default ""
            Beginning of the paths.
        recurse : bool, default True
            Whether to include those of sub-modules.
        remove_duplicate : bool, default True
            Whether a shared parameter is yielded only once, under its first path.

        Returns
        -------
        iterator of (str, Parameter)
            Pairs of a path, such as "layers.0.weight", and what is there.
        """
        return self._named_tensors("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Yield the parameters; a shared parameter only once.

        Parameters
        ----------
        recurse : bool, default True
            Whether to include those of sub-modules.

        Returns
        -------
        iterator of Parameter
            The parameters in order of registration.
        """
        return (parameter for _, parameter in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield the buffers with their paths.

        Parameters
        ----------
        prefix : str, default ""
            Beginning of the paths.
        recurse : bool, default True
            Whether to include those of sub-modules.
        remove_duplicate : bool, default True
            Whether a shared buffer is yielded only once, under its first path.

        Returns
        -------
        iterator of (str, Tensor)
            Pairs of a path, such as "layers.0.weight", and what is there.
        """
        return self._named_tensors("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Yield the buffers; a shared buffer only once.

        Parameters
        ----------
        recurse : bool, default True
            Whether to include those of sub-modules.

        Returns
        -------
        iterator of Tensor
            The buffers in order of registration.
        """
        return (buffer for _, buffer in self.named_buffers(recurse=recurse))

    def _named_tensors(
        self, registry: str, prefix: str, recurse: bool, remove_duplicate: bool
    ) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        modules = self.named_modules(None, prefix, remove_duplicate) if recurse else iter([(prefix, self)])
        for path, module in modules:
            for name, tensor in vars(module)[registry].items():
                if tensor is None or id(tensor) in seen:
                    continue
                if remove_duplicate:
                    seen.add(id(tensor))
                yield f"{path}.{name}" if path else name, tensor

    def get_submodule(self, target: str) -> "Module":
        """Return the module at a path.

        Parameters
        ----------
        target : str
            Path, such as "layers.0"; "" is this module.

        Returns
        -------
        Module
            The module there.

        Raises
        ------
        AttributeError
            If no module is there.
        """
        module: Any = self
        for name in target.split(".") if target else ():
            if not hasattr(module, name):
                raise AttributeError(f"{type(module).__name__} has no attribute `{name}`")
            module = getattr(module, name)
            if not isinstance(module, Module):
                raise AttributeError(f"`{name}` is not an nn.Module")
        return module  # type: ignore[no-any-return]

    def set_submodule(self, target: str, module: "Module") -> None:
        """Replace the module at a path.

        Parameters
        ----------
        target : str
            Path, such as "layers.0".
        module : Module
            The new module.

        Raises
        ------
        ArgumentError
            If the path is "".
        AttributeError
            If no module is there.
        TypeError
            If `module` is no module.
        """
        if not target:
            raise ArgumentError("set_submodule: got the path ''; a module cannot replace itself")
        path, _, name = target.rpartition(".")
        parent = self.get_submodule(path)
        if name not in parent._modules:
            raise AttributeError(f"{type(parent).__name__} has no sub-module `{name}`")
        parent.register_module(name, module)

    def get_parameter(self, target: str) -> Parameter:
        """Return the parameter at a path.

        Parameters
        ----------
        target : str
            Path, such as "layers.0.weight".

        Returns
        -------
        Parameter
            The parameter there.

        Raises
        ------
        AttributeError
            If no parameter is there.
        """
        return self._registered(target, "_parameters", "an nn.Parameter")  # type: ignore[no-any-return]

    def get_buffer(self, target: str) -> Tensor:
        """Return the buffer at a path.

        Parameters
        ----------
        target : str
            Path, such as "norm.running_mean".

        Returns
        -------
        Tensor
            The buffer there.

        Raises
        ------
        AttributeError
            If no buffer is there.
        """
        return self._registered(target, "_buffers", "a buffer")  # type: ignore[no-any-return]

    def _registered(self, target: str, registry: str, kind: str) -> Any:
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        if name not in vars(module)[registry]:
            if not hasattr(module, name):
                raise AttributeError(f"{type(module).__name__} has no attribute `{name}`")
            raise AttributeError(f"`{name}` is not {kind}")
        return vars(module)[registry][name]

    # -- modes and conversions

    def train(self, mode: bool = True) -> Self:
        """Set training mode, or evaluation mode, for this module and all below it.

        Parameters
        ----------
        mode : bool, default True
            True for training mode, False for evaluation mode.

        Returns
        -------
        Module
            This module.
        """
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Set evaluation mode for this module and all below it.

        Returns
        -------
        Module
            This module.
        """
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set whether the parameters require gradients.

        Parameters
        ----------
        requires_grad : bool, default True
            Whether they require gradients.

        Returns
        -------
        Module
            This module.
        """
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the parameters' gradients to None, or fill them with zeros.

        Parameters
        ----------
        set_to_none : bool, default True
            Whether to set them to None.
        """
        for parameter in self.parameters():
            parameter.clear_grad(set_to_zero=not set_to_none)

    def apply(self, fn: "Callable[[Module], None]") -> Self:
        """Call a function on every module below, then on this one.

        Parameters
        ----------
        fn : callable
            Takes a module.

        Returns
        -------
        Module
            This module.
        """
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    def to(
        self, *args: Any, dtype: Any = None, device: Any = None, non_blocking: bool = False, memory_format: Any = None
    ) -> Self:  # fmt: skip
        """Move parameters and buffers to a device, convert those that are not integers to a dtype, or both, in place.

        Parameters
        ----------
        *args : object
            A dtype, a device, both, or a tensor that has them, as in `Tensor.to`.
        dtype : dtype, optional
            Floating-point or complex data type; by default, data types stay. Complex tensors are converted, too.
        device : device, optional
            New device; by default, tensors stay where they are.
        non_blocking : bool, default False
            Accepted for PyTorch's programs.
        memory_format : object, optional
            Accepted for PyTorch's programs.

        Returns
        -------
        Module
            This module.

        Raises
        ------
        DtypeError
            If `dtype` is neither floating-point nor complex.

        Warns
        -----
        UserWarning
            If `dtype` is complex, as in PyTorch.
        """
        dtype, device = wanted(args, dtype, device)
        dtype = None if dtype is None else dtypes.as_dtype(dtype)
        if dtype is not None and not _is_inexact(dtype):
            raise DtypeError(
                f"nn.Module.to: got {dtype}; nn.Module.to only accepts floating point or complex dtypes: convert "
                "integers one by one"
            )
        if dtype is not None and dtypes.is_complex(dtype):
            warnings.warn(_COMPLEX_IS_NEW, stacklevel=2)
        return self._convert(
            lambda tensor: tensor.to(dtype=dtype if _is_inexact(tensor.dtype) else None, device=device)
        )

    def float(self) -> Self:
        """Convert floating-point parameters and buffers to float32, in place; complex ones stay.

        Returns
        -------
        Module
            This module.
        """
        return self._convert_floats("float32")

    def double(self) -> Self:
        """Convert floating-point parameters and buffers to float64, in place; complex ones stay.

        Returns
        -------
        Module
            This module.
        """
        return self._convert_floats("float64")

    def half(self) -> Self:
        """Convert floating-point parameters and buffers to float16, in place; complex ones stay.

        Returns
        -------
        Module
            This module.
        """
        return self._convert_floats("float16")

    def bfloat16(self) -> Self:
        """Convert floating-point parameters and buffers to bfloat16, in place; complex ones stay.

        Returns
        -------
        Module
            This module.
        """
        return self._convert_floats("bfloat16")

    def _convert_floats(self, dtype: str) -> Self:
        return self._convert(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)

    def cuda(self, device: Any = None) -> Self:
        """Move parameters and buffers to a CUDA device, in place.

        Parameters
        ----------
        device : device, optional
            The device; by default, the current CUDA device.

        Returns
        -------
        Module
            This module.

        Raises
        ------
        DeviceError
            If there is no CUDA device.
        """
        return self.to("cuda" if device is None else device)

    def share_memory(self) -> Self:
        """Return the module: threads share its memory anyway, and a forked process has it copy-on-write.

        Returns
        -------
        Module
            This module.
        """
        for tensor in (*self.parameters(), *self.buffers()):
            tensor.share_memory_()
        return self

    def to_empty(self, *, device: Any, recurse: bool = True) -> Self:
        """Give parameters and buffers new, uninitialised memory on a device.

        Parameters
        ----------
        device : device
            Where the memory is.
        recurse : bool, default True
            Whether to include those of sub-modules.

        Returns
        -------
        Module
            This module.
        """
        for tensor in (*self.parameters(recurse), *self.buffers(recurse)):
            tensor.data = creation.empty(tensor.shape, dtype=tensor.dtype, device=device)
        return self

    def cpu(self) -> Self:
        """Move parameters and buffers to the host's memory, in place.

        Returns
        -------
        Module
            This module.
        """
        return self.to("cpu")

    def type(self, dst_type: Any) -> Self:
        """Convert all parameters and buffers, integers too, in place.

        Parameters
        ----------
        dst_type : dtype or str
            Data type, or a type such as "torch.DoubleTensor".

        Returns
        -------
        Module
            This module.

        Raises
        ------
        DtypeError
            If integers would have to require a gradient; nothing has changed then.
        OperandError
            If `dst_type` is None.
        """
        if dst_type is None:
            raise OperandError("nn.Module.type: got None; give a dtype such as 'float64'")
        dtype, _ = dtype_and_device(dst_type, CPU)
        if not _is_inexact(dtype) and any(parameter.requires_grad for parameter in self.parameters()):
            raise DtypeError(
                f"nn.Module.type: got {dtype}; data set to a tensor that requires gradients must be floating point or "
                "complex dtype; call requires_grad_(False) first"
            )
        return self._convert(lambda tensor: tensor.type(dst_type))

    def _convert(self, convert: Callable[[Tensor], Tensor]) -> Self:
        exact = {id(m._buffers.get(name)) for m in self.modules() for name in m._exact}
        with no_grad():
            for tensor in (*self.parameters(), *self.buffers()):
                # Both are converted before either is replaced, because the device may have no room for the second.
                data, grad = convert(tensor.data), None if tensor.grad is None else convert(tensor.grad)
                if id(tensor) in exact and data.dtype is not tensor.dtype:
                    data = tensor.data.to(data.device)
                tensor.grad = None
                tensor.data = data
                tensor.grad = grad
        return self

    # -- display

    def extra_repr(self) -> str:
        """Return the options to show in the module's representation; subclasses define it, the base class shows none.

        Returns
        -------
        str
            Options, such as "in_features=2, out_features=3".
        """
        return ""

    def __repr__(self) -> str:
        return self._represent([f"({name}): {module!r}" for name, module in self._modules.items()])

    def _get_name(self) -> str:
        """Return the module's name in the representation."""
        return type(self).__name__

    def _represent(self, children: list[str]) -> str:
        extra = self.extra_repr().splitlines()
        name = self._get_name()
        if not children and len(extra) <= 1:
            return f"{name}({''.join(extra)})"
        lines = [line.replace("\n", "\n  ") for line in [*extra, *children]]
        return f"{name}(\n  " + "\n  ".join(lines) + "\n)"
