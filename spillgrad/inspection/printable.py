"""Make text from files of unknown origin safe to print."""

# A longer run of letters is no word, or is most of the text, and is cut in its middle.
_LONGEST_WORD = 20


def printable(text: str, most: int = 200) -> str:
    r"""Return `text` with all that a terminal could obey, reorder or hide as visible escapes, such as `\x1b`.

    At most `most` characters: what is cut off leaves `…`, in place of whole words where they are short. Where rich
    prints it, wrap it in `rich.text.Text`: its markup is text like any other here.
    """
    shown = "".join(map(_visible, text[: most + 1]))
    if len(shown) <= most:
        return shown
    words, _, part = shown[:most].rpartition(" ")
    return (words if words and len(part) <= min(_LONGEST_WORD, most // 4) else shown[: most - 1]) + "…"


def _visible(character: str) -> str:
    # Python's own rule for `repr`: controls, line ends, bidirectional and invisible marks, surrogates, unassigned ones.
    return character if character.isprintable() else character.encode("unicode_escape").decode()
