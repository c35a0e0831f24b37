"""PyTorch's module `torch.nn.parallel.data_parallel`."""

from spillgrad.nn.parallel.wrappers import DataParallel as DataParallel
