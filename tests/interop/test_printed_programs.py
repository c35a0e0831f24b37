"""What README.md and the pages of docs/ show of other frameworks runs as printed."""

import warnings

import pytest

from tests.docs.printed import FRAMEWORKS, blocks, modules_with_examples, run_examples, run_program

PROGRAMS = [program for program in blocks("python") if program.frameworks]
# They warn when they are imported.
WARN = {"paddle", "transformers", "lightning"}


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_a_program_runs_as_printed(program, tmp_path):
    for package in program.frameworks:
        pytest.importorskip(package, reason="`make test-peers` installs it")
    run_program(program, tmp_path, "default" if program.frameworks & WARN else "error")
    assert not (tmp_path / "spill").exists() or list((tmp_path / "spill").iterdir()) == []


@pytest.mark.parametrize("name", [name for name in modules_with_examples() if set(name.split(".")) & set(FRAMEWORKS)])
def test_examples_of_docstrings_give_what_they_show(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for package in WARN & set(name.split(".")):
            pytest.importorskip(package, reason="`make test-peers` installs it")
    run_examples(name)
