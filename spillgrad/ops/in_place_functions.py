"""In-place methods of tensors as functions: `exp_(x)` does what `x.exp_()` does, and returns the tensor."""

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

__all__ = [
    "abs_", "acos_", "acosh_", "addmv_", "arccos_", "arccosh_", "arcsin_", "arcsinh_", "arctan_", "arctanh_",
    "asin_", "asinh_", "atan_", "atanh_", "ceil_", "clamp_", "clamp_max_", "clamp_min_", "clip_", "cos_", "cosh_",
    "deg2rad_", "erf_", "erfc_", "exp2_", "exp_", "expm1_", "fill_", "fix_", "floor_", "frac_", "gcd_", "i0_",
    "index_put_", "lcm_", "ldexp_", "log1p_", "log2_", "log10_", "log_", "logit_", "nan_to_num_", "neg_",
    "negative_", "rad2deg_", "reciprocal_", "round_", "rsqrt_", "sigmoid_", "sin_", "sinc_", "sinh_", "sqrt_",
    "square_", "tan_", "tanh_", "trunc_", "xlogy_", "zero_",
]  # fmt: skip

abs_ = in_place_form("abs_", arithmetic.abs)
acos_ = in_place_form("acos_", trigonometry.acos)
arccos_ = in_place_form("arccos_", trigonometry.acos)
acosh_ = in_place_form("acosh_", trigonometry.acosh)
arccosh_ = in_place_form("arccosh_", trigonometry.acosh)
addmv_ = in_place_form("addmv_", matrix_products.addmv)
asin_ = in_place_form("asin_", trigonometry.asin)
arcsin_ = in_place_form("arcsin_", trigonometry.asin)
asinh_ = in_place_form("asinh_", trigonometry.asinh)
arcsinh_ = in_place_form("arcsinh_", trigonometry.asinh)
atan_ = in_place_form("atan_", trigonometry.atan)
arctan_ = in_place_form("arctan_", trigonometry.atan)
atanh_ = in_place_form("atanh_", trigonometry.atanh)
arctanh_ = in_place_form("arctanh_", trigonometry.atanh)
ceil_ = in_place_form("ceil_", arithmetic.ceil)
clamp_ = in_place_form("clamp_", clamp_where.clamp)
clip_ = in_place_form("clip_", clamp_where.clamp)
clamp_max_ = in_place_form("clamp_max_", clamp_where.clamp_max)
clamp_min_ = in_place_form("clamp_min_", clamp_where.clamp_min)
cos_ = in_place_form("cos_", trigonometry.cos)
cosh_ = in_place_form("cosh_", trigonometry.cosh)
deg2rad_ = in_place_form("deg2rad_", trigonometry.deg2rad)
erf_ = in_place_form("erf_", special.erf)
erfc_ = in_place_form("erfc_", special.erfc)
exp2_ = in_place_form("exp2_", arithmetic.exp2)
exp_ = in_place_form("exp_", arithmetic.exp)
expm1_ = in_place_form("expm1_", arithmetic.expm1)
trunc_ = in_place_form("trunc_", arithmetic.trunc)
fix_ = in_place_form("fix_", arithmetic.trunc)
floor_ = in_place_form("floor_", arithmetic.floor)
frac_ = in_place_form("frac_", arithmetic.frac)
gcd_ = in_place_form("gcd_", arithmetic.gcd)
i0_ = in_place_form("i0_", bessel.i0)
index_put_ = in_place_form("index_put_", index_replace.index_put)
lcm_ = in_place_form("lcm_", arithmetic.lcm)
ldexp_ = in_place_form("ldexp_", arithmetic.ldexp)
log10_ = in_place_form("log10_", arithmetic.log10)
log1p_ = in_place_form("log1p_", arithmetic.log1p)
log2_ = in_place_form("log2_", arithmetic.log2)
log_ = in_place_form("log_", arithmetic.log)
logit_ = in_place_form("logit_", special.logit)
nan_to_num_ = in_place_form("nan_to_num_", clamp_where.nan_to_num)
neg_ = in_place_form("neg_", arithmetic.neg)
negative_ = in_place_form("negative_", arithmetic.neg)
rad2deg_ = in_place_form("rad2deg_", trigonometry.rad2deg)
reciprocal_ = in_place_form("reciprocal_", arithmetic.reciprocal)
round_ = in_place_form("round_", arithmetic.round)
rsqrt_ = in_place_form("rsqrt_", arithmetic.rsqrt)
sigmoid_ = in_place_form("sigmoid_", activations.sigmoid)
sin_ = in_place_form("sin_", trigonometry.sin)
sinc_ = in_place_form("sinc_", special.sinc)
sinh_ = in_place_form("sinh_", trigonometry.sinh)
sqrt_ = in_place_form("sqrt_", arithmetic.sqrt)
square_ = in_place_form("square_", arithmetic.square)
tan_ = in_place_form("tan_", trigonometry.tan)
tanh_ = in_place_form("tanh_", trigonometry.tanh)
xlogy_ = in_place_form("xlogy_", special.xlogy)
