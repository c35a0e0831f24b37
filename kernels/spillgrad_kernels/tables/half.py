"""float16 and bfloat16 inside loops: memory holds their bits as uint16, and loops compute in float32.

The conversions use integer arithmetic, for which every processor has vector instructions.
Source: F. Giesen 2012, "Float->half conversion".
"""

from typing import Any

import numpy as np
from llvmlite import ir

from spillgrad_kernels.jit.compile import DISABLE_JIT, emitted, types

HALF = frozenset({"float16", "bfloat16"})

if DISABLE_JIT:

    def widen_float16(x: Any) -> Any:
        """Return the float32 value of the float16 number with bits `x`."""
        return np.float32(np.uint16(x).view(np.float16))

    def narrow_float16(x: Any) -> Any:
        """Return the bits of the float16 number nearest to the float32 number `x`."""
        with np.errstate(all="ignore"):
            return np.float16(x).view(np.uint16)

    def widen_bfloat16(x: Any) -> Any:
        """Return the float32 value of the bfloat16 number with bits `x`."""
        return np.uint32(int(x) << 16).view(np.float32)

    def narrow_bfloat16(x: Any) -> Any:
        """Return the bits of the bfloat16 number nearest to the float32 number `x`."""
        word = int(np.float32(x).view(np.uint32))
        return np.uint16((word | 1 << 22) >> 16 if x != x else (word + 0x7FFF + (word >> 16 & 1)) >> 16)

else:
    _SHORT, _WORD, _FLOAT = ir.IntType(16), ir.IntType(32), ir.FloatType()
    _INFINITY = _WORD(0x7F800000)

    def _parts(builder: Any, x: Any) -> tuple[Any, Any]:
        """Return the bits of a float32 number with the sign bit cleared, and the sign bit alone."""
        word = builder.bitcast(x, _WORD)
        return builder.and_(word, _WORD(0x7FFFFFFF)), builder.and_(word, _WORD(0x80000000))

    @emitted(lambda x: types.float32(types.uint16))
    def widen_float16(builder: Any, x: Any) -> Any:
        word = builder.zext(x, _WORD)
        size = builder.and_(word, _WORD(0x7FFF))
        # The shifted bits are in place, but float32's exponent has another bias. Multiplying corrects the exponent, and
        # makes subnormal numbers normal.
        scaled = builder.fmul(builder.bitcast(builder.shl(size, _WORD(13)), _FLOAT), _FLOAT(2.0**112))
        finite = builder.bitcast(scaled, _WORD)
        endless = builder.icmp_unsigned(">=", size, _WORD(0x7C00))
        value = builder.select(endless, builder.or_(finite, _INFINITY), finite)
        sign = builder.shl(builder.and_(word, _WORD(0x8000)), _WORD(16))
        return builder.bitcast(builder.or_(value, sign), _FLOAT)

    @emitted(lambda x: types.uint16(types.float32))
    def narrow_float16(builder: Any, x: Any) -> Any:
        size, sign = _parts(builder, x)
        odd = builder.and_(builder.lshr(size, _WORD(13)), _WORD(1))
        rounded = builder.add(builder.add(size, _WORD(0xFFF - (112 << 23))), odd)
        normal = builder.lshr(rounded, _WORD(13))
        # The last place of 0.5 + x is the last place of a subnormal float16, so the addition rounds x correctly.
        half = builder.fadd(builder.bitcast(size, _FLOAT), _FLOAT(0.5))
        subnormal = builder.sub(builder.bitcast(half, _WORD), _WORD(0x3F000000))
        value = builder.select(builder.icmp_unsigned("<", size, _WORD(113 << 23)), subnormal, normal)
        too_large = builder.icmp_unsigned(">=", size, _WORD(143 << 23))
        value = builder.select(too_large, _WORD(0x7C00), value)
        value = builder.select(builder.icmp_unsigned(">", size, _INFINITY), _WORD(0x7E00), value)
        return builder.trunc(builder.or_(value, builder.lshr(sign, _WORD(16))), _SHORT)

    @emitted(lambda x: types.float32(types.uint16))
    def widen_bfloat16(builder: Any, x: Any) -> Any:
        return builder.bitcast(builder.shl(builder.zext(x, _WORD), _WORD(16)), _FLOAT)

    @emitted(lambda x: types.uint16(types.float32))
    def narrow_bfloat16(builder: Any, x: Any) -> Any:
        size, sign = _parts(builder, x)
        odd = builder.and_(builder.lshr(size, _WORD(16)), _WORD(1))
        rounded = builder.add(builder.add(size, _WORD(0x7FFF)), odd)
        quiet = builder.or_(size, _WORD(1 << 22))
        value = builder.select(builder.icmp_unsigned(">", size, _INFINITY), quiet, rounded)
        return builder.trunc(builder.lshr(builder.or_(value, sign), _WORD(16)), _SHORT)


NAMES = {
    "widen_float16": widen_float16, "narrow_float16": narrow_float16,
    "widen_bfloat16": widen_bfloat16, "narrow_bfloat16": narrow_bfloat16,
}  # fmt: skip
