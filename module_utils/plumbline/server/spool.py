"""The spool: finished measurements that the controller has not confirmed yet, one file each.

``<plumbline root>/spool/<measurement id>.json`` is written by the module that measured before it returns, and removed
once the controller has the record on its own disk: a connection that breaks in between loses nothing.
"""
from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Union

from ..errors import PlumblineError
from ..files import write_json
from ..ids import is_ulid


def folder(root: Union[str, Path]) -> Path:
    return Path(root) / "spool"


def put(root: Union[str, Path], measurement: Mapping[str, Any]) -> Path:
    """Store a finished measurement (a mapping whose ``id`` is a ULID) such that it outlives a power cut."""
    path = _file(root, str(measurement.get("id")))
    write_json(path, dict(measurement))
    _sync(path.parent)
    return path


def listed(root: Union[str, Path]) -> Dict[str, List[Any]]:
    """{results: [measurements, oldest first], damaged: [{file, why}]}: what waits for confirmation."""
    results: List[Any] = []
    damaged: List[Any] = []
    if folder(root).is_dir():
        for path in sorted(folder(root).glob("*.json")):
            if path.name.startswith("."):
                continue  # half-written by a process that died
            try:
                value = json.loads(path.read_text())
                if not isinstance(value, dict) or value.get("id") != path.stem:
                    raise ValueError("not a measurement of that id")
                results.append(value)
            except (OSError, ValueError) as error:
                damaged.append({"file": str(path), "why": str(error)})
    return {"results": results, "damaged": damaged}


def confirm(root: Union[str, Path], ids: Iterable[str], dry: bool = False) -> List[str]:
    """Remove what the controller has stored; returns the ids removed. An id that is not there was confirmed before."""
    removed = []
    for name in ids:
        path = _file(root, name)
        if path.exists():
            removed.append(name)
            if not dry:
                path.unlink()
    if removed and not dry:
        _sync(folder(root))
    return removed


def _file(root: Union[str, Path], name: str) -> Path:
    if not is_ulid(name):  # also keeps a path out of the name
        raise PlumblineError("a spooled measurement is named by a ULID", str(folder(root)), name,
                             "26 characters of Crockford's base 32")
    return folder(root) / f"{name}.json"


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
