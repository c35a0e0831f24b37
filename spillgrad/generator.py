"""Random number generators. The state is a seed and a position in its stream, so any draw can be repeated."""

import operator
import secrets
import threading
from dataclasses import dataclass
from typing import Any

from spillgrad.device.device import as_device
from spillgrad.errors import ArgumentError
from spillgrad.fork_safe_lock import ForkSafeLock

# Guards the positions of all generators. A finalizer or a signal handler may take it again while it is held.
_lock = ForkSafeLock()


@dataclass(frozen=True)
class GeneratorState:
    """The state of a generator, from which it can continue exactly."""

    seed: int
    offset: int


class _Position:
    """A seed and the offset of the next draw in its stream. They are one tuple, so a fork never sees half a change."""

    def __init__(self, seed: int, offset: int) -> None:
        self.now = (seed, offset)


class Generator:
    """A counter-based stream of random numbers, whose state is a seed and a position that each draw advances.

    One state gives the same numbers on every device.

    Parameters
    ----------
    seed : int, default 0
        Number of the stream, taken modulo 2^64.
    device : device, optional
        Accepted for compatibility with PyTorch, and kept as an attribute; by default, the CPU.

    Notes
    -----
    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Philox).

    Examples
    --------
    >>> import spillgrad as sg
    >>> generator = sg.Generator(0)
    >>> first = sg.rand(2, generator=generator)
    >>> sg.equal(first, sg.rand(2, generator=generator.manual_seed(0)))
    True
    """

    def __init__(self, seed: int = 0, *, device: Any = None) -> None:
        self.device = as_device("cpu" if device is None else device)
        self._common = _Position(0, 0)
        self._own = threading.local()  # a thread that replays has a position of its own
        self.manual_seed(seed)

    @property
    def _position(self) -> _Position:
        return getattr(self._own, "position", None) or self._common

    def manual_seed(self, seed: int) -> "Generator":
        """Start the stream of `seed` from its beginning.

        Parameters
        ----------
        seed : int
            Number of the stream, taken modulo 2^64.

        Returns
        -------
        Generator
            The generator itself.

        Raises
        ------
        ArgumentError
            If `seed` is no integer.
        """
        if not hasattr(seed, "__index__"):
            raise ArgumentError(f"manual_seed: got {type(seed).__name__}; wanted an integer")
        self.set_state(GeneratorState(operator.index(seed) % (1 << 64), 0))
        return self

    def seed(self) -> int:
        """Take a random seed from the system's entropy, and start the stream of this seed.

        Returns
        -------
        int
            The seed.
        """
        self.manual_seed(secrets.randbits(63))
        return self.initial_seed()

    def initial_seed(self) -> int:
        """Return the seed of this stream.

        Returns
        -------
        int
            The seed that the stream was started with.
        """
        return self._position.now[0]

    def take(self, count: int) -> tuple[int, int]:
        """Reserve the next `count` counters of the stream.

        Parameters
        ----------
        count : int
            How many counters a draw needs.

        Returns
        -------
        tuple of int
            The seed, and the first reserved counter.
        """
        position = self._position
        with _lock:
            taken = seed, offset = position.now
            position.now = seed, offset + count
            return taken

    def get_state(self) -> GeneratorState:
        """Return the generator's state.

        Returns
        -------
        GeneratorState
            Seed and position, for `set_state`.
        """
        position = self._position
        with _lock:
            return GeneratorState(*position.now)

    def set_state(self, state: GeneratorState) -> None:
        """Continue from a state.

        Parameters
        ----------
        state : GeneratorState
            What `get_state` returned.
        """
        position = self._position
        with _lock:
            position.now = state.seed, state.offset

    def replay(self, state: GeneratorState) -> "Replay":
        """Return a context manager in which this thread draws from `state` on.

        Other threads, and draws after its end, are unaffected. Entered again, it goes on where it ended. It is not for
        entering within itself.

        Parameters
        ----------
        state : GeneratorState
            What `get_state` returned.

        Returns
        -------
        context manager
            It yields nothing.
        """
        return Replay(self._own, _Position(state.seed, state.offset))


class Replay:
    """What `Generator.replay` returns. A class, because a `DataLoader` enters it for each batch."""

    __slots__ = ("_before", "_own", "_position")

    def __init__(self, own: threading.local, position: _Position) -> None:
        self._own, self._position = own, position

    def __enter__(self) -> None:
        self._before = getattr(self._own, "position", None)
        self._own.position = self._position

    def __exit__(self, *_: object) -> None:
        self._own.position = self._before


default_generator = Generator(secrets.randbits(63))


def manual_seed(seed: int) -> Generator:
    """Seed the default generator, from which all random functions draw.

    Parameters
    ----------
    seed : int
        Number of the stream, taken modulo 2^64.

    Returns
    -------
    Generator
        The default generator.

    Raises
    ------
    ArgumentError
        If `seed` is no integer.

    Examples
    --------
    >>> import spillgrad as sg
    >>> _ = sg.manual_seed(0)
    >>> x = sg.randn(3)
    >>> _ = sg.manual_seed(0)
    >>> sg.equal(x, sg.randn(3))
    True
    """
    return default_generator.manual_seed(seed)


def seed() -> int:
    """Seed the default generator from the system's entropy.

    Returns
    -------
    int
        The seed.
    """
    return default_generator.seed()


def initial_seed() -> int:
    """Return the default generator's seed.

    Returns
    -------
    int
        What `manual_seed` or `seed` set; at first, a random seed.
    """
    return default_generator.initial_seed()


def get_rng_state() -> GeneratorState:
    """Return the default generator's state.

    Returns
    -------
    GeneratorState
        Seed and position, for `set_rng_state`.
    """
    return default_generator.get_state()


def set_rng_state(state: GeneratorState) -> None:
    """Continue the default generator from a state.

    Parameters
    ----------
    state : GeneratorState
        What `get_rng_state` returned.
    """
    default_generator.set_state(state)
