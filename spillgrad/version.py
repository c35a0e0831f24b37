"""PyTorch's module `torch.version`: the release of PyTorch whose meanings this library has, for programs that ask.

`spillgrad.__version__` is the version of spillgrad itself.
"""

from spillgrad import release

__version__ = f"2.13.0+spillgrad.{release.__version__}"
debug = False
cuda: str | None = None  # no CUDA toolkit belongs to this library; `sg.cuda.is_available` looks for a device
hip: str | None = None
xpu: str | None = None
git_version = "Unknown"
