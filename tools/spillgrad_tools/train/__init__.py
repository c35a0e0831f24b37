"""What `spillgrad train` and `spillgrad plan` do."""
