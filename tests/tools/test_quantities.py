"""Quantities as people read them."""

import pytest

from spillgrad_tools.quantities import UNKNOWN, format_duration, percent, short_bytes, short_duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (2e-9, "2 ns"), (2.5e-5, "25 µs"), (1.234e-5, "12.3 µs"), (0.9999e-3, "1 ms"), (0.0046, "4.6 ms"),
        (0.0456, "45.6 ms"), (0.25, "250 ms"), (0.9996, "1 s"), (7.891, "7.89 s"), (12.34, "12.3 s"), (59.96, "60 s"),
        (99.96, "1 min 40 s"), (125, "2 min 5 s"), (303, "5 min 3 s"), (3600, "1 h 0 min"), (7384, "2 h 3 min"),
        (7500, "2 h 5 min"), (200_000, "2 d 7 h"), (4e9, "46,296 d 7 h"),
    ],
)  # fmt: skip
def test_durations_have_the_units_people_use(seconds: float, text: str):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.2304, "230ms"), (0.9996, "1.0s"), (1234.5, "1234s")])
def test_short_durations_have_no_space(seconds: float, text: str):
    assert short_duration(seconds) == text


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [
        (0, "0B"), (999, "999B"), (1000, "1.0K"), (1536, "1.5K"), (10 * 1024, "10K"), (999 << 10, "999K"),
        (1000 << 10, "1.0M"), (60 << 20, "60M"), (5 << 40, "5.0T"), (12_345 << 40, "12345T"),
    ],
)  # fmt: skip
def test_short_bytes_have_at_most_five_characters_up_to_a_pebibyte(nbytes: int, words: str):
    assert short_bytes(nbytes) == words


def test_no_share_is_rounded_to_nothing_or_all_and_that_of_nothing_is_not_known():
    assert [percent(part, 1000) for part in (0, 1, 10, 990, 999, 1000)] == ["0%", "<1%", "1%", "99%", ">99%", "100%"]
    assert percent(0, 0) == UNKNOWN
