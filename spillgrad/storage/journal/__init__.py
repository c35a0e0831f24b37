"""The journal: a record of what a store did, line by line."""
