"""The options of `spillgrad train` and `spillgrad plan`; this module imports nothing heavy: `--help` is quick."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Option

from spillgrad_tools.options import Batch, Context, Disk, Json, named_path

DEFAULT_RAM_BUDGET = "64MiB"
# What a switch and two machines of a local network take.
DEFAULT_LATENCY = "50us"
MODEL_HELP = "Size of the model: tiny, small, gpt2, gpt2-xl, ..."
Wire = Annotated[Literal["float32", "bfloat16", "int8"], Option(
    help="Format in which gradients travel to the other processes; one process rounds likewise.",
)]  # fmt: skip
StateFormat = Literal["float32", "bf16", "int8"]
_STATE_HELP = (
    "Format of the optimizer's state: exact, or in fewer bits. Small and sensitive parameters keep exact state."
)
Master = Literal["whole", "split", "none"]
_MASTER_HELP = (
    "With --autocast, weights are stored as float32; with --offload, in two halves, of which products read one, to the "
    "same numbers; or as bfloat16 alone, rounded at random: half of everything."
)
Shard = Annotated[Literal["state", "all"], Option(
    help="With --offload in several processes: each has a part of gradients and optimizer state, or of parameters, "
    "too, which need less disk and more network then.",
)]  # fmt: skip
LOSSY_HELP = (
    "The plan may keep optimizer state in 8 bits, and weights as bfloat16 alone with --autocast, where this is quicker "
    "or nothing else fits; it says what that costs in accuracy."
)
Rank = Annotated[int | None, Option(
    min=1, metavar="RANK", help="Train adapters of this rank beside frozen weights.", show_default="train the weights",
)]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """The settings that, together with the data, decide every number of a run; a checkpoint holds them.

    `eval_every` and `patience` decide only what is evaluated, and when the run ends.
    """

    model: Annotated[str, Option(metavar="NAME", help=MODEL_HELP)] = "small"
    weights: Annotated[str | None, Option(
        metavar="PATH", help="Begin with the weights in this safetensors file, or folder as Hugging Face's.",
        show_default="drawn",
    )] = None  # fmt: skip
    """The config file beside the weights gives the model's sizes."""
    steps: Annotated[int, Option(min=1, metavar="N", help="Optimizer steps.")] = 240
    batch: Annotated[int, Option(min=1, metavar="N", help="Sequences in a batch.")] = 16
    context: Annotated[int, Option(
        min=1, metavar="N", help="Tokens in a sequence, or bytes without a tokenizer; at most a published model's.",
    )] = 256  # fmt: skip
    tokenizer: Annotated[str | None, Option(
        metavar="PATH", help="Folder of a tokenizer as Hugging Face's, or its tokenizer.json.",
        show_default="that of --weights; else bytes",
    )] = None  # fmt: skip
    packed: Annotated[bool, Option(
        "--packed/--no-packed", help="Whether a row has several documents, none of which sees another.",
        show_default="packed",
    )] = True  # fmt: skip
    lr: Annotated[float | None, Option(
        min=0, metavar="X", help="Highest learning rate.", show_default="0.002, less for wide models",
    )] = None  # fmt: skip
    """If None, the model's width decides."""
    schedule: Annotated[Literal["cosine", "linear", "constant"], Option(
        help="How the learning rate falls after the warm-up.",
    )] = "cosine"  # fmt: skip
    warmup: Annotated[float, Option(
        min=0, metavar="N", help="Steps in which the learning rate rises; below 1, their share of all steps.",
    )] = 0.1  # fmt: skip
    final_lr_share: Annotated[float, Option(
        min=0, max=1, metavar="X", help="Last learning rate, as a share of --lr.",
    )] = 0.1  # fmt: skip
    weight_decay: Annotated[float, Option(min=0, metavar="X", help="Weight decay of AdamW.")] = 0.1
    clip: Annotated[float, Option(
        min=0, metavar="X", help="Largest norm of the gradients, which are scaled down to it; 0 scales none.",
    )] = 1.0  # fmt: skip
    accumulate: Annotated[int, Option(
        min=1, metavar="N", help="Batches of each step, one after the other: as one so much larger.",
    )] = 1  # fmt: skip
    lora: Rank = None
    autocast: Annotated[bool, Option(
        "--autocast/--no-autocast", help="Compute products in bfloat16.", show_default="no-autocast",
    )] = False  # fmt: skip
    master: Annotated[Master, Option(help=_MASTER_HELP)] = "whole"
    state: Annotated[StateFormat, Option(help=_STATE_HELP)] = "float32"
    wire: Wire = "float32"
    seed: Annotated[int, Option(min=0, metavar="N", help="Seed of weights, batches and sample.")] = 1
    eval_every: Annotated[int | None, Option(
        min=1, metavar="N", help="Compute the held-out loss after every N steps, too.", show_default="at the end alone",
    )] = None  # fmt: skip
    eval_batches: Annotated[int, Option(
        min=1, metavar="N", help="The most batches that --eval-every evaluates.",
    )] = 16  # fmt: skip
    patience: Annotated[int | None, Option(
        min=1, metavar="N", help="End after N evaluations in a row that are no better than the best.",
        show_default="train for all steps",
    )] = None  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TrainOptions:
    """The options of `spillgrad train`: `settings` holds those named on the command line, by field of TrainSettings.

    The other fields are the data, places and limits. Places and limits change no number of the run, but for a lossy
    `codec`, which changes gradients, a `lossy` plan, which changes settings, another `device`, which rounds
    differently, and `offload` with a `wire` of fewer bits, whose sums it leaves exact.
    """

    settings: dict[str, Any]
    data: Annotated[
        Path | None, Option(
            parser=named_path, metavar="PATH",
            help="Text, JSON lines (text; prompt and completion; messages), Parquet, or a folder of them.",
            show_default="Python's reference text",
        )
    ] = None  # fmt: skip
    eval_data: Annotated[
        Path | None,
        Option(
            parser=named_path,
            metavar="PATH",
            help="Records to evaluate with.",
            show_default="a tenth of --data, held out",
        ),
    ] = None
    skip_bad: Annotated[bool, Option("--skip-bad", help="Leave out records that cannot be used, and say how many.")] = (
        False
    )
    ram: Annotated[str | None, Option(
        metavar="SIZE", help="Memory that the whole process may take, or each of several, such as 4GiB; auto is what "
        "is free. A plan chooses what goes to disk, to the same numbers; where all plainly fits, it stays in RAM.",
        show_default="auto, unless other options say what goes to disk",
    )] = None  # fmt: skip
    lossy: Annotated[bool, Option("--lossy", help=LOSSY_HELP + " With --ram.")] = False
    ram_budget: Annotated[str | None, Option(
        metavar="SIZE", help="RAM for saved tensors, and for the model with --offload; what exceeds it goes to disk.",
        show_default=f"as planned; {DEFAULT_RAM_BUDGET} without a plan, or with --offload a quarter of what is free",
    )] = None  # fmt: skip
    offload: Annotated[
        bool, Option("--offload", help="Keep parameters, gradients and optimizer state on disk, too.")
    ] = False
    shard: Shard = "state"
    out: Annotated[Path | None, Option(
        parser=named_path, metavar="FOLDER", help="Folder of the checkpoint.", show_default="a new one in runs/",
    )] = None  # fmt: skip
    save_every: Annotated[int | None, Option(
        min=0, metavar="N", help="Save a checkpoint after every N steps, and at the end; 0 is at the end alone.",
        show_default="every ten minutes",
    )] = None  # fmt: skip
    keep_best: Annotated[bool, Option(
        "--keep-best", help="Keep the checkpoint of the best evaluation in best/, beside the last one.",
    )] = False  # fmt: skip
    log_dir: Annotated[Path | None, Option(
        parser=named_path, metavar="FOLDER",
        help="Write metrics.jsonl to this folder, a line for each step, and TensorBoard's event files.",
        show_default="no metrics",
    )] = None  # fmt: skip
    device: Annotated[
        Literal["cpu", "cuda"], Option(help="Where the model is: this machine's memory, or its GPU's.")
    ] = "cpu"
    spill_dir: Annotated[
        Path | None,
        Option(
            parser=named_path,
            metavar="FOLDER",
            help="Folder of the spill files.",
            show_default="that of the checkpoint",
        ),
    ] = None
    resume: Annotated[Path | None, Option(
        parser=named_path, metavar="FOLDER", help="Continue the run whose checkpoint is in this folder.",
    )] = None  # fmt: skip
    spill: Annotated[bool, Option("--spill/--no-spill", help="Whether saved tensors may go to disk.")] = True
    codec: Annotated[Literal["lossless", "bf16", "int8"] | None, Option(
        help="Smaller files: compressed, or less exact, which changes gradients a little.",
        show_default="tensors as they are",
    )] = None  # fmt: skip
    on_full: Annotated[
        Literal["raise", "ram"], Option(help="When the disk is full: stop, or keep what it refuses in RAM.")
    ] = "raise"
    policy: Annotated[Literal["spill", "keep", "recompute", "auto"], Option(
        help="Saved tensors: spill beyond the budget, keep in RAM, recompute those of blocks, or what is quickest.",
    )] = "spill"  # fmt: skip
    encrypt: Annotated[bool, Option("--encrypt", help="Encrypt spill files under a key that exists only in RAM.")] = (
        False
    )
    report: Annotated[
        bool, Option("--report", help="At the end, write report.html beside the checkpoint: plots and advice.")
    ] = False
    profile: Annotated[bool, Option(
        "--profile", help="Print where the time of a few steps goes, and write it to profile.json, for Perfetto.",
    )] = False  # fmt: skip


