"""A Trainer of transformers trains as without the callback, and what the model saves goes to disk."""

import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="`make test-peers` installs PyTorch")
pytest.importorskip("transformers", reason="`make test-peers` installs transformers")

os.environ["HF_HUB_OFFLINE"] = "1"

from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments  # noqa: E402
from transformers.trainer_callback import PrinterCallback  # noqa: E402

from spillgrad.interop.torch import disk_offload_optimizer, save_on_disk  # noqa: E402
from spillgrad.interop.transformers import SaveOnDiskCallback  # noqa: E402
from tests.interop.torch_models import all_same  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def data(count: int = 8) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, 100, (count, 32), generator=generator)
    return [{"input_ids": row, "labels": row} for row in tokens]


def gpt() -> Any:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=100, n_positions=32))


def trainer(
    folder: Path, callbacks: Any = (), optimizer: Any = None, model: Any = None, max_steps: int = 3, **arguments: Any
) -> Any:
    made = Trainer(
        model or gpt(),
        TrainingArguments(
            str(folder), max_steps=max_steps, per_device_train_batch_size=2, report_to=[], disable_tqdm=True,
            use_cpu=True, seed=1, **{"save_strategy": "no", **arguments},
        ),
        train_dataset=data(),
        callbacks=list(callbacks),
        optimizers=(optimizer, None),
    )  # fmt: skip
    made.remove_callback(PrinterCallback)
    return made


def weights(made: Any) -> list[Any]:
    return [parameter.detach() for parameter in made.model.parameters()]


ARGUMENTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulating": {"gradient_accumulation_steps": 2},
    "checkpointing": {"gradient_checkpointing": True},
    "bfloat16": {"bf16": True},
    "smoothing": {"label_smoothing_factor": 0.1},
    "compiled": {"torch_compile": True, "torch_compile_backend": "aot_eager"},
}


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_training_ends_with_the_same_weights(arguments: dict[str, Any], tmp_path: Path, directory: Path):
    plain = trainer(tmp_path, **arguments)
    plain.train()
    callback = SaveOnDiskCallback(directory, ram_budget="64KiB")
    spilled = trainer(tmp_path, [callback], **arguments)
    spilled.train()
    assert all_same(weights(spilled), weights(plain))
    assert callback.spill.stats().written_bytes > 0
    assert callback.spill.stats().live_bytes == 0


def test_an_offloaded_optimizer_shares_its_store_and_goes_on_from_a_checkpoint(tmp_path: Path, directory: Path):
    model = gpt()
    plain = trainer(
        tmp_path, (), torch.optim.AdamW(model.parameters()), model, max_steps=4, lr_scheduler_type="constant"
    )
    plain.train()

    def offloaded(max_steps: int) -> tuple[Any, Any]:
        model = gpt()
        optimizer = disk_offload_optimizer(torch.optim.AdamW(model.parameters()), directory, ram_budget="64KiB")
        made = trainer(
            tmp_path / "run", [SaveOnDiskCallback(optimizer)], optimizer, model, max_steps,
            lr_scheduler_type="constant", save_strategy="steps", save_steps=2,
        )  # fmt: skip
        return made, optimizer

    first, optimizer = offloaded(2)
    first.train()
    assert optimizer.stats().live_bytes > 0
    second, optimizer = offloaded(4)
    second.train(resume_from_checkpoint=True)
    assert second.state.global_step == 4
    assert all_same(weights(second), weights(plain))


def test_an_error_leaves_the_context_and_training_can_begin_anew(tmp_path: Path, directory: Path):
    plain = trainer(tmp_path)
    plain.train()
    callback = SaveOnDiskCallback(directory, ram_budget="64KiB")
    spilled = trainer(tmp_path, [callback])
    broken = spilled.model.transformer.h[1].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        spilled.train()
    before = callback.spill.stats().packed_bytes
    (torch.randn(100, 100, requires_grad=True) * torch.randn(100, 100)).sum().backward()
    assert callback.spill.stats().packed_bytes == before
    broken.remove()
    spilled.model.load_state_dict(gpt().state_dict())
    again = trainer(tmp_path, [callback], model=spilled.model)
    again.train()
    assert all_same(weights(again), weights(plain))
    assert not again.model._forward_hooks
    assert not again.model._forward_pre_hooks


def test_the_context_around_training_spills_a_loss_outside_the_model_too(tmp_path: Path, directory: Path):
    smoothing = ARGUMENTS["smoothing"]
    callback = SaveOnDiskCallback(directory, ram_budget="64KiB")
    trainer(tmp_path, [callback], **smoothing).train()
    with save_on_disk(directory, ram_budget="64KiB") as spill:
        around = trainer(tmp_path, **smoothing)
        around.train()
    assert spill.stats().packed_bytes > callback.spill.stats().packed_bytes
    plain = trainer(tmp_path, **smoothing)
    plain.train()
    assert all_same(weights(around), weights(plain))


def test_evaluation_saves_nothing(tmp_path: Path, directory: Path):
    callback = SaveOnDiskCallback(directory, ram_budget="64KiB")
    made = trainer(tmp_path, [callback])
    made.train()
    before = callback.spill.stats().packed_bytes
    assert made.evaluate(data())["eval_loss"] > 0
    assert callback.spill.stats().packed_bytes == before
