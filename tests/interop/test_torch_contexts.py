"""The context around PyTorch's forward: how long things live, and what is refused."""

import copy
import gc
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="`make test-peers` installs PyTorch")

from torch.autograd.graph import saved_tensors_hooks  # noqa: E402

from spillgrad.errors import ArgumentError, BudgetError, OperandError, SpillError  # noqa: E402
from spillgrad.interop.torch import save_on_disk  # noqa: E402
from tests.interop.torch_models import (  # noqa: E402
    LARGE,
    NBYTES,
    batch,
    bits,
    weight,
)
from tests.storage.test_disk_store import in_own_mounts  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

# The hooks, contexts and lifetimes


def test_the_pair_works_in_other_contexts_and_on_nodes(directory: Path):
    spill, x, w = save_on_disk(directory, ram_budget=0), batch(), weight()
    with saved_tensors_hooks(spill.pack_hook, spill.unpack_hook):
        loss = w.exp().sum()
    assert spill.stats().live_bytes == NBYTES
    loss.backward()
    assert torch.equal(w.grad, w.detach().exp())
    product = x * w
    w.grad, wanted = None, x.clone()
    product.grad_fn._raw_saved_self.register_hooks(spill.pack_hook, spill.unpack_hook)
    assert spill.stats().live_bytes == NBYTES
    del x
    product.sum().backward()
    assert torch.equal(w.grad, wanted)


def test_the_innermost_pair_applies_and_contexts_nest(directory: Path):
    inner, outer = (save_on_disk(directory, ram_budget=0) for _ in range(2))
    w, v = weight(), weight()
    with torch.no_grad():
        w.clamp_(-2, 2)  # exp(exp(w)) of more than 4.48 is infinite, and its sine NaN
    with outer as same:
        assert same is outer
        first = w.exp()
        with inner:
            second = first.exp()
            with torch.autograd.graph.save_on_cpu():
                third = second.sin()
            with inner, outer:
                fourth = third.exp()
        fifth = fourth.exp()
    assert (outer.stats().live_bytes, inner.stats().live_bytes) == (3 * NBYTES, NBYTES)
    fifth.sum().backward()
    with torch.no_grad():
        v.copy_(w)
    v.exp().exp().sin().exp().exp().sum().backward()
    assert torch.equal(w.grad, v.grad)
    disabled = torch.autograd.graph.disable_saved_tensors_hooks("not here")
    with disabled, pytest.raises(RuntimeError, match="not here"), inner:
        pass


def test_files_and_bytes_go_with_the_graph(directory: Path):
    for work in ("forward", "backward", "an error in forward", "an error in backward"):
        spill, w = save_on_disk(directory, ram_budget=NBYTES), weight()
        place = spill.directory
        graph = None
        try:
            with spill:
                graph = w.exp().exp().exp().sum()
                assert spill.stats().live_bytes == 3 * NBYTES
                if work == "an error in forward":
                    graph = None
                    w.exp() @ torch.zeros(7, 7)
            if work == "an error in backward":
                w.register_hook(lambda grad: 1 / 0)
            if work != "forward":
                graph.backward()
        except (RuntimeError, ZeroDivisionError):
            graph = None
        if work == "backward":
            assert spill.stats().live_bytes == 0
        if work == "forward":
            del spill
            gc.collect()
            assert list(place.glob("*.h5"))
        spill = graph = None
        wait_until(lambda place=place: not place.exists())


def test_a_fresh_object_for_each_step_leaves_nothing_behind(directory: Path):
    w = weight()
    for step in range(20):
        with save_on_disk(directory, ram_budget=0 if step % 2 else LARGE):
            loss = (w.exp().sin() * w.exp()).sum()
        loss.backward()
    del loss
    wait_until(lambda: list(directory.iterdir()) == [])


def test_spilled_memory_is_free_between_forward_and_backward(directory: Path):
    spill, w = save_on_disk(directory, ram_budget=0), weight()
    with spill:
        hidden = w.exp()
        storage = torch.multiprocessing.reductions.StorageWeakRef(hidden.untyped_storage())
        loss = hidden.sum()
    del hidden
    assert storage.expired()
    assert spill.stats().ram_bytes == 0
    loss.backward()


def test_the_budget_holds_but_for_what_one_derivative_needs(directory: Path):
    for budget in (0, 3 * NBYTES):
        spill, w = save_on_disk(directory, ram_budget=budget), weight()
        for _ in range(3):
            with spill:
                x = w * 1
                for _ in range(12):
                    x = (x + 1) * (x - 1)
                    x = x.tanh()
            assert spill.stats().ram_bytes <= budget
            x.sum().backward()
            del x
        assert 2 * NBYTES <= spill.stats().peak_ram_bytes <= budget + 2 * NBYTES


