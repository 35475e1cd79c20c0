"""Before a host is touched: a lock read and checked, its build and models included."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterable, Mapping, Optional

from ...build.lock import lock_digest
from ...digest import file_digest
from ...errors import PlumblineError
from ...models.catalogue import select
from .. import lock as locks
from ..build import locks as build_locks


def read(name: str, folders: Iterable[Path], search: Iterable[Path]) -> dict[str, Any]:
    """``{lock, file, build_digest}`` of a state: its schema, hashes, source trees and patches checked.

    ``build_digest``: digest of the lock's build lock, null if it has none. Raises PlumblineError.
    """
    path = locks.find(name, folders)
    lock = locks.read(path)
    wanted = None
    if lock.get("build"):
        resolved = build_locks.resolve(lock["build"], f"{path}, key build", [path.parent, *map(Path, search)])
        wanted = lock_digest(build_locks.without_sources(resolved))
    return {"lock": lock, "file": str(path.resolve()), "build_digest": wanted}


def digest_of_build(name: str, folders: Iterable[Path], search: Iterable[Path]) -> Optional[str]:
    """The digest of the build lock that the inventory names; None if it cannot be read (then it is not this one)."""
    try:
        return lock_digest(build_locks.without_sources(build_locks.load(name, folders, search)[0]))
    except PlumblineError:
        return None


def check_models(lock: Mapping[str, Any], catalogue: Mapping[str, Any], project: Path) -> None:
    """Refuse models that cannot be placed: unknown to the catalogue, of another revision, or whose files on the
    controller are not the locked ones. Raises PlumblineError naming the first."""
    for name, entry in (lock.get("models") or {}).items():
        where = f"state {lock['name']}, key models.{name}"
        model = select([name], catalogue, "plumbline_models, plumbline_models_lab")[0]
        if model.revision and entry.get("revision") and model.revision != entry["revision"]:
            raise PlumblineError(
                f"the catalogue has another revision of {name} than the lock",
                where,
                model.revision,
                entry["revision"],
                f"put the lock's revision into plumbline_models_lab.{name}.source",
            )
        if model.source != "controller":
            continue
        for path, sha256 in entry["files"].items():
            file = project / model.location / path
            got = file_digest(file) if file.is_file() else "no such file"
            if got != sha256:
                raise PlumblineError(
                    f"wrong hash: {path} of {name} on the controller is not the file that the lock means",
                    f"{where}.files, {file}",
                    got,
                    sha256,
                    "restore the file, or capture the state anew",
                )
