"""Run programs under one library and write down what they see: `python -m tests.peers.record torch [FILE]`.

A program is a function of `(torch, note)` (or `(paddle, note)`) in `programs/`, or a row of `op_table`. It is given the
library, so that the same text runs under several, and notes what happens. Without FILE the record becomes the stored
one, `records/torch.json`, which tests compare spillgrad with where the library itself is not installed. This module
must run without spillgrad.
"""

import contextlib
import importlib
import json
import math
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from tests.peers import op_table

HERE = Path(__file__).parent
PROGRAMS = {
    "torch": (
        "adaptive_softmax",
        "attention",
        "autocast",
        "saved_tensors",
        "custom_functions",
        "distributions",
        "engine",
        "engine_callbacks",
        "hooks",
        "inplace",
        "grad_mode",
        "grad_scaler",
        "inference_mode",
        "checkpoint",
        "complex_arithmetic",
        "complex_tensors",
        "lazy_modules",
        "module_hooks",
        "reentrant_checkpoint",
        "func",
        "functional",
        "prune",
        "reparametrized",
        "schedules",
        "short_time_fourier",
        "sparse",
        "testing",
        "trees",
        "optimizers",
        "data",
        "dtypes",
    ),
    "paddle": ("paddle_autograd", "paddle_layers"),
}
DIGITS = {"program": 9, "op": 11}  # of float64 in a record: a hundred times what comparisons need
WHOLE = 24  # elements of an operation's tensor that are recorded one by one


class Note:
    """What a program writes down: pairs of a name and a plain value, in order."""

    def __init__(self) -> None:
        self.entries: list[list[Any]] = []

    def __call__(self, name: str, *values: Any) -> None:
        """Note values: tensors, arrays, numbers, strings, and lists and dicts of them."""
        self.entries.append([name, [plain(value) for value in values]])

    def error(self, name: str, call: Callable[[], Any], *phrases: str) -> None:
        """Note which built-in exceptions what `call()` raises is, and which of the phrases its message has."""
        try:
            call()
        except Exception as error:
            classes = [c.__name__ for c in type(error).__mro__ if c.__module__ == "builtins"]
            found: Any = {"error": classes, "says": {phrase: phrase in str(error) for phrase in phrases}}
        else:
            found = "no error"
        self.entries.append([name, [found]])

    def pair(self, pack: Callable[[Any], Any] = lambda x: x, unpack: Callable[[Any], Any] = lambda x: x) -> Any:
        """Return a pair of hooks that note what they are called with, and do what these functions do."""

        def noting_pack(tensor: Any) -> Any:
            self("pack", tensor)
            return pack(tensor)

        def noting_unpack(packed: Any) -> Any:
            tensor = unpack(packed)
            self("unpack", tensor)
            return tensor

        return noting_pack, noting_unpack


def name_of(node: Any) -> Any:
    """Return a node's name without what only PyTorch has: the C++ namespace and the number of the overload."""
    return None if node is None else node.name().removeprefix("torch::autograd::").rstrip("0123456789")


def chain(node: Any) -> Any:
    """Return the names of a node and of all before it, as nested lists."""
    return None if node is None else [name_of(node), *(chain(source) for source, _ in node.next_functions)]


