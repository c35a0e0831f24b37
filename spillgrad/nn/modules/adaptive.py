"""PyTorch's module `torch.nn.modules.adaptive`."""

from spillgrad.nn.adaptive_softmax import AdaptiveLogSoftmaxWithLoss as AdaptiveLogSoftmaxWithLoss
