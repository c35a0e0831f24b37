"""README.md and the pages of docs/ tell the truth: programs and commands run as printed, and links lead to files."""

import re

import pytest

from tests.docs.printed import MADE_AT_BUILD, ROOT, blocks, pages, run_command, run_program

README = (ROOT / "README.md").read_text()
PROGRAMS = [program for program in blocks("python") if not program.frameworks]
COMMANDS = [block for block in blocks("sh") if re.search("^spillgrad ", block.text, re.M)]


def parameters(printed):
    """Return blocks as parameters of a test; all but the README's are exhaustive."""
    return [
        pytest.param(block, id=str(block), marks=() if str(block).startswith("README") else pytest.mark.exhaustive)
        for block in printed
    ]


@pytest.mark.parametrize("program", parameters(PROGRAMS))
def test_a_program_runs_as_printed(program, tmp_path):
    run_program(program, tmp_path)


@pytest.mark.parametrize("block", parameters(COMMANDS))
def test_commands_run_as_printed(block, tmp_path):
    for command in re.findall("^spillgrad .*$", block.text, re.M):
        run_command(command, tmp_path)


def test_programs_and_commands_are_found():
    assert any(block.page == "README.md" for block in PROGRAMS)
    assert any(block.page == "README.md" for block in COMMANDS)


def test_the_readme_is_read_in_ten_minutes():
    assert len(README.splitlines()) <= 200
    first = next(program for program in PROGRAMS if program.page == "README.md")
    assert len([line for line in first.text.splitlines() if line.strip()]) <= 15


def test_the_make_targets_that_pages_name_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = {name for text in pages().values() for name in re.findall(r"`make ([a-z-]+)", text)}
    assert {"train", "test", "lint", "docs"} <= named | set(re.findall("^make ([a-z-]+)", README, re.M)) <= targets


def test_ci_calls_only_what_the_readme_names():
    called = re.findall(r"\bmake ([a-z -]+)", (ROOT / ".ci" / "run").read_text())
    assert called
    assert all(f"make {target}" in README for line in called for target in line.split())


@pytest.mark.parametrize("page", pages())
def test_a_link_to_a_file_leads_to_one(page):
    text = re.sub(r"^```.*?^```", "", pages()[page], flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path = (ROOT / page).parent.joinpath(target).resolve()
        made = page.startswith("docs/") and path.relative_to(ROOT).as_posix().startswith(MADE_AT_BUILD)
        assert made or path.exists(), target  # `make docs` fails where a page it makes is missing


@pytest.mark.parametrize("page", pages())
def test_every_column_of_a_table_has_a_name(page):
    headers = re.findall(r"^(\|.*\|)\n\|[-: |]+\|$", pages()[page], re.M)
    assert [header for header in headers if not all(cell.strip() for cell in header.strip("|").split("|"))] == []
