"""The examples of docstrings give what they show."""

from pathlib import Path

import pytest

from tests.docs.printed import FRAMEWORKS, modules_with_examples, run_examples

# tests/interop/test_printed_programs.py runs those for other frameworks.
MODULES = [name for name in modules_with_examples() if not set(name.split(".")) & set(FRAMEWORKS)]


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_show(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    run_examples(name)
