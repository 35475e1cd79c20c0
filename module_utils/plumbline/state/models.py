"""Group ``models``: every file of the target and the drafts by digest. Items ``NAME/relative path``."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from pathlib import Path
from typing import Optional

from .context import Context
from .files import walk
from .values import Group, absent, unknown

# Notes that a download leaves in a model's folder; no engine reads them.
_NOTES = re.compile(r"^(\.cache/|\.git/|\.gitattributes$|\.locks/|\.no_exist/|plumbline-model\.json$)")
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
                    group.identity[item] = context.cache.digest(scope, relative, path, key)
            except OSError as e:
                group.identity[item] = unknown(e.strerror)
        for folder, why in errors:
            group.identity[f"{name}/{folder}"] = unknown(why)
    return group
