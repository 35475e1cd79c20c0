"""Group ``files``: does each file of the build say what its wheel says?

Items are only what deviates, by path relative to the build: a file edited in place, one that no wheel brought, one
that is missing. A build as its wheels made it has none. Looked at beside it, as Python runs them before anything else:
``sitecustomize``, ``usercustomize`` and ``.pth`` files in the standard library's folder (items ``stdlib/...``) and,
if the environment can see it, the site-packages below it (items ``system/...``).
"""

# ruff: noqa: PTH115, PTH208
from __future__ import annotations

import hashlib
import os
import stat as stat_module
import struct
import time
from collections import Counter
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from .cache import Stat, settled
from .context import Context
from .evidence import keep_evidence
from .layout import Distribution, Layout, distributions, find_layout
from .redact import redact_text
from .values import Group, absent, unknown

# What the maker of a build writes beside its environment: says of the build, is no part of what runs.
BUILD_NOTES = ("plumbline-build.json", "build.log")
_ACCESS = 0o7666  # of a mode: everything but who may execute
SHORT = 4096  # bytes of start-up code that is kept as it is
FOLD = 20  # a folder of this many foreign files or more is one item
Entries = Dict[str, Tuple[Stat, int]]  # relative path -> (stat, mode)
# Made by `python -m venv` and not by a wheel: part of the item `venv` of group `build`.
_SKELETON_PREFIX = ("bin/activate", "bin/Activate", "bin/python", "bin/deactivate")


def is_skeleton(relative: str) -> bool:
    """Whether a file (relative to the environment) belongs to the virtual environment's own frame."""
    return relative in ("pyvenv.cfg", "lib64", ".gitignore", "CACHEDIR.TAG", ".lock") or (
        relative.startswith(_SKELETON_PREFIX) and "/" not in relative[4:] and not relative.endswith(".py")
    )


def walk(top: Path, prefix: str = "", prune: Tuple[str, ...] = ()) -> Tuple[Entries, List[Tuple[str, str]]]:
    """All files and links below ``top`` (links are not followed), and what could not be listed with the reason."""
    entries: Entries = {}
    errors: List[Tuple[str, str]] = []
    pending = [(str(top), prefix)]
    while pending:
        folder, base = pending.pop()
        try:
            with os.scandir(folder) as found:
                for entry in found:
                    name = base + entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if name not in prune:
                            pending.append((entry.path, name + "/"))
                        continue
                    try:
                        s = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    entries[name] = ([s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns], s.st_mode)
        except OSError as e:
            errors.append((base or ".", e.strerror or str(e)))
    return entries, errors


def _signature(entries: Entries) -> str:
    """A digest over every path and stat: the same signature means that nothing was written, so the result is the
    same."""
    h = hashlib.sha256(b"2\n")  # of what is made of them: a result of an older kind is not taken
    for name, (key, mode) in sorted(entries.items()):
        h.update(f"{name}\0{key[0]},{key[1]},{key[2]},{key[3]},{mode}\n".encode("utf-8", "surrogateescape"))
    return h.hexdigest()


