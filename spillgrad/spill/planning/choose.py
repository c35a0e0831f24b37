"""Choose which layers to recompute, of those whose saved tensors would go to disk."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from spillgrad.spill.planning.record import Part, Unit

# Less than this share of a step is noise: nothing is recomputed for it.
WORTH_SHARE = 0.05


class Choice(NamedTuple):
    """Modules to recompute: the bytes that frees, the seconds it takes, and the seconds of a step then."""

    paths: frozenset[str]
    freed_bytes: int
    seconds: float
    step_s: float


class _Exchange(NamedTuple):
    """One module to recompute in place of modules inside it: the bytes and seconds that adds."""

    add: str
    remove: tuple[str, ...]
    freed_bytes: int
    seconds: float


def choose(units: Sequence[Unit], step_s: Callable[[int, float], float]) -> Choice:
    """Return the choice with the shortest step; among steps that are about as short, the one with the fewest modules.

    `step_s(freed_bytes, seconds)` returns how long a step takes that saves so many bytes less and computes so many
    seconds longer. Modules that free most bytes for their time come first. Of equal ones the earlier layer does, as its
    tensors are the first to go to disk.
    """
    best = min(choices(units, step_s), key=lambda choice: choice.step_s)
    first = Choice(frozenset(), 0, 0.0, step_s(0, 0.0))
    if best.step_s > first.step_s * (1 - WORTH_SHARE):
        return first
    return next(choice for choice in choices(units, step_s) if choice.step_s <= best.step_s * (1 + WORTH_SHARE / 5))


def choices(units: Sequence[Unit], step_s: Callable[[int, float], float]) -> Iterable[Choice]:
    """Yield choices with ever more to recompute, from nothing on."""
    exchanges = [exchange for unit in units for exchange in _exchanges(unit)]
    exchanges.sort(key=lambda exchange: -_worth(exchange.freed_bytes, exchange.seconds))
    paths: frozenset[str] = frozenset()
    freed_bytes, seconds = 0, 0.0
    yield Choice(paths, 0, 0.0, step_s(0, 0.0))
    for exchange in exchanges:
        paths = paths - frozenset(exchange.remove) | {exchange.add}
        freed_bytes += exchange.freed_bytes
        seconds += exchange.seconds
        yield Choice(paths, freed_bytes, seconds, step_s(freed_bytes, seconds))


def _exchanges(unit: Unit) -> list[_Exchange]:
    """Return steps from nothing to the whole unit, each worth less than the one before."""
    steps: list[_Exchange] = []
    for part in sorted(unit.children, key=_worth_of, reverse=True):
        if part.freed_bytes > 0:
            steps.append(_Exchange(part.path, (), part.freed_bytes, part.seconds))
    whole = unit.whole
    if whole.freed_bytes <= 0:
        return steps
    while True:
        done = tuple(step.add for step in steps)
        freed_bytes = whole.freed_bytes - sum(step.freed_bytes for step in steps)
        seconds = max(0.0, whole.seconds - sum(step.seconds for step in steps))
        # If the rest frees more for its time than the last part, they become one step.
        if not steps or _worth(freed_bytes, seconds) <= _worth(steps[-1].freed_bytes, steps[-1].seconds):
            break
        steps.pop()
    if freed_bytes > 0:
        steps.append(_Exchange(whole.path, done, freed_bytes, seconds))
    return steps


def _worth_of(part: Part) -> float:
    return _worth(part.freed_bytes, part.seconds)


def _worth(freed_bytes: int, seconds: float) -> float:
    return freed_bytes / seconds if seconds > 0 else float("inf") if freed_bytes > 0 else 0.0
