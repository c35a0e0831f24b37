"""Settings of PyTorch's package `torch.backends`, so that programs which set them run; each reads back as it was set.

`cuda.matmul.allow_tf32` is the setting of `sg.set_float32_matmul_precision`. All others change nothing here: results do
not depend on algorithms chosen at run time, and no cuDNN, MKL or Metal is used.
"""

from spillgrad.backends import cpu, cuda, cudnn, mkl, mkldnn, mps, openmp, opt_einsum

__all__ = ["cpu", "cuda", "cudnn", "mkl", "mkldnn", "mps", "openmp", "opt_einsum"]
