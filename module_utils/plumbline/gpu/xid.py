"""Xid lines of the kernel log: what the NVIDIA driver says of a GPU's faults (docs.nvidia.com/deploy/xid-errors)."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional

_LINE = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<gpu>[0-9a-fA-F:.]+)\): (?P<xid>\d+)(?:, (?P<rest>.*))?$")
_STAMP = re.compile(r"\[\s*(\d+\.\d+)\]")
# (what it is, whose fault it most likely is)
MEANINGS = {
    8: ("the GPU stopped processing", "driver or application"),
    13: ("graphics engine exception", "application"),
    31: ("memory page fault", "application"),
    32: ("invalid or corrupted push buffer", "driver or PCIe"),
    43: ("a channel was reset", "application"),
    45: ("channels were torn down, mostly after another fault or a kill", "a consequence"),
    48: ("uncorrectable memory error (double bit)", "hardware"),
    61: ("internal microcontroller halted", "hardware or firmware"),
    62: ("internal microcontroller halted", "hardware or firmware"),
    63: ("a memory row is to be remapped or a page retired", "hardware"),
    64: ("remapping a memory row failed", "hardware"),
    69: ("graphics engine class error", "application"),
    74: ("NVLink error", "hardware"),
    79: ("the GPU has fallen off the bus", "hardware, power or PCIe"),
    92: ("many correctable memory errors", "hardware"),
    94: ("contained memory error", "hardware"),
    95: ("uncontained memory error", "hardware"),
    109: ("context switch timeout", "driver or application"),
    119: ("GSP firmware did not answer in time", "driver or firmware"),
    120: ("GSP firmware error", "driver or firmware"),
    154: ("the recovery action changed: see nvidia-smi", "a consequence"),
}


def parse(text: str) -> List[Dict[str, Any]]:
    """Every Xid line: ``[{gpu, xid, pid, name, at, text, meaning, suspect}]``; ``at`` is the kernel's time in
    seconds or null.
    """
    found = []
    for line in text.replace("\r", "").split("\n"):
        mark = _LINE.search(line)
        if not mark:
            continue
        rest = mark.group("rest") or ""
        pid = re.search(r"pid='?(\d+)'?", rest)
        name = re.search(r"name=([^,]+)", rest)
        stamp = _STAMP.search(line[: mark.start()])
        meaning: Any = MEANINGS.get(int(mark.group("xid")), (None, None))
        found.append(
            {
                "gpu": mark.group("gpu"),
                "xid": int(mark.group("xid")),
                "pid": int(pid.group(1)) if pid else None,
                "name": _known(name.group(1).strip()) if name else None,
                "at": float(stamp.group(1)) if stamp else None,
                "text": rest,
                "meaning": meaning[0],
                "suspect": meaning[1],
            }
        )
    return found


def _known(name: str) -> Optional[str]:
    return None if name in ("<unknown>", "'<unknown>'", "unknown") else name.strip("'")
