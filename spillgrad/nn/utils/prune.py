"""Pruning: parameters of which a mask sets elements to zero.

A pruned parameter `weight` becomes the parameter `weight_orig` and the buffer `weight_mask`; before each forward a hook
sets the attribute `weight` to their product. Pruning it again prunes what the mask has left.
Source: torch.nn.utils.prune.
"""

import abc
import functools
import numbers
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.errors import ArgumentError, DimensionError, OperandError
from spillgrad.nn.module import Module
from spillgrad.nn.utils.convert_parameters import parameters_to_vector
from spillgrad.ops.creation import ones_like, rand, rand_like, zeros_like
from spillgrad.ops.norms import vector_norm
from spillgrad.ops.sorting import topk
from spillgrad.tensor import Tensor

__all__ = [
    "BasePruningMethod", "CustomFromMask", "Identity", "L1Unstructured", "LnStructured", "PruningContainer",
    "RandomStructured", "RandomUnstructured", "custom_from_mask", "global_unstructured", "identity", "is_pruned",
    "l1_unstructured", "ln_structured", "random_structured", "random_unstructured", "remove",
]  # fmt: skip


def _require_amount(amount: Any) -> None:
    """Raise unless an amount is a number of things or a fraction of them."""
    if not isinstance(amount, numbers.Real):
        raise OperandError(f"Invalid type for amount: {amount}. Must be int or float.")
    if amount < 0 or (amount > 1 and not isinstance(amount, numbers.Integral)):  # type: ignore[operator]
        raise ArgumentError(
            f"amount={amount} should either be a float in the range [0, 1] or a non-negative integer"
        )  # fmt: skip


def _count_to_prune(amount: Any, count: int) -> int:
    """Return how many of `count` things an amount is. Raises ArgumentError for more than there are."""
    wanted = int(amount) if isinstance(amount, numbers.Integral) else round(amount * count)
    if wanted > count:
        raise ArgumentError(f"amount={wanted} should be smaller than the number of parameters to prune={count}")
    return wanted


class BasePruningMethod(abc.ABC):
    """The base of ways to prune, which are hooks before forward: subclasses define `compute_mask`.

    `PRUNING_TYPE` says what `compute_mask` is given of a parameter that was pruned before: the elements that are left
    ("unstructured"), the slices along `dim` that are left ("structured"), or everything ("global").
    """

    PRUNING_TYPE: ClassVar[str]
    _tensor_name: str

    def __call__(self, module: Module, inputs: Any) -> None:
        setattr(module, self._tensor_name, self.apply_mask(module))

    @abc.abstractmethod
    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """Return the mask: 1 keeps an element, 0 prunes it.

        Parameters
        ----------
        t : Tensor
            Importance of the elements, by default the parameter itself.
        default_mask : Tensor
            The mask so far, of the shape of `t`.

        Returns
        -------
        Tensor
            Of the shape of `t`.
        """

    def apply_mask(self, module: Module) -> Tensor:
        """Return the product of a module's parameter and its mask.

        Parameters
        ----------
        module : Module
            Has the pruned parameter.

        Returns
        -------
        Tensor
            Of the parameter's shape and dtype.
        """
        original = getattr(module, f"{self._tensor_name}_orig")
        return getattr(module, f"{self._tensor_name}_mask").to(original.dtype) * original  # type: ignore[no-any-return]

    @classmethod
    def apply(
        cls, module: Module, name: str, *args: Any, importance_scores: Tensor | None = None, **kwargs: Any
    ) -> "BasePruningMethod":
        """Prune a parameter of a module.

        Parameters
        ----------
        module : Module
            Has the parameter.
        name : str
            Name of the parameter in the module.
        *args : Any
            Arguments of the class.
        importance_scores : Tensor, optional
            Of the parameter's shape, ranks its elements; by default, the parameter itself.
        **kwargs : Any
            Arguments of the class, by name.

        Returns
        -------
        BasePruningMethod
            The hook; a `PruningContainer` if the parameter was pruned before.

        Raises
        ------
        ArgumentError
            If scores have another shape.
        """
        earlier = _hooks(module, name)
        method: BasePruningMethod = cls(*args, **kwargs)
        method._tensor_name = name
        parameter = getattr(module, name)
        if importance_scores is not None and importance_scores.shape != parameter.shape:
            raise ArgumentError(
                f"prune: got scores of shape {tuple(importance_scores.shape)}; importance_scores should have the same "
                f"shape as parameter {name} of {module}"
            )
        scores = parameter if importance_scores is None else importance_scores
        if not earlier:
            mask = method.compute_mask(scores, ones_like(parameter))
            delattr(module, name)
            module.register_parameter(f"{name}_orig", parameter)
        else:
            before = _hook(module, earlier[0])
            container = before if isinstance(before, PruningContainer) else PruningContainer(before)
            mask = container._with(method, scores, getattr(module, f"{name}_mask").detach().clone())
            container.add_pruning_method(method)
            method = container
            del module._forward_pre_hooks[earlier[0]]
        module.register_buffer(f"{name}_mask", mask)
        setattr(module, name, method.apply_mask(module))
        module.register_forward_pre_hook(method)
        return method

    def prune(self, t: Tensor, default_mask: Tensor | None = None, importance_scores: Tensor | None = None) -> Tensor:
        """Return a tensor, not of a module, with its unimportant elements set to zero.

        Parameters
        ----------
        t : Tensor
            The tensor.
        default_mask : Tensor, optional
            The mask so far, of the shape of `t`; by default, ones.
        importance_scores : Tensor, optional
            Of the shape of `t`, ranks its elements; by default, `t` itself.

        Returns
        -------
        Tensor
            The product of `t` and its mask.

        Raises
        ------
        ArgumentError
            If scores have another shape.
        """
        if importance_scores is not None and importance_scores.shape != t.shape:
            raise ArgumentError("prune: importance_scores should have the same shape as tensor t")
        scores = t if importance_scores is None else importance_scores
        return t * self.compute_mask(scores, ones_like(t) if default_mask is None else default_mask)

    def remove(self, module: Module) -> None:
        """Make the product of parameter and mask the parameter, without a mask; the hook itself stays.

        Parameters
        ----------
        module : Module
            Has the pruned parameter.
        """
        name = self._tensor_name
        original = getattr(module, f"{name}_orig")
        with no_grad():
            original.copy_(self.apply_mask(module))
        delattr(module, name)
        delattr(module, f"{name}_orig")
        delattr(module, f"{name}_mask")
        setattr(module, name, original)


