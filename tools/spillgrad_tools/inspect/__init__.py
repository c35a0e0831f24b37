"""What `spillgrad inspect`, `verify` and `sweep` do with what runs stored."""
