"""Devices: their names, arrays on devices, DLPack, and the precision of matrix products on devices."""
