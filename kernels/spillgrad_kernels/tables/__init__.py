"""Rows, formulas and scalar mathematics, from which the loops of `cpu/` and `cuda/` are made."""
