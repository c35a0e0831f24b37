"""Sizes as text: parse and format numbers of bytes."""

import re

from spillgrad.errors import BudgetError

_ACCEPTED = "an integer of bytes, or text like '64MiB', '2GB' or '512K'"
# As `ulimit` and `dd` read them: a bare letter is binary, and only "B" after it makes it decimal.
_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS[_letter] = _UNITS[f"{_letter}ib"] = 1024**_power
    _UNITS[f"{_letter}b"] = 1000**_power


def parse_bytes(text: int | str) -> int:
    """Return how many bytes a size means.

    Parameters
    ----------
    text : int or str
        A number of bytes, or a number with a unit: ``KiB`` and ``K`` are 1024 bytes, ``KB`` is 1000; likewise for mega,
        giga and tera. Case does not matter.

    Returns
    -------
    int
        Number of bytes.

    Raises
    ------
    BudgetError
        If `text` is not a size; the message has one line.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.storage.parse_bytes("64MiB"), sg.storage.parse_bytes("2GB")
    (67108864, 2000000000)
    """
    if isinstance(text, bool) or not isinstance(text, int | str):
        raise BudgetError(f"budget: got {text!r}; wanted {_ACCEPTED}")
    if isinstance(text, int):
        if text < 0:
            raise BudgetError(f"budget: got {text}; wanted no fewer than 0 bytes")
        return text
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text, flags=re.ASCII)
    if match is None or match[2].lower() not in _UNITS:
        raise BudgetError(f"budget: got {text!r}; wanted {_ACCEPTED}")
    scale = _UNITS[match[2].lower()]
    return int(match[1]) * scale if match[1].isdigit() else round(float(match[1]) * scale)


def format_bytes(nbytes: int) -> str:
    """Return a number of bytes as text, with the largest binary unit that it fills.

    Parameters
    ----------
    nbytes : int
        Number of bytes.

    Returns
    -------
    str
        Such as "1.5 GiB", with at most one digit after the point.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.storage.format_bytes(1536)
    '1.5 KiB'
    """
    for unit, scale in (("TiB", 1024**4), ("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if nbytes >= scale:
            return f"{nbytes / scale:.1f}".removesuffix(".0") + f" {unit}"
    return f"{nbytes} B"
