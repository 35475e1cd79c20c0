"""Files that the state does not have are moved aside, never deleted; those that it has are written again.

aside/<time>/<absolute path>      what lay there
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ..errors import PlumblineError
from ..files import write_atomic
from ..state.layout import find_layout


def resolve(path: str, root: Path, home: Optional[str]) -> Path:
    """A path as the plan names it: absolute, below ``~``, or ``stdlib/NAME`` of the Python below the current build."""
    if path.startswith("~/"):
        return Path(home).expanduser() / path[2:] if home else Path(path).expanduser()
    if path.startswith("stdlib/"):
        stdlib = find_layout(root / "builds" / "current").stdlib
        if stdlib is None:
            raise PlumblineError("the standard library of the build's Python was not found", path)
        return stdlib / path[len("stdlib/") :]
    if not path.startswith("/"):
        raise PlumblineError("not an absolute path", "files", path, "/..., ~/... or stdlib/NAME")
    return Path(path)


def tidy(
    root: Path, files: Sequence[Mapping[str, Any]], home: Optional[str] = None, check: bool = False
) -> Dict[str, Any]:
    """Have each of ``files`` (``{path, content, link}``; without content it shall not be there, with ``link`` it is a
    link to there and what that leads to has the content).

    ``{changed, moved: [{path, to}], written: [paths], diff: [..]}``. Raises PlumblineError naming a file that cannot be
    moved or written.
    """
    folder = root / "aside" / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    moved: List[Dict[str, str]] = []
    written: List[str] = []
    diff: List[Dict[str, str]] = []
    for entry in files:
        path, content, link = resolve(str(entry["path"]), root, home), entry.get("content"), entry.get("link")
        if _is_so(path, content, link):
            continue
        diff.append({"before_header": str(path), "before": _text(path) or "", "after": content or ""})
        # What a link leads to is written in its place, so that goes aside, too.
        leaves = [path, path.parent / link] if link else [path]
        moves = [p for p in leaves if os.path.lexists(p) and not (p != path and _text(p) == content)]
        moved += [{"path": str(p), "to": str(folder / os.path.normpath(p).lstrip("/"))} for p in moves]
        if content is not None:
            written.append(str(path))
        if check:
            continue
        try:
            for place in moves:
                target = folder / os.path.normpath(place).lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                folder.chmod(0o700)  # a conf file may be one that not everybody might read
                _move(place, target)
            if link and content is not None:
                write_atomic(path.parent / link, content)
                path.symlink_to(link)
            elif content is not None:
                write_atomic(path, content)
        except OSError as e:
            raise PlumblineError(
                "a file that the state does not have cannot be moved aside",
                str(path),
                e.strerror,
                None,
                "run the play as a user who may (ansible_become), or move it by hand",
            ) from None
    return {"changed": bool(moved or written), "moved": moved, "written": written, "diff": diff}


def _is_so(path: Path, content: Optional[str], link: Optional[str]) -> bool:
    if content is None:
        return not os.path.lexists(path)
    linked = path.is_symlink() and os.readlink(path) == link  # noqa: PTH115
    return _text(path) == content and (linked or not link)


def _move(path: Path, target: Path) -> None:
    try:
        path.rename(target)
    except OSError as e:
        if e.errno != errno.EXDEV:
            raise
        shutil.move(str(path), str(target))  # another file system


def _text(path: Path) -> Optional[str]:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError:
        return None
