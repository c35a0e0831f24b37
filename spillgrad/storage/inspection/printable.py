"""Text from files that anybody may have written, made fit to be printed."""


def printable(text: str, most: int = 200) -> str:
    r"""Return `text` with all that a terminal could obey, reorder or hide as visible escapes, such as `\x1b`.

    At most `most` characters: what is cut off leaves `…`. Where rich prints it, wrap it in `rich.text.Text`: its markup
    is text like any other here.
    """
    shown = "".join(map(_visible, text[: most + 1]))
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def _visible(character: str) -> str:
    # Python's own rule for `repr`: controls, line ends, bidirectional and invisible marks, surrogates, unassigned ones.
    return character if character.isprintable() else character.encode("unicode_escape").decode()
