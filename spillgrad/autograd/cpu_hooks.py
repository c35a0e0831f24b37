"""Ready-made hooks that keep saved tensors in host memory."""

from typing import Any

from spillgrad.autograd.core.hooks import Predicate, saved_tensors_hooks
from spillgrad.ops.convert import to


class save_on_cpu(saved_tensors_hooks):
    """Context manager: move saved tensors to host memory, and back to their device when backward needs them.

    Parameters
    ----------
    pin_memory : bool, default False
        Accepted, as in PyTorch; it changes nothing.
    device_type : str, default "cuda"
        Accepted, as in PyTorch; it changes nothing.
    only : callable, optional
        Chooses the values to move, as in `saved_tensors_hooks`.

    Notes
    -----
    Source: torch.autograd.graph.save_on_cpu.
    """

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda", *, only: Predicate | None = None) -> None:
        def pack(tensor: Any) -> Any:
            return tensor.device, to(tensor, device="cpu")

        def unpack(packed: Any) -> Any:
            device, tensor = packed
            return to(tensor, device=device)

        super().__init__(pack, unpack, only=only)
