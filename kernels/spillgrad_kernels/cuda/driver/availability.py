"""Find out whether there is a CUDA device, and if not, what is missing. This module imports no CUDA package.

With `NUMBA_ENABLE_CUDASIM=1`, Numba's simulator is the device.
"""

import ctypes
import functools
import importlib.util
import os
from collections.abc import Callable

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")

# The lowest compute capability that kernels are compiled for.
LEAST_CAPABILITY = (7, 5)

_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, ..._MINOR
# The package that links kernels. A driver loads code for its own major version of CUDA, and for earlier versions.
_LINKER = "nvidia-nvjitlink"


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # the parent package is missing
        return False


def _error(driver: ctypes.CDLL, status: int) -> str:
    text = ctypes.c_char_p()
    driver.cuGetErrorString(status, ctypes.byref(text))
    return f"{(text.value or b'unknown error').decode()} (error {status})"


def _number(function: Callable[..., int], *arguments: int) -> int:
    """Return the number that a function of the driver writes to its first argument; 0 if the function fails."""
    found = ctypes.c_int(0)
    return found.value if function(ctypes.byref(found), *arguments) == 0 else 0


def _linker_version() -> int:
    """Return the major version of CUDA of the linker; 0 if the linker is not installed as a Python package."""
    from importlib import metadata  # late: `import spillgrad` must not wait for it

    try:
        return int(metadata.version(_LINKER).partition(".")[0])
    except metadata.PackageNotFoundError:
        return 0


@functools.cache
def missing() -> str | None:
    """Say what is missing to compute on a CUDA device, with advice.

    The function looks for the packages of the extra 'cuda', then for NVIDIA's driver, then for a GPU.

    Returns
    -------
    str or None
        A message; None if nothing is missing.
    """
    for module in ("numba_cuda",) if SIMULATED else ("numba_cuda", "cuda.bindings.driver", "cuda.bindings.nvjitlink"):
        if not _is_installed(module):
            return (
                f"the extra 'cuda' is missing: there is no Python module {module}; "
                "install it: pip install 'spillgrad[cuda]'"
            )
    if SIMULATED:
        return None
    advice = "install one, or start the container with GPUs (nvidia-smi shows what there is); or compute on 'cpu'"
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        status = driver.cuInit(0)
    except (OSError, AttributeError) as error:
        return f"NVIDIA's driver is missing: {error}; {advice}"
    if status not in (0, _NO_DEVICE):
        return f"NVIDIA's driver does not work: {_error(driver, status)}; see whether nvidia-smi runs, or reinstall it"
    version, wanted = _number(driver.cuDriverGetVersion), _linker_version()
    major, minor = version // 1000, version % 1000 // 10
    if major < wanted:
        instead = f", or install an older compiler: pip install 'numba-cuda[cu{major}]'" if major >= 12 else ""
        return (
            f"NVIDIA's driver is too old: it is for CUDA {major}.{minor}, and the installed compiler makes code of "
            f"CUDA {wanted}; update the driver{instead}"
        )
    if status == _NO_DEVICE or _number(driver.cuDeviceGetCount) == 0:
        return (
            "there is no GPU: NVIDIA's driver is installed, and finds none; see what nvidia-smi and "
            f"CUDA_VISIBLE_DEVICES ({os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}) say, or compute on 'cpu'"
        )
    capability = tuple([_number(driver.cuDeviceGetAttribute, attribute, 0) for attribute in (_MAJOR, _MINOR)])
    if capability < LEAST_CAPABILITY:
        return (
            f"there is no GPU that will do: the first has compute capability {capability[0]}.{capability[1]}, and "
            f"{LEAST_CAPABILITY[0]}.{LEAST_CAPABILITY[1]} is the least; choose another by CUDA_VISIBLE_DEVICES, or "
            "compute on 'cpu'"
        )
    return None


def device_count() -> int:
    """Return the number of usable CUDA devices.

    Returns
    -------
    int
        Zero or 1: only the first device is used.
    """
    return int(missing() is None)
