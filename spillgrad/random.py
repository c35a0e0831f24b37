"""PyTorch's module `torch.random`: the default generator, from which all random functions draw."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from spillgrad.generator import default_generator, get_rng_state, initial_seed, manual_seed, seed, set_rng_state

__all__ = ["default_generator", "fork_rng", "get_rng_state", "initial_seed", "manual_seed", "seed", "set_rng_state"]


@contextlib.contextmanager
def fork_rng(devices: Iterable[Any] | None = None, enabled: bool = True, device_type: str = "cuda") -> Iterator[None]:
    """Restore the default generator, of all devices, when the block ends; if not `enabled`, do nothing.

    `devices` and `device_type` change nothing: all devices draw from one generator.
    """
    before = get_rng_state()
    try:
        yield
    finally:
        if enabled:
            set_rng_state(before)
