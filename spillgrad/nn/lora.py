"""Low-rank adapters: train two thin matrices beside each frozen weight instead of the weight.

Source: Hu et al. 2021, "LoRA: low-rank adaptation of large language models", equation 3; names are those of
Hugging Face's peft.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from spillgrad.autograd.core.grad_mode import is_recording, no_grad
from spillgrad.errors import ArgumentError, GraphError, StateDictError
from spillgrad.nn import init
from spillgrad.nn.dropout import Dropout
from spillgrad.nn.gpt2_linear import Conv1D
from spillgrad.nn.linear import Linear
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.nn.quantized import QuantizedConv1D, QuantizedLinear
from spillgrad.nn.replacing import LayerNames, replaced
from spillgrad.ops import matrix_products, quantized
from spillgrad.ops.arithmetic import add, mul
from spillgrad.ops.elementwise import call
from spillgrad.ops.shape import transpose
from spillgrad.tensor import Tensor

__all__ = ["LoRAConv1D", "LoRALinear", "load_lora_state_dict", "lora", "lora_state_dict", "merge_lora"]


class AdapterOptions(NamedTuple):
    """The options of a layer's adapters, with the names of `lora`."""

    rank: int
    alpha: float
    dropout: float = 0.0


# The prefix of every name in peft's files.
_PEFT_PREFIX = "base_model.model."


