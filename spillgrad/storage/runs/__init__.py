"""The directory of a run, from its creation to its removal."""
