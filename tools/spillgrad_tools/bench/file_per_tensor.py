"""The hooks of PyTorch's tutorial, which keep each saved tensor in a file of its own, as a peer for benchmarks."""

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

# The tutorial keeps tensors of fewer elements in RAM.
FEWEST_ELEMENTS = 1000


class TensorFile:
    """The file of one saved tensor; the file is removed when this object dies, together with its autograd node."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / str(uuid.uuid4())

    def __del__(self) -> None:
        os.remove(self.path)


def file_per_tensor(
    directory: Path, save: Callable[[Any, Path], None], load: Callable[[Path], Any]
) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return a pack hook, which writes files with `save(tensor, path)`, and an unpack hook, which uses `load(path)`."""

    def pack(tensor: Any) -> Any:
        if tensor.numel() < FEWEST_ELEMENTS:
            return tensor.detach()
        file = TensorFile(directory)
        save(tensor, file.path)
        return file

    def unpack(packed: Any) -> Any:
        return load(packed.path) if isinstance(packed, TensorFile) else packed

    return pack, unpack
