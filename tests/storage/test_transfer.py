"""An array's pieces: each moved once, digested once and in order, whoever does it."""

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from spillgrad.storage.chunks import PIECE_BYTES, Piece, join_pieces
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.transfer import Transfer

PIECES = [(100 + i, i, 1) for i in range(20)]


@pytest.mark.parametrize("moved_first", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2, 20])
def test_every_piece_is_moved_once_and_digested_in_order(moved_first: bool, count: int):
    rng = random.Random(count)
    moved: list[Piece] = []
    digested: list[Piece] = []

    def move(piece: Piece) -> None:
        time.sleep(rng.random() * 1e-3)
        moved.append(piece)

    def digest(piece: Piece) -> None:
        assert not moved_first or piece in moved
        time.sleep(rng.random() * 1e-3)
        digested.append(piece)

    Transfer(PIECES[:count], move, digest, moved_first).run()
    assert sorted(moved) == digested == PIECES[:count]


def test_without_a_digest_everything_is_moved():
    moved: list[Piece] = []
    Transfer(PIECES, moved.append, None, moved_first=True).run()
    assert sorted(moved) == PIECES


def test_two_threads_work_at_once():
    together = threading.Barrier(2, timeout=10)

    def move(piece: Piece) -> None:
        together.wait()  # raises unless the other comes

    Transfer(PIECES[:2], move, None, moved_first=True).run()


@pytest.mark.parametrize("fails", [0, 7, 19])
def test_an_error_comes_to_the_caller_after_the_other_thread_stopped(fails: int):
    at_work = 0
    lock = threading.Lock()

    def move(piece: Piece) -> None:
        nonlocal at_work
        with lock:
            at_work += 1
        try:
            time.sleep(1e-3)
            if piece == PIECES[fails]:
                raise OSError(f"piece {fails}")
            time.sleep(1e-3)
        finally:
            with lock:
                at_work -= 1

    with pytest.raises(OSError, match=f"piece {fails}"):
        Transfer(PIECES, move, None, moved_first=True).run()
    assert at_work == 0


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
