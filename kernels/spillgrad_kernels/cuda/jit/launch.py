"""Launching a kernel by NVIDIA's driver: its arguments are packed by what the kernel declares them to be."""

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

from spillgrad_kernels.cuda.driver import driver

# Each argument has a word, whatever its size: how it lies there, by the name of its type.
_WORD_BYTES = 8
_LAYOUTS = {
    "int64": "q", "int32": "i4x", "int16": "h6x", "int8": "b7x", "uint64": "Q", "uint8": "B7x", "bool": "?7x",
    "float32": "f4x", "float64": "d",
}  # fmt: skip


class _Arguments:
    """Memory for the arguments of one launch: a word for each, and the addresses of the words."""

    def __init__(self, count: int) -> None:
        self.words = bytearray(_WORD_BYTES * count)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(self.words)) if count else 0
        self._addresses = (ctypes.c_void_p * count)(*[begin + _WORD_BYTES * i for i in range(count)])
        self.address = ctypes.addressof(self._addresses)


def launcher(code: bytes, name: str, parameters: Sequence[Any], threads: int) -> Callable[..., None]:
    """Return `launch(blocks, *arguments)` of a kernel's machine code, which it loads."""
    function = driver.calls.function(code, "kernel")
    pack = struct.Struct("<" + "".join(_LAYOUTS[str(parameter)] for parameter in parameters)).pack_into
    stream, call = driver.compute().handle, driver.calls.launch
    # Several threads may launch at once.
    spare: list[_Arguments] = []

    def launch(blocks: int, *arguments: Any) -> None:
        try:
            memory = spare.pop()
        except IndexError:
            memory = _Arguments(len(parameters))
        pack(memory.words, 0, *arguments)
        call(function, name, blocks, threads, stream, memory.address)
        spare.append(memory)

    return launch
