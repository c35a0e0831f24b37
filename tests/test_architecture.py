"""Who may import whom: tools on spillgrad on kernels, and the rooms inside spillgrad."""

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE_DIRECTORIES = ("spillgrad", "kernels/spillgrad_kernels", "tools/spillgrad_tools")

CORE = ("spillgrad.autograd.core",)
# PyTorch's import paths, whose names are defined elsewhere; scripts use them.
FACADE_MODULES = (
    "spillgrad.autograd.anomaly_mode",
    "spillgrad.autograd.grad_mode",
    "spillgrad.autograd.graph",
    "spillgrad.autograd.profiler",
    "spillgrad.autograd.variable",
    "spillgrad.nn.modules",
    *(f"spillgrad.optim.{name}" for name in ("adadelta", "adagrad", "adamax", "adamw", "asgd", "nadam", "radam")),
    *(f"spillgrad.optim.{name}" for name in ("rmsprop", "rprop")),
    "spillgrad.utils.checkpoint",
    "spillgrad.utils.data._utils.collate",
    "spillgrad.utils.data.dataloader",
    "spillgrad.utils.data.dataset",
    "spillgrad.utils.data.distributed",
    "spillgrad.utils.data.sampler",
)
DOORS = ("spillgrad.spill", "spillgrad.interop")
LAYERS_ABOVE_TENSORS = (
    "spillgrad.nn",
    "spillgrad.optim",
    "spillgrad.data",
    "spillgrad.distributions",
    "spillgrad.models",
    "spillgrad.files",
    "spillgrad.func",
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
    "spillgrad.bell": (),
    "spillgrad.communication": ("spillgrad.fork_safe_lock",),
    "spillgrad.fork_safe_lock": (),
    "spillgrad.release": (),
    "spillgrad.user_line": (),
    "spillgrad.storage": (
        "spillgrad.bell",
        "spillgrad.communication",
        "spillgrad.errors",
        "spillgrad.fork_safe_lock",
        "spillgrad.release",
        "spillgrad.storage",
        "spillgrad.user_line",
        "spillgrad_kernels.memory",
    ),
    "spillgrad.inspection": ("spillgrad.errors", "spillgrad.inspection", "spillgrad.storage"),
    **dict.fromkeys(
        CORE, ("spillgrad.errors", "spillgrad.fork_safe_lock", "spillgrad.labels", "spillgrad.user_line", *CORE)
    ),
}
# A room here imports everything but what stands beside it.
NEVER = {
    "spillgrad": ("spillgrad_tools",),
    "spillgrad_kernels.cpu": ("spillgrad_kernels.cuda",),
    "spillgrad_kernels.cuda": ("spillgrad_kernels.cpu",),
    **dict.fromkeys(
        ("spillgrad.tensor", "spillgrad.tensor_data", "spillgrad.ops", "spillgrad.autograd"),
        (*LAYERS_ABOVE_TENSORS, *DOORS),
    ),
    **dict.fromkeys(LAYERS_ABOVE_TENSORS, DOORS),
}
# Byte counts as text, locks of files and places in files open no store: whoever needs one may use it.
STORAGE_FREE_FOR_ALL = (
    "spillgrad.storage.sizes",
    "spillgrad.storage.runs.file_lock",
    "spillgrad.storage.disk.file_part",
)
# Only these open the storage room, and only these know another framework.
STORAGE_USERS = (*DOORS, "spillgrad.storage", "spillgrad.inspection", "spillgrad_tools")
FRAMEWORK_USERS = (
    "spillgrad.interop",
    "spillgrad_tools.bench.torch",
    "spillgrad_tools.bench.torch_cuda",
    "spillgrad_tools.bench.paddle",
)
# Imports inside functions hide a dependency. Each of these has a reason.
LATE_IMPORTS = {
    "spillgrad_kernels.jit.compile": "`import spillgrad` must not wait for Numba, which only kernels need",
    "spillgrad.device.dlpack": "`import spillgrad` must not wait for CUDA's driver, which only devices need",
    "spillgrad.interop.numpy": "`import spillgrad` must not wait for the tables that only NumPy's callers need",
    "spillgrad.ops.tensor_methods": "`import spillgrad` must not wait for sparse tensors, which few programs use",
    "spillgrad.ops.einsum": "only three and more operands need opt_einsum, which may not be installed",
    "spillgrad.spill.offload.tensors": "only tensors of a CUDA device need numba-cuda, which may not be installed",
    "spillgrad.spill.save_on_disk": "only tensors of a CUDA device need numba-cuda, which may not be installed",
    "spillgrad_kernels.cuda.driver.availability": "`import spillgrad` must not wait for importlib.metadata: 10 ms",
    "spillgrad.cuda.queries": "`import spillgrad` must not wait for numba-cuda, which may not be installed",
    "spillgrad_tools.cli": "`spillgrad --help` must not wait for Numba and HDF5",
    "spillgrad.data.distributed_sampler": "`import spillgrad` must not wait for groups of processes, which few use",
    "spillgrad.data.data_loader": "`import spillgrad` must not wait for multiprocessing, which only workers need",
    "spillgrad.models.gguf_file": "only GGUF files need gguf, which may not be installed",
    "spillgrad.data.chat_tokenizer": "only chat templates need Jinja2, which may not be installed",
    "spillgrad.data.parquet": "only Parquet files need pyarrow, which may not be installed",
    "spillgrad.data.bpe": "only byte-pair tokens need tokenizers, which may not be installed",
    "spillgrad.storage.codecs": "`import spillgrad` must not wait for zstd, which only codec='lossless' needs",
    "spillgrad.storage.encryption": "only encrypt=True needs cryptography, which may not be installed",
    "spillgrad_tools.train.metrics": "only TensorBoard's files need tensorboardX, which may not be installed",
    "spillgrad_tools.report.page": "only a page needs plotly and Jinja2, which may not be installed",
    "spillgrad.storage.journal.late_events": "`import spillgrad` must not wait for msgspec, which only stores need",
    "spillgrad.storage.disk.hdf5": "`import spillgrad` must not wait for HDF5, which only spilling needs",
}

