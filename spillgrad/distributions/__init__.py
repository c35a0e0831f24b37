"""Probability distributions under PyTorch's names: parameters, draws, densities, entropies and divergences.

Parameters are tensors or numbers, which are broadcast. Draws follow `sg.manual_seed`; `rsample` has gradients by the
parameters. `kl_divergence` knows the common pairs, and `register_kl` adds others. `biject_to` and `transform_to` give
the transforms from all real numbers to a constraint.
"""

from spillgrad.distributions import constraint_registry, constraints, kl, transforms, utils
from spillgrad.distributions.bernoulli import *
from spillgrad.distributions.beta import *
from spillgrad.distributions.binomial import *
from spillgrad.distributions.categorical import *
from spillgrad.distributions.cauchy import *
from spillgrad.distributions.chi2 import *
from spillgrad.distributions.constraint_registry import *
from spillgrad.distributions.dirichlet import *
from spillgrad.distributions.distribution import *
from spillgrad.distributions.exponential import *
from spillgrad.distributions.gamma import *
from spillgrad.distributions.geometric import *
from spillgrad.distributions.gumbel import *
from spillgrad.distributions.half_normal import *
from spillgrad.distributions.independent import *
from spillgrad.distributions.kl import *
from spillgrad.distributions.laplace import *
from spillgrad.distributions.log_normal import *
from spillgrad.distributions.matrix_transforms import *
from spillgrad.distributions.mixture_same_family import *
from spillgrad.distributions.multinomial import *
from spillgrad.distributions.multivariate_normal import *
from spillgrad.distributions.normal import *
from spillgrad.distributions.one_hot_categorical import *
from spillgrad.distributions.poisson import *
from spillgrad.distributions.relaxed_bernoulli import RelaxedBernoulli
from spillgrad.distributions.relaxed_categorical import RelaxedOneHotCategorical
from spillgrad.distributions.studentT import *
from spillgrad.distributions.transformed_distribution import *
from spillgrad.distributions.transforms import *
from spillgrad.distributions.uniform import *

__all__ = [name for name in dir() if name[0].isupper() or name in ("constraints", "kl", "transforms", "utils")]
__all__ += [*kl.__all__, *transforms.__all__, *constraint_registry.__all__]
