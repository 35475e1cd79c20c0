"""Group ``models``: every file of the target and the drafts by digest. Items ``NAME/relative path``."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from pathlib import Path
from typing import Any, Dict, Optional

from ..models.catalogue import MANIFEST
from .cache import Stat
from .context import Context
from .files import walk
from .values import Group, absent, unknown

# Notes that a download leaves in a model's folder; no engine reads them.
_NOTES = re.compile(rf"^(\.cache/|\.git/|\.gitattributes$|\.locks/|\.no_exist/|{re.escape(MANIFEST)}$)")
_COMMIT = re.compile(r"^[0-9a-f]{40}$")


def revision(path: Path) -> Optional[str]:
    """The hub's commit of a model's folder: from the cache layout ``snapshots/<commit>`` or a download's notes."""
    for part in (path.name, path.resolve().name):
        if _COMMIT.match(part):
            return part
    notes = path / ".cache" / "huggingface" / "download"
    try:
        first = sorted(notes.rglob("*.metadata"))[0].read_text().splitlines()[0].strip()
    except (OSError, IndexError):
        return None
    return first if _COMMIT.match(first) else None


def _noted(top: Path) -> Dict[str, Any]:
    """What the role that placed a model noted of its files: ``{path: {sha256, stamp: [size, inode, mtime, ctime]}}``.

    It read each file then; while the stamp is the same there is no need to read half a terabyte again."""
    try:
        found = json.loads((top / MANIFEST).read_bytes())["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def _digest(context: Context, scope: str, relative: str, path: str, key: Stat, noted: Dict[str, Any]) -> str:
    entry = noted.get(relative)
    if not context.cache.full and isinstance(entry, dict) and entry.get("stamp") == [key[1], key[0], key[2], key[3]]:
        return str(entry["sha256"])
    return context.cache.digest(scope, relative, path, key)


def observe(context: Context) -> Group:
    """The group ``models`` of ``context.models`` (name -> folder)."""
    group = Group("models")
    if not context.models:
        group.identity["models"] = absent()
    for name, where in sorted(context.models.items()):
        top = context.path(where)
        group.condition[f"{name}: path"] = str(where)
        if not top.is_dir():
            group.identity[name] = absent() if not top.exists() else unknown(f"{where} is not a folder")
            continue
        found = revision(top)
        if found:
            group.condition[f"{name}: revision"] = found
        entries, errors = walk(top)
        noted = _noted(top)
        scope = "models-" + hashlib.sha256(str(top.resolve()).encode()).hexdigest()[:16]
        for relative, (key, mode) in sorted(entries.items()):
            if _NOTES.match(relative):
                continue
            item = f"{name}/{relative}"
            try:
                path = str(top / relative)
                if stat.S_ISLNK(mode):  # a hub cache links its files to blobs
                    target = os.path.realpath(path)
                    group.identity[item] = context.cache.digest(scope, target, target)
                elif stat.S_ISREG(mode):
                    group.identity[item] = _digest(context, scope, relative, path, key, noted)
            except OSError as e:
                group.identity[item] = unknown(e.strerror)
        for folder, why in errors:
            group.identity[f"{name}/{folder}"] = unknown(why)
    return group
