"""A Trainer of transformers trains as without the callback, and what the model saves goes to disk."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="`make test-peers` installs PyTorch")
pytest.importorskip("transformers", reason="`make test-peers` installs transformers")

os.environ["HF_HUB_OFFLINE"] = "1"

from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments  # noqa: E402
from transformers.trainer_callback import PrinterCallback  # noqa: E402

from spillgrad.errors import ArgumentError  # noqa: E402
from spillgrad.interop.torch import disk_offload_optimizer, save_on_disk  # noqa: E402
from spillgrad.interop.transformers import DiskOffloadCallback, SaveOnDiskCallback, load  # noqa: E402
from tests.interop.torch_models import all_same  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def data(count: int = 8) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, 100, (count, 32), generator=generator)
    return [{"input_ids": row, "labels": row} for row in tokens]


def gpt(width: int = 64) -> Any:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=width, n_head=4, vocab_size=100, n_positions=32))


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


@pytest.mark.parametrize("arguments", [ARGUMENTS[name] for name in ARGUMENTS if name != "compiled"])
def test_a_whole_training_on_disk_ends_with_the_same_weights(
    arguments: dict[str, Any], tmp_path: Path, directory: Path
):
    plain = trainer(tmp_path, model=gpt(192), **arguments)
    plain.train()
    for in_backward in (False, True):
        callback = DiskOffloadCallback(directory, ram_budget="3MiB", step_in_backward=in_backward)
        offloaded = trainer(tmp_path, [callback], model=gpt(192), **arguments)
        if in_backward and "gradient_accumulation_steps" in arguments:
            with pytest.raises(ArgumentError, match="got step_in_backward=True and gradient_accumulation_steps=2"):
                offloaded.train()
            continue
        offloaded.train()
        assert callback.offload is not None
        assert callback.offload.stats().peak_ram_bytes <= 3 << 20
        assert all_same(weights(offloaded), weights(plain))


def test_a_killed_training_on_disk_is_resumed(tmp_path: Path, directory: Path):
    plain = trainer(tmp_path, model=gpt(192), max_steps=4)
    plain.train()
    program = textwrap.dedent("""
        import os, signal, sys
        from pathlib import Path
        from tests.interop.test_transformers import DiskOffloadCallback, gpt, trainer

        class Killing(DiskOffloadCallback):
            def on_step_end(self, args, state, control, **kwargs):
                if state.global_step == 3:
                    os.kill(os.getpid(), signal.SIGKILL)

        callback = Killing(sys.argv[2], ram_budget="3MiB", step_in_backward=True)
        trainer(Path(sys.argv[1]), [callback], model=gpt(192), max_steps=4, save_strategy="steps", save_steps=2).train()
    """)
    killed = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "run"), str(directory)], capture_output=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    callback = DiskOffloadCallback(directory, ram_budget="3MiB", step_in_backward=True)
    resumed = trainer(tmp_path / "run", [callback], model=gpt(192), max_steps=4)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 4
    assert all_same(weights(resumed), weights(plain))


def test_a_model_is_loaded_to_disk_trained_and_saved(tmp_path: Path, directory: Path):
    gpt(192).save_pretrained(tmp_path / "model", max_shard_size="1MB")
    plain = GPT2LMHeadModel.from_pretrained(tmp_path / "model")

    def make(parameters: Any) -> Any:
        return torch.optim.AdamW(parameters, lr=1e-3)

    offload = load(tmp_path / "model", make, directory, ram_budget="3MiB")
    assert type(offload.model) is GPT2LMHeadModel
    assert offload.stats().peak_ram_bytes <= 3 << 20
    assert all_same(list(offload.model.parameters()), list(plain.parameters()))
    trainer(tmp_path, (), make(plain.parameters()), plain).train()
    trainer(tmp_path, [SaveOnDiskCallback(offload)], offload.optimizer, offload.model).train()
    assert all_same(list(offload.model.parameters()), list(plain.parameters()))
    offload.model.save_pretrained(tmp_path / "trained")
    again = GPT2LMHeadModel.from_pretrained(tmp_path / "trained")
    assert all_same(list(again.parameters()), list(plain.parameters()))
    tokens = torch.tensor([[1, 2, 3]])
    offload.model.eval()
    assert torch.equal(
        offload.model.generate(tokens, max_new_tokens=5, do_sample=False),
        again.generate(tokens, max_new_tokens=5, do_sample=False),
    )


def test_the_state_of_a_loaded_model_s_optimizer_has_fewer_bits(tmp_path: Path, directory: Path):
    gpt(192).save_pretrained(tmp_path / "model")
    offload = load(tmp_path / "model", torch.optim.AdamW, directory, ram_budget="3MiB", state="int8")
    trainer(tmp_path, [SaveOnDiskCallback(offload)], offload.optimizer, offload.model).train()
    formats = {name: offload.optimizer.state_formats()[each] for name, each in offload.model.named_parameters()}
    assert formats["transformer.h.0.mlp.c_fc.weight"] == "int8"
    assert formats["transformer.wte.weight"] == formats["transformer.h.0.mlp.c_fc.bias"] == "float32"


def test_a_folder_without_a_model_is_refused(tmp_path: Path):
    with pytest.raises(ArgumentError, match=r"load: got '.*none'; wanted a folder that save_pretrained wrote"):
        load(tmp_path / "none", ram_budget="1GiB")


def test_adapters_of_peft_train_over_a_base_on_disk(tmp_path: Path, directory: Path):
    peft = pytest.importorskip("peft", reason="`make test-peers` installs peft")
    gpt(192).save_pretrained(tmp_path / "model")

    def adapted(model: Any) -> Any:
        torch.manual_seed(5)
        return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))

    plain = trainer(tmp_path, model=adapted(GPT2LMHeadModel.from_pretrained(tmp_path / "model")))
    plain.train()
    offload = load(tmp_path / "model", None, directory, ram_budget="2MiB")
    tuned = trainer(tmp_path, [SaveOnDiskCallback(offload)], model=adapted(offload.model))
    tuned.train()
    assert offload.stats().peak_ram_bytes <= 2 << 20
    assert all_same(weights(tuned), weights(plain))


def test_a_loop_of_accelerate_works(directory: Path):
    from accelerate import Accelerator

    from spillgrad.interop.torch import disk_offload

    def trained(place: Path | None) -> list[Any]:
        model = gpt(192)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        if place is not None:
            disk_offload(model, optimizer, place, ram_budget="3MiB")
        accelerator = Accelerator(cpu=True)
        loader = torch.utils.data.DataLoader(data(), batch_size=2)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        return [parameter.detach().clone() for parameter in model.parameters()]

    assert all_same(trained(directory), trained(None))
