"""The pages of the benchmarks show every row that was measured, on every machine, and none of this project's goals."""

import copy
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sphinx", reason="`make docs` installs it")
pytest.importorskip("matplotlib", reason="`make docs` installs it")

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULTS = DOCS / "benchmarks"


@pytest.fixture(scope="module")
def benchmarks() -> Any:
    sys.path.insert(0, str(DOCS / "_ext"))
    try:
        yield importlib.import_module("benchmarks")
    finally:
        sys.path.remove(str(DOCS / "_ext"))


@pytest.fixture(scope="module")
def files(benchmarks) -> dict[str, list[Any]]:
    return benchmarks.load(RESULTS)


@pytest.fixture(scope="module")
def pages(benchmarks, files, tmp_path_factory) -> dict[str, str]:
    return dict(benchmarks.pages(files, tmp_path_factory.mktemp("plots")))


def test_every_row_of_every_file_is_on_a_page(pages, files):
    lines = "\n".join(pages.values())
    for benchmark in ("kernels", "train", "train-large", "models", "hooks", "spill"):
        for file in files[benchmark]:
            assert file.name in pages["index.md"]
            for row in file.rows:
                assert f"| {row.get('case') or row['contender']}" in lines


def test_no_page_tells_of_goals(pages):
    assert not any(word in page for page in pages.values() for word in ("✗", "✓", "wanted", "bars"))


def test_plots_are_svg_files_without_a_background_that_pages_show(benchmarks, files, tmp_path):
    made = dict(benchmarks.pages(files, tmp_path))
    plots = list(tmp_path.glob("*.svg"))
    assert plots
    assert all(any(f"{{image}} {plot.name}\n" in page for page in made.values()) for plot in plots)
    before = {plot: plot.read_text() for plot in plots}
    dict(benchmarks.pages(files, tmp_path))
    assert {plot: plot.read_text() for plot in plots} == before


def test_a_second_machine_is_a_second_column(benchmarks, files, tmp_path):
    (first, *_) = files["kernels"]
    rows = copy.deepcopy(first.rows)
    rows[0]["seconds"]["ours"] = 1.0
    other = first._replace(name="other.json", about={**first.about, "processor": "Another"}, rows=rows)
    page = dict(benchmarks.pages({"kernels": [first, other]}, tmp_path))["matrix_products.md"]
    assert f"| case | {first.machine} | Another, 2 threads |" in page
    assert f"| {rows[0]['case']} | " in page
    assert "| 1\N{NO-BREAK SPACE}s<br>× NumPy 0.00" in page


def test_a_group_without_a_page_is_an_error(benchmarks, files, tmp_path):
    rows = [{**files["kernels"][0].rows[0], "group": "new"}]
    with pytest.raises(ValueError, match="no page has the groups new"):
        dict(benchmarks.pages({"kernels": [files["kernels"][0]._replace(rows=rows)]}, tmp_path))


@pytest.mark.parametrize("page", ["memory_methods.md", "will_it_fit.md", "how_it_works/scaling.md"])
def test_tables_of_other_pages_are_made(benchmarks, files, tmp_path, page):
    blocks = (DOCS / page).read_text().split("```{benchmark-table} ")[1:]
    assert blocks
    for block in blocks:
        name, *described = block.partition("\n```")[0].splitlines()
        table = list(benchmarks.TABLES[name](files, tmp_path, described))
        assert sum(line.startswith("|") for line in table) > len(described) + 1


def test_a_method_that_was_not_measured_is_an_error(benchmarks, files, tmp_path):
    with pytest.raises(ValueError, match="nothing was measured for guess"):
        list(benchmarks.memory_table(files, tmp_path, ["guess | much | nothing | always"]))