class PruningContainer(BasePruningMethod):
    """Several ways to prune one parameter, in the order they were applied.

    Parameters
    ----------
    *args : BasePruningMethod
        The ways to prune; `add_pruning_method` adds others.
    """

    def __init__(self, *args: BasePruningMethod) -> None:
        self._pruning_methods: tuple[BasePruningMethod, ...] = ()
        if args:
            self._tensor_name = args[0]._tensor_name
        for method in args:
            self.add_pruning_method(method)

    def add_pruning_method(self, method: BasePruningMethod | None) -> None:
        """Add a way to prune the same parameter.

        Parameters
        ----------
        method : BasePruningMethod
            Acts on the parameter of that name.

        Raises
        ------
        OperandError
            For anything else; it is a TypeError.
        ArgumentError
            If it acts on a parameter of another name.
        """
        if method is not None and not isinstance(method, BasePruningMethod):
            raise OperandError(f"{type(method)} is not a BasePruningMethod subclass")
        if method is not None and self._tensor_name != method._tensor_name:
            raise ArgumentError(
                f"Can only add pruning methods acting on the parameter named '{self._tensor_name}' to PruningContainer "
                f"{self}. Found '{method._tensor_name}'"
            )
        self._pruning_methods += (method,)  # type: ignore[operator]

    def __len__(self) -> int:
        return len(self._pruning_methods)

    def __iter__(self) -> Iterator[BasePruningMethod]:
        return iter(self._pruning_methods)

    def __getitem__(self, index: Any) -> Any:
        return self._pruning_methods[index]

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """Return the mask so far, with what the last way to prune takes from it.

        Parameters
        ----------
        t : Tensor
            Importance of the elements.
        default_mask : Tensor
            The mask so far, of the shape of `t`.

        Returns
        -------
        Tensor
            Of the shape and dtype of `t`.
        """
        return self._with(self._pruning_methods[-1], t, default_mask)

    def _with(self, method: BasePruningMethod, t: Tensor, mask: Tensor) -> Tensor:
        """Return a mask with what a way to prune takes from what is left."""
        if method.PRUNING_TYPE == "unstructured":
            left: Any = mask == 1
        elif method.PRUNING_TYPE == "structured":
            if not hasattr(method, "dim"):
                raise AttributeError(
                    'Pruning methods of PRUNING_TYPE "structured" need to have the attribute `dim` defined.'
                )
            dim = method.dim + t.ndim if method.dim < 0 else method.dim
            if not 0 <= dim < t.ndim:
                raise DimensionError(f"Index is out of bounds for tensor with dimensions {t.ndim}: got {method.dim}")
            kept = mask.sum([d for d in range(t.ndim) if d != dim]) != 0
            left = (*(slice(None),) * dim, kept)
        elif method.PRUNING_TYPE == "global":
            left = (slice(None),) * t.ndim
        else:
            raise ArgumentError(f"Unrecognized PRUNING_TYPE {method.PRUNING_TYPE}")
        found = mask.to(t.dtype).clone()
        found[left] = method.compute_mask(t[left], mask[left]).to(found.dtype)
        return found  # type: ignore[no-any-return]


