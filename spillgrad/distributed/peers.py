"""What ranks tell each other beside collectives: that they are there, that they have left, and what has failed.

Each rank sends a sign of life to one other rank, which watches it: so the cost is the same for any number of ranks, and
one rank alone says that another one is gone. Nothing here does input or output: `mpi.py` sends and receives.
"""

import enum
import math
from collections.abc import Sequence

import numpy as np

from spillgrad.errors import DistributedError

# How long a rank may be silent, unless the environment says otherwise, and how often it gives a sign of life at least.
GONE_AFTER_S, _SIGN_EVERY_S = 60.0, 5.0
_SIGNS_UNTIL_GONE = 12
# A process that looks more rarely than this stood still itself: it was stopped, or its machine slept.
_STOOD_STILL_S = 1.0
# Texts are cut; they name a rank first, and then what it did.
LETTER = np.dtype([("kind", "u1"), ("host", "S64"), ("text", "S1200")])


class Kind(enum.IntEnum):
    """What a letter says."""

    HERE = 1  # the sender's last collective is the text
    LEFT = 2  # the sender's program has ended: it begins no further collective
    FAILED = 3  # the text says what has failed


class Departed(DistributedError):
    """A rank gives no sign of life."""


class Peers:
    """What this rank knows of the others. Times come from the caller.

    Parameters
    ----------
    rank, size : int
        This rank's number, and how many there are.
    host : str
        The machine of this rank.
    now_s : float
        The present time.
    gone_after_s : float
        How long the rank that this one watches may be silent.
    """

    def __init__(self, rank: int, size: int, host: str, now_s: float, gone_after_s: float = GONE_AFTER_S) -> None:
        self.rank, self.size, self._host = rank, size, host
        self.left: dict[int, tuple[str, float]] = {}  # by rank: its host, and when this rank heard of it
        self.failure: DistributedError | None = None  # what another rank says
        self._gone_after_s = gone_after_s
        self._sign_every_s = min(_SIGN_EVERY_S, gone_after_s / _SIGNS_UNTIL_GONE)
        self._watched, self._watcher = (rank + 1) % size, (rank - 1) % size
        self._watched_host, self._watched_did = "an unknown machine", ""
        self._heard_s = self._looked_s = now_s
        self._signed_s = -math.inf

    def letters(self, now_s: float, did: str) -> Sequence[tuple[int, np.ndarray]]:
        """Return what is due to be sent, with its receiver; `did` is the last collective that this rank has called.

        Raises Departed if the rank that this one watches has been silent for too long.
        """
        if self.size == 1:
            return ()
        stood_still_s, self._looked_s = now_s - self._looked_s, now_s
        if stood_still_s > _STOOD_STILL_S:  # signs may have come meanwhile
            self._heard_s += stood_still_s
        silent_s = now_s - self._heard_s
        if silent_s > self._gone_after_s:
            last = self._watched_did or "none"  # of its last sign of life
            raise Departed(
                f"rank {self._watched} on {self._watched_host} is gone: it was silent for {silent_s:.0f} s; "
                f"its last known collective: {last}"
            )
        if now_s - self._signed_s < self._sign_every_s:
            return ()
        self._signed_s = now_s
        return ((self._watcher, self._letter(Kind.HERE, did)),)

    def to_all(self, kind: Kind, text: str = "") -> Sequence[tuple[int, np.ndarray]]:
        """Return a letter to each other rank, with its receiver."""
        letter = self._letter(kind, text)
        return [(other, letter) for other in range(self.size) if other != self.rank]

    def failed(self, error: BaseException) -> str:
        """Return an error of this rank in the words for all ranks."""
        return str(error) if isinstance(error, DistributedError) else f"rank {self.rank} on {self._host}: {error!r}"

    def hear(self, source: int, letter: np.ndarray, now_s: float) -> None:
        """Note what a letter says."""
        host, text = (bytes(letter[name][0]).decode(errors="replace") for name in ("host", "text"))
        kind = letter["kind"][0]
        if source == self._watched:
            self._heard_s, self._watched_host = now_s, host
        if kind == Kind.HERE:
            self._watched_did = text
        elif kind == Kind.LEFT:
            self.left.setdefault(source, (host, now_s))
        elif kind == Kind.FAILED and self.failure is None:
            self.failure = DistributedError(text)

    def _letter(self, kind: Kind, text: str) -> np.ndarray:
        letter = np.zeros(1, LETTER)
        letter["kind"], letter["host"], letter["text"] = kind, self._host.encode(), text.encode()
        return letter
