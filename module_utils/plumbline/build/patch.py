"""Apply unified diffs exactly: no fuzz, all hunks or none, no `patch` program needed.

A patch changes measured code, so a hunk that fits only roughly must not be applied. Its place may differ from the
line number that it names, as after an unrelated change above, only if its lines stand at exactly one other place.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional

from ..errors import PlumblineError

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_UNSUPPORTED = ("GIT binary patch", "Binary files ", "rename from ", "copy from ", "old mode ")
_NO_NEWLINE = "\\ No newline at end of file"
_ANEW = "make the patch anew for this version: git diff --no-renames --text"


def _lines(text: str) -> List[str]:
    """Lines with their ends. Only a line feed ends one: `str.splitlines` would also cut at form feeds, which sources
    hold."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


class Hunk(NamedTuple):
    """One hunk: the line it starts at (from 1), the lines that must stand there, and those that replace them (line
    ends kept)."""

    start: int
    old: List[str]
    new: List[str]


class FilePatch(NamedTuple):
    """All hunks for one file; ``old`` or ``new`` is None where the file is created or deleted."""

    old: Optional[str]
    new: Optional[str]
    hunks: List[Hunk]


def _name(line: str, strip: int, where: str) -> Optional[str]:
    name = line[4:].split("\t")[0].strip()
    if name == "/dev/null":
        return None
    parts = name.split("/")
    if len(parts) <= strip or name.startswith("/") or ".." in parts:
        raise PlumblineError(
            "a patch names a path outside of what it may change",
            where,
            name,
            f"a relative path with more than {strip} folders before the file",
            "set the patch's key strip",
        )
    return "/".join(parts[strip:])


def parse(text: str, strip: int, where: str) -> List[FilePatch]:
    """The file patches of a unified diff. ``strip``: leading folders of each path to leave out, as in ``patch -p``."""
    lines = _lines(text)
    out: List[FilePatch] = []
    i = 0
    while i < len(lines):
        if lines[i].startswith(_UNSUPPORTED):
            raise PlumblineError(
                "the patch does more than change lines",
                f"{where}, line {i + 1}",
                lines[i].strip(),
                "changed, new and deleted text files",
                _ANEW,
            )
        if lines[i].startswith("--- ") and i + 1 < len(lines) and lines[i + 1].startswith("+++ "):
            old, new = _name(lines[i], strip, where), _name(lines[i + 1], strip, where)
            hunks: List[Hunk] = []
            i += 2
            while i < len(lines) and lines[i].startswith("@@"):
                hunk, i = _hunk(lines, i, where)
                hunks.append(hunk)
            out.append(FilePatch(old, new, hunks))
        else:
            i += 1
    if not any(p.hunks for p in out):
        raise PlumblineError(
            "the patch has no hunk", where, f"{len(lines)} lines", "a unified diff (diff -u, git diff)", _ANEW
        )
    return out


def _hunk(lines: List[str], i: int, where: str) -> tuple[Hunk, int]:
    head = _HUNK.match(lines[i])
    if head is None:
        raise PlumblineError(
            "a malformed hunk in the patch", f"{where}, line {i + 1}", lines[i].rstrip(), "@@ -1,2 +1,2 @@", _ANEW
        )
    begin, want_old, want_new = i, int(head.group(2) or 1), int(head.group(4) or 1)
    old: List[str] = []
    new: List[str] = []
    last: List[List[str]] = []
    i += 1
    while i < len(lines) and (len(old) < want_old or len(new) < want_new or lines[i].startswith(_NO_NEWLINE)):
        line = lines[i]
        if line.startswith(_NO_NEWLINE):
            for side in last:
                side[-1] = side[-1].rstrip("\r\n")
        elif line[:1] in (" ", "-", "+") or line in ("\n", "\r\n"):
            last = [s for s, marks in ((old, " -\r\n"), (new, " +\r\n")) if line[0] in marks]
            for side in last:
                side.append(line[1:] if line[0] in " -+" else line)
        else:
            break
        i += 1
    if (len(old), len(new)) != (want_old, want_new):
        raise PlumblineError(
            "a hunk of the patch is shorter than it says",
            f"{where}, line {begin + 1}",
            f"{len(old)},{len(new)} lines",
            f"{want_old},{want_new} lines",
            "the patch file was cut or edited",
        )
    # With no old lines the number is that of the line after which the new ones come.
    return Hunk(int(head.group(1)) + (0 if old else 1), old, new), i


def _place(lines: List[str], hunk: Hunk, shift: int, file: str, where: str) -> int:
    n, named = len(hunk.old), hunk.start - 1 + shift
    if lines[named : named + n] == hunk.old and 0 <= named <= len(lines):
        return named
    fits = [at for at in range(len(lines) - n + 1) if lines[at : at + n] == hunk.old] if n else []
    if len(fits) == 1:
        return fits[0]
    near = "".join(lines[max(0, named) : named + 3]).strip() or "the file's end"
    places = "several places" if fits else "no place"
    raise PlumblineError(
        f"the patch does not apply to {file}",
        where,
        f"{places} where the hunk of line {hunk.start} fits; line {hunk.start} is {near!r}",
        f"lines {''.join(hunk.old[:3]).strip()!r}",
        "the patch is for another version: make it anew against this one",
    )


def _changed(text: str, hunks: List[Hunk], file: str, where: str) -> str:
    lines, shift = _lines(text), 0
    for hunk in hunks:
        at = _place(lines, hunk, shift, file, where)
        lines[at : at + len(hunk.old)] = hunk.new
        shift = at - (hunk.start - 1) + len(hunk.new) - len(hunk.old)
    return "".join(lines)


def apply(root: Path, text: str, strip: int, where: str) -> Dict[str, Optional[str]]:
    """Apply the unified diff ``text`` below ``root``: every file is worked out before the first is written.

    :returns: relative path -> new text; None for a deleted file
    :raises PlumblineError: a hunk does not fit, or a file is missing or in the way; nothing has been written then
    """
    result: Dict[str, Optional[str]] = {}
    for part in parse(text, strip, where):
        source = part.old if part.old is not None else part.new
        assert source is not None
        path = root / source
        if part.old is None:
            if path.exists():
                raise PlumblineError(
                    f"the patch creates {source}, which exists", where, source, "a file that is not there", _ANEW
                )
            before = ""
        else:
            seen = result.get(source)
            if seen is None and not path.is_file():
                raise PlumblineError(
                    "the patch changes a file that is not in the build",
                    where,
                    source,
                    f"a file below {root}",
                    "set the patch's key strip, or make the patch for this version",
                )
            before = seen if seen is not None else path.read_bytes().decode()
        after = _changed(before, part.hunks, source, where)
        if part.new is None:
            if after:
                raise PlumblineError(
                    f"the patch deletes {source}, which holds more than the patch knows",
                    where,
                    source,
                    "the file whole, as it is in this version",
                    _ANEW,
                )
            result[source] = None
        else:
            if part.new != part.old and part.old is not None:
                result[part.old] = None
            result[part.new] = after
    for name, text_after in result.items():
        target = root / name
        if text_after is None:
            target.unlink()
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
        # A new file takes the old one's place: pip may have hard-linked the old one into its cache.
        temporary = target.with_name(target.name + ".plumbline")
        temporary.write_bytes(text_after.encode())
        temporary.chmod(mode)
        temporary.replace(target)
    return result
