"""Digests: SHA-256 over canonical JSON, files and trees."""
from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Union


def canonical(value: Any) -> bytes:
    """JSON with sorted keys and no spaces, so that equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest(value: Any) -> str:
    """Hex SHA-256 of a JSON value's canonical form."""
    return hashlib.sha256(canonical(value)).hexdigest()


def file_digest(path: Union[str, Path]) -> str:
    """Hex SHA-256 of a file's bytes."""
    h = hashlib.sha256()
    with open(path, "rb") as f:
        for piece in iter(lambda: f.read(1 << 20), b""):
            h.update(piece)
    return h.hexdigest()


def tree_digest(root: Union[str, Path], skip: tuple = ("__pycache__", ".git", "build", "dist")) -> str:
    """Hex SHA-256 over the relative paths and bytes of all files below ``root``.

    Folders named in ``skip``, byte code and *.egg-info are left out.
    """
    root = Path(root)
    items = {}
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        left_out = any(part in skip or part.endswith(".egg-info") for part in relative.parts)
        if path.is_file() and path.suffix != ".pyc" and not left_out:
            items[relative.as_posix()] = file_digest(path)
    return digest(items)
