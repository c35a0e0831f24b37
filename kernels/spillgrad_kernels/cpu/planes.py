"""float32 arrays taken apart into two planes of 16 bits, and put together; `tables/planes.py` says how."""

from typing import Any

import numpy as np

from spillgrad_kernels.jit.compile import jit
from spillgrad_kernels.tables.planes import joined_word, low_word, may_be_listed, other_word, rounded_word
from spillgrad_kernels.threads.dispatch import parallel_for

# The elements of a unit of work, and how many units pay for another thread.
_CHUNK = 4096
_GRAIN = 4


@jit
def _split(start: int, stop: int, words: Any, rounded: Any, low: Any, listed: Any) -> None:
    for chunk in range(start, stop):
        first, last = chunk * _CHUNK, (chunk + 1) * _CHUNK
        source, highs, lows = words[first:last], rounded[first:last], low[first:last]
        count = np.uint32(0)  # of numbers that may be listed; almost all chunks have none
        for j in range(source.size):
            word = source[j]
            high = rounded_word(word)
            rest = low_word(word, high)
            highs[j] = high
            lows[j] = rest
            count += np.uint32(may_be_listed(word))
        listed[chunk] = count


@jit
def _join(start: int, stop: int, rounded: Any, low: Any, words: Any) -> None:
    for chunk in range(start, stop):
        first, last = chunk * _CHUNK, (chunk + 1) * _CHUNK
        target, highs, lows = words[first:last], rounded[first:last], low[first:last]
        for j in range(target.size):
            target[j] = joined_word(np.uint32(highs[j]), np.uint32(lows[j]))


def split(values: np.ndarray, rounded: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Fill the planes of float32 numbers, and return the places that `join` needs besides; all have one dimension.

    `rounded` holds bfloat16 numbers or their bits, and `low` is uint16.
    """
    words, bits = values.view(np.uint32), rounded.view(np.uint16)
    chunks = -(-words.size // _CHUNK)
    listed = np.zeros(chunks, np.int64)
    parallel_for(_split, chunks, _GRAIN, words, bits, low, listed)
    places = []
    for chunk in np.flatnonzero(listed):
        part = slice(int(chunk) * _CHUNK, (int(chunk) + 1) * _CHUNK)
        made = np.empty_like(words[part])
        _join(0, 1, bits[part], low[part], made)
        places.append(np.flatnonzero(made != words[part]) + part.start)
    return np.concatenate(places).astype(np.uint32) if places else np.empty(0, np.uint32)


def join(rounded: np.ndarray, low: np.ndarray, places: np.ndarray, values: np.ndarray) -> None:
    """Fill `values` with the float32 numbers whose planes and places `split` returned; all have one dimension."""
    words, bits = values.view(np.uint32), rounded.view(np.uint16)
    parallel_for(_join, -(-words.size // _CHUNK), _GRAIN, bits, low, words)
    if places.size:
        words[places] = other_word(bits[places].astype(np.uint32), low[places].astype(np.uint32))
