"""Evidence for files that deviate: a diff where the original is to be had, else the file's own text, without secrets.

A RECORD holds only a digest of the original. Its text is looked for where a copy with that very digest can be: in the
wheels kept under the root (``wheelhouse/``, ``wheels/``), and in the other builds of this host, whose file of the
same path mostly is the same wheel's.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import zipfile
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

from .context import Context
from .redact import redact_text

MOST_BYTES = 2 << 20
MOST_FILES = 100


def keep_evidence(context: Context, top: Path, items: Dict[str, Any], label: str = "") -> None:
    """Put ``{kind: diff|text, original: where it is from, text, whole}`` for deviating files of text into
    ``context.evidence``."""
    if not context.want_evidence:
        return
    for name, value in sorted(items.items()):
        if (
            len(context.evidence) >= MOST_FILES
            or not isinstance(value, dict)
            or value.get("kind") not in ("edited", "extra")
        ):
            continue
        text = _text(top / name)
        if text is None:
            continue
        found = _original(context, top, name, value["recorded"]) if "recorded" in value else None
        kept = unified(found[0], text, name) if found else text
        clean = redact_text(kept, code=name.endswith(".py"))
        context.evidence[label + name] = {
            "kind": "diff" if found else "text",
            "original": found[1] if found else None,
            "text": clean,
            "whole": clean == kept,
        }


def unified(original: str, text: str, name: str) -> str:
    """A unified diff with paths ``a/NAME`` and ``b/NAME``; an ``original`` that is empty gives one that makes the
    file."""
    out: List[str] = []
    source = f"a/{name}" if original else "/dev/null"
    for line in difflib.unified_diff(_lines(original), _lines(text), source, f"b/{name}"):
        # difflib leaves out the mark of a last line without an end.
        out.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(out)


def _lines(text: str) -> List[str]:
    # Only a line feed ends a line: `str.splitlines` would also cut at form feeds, which sources hold.
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _text(path: Path) -> Optional[str]:
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > MOST_BYTES:
            return None
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _original(context: Context, top: Path, name: str, sha256: str) -> Optional[tuple]:
    for data, where in _candidates(context, top, name):
        if hashlib.sha256(data).hexdigest() == sha256:
            try:
                return data.decode("utf-8"), where
            except UnicodeDecodeError:
                return None
    return None


def _candidates(context: Context, top: Path, name: str) -> Iterator[tuple]:
    builds = context.root / "builds"
    for other in sorted(builds.iterdir()) if builds.is_dir() else []:
        if other.name != "current" and other.resolve() != top and (other / name).is_file():
            yield (other / name).read_bytes(), f"build {other.name}"
    inside = name.split("/site-packages/", 1)[-1]
    for folder in (context.root / "wheelhouse", context.root / "wheels", top / "wheels"):
        for wheel in sorted(folder.rglob("*.whl")) if folder.is_dir() else []:
            try:
                with zipfile.ZipFile(wheel) as archive:
                    yield archive.read(inside), f"wheel {wheel.name}"
            except (KeyError, OSError, zipfile.BadZipFile):
                continue
