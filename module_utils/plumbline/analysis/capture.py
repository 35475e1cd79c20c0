"""What playbooks/capture.yml does on the controller: from an observed state to the files of a lock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Iterable, Optional

import yaml

from ..build.lock import lock_digest
from ..errors import PlumblineError
from ..files import write_atomic, write_json
from . import lock as locks
from . import schema
from .build import locks as build_locks
from .store import Results


def find_build_lock(
    state: dict, folders: Iterable[Path], search: Iterable[Path]
) -> tuple[Optional[dict], dict[str, str]]:
    """The build lock that the observed build was made from, as it stands in its file with its source trees pinned by
    digest, and the texts of its patches by the names that it gives them.

    (None, {}) if no lock in ``folders`` has the digest that the build's manifest names.
    """
    condition = (state["groups"].get("build") or {}).get("condition", {})
    wanted = condition.get("lock_digest")
    if not isinstance(wanted, str):
        return None, {}
    places = [Path(f) for f in folders]
    named = [f / f"{condition.get('name')}.yml" for f in places]
    others = [p for f in places if f.is_dir() for p in sorted(f.glob("*.yml"))]
    for path in dict.fromkeys([*named, *others]):
        if not path.is_file():
            continue
        try:
            lock = build_locks.read(path)
            resolved = build_locks.resolve(lock, str(path), [path.parent, *map(Path, search)])
        except PlumblineError:
            continue  # another lock, maybe half-written by its author: not the one that is looked for
        if lock_digest(build_locks.without_sources(resolved)) == wanted:
            pinned = [{k: v for k, v in entry.items() if k != "source"} for entry in resolved["local"]]
            patches = {entry["file"]: Path(entry["source"]).read_text() for entry in resolved["patches"]}
            return {**lock, "local": pinned} if pinned else lock, patches
    return None, {}


def prepare(
    state: dict,
    evidence: dict,
    *,
    name: str,
    states_folder: Path,
    lock_folders: Iterable[Path],
    search: Iterable[Path],
    description: str = "",
    overwrite: bool = False,
) -> dict[str, Any]:
    """``{path, files: {name: text}, changed, remarks, diff}``: everything that would be written, and nothing is.

    Raises PlumblineError if a lock of that name with another content is there and ``overwrite`` is not set.
    """
    schema.validate("state", state, "the observed state")
    build_lock, patches = find_build_lock(state, [*lock_folders, states_folder], search)
    lock, files, remarks = locks.make(
        state, name=name, description=description, evidence=evidence, build_lock=build_lock
    )
    files = {**_beside(states_folder, patches), **files}
    lock = json.loads(json.dumps(lock))  # Ansible marks values by types of its own, which YAML does not know
    schema.validate("lock", lock, f"the lock of {name}")
    path = states_folder / f"{name}.yml"
    before = path.read_text() if path.exists() else ""
    same = bool(before) and _content(yaml.safe_load(before)) == _content(lock)
    if before and not same and not overwrite:
        raise PlumblineError(
            "there is a lock of that name with another content",
            str(path),
            "a lock that differs from what was captured",
            "a new name",
            "give another -e state=NAME, or -e overwrite=true",
        )
    style: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": 120, "default_flow_style": None}
    text = before if same else yaml.safe_dump(lock, **style)
    return {
        "path": path,
        "files": {} if same else {**files, path.name: text},
        "changed": not same,
        "remarks": remarks,
        "diff": {"before": before, "after": text, "before_header": str(path), "after_header": str(path)},
    }


def _beside(folder: Path, patches: dict[str, str]) -> dict[str, str]:
    """The patches that have to be written beside a new lock. Raises PlumblineError for a name that is taken."""
    out = {}
    for name, text in patches.items():
        path = folder / name
        if not path.exists():
            out[name] = text
        elif path.read_text() != text:
            raise PlumblineError(
                "another file has the name of a patch of the build's lock",
                str(path),
                "a file with other content",
                None,
                "move it away, or capture into another folder: -e states_folder=DIR",
            )
    return out


def _content(lock: Any) -> Any:
    """A lock without when it was captured."""
    if not isinstance(lock, dict) or not isinstance(lock.get("captured"), dict):
        return lock
    return {**lock, "captured": {k: v for k, v in lock["captured"].items() if k != "observed_at"}}


def write(made: dict[str, Any], results: Results, state: dict, evidence: dict) -> None:
    """Write what `prepare` made; the lock last, so that a lock that is there is whole. Keep the state and its
    evidence."""
    results.write_state(state)
    if evidence:
        write_json(results.root / "states" / "evidence" / f"{state['digest']}.json", evidence)
    for name, text in made["files"].items():
        write_atomic(made["path"].parent / name, text)
