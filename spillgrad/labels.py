"""Labels of the running module and training step, which the spill store attaches to saved tensors.

Labels are per thread and purely descriptive.
"""

import contextlib
import threading
from collections.abc import Iterator


class Labels(threading.local):
    """The labels of this thread: the path of the running module (None outside modules), and the training step."""

    module: str | None = None
    step: int | None = None


current = Labels()


class module_scope:
    """Context manager: set the module path, and restore the former path at the end."""

    __slots__ = ("_module", "_outer")

    def __init__(self, module: str | None) -> None:
        self._module = module

    def __enter__(self) -> None:
        self._outer = current.module
        current.module = self._module

    def __exit__(self, *_: object) -> None:
        current.module = self._outer


@contextlib.contextmanager
def step_scope(step: int | None) -> Iterator[None]:
    """Context manager: set the training step, and restore the former step at the end."""
    outer = current.step
    current.step = step
    try:
        yield
    finally:
        current.step = outer
