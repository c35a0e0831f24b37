"""The threads of a store, and how they wait for each other."""
