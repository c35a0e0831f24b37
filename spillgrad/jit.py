"""PyTorch's module `torch.jit`: functions and modules run as they are written, and are returned as they are."""

from collections.abc import Callable
from typing import Any, Final

from spillgrad.errors import UnsupportedError
from spillgrad.nn.module import Module as ScriptModule
from spillgrad.settings.compilation import warn_once

__all__ = [
    "Final",
    "ScriptModule",
    "annotate",
    "export",
    "fork",
    "freeze",
    "ignore",
    "interface",
    "is_scripting",
    "is_tracing",
    "isinstance",
    "load",
    "optimize_for_inference",
    "save",
    "script",
    "script_if_tracing",
    "script_method",
    "trace",
    "trace_module",
    "unused",
    "wait",
]  # fmt: skip

_is_instance = isinstance


def script(obj: Any, optimize: Any = None, example_inputs: Any = None, **options: Any) -> Any:
    """Return the module, function or class itself, with a CompilationWarning at the first call."""
    warn_once("jit.script", stacklevel=2)
    return obj


def trace(func: Any, example_inputs: Any = None, *arguments: Any, **options: Any) -> Any:
    """Return the module or function itself, without a call, with a CompilationWarning at the first call.

    What is returned runs the Python code anew; PyTorch repeats what it saw with the examples.
    """
    warn_once("jit.trace", stacklevel=2)
    return func


def trace_module(mod: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
    """Return the module itself, with a CompilationWarning at the first call."""
    warn_once("jit.trace_module", stacklevel=2)
    return mod


def freeze(mod: Any, preserved_attrs: Any = None, optimize_numerics: bool = True) -> Any:
    """Return the module itself."""
    return mod


optimize_for_inference = freeze


def _unchanged(fn: Any) -> Any:
    """Return the function itself, as nothing is compiled."""
    return fn


export = script_method = script_if_tracing = interface = _unchanged


def ignore(drop: Any = False, **options: Any) -> Any:
    """Return the function itself, as nothing is compiled; without a function, return the decorator that does so."""
    return drop if callable(drop) else _unchanged


def unused(fn: Any) -> Any:
    """Return the function itself, as nothing is compiled."""
    return fn


def is_scripting() -> bool:
    """Return False: nothing is compiled."""
    return False


def is_tracing() -> bool:
    """Return False: nothing is traced."""
    return False


def annotate(the_type: Any, the_value: Any) -> Any:
    """Return the value."""
    return the_value


def isinstance(obj: Any, target_type: Any) -> bool:
    """Return whether an object is of a type, or of one of several."""
    return _is_instance(obj, target_type)


def fork(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call the function at once; return its result, for `wait`."""
    return func(*args, **kwargs)


def wait(future: Any) -> Any:
    """Return what `fork` returned."""
    return future


def save(m: Any, f: Any, _extra_files: Any = None) -> None:
    """Raise UnsupportedError: code is not written to files; `sg.save(model.state_dict(), f)` writes the parameters."""
    raise UnsupportedError(
        "jit.save: got a module; files here hold no code: use save(model.state_dict(), f), and make the model anew"
    )


def load(f: Any, map_location: Any = None, **options: Any) -> Any:
    """Raise UnsupportedError: a file of TorchScript holds code, which only PyTorch runs."""
    raise UnsupportedError(
        "jit.load: got a file of TorchScript, which only PyTorch reads; there, write its state_dict() by "
        "safetensors.torch.save_file, and load that into the same model here"
    )