@pytest.mark.parametrize("codec", ["bf16", "int8"])
def test_lossy_codecs_round_floats_and_leave_other_dtypes(directory: Path, codec: str):
    spill = save_on_disk(directory, ram_budget=0, codec=codec)
    floats = torch.randn(300, 100)
    packed = [spill.pack_hook(floats), spill.pack_hook(floats.view(torch.int32))]
    wanted = floats.clone()
    del floats
    got, exact = (spill.unpack_hook(each) for each in packed)
    assert 0 < (got - wanted).abs().max() <= 0.02 * wanted.abs().max()
    assert torch.equal(exact, wanted.view(torch.int32))


@pytest.mark.parametrize("codec", [None, "lossless", "bf16", "int8"])
@pytest.mark.parametrize("exact", [False, True])
def test_what_lossy_contexts_gave_back_is_not_the_same_to_another(directory: Path, codec: str | None, exact: bool):
    codecs = ["bf16", "int8", None] if exact else ["int8", "bf16"]
    spills = [save_on_disk(directory, ram_budget=0, codec=name) for name in codecs]
    other = save_on_disk(directory, ram_budget=LARGE, codec=codec)
    x = torch.randn(300, 100)
    kept = [spill.pack_hook(x) for spill in spills]
    del x
    copies = [spill.unpack_hook(each) for spill, each in zip(spills, kept, strict=True)]
    wanted = [bits(copy) for copy in copies]
    assert len(set(wanted)) == len(spills)
    packed = [other.pack_hook(copy) for copy in copies]
    assert [bits(other.unpack_hook(each)) for each in packed] == wanted


def test_copies_that_were_changed_are_not_the_same_to_another_context(directory: Path):
    spills = [save_on_disk(directory, ram_budget=0) for _ in range(2)]
    other = save_on_disk(directory, ram_budget=LARGE)
    x = torch.randn(300, 100)
    kept = [spill.pack_hook(x) for spill in spills]
    del x
    copies = [spill.unpack_hook(each) for spill, each in zip(spills, kept, strict=True)]
    copies[0].add_(1)
    copies[1].mul_(2)
    wanted = [bits(copy) for copy in copies]
    packed = [other.pack_hook(copy) for copy in copies]
    assert [bits(other.unpack_hook(each)) for each in packed] == wanted


def test_a_copy_is_an_integer_view_too_in_a_lossy_context(directory: Path):
    exact, lossy = save_on_disk(directory, ram_budget=0), save_on_disk(directory, ram_budget=0, codec="bf16")
    kept = exact.pack_hook(torch.randn(300, 100))
    copy = exact.unpack_hook(kept)
    wanted = bits(copy)
    packed = [lossy.pack_hook(copy), lossy.pack_hook(copy.view(torch.int32))]
    del copy
    floats, integers = (lossy.unpack_hook(each) for each in packed)
    assert bits(floats) != wanted
    assert bits(integers) == wanted


@pytest.mark.parametrize("codec", [None, "lossless", "bf16"])
def test_what_a_context_gave_back_is_not_stored_again_there(directory: Path, codec: str | None):
    spill = save_on_disk(directory, ram_budget=0, codec=codec)
    kept = spill.pack_hook(torch.randn(300, 100))
    got = spill.unpack_hook(kept)
    again = spill.pack_hook(got[3:])
    assert spill.stats().live_bytes == 300 * 100 * 4
    assert bits(spill.unpack_hook(again)) == bits(got[3:])


def test_encrypted_files_come_back(directory: Path):
    spill, w = save_on_disk(directory, ram_budget=0, encrypt=True), weight()
    with spill:
        loss = w.exp().sum()
    loss.backward()
    assert torch.equal(w.grad, w.detach().exp())


# Bad input, and disks that refuse


