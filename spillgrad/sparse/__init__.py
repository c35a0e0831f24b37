"""Sparse tensors under PyTorch's names: `sparse_coo_tensor`, and products with dense matrices."""

from spillgrad.sparse.coo import *
