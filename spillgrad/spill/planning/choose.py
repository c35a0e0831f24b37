"""Choose the modules to recompute, so that less of their saved tensors goes to disk."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from spillgrad.spill.planning.record import Part, Unit

# A gain of less than this share of a step is noise, and nothing is recomputed for it.
WORTH_SHARE = 0.05


class Choice(NamedTuple):
    """The modules to recompute, the bytes that this frees, the seconds that this takes, and the new time of a step."""

    paths: frozenset[str]
    freed_bytes: int
    seconds: float
    step_s: float


class _Exchange(NamedTuple):
    """The module `add` to recompute instead of the modules `remove` inside it; the added freed bytes and seconds."""

    add: str
    remove: tuple[str, ...]
    freed_bytes: int
    seconds: float


def choose(units: Sequence[Unit], step_s: Callable[[int, float], float]) -> Choice:
    """Return the choice with the shortest step; if several choices are about as fast, the one that recomputes least.

    `step_s(freed_bytes, seconds)` returns the time of a step that saves `freed_bytes` less and computes `seconds`
    longer. Modules that free the most bytes per second of recomputation are chosen first. Of equal modules, those in
    earlier layers come first, because their tensors go to disk first. If the gain is less than the share `WORTH_SHARE`
    of a step, nothing is recomputed.
    """
    every = list(choices(units, step_s))
    least_s = min(choice.step_s for choice in every)
    if least_s > every[0].step_s * (1 - WORTH_SHARE):
        return every[0]
    return next(choice for choice in every if choice.step_s <= least_s * (1 + WORTH_SHARE / 5))


def choices(units: Sequence[Unit], step_s: Callable[[int, float], float]) -> Iterable[Choice]:
    """Yield choices that recompute more and more; the first choice recomputes nothing."""
    exchanges = [exchange for unit in units for exchange in _exchanges(unit)]
    exchanges.sort(key=_worth, reverse=True)
    paths: frozenset[str] = frozenset()
    freed_bytes, seconds = 0, 0.0
    yield Choice(paths, 0, 0.0, step_s(0, 0.0))
    for exchange in exchanges:
        paths = paths - frozenset(exchange.remove) | {exchange.add}
        freed_bytes += exchange.freed_bytes
        seconds += exchange.seconds
        yield Choice(paths, freed_bytes, seconds, step_s(freed_bytes, seconds))


def _exchanges(unit: Unit) -> list[_Exchange]:
    """Return exchanges that lead from recomputing nothing to the whole unit, in order of falling bytes per second."""
    steps: list[_Exchange] = []
    for part in sorted(unit.children, key=_worth, reverse=True):
        if part.freed_bytes > 0:
            steps.append(_Exchange(part.path, (), part.freed_bytes, part.seconds))
    whole = unit.whole
    if whole.freed_bytes <= 0:
        return steps
    while True:
        rest = _Exchange(
            whole.path,
            tuple(step.add for step in steps),
            whole.freed_bytes - sum(step.freed_bytes for step in steps),
            max(0.0, whole.seconds - sum(step.seconds for step in steps)),
        )
        # If the rest frees more bytes per second than the last part, the two become one exchange.
        if not steps or _worth(rest) <= _worth(steps[-1]):
            break
        steps.pop()
    return [*steps, rest] if rest.freed_bytes > 0 else steps


def _worth(what: Part | _Exchange) -> float:
    """Return the bytes freed per second of recomputation; if it takes no time, infinity, or 0 if it frees nothing."""
    if what.seconds > 0:
        return what.freed_bytes / what.seconds
    return float("inf") if what.freed_bytes > 0 else 0.0
