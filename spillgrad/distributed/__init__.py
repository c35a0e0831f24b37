"""PyTorch's package `torch.distributed`: processes that work together, on one machine or several, over MPI.

A process that no launcher started is a group of its own, in which collectives give what they are given.
"""

from spillgrad.distributed.collectives import *
from spillgrad.distributed.messages import *
from spillgrad.distributed.objects import *
from spillgrad.distributed.process_group import *
