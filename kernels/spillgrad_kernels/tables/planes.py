"""float32 numbers in two planes: the bfloat16 number nearest to each, and 16 bits from which the float32 is made again.

The first plane holds the bits that every conversion to bfloat16 gives, rounded to nearest, ties to even. Rounding half
up instead would leave nothing to remember, but products under `autocast` would then differ from PyTorch's, and from
those of a parameter in RAM, wherever a weight lies halfway: one in 16 of those read from a float16 file.

The second plane holds the low half of the float32's bits. Below 0x8000, the high half was rounded down, and is the
bfloat16; above, it was rounded up. At 0x8000, a number halfway, an even bfloat16 may come from either side: 65,537
numbers share it, one more than 16 bits can tell apart. So a tie that was rounded up is stored as 0x7FFF, as is the
number just below the tie that was rounded down to the same bfloat16. `joined_word` returns the tie. The places of the
other numbers, one in 131,072, are listed, and `other_word` returns these. It is not the ties that are listed, because
weights of few digits, such as those of float16 files, are often ties, and never just below one. A NaN whose quiet bit
the conversion had to set is listed, too.
"""

from typing import Any

import numpy as np

from spillgrad_kernels.jit.compile import register_jitable
from spillgrad_kernels.tables.scalar_math import where

_SIGN_OFF, _INFINITY, _QUIET = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000), np.uint32(1 << 22)
_HALF, _ONE = np.uint32(16), np.uint32(1)
_EVEN_AND_LOW = np.uint32(0x1FFFF)
_LOW, _TIE, _BELOW_TIE = np.uint32(0xFFFF), np.uint32(0x8000), np.uint32(0x7FFF)


@register_jitable(inline="always")
def rounded_word(word: Any) -> Any:
    """Return the bits of the bfloat16 nearest to the float32 with bits `word`; both are uint32."""
    odd = (word >> _HALF) & _ONE
    is_nan = (word & _SIGN_OFF) > _INFINITY
    return where(is_nan, word | _QUIET, word + _BELOW_TIE + odd) >> _HALF


@register_jitable(inline="always")
def low_word(word: Any, rounded: Any) -> Any:
    """Return what the second plane holds for the float32 with bits `word`, whose bfloat16 has the bits `rounded`."""
    low = word & _LOW
    is_nan = (word & _SIGN_OFF) > _INFINITY
    return where((low == _TIE) & ((word >> _HALF) != rounded) & ~is_nan, _BELOW_TIE, low)


@register_jitable(inline="always")
def joined_word(rounded: Any, low: Any) -> Any:
    """Return the bits of a float32 from those of its two planes, all uint32, unless its place is in the list."""
    is_number = (rounded & _BELOW_TIE) <= (_INFINITY >> _HALF)
    is_tie = (low == _BELOW_TIE) & ((rounded & _ONE) == np.uint32(0))
    was_rounded_up = is_number & ((low > _TIE) | is_tie)
    high = where(was_rounded_up, (rounded + _LOW) & _LOW, rounded)  # one less, without a warning below 0
    return high << _HALF | where(is_number & is_tie, _TIE, low)


@register_jitable(inline="always")
def may_be_listed(word: Any) -> Any:
    """Return whether the place of the float32 with bits `word` may be in the list."""
    is_unquiet_nan = ((word & _SIGN_OFF) > _INFINITY) & ((word & _QUIET) == np.uint32(0))
    return ((word & _EVEN_AND_LOW) == _BELOW_TIE) | is_unquiet_nan


def other_word(rounded: Any, low: Any) -> Any:
    """Return the bits of the float32 numbers whose places are in the list, from those of their planes, all uint32."""
    is_nan = (rounded & _BELOW_TIE) > (_INFINITY >> _HALF)
    return np.where(is_nan, rounded ^ (_QUIET >> _HALF), rounded) << _HALF | low