class Tree:
    """One root of files that wheels were installed into: a build, or site-packages below it."""

    def __init__(self, context: Context, top: Path, label: str, sites: List[Path], skeleton: Optional[str]) -> None:
        self.context, self.top, self.label, self.skeleton = context, top, label, skeleton
        self.scope = "files-" + hashlib.sha256(str(top).encode()).hexdigest()[:16]
        self.entries, self.errors = walk(top)
        self.sites = sites
        self.dists: List[Tuple[str, Distribution]] = []

    def relative(self, path: Path) -> str:
        return path.relative_to(self.top).as_posix()

    def items(self) -> Dict[str, Any]:
        """The deviating files; from memory when no file's stat changed since the last look."""
        started = time.time()
        signature = _signature(self.entries)
        scope = self.context.cache.scope(f"{self.scope}.result")
        if scope.get("signature") == signature and not self.errors:
            return dict(scope["items"])
        items = self._compare()
        scope.clear()
        if not self.errors and all(settled(key, started) for key, _mode in self.entries.values()):
            scope.update(signature=signature, items=items)
        self.context.cache.touch(f"{self.scope}.result")
        return items

    def recorded(self) -> Dict[str, Set[str]]:
        """Path relative to ``top`` -> the digests that wheels give it ("" where a RECORD names it without one)."""
        out: Dict[str, Set[str]] = {}
        for site in self.sites:
            base = self.relative(site)
            base = "" if base == "." else base + "/"
            for dist in distributions(site):
                self.dists.append((base, dist))
                for path, sha in (dist.files or {}).items():
                    full = base + path if not path.startswith((".", "/")) else os.path.normpath(base + path)
                    out.setdefault(full, set()).add(sha)
        return out

    def _compare(self) -> Dict[str, Any]:
        recorded = self.recorded()
        usual = self._usual_mode()
        items: Dict[str, Any] = {}
        extra: List[str] = []
        for name, (key, mode) in self.entries.items():
            hashes = recorded.get(name)
            # Installers record byte code without a digest: it is judged like all byte code.
            if hashes is not None and ("__pycache__/" not in name or hashes != {""}):
                value = self._check(name, key, mode, hashes) or self._mode(mode, usual)
            elif self.skeleton is not None and self._in_frame(name):
                continue
            elif "__pycache__/" in name:
                value = self._generated(name)
            else:
                extra.append(name)
                continue
            if value is not None:
                items[name] = value
        items.update(
            (n, {"kind": "missing"})
            for n in recorded
            if n not in self.entries and not n.endswith(".pyc") and not n.startswith("../") and "" not in recorded[n]
        )
        items.update(self._fold(extra, recorded))
        for where, why in self.errors:
            items[where] = unknown(why)
        for base, dist in self.dists:
            if dist.files is None:
                items[f"{base}{dist.info.name}"] = unknown(
                    f"{dist.name} {dist.version} has no RECORD, so its files cannot be checked"
                )
        return items

    def _usual_mode(self) -> int:
        """Who may read and write most files: an installer gives the same to each."""
        modes = Counter(m & _ACCESS for _key, m in self.entries.values() if stat_module.S_ISREG(m))
        return modes.most_common(1)[0][0] if modes else 0

    @staticmethod
    def _mode(mode: int, usual: int) -> Optional[Dict[str, Any]]:
        """A file with the right contents that not the usual users may read or write, or that runs as its owner."""
        if not stat_module.S_ISREG(mode) or mode & _ACCESS == usual:
            return None
        return {"kind": "mode", "mode": f"{stat_module.S_IMODE(mode):04o}"}

    def _in_frame(self, name: str) -> bool:
        assert self.skeleton is not None
        return name in BUILD_NOTES or (name.startswith(self.skeleton) and is_skeleton(name[len(self.skeleton) :]))

    def _digest(self, name: str, key: Stat) -> str:
        return self.context.cache.digest(self.scope, name, str(self.top / name), key)

    def _value(self, name: str, **more: str) -> Dict[str, Any]:
        key, mode = self.entries[name]
        if stat_module.S_ISLNK(mode):
            return {**more, "link": os.readlink(self.top / name)}
        if not stat_module.S_ISREG(mode):
            return {**more, "special": stat_module.filemode(mode)[0]}
        return {**more, "sha256": self._digest(name, key)}

    def _check(self, name: str, key: Stat, mode: int, hashes: Set[str]) -> Optional[Dict[str, Any]]:
        known_hashes = hashes - {""}
        if not known_hashes:
            return None
        try:
            value = self._value(name, kind="edited")
        except OSError as e:
            return unknown(e.strerror)
        if value.get("sha256") in known_hashes:
            return None
        return {**value, "recorded": sorted(known_hashes)[0]}

    def _generated(self, name: str) -> Optional[Dict[str, Any]]:
        """Byte code is generated and no item while Python would check it against a source that is there; numba's
        cache files likewise. Byte code without a source, or that Python would run unchecked, is named."""
        folder, _slash, file = name.rpartition("/")
        parent = folder[: -len("__pycache__")]
        if file.endswith((".nbi", ".nbc")):
            return None
        if ".pyc." in file:  # a temporary file of an interrupted import
            return None
        if not file.endswith(".pyc"):
            return self._foreign(name)
        source = parent + file.split(".")[0] + ".py"
        # Module names may hold dots only in the tag: `mod.cpython-311.opt-1.pyc`.
        if source not in self.entries:
            return self._foreign(name, "byte code without its source")
        scope = self.context.cache.scope(self.scope)
        key = self.entries[name][0]
        held = scope.get(name)
        if held is None or held[:4] != key:
            try:
                with open(self.top / name, "rb") as f:
                    head = f.read(16)
            except OSError as e:
                return unknown(e.strerror)
            flags = struct.unpack("<I", head[4:8])[0] if len(head) == 16 else 0
            held = [*key, "unchecked" if flags & 3 == 1 else "checked"]
            if settled(key, time.time()):
                scope[name] = held
                self.context.cache.touch(self.scope)
        return (
            self._foreign(name, "byte code that Python runs without a look at its source")
            if held[4] == "unchecked"
            else None
        )

    def _foreign(self, name: str, why: str = "") -> Dict[str, Any]:
        try:
            return self._value(name, kind="extra", **({"why": why} if why else {}))
        except OSError as e:
            return unknown(e.strerror)

    def _fold(self, extra: List[str], recorded: Dict[str, Set[str]]) -> Iterator[Tuple[str, Any]]:
        """Files that no wheel brought: one item each, or one for the topmost folder that holds nothing but such
        files."""
        homes = {parent for name in recorded for parent in _parents(name)}
        groups: Dict[str, List[str]] = {}
        for name in extra:
            foreign = [p for p in _parents(name) if p not in homes and not _is_frame_folder(p)]
            groups.setdefault(foreign[0] if foreign else "", []).append(name)
        for folder, names in groups.items():
            if not folder or len(names) < FOLD:
                yield from ((n, self._foreign(n)) for n in names)
                continue
            listing = sorted((n, self._foreign(n)) for n in names)
            text = "\n".join(f"{n} {v.get('sha256', v.get('link', ''))}" for n, v in listing)
            yield (
                f"{folder}/",
                {
                    "kind": "extra",
                    "files": len(names),
                    "sha256": hashlib.sha256(text.encode()).hexdigest(),
                },
            )


