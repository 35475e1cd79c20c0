"""Builds of a host while it is rebuilt: an altered one is set aside before it is made anew, `current` goes back.

    builds/<digest>.altered      a build that was not as it was made, kept when it was made anew; one for each digest
    builds/history.jsonl         {at, was: digest that current pointed to|null, state}: a line before each rebuild

`current` never points to a half-made build: while a build is made anew it points to the altered one, which is whole.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Dict, List, Optional

from ..build import manifest
from ..build.locked import locked
from ..errors import PlumblineError
from ..files import append_line, read_lines

ALTERED = ".altered"
HISTORY = "history.jsonl"


def altered(root: Path, digest: str) -> Path:
    """Where an altered build is kept."""
    return manifest.builds_dir(root) / f"{digest}{ALTERED}"


def users_of(build: Path) -> List[Dict[str, Any]]:
    """``[{pid, command}]`` of the processes that run the build's Python, by its own path or by ``current``."""
    link = build.parent / "current"
    prefixes = [f"{build}/"]
    with contextlib.suppress(OSError):
        if link.readlink().name == build.name:
            prefixes.append(f"{link}/")
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            environment = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # it ended, or is another user's
        # setproctitle overwrites the command line of SGLang's workers; what they were started with is told by
        # their own environment where that is left.
        given = [command[0], *(v.partition("=")[2] for v in environment if v.startswith(("_=", "VIRTUAL_ENV=")))]
        if any(text.startswith(tuple(prefixes)) for text in given):
            found.append({"pid": int(entry.name), "command": " ".join(command).strip()[:120]})
    return found


def prepare(root: Path, anew: Optional[str], state: str, check: bool = False) -> Dict[str, Any]:
    """Before a build is made: note what `current` is, and set the build ``anew`` (a digest) aside.

    ``{changed, current, kept: where the altered build is|null}``. Raises PlumblineError if a process runs from it.
    """
    now = manifest.current(root)
    build = manifest.builds_dir(root) / anew if anew else None
    kept = altered(root, anew) if anew else None
    move = bool(build and build.is_dir() and not build.is_symlink())
    if build and move:
        running = users_of(build)
        if running:
            raise PlumblineError(
                "a server runs from the build that must be made anew",
                str(build),
                "; ".join(f"process {r['pid']}: {r['command']}" for r in running[:4]),
                "no process of that build",
                "end it with playbooks/stop.yml, or stop its unit, then start the rebuild again",
            )
    if check:
        return {"changed": move, "current": now, "kept": str(kept) if move else None}
    with locked(root):
        if now and not now.endswith(ALTERED):
            append_line(manifest.builds_dir(root) / HISTORY, {"at": _now(), "was": now, "state": state})
        if build and kept and move:
            if now != kept.name:
                shutil.rmtree(kept, ignore_errors=True)
            elif kept.exists():
                kept = kept.with_name(f"{kept.name}-{os.getpid()}")
            # First the link, then the folder: were it the other way round, a kill between the two would leave
            # `current` pointing to where the next build is made.
            if now == build.name:
                manifest.switch(root, kept.name)
            build.rename(kept)
    return {"changed": move, "current": now, "kept": str(kept) if move else None}


def restore(root: Path, digest: str, check: bool = False) -> Dict[str, Any]:
    """After a build could not be made anew: the altered one back in its place, `current` too. ``{changed}``."""
    build, kept = manifest.builds_dir(root) / digest, altered(root, digest)
    back = kept.is_dir() and not build.exists()
    if back and not check:
        with locked(root):
            pointed = manifest.current(root) == kept.name
            kept.rename(build)
            if pointed:
                manifest.switch(root, digest)
    return {"changed": back}


def roll_back(root: Path, check: bool = False) -> Dict[str, Any]:
    """Point `current` to the build that it pointed to before the last rebuild that changed it: ``{changed, was, now,
    name, says}``. Raises PlumblineError if there is none."""
    now = manifest.current(root)
    here = {p.name for p in manifest.whole(root)}
    before = [row["was"] for row in read_lines(manifest.builds_dir(root) / HISTORY) if row.get("was") != now]
    targets = [digest for digest in before if digest in here]
    if not targets:
        raise PlumblineError(
            "there is no build to go back to",
            str(manifest.builds_dir(root) / HISTORY),
            f"{len(before)} builds were current before" if before else "no other build was current before",
            f"one of the builds on the host: {', '.join(sorted(d[:12] for d in here)) or 'none'}",
            "rebuild the state that you want: playbooks/rebuild.yml -e state=NAME",
        )
    target = targets[-1]
    found = manifest.read(manifest.builds_dir(root) / target)
    says = f"from {_words(root, now)} to {_words(root, target)}"
    if not check:
        with locked(root):
            if now:
                append_line(manifest.builds_dir(root) / HISTORY, {"at": _now(), "was": now, "state": "rollback"})
            manifest.switch(root, target)
    return {"changed": True, "was": now, "now": target, "name": found["name"] if found else None, "says": says}


def _words(root: Path, digest: Optional[str]) -> str:
    """A build as a person tells it from others: `build 1a0de51a3f4a (sim-a, sglang 0.5.22)`."""
    if not digest:
        return "no build"
    found = manifest.read(manifest.builds_dir(root) / digest)
    if found is None:
        return f"build {digest[:12]} ({'altered' if digest.endswith(ALTERED) else 'not whole'})"
    return f"build {digest[:12]} ({found['name']}, sglang {found['sglang_version']})"


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