class Identity(BasePruningMethod):
    """Prune nothing, but make the mask and the hook."""

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        return default_mask


class _Unstructured(BasePruningMethod):
    """Prune the elements that rank lowest, wherever they are. `amount` is a number of them, or their fraction."""

    PRUNING_TYPE = "unstructured"

    def __init__(self, amount: float) -> None:
        _require_amount(amount)
        self.amount = amount

    @staticmethod
    def _ranks(t: Tensor) -> Tensor:
        raise NotImplementedError

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        count = _count_to_prune(self.amount, t.numel())
        mask = default_mask.clone()
        if count:
            mask.view(-1)[topk(self._ranks(t).reshape(-1), count, largest=False).indices] = 0
        return mask  # type: ignore[no-any-return]


class RandomUnstructured(_Unstructured):
    """Prune elements that are drawn at random.

    Parameters
    ----------
    amount : int or float
        Number of elements, or, as a float from 0 to 1, a fraction of them.

    Raises
    ------
    OperandError
        If `amount` is not a number.
    ArgumentError
        If `amount` is negative, or a float above 1.
    """

    @staticmethod
    def _ranks(t: Tensor) -> Tensor:
        return rand_like(t)


class L1Unstructured(_Unstructured):
    """Prune the elements of the smallest absolute values.

    Parameters
    ----------
    amount : int or float
        Number of elements, or, as a float from 0 to 1, a fraction of them.

    Raises
    ------
    OperandError
        If `amount` is not a number.
    ArgumentError
        If `amount` is negative, or a float above 1.
    """

    @staticmethod
    def _ranks(t: Tensor) -> Tensor:
        return t.detach().abs()  # type: ignore[no-any-return]


class _Structured(BasePruningMethod):
    """Prune whole slices along `dim`, those that rank lowest. `amount` is a number of them, or their fraction."""

    PRUNING_TYPE = "structured"

    def __init__(self, amount: float, dim: int = -1) -> None:
        _require_amount(amount)
        self.amount, self.dim = amount, dim

    def _ranks(self, t: Tensor) -> Tensor:
        raise NotImplementedError

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        if t.ndim <= 1:
            raise ArgumentError(
                "Structured pruning can only be applied to multidimensional tensors. Found tensor of shape "
                f"{tuple(t.shape)} with {t.ndim} dims"
            )
        if not -t.ndim <= self.dim < t.ndim:
            raise DimensionError(f"Invalid index {self.dim} for tensor of size {tuple(t.shape)}")
        slices = t.shape[self.dim]
        count = _count_to_prune(self.amount, slices)
        if not count:
            return default_mask
        mask = zeros_like(t).detach()
        mask.movedim(self.dim, 0)[topk(self._ranks(t), slices - count).indices] = 1
        return mask * default_mask.to(mask.dtype)  # type: ignore[no-any-return]


class RandomStructured(_Structured):
    """Prune slices along a dimension that are drawn at random.

    Parameters
    ----------
    amount : int or float
        Number of slices, or, as a float from 0 to 1, a fraction of them.
    dim : int, default -1
        Dimension of the slices.

    Raises
    ------
    OperandError
        If `amount` is not a number.
    ArgumentError
        If `amount` is negative, or a float above 1.
    """

    def _ranks(self, t: Tensor) -> Tensor:
        return rand(t.shape[self.dim], device=t.device)


class LnStructured(_Structured):
    """Prune the slices along a dimension that have the smallest norms.

    Parameters
    ----------
    amount : int or float
        Number of slices, or, as a float from 0 to 1, a fraction of them.
    n : float
        Order of the norm; inf and -inf give the largest and the smallest absolute value.
    dim : int, default -1
        Dimension of the slices.

    Raises
    ------
    OperandError
        If `amount` is not a number.
    ArgumentError
        If `amount` is negative, or a float above 1.
    """

    def __init__(self, amount: float, n: Any, dim: int = -1) -> None:
        super().__init__(amount, dim)
        self.n = n

    def _ranks(self, t: Tensor) -> Tensor:
        others = [d for d in range(t.ndim) if d != self.dim % t.ndim]
        return vector_norm(t.detach(), self.n, others)


