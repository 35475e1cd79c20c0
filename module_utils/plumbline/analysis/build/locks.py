"""Read a build lock by name, check everything that can be checked without a host, and resolve what it refers to."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterable, Optional

import tomllib
import yaml

from ...build.lock import SCHEMA, check_files
from ...digest import file_digest, tree_digest
from ...errors import PlumblineError, unknown_name
from .. import schema
from .pack import normal_version


def find(name: str, folders: Iterable[Path], where: str = "sglang_build_lock") -> Path:
    """The file of the lock ``name``: a path, or ``<folder>/<name>.yml`` in the first folder that has it.

    ``where`` the name was given, for who gave it.
    """
    if name.endswith((".yml", ".yaml")):
        path = Path(name)
        if not path.is_file():
            raise PlumblineError(
                "the lock's file does not exist",
                where,
                name,
                None,
                "give a lock's name or an existing file",
            )
        return path
    searched = [Path(f) for f in folders]
    for folder in searched:
        path = folder / f"{name}.yml"
        if path.is_file():
            return path
    names = {p.stem for f in searched if f.is_dir() for p in f.glob("*.yml")}
    raise unknown_name("build lock", name, names, where)


def read(path: Path) -> dict[str, Any]:
    """A lock as its file has it, validated: schema, hashes for each Python, override and condition names.

    A state lock carries its build lock under the key ``build``; then that part is read.
    """
    try:
        document = yaml.safe_load(path.read_text())
    except yaml.YAMLError as e:
        raise PlumblineError("the lock is not YAML", str(path), str(e).replace("\n", " "), None, "mend it") from None
    where = str(path)
    if isinstance(document, dict) and isinstance(document.get("build"), dict) and document.get("schema") != SCHEMA:
        document, where = document["build"], f"{path}, key build"
    found = document.get("schema") if isinstance(document, dict) else type(document).__name__
    if found != SCHEMA:
        raise PlumblineError(
            "a lock of another schema version" if str(found).startswith("plumbline.build/") else "not a build lock",
            f"{where}, key schema",
            found,
            SCHEMA,
            "make the lock anew with this version's make_lock.py",
        )
    schema.validate("build", document, where)
    check_files(document, where)
    return document


def _locate(relative: str, folders: list[Path], where: str, kind: str) -> Path:
    for folder in folders:
        path = folder / relative
        if path.exists():
            return path
    raise PlumblineError(
        f"the lock names a {kind} that does not exist",
        where,
        relative,
        f"a path below {', '.join(map(str, folders))}",
        "correct the path, or add a folder to sglang_build_search",
    )


def project_of(tree: Path) -> tuple[Optional[str], Optional[str]]:
    """(name, version) that a source tree's pyproject.toml declares; None where it does not."""
    try:
        project = tomllib.loads((tree / "pyproject.toml").read_text()).get("project", {})
    except (OSError, tomllib.TOMLDecodeError) as e:
        raise PlumblineError(
            "a local source tree without a readable pyproject.toml", str(tree), str(e), None, "give it one, or mend it"
        ) from None
    return project.get("name"), project.get("version")


def resolve(lock: dict[str, Any], where: str, folders: list[Path]) -> dict[str, Any]:
    """The lock with each local tree's name, version and digest, and each patch's digest checked.

    Added beside each ``path`` and ``file``: ``source``, the absolute path on the controller (never part of the lock's
    digest).

    :param folders: where relative paths are looked up, in this order
    :raises PlumblineError: a path does not exist, or its digest is not the one in the lock
    """
    out = {**lock, "local": [], "patches": []}
    for i, entry in enumerate(lock.get("local", [])):
        place = f"{where}, key local.{i}"
        tree = _locate(entry["path"], folders, f"{place}.path", "local source tree")
        name, version = project_of(tree)
        name, version = entry.get("name", name), entry.get("version", version)
        if not name or not version:
            raise PlumblineError(
                "a local source tree whose name or version is not known",
                place,
                f"name {name}, version {version}",
                None,
                "give name and version in the lock or in [project] of its pyproject.toml",
            )
        digest = tree_digest(tree)
        if entry.get("tree_sha256", digest) != digest:
            raise PlumblineError(
                f"wrong hash: the source tree {entry['path']} is not the one that the lock means",
                f"{place}.tree_sha256",
                digest,
                entry["tree_sha256"],
                "restore the tree; if its change is meant, put the new digest into the lock",
            )
        out["local"].append(
            {
                **entry,
                "name": name,
                "version": normal_version(version, place),
                "tree_sha256": digest,
                "source": str(tree),
            }
        )
    for i, entry in enumerate(lock.get("patches", [])):
        place = f"{where}, key patches.{i}"
        file = _locate(entry["file"], folders, f"{place}.file", "patch")
        digest = file_digest(file)
        if digest != entry["sha256"]:
            raise PlumblineError(
                f"wrong hash: the patch {entry['file']} is not the one that the lock means",
                f"{place}.sha256",
                digest,
                entry["sha256"],
                "restore the file; if its change is meant, put the new digest into the lock",
            )
        out["patches"].append({**entry, "source": str(file)})
    return out


def without_sources(lock: dict[str, Any]) -> dict[str, Any]:
    """The resolved lock as it is sent to a host: without the controller's paths."""
    return {
        **lock,
        **{key: [{k: v for k, v in e.items() if k != "source"} for e in lock[key]] for key in ("local", "patches")},
    }


def load(name: str, lock_folders: Iterable[Path], source_folders: Iterable[Path]) -> tuple[dict[str, Any], str]:
    """(resolved lock, its file) for a lock's name. Relative paths are looked up beside the lock first."""
    path = find(name, lock_folders)
    return resolve(read(path), str(path), [path.parent, *map(Path, source_folders)]), str(path)
