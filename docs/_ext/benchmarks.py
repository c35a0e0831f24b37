"""Writes the pages of the benchmarks, and makes tables for other pages, from the JSON files in `docs/benchmarks`.

`spillgrad bench … --write docs/benchmarks` writes such a file: one for each benchmark and each kind of machine. What a
further machine has measured is a further column.
"""

import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmark_plots import bars, curves, dots, marks
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from spillgrad.storage.sizes import format_bytes
from spillgrad_tools.quantities import UNKNOWN, format_duration

PEERS = {"numpy": "NumPy", "torch": "PyTorch"}
Row = dict[str, Any]


class File(NamedTuple):
    """The content of a JSON file: its name, the command that wrote it, its machine and options, and its rows."""

    name: str
    command: str
    about: dict[str, Any]
    rows: list[Row]

    @property
    def machine(self) -> str:
        """The name of the machine: its GPU, or its processor and the number of threads."""
        return str(
            self.about.get("gpu")
            or f"{self.about['processor']}, {self.about.get('threads', self.about['cores'])} threads"
        )

    @property
    def details(self) -> str:
        """What the file says of its machine and options, in a line."""
        about = self.about
        words = [self.machine]
        words += [f"{about['memory']} of RAM"] if "memory" in about else []
        words += [f"disk: {about['disk']}"] if "disk" in about else []
        words += ["a virtual machine"] if about.get("virtual") else []
        words += about.get("libraries", [])
        words += [f"Python {about['python']}", about["date"]]
        words += [f"medians of {about['rounds']} rounds, 3 where long"] if "rounds" in about else []
        words += [f"medians of {about['steps']} steps"] if "steps" in about else []
        return "; ".join(words)


class Page(NamedTuple):
    """A page of kernels: its title, the groups of cases on it, and a paragraph on how to read it."""

    title: str
    groups: tuple[str, ...]
    lead: str


# A case of a group that no page names fails the build.
KERNEL_PAGES = {
    "matrix_products": Page(
        "Matrix products",
        (
            "matmul float32, squares from 512", "matmul float32, GPT-2's layers", "matmul float32, GPT-2's words",
            "matmul float32, 256", "matmul float32, 128", "matmul float32, odd and skinny", "matmul float32, batches",
            "matmul, below 128", "matmul float64",
        ),
        "Most of the time of training goes into matrix products. NN, NT, TN and TT say which of the two matrices is "
        "transposed in memory. Large products are bound by the processor's arithmetic, so the libraries differ little. "
        "Skinny products are bound by memory. Products below 128 are bound by the cost of a call.",
    ),
    "elementwise": Page(
        "Elementwise operations",
        ("elementwise", "elementwise, out=", "add, mul, copy", "add, mul, copy, out="),
        "Each operation takes 16 million float32 numbers. Without `out=`, the result gets fresh memory: spillgrad "
        "takes it from a pool of buffers, which saves the page faults that other libraries pay in each call. With "
        "`out=`, the result goes to given memory, and only the arithmetic and the memory's speed count. Where a row "
        "says how many bytes it moves, the fastest copy of the same machine is the limit beside it. NumPy has no time "
        "for an operation that it would have to put together from several.",
    ),
    "layers": Page(
        "Softmax, norms and attention",
        ("softmax, layer_norm, cross_entropy", "attention"),
        "The shapes are those of GPT-2. “Forward and backward” includes recording the graph and computing the "
        "gradients of all inputs. PyTorch runs its own fused kernels.",
    ),
    "small": Page(
        "Optimizer and small operations",
        ("adamw", "small, recorded"),
        "AdamW makes one step on 16 million parameters; PyTorch's is the fused one. The small operations show what a "
        "call costs, with the graph recorded: their arithmetic takes next to no time.",
    ),
}  # fmt: skip
HOW_TO_READ = """\
## How to read the tables

* “× NumPy” is NumPy's time divided by spillgrad's: at 2, spillgrad takes half the time; at 1, as long; below 1, it is
  slower.
* Every library runs in a process of its own, with the same number of threads, on the same numbers. They take turns, so
  that a change of the machine's speed meets all of them. The median of the rounds counts.
* Before a row is timed, every library's result is compared with NumPy's in float64. In training, the losses are
  compared.
* The limit of a row is the time that the processor needs for it at least: for its multiply-adds, at the rate of
  multiply-adds in registers, or for its bytes, at the rate at which a memory of that size is read or copied, whichever
  is longer. Both rates are measured beside the row. Small operations have no limit: a call takes most of their time.
* Ratios differ between processors, and by several percent between two runs. Differences of less than that mean nothing.
"""


