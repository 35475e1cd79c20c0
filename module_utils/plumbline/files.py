"""Files that are never seen half-written: atomic replacement, and JSON lines appended under a lock."""
from __future__ import annotations

import fcntl
import json
import os
import tempfile
from pathlib import Path
from typing import Any, Union

PathLike = Union[str, Path]


def write_atomic(path: PathLike, data: Union[str, bytes], mode: int = 0o644) -> None:
    """Replace ``path`` by ``data``: a reader, or a machine that loses power, sees the old or the new file whole."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "wb") as f:
            f.write(data.encode() if isinstance(data, str) else data)
            f.flush()
            os.fsync(f.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink()
        raise


def write_json(path: PathLike, value: Any, mode: int = 0o644) -> None:
    """Replace ``path`` atomically by a JSON document that a person can read."""
    write_atomic(path, json.dumps(value, indent=1, ensure_ascii=False, sort_keys=False) + "\n", mode)


def append_line(path: PathLike, value: Any) -> None:
    """Append one JSON object as a line, under an exclusive lock and with fsync.

    A torn last line of a crashed writer is closed first.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    with open(path, "ab+") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        f.seek(0, os.SEEK_END)
        if f.tell():
            f.seek(-1, os.SEEK_END)
            if f.read(1) != b"\n":
                f.write(b"\n")
        f.write(line)
        f.flush()
        os.fsync(f.fileno())


def read_lines(path: PathLike) -> list:
    """All whole JSON lines of a file, in order; [] if there is no file. A torn line is left out."""
    path = Path(path)
    if not path.exists():
        return []
    out = []
    for line in path.read_bytes().split(b"\n"):
        try:
            out.append(json.loads(line))
        except ValueError:
            continue
    return out
