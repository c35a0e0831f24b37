"""The directory of a run, from its making to its end."""
