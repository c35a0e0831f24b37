"""PyTorch's module `torch.version`: the release of PyTorch whose meanings this library has, for programs that ask.

`spillgrad.__version__` is the version of spillgrad itself.
"""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _installed

try:
    _own = _installed("spillgrad")
except PackageNotFoundError:  # run from a source tree that was never installed
    _own = "0"

__version__ = f"2.13.0+spillgrad.{_own}"
debug = False
cuda: str | None = None  # no CUDA toolkit belongs to this library; `sg.cuda.is_available` looks for a device
hip: str | None = None
xpu: str | None = None
git_version = "Unknown"
