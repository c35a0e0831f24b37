"""The garbage collector pauses for what lives to the end of the process, and then does what it did."""

import contextlib
import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spillgrad_kernels.jit.collections import collections_paused
from spillgrad_kernels.jit.compile import DISABLE_JIT, jit, overload


@pytest.mark.parametrize("was_on", [True, False])
def test_after_a_pause_the_collector_is_as_it_was(was_on: bool):
    if not was_on:
        gc.disable()
    try:
        with pytest.raises(ZeroDivisionError), collections_paused():
            with collections_paused():
                assert not gc.isenabled()
            assert not gc.isenabled()
            1 / 0  # noqa: B018
        assert gc.isenabled() == was_on
    finally:
        gc.enable()


@pytest.mark.skipif(DISABLE_JIT, reason="nothing is compiled")
@pytest.mark.parametrize("fails", [False, True])
def test_the_collector_pauses_while_a_kernel_is_compiled(fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where no former process left the kernel
    was_on = []

    def asked() -> int:
        return 0

    @overload(asked)
    def compiled() -> Any:  # Numba calls it while it compiles the kernel
        was_on.append(gc.isenabled())
        return None if fails else lambda: 1

    @jit(name=f"test_collections.{fails}")
    def kernel(out: np.ndarray) -> None:
        out[0] = asked()

    out = np.zeros(1, np.int64)
    with pytest.raises(Exception, match="asked") if fails else contextlib.nullcontext():
        kernel(out)
    assert was_on and not any(was_on)
    assert gc.isenabled()
    assert out[0] == (not fails)
