"""Rotary positions: the angles by which queries and keys are turned, and how long contexts stretch them.

Source: Su et al. 2021, "RoFormer", section 3.2.2. What `SCALINGS` lists, as Hugging Face's libraries compute it.
"""

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from spillgrad.errors import ArgumentError
from spillgrad.ops import creation, join_split
from spillgrad.tensor import Tensor

ORIGINAL = "original_max_position_embeddings"
# The cosines and sines by which pairs of elements are turned, each of shape (T, E/2), or (B, 1, T, E/2).
Rotation = tuple[Tensor, Tensor]


class Angles(NamedTuple):
    """How far each pair of a head's elements turns from position to position, and a factor of the turned pairs.

    Units: radians. Shapes: frequencies (pairs,).
    """

    frequencies: np.ndarray
    factor: float = 1.0


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate each pair (i, i + R/2) of a head's first R elements by the angle of its position; leave the others.

    Shapes: x (..., T, E), rotation a pair of cosines and sines, each (T, R/2) or with more leading dimensions; result
    (..., T, E).
    """
    cosines, sines = rotation
    pairs = cosines.shape[-1]
    first, second = x[..., :pairs], x[..., pairs : 2 * pairs]
    turned = [first * cosines - second * sines, second * cosines + first * sines]
    rest = [] if 2 * pairs == x.shape[-1] else [x[..., 2 * pairs :]]
    return join_split.cat(turned + rest, -1)


def rotate_one(x: Tensor, rotation: Rotation) -> Tensor:
    """Do what `rotate` does, of what is not differentiated: for a few positions, arrays take less time than operations.

    Where a dtype or the device differs from the rotation's, `rotate` does it.
    """
    array, (cosines, sines) = x.array, (each.array for each in rotation)
    if type(array) is not np.ndarray or array.dtype != cosines.dtype:
        return rotate(x, rotation)
    pairs = cosines.shape[-1]
    first, second = array[..., :pairs], array[..., pairs : 2 * pairs]
    turned: np.ndarray = np.empty(array.shape, array.dtype)
    np.subtract(first * cosines, second * sines, turned[..., :pairs])
    np.add(second * cosines, first * sines, turned[..., pairs : 2 * pairs])
    turned[..., 2 * pairs :] = array[..., 2 * pairs :]
    return Tensor.wrap(turned)


def rotation_at(positions: np.ndarray, angles: Angles, like: Tensor) -> Rotation:
    """Return the rotation for positions, of any shape, in the dtype and on the device of `like`."""
    # In float64, because angles of far positions would be inexact in float32.
    turned = positions[..., np.newaxis] * angles.frequencies
    cosines, sines = (
        creation.tensor(angles.factor * part, dtype=like.dtype, device=like.device)
        for part in (np.cos(turned), np.sin(turned))
    )
    return cosines, sines


def angles_for(
    width: int, theta: float, scaling: Mapping[str, Any] | None, context: int, length: int
) -> Angles:  # fmt: skip
    """Return the angles of heads whose first `width` elements are turned, in a sequence of `length` positions.

    `theta` is the base of the frequencies; `scaling` is None, or what a config's `rope_scaling` says; `context` is the
    largest number of positions.
    """
    frequencies: np.ndarray = theta ** -(np.arange(0, width, 2) / width)
    if scaling is None:
        return Angles(frequencies)
    return SCALINGS[scaling["rope_type"]].angles(frequencies, scaling, theta, context, length)


def _linear(frequencies: np.ndarray, scaling: Mapping[str, Any], theta: float, context: int, length: int) -> Angles:
    return Angles(frequencies / scaling["factor"])


def _llama3(frequencies: np.ndarray, scaling: Mapping[str, Any], theta: float, context: int, length: int) -> Angles:
    """Divide low frequencies alone. Source: Llama 3.1's reference implementation."""
    slow: np.ndarray = frequencies / scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    # The turns of a pair within the original context, scaled so that `low` gives 0 and `high` gives 1.
    turns = scaling[ORIGINAL] * frequencies / (2 * math.pi)
    share: np.ndarray = np.clip((turns - low) / (high - low), 0, 1)
    return Angles(slow + share * (frequencies - slow))


