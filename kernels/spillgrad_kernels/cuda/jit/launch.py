"""Launch a kernel through NVIDIA's driver: pack its arguments by their declared types."""

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

from spillgrad_kernels.cuda.driver import driver

# Each argument takes one word, whatever its size. This dict maps the name of a type to its format for `struct`.
_WORD_BYTES = 8
_LAYOUTS = {
    "int64": "q", "int32": "i4x", "int16": "h6x", "int8": "b7x", "uint64": "Q", "uint8": "B7x", "bool": "?7x",
    "float32": "f4x", "float64": "d",
}  # fmt: skip


class _Arguments:
    """The arguments of one launch in memory: a word for each argument, and the addresses of the words."""

    def __init__(self, count: int) -> None:
        self.words = bytearray(_WORD_BYTES * count)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(self.words)) if count else 0
        self._addresses = (ctypes.c_void_p * count)(*[begin + _WORD_BYTES * i for i in range(count)])
        self.address = ctypes.addressof(self._addresses)


def launcher(
    code: bytes, name: str, parameters: Sequence[Any], threads: int, shared_bytes: int = 0
) -> Callable[..., None]:  # fmt: skip
    """Load a kernel's machine code, and return the function `launch(blocks, *arguments)` that starts the kernel.

    Each block has `shared_bytes` of shared memory besides what the code declares.
    """
    function = driver.calls.function(code, "kernel", shared_bytes)
    pack = struct.Struct("<" + "".join(_LAYOUTS[str(parameter)] for parameter in parameters)).pack_into
    stream, call = driver.compute().handle, driver.calls.launch
    # A list, since several threads may launch at the same time.
    spare: list[_Arguments] = []

    def launch(blocks: int, *arguments: Any) -> None:
        try:
            memory = spare.pop()
        except IndexError:
            memory = _Arguments(len(parameters))
        pack(memory.words, 0, *arguments)
        call(function, name, blocks, threads, shared_bytes, stream, memory.address)
        spare.append(memory)

    return launch
