"""`spillgrad export`: write a run's model, or another model in files, for other programs."""

from pathlib import Path
from typing import Literal

from spillgrad.models.exporting import GGUF_SUFFIX, export
from spillgrad.storage.sizes import format_bytes


def run(
    path: Path, to: Path, format: Literal["safetensors", "peft", "gguf"] | None, merge: bool, dtype: str | None,
    weights: Path | None, tokenizer: Path | None, overwrite: bool,
) -> bool:  # fmt: skip
    """Export, and print a line; return False after Ctrl-C."""
    try:
        place = export(
            path, to, format=format, weights=weights, merge=merge, dtype=dtype, tokenizer=tokenizer, overwrite=overwrite
        )
    except KeyboardInterrupt:
        print("Interrupted; nothing is half written.")
        return False
    files = [place] if place.suffix == GGUF_SUFFIX else sorted(place.iterdir())
    written_bytes = sum(file.stat().st_size for file in files)
    print(f"Wrote {format_bytes(written_bytes)} to {to}: {', '.join(file.name for file in files)}.")
    return True
