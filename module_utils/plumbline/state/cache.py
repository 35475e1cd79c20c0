"""Digests of files, remembered by what the file system says of the file, so that a warm look opens no file.

A remembered digest holds while inode, size, mtime and ctime (nanoseconds) are the same. ctime cannot be set from user
space, so an edit that restores size and mtime is seen too. As with Git's index, a file that changed less than
``RACY_S`` before it was read is not remembered: a second edit in the same clock tick would be invisible.
"""

# ruff: noqa: PTH116
from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Union

from ..files import write_atomic

RACY_S = 1.0
VERSION = 1
Stat = List[int]


def stat_key(found: os.stat_result) -> Stat:
    """``[inode, size, mtime_ns, ctime_ns]``."""
    return [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


class DigestCache:
    """One JSON file per scope (a build, the models, ...), loaded when first asked for and written back when changed.

    ``full`` forgets what is remembered, so everything is read again. ``write`` false (check mode, or a folder that
    cannot be written) keeps it in memory: slower the next time, never wrong.
    """

    def __init__(self, folder: Union[str, Path, None], full: bool = False, write: bool = True) -> None:
        self.folder = Path(folder) if folder is not None else None
        self.full, self.write = full, write
        self.hashed_files = self.hashed_bytes = 0
        self._scopes: Dict[str, Dict[str, Any]] = {}
        self._changed: set = set()

    def scope(self, name: str) -> Dict[str, Any]:
        """The remembered entries of one scope: a mapping that may be changed, then ``touch``-ed."""
        if name not in self._scopes:
            self._scopes[name] = {} if self.full else self._load(name)
        return self._scopes[name]

    def touch(self, name: str) -> None:
        """Say that a scope's entries changed and should be written at ``save``."""
        self._changed.add(name)

    def _file(self, name: str) -> Optional[Path]:
        return None if self.folder is None else self.folder / f"{name}.json"

    def _load(self, name: str) -> Dict[str, Any]:
        path = self._file(name)
        try:
            held = json.loads(path.read_bytes()) if path else {}
        except (OSError, ValueError):
            return {}
        return held["entries"] if isinstance(held, dict) and held.get("version") == VERSION else {}

    def digest(self, scope: str, key: str, path: str, stat: Optional[Stat] = None) -> str:
        """Hex SHA-256 of a file's bytes, remembered under ``key``. Raises OSError."""
        entries = self.scope(scope)
        if stat is None:
            stat = stat_key(os.stat(path))
        held = entries.get(key)
        if held is not None and held[:4] == stat:
            return str(held[4])
        started = time.time()
        h = hashlib.sha256()
        with open(path, "rb") as f:
            for piece in iter(lambda: f.read(1 << 20), b""):
                h.update(piece)
                self.hashed_bytes += len(piece)
            after = stat_key(os.fstat(f.fileno()))
        self.hashed_files += 1
        value = h.hexdigest()
        if after == stat and settled(stat, started):
            entries[key] = [*stat, value]
            self._changed.add(scope)
        elif entries.pop(key, None) is not None:
            self._changed.add(scope)
        return value

    def save(self) -> None:
        """Write the changed scopes; a folder that cannot be written is no error."""
        if not self.write or self.folder is None:
            return
        for name in sorted(self._changed):
            path = self._file(name)
            assert path is not None
            try:
                text = json.dumps({"version": VERSION, "entries": self._scopes[name]}, separators=(",", ":"))
                write_atomic(path, text, 0o600)
            except OSError:
                continue
        self._changed.clear()


def settled(stat: Stat, now_s: float) -> bool:
    """Whether a file's last change is far enough in the past to remember what was read from it."""
    return max(stat[2], stat[3]) < (now_s - RACY_S) * 1e9
