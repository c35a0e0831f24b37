"""Copies between a device and the arrays of a store, concurrent with kernels, on one stream for each direction."""

from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad_kernels.cuda.driver import driver
from spillgrad_kernels.device_array import address_of, empty_on_device


class Copies:
    """Begins copies. A copy waits only for the kernels launched before it, and for earlier copies in its direction.

    Until the copy is done, it keeps the host array and the device memory alive, but not the device array.
    """

    def __init__(self) -> None:
        self._out, self._back = driver.Stream(), driver.Stream()

    def out(self, array: np.ndarray) -> tuple[np.ndarray, driver.Event]:
        """Begin to copy a dense device array to pinned memory; return the pinned array, and the copy's end event."""
        host = driver.pinned(array.nbytes).view(array.dtype).reshape(array.shape)
        driver.Event().record(driver.compute()).wait(self._out)
        done = self._out.copy_to_host_async(
            host.reshape(-1).view(np.uint8), address_of(array), array.nbytes, keep=memory_of(array)
        )
        return host, done

    def back(self, host: np.ndarray) -> tuple[np.ndarray, driver.Event]:
        """Begin to copy a dense host array to the device; return the device array, and the copy's end event.

        An array that is not in pinned memory is copied through pinned memory, piece by piece.
        """
        array = empty_on_device(host.shape, host.dtype)
        driver.Event().record(driver.compute()).wait(self._back)  # kernels may still read the memory's old contents
        source = host.reshape(-1).view(np.uint8)
        if driver.is_pinned(host):
            self._back.copy_to_device_async(address_of(array), source, array.nbytes, keep=memory_of(array))
        else:
            driver.copy_to_device(address_of(array), source, self._back, keep=memory_of(array))
        return array, driver.Event().record(self._back)

    def let_go(self) -> None:
        """Release the memory that finished copies held."""
        self._out.let_go()
        self._back.let_go()

    def wait_for_oldest(self) -> bool:
        """Wait for the oldest unfinished copy; return False if there is none."""
        for stream in (self._out, self._back):
            if stream.held_bytes:
                stream.let_go(stream.held_bytes - 1)
                return True
        return False


class Source:
    """A dense device array to be put into a host store. `copy` is `Copies.out`, or a function that calls it."""

    def __init__(self, array: np.ndarray, copy: Callable[[np.ndarray], tuple[np.ndarray, driver.Event]]) -> None:
        self.shape, self.dtype, self.nbytes = array.shape, array.dtype, array.nbytes
        self.done: driver.Event | None = None  # set by `fetch`: the end event of the copy
        self._array: np.ndarray | None = array  # None after `fetch`
        self._copy = copy

    def fetch(self) -> tuple[np.ndarray, Callable[[], None]]:
        """Begin to copy the array to pinned memory; return the pinned array, and a function that waits for the copy."""
        array, self._array = self._array, None
        assert array is not None
        host, self.done = self._copy(array)
        return host, self.done.synchronize


def memory_of(array: Any) -> Any:
    """Return the object that keeps the memory of a device array alive."""
    while array.base is not None:
        array = array.base
    return array if array.owner is None else array.owner
