"""Tensors of a CUDA device on their way to a store and back: through pinned memory, on a stream beside the kernels."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch


class OnDevice:
    """Bytes on a device that a store takes; it calls `fetch` once it has room for them."""

    def __init__(self, source: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._source = source
        self.dtype, self.shape, self.nbytes = dtype, shape, source.nbytes

    def fetch(self) -> tuple[np.ndarray, Callable[[], None]]:
        """Begin to copy the bytes to pinned memory; return that memory, and a function that waits for the copy.

        The copy comes after the kernels launched so far.
        """
        host = torch.empty(self.nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
        stream = _stream_beside(self._source.device)
        stream.wait_stream(torch.cuda.current_stream(self._source.device))
        with torch.cuda.stream(stream):
            host.copy_(self._source, non_blocking=True)
            done = stream.record_event()
        self._source.record_stream(stream)  # nobody gets the memory before, however soon it is freed
        return host.numpy().view(self.dtype).reshape(self.shape), done.synchronize


def to_device(array: np.ndarray, device: Any) -> Any:
    """Return the bytes of an array on a device, ready for kernels on its current stream; the array may die at once."""
    return torch.from_numpy(array.reshape(-1).view(np.uint8)).to(device)


@functools.cache
def _stream_beside(device: Any) -> Any:
    return torch.cuda.Stream(device)
