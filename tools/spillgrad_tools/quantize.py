"""`spillgrad quantize`: write a model with weights of 4 or 8 bits."""

from pathlib import Path
from typing import Any

import spillgrad as sg
from spillgrad.storage.sizes import format_bytes


def run(path: Path, to: str, out: Path, skip: list[str] | None, embeddings: bool, overwrite: bool) -> bool:
    """Quantize, and print a line; return False after Ctrl-C."""
    options: dict[str, Any] = {"skip": skip} if skip else {}
    try:
        place = sg.models.quantize(path, to, out, embeddings=embeddings, overwrite=overwrite, **options)
    except KeyboardInterrupt:
        print("Interrupted; nothing is half written.")
        return False
    files = sorted(place.iterdir())
    written_bytes = sum(file.stat().st_size for file in files)
    print(f"Wrote {format_bytes(written_bytes)} to {out}: {', '.join(file.name for file in files)}.")
    return True
