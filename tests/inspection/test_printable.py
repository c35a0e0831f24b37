"""What is printed moves no cursor, turns no line around and is no longer than it should be."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillgrad.inspection.printable import printable

CASES = [
    # text, and how it is shown
    ("layers.0.attention", "layers.0.attention"),
    ("größe 張量 ∂x", "größe 張量 ∂x"),
    ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
    ("a\nb\r\tc\x00\x7f\x9b", "a\\nb\\r\\tc\\x00\\x7f\\x9b"),
    ("\u202egnp.exe\u2066\u200b\ufeff\u2028", "\\u202egnp.exe\\u2066\\u200b\\ufeff\\u2028"),
    ("\udc80\U000e0041", "\\udc80\\U000e0041"),
    ("<b>[red]bold[/]", "<b>[red]bold[/]"),
    ("", ""),
]


@pytest.mark.parametrize(("text", "shown"), CASES, ids=[ascii(text)[1:-1] for text, _ in CASES])
def test_what_a_terminal_would_obey_is_shown_as_an_escape(text: str, shown: str):
    assert printable(text) == shown


def test_long_text_is_cut_and_says_so():
    assert printable("a" * 200) == "a" * 200
    assert printable("a" * 10**6) == "a" * 199 + "…"
    assert printable("\x1b" * 100, 10) == "\\x1b\\x1b\\…"
    assert printable("could not write any more", 12) == "could not…"
    assert printable("could not write any more", 10) == "could not…"
    assert printable("a " + "b" * 50, 30) == "a " + "b" * 27 + "…"


@given(st.text(st.characters(codec=None)), st.integers(1, 40))
def test_nothing_but_characters_with_a_shape_is_left(text: str, most: int):
    shown = printable(text, most)
    assert len(shown) <= most
    assert not {unicodedata.category(character) for character in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    shown.encode()
