"""The same program sees the same under spillgrad and under PyTorch: packed and unpacked values, their order, results,
gradients, names of nodes, classes of errors and what is essential in their messages.

`records/torch.json` says what PyTorch does, so that spillgrad is compared everywhere; where PyTorch is installed (extra
`peers`), the record is compared with it too. PyTorch runs in a process of its own: two OpenMP runtimes in one disturb
each other. `SPILLGRAD_TORCH_PYTHON` may name the Python that has it.
"""

import re

import pytest

import spillgrad
from tests.peers import deviations, op_table, peer, record

STORED = record.stored("torch")
PROGRAMS = record.programs("torch")
METHODS = set(op_table.methods(STORED["names"]["Tensor"]))
# Of the derived rows, those whose method spillgrad has.
ROWS = [
    row
    for row in (name.removeprefix("op ") for name in STORED if name.startswith("op "))
    if row not in METHODS or hasattr(spillgrad.Tensor, re.findall(r"\.(\w+)\(", row)[-1])
]


@pytest.fixture(scope="session")
def torch_record(tmp_path_factory):
    return peer.run("torch", tmp_path_factory.mktemp("torch") / "record.json")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_sees_what_it_sees_under_pytorch(name):
    found = record.differing(STORED[name], record.run(PROGRAMS[name], spillgrad))
    deliberate = deviations.TORCH.get(name, {})
    assert found.keys() - deliberate.keys() == set(), {k: v for k, v in found.items() if k not in deliberate}
    assert deliberate.keys() - found.keys() == set(), "no longer differs: take it off the list"


@pytest.mark.parametrize("dtype", ("float64", "float32"))
@pytest.mark.parametrize("row", ROWS)
def test_an_operation_gives_pytorchs_values_and_gradients(row, dtype):
    wanted, tolerance = STORED[f"op {row}"], {"float64": 1e-9, "float32": 1e-4}[dtype]
    got = record.plain(op_table.outcome(row, spillgrad, dtype))
    deliberate = row in deviations.TORCH_OPERATIONS
    if dtype == "float32" and not deliberate:  # the record has the values in float64
        assert list(record.dtypes(got)) == wanted["float32 dtypes"]
    got = record.condensed(got)
    found = list(record.differences(wanted["float64"], got, tolerance, any_dtype=dtype == "float32"))
    assert not found or deliberate, found
    assert found or dtype == "float32" or not deliberate, "no longer differs: take it off the list"


@pytest.mark.parametrize("room", STORED["names"])
def test_every_operation_both_have_is_compared(room):
    ours = {"torch": spillgrad, "F": spillgrad.nn.functional, "Tensor": spillgrad.Tensor}[room]
    common = {n for n in STORED["names"][room] if callable(getattr(ours, n, None)) and not n[0].isupper()}
    called = "\n".join(ROWS)
    pattern = {"torch": r"\btorch\.(\w+)\(", "F": r"\bF\.(\w+)\(", "Tensor": r"(?<!\btorch)(?<!\bF)\.(\w+)\("}[room]
    compared = set(re.findall(pattern, called))
    if room == "Tensor":  # a method is the function of its name, or that function in place
        functions = set(re.findall(r"\btorch\.(\w+)\(", called))
        compared |= functions | {f"{name}_" for name in functions | compared}
    missing = common - compared - deviations.NOT_COMPARED.keys()
    assert missing == set(), "add rows to op_table that call these"


def test_the_record_is_what_pytorch_does(torch_record):
    assert torch_record.keys() == STORED.keys()
    wrong = {}
    for name in STORED.keys() - {"names"}:
        if lines := list(record.differences(STORED[name], torch_record[name])):
            wrong[name] = lines
    assert wrong == {}
    assert torch_record["names"] == STORED["names"]