@dataclasses.dataclass(frozen=True)
class PlanOptions:
    """The options of `spillgrad plan`."""

    ram: Annotated[str, Option(metavar="SIZE", help="Memory of the whole process, such as 4GiB.")]
    model: Annotated[str | None, Option(metavar="NAME", help=MODEL_HELP, show_default=False)] = None
    weights: Annotated[str | None, Option(
        metavar="PATH", help="Safetensors file, or folder as Hugging Face's, whose weights it begins with.",
        show_default="drawn",
    )] = None  # fmt: skip
    batch: Batch = TrainSettings.batch
    context: Context = TrainSettings.context
    directory: Disk = Path()
    lora: Rank = None
    autocast: Annotated[bool, Option("--autocast", help="Compute products in bfloat16.")] = False
    offload: Annotated[bool | None, Option(
        "--offload/--no-offload", help="Whether parameters, gradients and optimizer state live on disk.",
        show_default="what is quicker",
    )] = None  # fmt: skip
    accumulate: Annotated[int, Option(min=1, metavar="N", help="Batches of each step, as in training.")] = 1
    optimizer: Annotated[Literal["adamw", "sgd", "lion"], Option(help="What updates the parameters.")] = "adamw"
    ranks: Annotated[int | None, Option(
        min=1, metavar="N", help="Also predict steps of up to N processes, each on a machine such as this one.",
        show_default="those of spillgrad launch",
    )] = None  # fmt: skip
    link: Annotated[str | None, Option(
        metavar="SPEED", help="Network between them, such as 1Gbit.", show_default="measured under spillgrad launch",
    )] = None  # fmt: skip
    latency: Annotated[str | None, Option(
        metavar="TIME", help="Latency of that network, such as 50us.", show_default=DEFAULT_LATENCY,
    )] = None  # fmt: skip
    state: Annotated[StateFormat | None, Option(help=_STATE_HELP, show_default="float32")] = None
    master: Annotated[Master | None, Option(help=_MASTER_HELP, show_default="whole or split, what is quicker")] = None
    lossy: Annotated[bool, Option("--lossy", help=LOSSY_HELP)] = False
    wire: Wire = TrainSettings.wire
    shard: Shard = "state"
    as_json: Json = False


# The parts of `spillgrad train --help`.
PANELS = {
    "Model and data": ("data", "eval_data", "skip_bad", "model", "weights", "tokenizer", "packed", "context", "lora"),
    "Training": (
        "steps", "batch", "accumulate", "lr", "schedule", "warmup", "final_lr_share", "weight_decay", "clip",
        "autocast", "master", "state", "seed",
    ),
    "Evaluation and metrics": (
        "eval_every", "eval_batches", "patience", "keep_best", "log_dir", "report", "profile",
    ),
    "Checkpoints": ("out", "save_every", "resume"),
    "RAM and disk": (
        "ram", "lossy", "ram_budget", "offload", "spill", "policy", "codec", "spill_dir", "on_full", "encrypt",
        "device",
    ),
    "Several processes": ("shard", "wire"),
}  # fmt: skip
