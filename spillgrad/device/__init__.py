"""Devices: naming them, memory on them, DLPack, and the precision of their products."""
