"""`spillgrad sweep`: remove the files that dead runs left, or only list them."""

from pathlib import Path

from spillgrad.storage.runs.sweep import sweep
from spillgrad.storage.sizes import format_bytes


def run(directory: Path, dry_run: bool) -> None:
    """Remove the files of dead runs in a directory and below it, and print a line for each run.

    If `dry_run`, only print the lines. Raises OSError if the directory cannot be read.
    """
    dead = sweep(directory, dry_run, below=True)
    verb = "would remove" if dry_run else "removed"
    for one in dead:
        print(f"{verb} {one.path} ({format_bytes(one.disk_bytes)})")
    if not dead:
        print(f"no dead runs in {directory} or below it")
