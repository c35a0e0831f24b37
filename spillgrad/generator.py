"""Random numbers: a seed and a position in its stream, so that any draw can be repeated."""

import operator
import secrets
import threading
from dataclasses import dataclass

from spillgrad.errors import ArgumentError


@dataclass(frozen=True)
class GeneratorState:
    """Where a generator stands: enough to continue it exactly."""

    seed: int
    offset: int


class Generator:
    """A counter-based stream of random numbers: draw n values and the position moves on; nothing else is state.

    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Philox).
    """

    def __init__(self, seed: int = 0) -> None:
        self._lock = threading.Lock()
        self.manual_seed(seed)

    def manual_seed(self, seed: int) -> "Generator":
        """Start the stream of `seed` from its beginning."""
        if not hasattr(seed, "__index__"):
            raise ArgumentError(f"manual_seed: got {type(seed).__name__}; wanted an integer")
        self._seed = operator.index(seed) % (1 << 64)
        self._offset = 0
        return self

    def seed(self) -> int:
        """Start the stream of a seed from the system's entropy; return the seed."""
        self.manual_seed(secrets.randbits(63))
        return self._seed

    def initial_seed(self) -> int:
        """Return the seed of this stream."""
        return self._seed

    def take(self, count: int) -> tuple[int, int]:
        """Reserve `count` counters; return (seed, first counter)."""
        with self._lock:
            offset = self._offset
            self._offset += count
        return self._seed, offset

    def get_state(self) -> GeneratorState:
        """Return where the generator stands."""
        return GeneratorState(self._seed, self._offset)

    def set_state(self, state: GeneratorState) -> None:
        """Continue from a state that `get_state` returned."""
        self._seed, self._offset = state.seed, state.offset


default_generator = Generator(secrets.randbits(63))


def manual_seed(seed: int) -> Generator:
    """Seed the default generator, from which all random functions draw."""
    return default_generator.manual_seed(seed)


def initial_seed() -> int:
    """Return the default generator's seed."""
    return default_generator.initial_seed()


def get_rng_state() -> GeneratorState:
    """Return where the default generator stands."""
    return default_generator.get_state()


def set_rng_state(state: GeneratorState) -> None:
    """Continue the default generator from a state."""
    default_generator.set_state(state)
