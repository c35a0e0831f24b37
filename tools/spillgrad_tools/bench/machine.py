"""Names the machine that a benchmark runs on: its processor, memory, disk and software."""

import datetime
import os
import platform
from pathlib import Path
from typing import Any

import psutil

from spillgrad.release import __version__
from spillgrad.storage.disk.file_system import file_system
from spillgrad.storage.sizes import format_bytes

_CPUINFO = Path("/proc/cpuinfo")
# AMD's generations by family, each with the ranges of its models. A virtual machine often says only "AMD EPYC".
# Source: Linux, arch/x86/kernel/cpu/amd.c, bsp_init_amd.
_ZEN: dict[int, dict[str, tuple[range, ...]]] = {
    0x17: {
        "Zen": (range(0x00, 0x30), range(0x50, 0x60)),
        "Zen 2": (range(0x30, 0x50), range(0x60, 0x80), range(0x90, 0x92), range(0xA0, 0xB0)),
    },
    0x19: {
        "Zen 3": (range(0x00, 0x10), range(0x20, 0x60)),
        "Zen 4": (range(0x10, 0x20), range(0x60, 0xB0)),
    },
    0x1A: {
        "Zen 5": (range(0x00, 0x30), range(0x40, 0x50), range(0x60, 0x80)),
        "Zen 6": (range(0x50, 0x60), range(0x80, 0xB0), range(0xC0, 0xD0)),
    },
}


def machine(directory: Path | None = None) -> dict[str, Any]:
    """Return the processor, cores, memory and software of this machine, and the date.

    With a `directory`, also return the kind of its file system.
    """
    text = _CPUINFO.read_text() if _CPUINFO.exists() else ""
    disk = {} if directory is None else {"disk": file_system(directory) or "unknown"}
    return {
        "processor": processor(text),
        "cores": len(os.sched_getaffinity(0)),
        "memory": format_bytes(psutil.virtual_memory().total),
        **disk,
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "spillgrad": __version__,
        "date": datetime.date.today().isoformat(),
    }


def processor(cpuinfo: str) -> str:
    """Return the processor's name, from the text of `/proc/cpuinfo`; a name without a number gets its generation."""
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    name = fields.get("model name") or platform.processor() or platform.machine()
    if fields.get("vendor_id") != "AuthenticAMD" or any(letter.isdigit() for letter in name):
        return name
    family, model = int(fields.get("cpu family", 0)), int(fields.get("model", 0))
    for generation, ranges in _ZEN.get(family, {}).items():
        if any(model in each for each in ranges):
            return f"{name}, {generation}"
    return name