class CustomFromMask(BasePruningMethod):
    """Prune by a mask that is given.

    Parameters
    ----------
    mask : Tensor
        Of the parameter's shape; 0 prunes an element.
    """

    PRUNING_TYPE = "global"

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        if default_mask.shape != self.mask.shape:
            raise ArgumentError(
                f"prune: got a mask of shape {tuple(self.mask.shape)}; the parameter's is {tuple(default_mask.shape)}"
            )
        return default_mask * self.mask.to(default_mask.dtype)  # type: ignore[no-any-return]


def _hook(module: Module, key: Any) -> Any:
    """Return a hook before forward as it was registered."""
    called: Any = module._forward_pre_hooks[key]
    return called.args[0] if isinstance(called, functools.partial) and called.args else called


def _hooks(module: Module, name: str | None) -> list[Any]:
    """Return the keys of a module's hooks that prune, those that prune the parameter `name` if that is not None."""
    hooks = {key: _hook(module, key) for key in module._forward_pre_hooks}
    return [k for k, h in hooks.items() if isinstance(h, BasePruningMethod) and name in (None, h._tensor_name)]


def identity(module: Module, name: str) -> Module:
    """Make the mask and the hook of a parameter, and prune nothing.

    Parameters
    ----------
    module : Module
        Has the parameter.
    name : str
        Name of the parameter in the module.

    Returns
    -------
    Module
        The module itself.
    """
    Identity.apply(module, name)
    return module


def random_unstructured(module: Module, name: str, amount: float) -> Module:
    """Prune elements of a parameter that are drawn at random.

    Parameters
    ----------
    module : Module
        Has the parameter.
    name : str
        Name of the parameter in the module.
    amount : int or float
        Number of elements, or, as a float from 0 to 1, a fraction of those that are left.

    Returns
    -------
    Module
        The module itself.

    Raises
    ------
    OperandError
        If `amount` is not a number.
    ArgumentError
        If `amount` is negative, a float above 1, or more than there are.
    """
    RandomUnstructured.apply(module, name, amount)
    return module


def l1_unstructured(module: Module, name: str, amount: float, importance_scores: Tensor | None = None) -> Module:
    """Prune the elements of a parameter that have the smallest absolute values, or scores.

    Parameters
    ----------
    module : Module
        Has the parameter.
    name : str
        Name of the parameter in the module.
    amount : int or float
        Number of elements, or, as a float from 0 to 1, a fraction of those that are left.
    importance_scores : Tensor, optional
        Of the parameter's shape, ranks its elements; by default, the parameter itself.

    Returns
    -------
    Module
        The module itself.

    Raises
    ------
    OperandError
        If `amount` is not a number.
    ArgumentError
        If `amount` is negative, a float above 1, or more than there are; or if scores have another shape.

    Examples
    --------
    >>> import spillgrad as sg
    >>> from spillgrad.nn.utils import prune
    >>> layer = sg.nn.Linear(3, 2, bias=False)
    >>> with sg.no_grad():
    ...     layer.weight[:] = sg.tensor([[0.5, -0.1, 2.0], [0.3, -1.0, 0.05]])
    >>> prune.l1_unstructured(layer, "weight", amount=0.5).weight_mask.tolist()
    [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    """
    L1Unstructured.apply(module, name, amount=amount, importance_scores=importance_scores)
    return module


def random_structured(module: Module, name: str, amount: float, dim: int) -> Module:
    """Prune slices of a parameter along a dimension that are drawn at random.

    Parameters
    ----------
    module : Module
        Has the parameter.
    name : str
        Name of the parameter in the module.
    amount : int or float
        Number of slices, or, as a float from 0 to 1, a fraction of those that are left.
    dim : int
        Dimension of the slices.

    Returns
    -------
    Module
        The module itself.

    Raises
    ------
    OperandError
        If `amount` is not a number.
    ArgumentError
        If `amount` is negative, a float above 1, or more than there are; or if the parameter has only one dimension.
    DimensionError
        If `dim` is out of range.
    """
    RandomStructured.apply(module, name, amount, dim)
    return module


