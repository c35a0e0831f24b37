"""The page on failures tells the truth: the tests that it names exist, and its messages are those of the code."""

import ast
import builtins
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from spillgrad import errors

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/what_happens_when.md").read_text()
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
TESTS = sorted(set(re.findall(r"`(tests/\S+?\.py)::(\w+)`", PAGE)))
MESSAGES = [line for block in re.findall(r"^```text\n(.*?)^```", PAGE, re.M | re.S) for line in block.splitlines()]

# A string of the code counts if so many of its characters are fixed.
LEAST = 8
SHORT = (", and ", " free")
# What a message says of a case: places, numbers and sizes, names of tensors and programs, and the system's own words.
REASONS = {word for number in errno.errorcode for word in os.strerror(number).split()}
OF_A_CASE = re.compile(
    r"\S*/\S*|\S+\.(jsonl|safetensors|result|self)|\d\S*|[KMG]iB|B|%|[0-9a-f]{16,}|checkpoint|spillgrad|train"
    r"|--[\w-]+|vm|out|t2|weights?|write|read|get|[\W_]*"
)


Template = tuple[str, re.Pattern[str]]


@pytest.fixture(scope="module")
def templates() -> list[Template]:
    """The code's strings: the longest part that is fixed, and a pattern in which a value of an f-string is anything."""
    folders = ("spillgrad/storage", "spillgrad/files", "spillgrad/spill", "spillgrad/inspection", "tools")
    return [
        template
        for folder in (*folders, "kernels/spillgrad_kernels/memory")
        for path in (ROOT / folder).rglob("*.py")
        for template in templates_in(ast.parse(path.read_text()))
    ]


def templates_in(tree: ast.AST) -> Iterator[Template]:
    nodes = list(ast.walk(tree))
    parts_of_others = {part for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if node in parts_of_others or not isinstance(node, ast.Constant | ast.JoinedStr):
            continue
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        fixed = [str(part.value) if isinstance(part, ast.Constant) else None for part in parts]
        longest = max((each for each in fixed if each is not None), key=len, default="")
        if sum(len(each or "") for each in fixed) >= LEAST:
            yield longest, re.compile("".join(".*?" if each is None else f"({re.escape(each)})" for each in fixed))


def unexplained(message: str, templates: list[Template]) -> list[str]:
    """The words of a message that no string of the code has, and that are not of its case."""
    known = [False] * len(message)
    for longest, template in templates:
        for match in template.finditer(message) if longest in message else ():
            for group in range(1, template.groups + 1):
                start, stop = match.span(group)
                known[start:stop] = [True] * (stop - start)
    left = "".join(" " if is_known else character for character, is_known in zip(message, known, strict=True))
    words = [word.strip("();:,'.") for word in left.split()]
    return [word for word in words if not OF_A_CASE.fullmatch(word) and word not in REASONS]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_one_of_the_code(message: str, templates: list[Template]):
    kind, colon, text = message.partition(": ")
    if colon and kind.endswith(("Error", "Warning")):
        assert hasattr(errors, kind) or hasattr(builtins, kind)
        message = text
    assert unexplained(message, templates) == []


def test_a_message_that_the_code_does_not_have_is_found(templates: list[Template]):
    message = "spill: could not write 1 MiB (tanh.result) in /data: No space left on device; buy another disk"
    assert unexplained(message, templates) == ["buy", "another", "disk"]


@pytest.mark.parametrize(("path", "name"), TESTS)
def test_a_test_that_it_names_exists(path: str, name: str):
    tree = ast.parse((ROOT / path).read_text())
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_failure_has_a_row_and_a_test():
    rows = re.findall(r"^\| \[(.*?)\]\(#(.*?)\) \| .+ \|$", PAGE, re.M)
    assert [name[0].upper() + name[1:] for name, _ in rows] == list(SECTIONS)
    assert [anchor for _, anchor in rows] == [re.sub(r"\W+", "-", name.lower()) for name in SECTIONS]
    assert [name for name, text in SECTIONS.items() if "Shown by `tests/" not in text] == []
