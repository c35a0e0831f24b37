"""PyTorch's module `torch.nn.modules.utils`: numbers as tuples, one for each dimension."""

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any

from spillgrad.nn.utils.state_dict_prefix import consume_prefix_in_state_dict_if_present

__all__ = ["consume_prefix_in_state_dict_if_present"]


def _ntuple(n: int, name: str = "parse") -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns an iterable as a tuple, and any other value `n` times."""

    def parse(x: Any) -> tuple[Any, ...]:
        return tuple(x) if isinstance(x, Iterable) else tuple(repeat(x, n))

    parse.__name__ = name
    return parse


_single = _ntuple(1, "_single")
_pair = _ntuple(2, "_pair")
_triple = _ntuple(3, "_triple")
_quadruple = _ntuple(4, "_quadruple")


def _reverse_repeat_tuple(t: Iterable[Any], n: int) -> tuple[Any, ...]:
    """Return the elements in reverse order, each `n` times."""
    return tuple(x for x in reversed(tuple(t)) for _ in range(n))
