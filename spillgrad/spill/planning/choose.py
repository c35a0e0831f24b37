"""Choose which layers to recompute, of those whose saved tensors would go to disk."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from spillgrad.spill.planning.record import Part, Unit

# A gain of less than this share of a step is noise, and nothing is recomputed for it.
WORTH_SHARE = 0.05


class Choice(NamedTuple):
    """Modules to recompute; the bytes that this frees, the seconds that it takes, and the length of a step then."""

    paths: frozenset[str]
    freed_bytes: int
    seconds: float
    step_s: float


class _Exchange(NamedTuple):
    """A module to recompute in place of modules inside it, and the bytes and seconds that this adds."""

    add: str
    remove: tuple[str, ...]
    freed_bytes: int
    seconds: float


def choose(units: Sequence[Unit], step_s: Callable[[int, float], float]) -> Choice:
    """Return the choice with the shortest step; among steps that are about as short, the one with the fewest modules.

    `step_s(freed_bytes, seconds)` returns the length of a step that saves `freed_bytes` less and computes `seconds`
    longer. Modules that free most bytes for their time come first; of equal modules the one in the earlier layer,
    because its tensors are the first to go to disk.
    """
    best = min(choices(units, step_s), key=lambda choice: choice.step_s)
    first = Choice(frozenset(), 0, 0.0, step_s(0, 0.0))
    if best.step_s > first.step_s * (1 - WORTH_SHARE):
        return first
    return next(choice for choice in choices(units, step_s) if choice.step_s <= best.step_s * (1 + WORTH_SHARE / 5))


def choices(units: Sequence[Unit], step_s: Callable[[int, float], float]) -> Iterable[Choice]:
    """Yield choices that recompute more and more, the first of them nothing."""
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
    """Return exchanges that lead from nothing to the whole unit, each freeing fewer bytes a second than the last."""
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
        # If the rest frees more for its time than the last part, the two become one exchange.
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
