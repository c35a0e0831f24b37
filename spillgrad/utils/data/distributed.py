"""PyTorch's module `torch.utils.data.distributed`; `spillgrad.data.distributed_sampler` defines its class."""

from spillgrad.data.distributed_sampler import DistributedSampler

__all__ = ["DistributedSampler"]
