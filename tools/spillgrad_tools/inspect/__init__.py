"""The commands `spillgrad inspect`, `verify` and `sweep`, which work on the files of runs."""
