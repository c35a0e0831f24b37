"""The commands `spillgrad train` and `spillgrad plan`."""