def _parents(name: str) -> List[str]:
    """The folders above a file, outermost first."""
    parts = name.split("/")[:-1]
    return ["/".join(parts[: i + 1]) for i in range(len(parts))]


def _is_frame_folder(folder: str) -> bool:
    """Folders that every environment has, with or without a wheel's file in them."""
    last = folder.rsplit("/", 1)[-1]
    return last in ("venv", "bin", "lib", "include", "share", "site-packages", "dist-packages") or last.startswith(
        "python3"
    )


def _short_text(path: Path, sha256: str) -> Dict[str, str]:
    """``{text}`` of a short file of start-up code, so that a lock can have it written again; {} if it is long, no text
    or holds what looks like a secret."""
    with open(path, "rb") as f:
        data = f.read(SHORT + 1)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return {}
    whole = len(data) <= SHORT and hashlib.sha256(data).hexdigest() == sha256
    return {"text": text} if whole and redact_text(text) == text else {}


def startup_items(context: Context, stdlib: Path) -> Dict[str, Any]:
    """``stdlib/NAME``: start-up code in the standard library's folder, which wins over one of the same name in an
    environment."""
    items: Dict[str, Any] = {}
    for name in sorted(os.listdir(stdlib)):
        stem, _dot, ending = name.partition(".")
        if (
            stem in ("sitecustomize", "usercustomize")
            and (ending in ("py", "pyc") or ending.endswith("so") or not ending)
        ) or ending == "pth":
            path = stdlib / name
            try:
                found: Dict[str, Any] = {"kind": "startup"}
                if path.is_dir():
                    found["folder"] = sorted(os.listdir(path))
                else:
                    if path.is_symlink():
                        found["link"] = os.readlink(path)
                    found["sha256"] = context.cache.digest("startup", str(path), str(path))
                    found.update(_short_text(path, found["sha256"]))
                items[f"stdlib/{name}"] = found
            except OSError as e:
                items[f"stdlib/{name}"] = unknown(e.strerror)
    return items


def observe(context: Context, layout: Optional[Layout] = None) -> Group:
    """The group ``files`` of the build in ``context.build_dir``."""
    group = Group("files")
    if context.build_dir is None:
        group.identity["build"] = absent()
        return group
    layout = layout or find_layout(context.build_dir)
    top = layout.top.resolve()
    skeleton = "" if layout.venv == layout.top else "venv/"
    tree = Tree(context, top, "", layout.sites, skeleton)
    items = tree.items()
    group.identity.update(items)
    keep_evidence(context, top, items)
    if layout.stdlib is not None:
        try:
            group.identity.update(startup_items(context, layout.stdlib))
        except OSError as e:
            group.identity["stdlib"] = unknown(e.strerror)
    for site in layout.shared_sites:
        below = Tree(context, site, "system/", [site], None)
        found = below.items()
        group.identity.update({f"system/{name}": value for name, value in found.items()})
        keep_evidence(context, site, found, "system/")
    group.condition["checked"] = {"files": len(tree.entries), "deviating": len(items)}
    return group