def ln_structured(
    module: Module, name: str, amount: float, n: Any, dim: int, importance_scores: Tensor | None = None
) -> Module:
    """Prune the slices of a parameter along a dimension that have the smallest norms.

    Parameters
    ----------
    module : Module
        Has the parameter.
    name : str
        Name of the parameter in the module.
    amount : int or float
        Number of slices, or, as a float from 0 to 1, a fraction of those that are left.
    n : float
        Order of the norm; inf and -inf give the largest and the smallest absolute value.
    dim : int
        Dimension of the slices.
    importance_scores : Tensor, optional
        Of the parameter's shape, ranks its elements; by default, the parameter itself.

    Returns
    -------
    Module
        The module itself.

    Raises
    ------
    OperandError
        If `amount` is not a number.
    ArgumentError
        If `amount` is negative, a float above 1, or more than there are; if the parameter has only
        one dimension; or if scores have another shape.
    DimensionError
        If `dim` is out of range.
    """
    LnStructured.apply(module, name, amount, n, dim, importance_scores=importance_scores)
    return module


def custom_from_mask(module: Module, name: str, mask: Tensor) -> Module:
    """Prune the elements of a parameter where a mask is 0.

    Parameters
    ----------
    module : Module
        Has the parameter.
    name : str
        Name of the parameter in the module.
    mask : Tensor
        Of the parameter's shape.

    Returns
    -------
    Module
        The module itself.

    Raises
    ------
    ArgumentError
        If the mask has another shape.
    """
    CustomFromMask.apply(module, name, mask)
    return module


def global_unstructured(
    parameters: Iterable[tuple[Module, str]], pruning_method: type[BasePruningMethod],
    importance_scores: dict[tuple[Module, str], Tensor] | None = None, **kwargs: Any,
) -> None:  # fmt: skip
    """Prune the least important elements among those of several parameters.

    Parameters
    ----------
    parameters : iterable of tuple of (Module, str)
        Modules, each with the name of a parameter in it.
    pruning_method : subclass of BasePruningMethod
        Its `PRUNING_TYPE` must be "unstructured".
    importance_scores : dict from (Module, str) to Tensor, optional
        Ranks the elements of these parameters, in the shape of each; by default, a parameter itself does.
    **kwargs : Any
        Arguments of the class `pruning_method`; `amount` is of the elements that are left of all parameters.

    Raises
    ------
    OperandError
        If `pruning_method` is not "unstructured", or an argument is of a wrong type; it is a TypeError.
    """
    if not isinstance(parameters, Iterable):
        raise OperandError("global_unstructured(): parameters is not an Iterable")
    if importance_scores is not None and not isinstance(importance_scores, dict):
        raise OperandError("global_unstructured(): importance_scores must be of type dict")
    pairs, given = list(parameters), importance_scores or {}
    scores = parameters_to_vector([given.get((m, name), getattr(m, name)) for m, name in pairs])
    masks = [getattr(m, f"{name}_mask", None) for m, name in pairs]
    ones = [ones_like(getattr(m, name)) if mask is None else mask for mask, (m, name) in zip(masks, pairs, strict=True)]
    method = pruning_method(**kwargs)
    if method.PRUNING_TYPE != "unstructured":
        raise OperandError(
            'Only "unstructured" PRUNING_TYPE supported for the `pruning_method`. Found method '
            f"{pruning_method} of type {method.PRUNING_TYPE}"
        )
    mask = PruningContainer()._with(method, scores, parameters_to_vector(ones))
    first = 0
    for module, name in pairs:
        parameter = getattr(module, name)
        custom_from_mask(module, name, mask[first : first + parameter.numel()].reshape(parameter.shape))
        first += parameter.numel()


def remove(module: Module, name: str) -> Module:
    """Make a pruned parameter an ordinary one, with zeros.

    Parameters
    ----------
    module : Module
        Has the parameter.
    name : str
        Name of the parameter in the module.

    Returns
    -------
    Module
        The module itself.

    Raises
    ------
    ArgumentError
        If the parameter is not pruned.
    """
    keys = _hooks(module, name)
    if not keys:
        raise ArgumentError(
            f"Parameter '{name}' of module {module} has to be pruned before pruning can be removed"
        )  # fmt: skip
    _hook(module, keys[0]).remove(module)
    del module._forward_pre_hooks[keys[0]]
    return module


def is_pruned(module: Module) -> bool:
    """Return whether a parameter of a module, or of one within, is pruned.

    Parameters
    ----------
    module : Module
        Module to search.

    Returns
    -------
    bool
        True if there is a hook that prunes.
    """
    return any(_hooks(m, None) for _, m in module.named_modules())
