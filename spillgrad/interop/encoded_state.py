"""State of other frameworks' optimizers in fewer bits: which tensors of it are encoded in the store, and how."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from spillgrad.errors import ArgumentError
from spillgrad.optim.state_formats import EXACT, encoded_bytes, is_small, kind_of, require_format

_ITEMSIZE = np.dtype(np.float32).itemsize


class StateEncoding:
    """The formats of an offloaded optimizer's state.

    `signs` says of the tensors that can be encoded, by key, whether they may be negative; `sensitive` are the ids of
    parameters whose state stays exact, as that of small ones does. The option `state` of a group goes before `wanted`.
    """

    def __init__(
        self, wanted: str = EXACT, signs: Mapping[str, bool] | None = None, sensitive: Collection[int] = ()
    ) -> None:  # fmt: skip
        self._wanted, self._signs, self._sensitive = wanted, signs or {}, sensitive

    def format_of(self, param: Any, group: Any) -> str:
        """Return the format of a float32 parameter's state; `group` has its options, if it is in a group."""
        wanted = self._wanted
        if self._signs and isinstance(group, dict):
            wanted = group.get("state", wanted)
            require_format(f"the group of a parameter of shape {tuple(param.shape)}", wanted)
        return EXACT if is_small(param) or id(param) in self._sensitive else wanted

    def kind_of(self, key: str, itemsize: int, param: Any, group: Any) -> str | None:
        """Return how a tensor of a parameter's state, with elements of `itemsize` bytes, is encoded: None if exact."""
        state_format = self._format_of(key, itemsize, param, group)
        return None if state_format == EXACT else kind_of(state_format, self._signs[key])

    def stored_bytes(self, key: str, nbytes: int, param: Any, group: Any) -> int:
        """Return the bytes in the store of a tensor of a parameter's state that has its shape and `nbytes` in RAM."""
        state_format = self._format_of(key, nbytes // max(1, math.prod(param.shape)), param, group)
        return nbytes if state_format == EXACT else encoded_bytes(nbytes // _ITEMSIZE, state_format)

    def used_bytes(self, key: str, nbytes: int, param: Any, group: Any) -> int:
        """Return the bytes in RAM of such a tensor while an update uses it: of its codes, too."""
        stored_bytes = self.stored_bytes(key, nbytes, param, group)
        return nbytes if stored_bytes == nbytes else nbytes + stored_bytes

    def _format_of(self, key: str, itemsize: int, param: Any, group: Any) -> str:
        can_be_encoded = key in self._signs and itemsize == _ITEMSIZE
        return self.format_of(param, group) if can_be_encoded else EXACT


EXACT_STATE = StateEncoding()


def encoding_for(
    who: str,
    wanted: str | None,
    optimizer: Any,
    signs: Mapping[type, Mapping[str, bool]],
    sensitive: Collection[int] = (),
) -> StateEncoding:
    """Return the formats of an optimizer's state; `signs` are those of the classes whose state can be encoded.

    Raises ArgumentError for what is no format, or for an optimizer of another class.
    """
    if wanted is None:
        return EXACT_STATE
    require_format(who, wanted)
    kind = type(optimizer)
    if kind not in signs:
        names = ", ".join(each.__name__ for each in signs)
        raise ArgumentError(
            f"{who}: got state={wanted!r} for {kind.__name__}, whose state has no other format; leave it out, or give "
            f"one of {names}"
        )
    return StateEncoding(wanted, signs[kind], frozenset(sensitive))
