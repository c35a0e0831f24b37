"""What `spillgrad.planning` is made of, and the policy "auto" of `save_on_disk`."""