def _yarn(frequencies: np.ndarray, scaling: Mapping[str, Any], theta: float, context: int, length: int) -> Angles:
    """Divide low frequencies, and sharpen attention. Source: Peng et al. 2023, "YaRN", section 3."""
    pairs, original = frequencies.size, scaling[ORIGINAL]

    def pair_with(turns: float) -> float:
        """Return the number of the pair that turns so often within the original context."""
        return float(pairs * math.log(original / (turns * 2 * math.pi)) / math.log(theta))

    low, high = pair_with(scaling.get("beta_fast") or 32), pair_with(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    share = np.clip((np.arange(pairs) - low) / (high - low or 0.001), 0, 1)
    slow = frequencies / scaling["factor"]
    return Angles(frequencies + share * (slow - frequencies), _yarn_factor(scaling))


def _yarn_factor(scaling: Mapping[str, Any]) -> float:
    given = scaling.get("attention_factor")
    if given is not None:
        return float(given)

    def of(scale: float) -> float:
        return 0.1 * scale * math.log(scaling["factor"]) + 1 if scaling["factor"] > 1 else 1.0

    both = scaling.get("mscale") and scaling.get("mscale_all_dim")
    return of(scaling["mscale"]) / of(scaling["mscale_all_dim"]) if both else of(1)


def _longrope(frequencies: np.ndarray, scaling: Mapping[str, Any], theta: float, context: int, length: int) -> Angles:
    """Divide each frequency by a factor of its own. Source: Ding et al. 2024, "LongRoPE"."""
    original = scaling[ORIGINAL]
    factors = scaling["long_factor" if length > original else "short_factor"]
    factor, stretch = scaling.get("attention_factor"), scaling.get("factor") or context / original
    if factor is None:
        factor = math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
    return Angles(frequencies / np.array(factors, np.float64), float(factor))


class Scaling(NamedTuple):
    """How a `rope_type` changes angles, and what its `rope_scaling` must and may hold: numbers, and lists of them."""

    angles: Callable[[np.ndarray, Mapping[str, Any], float, int, int], Angles]
    numbers: tuple[str, ...]
    lists: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


SCALINGS: dict[str, Scaling] = {
    "linear": Scaling(_linear, ("factor",)),
    "llama3": Scaling(_llama3, ("factor", "low_freq_factor", "high_freq_factor", ORIGINAL)),
    "yarn": Scaling(_yarn, ("factor", ORIGINAL), options=(
        "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
    )),
    "longrope": Scaling(_longrope, (ORIGINAL,), ("short_factor", "long_factor"), ("attention_factor", "factor")),
}  # fmt: skip


def check_scaling(who: str, scaling: Mapping[str, Any], width: int) -> None:
    """Raise ArgumentError unless `scaling` says how angles change for heads whose first `width` elements are turned."""
    kind = scaling.get("rope_type")
    if not isinstance(kind, str) or kind not in SCALINGS:
        raise ArgumentError(f"{who}: got a rope_scaling of type {kind!r}; accepted are {', '.join(SCALINGS)}")
    row = SCALINGS[kind]
    missing = [name for name in (*row.numbers, *row.lists) if name not in scaling]
    if missing:
        raise ArgumentError(f"{who}: got a rope_scaling of type {kind!r} without {', '.join(missing)}; give them")
    numbers = [*row.numbers, *(name for name in row.options if scaling.get(name) is not None)]
    wrong = [f"{name} {scaling[name]!r:.40}" for name in numbers if not is_positive(scaling[name])]
    if wrong:
        raise ArgumentError(f"{who}: got a rope_scaling with {', '.join(wrong)}; wanted positive numbers")
    for name in row.lists:
        factors = scaling[name]
        if not (isinstance(factors, list) and len(factors) == width // 2 and all(map(is_positive, factors))):
            raise ArgumentError(
                f"{who}: got a rope_scaling with {name} {factors!r:.40}; wanted {width // 2} positive numbers"
            )


def is_positive(value: Any) -> bool:
    """Return whether a value is a positive, finite number."""
    return type(value) in (int, float) and 0 < value <= sys.float_info.max
