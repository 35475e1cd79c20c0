"""Placing models at ``<root>/models/<name>-<digest12>/``.

A model is put together in a hidden folder beside its place, every digest is checked, and one rename makes it visible:
what is at its place is whole. Its manifest ``plumbline-model.json`` holds each file's digest with the size, inode and
times that the file had then, so that a later look at hundreds of gigabytes costs one ``stat`` a file; a file whose
``stat`` moved is read again.
"""
from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Union

from ..digest import file_digest
from ..errors import PlumblineError
from ..files import write_json
from .catalogue import MANIFEST, Model, check_complete

SCHEMA = "plumbline.model/1"


@dataclass
class Standing:
    """What is at a model's place: ``faults`` by file, empty if the model is there whole; ``digests`` as found."""

    path: Path
    present: bool
    faults: Dict[str, str] = field(default_factory=dict)
    digests: Dict[str, str] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        return self.present and not self.faults


def place(root: Union[str, Path], model: Model) -> Path:
    return Path(root) / "models" / model.folder


def stamp(path: Path) -> List[int]:
    """What changes when a file's bytes are changed, the change time included, which no program can set."""
    s = path.stat()
    return [s.st_size, s.st_ino, s.st_mtime_ns, s.st_ctime_ns]


def standing(root: Union[str, Path], model: Model, *, reread: bool = False) -> Standing:
    """Whether the model is at its place, whole and unaltered. ``reread`` reads every file, whatever is noted."""
    found = Standing(place(root, model), present=False)
    if not found.path.is_dir():
        return found
    found.present = True
    manifest = _manifest(found.path)
    if manifest is None:
        found.faults[MANIFEST] = "missing or not readable"
        return found
    known: Mapping[str, Any] = manifest["files"]
    expected = dict(model.files) or {path: entry["sha256"] for path, entry in known.items()}
    stamps_moved = False
    for path, sha256 in expected.items():
        file = found.path / path
        try:
            now = stamp(file)
            entry = known.get(path) or {}
            if not reread and entry.get("stamp") == now:
                has = entry["sha256"]
            else:
                has = file_digest(file)
                stamps_moved |= entry.get("stamp") != now
        except OSError as e:
            found.faults[path] = (e.strerror or str(e)).lower()
            continue
        found.digests[path] = has
        if has != sha256:
            found.faults[path] = f"SHA-256 {has}, expected {sha256}"
    for path in listing(found.path):
        if path not in expected:
            found.faults[path] = "not a file of this model"
    if stamps_moved and not found.faults:
        # Read and found good: note it, so that the next look need not read again. Not being able to is no fault.
        with contextlib.suppress(OSError):
            _write_manifest(found.path, model, found.digests, manifest.get("source"))
    return found


def listing(folder: Path) -> List[str]:
    """Relative paths of all files below a folder, the manifest left out."""
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*")
                  if (p.is_symlink() or p.is_file()) and p != folder / MANIFEST)


def _manifest(folder: Path) -> Optional[Dict[str, Any]]:
    try:
        found = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("files"), dict) else None


def _write_manifest(folder: Path, model: Model, digests: Mapping[str, str], source: Any) -> None:
    files = {path: {"sha256": sha256, "stamp": stamp(folder / path)} for path, sha256 in sorted(digests.items())}
    write_json(folder / MANIFEST, {"schema": SCHEMA, "name": model.name, "kind": model.kind, "digest": model.digest,
                                   "source": source, "files": files})


@contextlib.contextmanager
def lock(root: Union[str, Path]) -> Iterator[None]:
    """One placer at a time on a host."""
    folder = Path(root) / "models"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def install(root: Union[str, Path], model: Model, fill: Callable[[Path], Any]) -> Path:
    """Put a model at its place. ``fill(folder)`` brings the files into an empty or half-filled folder.

    What ``fill`` returns is noted in the manifest as ``source``; with ``{"hub_digests": {path: sha256}}`` these are
    checked for a model that lists no files. On any fault the folder is removed, unless the bringing itself broke off:
    then it is kept out of sight, so that a download of hours goes on where it was.
    """
    final = place(root, model)
    staging = final.with_name(f".{final.name}.partial")
    staging.mkdir(parents=True, exist_ok=True)
    try:
        source = fill(staging) or {}
    except BaseException:
        if staging.is_dir() and not listing(staging):
            shutil.rmtree(staging, ignore_errors=True)
        raise
    try:
        digests = verify(staging, model, source.pop("hub_digests", None))
        source.setdefault(model.source, model.location)
        _write_manifest(staging, model, digests, source)
        _swap(staging, final)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return final


