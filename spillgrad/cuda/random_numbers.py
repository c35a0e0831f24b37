"""The names by which `torch.cuda` seeds devices. All devices here draw from one generator, that of `sg.manual_seed`."""

from collections.abc import Sequence
from typing import Any

from spillgrad.generator import GeneratorState, default_generator

__all__ = [
    "get_rng_state", "get_rng_state_all", "initial_seed", "manual_seed", "manual_seed_all", "seed", "seed_all",
    "set_rng_state", "set_rng_state_all",
]  # fmt: skip


def manual_seed(seed: int) -> None:
    """Do nothing: the device has no generator of its own; `sg.manual_seed` seeds the generator of all devices.

    Parameters
    ----------
    seed : int
        Ignored.
    """


def seed() -> None:
    """Do nothing: the device has no generator of its own; `sg.seed` seeds the generator of all devices."""


manual_seed_all, seed_all = manual_seed, seed


def initial_seed() -> int:
    """Return the seed of the generator from which all devices draw.

    Returns
    -------
    int
        What `sg.initial_seed` returns.
    """
    return default_generator.initial_seed()


def get_rng_state(device: Any = "cuda") -> GeneratorState:
    """Return the state of the generator from which all devices draw.

    Parameters
    ----------
    device : device, default "cuda"
        Ignored.

    Returns
    -------
    GeneratorState
        Argument of `set_rng_state`.
    """
    return default_generator.get_state()


def set_rng_state(new_state: GeneratorState, device: Any = "cuda") -> None:
    """Continue the generator from which all devices draw from a former state.

    Parameters
    ----------
    new_state : GeneratorState
        What `get_rng_state` returned.
    device : device, default "cuda"
        Ignored.
    """
    default_generator.set_state(new_state)


def get_rng_state_all() -> list[GeneratorState]:
    """Return the state of the generator from which all devices draw, in a list.

    Returns
    -------
    list of GeneratorState
        Of one element.
    """
    return [get_rng_state()]


def set_rng_state_all(new_states: Sequence[GeneratorState]) -> None:
    """Continue from the states that `get_rng_state_all` returned.

    Parameters
    ----------
    new_states : sequence of GeneratorState
        The last one counts.
    """
    for state in new_states:
        set_rng_state(state)
