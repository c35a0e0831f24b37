"""Format durations, counts and shares for people to read; `spillgrad.storage.sizes` formats bytes."""

# Stands for an unknown value.
UNKNOWN = "–"


def format_duration(seconds: float) -> str:
    """Return a duration with three digits, or from 100 seconds on with two units: `4.56 ms`, `12.3 s`, `2 h 5 min`."""
    if abs(seconds) < 99.95:
        for unit, scale in (("s", 1), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
            if abs(seconds) >= 0.9995 * scale:
                return f"{seconds / scale:.3g} {unit}"
        return "0 s"
    minutes, rest_s = divmod(round(seconds), 60)
    hours, rest_minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes} min {rest_s} s"
    return f"{hours} h {rest_minutes} min" if hours < 24 else f"{hours // 24:,} d {hours % 24} h"


def short_duration(seconds: float) -> str:
    """Return a duration in few characters: `230ms`, `12.3s`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    return f"{seconds:.1f}s" if seconds < 99.95 else f"{seconds:.0f}s"


def short_bytes(nbytes: float) -> str:
    """Return a count of bytes in at most five characters, in binary units: `1.5G`, `980M`."""
    for unit in "BKMGT":
        if nbytes < 1000 or unit == "T":
            break
        nbytes /= 1024
    return f"{nbytes:.1f}{unit}" if nbytes < 9.95 and unit != "B" else f"{nbytes:.0f}{unit}"


def many(count: int, noun: str) -> str:
    """Return a count with its noun: `1 array`, `2 arrays`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def percent(part: float, whole: float) -> str:
    """Return `part` as a percentage of `whole`; UNKNOWN if `whole` is 0.

    A part below 1 % is `<1%`, and a part above 99 % is `>99%`, so that 0% and 100% are exact.
    """
    if not whole:
        return UNKNOWN
    if 0 < part < whole * 0.01:
        return "<1%"
    return ">99%" if whole * 0.99 < part < whole else f"{part / whole:.0%}"
