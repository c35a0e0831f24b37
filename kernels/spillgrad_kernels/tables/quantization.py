"""The formats of quantized matrices: their levels, and the sizes of what shares a scale.

NF4: a number is one of 16 levels times the scale of its block of 64 numbers, in the order of memory. Scales are kept in
8 bits: a value of the dynamic map, times the scale of a block of 256 of them, plus their mean.
Source: Dettmers et al. 2023, "QLoRA: efficient finetuning of quantized LLMs"; Dettmers et al. 2021, "8-bit optimizers
via block-wise quantization". Levels, rounding and the order of bits are those of bitsandbytes, to the bit.
"""

import functools

import numpy as np

# The dtypes of codes tell the formats apart: a byte holds two codes of NF4, the first in its high half.
NF4, INT8 = np.dtype(np.uint8), np.dtype(np.int8)
# The numbers that share a scale of NF4, and the scales that share a scale of their own.
BLOCK, NESTED_BLOCK = 64, 256
# The quantiles of the normal distribution that have the same number of values between them, divided by the largest.
LEVELS = np.array(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634,
        0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ],
    np.float32,
)  # fmt: skip
# A number belongs to the first level whose bound it does not exceed.
BOUNDS = (LEVELS[:-1] + LEVELS[1:]) / np.float32(2)
# The code of 0.
ZERO = 7
# The largest code of eight bits, and what a code times the row's largest number is multiplied by.
LARGEST = np.float32(127)
OF_LARGEST = np.float32(7.874015718698502e-3)
# The smallest scale that a last, shorter block is divided by.
LEAST = np.float32(1e-38)
# Numbers in 8 bits are rounded to a grid of 65536 values from -1 to 1, and from there to the map.
GRID = np.float32(32767.5)
_EXPONENTS = 7


@functools.cache
def dynamic_map() -> np.ndarray:
    """Return the 256 values from -1 to 1 of the dynamic map of 8 bits, in ascending order."""
    found: list[np.ndarray] = [np.zeros(1, np.float32), np.ones(1, np.float32)]
    for exponent in range(_EXPONENTS):
        count = 2**exponent
        first, last = np.float32(0.1), np.float32(1)
        step = (last - first) / np.float32(count)
        # Rounded once, as a multiply-add is; from the nearer end, as PyTorch's linspace.
        numbers = np.arange(count + 1)
        rising = (np.float64(first) + np.float64(step) * numbers).astype(np.float32)
        falling = (np.float64(last) - np.float64(step) * (count - numbers)).astype(np.float32)
        edges = np.where(numbers < (count + 1) // 2, rising, falling)
        means = np.float32(10.0 ** (exponent + 1 - _EXPONENTS)) * ((edges[:-1] + edges[1:]) / np.float32(2))
        found += [means, -means]
    return np.sort(np.concatenate(found))


@functools.cache
def grid_codes() -> np.ndarray:
    """Return the code in `dynamic_map` for each value of the grid from -1 to 1."""
    grid = np.arange(65536) / np.float64(GRID) - 1
    values = dynamic_map().astype(np.float64)
    above = np.searchsorted(values, grid).clip(1, len(values) - 1)
    is_lower = grid - values[above - 1] <= values[above] - grid
    codes: np.ndarray = (above - is_lower).astype(np.uint8)
    return codes
