"""The config of a decoder-only model, with the names and meanings of Hugging Face's `config.json`."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from spillgrad.errors import ArgumentError, CheckpointError
from spillgrad.files.checkpoint import dataclass_of
from spillgrad.models import pretrained
from spillgrad.models.families import FAMILIES, FULL, SLIDING, SOME_HAVE, Family
from spillgrad.models.rotations import ORIGINAL, Angles, angles_for, check_scaling, is_positive

ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes and numbers of a decoder-only model, with Hugging Face's names and meanings; the defaults are Llama's.

    Parameters
    ----------
    vocab_size : int, default 32000
        Number of tokens.
    hidden_size : int, default 4096
        Width of hidden states.
    intermediate_size : int, default 11008
        Width of the feed-forward networks.
    num_hidden_layers : int, default 32
        Number of blocks.
    num_attention_heads : int, default 32
        Number of heads of attention.
    num_key_value_heads : int, optional
        Number of heads of keys and values; by default, each head has its own.
    head_dim : int, optional
        Width of a head; by default, the heads share the width evenly.
    max_position_embeddings : int, default 2048
        Largest number of positions.
    rms_norm_eps : float, default 1e-6
        Added to mean squares by the normalisations.
    rope_theta : float, default 10000.0
        Base of the rotations' frequencies.
    rope_scaling : dict, optional
        How rotations change; by default, they do not. The `rope_type` is "linear", "llama3", "yarn" or "longrope"; its
        other entries are those of Hugging Face's libraries.
    tie_word_embeddings : bool, default False
        Whether `lm_head` shares the weight of the token embedding.
    attention_bias : bool, default False
        Whether the projections of attention add biases.
    mlp_bias : bool, default False
        Whether the feed-forward networks add biases.
    attention_dropout : float, default 0.0
        Probability of dropping an attention weight in training.
    initializer_range : float, default 0.02
        Standard deviation of first weights.
    model_type : str, default "llama"
        The family, whose row in `spillgrad.models.families` says in what else the model differs from Llama: "llama",
        "mistral", "qwen2", "qwen3", "phi3", "gemma2" or "gemma3_text".
    hidden_act : str, default "silu"
        Activation of the feed-forward networks: "silu", "gelu" or "gelu_pytorch_tanh".
    sliding_window : int, optional
        Number of positions that a query of a sliding layer sees, itself included; by default, all former ones.
    layer_types : list of str, optional
        "sliding_attention" or "full_attention" for each layer; by default, all slide if there is a `sliding_window`.
    partial_rotary_factor : float, default 1.0
        Share of each head that is rotated.
    rope_local_base_freq : float, optional
        Base of the rotations' frequencies in sliding layers, which `rope_scaling` then leaves alone.
    query_pre_attn_scalar : float, optional
        Scores are divided by the square root of this; by default, of the width of a head.
    attn_logit_softcapping : float, optional
        Bound of the scores s, which become bound · tanh(s / bound); by default, there is none.
    final_logit_softcapping : float, optional
        The same bound for logits.
    bos_token_id : int, optional
        Token that begins a text.
    eos_token_id : int or list of int, optional
        Tokens that end a text; `generate` stops there only if told to.
    pad_token_id : int, optional
        Token that fills rows.

    Raises
    ------
    ArgumentError
        If a size or another field is out of its range, or sizes do not fit each other.
    """

    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    attention_dropout: float = 0.0
    initializer_range: float = 0.02
    model_type: str = "llama"
    hidden_act: str = "silu"
    sliding_window: int | None = None
    layer_types: list[str] | None = None
    partial_rotary_factor: float = 1.0
    rope_local_base_freq: float | None = None
    query_pre_attn_scalar: float | None = None
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        for name, accepted in (("model_type", tuple(FAMILIES)), ("hidden_act", ACTIVATIONS)):
            if getattr(self, name) not in accepted:
                raise self._wrong(f"{name} {getattr(self, name)!r:.40}; accepted are {', '.join(accepted)}")
        usual = {field.name: field.default for field in dataclasses.fields(self)}
        for name in SOME_HAVE:
            if name not in self.family.own and getattr(self, name) != usual[name]:
                raise self._wrong(
                    f"{name} {getattr(self, name)!r:.40} for model_type {self.model_type}, which has none"
                )
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                     "max_position_embeddings", "key_value_heads", "head_width", "sliding_window"):  # fmt: skip
            size = getattr(self, name)
            if size is not None and not 1 <= size < 1 << 31:
                raise self._wrong(f"{name} {size}; it must be at least 1, and below 2³¹")
        heads = self.num_attention_heads
        if self.head_dim is None and self.hidden_size % heads:
            raise self._wrong(
                f"hidden_size {self.hidden_size} and num_attention_heads {heads}; the heads must share the width "
                "evenly; else give head_dim"
            )
        if heads % self.key_value_heads:
            raise self._wrong(
                f"num_attention_heads {heads} and num_key_value_heads {self.key_value_heads}; the second must divide "
                "the first"
            )
        for name in ("rope_theta", "rope_local_base_freq", "query_pre_attn_scalar", "attn_logit_softcapping",
                     "final_logit_softcapping", "partial_rotary_factor"):  # fmt: skip
            value = getattr(self, name)
            if value is not None and not is_positive(value):
                raise self._wrong(f"{name} {value!r:.40}; wanted a positive number")
        if self.partial_rotary_factor > 1 or self.rotated_width % 2 or not self.rotated_width:
            raise self._wrong(
                f"heads of {self.head_width}, of which {self.partial_rotary_factor:g} rotate; rotations need an even "
                "width"
            )
        self._check_layer_types()
        if self.rope_scaling is not None:
            check_scaling(type(self).__name__, self.rope_scaling, self.rotated_width)
        try:
            with np.errstate(all="raise", under="ignore"):
                self.angles(FULL, self.context)
        except (ArithmeticError, ValueError) as error:
            raise self._wrong(f"rotations of no finite angles ({error}); use other numbers") from error

    def _check_layer_types(self) -> None:
        types = self.layer_types
        if types is None:
            return
        unknown = [kind for kind in types if kind not in (FULL, SLIDING)]
        if unknown:
            raise self._wrong(f"layer_types with {unknown[0]!r:.40}; accepted are {FULL}, {SLIDING}")
        # A model of fewer layers, such as a planner builds, has the first ones.
        if len(types) < self.num_hidden_layers:
            raise self._wrong(f"{len(types)} layer_types for {self.num_hidden_layers} layers; give one for each")
        if SLIDING in types and self.sliding_window is None:
            raise self._wrong(f"layer_types with {SLIDING}, but no sliding_window; give its size")

    def _wrong(self, got: str) -> ArgumentError:
        return ArgumentError(f"{type(self).__name__}: got {got}")

    @property
    def family(self) -> Family:
        """The row of the family in the table of differences."""
        return FAMILIES[self.model_type]

    @property
    def context(self) -> int:
        """The largest number of positions."""
        return self.max_position_embeddings

    @property
    def key_value_heads(self) -> int:
        """The number of heads of the keys and values."""
        return self.num_attention_heads if self.num_key_value_heads is None else self.num_key_value_heads

    @property
    def head_width(self) -> int:
        """The width of each head."""
        return self.hidden_size // self.num_attention_heads if self.head_dim is None else self.head_dim

    @property
    def rotated_width(self) -> int:
        """The number of elements of each head that are rotated."""
        return int(self.head_width * self.partial_rotary_factor)

    @property
    def score_scale(self) -> float:
        """The factor of the products of queries and keys."""
        return 1 / math.sqrt(self.query_pre_attn_scalar or self.head_width)

    def layer_type(self, layer: int) -> str:
        """Return whether a layer's attention is "full_attention" or "sliding_attention".

        Parameters
        ----------
        layer : int
            Number of the layer, from 0 on.

        Returns
        -------
        str
            The type.
        """
        if self.layer_types is None:
            return FULL if self.sliding_window is None else SLIDING
        return self.layer_types[layer]

    def angles(self, layer_type: str, length: int) -> Angles:
        """Return the angles of the rotations in layers of a type.

        Parameters
        ----------
        layer_type : str
            "full_attention" or "sliding_attention".
        length : int
            Number of positions of the sequence.

        Returns
        -------
        Angles
            Frequencies and a factor.
        """
        if layer_type == SLIDING and self.rope_local_base_freq is not None:
            return angles_for(self.rotated_width, self.rope_local_base_freq, None, self.context, length)
        return angles_for(self.rotated_width, self.rope_theta, self.rope_scaling, self.context, length)

    @classmethod
    def from_hugging_face(cls, description: Mapping[str, Any]) -> Self:
        """Return the config for the content of a ``config.json``.

        Parameters
        ----------
        description : mapping
            Content of a ``config.json``.

        Returns
        -------
        DecoderConfig
            The config.

        Raises
        ------
        CheckpointError
            For models that `Decoder` cannot build.
        """
        pretrained.require(description, {"model_type": tuple(FAMILIES)})
        family = FAMILIES[description.get("model_type", "llama")]
        description = {**family.defaults, **description}
        pretrained.require(description, {**family.accepted, family.activation: ACTIVATIONS})
        own = {field.name: description[field.name] for field in dataclasses.fields(cls) if field.name in description}
        own = {name: value for name, value in own.items() if name not in SOME_HAVE or name in family.own}
        own["hidden_act"] = description.get(family.activation, "silu")
        for name in ("rope_theta", "partial_rotary_factor"):
            if own.get(name) is None:
                own.pop(name, None)
        own |= _rotations(description, own)
        own |= _windows(description, family) if "sliding_window" in family.own else {}
        if "partial_rotary_factor" not in family.own:
            own.pop("partial_rotary_factor", None)
        if "rope_local_base_freq" not in family.own:
            own.pop("rope_local_base_freq", None)
        return dataclass_of(cls, own, "config.json")

    def to_hugging_face(self) -> dict[str, Any]:
        """Return the content of the ``config.json`` that describes this model to Hugging Face's libraries.

        Returns
        -------
        dict
            The content.
        """
        family = self.family
        own = dataclasses.asdict(self) | {"num_key_value_heads": self.key_value_heads, "head_dim": self.head_width}
        own[family.activation] = own.pop("hidden_act")
        own["layer_types"] = None
        # Without a switch, a file without types means those of the family, which need a window.
        if family.layer_types is not None and (self.sliding_window is not None or family.window_switch is None):
            own["layer_types"] = [self.layer_type(layer) for layer in range(self.num_hidden_layers)]
            own |= {} if family.window_switch is None else {family.window_switch: True}
        if self.rope_scaling is not None and ORIGINAL in family.defaults:
            own[ORIGINAL] = self.rope_scaling.get(ORIGINAL, self.max_position_embeddings)
        usual = {field.name: field.default for field in dataclasses.fields(self) if field.name in SOME_HAVE}
        own = {
            name: value for name, value in own.items()
            if name not in usual or value != usual[name] or name in family.defaults
        }  # fmt: skip
        return {"architectures": [family.architecture], **own}


