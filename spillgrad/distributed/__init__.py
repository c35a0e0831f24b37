"""PyTorch's package `torch.distributed`, for one process: every collective gives what it is given.

More than one process is refused by `init_process_group`.
"""

from spillgrad.distributed.collectives import *
from spillgrad.distributed.objects import *
from spillgrad.distributed.process_group import *
