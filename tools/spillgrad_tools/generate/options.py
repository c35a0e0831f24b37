"""The options of `spillgrad generate`; this module imports nothing heavy: `--help` is quick."""

import dataclasses
from pathlib import Path
from typing import Annotated

from typer import Option

from spillgrad_tools.options import Json, named_path


@dataclasses.dataclass(frozen=True)
class GenerateOptions:
    """The options of `spillgrad generate`."""

    weights: Annotated[Path, Option(
        metavar="PATH", parser=named_path,
        help="A model: a folder as Hugging Face's, a folder of peft's adapters, or a run's folder.",
    )]  # fmt: skip
    prompt: Annotated[str, Option(
        metavar="TEXT", help="What the model answers, or goes on from; - reads it from standard input.",
    )]  # fmt: skip
    max_tokens: Annotated[int, Option(min=1, metavar="N", help="The most tokens to write.")] = 256
    temperature: Annotated[float, Option(min=0, metavar="X", help="0 always takes the likeliest token.")] = 0.8
    top_k: Annotated[int | None, Option(
        min=1, metavar="N", help="Draw from the N likeliest tokens.", show_default="all",
    )] = None  # fmt: skip
    top_p: Annotated[float, Option(
        min=0, max=1, metavar="X", help="Draw from the likeliest tokens that have this probability together.",
    )] = 0.95  # fmt: skip
    seed: Annotated[int, Option(min=0, metavar="N", help="Seed of the draws.")] = 0
    system: Annotated[str | None, Option(metavar="TEXT", help="How the model should answer.", show_default="none")] = (
        None
    )
    chat: Annotated[bool | None, Option(
        "--chat/--no-chat", help="Whether the prompt is a question that the chat template wraps.",
        show_default="where there is a template",
    )] = None  # fmt: skip
    base: Annotated[Path | None, Option(
        metavar="PATH", help="The weights that adapters are for.", show_default="where their folder says",
    )] = None  # fmt: skip
    tokenizer: Annotated[Path | None, Option(
        metavar="PATH", help="Folder of a tokenizer.", show_default="that of the model",
    )] = None  # fmt: skip
    ram: Annotated[str | None, Option(
        metavar="SIZE", help="Memory that the process may take, such as 2GiB: what does not fit is read from disk.",
        show_default="what is free",
    )] = None  # fmt: skip
    directory: Annotated[Path | None, Option(
        "--dir", help="Folder for weights that do not fit, and are not read where they lie.",
        show_default="that for temporary files",
    )] = None  # fmt: skip
    as_json: Json = False
