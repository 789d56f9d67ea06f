"""What a command's input may take of the machine's memory: more than there is, is refused before any of it is taken."""

import contextlib
import math
import os
from collections.abc import Mapping
from pathlib import Path

from gyrograd._inputs import InputError


def available_bytes() -> int:
    """What programs can take without others being pushed out, within the limit of a container."""
    limits = [os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                limits = [int(line.split()[1]) * 1024]
    with contextlib.suppress(OSError, ValueError):  # there is none, or it says "max"
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(limits)


def require_memory(what: str, needed: int) -> None:
    """InputError where `what` would take more than there is."""
    available = available_bytes()
    if needed > available:
        raise InputError(
            f"{what} would take {needed / 1e9:.1f} GB of memory, and {available / 1e9:.1f} GB are available"
        )


def require_arrays(shapes: Mapping[str, tuple[int, ...]]) -> None:
    """InputError where NumPy has no array of a shape: it counts bytes as if extents of 0 were 1."""
    for name, shape in shapes.items():
        if 8 * math.prod(max(extent, 1) for extent in shape) >= 2**63:
            raise InputError(f"{name} has shape {list(shape)}; NumPy makes no array of it")