def _rotations(description: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields about rotations. Newer files have everything about them in one place."""
    found = description.get("rope_parameters") or own.get("rope_scaling") or {}
    if not isinstance(found, Mapping):
        raise CheckpointError(f"config.json: got rotations {found!r:.80}; wanted an object that describes them")
    fields: dict[str, Any] = {}
    if FULL in found or SLIDING in found:  # one for each type of layer
        local = found.get(SLIDING) or {}
        found = found.get(FULL) or {}
        if not (isinstance(local, Mapping) and isinstance(found, Mapping)):
            raise CheckpointError(f"config.json: got rotations {found!r:.80}; wanted an object for each type of layer")
        pretrained.require(local, {"rope_type": ("default",)})
        if "rope_theta" in local:
            fields["rope_local_base_freq"] = local["rope_theta"]
    scaling = dict(found)
    for name in ("rope_theta", "partial_rotary_factor"):
        if name in scaling:
            fields[name] = scaling.pop(name)
    scaling.setdefault("rope_type", scaling.pop("type", "default"))
    if scaling["rope_type"] == "su":  # the former name
        scaling["rope_type"] = "longrope"
    if scaling["rope_type"] in ("longrope", "yarn"):
        scaling.setdefault(ORIGINAL, description.get(ORIGINAL, description.get("max_position_embeddings")))
    return fields | {"rope_scaling": None if scaling["rope_type"] == "default" else scaling}


def _windows(description: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """Return the fields about sliding windows."""
    none = {"sliding_window": None, "layer_types": None}
    is_off = family.window_switch is not None and not description.get(family.window_switch)
    if is_off or (description.get("sliding_window") is None and family.window_switch is not None):
        return none
    if family.layer_types is None:
        return {"layer_types": None}
    types = description.get("layer_types")
    if types is None:
        layers = description.get("num_hidden_layers", DecoderConfig.num_hidden_layers)
        # A damaged file may name anything; the config refuses what is no number of layers.
        types = family.layer_types(description, layers) if type(layers) is int and 0 < layers < 1 << 16 else []
    is_full = isinstance(types, list) and SLIDING not in types
    return none if is_full and family.window_switch is not None else {"layer_types": types}
