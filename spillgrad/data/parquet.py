"""Rows of Parquet files, through the package `pyarrow` (`pip install 'spillgrad[parquet]'`)."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from spillgrad.errors import ArgumentError, DataError

_BATCH_ROWS = 1024


def parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[dict[str, Any] | DataError]:
    """Yield the rows of a Parquet file, with those of the columns that it has; an error for a row that is no text."""
    pyarrow = _package()
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = list(file.schema_arrow.names)
            found = [name for name in names if name in columns]
            if not found:
                raise DataError(
                    f"data: got {path} with the columns {', '.join(names) or '(none)'}; wanted one of "
                    f"{', '.join(columns)}; rename a column, or take the file away"
                )
            for batch in file.iter_batches(_BATCH_ROWS, columns=found):
                yield from _rows(batch)
    except (OSError, pyarrow.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"data: {path} cannot be read as Parquet ({reason}); give a whole Parquet file") from error


def _rows(batch: Any) -> Iterator[dict[str, Any] | DataError]:
    try:
        yield from batch.to_pylist()
    except UnicodeDecodeError:  # in one of the rows, of which none has been yielded
        for number in range(batch.num_rows):
            try:
                yield from batch.slice(number, 1).to_pylist()
            except UnicodeDecodeError as error:
                yield DataError(f"got text that is not UTF-8 ({error.reason}); wanted UTF-8")


def _package() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ArgumentError("data: Parquet files need the package pyarrow; pip install 'spillgrad[parquet]'") from error
    return pyarrow
