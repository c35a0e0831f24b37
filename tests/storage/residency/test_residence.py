"""The table of the ways that arrays may go."""

from spillgrad.storage.residency.residence import ALLOWED, GONE, NEW, Residence


def reached(start: Residence) -> set[Residence]:
    """Return every residence that an array can come to, from one on."""
    found, new = {start}, [start]
    while new:
        following = ALLOWED[new.pop()] - found
        found |= following
        new += following
    return found


def test_an_array_can_come_to_every_residence_and_be_dropped_in_each():
    assert reached(NEW) == set(Residence) == ALLOWED.keys()
    assert all(GONE in reached(residence) for residence in Residence)
    assert reached(GONE) == {GONE}
