"""Refuse files of an unknown version."""

from pathlib import Path

from spillgrad.errors import SpillFormatError


def check_version(path: Path, found: object, accepted: int) -> None:
    """Raise SpillFormatError unless `found` is a version from 1 to `accepted`."""
    if type(found) is not int or not 1 <= found <= accepted:
        wanted = "1" if accepted == 1 else f"1 to {accepted}"
        raise SpillFormatError(
            f"{path} has format {found!r}; this spillgrad reads {wanted}; "
            "read it with the version that wrote it, or a newer one"
        )
