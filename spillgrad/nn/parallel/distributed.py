"""PyTorch's module `torch.nn.parallel.distributed`."""

from spillgrad.nn.parallel.wrappers import DistributedDataParallel as DistributedDataParallel