class LoRALayer(Module):
    """The base of layers with a frozen weight and adapters; weight, bias and hooks are taken from the layer `base`.

    Only `merge` and `unmerge` write to the weight.
    """

    base_class: ClassVar[type[Module]]
    weight: Parameter
    bias: Parameter | None

    def __init__(self, base: Module, rank: int, alpha: float | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        vars(self).update(vars(base) | {"_modules": dict(base._modules)})
        outputs, inputs = self._sizes()
        self.rank = rank
        self.alpha = rank if alpha is None else alpha
        self.scaling = self.alpha / rank
        self.merged = False
        self.lora_dropout = Dropout(dropout)
        like = {"device": self.weight.device, "dtype": self._adapters_dtype()}
        self.lora_A = Linear(inputs, rank, bias=False, **like)  # U(±1/√inputs), Kaiming's with a=√5
        self.lora_B = Linear(rank, outputs, bias=False, **like)
        init.zeros_(self.lora_B.weight)
        self.lora_dropout.train(base.training)

    @staticmethod
    def _out_in(weight: Tensor) -> Tensor:
        """Convert between the weight's shape and (outputs, inputs), in either direction; return a view."""
        return weight

    def _sizes(self) -> tuple[int, ...]:
        """Return the numbers of outputs and of inputs."""
        return self._out_in(self.weight).shape

    def _adapters_dtype(self) -> Any:
        """Return the dtype that adapters begin with."""
        return self.weight.dtype

    def _base(self, x: Tensor) -> Tensor:
        """Return the product of `x` and the weight, plus the bias."""
        return matrix_products.linear(x, self._out_in(self.weight), self.bias)

    def merge(self) -> None:
        """Add scaling · B · A to the weight, so that forward costs no more than without adapters."""
        if not self.merged:
            self._shift(self.scaling)
            self.merged = True

    def unmerge(self) -> None:
        """Subtract what `merge` added; this restores the weight up to rounding, not bit for bit."""
        if self.merged:
            self._shift(-self.scaling)
            self.merged = False

    def _shift(self, scaling: float) -> None:
        with no_grad():
            self.weight.add_(self._out_in(self.lora_B.weight @ self.lora_A.weight), alpha=scaling)

    def unloaded(self) -> Module:
        """Merge, and return a layer of the class `base_class` with the merged weight, without adapters.

        Returns
        -------
        Module
            The layer.
        """
        self.merge()
        base = self.base_class.__new__(self.base_class)
        ours = ("rank", "alpha", "scaling", "merged")
        kept = {name: child for name, child in self._modules.items() if not name.startswith("lora_")}
        vars(base).update({name: value for name, value in vars(self).items() if name not in ours}, _modules=kept)
        return base

    def _product(self, x: Tensor) -> Tensor:
        """Return the product of `x` and the weight, plus the bias, plus the adapters' result for `x` unless merged."""
        base = self._base(x)
        if self.merged:
            if self.training and is_recording() and self.lora_A.weight.requires_grad:
                raise GraphError(
                    f"{type(self).__name__}: got a training step while merged, in which adapters get no gradient; "
                    "unmerge() first, or evaluate with eval() or in no_grad()"
                )
            return base
        down = self.lora_A(self.lora_dropout(x))
        return matrix_products.linear(mul(down, self.scaling), self.lora_B.weight, residual=base)

    def state_dict(self, **options: Any) -> dict[str, Any]:
        """Return the module's state.

        Parameters
        ----------
        **options : object
            Those of `Module.state_dict`.

        Returns
        -------
        dict
            Parameters and persistent buffers by path.

        Raises
        ------
        GraphError
            While merged, because loading such a state would merge twice.
        """
        if self.merged:
            raise GraphError(
                f"{type(self).__name__}: got state_dict() while merged; unmerge() first, or take the adapters away for "
                "good with merge_lora(model)"
            )
        return super().state_dict(**options)

    def extra_repr(self) -> str:
        extra = self.base_class.extra_repr(self)
        return f"{extra}, rank={self.rank}, scaling={self.scaling:g}{', merged' if self.merged else ''}"


class LoRALinear(LoRALayer):
    """Compute ``x @ weight.T + bias + scaling * B(A(dropout(x)))``; only A and B are trained.

    The weight of ``lora_A`` has shape (rank, in_features), that of ``lora_B`` (out_features, rank); B begins with
    zeros.

    Parameters
    ----------
    base : Module
        Layer whose weight, bias and hooks are taken.
    rank : int
        Rank of the adapters.
    alpha : float, optional
        The adapters' result is multiplied by ``alpha / rank``; by default, the rank.
    dropout : float, default 0.0
        Probability of dropping an element of the adapters' input.
    """

    base_class: ClassVar[type[Module]] = Linear

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's result.

        Parameters
        ----------
        x : Tensor
            Of shape (..., in_features).

        Returns
        -------
        Tensor
            Of shape (..., out_features).

        Raises
        ------
        GraphError
            In a training step while merged, in which adapters get no gradient.
        """
        return self._product(x)


class LoRAConv1D(LoRALayer):
    """GPT-2's `Conv1D` with adapters; its weight is transposed, and it may end in an activation.

    Parameters
    ----------
    base : Module
        Layer whose weight, bias and hooks are taken.
    rank : int
        Rank of the adapters.
    alpha : float, optional
        The adapters' result is multiplied by ``alpha / rank``; by default, the rank.
    dropout : float, default 0.0
        Probability of dropping an element of the adapters' input.
    """

    base_class: ClassVar[type[Module]] = Conv1D
    activation: str | None

    @staticmethod
    def _out_in(weight: Tensor) -> Tensor:
        return transpose(weight, 0, 1)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return the layer's result, plus `residual` if that is given.

        Parameters
        ----------
        x : Tensor
            Of shape (..., in_features).
        residual : Tensor, optional
            Of the shape of the result.

        Returns
        -------
        Tensor
            Of shape (..., out_features).

        Raises
        ------
        GraphError
            In a training step while merged, in which adapters get no gradient.
        """
        result = self._product(x)
        if self.activation is not None:
            result = call(self.activation, result)
        return result if residual is None else add(residual, result)


class _OverQuantized(LoRALayer):
    """What differs where the frozen weight is quantized."""

    _matrix: Any
    dtype: Any

    def _sizes(self) -> tuple[int, ...]:
        return self._matrix().shape  # type: ignore[no-any-return]

    def _adapters_dtype(self) -> Any:
        return self.dtype

    def _base(self, x: Tensor) -> Tensor:
        return quantized.linear(x, self._matrix(), self.bias)

    def _shift(self, scaling: float) -> None:
        raise GraphError(
            f"{type(self).__name__}: got merge() with a quantized weight, which cannot hold the sum; call "
            "dequantize(model) first, or keep the adapters beside it"
        )


class LoRAQuantizedLinear(_OverQuantized, LoRALinear):
    """A `LoRALinear` with a quantized weight; `merge` raises GraphError."""

    base_class = QuantizedLinear
    _matrix, _exact = QuantizedLinear._matrix, QuantizedLinear._exact
    dequantized = QuantizedLinear.dequantized


class LoRAQuantizedConv1D(_OverQuantized, LoRAConv1D):
    """A `LoRAConv1D` with a quantized weight; `merge` raises GraphError."""

    base_class = QuantizedConv1D
    _matrix, _exact = QuantizedConv1D._matrix, QuantizedConv1D._exact
    dequantized = QuantizedConv1D.dequantized


_LAYERS: tuple[type[LoRALayer], ...] = (LoRALinear, LoRAConv1D, LoRAQuantizedLinear, LoRAQuantizedConv1D)


def lora(
    model: Module, rank: int = 8, alpha: float | None = None, dropout: float = 0.0,
    target: str | Sequence[str] | None = None,
) -> Module:  # fmt: skip
    """Freeze a model and add adapters of a given rank to its linear layers, in place.

    A layer computes ``base(x) + alpha / rank * B(A(dropout(x)))``. Only A and B require gradients; give the optimizer
    ``(p for p in model.parameters() if p.requires_grad)``. Frozen weights get no gradients and are kept for backward
    only if the layer's input needs a gradient; only `merge` and `unmerge` write to them. `lora_state_dict` returns the
    adapters alone. Layers whose weight is tied to another layer's weight stay unchanged.

    Parameters
    ----------
    model : Module
        The model.
    rank : int, default 8
        Rank of the adapters, from 1 on.
    alpha : float, optional
        Factor of the adapters' results, before they are divided by the rank; by default, the rank.
    dropout : float, default 0.0
        Probability of dropping an element of the adapters' inputs, from 0 to below 1.
    target : str or sequence of str, optional
        Which `Linear` layers and `Conv1D` layers of GPT-2 to adapt; all, by default. A list of names such as
        "attn.c_proj" chooses layers whose path ends in one of the names. A string is one name, or a regular expression
        that matches whole paths.

    Returns
    -------
    Module
        The model, or its replacement if the model itself is adapted.

    Raises
    ------
    ArgumentError
        For a rank below 1, a name that no layer has, a model without layers to adapt, or a model that has adapters;
        nothing has changed then.

    Notes
    -----
    Source: Hu et al. 2021, equation 3.

    Examples
    --------
    >>> import spillgrad as sg
    >>> model = sg.nn.lora(sg.nn.Sequential(sg.nn.Linear(4, 3)), rank=2)
    >>> [name for name, p in model.named_parameters() if p.requires_grad]
    ['0.lora_A.weight', '0.lora_B.weight']
    """
    if not isinstance(rank, int) or rank < 1:
        raise ArgumentError(f"lora: got rank {rank!r}; wanted an integer from 1 on")
    if not 0 <= dropout < 1:
        raise ArgumentError(f"lora: got dropout {dropout}; wanted a probability from 0 to below 1")
    _require_plain(model)
    options = AdapterOptions(rank, rank if alpha is None else alpha, dropout)
    return _adapted(model, dict.fromkeys(_chosen(model, target), options))


def adapt(model: Module, options: Mapping[str, AdapterOptions]) -> Module:
    """Freeze a model and add adapters to the layers at the given paths, in place; return it, or its replacement.

    Raises ArgumentError, before anything changes, if there is no layer to adapt at a path, or if the model has
    adapters.
    """
    _require_plain(model)
    found, tied = _adaptable(model)
    if unknown := options.keys() - found.keys():
        raise ArgumentError(
            f"lora: got adapters of {', '.join(sorted(unknown))}; {type(model).__name__} has the layers "
            f"{', '.join(found)}{_stay(tied)}"
        )
    return _adapted(model, options)


def adapter_options(model: Module) -> dict[str, AdapterOptions]:
    """Return the options of each layer with adapters, by path."""
    return {
        path: AdapterOptions(layer.rank, layer.alpha, layer.lora_dropout.p) for path, layer in adapted_layers(model)
    }


def _require_plain(model: Module) -> None:
    if any(True for _ in adapted_layers(model)):
        raise ArgumentError("lora: got a model that has adapters; take them away with merge_lora(model) first")


def _adapted(model: Module, options: Mapping[str, AdapterOptions]) -> Module:
    """Freeze the model and add adapters to the layers at these paths."""
    found, _ = _adaptable(model)
    model.requires_grad_(False)
    model.zero_grad()
    layers = {base: layer(base, *options[path]) for path, (base, layer) in found.items() if path in options}
    return replaced(model, layers)


def merge_lora(model: Module) -> Module:
    """Merge all adapters into the layers' weights and remove the adapters, in place.

    Parameters
    ----------
    model : Module
        A model that `lora` returned.

    Returns
    -------
    Module
        The model, or its replacement if the model itself was adapted; it is still frozen.
    """
    layers = [layer for _, layer in adapted_layers(model)]
    for layer in layers:
        if isinstance(layer, _OverQuantized):
            layer.merge()  # raises, before another one has changed
    return replaced(model, {layer: layer.unloaded() for layer in layers})


def lora_state_dict(model: Module) -> dict[str, Tensor]:
    """Return the adapters' weights by path.

    Parameters
    ----------
    model : Module
        A model that `lora` returned.

    Returns
    -------
    dict
        Tensors that share the model's memory, by paths such as "h.0.attn.c_attn.lora_A.weight".
    """
    return {
        f"{path}.{name}.weight" if path else f"{name}.weight": getattr(layer, name).weight.detach()
        for path, layer in adapted_layers(model)
        for name in ("lora_A", "lora_B")
    }


def load_lora_state_dict(model: Module, state_dict: Mapping[str, Any]) -> None:
    """Load the result of `lora_state_dict` into a model's adapters.

    Parameters
    ----------
    model : Module
        A model that `lora` returned.
    state_dict : mapping
        Tensors or arrays by path; names may have the prefix of peft's files.

    Raises
    ------
    StateDictError
        If keys are missing, unexpected or of another shape; the error lists these keys, and nothing was copied.
    GraphError
        While a layer is merged.
    """
    if any(layer.merged for _, layer in adapted_layers(model)):
        raise GraphError("load_lora_state_dict: got a merged model; unmerge() its layers first")
    state = {key.removeprefix(_PEFT_PREFIX): value for key, value in state_dict.items()}
    known = lora_state_dict(model)
    missing, unexpected = sorted(known.keys() - state.keys()), sorted(state.keys() - known.keys())
    if missing or unexpected:
        raise StateDictError(
            f"load_lora_state_dict: missing {', '.join(missing) or 'nothing'}; unexpected "
            f"{', '.join(unexpected) or 'nothing'}; give the adapters of the same layers"
        )
    model.load_state_dict(state, strict=False)


def adapted_layers(model: Module) -> Iterator[tuple[str, LoRALayer]]:
    """Yield the layers with adapters, each with its path."""
    return ((path, module) for path, module in model.named_modules() if isinstance(module, LoRALayer))


def _adaptable(model: Module) -> tuple[dict[str, tuple[Module, type[LoRALayer]]], list[str]]:
    """Return the layers that adapters are for, by path, each with the class that replaces it; and paths of tied ones.

    Layers with tied weights stay as they are.
    """
    uses = Counter(id(p) for module in model.modules() for p in module._parameters.values() if p is not None)
    found: dict[str, tuple[Module, type[LoRALayer]]] = {}
    tied = []
    for path, module in model.named_modules():
        # A subclass is left alone, because it may compute something else.
        layer = next((layer for layer in _LAYERS if type(module).forward is layer.base_class.forward), None)
        if layer is not None and any(uses[id(p)] > 1 for p in module._parameters.values() if p is not None):
            tied.append(path)
        elif layer is not None:
            found[path] = module, layer
    return found, tied


def _chosen(model: Module, target: str | Sequence[str] | None) -> list[str]:
    """Return the paths of the layers to adapt."""
    found, tied = _adaptable(model)
    names = LayerNames("lora: target", () if target is None else target)
    unknown = names.unknown(found)
    if not found:
        raise ArgumentError(
            f"lora: {type(model).__name__} has no layer that adapters are for{_stay(tied)}; those are "
            f"{', '.join(sorted(layer.base_class.__name__ for layer in _LAYERS))}"
        )
    if unknown:
        raise ArgumentError(
            f"lora: got target {', '.join(map(repr, unknown))}; {type(model).__name__} has the layers "
            f"{', '.join(found)}{_stay(tied)}: name some of the former"
        )
    if target is None:
        return list(found)
    return [path for path in found if path in names]


def _stay(tied: Sequence[str]) -> str:
    return f", and with tied weights, which stay as they are, {', '.join(tied)}" if tied else ""
