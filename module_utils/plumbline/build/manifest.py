"""What is below ``<plumbline_root>/builds``: whole builds, half-made ones, and which one ``current`` means."""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any, Dict, List, Optional

FILE = "plumbline-build.json"
SCHEMA = "plumbline.build-manifest/1"
_DIGEST = re.compile(r"[0-9a-f]{64}")


def builds_dir(root: Path) -> Path:
    """The folder that holds all builds of a ``plumbline_root``."""
    return root / "builds"


def python_of(build: Path) -> Path:
    """The build's own interpreter."""
    return build / "venv" / "bin" / "python"


def read(build: Path) -> Optional[Dict[str, Any]]:
    """A whole build's manifest. None if it is half-made, or of another schema, or its Python is gone: it must be made
    again."""
    try:
        manifest = json.loads((build / FILE).read_text())
    except (OSError, ValueError):
        return None
    if (
        not isinstance(manifest, dict)
        or manifest.get("schema") != SCHEMA
        or manifest.get("digest") != build.resolve().name
    ):
        return None
    return manifest if os.access(python_of(build), os.X_OK) else None


def whole(root: Path) -> List[Path]:
    """All whole builds, by digest."""
    try:
        names = sorted(p for p in builds_dir(root).iterdir() if _DIGEST.fullmatch(p.name))
    except FileNotFoundError:
        return []
    return [p for p in names if read(p) is not None]


def half_made(root: Path) -> List[Path]:
    """Builds without a manifest: their makers were killed, if nobody holds the build lock."""
    try:
        return sorted(p for p in builds_dir(root).iterdir() if _DIGEST.fullmatch(p.name) and not (p / FILE).exists())
    except FileNotFoundError:
        return []


def current(root: Path) -> Optional[str]:
    """Digest that ``current`` points to; None if there is no such link."""
    try:
        return (builds_dir(root) / "current").readlink().name
    except OSError:
        return None


def switch(root: Path, digest: str) -> bool:
    """Point ``current`` to a build in one step; True if it pointed elsewhere. The old build stays."""
    if current(root) == digest:
        return False
    link = builds_dir(root) / "current"
    temporary = link.with_name(f".current.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    temporary.symlink_to(digest)
    temporary.replace(link)
    return True


def find(root: Path, lock_digest: str, digests: List[str]) -> Optional[Path]:
    """The whole build among ``digests`` (most wanted first) that was made from this lock; the current one comes
    first."""
    now = current(root)
    for digest in sorted(digests, key=lambda d: d != now):
        build = builds_dir(root) / digest
        manifest = read(build)
        if manifest is not None and manifest["lock_digest"] == lock_digest:
            return build
    return None


def by_lock(root: Path, lock_digest: str) -> Optional[Path]:
    """A whole build made from this lock, whatever its Python; the current one comes first."""
    return find(root, lock_digest, [p.name for p in whole(root)])
