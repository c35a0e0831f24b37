"""Schedules of the learning rate, with PyTorch's names; `CosineWithWarmup` and `LinearWithWarmup` are our own."""

from spillgrad.optim.lr_scheduler.composed import *
from spillgrad.optim.lr_scheduler.cosine import *
from spillgrad.optim.lr_scheduler.cyclic import *
from spillgrad.optim.lr_scheduler.decay import *
from spillgrad.optim.lr_scheduler.plateau import *
from spillgrad.optim.lr_scheduler.scheduler import *
from spillgrad.optim.lr_scheduler.warmup import *
