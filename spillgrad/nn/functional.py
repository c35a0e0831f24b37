"""Functions of neural networks, under PyTorch's names."""

from spillgrad.ops.activations import *
from spillgrad.ops.attention import *
from spillgrad.ops.causal_attention import *
from spillgrad.ops.channel_norm import *
from spillgrad.ops.conv import *
from spillgrad.ops.ctc import *
from spillgrad.ops.distance import cosine_similarity as cosine_similarity
from spillgrad.ops.distance import normalize as normalize
from spillgrad.ops.distance import pairwise_distance as pairwise_distance
from spillgrad.ops.distance import pdist as pdist
from spillgrad.ops.dropout_masks import *
from spillgrad.ops.einsum import bilinear
from spillgrad.ops.elementwise_losses import *
from spillgrad.ops.embedding import *
from spillgrad.ops.grid_sampling import *
from spillgrad.ops.interpolate import *
from spillgrad.ops.interpolate_older import *
from spillgrad.ops.likelihood_losses import *
from spillgrad.ops.linear_cross_entropy import *
from spillgrad.ops.losses import *
from spillgrad.ops.margin_losses import *
from spillgrad.ops.matrix_products import linear as linear
from spillgrad.ops.multi_head_attention import *
from spillgrad.ops.normalization import *
from spillgrad.ops.padding import *
from spillgrad.ops.pooling import *
from spillgrad.ops.rearrange import channel_shuffle as channel_shuffle
from spillgrad.ops.rearrange import pixel_shuffle as pixel_shuffle
from spillgrad.ops.rearrange import pixel_unshuffle as pixel_unshuffle
from spillgrad.ops.sliding_windows import fold as fold
from spillgrad.ops.sliding_windows import unfold_image as _unfold_image
from spillgrad.ops.trigonometry import tanh as tanh
from spillgrad.ops.volume_pooling import *

unfold = _unfold_image

__all__ = [name for name in dir() if not name.startswith("_")]
