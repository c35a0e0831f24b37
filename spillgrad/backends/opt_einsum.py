"""PyTorch's module `torch.backends.opt_einsum`: whether the package opt_einsum plans `einsum` of three operands."""

import importlib
import importlib.util
from typing import Any

# Read back as they were set; `einsum` takes the order of opt_einsum's "auto" wherever the package is installed.
enabled = True
strategy = "auto"


def is_available() -> bool:
    """Return whether the package opt_einsum is installed; `einsum` then asks it for the order of the products."""
    return importlib.util.find_spec("opt_einsum") is not None


def get_opt_einsum() -> Any:
    """Return the package opt_einsum; None if it is not installed."""
    return importlib.import_module("opt_einsum") if is_available() else None