def test_bad_input_is_refused_in_one_line(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for place, options, error, message in (
        (tmp_path, {"ram_budget": "lots"}, BudgetError, r"got 'lots'; wanted .*64MiB"),
        (tmp_path, {"ram_budget": 0, "min_bytes": "few"}, BudgetError, "got 'few'"),
        (tmp_path, {}, ArgumentError, "got no ram_budget; give bytes.*disk_offload_optimizer returned"),
        (tmp_path, {"ram_budget": 0, "codec": "zip"}, ArgumentError, "zip"),
        (tmp_path, {"ram_budget": 0, "on_full": "wait"}, ArgumentError, "on_full='wait'"),
        (tmp_path / "file", {"ram_budget": 0}, SpillError, "cannot use .*file.*pass a directory"),
    ):
        with pytest.raises(error, match=message) as caught:
            save_on_disk(place, **options)
        assert "\n" not in str(caught.value)


def test_the_object_is_neither_copied_nor_pickled(directory: Path):
    spill = save_on_disk(directory, ram_budget=0)
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(OperandError, match="cannot be copied or pickled"):
            make(spill)


# PyTorch 2.6 leaves a temporary directory of its own to the end of the process.
WARNINGS = ("-W", "error", "-W", "ignore:Implicitly cleaning up <TemporaryDirectory:ResourceWarning")


def script(text: str, *arguments: object, wrapped: tuple[str, ...] = ()) -> str:
    """Return what a program prints."""
    ran = subprocess.run(
        [*wrapped, sys.executable, *WARNINGS, "-c", textwrap.dedent(text), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def test_a_full_disk_raises_in_forward_and_later_steps_run(directory: Path):
    directory.mkdir()
    out = script(
        """
        import sys, torch
        from spillgrad.errors import SpillError
        from spillgrad.interop.torch import save_on_disk

        w = torch.ones(100, 100, requires_grad=True)
        spill = save_on_disk(sys.argv[1], ram_budget=100_000)
        for length in (5, 500, 5):
            x, w.grad = w * 1, None
            try:
                with spill:
                    for _ in range(length):
                        x = x.sin()
                x.sum().backward()
            except SpillError as error:
                print(length, "could not write" in str(error), error.__class__.__name__)
            else:
                print(length, w.grad.sum().item() > 0)
            del x
        """,
        directory,
        wrapped=in_own_mounts(directory, 4000),
    )
    assert out.splitlines() == ["5 True", "500 True SpillError", "5 True"]


def test_a_disk_that_is_full_in_an_optimizers_step_loses_no_state(directory: Path):
    directory.mkdir()
    out = script(
        """
        import pathlib, sys, torch
        from spillgrad.errors import SpillError
        from spillgrad.interop.torch import disk_offload_optimizer

        other = pathlib.Path(sys.argv[1]) / "other"
        other.write_bytes(bytes(9_000_000))

        def update(make):
            torch.manual_seed(0)
            params = [torch.nn.Parameter(torch.randn(300, 300)) for _ in range(8)]
            optimizer = make(torch.optim.Adam(params))
            for step in range(3):
                for param in params:
                    param.grad = torch.randn(300, 300)
                try:
                    optimizer.step()
                except SpillError as error:
                    refused.append(str(error))
                    other.unlink(missing_ok=True)
            return params, optimizer.state_dict()["state"]

        refused = []
        wanted, wanted_state = update(lambda optimizer: optimizer)
        assert not refused
        got, state = update(lambda optimizer: disk_offload_optimizer(optimizer, sys.argv[1], ram_budget=100_000))
        assert "could not write" in refused[0], refused
        for number, entry in state.items():
            count = int(entry["step"])  # a step ends where the disk refuses
            if count == 3:
                assert torch.equal(got[number], wanted[number]), number
                assert torch.equal(entry["exp_avg"], wanted_state[number]["exp_avg"]), number
            print(count, end=" ")
        """,
        directory,
        wrapped=in_own_mounts(directory, 12000),
    )
    counts = [int(count) for count in out.split()]
    assert (len(counts), max(counts)) == (8, 3)


@pytest.mark.parametrize("end", ["pass", "sys.exit(0)"])
def test_files_vanish_at_process_exit(directory: Path, end: str):
    out = script(
        """
        import sys, torch
        from spillgrad.interop.torch import save_on_disk, disk_offload_optimizer
        model = torch.nn.Linear(100, 100)
        optimizer = disk_offload_optimizer(torch.optim.Adam(model.parameters()), sys.argv[1], ram_budget=0)
        with save_on_disk(sys.argv[1], ram_budget=0) as spill:
            model(torch.ones(100, 100).exp()).sum().backward()
            optimizer.step()
            y = model(torch.ones(100, 100)).exp()
            print(*(len(list(each.directory.glob("*.h5"))) for each in (spill, optimizer)))
            exec(sys.argv[2])
        """,
        directory,
        end,
    )
    assert out == "1 1\n"
    assert list(directory.iterdir()) == []
