"""Whether there is a device to compute on, and what is missing where there is none."""

import importlib.util
import os


def missing() -> str | None:
    """Return None where a device can be used, else what is missing and what to do."""
    if importlib.util.find_spec("numba_cuda") is None and importlib.util.find_spec("numba.cuda") is None:
        return "numba-cuda is not installed; pip install spillgrad[cuda]"
    return None if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1" else "there is no driver"
