"""PyTorch's module `torch.utils.checkpoint`; `spillgrad.autograd.recompute` defines all these names."""

from spillgrad.autograd.recompute.reentrant import CheckpointFunction
from spillgrad.autograd.recompute.region import (
    CheckpointError,
    checkpoint,
    checkpoint_sequential,
    noop_context_fn,
    set_checkpoint_debug_enabled,
    set_checkpoint_early_stop,
)
from spillgrad.autograd.recompute.selective import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    create_selective_checkpoint_contexts,
)

__all__ = [
    "CheckpointError",
    "CheckpointFunction",
    "CheckpointPolicy",
    "SelectiveCheckpointContext",
    "checkpoint",
    "checkpoint_sequential",
    "create_selective_checkpoint_contexts",
    "noop_context_fn",
    "set_checkpoint_debug_enabled",
    "set_checkpoint_early_stop",
]
