"""The parts of `spillgrad.planning`, and the policy "auto" of `save_on_disk`."""