def load(folder: Path) -> dict[str, list[File]]:
    """Return the files in a folder by benchmark, in the order of their machines."""
    found: dict[str, list[File]] = {}
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        file = File(path.name, content["command"], content["about"], content["rows"])
        found.setdefault(content["benchmark"], []).append(file)
    return found


def write_pages(sphinx: Any) -> None:
    """Write the pages and plots; remove pages that are no longer made."""
    folder = Path(sphinx.srcdir) / "benchmarks"
    files = load(folder)
    made = dict(pages(files, folder))
    for old in folder.glob("*.md"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        page = folder / name
        if not page.exists() or page.read_text() != text:  # an untouched page need not be read again
            page.write_text(text)


def pages(files: dict[str, list[File]], folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the pages' names and texts; write the plots to `folder`."""
    kernels = files.get("kernels", [])
    unknown = {row["group"] for file in kernels for row in file.rows} - {
        group for page in KERNEL_PAGES.values() for group in page.groups
    }
    if unknown:
        raise ValueError(f"benchmarks: no page has the groups {', '.join(sorted(unknown))}; add them to KERNEL_PAGES")
    contents = []
    for name, page in KERNEL_PAGES.items() if kernels else ():
        yield f"{name}.md", _kernel_page(page, name, kernels, folder)
        contents.append(name)
    others: dict[str, tuple[str, Callable[[dict[str, list[File]], Path], Iterator[str]]]] = {
        "training": ("train", _training_page), "models": ("models", _models_page), "hooks": ("hooks", _hooks_page),
        "store": ("spill", _store_page), "growth": ("growth", _growth_page), "gpu": ("cuda", _gpu_page),
    }  # fmt: skip
    for name, (benchmark, lines) in others.items():
        if benchmark in files:
            yield f"{name}.md", "\n".join(lines(files, folder))
            contents.append(name)
    yield "index.md", "\n".join(_index(files, contents, folder))


def _index(files: dict[str, list[File]], contents: Sequence[str], folder: Path) -> Iterator[str]:
    yield from (
        "# Benchmarks", "",
        "These pages compare spillgrad with NumPy, PyTorch and Paddle on the same machine, and with what the machine "
        "itself can do. The benchmarks are part of spillgrad, so you can run them on your machine.", "",
    )  # fmt: skip
    if "kernels" in files:
        yield from (
            "Each dot is a row of the tables. At 1, spillgrad is as fast as the other library; to the right of it, "
            "faster.", "",
        )  # fmt: skip
        yield from _strip(files["kernels"], _all_groups(), "kernels", folder)
    yield from ("```{toctree}", ":maxdepth: 1", "", *contents, "```", "", HOW_TO_READ, "## Run them yourself", "")
    yield from (
        "`make bench` runs all of them. On a quiet machine that takes about half an hour. A single one:", "",
        "```text", "spillgrad bench kernels --filter softmax", "spillgrad bench train --model gpt2",
        "spillgrad bench models --filter ResNet", "spillgrad bench hooks --framework torch", "spillgrad bench spill",
        "spillgrad bench memory", "spillgrad bench growth", "spillgrad bench ranks",
        "spillgrad bench kernels --device cuda", "```", "",
        "With `--write FOLDER`, a benchmark writes what it measured to a JSON file there, of which these pages are "
        "made: times, their spread, and the machine.", "",
    )  # fmt: skip
    measured = [file for file in files.get("kernels", []) if "limits" in file.about]
    if measured:
        yield from ("## What the processors can do", "", *_limits_table(measured), "")
    yield from ("## The machines and the raw numbers", "")
    for file in sorted((file for several in files.values() for file in several), key=lambda file: file.name):
        yield f"* {{download}}`{file.name}`: `{file.command}`; {file.details}"
    if "cuda" not in files:
        yield from ("", "No GPU has been measured yet.")
    yield ""


def _limits_table(files: list[File]) -> Iterator[str]:
    """Yield a table of the limits that `bench kernels` measured, a line for each machine."""
    yield from _head("processor", "float32 GFLOP/s", "float64 GFLOP/s", "memory GB/s", "caches")
    for file in files:
        limits = file.about["limits"]
        rates = [
            f"{limits[key] / 1e9:,.0f}" if key in limits else UNKNOWN
            for key in ("float32_flop_per_s", "float64_flop_per_s", "bytes_per_s")
        ]
        caches = ", ".join(_size(nbytes) for nbytes in limits.get("cache_bytes", ()))
        yield _line(file.machine, *rates, caches or UNKNOWN)


def _all_groups() -> list[str]:
    return [group for page in KERNEL_PAGES.values() for group in page.groups]


def _kernel_page(page: Page, name: str, files: list[File], folder: Path) -> str:
    lines = [f"# {page.title}", "", page.lead, "", "“× NumPy” is NumPy's time divided by spillgrad's.", ""]
    lines += _strip(files, page.groups, name, folder)
    for group in page.groups:
        rows = [[row for row in file.rows if row["group"] == group] for file in files]
        if any(rows):
            lines += [f"## {group[0].upper()}{group[1:]}", "", *_kernel_table(files, rows), ""]
    return "\n".join([*lines, *_sources(files)])


def _kernel_table(files: list[File], rows: list[list[Row]]) -> Iterator[str]:
    """Yield a table: with all numbers of the only machine, or with a column for each of several machines."""
    cases = list(dict.fromkeys(row["case"] for of_file in rows for row in of_file))
    found = [{row["case"]: row for row in of_file} for of_file in rows]
    if len(files) > 1:
        yield from _head("case", *(file.machine for file in files))
        for case in cases:
            cells = [_in_one_cell(each[case]) if case in each else UNKNOWN for each in found]
            yield _line(case, *cells)
        return
    (file,), (of_file,) = files, found
    peers = {key: peer for key, peer in PEERS.items() if any(key in row["seconds"] for row in of_file.values())}
    limits = [_limit(file, row) for row in of_file.values()]
    head = [*(f"× {peer}" for peer in peers.values()), *peers.values()]
    yield from _head("case", "spillgrad", *head, *(["beside the machine's limit"] if any(limits) else []))
    for case, limit in zip(cases, limits, strict=True):
        seconds = of_file[case]["seconds"]
        ours, *others = (_time(seconds.get(key)) for key in ("ours", *peers))
        ratios = [_ratio(seconds, key) for key in peers]
        yield _line(case, ours, *ratios, *others, *([limit or UNKNOWN] if any(limits) else []))


def _in_one_cell(row: Row) -> str:
    ratios = [f"× {peer} {_ratio(row['seconds'], key)}" for key, peer in PEERS.items() if key in row["seconds"]]
    limit = [f"{row['limit_s'] / row['seconds']['ours']:.0%} of the limit"] if "limit_s" in row else []
    return "<br>".join([_time(row["seconds"].get("ours")), *ratios, *limit])


def _limit(file: File, row: Row) -> str:
    """Return how near a row comes to what the machine can do, in words; an empty text if that is not known."""
    share = f"{row['limit_s'] / row['seconds']['ours']:.0%}" if "limit_s" in row else ""
    if "copy_bytes_per_s" in row:
        return share or f"{row['bytes_per_s'] / 1e9:.1f} of {row['copy_bytes_per_s'] / 1e9:.1f} GB/s"
    if "flop" not in row or "ours" not in row["seconds"]:
        return share
    return f"{row['flop'] / row['seconds']['ours'] / 1e9:,.0f} GFLOP/s{', ' if share else ''}{share}"


def _strip(files: list[File], groups: Sequence[str], name: str, folder: Path) -> Iterator[str]:
    """Yield a plot of all ratios of some groups, one for each machine."""
    for file in files:
        points = {
            group: {
                peer: [
                    row["seconds"][key] / row["seconds"]["ours"]
                    for row in file.rows
                    if row["group"] == group and {key, "ours"} <= row["seconds"].keys()
                ]
                for key, peer in PEERS.items()
            }
            for group in groups
        }
        image = _plot_name(name, file, files)
        dots(folder / image, points, "times as fast as the other library")
        medians = [
            f"{peer} {statistics.median(ratios):.2f}"
            for peer in PEERS.values()
            if (ratios := [ratio for of_group in points.values() for ratio in of_group[peer]])
        ]
        of_machine = f"{file.machine}: " if len(files) > 1 else ""
        alt = f"{of_machine}how many times as fast as other libraries; the medians are {' and '.join(medians)}"
        yield from _image(image, alt)
        if of_machine:
            yield from (f"*{file.machine}*", "")


def _training_page(files: dict[str, list[File]], folder: Path) -> Iterator[str]:
    yield from (
        "# A whole training step", "",
        "A step is forward, backward and AdamW. The losses of spillgrad's trainings in float32 are the same to the "
        "last bit, wherever the tensors are. PyTorch trains the same model from the same weights, with its fused "
        "attention and fused AdamW.", "",
        "* *in RAM*: everything is in RAM, as usual.",
        "* *spilled*: `save_on_disk` with 128 MiB of RAM for saved tensors; older ones go to disk.",
        "* *offloaded*: parameters, gradients, optimizer state and saved tensors are on disk, in a process that may "
        "use 1 GiB.",
        "* *in RAM, bfloat16*: under `autocast`, which rounds the operands of products to bfloat16; where the "
        "processor multiplies bfloat16.", "",
    )  # fmt: skip
    for file in files["train"]:
        yield from _steps(file, files["train"], "training", folder, beside=("PyTorch", "in RAM"))
    for file in files.get("train-large", []):
        about = file.about
        yield from (
            f"## A model larger than RAM: {about['model']}", "",
            f"Parameters, gradients and AdamW state of {about['model']} take 23.2 GiB. Here it trains in batches of "
            f"{about['batch']} × {about['context']} in a process that may use few GiB. *Adapters* are LoRA of rank 8 "
            "beside the frozen model. “× computing alone” is the time of a step beside that of its arithmetic, "
            "extrapolated from models with 1 and 3 layers in RAM. A value below 1 comes from the extrapolation.", "",
            *_step_table(file, ()), "", *_sources([file]),
        )  # fmt: skip


def _models_page(files: dict[str, list[File]], folder: Path) -> Iterator[str]:
    yield from (
        "# Small models", "",
        "Ordinary models with a few hundred thousand to a few million parameters, as people write them for PyTorch. "
        "The same code runs with both libraries; only the import differs. A step is forward, backward and the "
        "optimizer. Computed in float64, the losses of the first three steps agree to nine digits.", "",
        "“× PyTorch” is PyTorch's time divided by spillgrad's.", "",
    )  # fmt: skip
    measured = files["models"]
    for file in measured:
        points = {row["case"]: {"PyTorch": [row["seconds"]["torch"] / row["seconds"]["ours"]]} for row in file.rows}
        image = _plot_name("models", file, measured)
        dots(folder / image, points, f"PyTorch's time ÷ spillgrad's, {file.machine}")
        said = "; ".join(f"{name} {each['PyTorch'][0]:.2f}" for name, each in points.items())
        yield from _image(image, f"PyTorch's time divided by spillgrad's: {said}")
    found = [{row["case"]: row for row in file.rows} for file in measured]
    cases = {name: row["describes"] for each in reversed(found) for name, row in each.items()}
    yield from _head("model", *(file.machine for file in measured), "what it is", texts=1)
    for name, describes in cases.items():
        yield _line(name, *(_in_one_cell(each[name]) if name in each else UNKNOWN for each in found), describes)
    yield from ("", *_sources(measured))


def _hooks_page(files: dict[str, list[File]], folder: Path) -> Iterator[str]:
    yield from (
        "# Hooks for PyTorch and Paddle", "",
        "spillgrad's store serves the models of other frameworks through their own hooks. A step of the framework's "
        "own model is timed in RAM, then with saved tensors on disk beyond 128 MiB; for PyTorch, also with the hooks "
        "of its tutorial, which keep a file for each saved tensor, and offloaded: with parameters, gradients and "
        "optimizer state on disk, too, in a process held to the memory that the table says. Losses and weights are the "
        "same to the last bit.", "",
    )  # fmt: skip
    for file in files["hooks"]:
        yield from _steps(file, files["hooks"], "hooks", folder, beside=("PyTorch", "Paddle"))


def _steps(file: File, files: list[File], name: str, folder: Path, beside: tuple[str, ...]) -> Iterator[str]:
    about = file.about
    yield from (f"## {about['model']}, batch {about['batch']} × {about['context']}: {file.machine}", "")
    image = _plot_name(name, file, files)
    timed = [row for row in file.rows if "seconds" in row]
    labels = [row["contender"] for row in timed]
    series = {
        "seconds a step": [row["seconds"] for row in timed],
        "peak memory, GiB": [row["peak_rss_bytes"] / 2**30 for row in timed],
    }
    bars(folder / image, labels, series)
    said = "; ".join(f"{row['contender']} {_time(row['seconds'])}" for row in timed)
    yield from _image(image, f"Seconds of a step and peak memory: {said}")
    yield from (*_step_table(file, beside), "", *_sources([file]))


def _step_table(file: File, beside: tuple[str, ...]) -> Iterator[str]:
    rows = {row["contender"]: row for row in file.rows}
    columns: dict[str, Callable[[Row], str]] = {"a step": lambda row: _time(row.get("seconds"))}
    for other in beside:
        own = other in ("PyTorch", "Paddle") and len(beside) == 2 and set(beside) == {"PyTorch", "Paddle"}

        def speed(row: Row, other: str = other, own: bool = own) -> str:
            if "seconds" not in row or other not in rows or (own and not row["contender"].startswith(other)):
                return UNKNOWN
            return f"{rows[other]['seconds'] / row['seconds']:.2f}"

        columns[f"× {other}"] = speed
    columns["peak memory"] = lambda row: _size(row.get("peak_rss_bytes"))
    if any("cap_bytes" in row for row in file.rows):
        columns["capped at"] = lambda row: _size(row.get("cap_bytes"))
    if any("pure_compute_s" in row for row in file.rows):
        columns["× computing alone"] = lambda row: (
            f"{row['seconds'] / row['pure_compute_s']:.2f}" if "pure_compute_s" in row else UNKNOWN
        )
    columns["written a step"] = lambda row: _size(row.get("written_bytes_per_step"))
    columns["read a step"] = lambda row: _size(row.get("read_bytes_per_step"))
    columns["tokens/s"] = lambda row: f"{row['tokens_per_s']:,.0f}" if "tokens_per_s" in row else UNKNOWN
    yield from _head("how", *columns)
    for name, row in rows.items():
        ended = "ended_with_status" in row
        yield _line(f"{name}: killed" if ended else name, *(cell(row) for cell in columns.values()))


def _store_page(files: dict[str, list[File]], folder: Path) -> Iterator[str]:
    yield from (
        "# The store and the disk", "",
        "These rows compare the store with plain reads and writes of as many bytes, and a training step of the model "
        "*small* whose saved tensors have an eighth of the RAM that they need with the same step in RAM. *File per "
        "tensor* are the hooks of PyTorch's tutorial. *Plain traffic* is a step in RAM while another thread moves as "
        "many bytes with plain file I/O: no store can cost less.", "",
    )  # fmt: skip
    for file in files["spill"]:
        names = list(dict.fromkeys(name for row in file.rows for name in row["measured"]))
        yield from (f"## {file.machine}", "", *_head("case", *names))
        for row in file.rows:
            measured = row["measured"]
            cells = [_value(measured[name], row["unit"]) if name in measured else UNKNOWN for name in names]
            yield _line(row["case"], *cells)
        yield from ("", *_sources([file]))


def _growth_page(files: dict[str, list[File]], folder: Path) -> Iterator[str]:
    yield from (
        "# How cost grows", "",
        "What a training step takes as there is more of one thing: layers, sequences in a batch, tokens in a sequence "
        "(a GPT of width 128), saved tensors (a chain of operations on four numbers in RAM, on 1,024 numbers with a "
        "budget of 0), and parameters (of four numbers, one AdamW step). “× linear” compares a line with the line "
        "above: at 1, the time grows as the number does; above 1, faster.", "",
        "The last three rows measure what a call costs, whatever it computes. Graphs are Python objects, so Python's "
        "garbage collector takes a part of that time: it visits all objects again and again while a large graph grows. "
        "A program whose models are small can call `gc.freeze()` once its model is made, or `gc.disable()` during "
        "training: spillgrad's graphs have no reference cycles, so memory is freed without the collector.", "",
    )  # fmt: skip
    for file in files["growth"]:
        yield from (f"## {file.machine}", "", *_head("what", "number", "a step", "each", "× linear"))
        for row in file.rows:
            growth = f"{row['growth']:.2f}" if "growth" in row else UNKNOWN
            each = _time(row["seconds"] / row["size"])
            yield _line(row["series"], f"{row['size']:,}", _time(row["seconds"]), each, growth)
        yield from ("", *_sources([file]))


def _gpu_page(files: dict[str, list[File]], folder: Path) -> Iterator[str]:
    yield from (
        "# On a GPU", "",
        "PyTorch runs on the same GPU, and the device's events take the time. “device copy” is the driver's own copy "
        "of as many bytes, the limit of what memory allows.", "",
        *_kernel_table(files["cuda"], [file.rows for file in files["cuda"]]), "", *_sources(files["cuda"]),
    )  # fmt: skip


def memory_table(files: dict[str, list[File]], folder: Path, described: Sequence[str]) -> Iterator[str]:
    """Yield a table of the methods that save memory, with what one machine has measured.

    Each line of `described` is a method's name, what it saves, what it costs and when to use it, divided by "|".
    Without such lines, the table has all methods and numbers, one table for each machine, and a plot.
    """
    measured = files.get("memory", [])
    if described:
        rows = {row["method"]: row for row in measured[0].rows} if measured else {}
        yield from _head("method", "peak memory", "a step", "saves", "costs", "use it when", texts=3)
        for line in described:
            name, *words = (part.strip() for part in line.split("|"))
            key = name.replace("`", "")
            if measured and key not in rows:
                raise ValueError(f"benchmarks: nothing was measured for {key}; known are {', '.join(rows)}")
            row = rows.get(key)
            same = [each for each in rows.values() if row and each["library"] == row["library"]]
            numbers = (
                [UNKNOWN] * 2
                if row is None
                else [_size(row["peak_rss_bytes"]), _times(row["seconds"], same[0]["seconds"])]
            )
            yield _line(name, *numbers, *words)
        return
    for file in measured:
        yield from _head("how", "peak memory", "less", "a step", "disk", "losses")
        firsts: dict[str, Row] = {}
        for row in file.rows:
            first = firsts.setdefault(row["library"], row)
            less = first["peak_rss_bytes"] - row["peak_rss_bytes"]
            yield _line(
                row["method"], _size(row["peak_rss_bytes"]), UNKNOWN if row is first else _size(max(0, less)),
                _times(row["seconds"], first["seconds"]), _size(row["disk_bytes"] or None),
                f"differ by {row['losses_apart']:.0e}" if row["losses_apart"] else "the same",
            )  # fmt: skip
        image = _plot_name("memory", file, measured)
        own = [row for row in file.rows if row["library"] == "ours"]
        marks(
            folder / image,
            [(row["method"], row["peak_rss_bytes"] / 2**20, row["seconds"] / own[0]["seconds"]) for row in own],
            "peak memory of the process, MiB", "time of a step, × keep",
        )  # fmt: skip
        yield ""
        yield from _image(f"benchmarks/{image}", "Peak memory and time of a step for each method")
        yield from _sources([file])


def _times(seconds: float, of_first: float) -> str:
    return _unbroken(f"{seconds / of_first:.2f} ×")


def fit_table(files: dict[str, list[File]], folder: Path, described: Sequence[str]) -> Iterator[str]:
    """Yield the table of models, contexts and sizes of RAM, one for each machine."""
    for file in files.get("fit", []):
        rams = sorted({cell["ram_bytes"] for row in file.rows for cell in row["cells"]})
        yield from _head("model", "context", "least RAM", *(_size(ram) for ram in rams))
        for row in file.rows:
            cells = {cell["ram_bytes"]: cell for cell in row["cells"]}
            shown = [_fit_cell(cells[ram], row["cells"][-1]) if ram in cells else "does not fit" for ram in rams]
            name = f"{row['model']}, {_millions(row['parameters'])}"
            yield _line(name, f"{row['context']:,}", _size(row["least_bytes"]), *shown)
        yield from ("", *_sources([file]))


def _fit_cell(cell: Row, last: Row) -> str:
    where = {"nothing": "in RAM", "saved tensors": "saved tensors on disk", "everything": "all on disk"}
    found = where[cell["on_disk"]]
    if cell is last or not cell["moved_bytes"]:
        return _unbroken(found)
    return f"{found}, {_times(cell['step_s'], last['step_s'])}"


def _millions(count: int) -> str:
    if count >= 1e9:
        return _unbroken(f"{count / 1e9:.1f} B")
    return _unbroken(f"{count / 1e6:.{0 if count >= 1e7 else 1}f} M")


def ranks_measured_table(files: dict[str, list[File]], folder: Path, described: Sequence[str]) -> Iterator[str]:
    """Yield a table of steps of two processes, as predicted and as measured."""
    for file in files.get("ranks", []):
        rows = [row for row in file.rows if row["kind"] == "measured"]
        if rows:
            yield from _head("model", "batch", "a step, predicted", "measured", "predicted / measured, of each round")
            for row in rows:
                ratios = [f"{each['predicted_s'] / each['measured_s']:.2f}" for each in row["rounds"]]
                both = _time(row["predicted_s"]), _time(row["measured_s"])
                yield _line(row["model"], f"{row['batch']} × {row['context']}", *both, ", ".join(ratios))
            yield from ("", *_sources([file]))


def ranks_predicted_table(files: dict[str, list[File]], folder: Path, described: Sequence[str]) -> Iterator[str]:
    """Yield plots and a table of the predicted efficiency of many processes, for each machine."""
    ranks = files.get("ranks", [])
    for file in ranks:
        rows = [row for row in file.rows if row["kind"] == "predicted"]
        words = {True: "one batch for each process", False: f"{max(row['batches'] for row in rows):,} batches a step"}
        for network in dict.fromkeys(row["network"] for row in rows):
            panels = {
                title: {
                    f"{row['cores']} cores, {_time(row['seconds'])} a batch": [
                        (cell["ranks"], cell["efficiency"]) for cell in row["cells"]
                    ]
                    for row in rows
                    if row["network"] == network and (row["batches"] == 1) == is_weak
                }
                for is_weak, title in words.items()
            }
            image = _plot_name(f"ranks-{network.lower()}", file, ranks)
            curves(folder / image, panels, "processes", f"efficiency, {network}/s")
            # The page that shows the plot is in another folder.
            yield from _image(
                f"/benchmarks/{image}", f"{rows[0]['model']}: efficiency over {network}/s, as in the table"
            )
        shown = [cell["ranks"] for cell in rows[0]["cells"] if cell["ranks"] in (2, 8, 64, 256, 1024)]
        heads = ("cores", "a batch alone", "network", *(f"{count:,}" for count in shown))
        yield from _head("batches of a step", *heads)
        for row in rows:
            shares = [f"{cell['efficiency']:.0%}" for cell in row["cells"] if cell["ranks"] in shown]
            yield _line(words[row["batches"] == 1], str(row["cores"]), _time(row["seconds"]), row["network"], *shares)
        yield from ("", *_sources([file]))


TABLES = {
    "memory": memory_table, "fit": fit_table, "ranks-measured": ranks_measured_table,
    "ranks-predicted": ranks_predicted_table,
}  # fmt: skip


class BenchmarkTable(SphinxDirective):
    """The directive `benchmark-table`: a table of `TABLES`, made from the JSON files and the directive's lines."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Sphinx calls this."""
        folder = Path(self.env.srcdir) / "benchmarks"
        for path in folder.glob("*.json"):
            self.env.note_dependency(str(path))
        return self.parse_text_to_nodes("\n".join(TABLES[self.arguments[0]](load(folder), folder, self.content)))


def _image(path: str, alt: str) -> tuple[str, ...]:
    """Return the lines of an image that stays as it is on a dark page."""
    return (f"```{{image}} {path}", f":alt: {alt}", ":class: dark-light", "```", "")


def _sources(files: Iterable[File]) -> Iterator[str]:
    for file in files:
        note = f" {file.about['note']}" if "note" in file.about else ""
        yield from (f"Measured by `{file.command}`: {file.details}.{note}", "")


def _plot_name(name: str, file: File, files: list[File]) -> str:
    return f"{name}.svg" if len(files) == 1 else f"{name}-{files.index(file) + 1}.svg"


def _head(*names: str, texts: int = 0) -> tuple[str, str]:
    """Return the two lines of a table's head. All columns hold numbers but the first and the last `texts`."""
    return _line(*names), "|" + "|".join(["---", *["--:"] * (len(names) - 1 - texts), *["---"] * texts]) + "|"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _time(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else _unbroken(format_duration(seconds))


def _size(nbytes: float | None) -> str:
    return UNKNOWN if nbytes is None else _unbroken(format_bytes(int(nbytes)))


def _unbroken(text: str) -> str:
    """Return a number with its unit on one line."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _ratio(seconds: dict[str, float], peer: str) -> str:
    return f"{seconds[peer] / seconds['ours']:.2f}" if {peer, "ours"} <= seconds.keys() else UNKNOWN


def _value(value: float, unit: str) -> str:
    shown = {"s": format_duration, "B": lambda value: format_bytes(int(value)), "%": lambda value: f"{value:.1f} %"}
    if unit == "B/s":
        return f"{value / 1e9:.2f} GB/s"
    return shown[unit](value) if unit in shown else f"{value:,.0f}"


def setup(sphinx: Any) -> dict[str, bool]:
    """Sphinx calls this."""
    sphinx.connect("builder-inited", write_pages)
    sphinx.add_directive("benchmark-table", BenchmarkTable)
    return {"parallel_read_safe": True}
