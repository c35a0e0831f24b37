"""Look at what a store did and does, without disturbing it: runs, their journals, their files."""