MOST_LINES = 500
# Longer files, each with its reason.
LONG_FILES = {
    "spillgrad": "a façade: it lists the public names",
}
# Longer by the docstrings of their public names, which make the API reference; without them no longer than others.
LONG_BY_DOCSTRINGS = {
    "spillgrad.autograd.gradcheck", "spillgrad.distributed.collectives", "spillgrad.distributed.process_group",
    "spillgrad.nn.containers", "spillgrad.nn.init", "spillgrad.nn.lazy",
    "spillgrad.nn.module", "spillgrad.nn.rnn", "spillgrad.nn.utils.prune", "spillgrad.ops.activations",
    "spillgrad.ops.arithmetic", "spillgrad.ops.creation", "spillgrad.ops.index_replace", "spillgrad.ops.indexing",
    "spillgrad.ops.join_split", "spillgrad.ops.matrix_products", "spillgrad.ops.pooling", "spillgrad.ops.reduce",
    "spillgrad.ops.shape", "spillgrad.ops.solving", "spillgrad.ops.sorting", "spillgrad.optim.adaptive",
    "spillgrad.optim.optimizer", "spillgrad.profiler", "spillgrad.sparse.coo", "spillgrad.spill.planning.plan",
    "spillgrad.spill.planning.profile",
    "spillgrad.storage.disk_store", "spillgrad.tensor", "spillgrad.tensor_data",
}  # fmt: skip

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
    return within(module, FACADE_MODULES) or (module in MODULES and MODULES[module].name == "__init__.py")


def within(module: str, rooms: tuple[str, ...]) -> bool:
    return any(module == room or module.startswith(room + ".") for room in rooms)


def imports(tree: ast.AST, inside_function: bool = False, for_types: bool = False) -> Iterator[Import]:
    """Yield what a module imports when it runs, and with `for_types` also what it imports for type checkers alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not for_types:
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
            yield from imports(node, inside_function or function, for_types)


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


def circle(imported: dict[str, set[str]]) -> list[str]:
    """Return modules that import each other in a circle, none where there is no circle."""
    try:
        graphlib.TopologicalSorter(imported).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_no_files_import_each_other_in_a_circle():
    imported = {
        name: {
            target
            for target, _ in imports(ast.parse(path.read_text()), for_types=True)
            if target in MODULES and MODULES[target].name != "__init__.py"
        }
        for name, path in MODULES.items()
    }
    assert circle(imported) == []


def test_a_circle_is_found():
    assert sorted(set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}))) == ["a", "b", "c"]


def test_no_file_is_long_without_a_reason():
    long = {name for name, path in MODULES.items() if len(path.read_text().splitlines()) > MOST_LINES}
    assert long - LONG_FILES.keys() - LONG_BY_DOCSTRINGS == set()
    assert {name for name in LONG_BY_DOCSTRINGS if _lines_without_docstrings(MODULES[name]) > MOST_LINES} == set()


def _lines_without_docstrings(path: Path) -> int:
    text = path.read_text()
    docstrings = (
        node.body[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and ast.get_docstring(node, clean=False) is not None
    )
    return len(text.splitlines()) - sum(docstring.end_lineno - docstring.lineno + 1 for docstring in docstrings)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("spillgrad_kernels.cpu.matmul", "import spillgrad.errors"),
        ("spillgrad.errors", "import spillgrad_kernels.memory.buffers"),
        ("spillgrad.autograd.core.engine", "from spillgrad.tensor import Tensor"),
        ("spillgrad.autograd.core.hooks", "import spillgrad_kernels.memory.buffers"),
        ("spillgrad.storage.disk.segment", "from spillgrad_kernels.threads.dispatch import parallel_for"),
        ("spillgrad.storage.disk.segment", "import spillgrad.tensor"),
        ("spillgrad.ops.matrix_products", "import spillgrad.nn.module"),
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
        ("spillgrad.spill.save_on_disk", "import spillgrad.storage.store"),
        ("spillgrad.storage.disk.segment", "import h5py\nfrom spillgrad.errors import SpillError"),
        (
            "spillgrad.autograd.core.engine",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n import spillgrad.tensor",
        ),
        ("spillgrad_tools.train.training", "import spillgrad as sg"),
        ("spillgrad.interop.torch", "import torch"),
    ],
)
def test_an_allowed_import_passes(module: str, source: str):
    assert list(breaches(module, source)) == []
