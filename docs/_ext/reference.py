"""Writes the pages of the API reference: for each public module, a page for each file that defines names of it.

Nothing is listed by hand: a public name of a module in `MODULES` is in the reference.
"""

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import spillgrad

# The public modules, in the order of the table of contents. What several of them have is described in the first.
MODULES = {
    "spillgrad": "Tensors and their operations",
    "spillgrad.nn": "Layers",
    "spillgrad.nn.functional": "Layers as functions",
    "spillgrad.nn.init": "Initial values",
    "spillgrad.nn.utils": "Tools for layers",
    "spillgrad.nn.utils.rnn": "Packed sequences",
    "spillgrad.nn.utils.prune": "Pruning",
    "spillgrad.nn.utils.parametrize": "Parametrizations",
    "spillgrad.nn.utils.parametrizations": "Ready-made parametrizations",
    "spillgrad.optim": "Optimizers",
    "spillgrad.optim.lr_scheduler": "Learning-rate schedules",
    "spillgrad.optim.swa_utils": "Averaged weights",
    "spillgrad.data": "Datasets of this library",
    "spillgrad.utils.data": "Datasets and loaders",
    "spillgrad.models": "Models",
    "spillgrad.autograd": "Gradients",
    "spillgrad.autograd.graph": "Graphs and hooks on saved tensors",
    "spillgrad.autograd.functional": "Jacobians and Hessians",
    "spillgrad.utils.checkpoint": "Recomputation",
    "spillgrad.func": "Functions of functions",
    "spillgrad.planning": "Plans of what to spill and recompute",
    "spillgrad.storage": "The store alone",
    "spillgrad.interop.torch": "PyTorch models",
    "spillgrad.interop.paddle": "Paddle models",
    "spillgrad.interop.transformers": "Hugging Face's Trainer",
    "spillgrad.interop.lightning": "Lightning's Trainer",
    "spillgrad.linalg": "Linear algebra",
    "spillgrad.fft": "Fourier transforms",
    "spillgrad.special": "Special functions",
    "spillgrad.sparse": "Sparse matrices",
    "spillgrad.distributions": "Probability distributions",
    "spillgrad.testing": "Comparisons in tests",
    "spillgrad.amp": "Mixed precision",
    "spillgrad.cuda": "NVIDIA GPUs",
    "spillgrad.distributed": "Processes",
    "spillgrad.distributed.fsdp": "Models in parts",
    "spillgrad.array_api": "The array API standard",
    "spillgrad.errors": "Errors",
}


class Entry(NamedTuple):
    """A public object, the module that it is described in, and its names there."""

    value: Any
    module: str
    names: list[str]

    @property
    def name(self) -> str:
        """The name that its definition gives it, if it is public, else the first one."""
        own = getattr(self.value, "__name__", None)
        return own if own in self.names else self.names[0]

    @property
    def family(self) -> str:
        """The file that defines it, without its folder."""
        return str(self.value.__module__).rpartition(".")[2]

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        return (inspect.getdoc(self.value) or "").partition("\n")[0]


def write_pages(sphinx: Any) -> None:
    """Write the pages to the folder `reference`; remove those of modules and files that are gone."""
    folder = Path(sphinx.srcdir) / "reference"
    _name_classes()
    pages = dict(_pages())
    for old in folder.rglob("*.rst"):
        if str(old.relative_to(folder)) not in pages:
            old.unlink()
    for name, text in pages.items():
        page = folder / name
        page.parent.mkdir(parents=True, exist_ok=True)
        if not page.exists() or page.read_text() != text:  # an untouched page need not be read again
            page.write_text(text)


def public_entries() -> dict[str, list[Entry]]:
    """Return the entries that each module's pages describe."""
    found: dict[int, Entry] = {}
    by_module: dict[str, list[Entry]] = {}
    for path in MODULES:
        by_module[path] = []
        for name, value in _public(path):
            if id(value) not in found:
                found[id(value)] = Entry(value, path, [])
                by_module[path].append(found[id(value)])
            if found[id(value)].module == path:
                found[id(value)].names.append(name)
    return by_module


def _public(path: str) -> Iterator[tuple[str, Any]]:
    module = importlib.import_module(path)
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    for name in sorted(names):
        value = getattr(module, name)
        if callable(value) and str(getattr(value, "__module__", "")).startswith("spillgrad"):
            yield name, value


def _name_classes() -> None:
    """Name each class as programs do; autodoc would show a class of another name as "alias of" it, undescribed."""
    for entries in public_entries().values():
        for entry in entries:
            if inspect.isclass(entry.value):
                entry.value.__name__ = entry.name


def _pages() -> Iterator[tuple[str, str]]:
    by_module = public_entries()
    described = {id(entry.value): entry for entries in by_module.values() for entry in entries}
    public = set(described)
    contents = []
    for path, entries in by_module.items():
        families: dict[str, list[Entry]] = {}
        for entry in entries:
            families.setdefault(entry.family, []).append(entry)
        elsewhere = [
            (name, described[id(value)]) for name, value in _public(path) if described[id(value)].module != path
        ]
        folder = path.removeprefix("spillgrad").removeprefix(".") or "spillgrad"
        if len(families) == 1 or len(entries) < 12:
            text = _heading(MODULES[path], path) + _lead(path, path) + _table(entries) + _entries(entries, public)
            yield f"{folder}.rst", text + _elsewhere(elsewhere)
            contents.append(folder)
            continue
        for family, members in sorted(families.items()):
            source = str(members[0].value.__module__)
            title = family.lstrip("_").replace("_", " ").capitalize()
            yield (
                f"{folder}/{family}.rst",
                _heading(title, path) + _lead(source, path) + _table(members) + _entries(members, public),
            )
        toctree = _toctree([f"{folder}/{family}" for family in sorted(families)])
        yield f"{folder}.rst", _heading(MODULES[path], path) + _lead(path, path) + toctree + _elsewhere(elsewhere)
        contents.append(folder)
    lead = "Every public name, by the module that it belongs to. The pages are made from the docstrings.\n\n"
    yield "index.rst", _underlined("API reference", "=") + lead + _toctree(contents)


