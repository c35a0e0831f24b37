"""Move an array's pieces and digest them, both at once."""

import threading
from collections.abc import Callable, Sequence

from spillgrad.storage import io_threads
from spillgrad.storage.chunks import Piece

Work = Callable[[Piece], None]


class Transfer:
    """The pieces of one array, moved in any order and digested in theirs, by the calling thread and an I/O thread.

    So the disk has the next piece while one is digested. Nobody waits for an I/O thread that has not begun: one that
    comes too late finds nothing to do, and nothing here that it would keep in memory.
    """

    def __init__(self, pieces: Sequence[Piece], move: Work, digest: Work | None, moved_first: bool) -> None:
        """Prepare; a piece is digested once it is moved, or at any time unless `moved_first`."""
        self._pieces = pieces
        self._move: Work | None = move
        self._digest = digest
        self._moved_first = moved_first
        self._changed = threading.Condition()
        self._moved: set[Piece] = set()
        self._to_move = self._to_digest = self._active = 0
        self._digesting = False
        self._error: BaseException | None = None

    def run(self) -> None:
        """Move and digest everything. Raises what `move` raises."""
        if len(self._pieces) > 1:
            io_threads.submit(self._fail, self._work)
        self._work()
        with self._changed:
            while self._active:
                self._changed.wait()
            self._pieces, self._move, self._digest = (), None, None
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # whose traceback holds this frame, and the callers'

    def _work(self) -> None:
        while (part := self._next()) is not None:
            work, piece = part
            try:
                work(piece)
            except BaseException as error:
                self._fail(error)
            with self._changed:
                self._active -= 1
                if work is self._digest:
                    self._digesting = False
                else:
                    self._moved.add(piece)
                self._changed.notify_all()
            del part, work

    def _next(self) -> tuple[Work, Piece] | None:
        """Choose what to do next; digesting goes first, lest it remain for the end."""
        with self._changed:
            if self._error is not None or self._move is None:
                return None
            if self._digest is not None and not self._digesting and self._to_digest < len(self._pieces):
                piece = self._pieces[self._to_digest]
                if piece in self._moved or not self._moved_first:
                    self._to_digest += 1
                    self._active += 1
                    self._digesting = True
                    return self._digest, piece
            if self._to_move < len(self._pieces):
                self._to_move += 1
                self._active += 1
                return self._move, self._pieces[self._to_move - 1]
            return None

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
