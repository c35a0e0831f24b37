"""Special functions under the names of `torch.special`."""

from spillgrad.ops.activations import sigmoid as expit
from spillgrad.ops.bessel import *
from spillgrad.ops.exponential import exp2 as exp2
from spillgrad.ops.exponential import expm1 as expm1
from spillgrad.ops.exponential import log1p as log1p
from spillgrad.ops.incomplete_gamma import igamma as gammainc
from spillgrad.ops.incomplete_gamma import igammac as gammaincc
from spillgrad.ops.normalization import log_softmax as log_softmax
from spillgrad.ops.normalization import softmax as softmax
from spillgrad.ops.reduce import logsumexp as logsumexp
from spillgrad.ops.rounding import round as round
from spillgrad.ops.special import digamma as digamma
from spillgrad.ops.special import digamma as psi
from spillgrad.ops.special import entr as entr
from spillgrad.ops.special import erf as erf
from spillgrad.ops.special import erfc as erfc
from spillgrad.ops.special import erfinv as erfinv
from spillgrad.ops.special import lgamma as gammaln
from spillgrad.ops.special import logit as logit
from spillgrad.ops.special import mvlgamma as multigammaln
from spillgrad.ops.special import normal_cdf as ndtr
from spillgrad.ops.special import polygamma as polygamma
from spillgrad.ops.special import sinc as sinc
from spillgrad.ops.special import xlog1py as xlog1py
from spillgrad.ops.special import xlogy as xlogy

__all__ = [name for name in dir() if not name.startswith("_")]
