"""Who may import whom: tools on spillgrad on kernels, and the rooms inside spillgrad."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE_DIRECTORIES = ("spillgrad", "kernels/spillgrad_kernels", "tools/spillgrad_tools")

CORE = tuple(
    f"spillgrad.autograd.{name}"
    for name in ("node", "engine", "saved", "hooks", "unshared", "grad_mode", "anomaly_mode")
)
FACADE_MODULES = ("spillgrad.autograd.graph",)
DOORS = (
    "spillgrad.save_on_disk",
    "spillgrad.device_cache",
    "spillgrad.small_tensors",
    "spillgrad.disk_offload",
    "spillgrad.offload",
    "spillgrad.planning",
    "spillgrad.interop",
)
LAYERS_ABOVE_TENSORS = (
    "spillgrad.nn",
    "spillgrad.optim",
    "spillgrad.data",
    "spillgrad.models",
    "spillgrad.checkpoint",
    "spillgrad.checkpoint_directory",
    "spillgrad.serialization",
    "spillgrad.tensor_files",
    "spillgrad.utils",
)
FRAMEWORKS = ("torch", "paddle", "transformers", "lightning")

# A room here imports, of these packages, nothing but what stands beside it.
ONLY = {
    "spillgrad_kernels": ("spillgrad_kernels",),
    "spillgrad_kernels.jit": ("spillgrad_kernels.jit",),
    "spillgrad_kernels.memory": ("spillgrad_kernels.memory",),
    "spillgrad_kernels.threads": ("spillgrad_kernels.threads", "spillgrad_kernels.jit"),
    "spillgrad_kernels.tables": ("spillgrad_kernels.tables", "spillgrad_kernels.jit"),
    "spillgrad.errors": (),
    "spillgrad.labels": (),
    "spillgrad.storage": (
        "spillgrad.errors",
        "spillgrad.storage",
        "spillgrad_kernels.memory",
    ),
    **dict.fromkeys(CORE, ("spillgrad.errors", "spillgrad.labels", *CORE)),
}
# A room here imports everything but what stands beside it.
NEVER = {
    "spillgrad": ("spillgrad_tools",),
    "spillgrad_kernels.cpu": ("spillgrad_kernels.cuda",),
    **dict.fromkeys(("spillgrad.tensor", "spillgrad.ops", "spillgrad.autograd"), (*LAYERS_ABOVE_TENSORS, *DOORS)),
    **dict.fromkeys(LAYERS_ABOVE_TENSORS, DOORS),
}
# Byte counts as text and locks of files open no store: whoever needs one may use it.
STORAGE_FREE_FOR_ALL = ("spillgrad.storage.budget", "spillgrad.storage.file_lock")
# Only these open the storage room, and only these know another framework.
STORAGE_USERS = (*DOORS, "spillgrad.storage", "spillgrad_tools")
FRAMEWORK_USERS = (
    "spillgrad.interop",
    "spillgrad_tools.bench_torch",
    "spillgrad_tools.bench_torch_cuda",
    "spillgrad_tools.bench_train_torch",
    "spillgrad_tools.bench_train_torch_hooks",
    "spillgrad_tools.bench_train_paddle",
)
# Imports inside functions hide a dependency. Each of these has a reason.
LATE_IMPORTS = {
    "spillgrad_kernels.jit.compile": "`import spillgrad` must not wait for Numba, which only kernels need",
    "spillgrad.dlpack": "`import spillgrad` must not wait for CUDA's driver, which only devices need",
    "spillgrad.ops.bind": "`import spillgrad` must not wait for tables of names that only NumPy's callers need",
    "spillgrad.ops.einsum": "only three and more operands need opt_einsum, which may not be installed",
    "spillgrad.offload.residents": "only tensors of a CUDA device need numba-cuda, which may not be installed",
    "spillgrad.save_on_disk": "only tensors of a CUDA device need numba-cuda, which may not be installed",
    "spillgrad.cuda": "`import spillgrad` must not wait for numba-cuda, which may not be installed",
    "spillgrad_tools.cli": "`spillgrad --help` must not wait for Numba and HDF5",
    "spillgrad.data.bpe": "only byte-pair tokens need tokenizers, which may not be installed",
    "spillgrad.storage.codecs": "`import spillgrad` must not wait for zstd, which only codec='lossless' needs",
    "spillgrad.storage.encryption": "only encrypt=True needs cryptography, which may not be installed",
    "spillgrad_tools.report": "only a page needs plotly and Jinja2, which may not be installed",
    "spillgrad.storage.hdf5": "`import spillgrad` must not wait for HDF5, which only spilling needs",
}

Import = tuple[str, bool]  # what is imported, and whether inside a function


def modules() -> dict[str, Path]:
    """Return every module of the three packages by its dotted name; a package's own name means its `__init__`."""
    found = {}
    for directory in PACKAGE_DIRECTORIES:
        root = REPOSITORY / directory
        for path in sorted(root.rglob("*.py")):
            name = ".".join(path.relative_to(root.parent).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


MODULES = modules()


def is_facade(module: str) -> bool:
    return module in FACADE_MODULES or (module in MODULES and MODULES[module].name == "__init__.py")


def within(module: str, rooms: tuple[str, ...]) -> bool:
    return any(module == room or module.startswith(room + ".") for room in rooms)


def imports(tree: ast.AST, inside_function: bool = False) -> Iterator[Import]:
    """Yield what a module imports when it runs; blocks for type checkers alone are left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, inside_function) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                submodule = f"{module}.{alias.name}"
                yield (submodule if submodule in MODULES else module), inside_function
        else:
            function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports(node, inside_function or function)


def breaches(module: str, source: str) -> Iterator[str]:
    """Yield a line for every import of `source`, taken as the text of `module`, that a rule forbids."""
    for target, inside_function in imports(ast.parse(source)):
        says = f"{module} imports {target}"
        if target.startswith("."):
            yield f"{says}: imports are absolute"
        ours = within(target, ("spillgrad", "spillgrad_kernels", "spillgrad_tools"))
        for room, allowed in ONLY.items():
            if ours and within(module, (room,)) and not is_facade(module) and not within(target, allowed):
                yield f"{says}: {room} may import only {', '.join(allowed) or 'nothing of ours'}"
        for room, forbidden in NEVER.items():
            if within(module, (room,)) and not is_facade(module) and within(target, forbidden):
                yield f"{says}: {room} never imports {', '.join(forbidden)}"
        if within(target, ("spillgrad_tools",)) and not within(module, ("spillgrad_tools",)):
            yield f"{says}: nothing below the tools imports them"
        opens_storage = within(target, ("spillgrad.storage",)) and not within(target, STORAGE_FREE_FOR_ALL)
        if opens_storage and not (within(module, STORAGE_USERS) or is_facade(module)):
            yield f"{says}: only {', '.join(STORAGE_USERS)} import storage"
        if is_facade(target) and not is_facade(module) and not within(module, ("spillgrad_tools",)):
            yield f"{says}: that is a façade; import the module that defines the name"
        if within(target, FRAMEWORKS) and not within(module, FRAMEWORK_USERS):
            yield f"{says}: only {', '.join(FRAMEWORK_USERS)} know another framework"
        if inside_function and module not in LATE_IMPORTS:
            yield f"{says} inside a function: move it to the top, or give the reason in LATE_IMPORTS"


def test_every_import_keeps_the_rules():
    assert {"spillgrad.errors", "spillgrad_kernels.memory.buffers", "spillgrad_tools.cli"} <= MODULES.keys()
    assert [line for name, path in MODULES.items() for line in breaches(name, path.read_text())] == []


def test_every_late_import_on_the_list_is_still_there():
    late = {name for name in LATE_IMPORTS if any(inside for _, inside in imports(ast.parse(MODULES[name].read_text())))}
    assert late == LATE_IMPORTS.keys()


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("spillgrad_kernels.cpu.matmul", "import spillgrad.errors"),
        ("spillgrad.errors", "import spillgrad_kernels.memory.buffers"),
        ("spillgrad.autograd.engine", "from spillgrad.tensor import Tensor"),
        ("spillgrad.autograd.hooks", "import spillgrad_kernels.memory.buffers"),
        ("spillgrad.storage.segment", "from spillgrad_kernels.threads.dispatch import parallel_for"),
        ("spillgrad.storage.segment", "import spillgrad.tensor"),
        ("spillgrad.ops.linalg", "import spillgrad.nn.module"),
        ("spillgrad.nn.linear", "import spillgrad.storage.store"),
        ("spillgrad.nn.linear", "import spillgrad"),
        ("spillgrad.nn.linear", "from . import module"),
        ("spillgrad.tensor", "from spillgrad.autograd.graph import Node"),
        ("spillgrad.tensor", "import torch"),
        ("spillgrad.tensor", "import spillgrad_tools.cli"),
        ("spillgrad.tensor", "class A:\n def f(self):\n  import math"),
    ],
)
def test_a_forbidden_import_is_found(module: str, source: str):
    assert len(list(breaches(module, source))) >= 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("spillgrad.save_on_disk", "import spillgrad.storage.store"),
        ("spillgrad.storage.segment", "import h5py\nfrom spillgrad.errors import SpillError"),
        ("spillgrad.autograd.engine", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n import spillgrad.tensor"),
        ("spillgrad_tools.train", "import spillgrad as sg"),
        ("spillgrad.interop.torch", "import torch"),
    ],
)
def test_an_allowed_import_passes(module: str, source: str):
    assert list(breaches(module, source)) == []
