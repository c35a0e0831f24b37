"""What a store did, line by line."""