def plain(value: Any) -> Any:
    """Return a value as JSON knows it: a tensor or array as its dtype, shape and elements."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return {"dtype": str(value.dtype), "shape": list(value.shape), "values": _elements(np.asarray(value))}
    if hasattr(value, "numpy"):
        dtype = str(value.dtype).rpartition(".")[2]
        value = value.detach().resolve_conj() if dtype.startswith("complex") else value
        array = value.detach().numpy() if dtype != "bfloat16" else value.detach().to(_float32_of(value)).numpy()
        return {"dtype": dtype, "shape": [int(n) for n in value.shape], "values": _elements(array)}
    if type(value).__name__.lower().endswith("dtype"):
        return str(value).rpartition(".")[2]
    raise TypeError(f"note: got {type(value).__name__}; note tensors, numbers, strings, and lists or dicts of them")


def _elements(array: np.ndarray) -> list[Any]:
    """Return the elements in row-major order; a complex number as two, its real and imaginary parts."""
    flat = array.ravel()
    return (flat.view(flat.real.dtype) if np.iscomplexobj(flat) else flat).tolist()


def _float32_of(tensor: Any) -> Any:
    return sys.modules[type(tensor).__module__.partition(".")[0]].float32


def dtypes(found: Any) -> Iterator[str]:
    """Yield the dtypes of all tensors in a plain value."""
    if isinstance(found, list):
        for value in found:
            yield from dtypes(value)
    elif isinstance(found, dict):
        yield found["dtype"]


def programs(library: str) -> dict[str, Callable[[Any, Note], None]]:
    """Return the programs written for a library, by name."""
    found: dict[str, Callable[[Any, Note], None]] = {}
    for name in PROGRAMS[library]:
        module = importlib.import_module(f"tests.peers.programs.{name}")
        for function in vars(module).values():
            own = isinstance(function, FunctionType) and function.__module__ == module.__name__
            if own and not function.__name__.startswith("_"):
                found[f"{name}.{function.__name__}"] = function
    return found


def run(program: Callable[[Any, Note], None], library: Any) -> list[list[Any]]:
    """Return what a program notes under a library."""
    note = Note()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a program that is about warnings catches them
        program(library, note)
    return note.entries


def differences(wanted: Any, got: Any, tolerance: float = 1e-6, any_dtype: bool = False) -> Iterator[str]:
    """Yield a line for everything in `got` that is not as in `wanted`.

    An error must be catchable as the one wanted, and have the phrases that the wanted one has.
    """

    def close(number: Any, other: Any) -> bool:
        if isinstance(number, float) and isinstance(other, float) and math.isnan(number):
            return math.isnan(other)
        if isinstance(number, bool) or isinstance(other, bool):
            return number is other
        return math.isclose(number, other, rel_tol=tolerance, abs_tol=tolerance)

    if isinstance(wanted, dict) and isinstance(got, dict) and wanted.keys() == got.keys():
        if "values" in wanted:
            if wanted["shape"] != got["shape"] or (wanted["dtype"] != got["dtype"] and not any_dtype):
                yield f"wanted {wanted['dtype']} {wanted['shape']}, got {got['dtype']} {got['shape']}"
            elif not all(map(close, wanted["values"], got["values"])):
                yield f"wanted {wanted['values']}, got {got['values']}"
        elif "error" in wanted:
            if wanted["error"][0] not in got["error"]:
                yield f"wanted a {wanted['error'][0]}, got {got['error']}"
            missing = [phrase for phrase, there in wanted["says"].items() if there and not got["says"][phrase]]
            yield from (f"wanted a message with {phrase!r}" for phrase in missing)
        else:
            for key, value in wanted.items():
                yield from differences(value, got[key], tolerance, any_dtype)
    elif isinstance(wanted, list) and isinstance(got, list) and len(wanted) == len(got):
        for value, other in zip(wanted, got, strict=True):
            yield from differences(value, other, tolerance, any_dtype)
    elif type(wanted) is not type(got) or not (close(wanted, got) if isinstance(wanted, float) else wanted == got):
        yield f"wanted {wanted}, got {got}"


def differing(wanted: list[Any], got: list[Any]) -> dict[str, str]:
    """Return what differs in what a program noted, by the entries' names; "sequence" where the names themselves do."""
    names, others = [name for name, _ in wanted], [name for name, _ in got]
    if names != others:
        return {"sequence": f"wanted {names}, got {others}"}
    found = {}
    for (name, value), (_, other) in zip(wanted, got, strict=True):
        if lines := list(differences(value, other)):
            found[name] = "; ".join(lines)
    return found


def rounded(value: Any, digits: int) -> Any:
    """Return a record with its floats rounded."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, list):
        return [rounded(v, digits) for v in value]
    if isinstance(value, dict):
        return {k: rounded(v, digits) for k, v in value.items()}
    return value


def condensed(value: Any) -> Any:
    """Return a plain value with the first elements of large tensors, and sums of all with weights, in place of all."""
    if isinstance(value, list):
        return [condensed(v) for v in value]
    if isinstance(value, dict) and len(value["values"]) > WHOLE:
        elements = np.array(value["values"], np.float64)
        places = np.arange(elements.size)
        sums = [float((elements * (1.5 + np.cos(step * places))).sum()) for step in (0.7, 1.9, 2.6)]
        return {**value, "values": value["values"][:9] + sums}
    return value


def _outcomes(row: str, module: Any) -> Any:
    half, whole = (plain(op_table.outcome(row, module, dtype)) for dtype in ("float32", "float64"))
    return rounded({"float64": condensed(whole), "float32 dtypes": list(dtypes(half))}, DIGITS["op"])


def record(library: str) -> dict[str, Any]:
    """Return what every program, and every row of the table of operations, notes under a library."""
    module = importlib.import_module(library)
    found = {name: rounded(run(program, module), DIGITS["program"]) for name, program in programs(library).items()}
    if library == "torch":
        found["names"] = op_table.public_names(module)
        for row in op_table.ROWS:
            found[f"op {row}"] = _outcomes(row, module)
        for row in op_table.methods(found["names"]["Tensor"]):
            with contextlib.suppress(RuntimeError):  # PyTorch refuses some in-place methods for their dtype or shape
                found[f"op {row}"] = _outcomes(row, module)
    return found


def stored(library: str) -> dict[str, Any]:
    """Return the record in `records/`."""
    return json.loads((HERE / "records" / f"{library}.json").read_text())


def main(library: str, path: str | None = None) -> int:
    """Write the record of a library, one program a line; return 1, and say why, when a program fails."""
    warnings.simplefilter("ignore")
    try:
        found = record(library)
    except Exception:
        traceback.print_exc()
        return 1
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(found[name], separators=(',', ':'))}" for name in found)
    Path(path or HERE / "records" / f"{library}.json").write_text("{\n" + lines + "\n}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
