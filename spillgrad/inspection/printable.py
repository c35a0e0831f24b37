"""Make text from files of unknown origin safe to print."""

from spillgrad.storage.origin_counters import Origin

# A longer run of characters is cut in its middle; before a shorter one, the text is cut at the space.
_LONGEST_WORD = 20


def printable(text: str, most: int = 200) -> str:
    r"""Return `text` with visible escapes, such as `\x1b`, for characters that a terminal could obey, reorder or hide.

    The result has at most `most` characters; a longer text is cut and ends with `…`, if possible after a whole word.
    Before rich prints the result, wrap it in `rich.text.Text`: rich's markup is not escaped here.
    """
    shown = "".join(map(_visible, text[: most + 1]))
    if len(shown) <= most:
        return shown
    words, _, part = shown[:most].rpartition(" ")
    return (words if words and len(part) <= min(_LONGEST_WORD, most // 4) else shown[: most - 1]) + "…"


def origin_name(origin: Origin) -> str:
    """Return an origin in words, such as `mul.self in h.0.mlp, float32`."""
    what = ".".join(part for part in (origin.op, origin.slot) if part) or "array"
    where = f" in {origin.module}" if origin.module else ""
    return printable(what + where) + (f", {printable(origin.dtype, 30)}" if origin.dtype else "")


def _visible(character: str) -> str:
    # Python's own rule for `repr`: controls, line ends, bidirectional and invisible marks, surrogates, unassigned ones.
    return character if character.isprintable() else character.encode("unicode_escape").decode()
