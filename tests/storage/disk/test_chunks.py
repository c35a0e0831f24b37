"""An array's pieces: consecutive ones are one, large ones several, and all of them are digested."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from spillgrad.storage.disk.chunks import PIECE_BYTES, join_pieces
from spillgrad.storage.disk_store import DiskStore


def test_pieces_that_follow_each_other_are_joined_and_large_ones_cut():
    assert join_pieces([(4096, 0, 10), (4116, 20, 5), (4106, 10, 10), (9000, 25, 1)]) == [(4096, 0, 25), (9000, 25, 1)]
    large = 2 * PIECE_BYTES + 5
    assert join_pieces([(0, 0, 7), (7, 7, large - 7)]) == [
        (0, 0, PIECE_BYTES),
        (PIECE_BYTES, PIECE_BYTES, PIECE_BYTES),
        (2 * PIECE_BYTES, 2 * PIECE_BYTES, 5),
    ]


@pytest.mark.parametrize("direct_io", [False, True])
@pytest.mark.parametrize("spare_bytes", [0, 1, 4097])
def test_arrays_of_several_pieces_come_back_and_damage_to_any_is_noticed(
    make_store: Callable[..., DiskStore], direct_io: bool, spare_bytes: int
):
    store = make_store(0, direct_io=direct_io)
    array = np.random.default_rng(0).integers(0, 256, 3 * PIECE_BYTES + spare_bytes, np.uint8)
    handle = store.put(array)
    np.testing.assert_array_equal(store.get(handle), array)
    (path,) = Path(store.directory).glob("*.h5")
    start = path.read_bytes().index(array[:4096].tobytes())
    for place in (0, PIECE_BYTES, array.nbytes - 1):
        flip(path, start + place)
        (damaged,) = store.check()
        assert "checksum" in str(damaged)
        flip(path, start + place)
        assert store.check() == []


def flip(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))