def verify(folder: Path, model: Model, hub_digests: Optional[Mapping[str, str]] = None) -> Dict[str, str]:
    """Digests of the files in a folder. Raises if they are not the model's."""
    where = f"model {model.name}, from {model.source} {model.location}"
    present = listing(folder)
    expected = dict(model.files) or dict.fromkeys(present, "")
    if not model.files:
        expected.update({path: sha256 for path, sha256 in (hub_digests or {}).items() if path in expected})
    missing = sorted(set(expected) - set(present))
    if missing:
        raise PlumblineError("files of the model are missing", where, ", ".join(present) or "nothing",
                             f"also {', '.join(missing)}", "mend the source, or the list of files in plumbline_models")
    check_complete(expected, where)
    for path in set(present) - set(expected):
        (folder / path).unlink()
    digests = {}
    for path, sha256 in sorted(expected.items()):
        digests[path] = file_digest(folder / path)
        if sha256 and digests[path] != sha256:
            raise PlumblineError(f"wrong digest of {path}: it is not the file that the catalogue names", where,
                                 f"SHA-256 {digests[path]}", sha256,
                                 "restore the file, or correct its digest in plumbline_models if the file is right")
    return digests


def _swap(staging: Path, final: Path) -> None:
    """Move the new folder to its place; a damaged one that is there goes first."""
    for parent, _, files in os.walk(staging):
        for name in files:
            with open(Path(parent) / name, "rb") as f:
                os.fsync(f.fileno())
    aside = final.with_name(f".{final.name}.damaged")
    shutil.rmtree(aside, ignore_errors=True)
    if final.exists():
        final.rename(aside)
    staging.rename(final)
    shutil.rmtree(aside, ignore_errors=True)


def from_directory(model: Model) -> Callable[[Path], Any]:
    """Copies, or links, a model's files from a folder on this host."""
    source = Path(model.location)

    def fill(folder: Path) -> Dict[str, Any]:
        check_directory(model)
        clear(folder)
        try:
            if not model.link:
                check_space(folder, sum((source / path).stat().st_size for path in model.files), model)
            for path in model.files:
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                if model.link:
                    target.symlink_to((source / path).resolve())
                else:
                    shutil.copyfile(source / path, target)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return {}

    return fill


def check_directory(model: Model) -> None:
    """Raises if the folder cannot give the model's files."""
    source, where = Path(model.location), f"plumbline_models.{model.name}.source.directory"
    if not source.is_dir():
        raise PlumblineError("no such folder", where, model.location, "a folder on the host", "place the model there")
    there = [p.relative_to(source).as_posix() for p in source.rglob("*") if p.is_file()]
    check_complete(there, f"{where}, {model.location}")
    missing = sorted(set(model.files) - set(there))
    if missing:
        raise PlumblineError("files of the model are missing", f"{where}, {model.location}", ", ".join(sorted(there)),
                             f"also {', '.join(missing)}", "mend the folder, or the list of files in plumbline_models")


def from_bundle(model: Model, bundle: Union[str, Path]) -> Callable[[Path], Any]:
    """Unpacks a model's files from a tar that the controller sent; its members are ``<name>/<relative path>``."""
    def fill(folder: Path) -> Dict[str, Any]:
        clear(folder)
        try:
            with tarfile.open(bundle) as tar:
                for path in model.files:
                    member = tar.extractfile(f"{model.name}/{path}")
                    if member is None:
                        raise PlumblineError(f"{path} is not in what the controller sent", f"model {model.name}")
                    target = folder / path
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with member, target.open("wb") as f:
                        shutil.copyfileobj(member, f)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return {}

    return fill


def clear(folder: Path) -> None:
    """Empty a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def check_space(folder: Path, needed: int, model: Model) -> None:
    """Raises if ``needed`` bytes do not fit below ``folder``."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise PlumblineError(f"no space left for model {model.name} ({os.strerror(errno.ENOSPC)})", str(folder),
                             f"{free // 2**20} MiB free", f"{-(-needed // 2**20)} MiB or more",
                             "free space, set another plumbline_root, or use `link: true` for a local folder")
