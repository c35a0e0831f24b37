"""Special functions under the names of `torch.special`."""

from spillgrad.ops.activations import sigmoid as expit
from spillgrad.ops.arithmetic import exp2, expm1, log1p, round
from spillgrad.ops.bessel import i0, i0e, i1, i1e
from spillgrad.ops.incomplete_gamma import igamma as gammainc
from spillgrad.ops.incomplete_gamma import igammac as gammaincc
from spillgrad.ops.normalization import log_softmax, softmax
from spillgrad.ops.reduce import logsumexp
from spillgrad.ops.special import digamma, entr, erf, erfc, erfinv, logit, polygamma, sinc, xlog1py, xlogy
from spillgrad.ops.special import digamma as psi
from spillgrad.ops.special import lgamma as gammaln
from spillgrad.ops.special import mvlgamma as multigammaln
from spillgrad.ops.special import normal_cdf as ndtr

__all__ = [
    "digamma", "entr", "erf", "erfc", "erfinv", "exp2", "expit", "expm1", "gammainc",
    "gammaincc", "gammaln", "i0", "i0e", "i1", "i1e", "log1p", "log_softmax", "logit",
    "logsumexp", "multigammaln", "ndtr", "polygamma", "psi", "round", "sinc", "softmax", "xlog1py", "xlogy",
]  # fmt: skip
