"""`spillgrad bench fit`: plan models of the catalogue for several sizes of RAM, for the site's table."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Column, Table

import spillgrad as sg
from spillgrad.errors import BudgetError
from spillgrad.storage.sizes import format_bytes
from spillgrad_tools import fresh_process
from spillgrad_tools.bench import results
from spillgrad_tools.bench.machine import machine
from spillgrad_tools.bench.options import FitOptions
from spillgrad_tools.bench.report import print_json
from spillgrad_tools.quantities import UNKNOWN, format_duration

MODELS = ("tiny", "small", "gpt2", "gpt2-medium", "gpt2-xl", "tinyllama", "llama-3.2-1b")
CONTEXTS = (256, 1024)
GIB = 1 << 30
RAMS = tuple(gib * GIB for gib in (1, 2, 4, 8, 16, 32))
# A plan for one of these says what other sizes of RAM do, if two layers of the model can be trained in it.
_PLANNED_FOR = tuple(gib * GIB for gib in (2, 4, 8, 16))

Row = dict[str, Any]


def plan(model: str, context: int, ram: int, directory: Path) -> Row:
    """Plan a model with batches of one sequence in `ram` bytes; return the plan, as a row, for all of RAMS.

    Raises BudgetError if the model does not fit into `ram`.
    """
    found = sg.planning.plan(model, 1, context, ram, directory)
    own = found.prediction.written_bytes + found.prediction.read_bytes
    known = {ram: (found.offload, found.prediction.step_s, own)}
    known |= {each.ram_bytes: (each.offload, each.step_s, each.moved_bytes) for each in found.alternatives}
    in_ram = [ram_bytes for ram_bytes, (_, _, moved_bytes) in known.items() if moved_bytes == 0]
    cells = []
    for each in RAMS:
        if each < found.least_bytes:
            continue
        # With more RAM than is used, nothing changes.
        offload, step_s, moved_bytes = known[min(in_ram) if in_ram and each > min(in_ram) else each]
        on_disk = {"on_disk": "nothing" if not moved_bytes else "everything" if offload else "saved tensors"}
        cells.append({"ram_bytes": each, **on_disk, "step_s": step_s, "moved_bytes": moved_bytes})
    return {
        "model": model, "batch": 1, "context": context, "parameters": found.parameters,
        "least_bytes": found.least_bytes, "persistent_bytes": found.parameter_bytes + found.trained_bytes
        + found.state_bytes, "saved_bytes": found.prediction.saved_bytes, "cells": cells,
    }  # fmt: skip


def rows(options: FitOptions) -> Iterator[Row]:
    """Plan each model whose name contains `options.name` for each context, and yield the rows."""
    for model in (each for each in MODELS if options.name in each):
        for context in CONTEXTS:
            for ram in _PLANNED_FOR:
                try:
                    yield fresh_process.call(plan, model, context, ram, options.directory)
                except BudgetError:
                    continue
                break


def run(options: FitOptions) -> None:
    """Plan the models and print what fits where; write it to a folder if named, model by model."""
    found: list[Row] = []
    about = {**machine(options.directory), "threads": sg.get_num_threads(), "batch": 1}
    with Console(stderr=True).status("planning") as status:
        for row in rows(options):
            found.append(row)
            status.update(f"planning; {row['model']} with context {row['context']} done")
            if options.page:
                results.write(options.page, "fit", "spillgrad bench fit", about, found)
    if options.as_json:
        print_json(machine=about, results=found)
        return
    heads = ("context", "least RAM", *(format_bytes(ram) for ram in RAMS))
    table = Table("model", *(Column(head, justify="right") for head in heads), box=SIMPLE)
    table.caption = "a step in that RAM, and what is on disk then"
    for row in found:
        cells = {cell["ram_bytes"]: f"{format_duration(cell['step_s'])}, {cell['on_disk']}" for cell in row["cells"]}
        least = format_bytes(row["least_bytes"])
        table.add_row(row["model"], str(row["context"]), least, *(cells.get(ram, UNKNOWN) for ram in RAMS))
    Console().print(table)
