"""State of other frameworks' optimizers in fewer bits: which tensors of it are encoded in the store, and how."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np

from spillgrad.errors import ArgumentError
from spillgrad.optim.state_formats import EXACT, encoded_bytes, is_small, kind_of, require_format

_ITEMSIZE = np.dtype(np.float32).itemsize


class StateEncoding:
    """The format of an offloaded optimizer's state, float32 by default, and which parameters keep exact state.

    `signs` says of the tensors that are encoded, by key, whether they may be negative. State stays exact that takes
    fewer than `least_bytes`, that of parameters whose ids are `sensitive`, or that have `exact_state`, and that of
    small ones.
    """

    def __init__(
        self, wanted: str = EXACT, signs: Mapping[str, bool] | None = None, sensitive: Collection[int] = (),
        least_bytes: int = 0,
    ) -> None:  # fmt: skip
        self._wanted, self._signs, self._sensitive, self._least_bytes = wanted, signs or {}, sensitive, least_bytes

    def format_of(self, param: Any) -> str:
        """Return the format of a parameter's float32 state."""
        is_sensitive = id(param) in self._sensitive or getattr(param, "exact_state", False)
        is_too_small = is_small(param) or _ITEMSIZE * math.prod(param.shape) < self._least_bytes
        return EXACT if is_sensitive or is_too_small else self._wanted

    def kind_of(self, key: str, itemsize: int, param: Any) -> str | None:
        """Return how a tensor of a parameter's state, with elements of `itemsize` bytes, is encoded: None if exact."""
        state_format = self._format_of(key, itemsize, param)
        return None if state_format == EXACT else kind_of(state_format, self._signs[key])

    def stored_bytes(self, key: str, nbytes: int, param: Any) -> int:
        """Return the bytes in the store of a tensor of a parameter's state that has its shape and `nbytes` in RAM."""
        state_format = self._format_of(key, nbytes // max(1, math.prod(param.shape)), param)
        return nbytes if state_format == EXACT else encoded_bytes(nbytes // _ITEMSIZE, state_format)

    def used_bytes(self, key: str, nbytes: int, param: Any) -> int:
        """Return the bytes in RAM of such a tensor while an update uses it: of its codes, too."""
        stored_bytes = self.stored_bytes(key, nbytes, param)
        return nbytes if stored_bytes == nbytes else nbytes + stored_bytes

    def _format_of(self, key: str, itemsize: int, param: Any) -> str:
        return self.format_of(param) if key in self._signs and itemsize == _ITEMSIZE else EXACT


EXACT_STATE = StateEncoding()


def encoding_for(
    who: str, wanted: str | None, optimizer: Any, signs: Mapping[type, Mapping[str, bool]],
    parameters: Iterable[Any], has_float32_state: Callable[[Any], bool], *,
    sensitive: Collection[int] = (), least_bytes: int = 0,
) -> StateEncoding:  # fmt: skip
    """Return the formats of an optimizer's state; `signs` are those of the classes whose state can be encoded.

    Raises ArgumentError for what is no format, for an optimizer of another class, and for parameters whose state is not
    of float32.
    """
    if wanted is None:
        return EXACT_STATE
    require_format(who, wanted)
    if wanted == EXACT:
        return EXACT_STATE
    kind = type(optimizer)
    if kind not in signs:
        names = ", ".join(each.__name__ for each in signs)
        raise ArgumentError(
            f"{who}: got state={wanted!r} for {kind.__name__}, whose state has no other format; leave it out, or give "
            f"one of {names}"
        )
    encoding = StateEncoding(wanted, signs[kind], frozenset(sensitive), least_bytes)
    for param in parameters:
        if encoding.format_of(param) != EXACT and not has_float32_state(param):
            raise ArgumentError(
                f"{who}: got state={wanted!r} for a parameter of {param.dtype}, whose state is not float32; leave it "
                "out, or train parameters of float32"
            )
    return encoding
