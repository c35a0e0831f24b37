"""A Trainer of Lightning trains as without the callback, and what steps save goes to disk."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="`make test-peers` installs PyTorch")
pytest.importorskip("lightning", reason="`make test-peers` installs Lightning")

import lightning  # noqa: E402

from spillgrad.errors import ArgumentError  # noqa: E402
from spillgrad.interop.lightning import DiskOffloadCallback, SaveOnDiskCallback  # noqa: E402
from spillgrad.interop.torch import disk_offload_optimizer  # noqa: E402
from tests.interop.torch_models import all_same, transformer  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice about loaders, loggers and devices


class Module(lightning.LightningModule):
    def __init__(self, directory: Path | None = None, fails_at: int | None = None, skips: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = transformer()
        self.directory, self.fails_at, self.skips = directory, fails_at, skips

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if self.skips and batch_idx == 2 else None

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == self.fails_at:
            raise ZeroDivisionError
        return torch.nn.functional.cross_entropy(self.model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        if self.directory is not None:
            return disk_offload_optimizer(optimizer, self.directory, ram_budget="64KiB")
        return optimizer


def trained(module: Module, callbacks: Any = (), folder: Path | None = None, **options: Any) -> Module:
    generator = torch.Generator().manual_seed(3)
    loader = torch.utils.data.DataLoader(torch.randint(0, 100, (8, 17), generator=generator), batch_size=2)
    checkpoint = options.pop("checkpoint", None)
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=options.pop("max_epochs", 1), logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, callbacks=list(callbacks), default_root_dir=folder,
        **options,
    )  # fmt: skip
    trainer.fit(module, loader, ckpt_path=checkpoint)
    if folder is not None:
        trainer.save_checkpoint(folder / "checkpoint.ckpt")
    return module


def weights(module: Module) -> list[Any]:
    return [parameter.detach() for parameter in module.parameters()]


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {}, "accumulating": {"accumulate_grad_batches": 2}, "bfloat16": {"precision": "bf16-mixed"},
    "clipping": {"gradient_clip_val": 0.1},
}  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_training_ends_with_the_same_weights(options: dict[str, Any], directory: Path):
    callback = SaveOnDiskCallback(directory, ram_budget="64KiB")
    spilled = trained(Module(), [callback], **options)
    assert all_same(weights(spilled), weights(trained(Module(), **options)))
    assert callback.spill.stats().written_bytes > 0
    assert callback.spill.stats().live_bytes == 0


def test_an_offloaded_optimizer_goes_on_from_a_checkpoint(tmp_path: Path, directory: Path):
    callbacks = [SaveOnDiskCallback(directory, ram_budget="64KiB")]
    trained(Module(directory), callbacks, tmp_path)
    again = trained(Module(directory), callbacks, checkpoint=tmp_path / "checkpoint.ckpt", max_epochs=2)
    assert all_same(weights(again), weights(trained(Module(), max_epochs=2)))
    assert again.optimizers().optimizer.stats().live_bytes > 0


@pytest.mark.parametrize("fails", [False, True], ids=["a skipped batch", "an error"])
def test_afterwards_nothing_is_spilled(fails: bool, directory: Path):
    callback = SaveOnDiskCallback(directory, ram_budget="64KiB")
    if fails:
        with pytest.raises(ZeroDivisionError):
            trained(Module(fails_at=1), [callback])
    else:
        trained(Module(skips=True), [callback])
    before = callback.spill.stats().packed_bytes
    assert before > 0
    (torch.randn(100, 100, requires_grad=True) * torch.randn(100, 100)).sum().backward()
    assert callback.spill.stats().packed_bytes == before


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_whole_training_on_disk_ends_with_the_same_weights(options: dict[str, Any], directory: Path):
    callback = DiskOffloadCallback(directory, ram_budget="512KiB")
    offloaded = trained(Module(), [callback], **options)
    assert callback.offload is not None
    assert callback.offload.stats().peak_ram_bytes <= 512 << 10
    assert all_same(weights(offloaded), weights(trained(Module(), **options)))


def test_a_whole_training_on_disk_goes_on_from_a_checkpoint(tmp_path: Path, directory: Path):
    for in_backward in (False, True):
        options: dict[str, Any] = {"ram_budget": "512KiB", "step_in_backward": in_backward}
        trained(Module(), [DiskOffloadCallback(directory, **options)], tmp_path)
        callback = DiskOffloadCallback(directory, **options)
        again = trained(Module(), [callback], checkpoint=tmp_path / "checkpoint.ckpt", max_epochs=2)
        assert all_same(weights(again), weights(trained(Module(), max_epochs=2)))


class Killed(lightning.Callback):
    """Saves a checkpoint after the first epoch, and ends the process in the second.

    Within an epoch, Lightning itself goes on with the first batches of the loader.
    """

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        trainer.save_checkpoint(os.path.join(trainer.default_root_dir, "first.ckpt"))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.current_epoch == 1 and batch_idx == 2:
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_training_on_disk_is_resumed(tmp_path: Path, directory: Path):
    program = textwrap.dedent("""
        import sys
        from pathlib import Path
        from tests.interop.test_lightning import DiskOffloadCallback, Killed, Module, trained

        callback = DiskOffloadCallback(sys.argv[2], ram_budget="512KiB", step_in_backward=True)
        trained(Module(), [Killed(), callback], Path(sys.argv[1]), max_epochs=2)
    """)
    killed = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), str(directory)], capture_output=True, timeout=300, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    callback = DiskOffloadCallback(directory, ram_budget="512KiB", step_in_backward=True)
    resumed = trained(Module(), [callback], checkpoint=tmp_path / "first.ckpt", max_epochs=2)
    assert all_same(weights(resumed), weights(trained(Module(), max_epochs=2)))


def test_a_step_in_backward_excludes_what_needs_the_gradients_later(directory: Path):
    for name, options in (
        ("accumulate_grad_batches=2", OPTIONS["accumulating"]),
        ("gradient_clip_val=0.1", OPTIONS["clipping"]),
    ):
        callback = DiskOffloadCallback(directory, ram_budget="512KiB", step_in_backward=True)
        with pytest.raises(ArgumentError, match=f"got step_in_backward=True and the Trainer's {name}"):
            trained(Module(), [callback], **options)
