"""In-place methods of tensors as functions: `exp_(x)` does what `x.exp_()` does, and returns the tensor."""

from collections.abc import Callable

from spillgrad.ops import (
    activations,
    arithmetic,
    bessel,
    clamp_where,
    index_replace,
    matrix_products,
    special,
    trigonometry,
)
from spillgrad.ops.inplace import fill_ as fill_
from spillgrad.ops.inplace import in_place_form
from spillgrad.ops.inplace import zero_ as zero_
from spillgrad.tensor import Tensor

__all__ = [
    "abs_", "acos_", "acosh_", "addmv_", "arccos_", "arccosh_", "arcsin_", "arcsinh_", "arctan_", "arctanh_",
    "asin_", "asinh_", "atan_", "atanh_", "ceil_", "clamp_", "clamp_max_", "clamp_min_", "clip_", "cos_", "cosh_",
    "deg2rad_", "erf_", "erfc_", "exp2_", "exp_", "expm1_", "fill_", "fix_", "floor_", "frac_", "gcd_", "i0_",
    "index_put_", "lcm_", "ldexp_", "log1p_", "log2_", "log10_", "log_", "logit_", "nan_to_num_", "neg_",
    "negative_", "rad2deg_", "reciprocal_", "round_", "rsqrt_", "sigmoid_", "sin_", "sinc_", "sinh_", "sqrt_",
    "square_", "tan_", "tanh_", "trunc_", "xlogy_", "zero_",
]  # fmt: skip


def _function(name: str, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    made = in_place_form(name, function)
    made.__module__ = __name__  # where pickle finds it
    return made


abs_ = _function("abs_", arithmetic.abs)
acos_ = _function("acos_", trigonometry.acos)
arccos_ = _function("arccos_", trigonometry.acos)
acosh_ = _function("acosh_", trigonometry.acosh)
arccosh_ = _function("arccosh_", trigonometry.acosh)
addmv_ = _function("addmv_", matrix_products.addmv)
asin_ = _function("asin_", trigonometry.asin)
arcsin_ = _function("arcsin_", trigonometry.asin)
asinh_ = _function("asinh_", trigonometry.asinh)
arcsinh_ = _function("arcsinh_", trigonometry.asinh)
atan_ = _function("atan_", trigonometry.atan)
arctan_ = _function("arctan_", trigonometry.atan)
atanh_ = _function("atanh_", trigonometry.atanh)
arctanh_ = _function("arctanh_", trigonometry.atanh)
ceil_ = _function("ceil_", arithmetic.ceil)
clamp_ = _function("clamp_", clamp_where.clamp)
clip_ = _function("clip_", clamp_where.clamp)
clamp_max_ = _function("clamp_max_", clamp_where.clamp_max)
clamp_min_ = _function("clamp_min_", clamp_where.clamp_min)
cos_ = _function("cos_", trigonometry.cos)
cosh_ = _function("cosh_", trigonometry.cosh)
deg2rad_ = _function("deg2rad_", trigonometry.deg2rad)
erf_ = _function("erf_", special.erf)
erfc_ = _function("erfc_", special.erfc)
exp2_ = _function("exp2_", arithmetic.exp2)
exp_ = _function("exp_", arithmetic.exp)
expm1_ = _function("expm1_", arithmetic.expm1)
trunc_ = _function("trunc_", arithmetic.trunc)
fix_ = _function("fix_", arithmetic.trunc)
floor_ = _function("floor_", arithmetic.floor)
frac_ = _function("frac_", arithmetic.frac)
gcd_ = _function("gcd_", arithmetic.gcd)
i0_ = _function("i0_", bessel.i0)
index_put_ = _function("index_put_", index_replace.index_put)
lcm_ = _function("lcm_", arithmetic.lcm)
ldexp_ = _function("ldexp_", arithmetic.ldexp)
log10_ = _function("log10_", arithmetic.log10)
log1p_ = _function("log1p_", arithmetic.log1p)
log2_ = _function("log2_", arithmetic.log2)
log_ = _function("log_", arithmetic.log)
logit_ = _function("logit_", special.logit)
nan_to_num_ = _function("nan_to_num_", clamp_where.nan_to_num)
neg_ = _function("neg_", arithmetic.neg)
negative_ = _function("negative_", arithmetic.neg)
rad2deg_ = _function("rad2deg_", trigonometry.rad2deg)
reciprocal_ = _function("reciprocal_", arithmetic.reciprocal)
round_ = _function("round_", arithmetic.round)
rsqrt_ = _function("rsqrt_", arithmetic.rsqrt)
sigmoid_ = _function("sigmoid_", activations.sigmoid)
sin_ = _function("sin_", trigonometry.sin)
sinc_ = _function("sinc_", special.sinc)
sinh_ = _function("sinh_", trigonometry.sinh)
sqrt_ = _function("sqrt_", arithmetic.sqrt)
square_ = _function("square_", arithmetic.square)
tan_ = _function("tan_", trigonometry.tan)
tanh_ = _function("tanh_", trigonometry.tanh)
xlogy_ = _function("xlogy_", special.xlogy)
