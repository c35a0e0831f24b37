"""What arrays are to a training, and the bytes of the numbers that they stand for."""

from collections.abc import Collection

from spillgrad.storage.origin_counters import Origin

_KINDS = {"parameter": "weights", "gradient": "gradients", "state": "optimizer state"}
_FLOAT_BYTES = 4
# How many numbers a byte of codes has, by dtype: two of NF4, one of int8.
_NUMBERS_IN_BYTE = {"uint8": 2, "int8": 1}
_SCALES = ("absmax", "nested_absmax", "nested_offset")
_SCALE = "_scale"
# Slot and dtype of an array of a float32 weight: the weight, or the second of its two halves.
_FLOAT32 = ((None, "float32"), ("low half", "uint16"))


def kind_of(origin: Origin) -> str:
    """Return what arrays of an origin are: weights, gradients, optimizer state, or tensors saved for backward."""
    return _KINDS.get(origin.op or "", "saved tensors")


def logical_bytes(origin: Origin, nbytes: int, origins: Collection[Origin]) -> int:
    """Return the bytes of the numbers that `nbytes` of arrays of an origin stand for, as float32 if they are codes.

    `origins` are those of all arrays. Scales of codes stand for no numbers. A float32 weight in two halves has all its
    bytes; what a codec makes of arrays when they are written changes nothing here.
    """
    if origin.op == "state":
        return nbytes * _times_of_state(origin, origins)
    if origin.op == "parameter":
        return nbytes * _times_of_weight(origin, origins)
    return nbytes


def _times_of_state(origin: Origin, origins: Collection[Origin]) -> int:
    slot = origin.slot or ""
    if origin.dtype == "uint8" and origin._replace(slot=slot + _SCALE, dtype="float32") in origins:
        return _FLOAT_BYTES
    if slot.endswith(_SCALE) and origin._replace(slot=slot.removesuffix(_SCALE), dtype="uint8") in origins:
        return 0
    weights = (Origin(origin.module, "parameter", slot, dtype) for slot, dtype in _FLOAT32)
    is_of_float32 = any(each in origins for each in weights)
    return 2 if origin.dtype == "bfloat16" and is_of_float32 else 1


def _times_of_weight(origin: Origin, origins: Collection[Origin]) -> int:
    path, _, name = (origin.module or "").rpartition(".")
    before = f"{path}." if path else ""
    if name == "weight" and origin.dtype in _NUMBERS_IN_BYTE:
        scales = (origin._replace(module=f"{before}{_SCALES[0]}", dtype=dtype) for dtype in ("uint8", "float32"))
        return _FLOAT_BYTES * _NUMBERS_IN_BYTE[origin.dtype] if any(each in origins for each in scales) else 1
    if name in _SCALES:
        codes = (origin._replace(module=f"{before}weight", dtype=dtype) for dtype in _NUMBERS_IN_BYTE)
        return 0 if any(each in origins for each in codes) else 1
    return 1
