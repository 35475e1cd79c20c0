"""Where the project's own files lie on the controller. A lab's folders are searched before these."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
STATES = ROOT / "states"
_BUILD_FILES = ROOT / "roles" / "sglang_build" / "files"
# Folders with build locks: those of builds alone come before those that are part of a state's lock.
BUILD_LOCKS = (_BUILD_FILES / "locks", STATES)
# What relative paths in a build lock (source trees, patches) start from.
SOURCES = (_BUILD_FILES, ROOT)
