"""Entries of the catalogue ``plumbline_models``, read and checked.

An entry is ``{kind, source: {directory|controller|hub: ..., ...}, files: {relative path: sha256}}``; the format is
described in the README of the role ``sglang_models``.
"""
from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Dict, List, Mapping, Sequence

from ..digest import digest
from ..errors import PlumblineError, nearest, unknown_name

SOURCES = ("directory", "controller", "hub")
SOURCE_KEYS = {"directory": {"directory", "link"}, "controller": {"controller"}, "hub": {"hub", "revision"}}
WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth")
# Written last into a placed model's folder; not a file of the model.
MANIFEST = "plumbline-model.json"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")


@dataclass(frozen=True)
class Model:
    """One catalogue entry. ``location`` is a folder or a repository's name, by ``source``."""

    name: str
    kind: str
    source: str
    location: str
    revision: str = ""
    link: bool = False
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Hex SHA-256 that identifies the content: of the files, or of the hub's commit if none are listed."""
        return digest({"files": dict(self.files)} if self.files else {"hub": self.location, "revision": self.revision})

    @property
    def folder(self) -> str:
        """The folder's name below ``<root>/models``."""
        return f"{self.name}-{self.digest[:12]}"


def select(names: Sequence[str], entries: Mapping[str, Any], where: str = "plumbline_models") -> List[Model]:
    """The models of these names, each once, in order. Raises for an unknown name or a faulty entry."""
    out: Dict[str, Model] = {}
    for name in names:
        if name not in entries:
            raise unknown_name("model", name, entries, where)
        out[name] = parse(name, entries[name], f"{where}.{name}")
    return list(out.values())


def parse(name: str, entry: Any, where: str) -> Model:
    """A checked entry."""
    if not _NAME.fullmatch(name):
        raise PlumblineError("a model's name becomes a folder's name", where, name, "letters, digits, '.', '_' and '-'")
    if not isinstance(entry, Mapping):
        raise PlumblineError("not a model's entry", where, entry, "a mapping with kind, source and files",
                             "see the README of the role sglang_models")
    _known_keys(entry, ("description", "kind", "source", "files"), where)
    source = entry.get("source")
    if not isinstance(source, Mapping) or len([s for s in SOURCES if s in source]) != 1:
        raise PlumblineError("a model has one source", f"{where}.source", source,
                             " or ".join(f"{s}: ..." for s in SOURCES), "give one of them")
    kind = next(s for s in SOURCES if s in source)
    _known_keys(source, sorted(SOURCE_KEYS[kind]), f"{where}.source")
    location = source[kind]
    if not isinstance(location, str) or not location:
        raise PlumblineError("not a place", f"{where}.source.{kind}", location, "text")
    files = _files(entry.get("files"), where, optional=kind == "hub")
    revision = _revision(source, location, where) if kind == "hub" else ""
    if kind == "directory" and not location.startswith("/"):
        raise PlumblineError("the folder on the host is given from the root on", f"{where}.source.directory", location,
                             "an absolute path", "use `controller:` for a folder of this project")
    return Model(name, str(entry.get("kind") or "target"), kind, location, revision, bool(source.get("link")), files)


def _known_keys(mapping: Mapping[str, Any], allowed: Sequence[str], where: str) -> None:
    for key in mapping:
        if key not in allowed:
            guess = nearest(str(key), allowed)
            raise PlumblineError(f"unknown key {key!r}", where, key, ", ".join(allowed),
                                 f"did you mean {guess!r}?" if guess else "")


def _revision(source: Mapping[str, Any], repository: str, where: str) -> str:
    if not _REPOSITORY.fullmatch(repository) or ".." in repository:
        raise PlumblineError("not a repository of the hub", f"{where}.source.hub", repository, "owner/name")
    revision = source.get("revision")
    if not isinstance(revision, str) or not _COMMIT.fullmatch(revision):
        raise PlumblineError(
            "the revision is not pinned: a branch or a tag can move", f"{where}.source.revision",
            "none" if revision is None else revision, "a commit of 40 hexadecimal digits",
            "take the commit from the repository's history page")
    return revision


def _files(files: Any, where: str, *, optional: bool) -> Dict[str, str]:
    where = f"{where}.files"
    if not files and optional:
        return {}
    if not isinstance(files, Mapping) or not files:
        raise PlumblineError("a model's files are listed with their SHA-256", where, files,
                             "{relative path: 64 hexadecimal digits}",
                             "list them with `sha256sum` in the model's folder")
    for path, sha256 in files.items():
        parts = PurePosixPath(str(path)).parts
        if not isinstance(path, str) or not parts or path.startswith("/") or ".." in parts or path == MANIFEST:
            raise PlumblineError("not a file of the model", where, path, "a path inside the model's folder")
        if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
            raise PlumblineError("not a SHA-256", f"{where}.{path}", sha256, "64 lower-case hexadecimal digits")
    check_complete(files, where)
    return dict(files)


def check_complete(files: Sequence[str] | Mapping[str, str], where: str) -> None:
    """Raises if these files cannot be a model."""
    found = ", ".join(sorted(files)[:12]) or "nothing"
    if "config.json" not in files:
        raise PlumblineError("a model without config.json", where, found, "config.json and weights",
                             "give the folder that holds both, and list them")
    if not any(str(path).endswith(WEIGHTS) for path in files):
        raise PlumblineError("a model path without weights", where, found, ", ".join(f"*{w}" for w in WEIGHTS),
                             "give the folder that holds the weights themselves")
