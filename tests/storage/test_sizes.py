import pytest

from spillgrad.errors import BudgetError
from spillgrad.storage.sizes import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        (0, 0),
        (123, 123),
        ("123", 123),
        ("12 B", 12),
        ("512K", 512 * 1024),
        ("512KB", 512_000),
        ("512KiB", 512 * 1024),
        ("64MiB", 64 * 1024**2),
        ("64 mib", 64 * 1024**2),
        ("2GB", 2 * 1000**3),
        (" 2G ", 2 * 1024**3),
        ("1TiB", 1024**4),
        ("1.5GiB", 3 * 1024**3 // 2),
        ("0.5K", 512),
        ("9007199254740993", 9007199254740993),  # 2**53 + 1: no float on the way
    ],
)
def test_a_budget_means_the_bytes_it_says(text: int | str, nbytes: int):
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize(
    "text", ["", "MiB", "-1", "-1MiB", "1.MiB", "64 MiBs", "1e9", "0x10", "64MiB 2", "nan", -1, True, None, 1.5, "٣"]
)
def test_a_budget_that_does_not_parse_is_refused_in_one_line(text: object):
    with pytest.raises(BudgetError) as caught:
        parse_bytes(text)  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"budget: got {text!r}; wanted ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (64 << 20, "64 MiB"),
        (3 << 29, "1.5 GiB"),
        (1 << 40, "1 TiB"),
    ],
)
def test_bytes_are_shown_in_the_largest_unit_they_fill(nbytes: int, text: str):
    assert format_bytes(nbytes) == text


@pytest.mark.parametrize("nbytes", [0, 1, 512 << 10, 64 << 20, 2 << 30])
def test_what_is_shown_can_be_read_back(nbytes: int):
    assert parse_bytes(format_bytes(nbytes)) == nbytes