def _heading(title: str, path: str) -> str:
    return _underlined(title, "=") + f".. currentmodule:: {path}\n\n"


def _underlined(title: str, line: str) -> str:
    return f"{title}\n{line * len(title)}\n\n"


def _lead(source: str, path: str) -> str:
    """Return what the docstring of a file says, after the path that a program imports."""
    text = inspect.getdoc(importlib.import_module(source)) or ""
    return f"``{path}``\n\n{text}\n\n"


def _toctree(pages: list[str]) -> str:
    return ".. toctree::\n   :maxdepth: 1\n\n" + "".join(f"   {page}\n" for page in pages) + "\n"


def _table(entries: list[Entry]) -> str:
    rows = "".join(
        f"   * - `{entry.name} <{entry.module}.{entry.name}>`\n     - {entry.summary}\n" for entry in entries
    )
    return f".. list-table::\n   :class: names\n   :widths: 25 75\n\n{rows}\n"


def _entries(entries: list[Entry], public: set[int]) -> str:
    return "".join(_entry(entry, public) for entry in entries)


def _entry(entry: Entry, public: set[int]) -> str:
    if entry.value is spillgrad.Tensor:
        return _tensor_class()
    kind, options = "function", ""
    if inspect.isclass(entry.value) and issubclass(entry.value, BaseException):
        kind = "exception"
    elif inspect.isclass(entry.value):
        kind, members = "class", ", ".join(_members(entry.value, public))
        options = "   :show-inheritance:\n" + (f"   :members: {members}\n" if members else "")
    text = f".. auto{kind}:: {entry.module}.{entry.name}\n{options}\n"
    aliases = [name for name in entry.names if name != entry.name]
    return text + (f"Also named {_listed(aliases)}.\n\n" if aliases else "")


def _members(kind: type, public: set[int]) -> list[str]:
    """Return the public members of a class and of those of its bases that are not described themselves."""
    names: dict[str, None] = {}
    for base in kind.__mro__:
        if base is object or (base is not kind and id(base) in public):
            break
        if base.__module__.startswith("spillgrad"):
            names |= {name: None for name, value in vars(base).items() if not name.startswith("_") and _says(value)}
    return list(names)


def _says(member: Any) -> bool:
    """Return whether a member has a docstring of its own; Python gives the fields of named tuples one without sense."""
    return bool(member.__doc__) and not member.__doc__.startswith("Alias for field number")


# Methods of tensors that the library's own files call, and programs do not.
_OF_THE_ENGINE = (
    "accumulate_grad", "alias", "array_to_overwrite", "attach", "connect", "gradient_edge", "host_array", "leaf_views",
    "mark_shared", "wrap",
)  # fmt: skip


def _tensor_class() -> str:
    """Describe the methods that only tensors have; those that functions are, too, are listed with a link."""
    functions = {id(getattr(spillgrad, name)): name for name in spillgrad.__all__}
    names = {name for name in dir(spillgrad.Tensor) if not name.startswith("_")}.difference(_OF_THE_ENGINE)
    members = {name: getattr(spillgrad.Tensor, name) for name in sorted(names)}
    linked, in_place, own = [], [], []
    for name, value in members.items():
        if id(value) in functions:
            linked.append(f"`{name} <spillgrad.{functions[id(value)]}>`")
        elif name.endswith("_") and name[:-1] in members and not name.startswith("requires"):
            in_place.append(f"``{name}``")
        else:
            own.append(name)
    sections = [
        ".. autoclass:: spillgrad.Tensor\n\n",
        _underlined("Methods that are functions, too", "-"),
        "``x.add(y)`` is ``sg.add(x, y)``: ", _wrapped(linked),
        _underlined("Methods that change the tensor", "-"),
        "Each does what the method without the underscore does, and writes the result into the tensor: ",
        _wrapped(in_place), _underlined("Methods and attributes of tensors alone", "-"),
    ]  # fmt: skip
    for name in own:
        kind = "method" if inspect.isroutine(members[name]) else "attribute"
        sections.append(f".. auto{kind}:: spillgrad.Tensor.{name}\n\n")
    return "".join(sections)


def _wrapped(words: list[str]) -> str:
    return textwrap.fill(", ".join(words), 118, break_long_words=False, break_on_hyphens=False) + "\n\n"


def _listed(names: list[str]) -> str:
    return ", ".join(f"``{name}``" for name in names)


def _elsewhere(names: list[tuple[str, Entry]]) -> str:
    if not names:
        return ""
    links = _wrapped([f"`{name} <{entry.module}.{entry.name}>`" for name, entry in names])
    return _underlined("Also here", "-") + f"These are described in the first module that has them:\n\n{links}"


def setup(sphinx: Any) -> dict[str, bool]:
    """Sphinx calls this."""
    sphinx.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True}
