"""PyTorch's saved tensors in the store: gradients are those without it, bit for bit, whatever is saved and however."""

import copy
import gc
import json
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="`make test-peers` installs PyTorch")

from torch.autograd.graph import saved_tensors_hooks  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from spillgrad.errors import ArgumentError, BudgetError, OperandError, SavedTensorError, SpillError  # noqa: E402
from spillgrad.interop.torch import save_on_disk  # noqa: E402
from spillgrad.interop.torch.saved_tensors import Kept, Spilled  # noqa: E402
from spillgrad.storage import inspect, inspect_segment, verify  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

SHAPE = (80, 60)
NBYTES = 80 * 60 * 4
LARGE = "1GiB"
BUDGETS = (0, 3 * NBYTES, LARGE)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory in which nothing may be left once the test's objects are gone."""
    place = tmp_path / "spill"
    yield place
    wait_until(lambda: [name for _, _, names in os.walk(place) for name in names] == [])


def batch() -> Any:
    return torch.randn(SHAPE)


def weight() -> Any:
    return torch.randn(SHAPE, requires_grad=True)


def about(tensor: Any) -> tuple[Any, ...]:
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg()


def bits(tensor: Any) -> bytes:
    """Return the elements of a tensor in order, as bytes."""
    tensor = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return bytes(tensor.untyped_storage())


# What comes back

BYTE_DTYPES = ["bool", "uint8", "int8", "float8_e4m3fn", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]
WIDE_DTYPES = ["uint16", "uint32", "uint64", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
COMPLEX_DTYPES = ["complex32", "complex64", "complex128"]


def of_dtype(name: str) -> Any:
    if name == "bool":
        return torch.rand(100, 7) > 0.5
    return torch.randint(0, 100, (100, 16), dtype=torch.uint8).view(getattr(torch, name))


KINDS: dict[str, Callable[[], Any]] = {
    **{name: lambda name=name: of_dtype(name) for name in (*BYTE_DTYPES, *WIDE_DTYPES, *COMPLEX_DTYPES)},
    "0-d": lambda: torch.tensor(3.5),
    "no elements": lambda: torch.zeros(0, 3),
    "no elements of many": lambda: batch()[80:],
    "a slice": lambda: batch()[3:77],
    "a small slice": lambda: batch()[3:5],
    "an element": lambda: batch()[3, 5],
    "every third column": lambda: batch()[:, 1::3],
    "transposed": lambda: batch().t(),
    "permuted": lambda: torch.randn(4, 5, 6).permute(2, 0, 1),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "bfloat16, transposed slice": lambda: batch().to(torch.bfloat16)[5:, ::2].t(),
    "expanded": lambda: batch().expand(5, *SHAPE),
    "an expanded column": lambda: batch()[:, 2:3].expand(80, 7),
    "an expanded number": lambda: torch.tensor(2.0).expand(9, 1, 9),
    "overlapping": lambda: batch().as_strided((70, 60), (7, 1), 3),
    "conjugate": lambda: torch.randn(SHAPE, dtype=torch.complex64).t().conj(),
    "negative": lambda: torch.randn(SHAPE, dtype=torch.complex64).conj().imag,
    "real part": lambda: torch.randn(SHAPE, dtype=torch.complex64).real,
    "as other dtype": lambda: batch().view(torch.int16)[:, 3:],
    "unaligned": lambda: torch.frombuffer(bytearray(9001), dtype=torch.float32, offset=1, count=2000),
    "odd bytes": lambda: torch.frombuffer(bytearray(9001), dtype=torch.uint8)[1:-1],
}


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_of_any_kind_comes_back_exactly(directory: Path, kind: str):
    for budget, codec in [(0, None), (0, "lossless"), (LARGE, None)]:
        spill = save_on_disk(directory, ram_budget=budget, min_bytes=0, codec=codec)
        tensor = KINDS[kind]()
        lies, wanted, has_elements = about(tensor), bits(tensor), tensor.numel() > 0
        packed = spill.pack_hook(tensor)
        assert isinstance(packed, Spilled) == has_elements
        del tensor
        for _ in range(2):
            got = spill.unpack_hook(packed)
            assert about(got) == lies
            assert bits(got) == wanted
            del got
        assert (spill.stats().read_bytes > 0) == (budget == 0 and has_elements)
        del packed


@pytest.mark.parametrize("name", ["bool", "uint16", "float8_e5m2", "bfloat16", "float32", "complex64"])
def test_files_and_journal_say_shape_dtype_and_views(directory: Path, name: str):
    journal = directory.parent / "run.jsonl"
    spill = save_on_disk(directory, ram_budget=LARGE, min_bytes=0, keep_journal=journal)
    tensor = of_dtype(name)
    packed = [spill.pack_hook(view) for view in (tensor, tensor[1:].t())]
    spill.flush()
    (segment,) = spill.directory.glob("*.h5")
    (array,) = inspect_segment(segment).arrays
    assert (array.dtype.name, array.shape) == (name, tuple(tensor.shape))
    assert [(view.dtype, view.shape) for view in array.views] == [(name, tuple(t.shape)) for t in (tensor, tensor[1:].t())]
    assert not verify(spill.directory).problems
    (run,) = inspect(journal).runs
    assert [group.name for group in run.by("dtype")] == [name]
    del packed
