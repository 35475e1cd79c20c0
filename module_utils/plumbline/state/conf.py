"""Files of settings, by folder: what each says, comments left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Sequence, Set

from .context import Context
from .redact import redact_text
from .values import is_absent

# What is set when the machine starts or a module is loaded; what is in force now is observed by itself.
BOOT = (
    "/etc/sysctl.conf",
    "/etc/sysctl.d/",
    "/etc/modprobe.d/",
    "/etc/modules-load.d/",
    "/etc/tmpfiles.d/",
    "/etc/default/grub",
    "/etc/default/grub.d/",
    "/etc/udev/rules.d/",
)
# What the loader puts into or looks up for every program that starts.
LOADER = ("/etc/ld.so.preload", "/etc/ld.so.conf", "/etc/ld.so.conf.d/")
# Written by a rebuild so that the sysctls of a lock outlive a boot: it follows from the lock.
REBUILD_SYSCTLS = "/etc/sysctl.d/95-plumbline-state.conf"
_LEFT_OVER = (".dpkg-old", ".dpkg-dist", ".dpkg-new", ".save", "~")


def lines(text: str) -> List[str]:
    """The lines that say something, white space made even."""
    return [" ".join(x.split()) for x in text.splitlines() if x.strip() and x.strip()[0] not in "#;"]


def files(context: Context, places: Sequence[str]) -> Dict[str, Any]:
    """``{path: lines}`` of each file there is; a place that ends in a slash is a folder. Unknown where one cannot be
    read. Files that say nothing are left out."""
    out: Dict[str, Any] = {}
    seen: Set[Path] = set()
    for place in places:
        paths = [f"{place}{n}" for n in context.names(place)] if place.endswith("/") else [place]
        for path in paths:
            real = context.path(path).resolve()
            # Debian's sysctl.d has a link to sysctl.conf: one file, one item.
            if path.endswith(_LEFT_OVER) or path == REBUILD_SYSCTLS or real.is_dir() or real in seen:
                continue
            seen.add(real)
            found = context.read(path)
            if isinstance(found, str):
                said = lines(redact_text(found))
                if any(not line.startswith("[") for line in said):
                    out[path] = said
            elif not is_absent(found):
                out[path] = found
    return out
