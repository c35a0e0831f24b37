"""Read what a store left or is writing, without disturbing it: runs, their journals, their files."""
