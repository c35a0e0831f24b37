"""Quantizing the frozen weights of a model, in place, and turning them into numbers again.

Source: Dettmers et al. 2023, "QLoRA: efficient finetuning of quantized LLMs".
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from spillgrad.errors import ArgumentError, GraphError
from spillgrad.nn.embedding import Embedding
from spillgrad.nn.gpt2_linear import Conv1D
from spillgrad.nn.linear import Linear
from spillgrad.nn.lora import LoRAConv1D, LoRALayer, LoRALinear, LoRAQuantizedConv1D, LoRAQuantizedLinear
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.nn.quantized import (
    BUFFERS,
    QuantizedConv1D,
    QuantizedEmbedding,
    QuantizedLinear,
    QuantizedWeight,
    require_format,
)
from spillgrad.nn.replacing import LayerNames, replaced
from spillgrad.ops import quantized
from spillgrad.ops.quantized import QuantizedMatrix

__all__ = ["dequantize", "quantize"]

# What a language model computes its outputs with; as in peers, it stays as it is unless a caller says otherwise.
OUTPUT_LAYERS = ("lm_head",)


def quantize(
    model: Module, to: str, skip: str | Sequence[str] = OUTPUT_LAYERS, *, embeddings: bool = False
) -> Module:  # fmt: skip
    """Hold the frozen weights of a model's linear layers in 4 or 8 bits, in place.

    "nf4" takes 4.13 bits a number: one of 16 levels, times a scale of a block of 64, which is held in 8 bits. "int8"
    takes 8: a number of -127 to 127, times a scale of the row. Products expand codes while they read them, forward and
    for the gradient of the input, so no weight is ever in memory as a whole. Codes and scales are those of
    bitsandbytes. Biases, norms, and what `skip` names stay as they are. To train, add adapters with `lora`.

    Layers are quantized one by one, so the memory of only one weight is taken beside the model.

    Parameters
    ----------
    model : Module
        The model. Weights that are quantized must be frozen: `model.requires_grad_(False)`.
    to : {"nf4", "int8"}
        Format of the weights.
    skip : str or sequence of str, default ("lm_head",)
        Names of layers that stay as they are: whole paths or ends of paths; or a regular expression of whole paths.
    embeddings : bool, default False
        Whether to quantize the tables of `Embedding` layers, too; rows are expanded when they are looked up.

    Returns
    -------
    Module
        The model; a new layer if `model` itself is a linear layer.

    Raises
    ------
    ArgumentError
        For an unknown format, a name in `skip` that no layer has, a weight that is trained, that is not finite or that
        is offloaded, a model with adapters, and if there is nothing to quantize. Nothing was changed, unless a later
        weight is not finite.

    Notes
    -----
    A weight that several layers share stays as it is. A layer of a subclass of `Linear` stays, too, if it has a
    `forward` of its own.

    Examples
    --------
    >>> import spillgrad as sg
    >>> model = sg.nn.Sequential(sg.nn.Linear(64, 128), sg.nn.ReLU(), sg.nn.Linear(128, 64)).requires_grad_(False)
    >>> sg.nn.quantize(model, "nf4")[0]
    QuantizedLinear(in_features=64, out_features=128, bias=True, format=nf4)
    >>> sg.nn.lora(model, rank=4)(sg.randn(2, 64)).shape
    (2, 64)
    """
    require_format("quantize", to)
    paths = _chosen(model, skipped_layers(model, skip), embeddings)
    for path in paths:
        layer = model.get_submodule(path)
        model = replaced(model, {layer: quantized_layer(layer, path, to)})
        del layer
    return model


def quantizable(model: Module) -> Iterator[tuple[str, Module]]:
    """Yield linear layers and embeddings, with their paths, whose weight no other layer shares."""
    uses = Counter(id(p) for module in model.modules() for p in module._parameters.values() if p is not None)
    for path, module in model.named_modules():
        weight = module._parameters.get("weight")
        # A subclass is left alone, because it may compute something else.
        is_known = any(type(module).forward is kind.forward for kind in (Linear, Conv1D, Embedding))
        if is_known and weight is not None and uses[id(weight)] == 1:
            yield path, module


def skipped_layers(model: Module, skip: str | Sequence[str]) -> LayerNames:
    """Return the names of layers that stay as they are. Raises ArgumentError for a name that no layer has."""
    names = LayerNames("quantize: skip", skip)
    layers = [path for path, m in model.named_modules() if "weight" in m._parameters or "weight" in m._buffers]
    if skip != OUTPUT_LAYERS and (unknown := names.unknown(layers)):
        ends = dict.fromkeys(path.rpartition(".")[2] for path in layers)
        raise ArgumentError(
            f"quantize: got skip {', '.join(map(repr, unknown))}; {type(model).__name__} has layers that end in "
            f"{', '.join(ends)}: name some of these, or whole paths"
        )
    return names


def _chosen(model: Module, skip: LayerNames, embeddings: bool) -> list[str]:
    """Return the paths of layers to quantize. Raises ArgumentError for those that cannot be."""
    if any(isinstance(module, LoRALayer) for module in model.modules()):
        raise ArgumentError("quantize: got a model with adapters; quantize the model first, then call lora(model)")
    found = {
        path: layer
        for path, layer in quantizable(model)
        if path not in skip and (embeddings or type(layer).forward is not Embedding.forward)
    }
    if not found:
        raise ArgumentError(
            f"quantize: {type(model).__name__} has no linear layer that skip={skip.names} leaves; give a model "
            "with some"
        )
    named = {path: layer._parameters["weight"] for path, layer in found.items()}
    if trained := [path for path, weight in named.items() if weight is not None and weight.requires_grad]:
        more = f" and {len(trained) - 1} others" if len(trained) > 1 else ""
        raise ArgumentError(
            f"quantize: got a weight that is trained, that of {trained[0] or type(model).__name__}{more}; freeze the "
            "model with model.requires_grad_(False), or name what is trained in skip"
        )
    if any(weight is not None and weight._storage.offloaded for weight in named.values()):
        raise ArgumentError("quantize: got weights that are offloaded; quantize the model first, then disk_offload it")
    return list(found)


def quantized_layer(layer: Module, path: str, to: str, matrix: QuantizedMatrix | None = None) -> QuantizedWeight:
    """Return the layer that takes the place of `layer`, with its weight quantized, or with the given weight."""
    weight: Any = layer._parameters["weight"]
    is_transposed = type(layer).forward is Conv1D.forward
    dtype = weight.numpy_dtype
    if matrix is None:
        given = weight.detach()
        matrix = quantized.quantize(f"quantize: {path}", given.t() if is_transposed else given, to)
    made: QuantizedWeight
    if type(layer).forward is Embedding.forward:
        if getattr(layer, "max_norm", None) is not None:
            raise ArgumentError(f"quantize: {path} shortens rows to its max_norm; name it in skip")
        made = QuantizedEmbedding(to, matrix, dtype)
    elif is_transposed:
        made = QuantizedConv1D(to, matrix, layer.bias, dtype, layer.activation)
    else:
        made = QuantizedLinear(to, matrix, layer.bias, dtype)
    made.train(layer.training)
    for name, value in vars(layer).items():  # hooks of the user's
        if name.endswith("_hooks") and value:
            vars(made)[name] = value
    return made


def dequantize(model: Module) -> Module:
    """Hold the weights that `quantize` made as floating-point numbers again, in place; adapters stay.

    Parameters
    ----------
    model : Module
        A model that `quantize` returned, with or without adapters.

    Returns
    -------
    Module
        The model; its weights are frozen, and hold the numbers that their codes stand for.

    Raises
    ------
    GraphError
        If no weight of the model is quantized.
    """
    layers = [module for module in model.modules() if type(module) in _FLOAT_LAYERS]
    if not layers:
        raise GraphError(f"dequantize: {type(model).__name__} has no quantized weight; give a model of quantize")
    while layers:
        layer = layers.pop()
        model = replaced(model, {layer: _float_layer(layer)})
    return model


_FLOAT_LAYERS: dict[type[Module], type[Module]] = {
    QuantizedLinear: Linear,
    QuantizedConv1D: Conv1D,
    QuantizedEmbedding: Embedding,
    LoRAQuantizedLinear: LoRALinear,
    LoRAQuantizedConv1D: LoRAConv1D,
}
_OF_EMBEDDING = {"padding_idx": None, "max_norm": None, "norm_type": 2.0, "scale_grad_by_freq": False, "sparse": False}


def _float_layer(layer: Any) -> Module:
    """Return the layer that takes the place of a quantized one; it shares everything else."""
    kind = _FLOAT_LAYERS[type(layer)]
    made = kind.__new__(kind)
    vars(made).update(_OF_EMBEDDING if kind is Embedding else {})
    vars(made).update(vars(layer))
    others = {name: buffer for name, buffer in layer._buffers.items() if name not in BUFFERS}
    weight = Parameter(layer.dequantized(), requires_grad=False)
    weight.exact_state = kind is Embedding
    vars(made).update(_buffers=others, _parameters={"weight": weight, **layer._parameters})
    return made
