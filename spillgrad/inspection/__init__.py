"""Read the runs, journals and segments that a store wrote or is still writing, without disturbing the store."""
