"""One call that a module makes: is the build there, what would be made, make it, point ``current`` to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Optional

from . import manifest
from .lock import public_version
from .make import make, prepare, present


def _lines(name: str, engine: str, versions: Dict[str, str]) -> str:
    return (
        "\n".join([f"build: {name}", f"engine: {engine}", *(f"{n}=={v}" for n, v in sorted(versions.items()))]) + "\n"
    )


def difference(root: Path, lock: Dict[str, Any], made: Optional[Dict[str, Any]]) -> Dict[str, str]:
    """Ansible's diff of the current build to this one: ``{before, after, before_header, after_header}``."""
    now = manifest.current(root)
    old = manifest.read(manifest.builds_dir(root) / now) if now else None
    if made is not None:
        after = dict(made["distributions"])
    else:
        after = {n: e["version"] for n, e in lock.get("distributions", {}).items() if not e.get("when")}
        after.update({e["name"]: e["version"] for e in lock.get("local", [])})
        after.update({e["name"]: f"commit {e['commit'][:12]}" for e in lock.get("git", [])})
        # Which build of a version pip takes is known only afterwards, as is what the virtual environment brings along.
        for name, version in (old["distributions"] if old else {}).items():
            if after.get(name) == public_version(version) or (name in ("pip", "setuptools") and name not in after):
                after[name] = version
    return {
        "before": _lines(old["name"], old["engine"], old["distributions"]) if old else "",
        "after": _lines(lock["name"], lock["engine"], after),
        "before_header": f"builds/current ({now or 'none'})",
        "after_header": f"build {lock['name']}",
    }


def ensure(
    root: Path,
    lock: Dict[str, Any],
    where: str,
    python: Optional[str] = None,
    wheelhouse: Optional[Path] = None,
    wheelhouse_is_here: bool = True,
    pip_environment: Optional[Dict[str, str]] = None,
    current: bool = True,
    staged: Optional[Path] = None,
    wheels: Optional[List[Dict[str, str]]] = None,
    check: bool = False,
) -> Dict[str, Any]:
    """Have the build of ``lock`` below ``root``. Without ``staged`` nothing is made, only looked at and checked.

    :returns: ``{changed, present, build_dir, python, manifest, actions, diff}``, and ``interpreter`` if the build was
        not there
    :raises PlumblineError: the build cannot be made; nothing of it is left then
    """
    actions: List[str] = []
    result: Dict[str, Any] = {"changed": False}
    build = present(root, lock, python)
    found = manifest.read(build) if build else None
    if build is None:
        interpreter = prepare(root, lock, where, python, wheelhouse if wheelhouse_is_here else None)
        build = manifest.builds_dir(root) / interpreter["digest"]
        result.update(interpreter=interpreter)
        actions.append(f"make build {build.name[:12]} of {lock['name']} with Python {interpreter['version']}")
        if build.exists():
            actions.insert(0, f"remove the half-made build {build.name[:12]}")
    switch = current and manifest.current(root) != build.name
    if switch:
        actions.append(f"point current to {build.name[:12]}")
    if actions:
        result["diff"] = difference(root, lock, found)
    if found is None and staged is not None and not check:
        source = wheelhouse if wheelhouse_is_here else staged / "wheelhouse"
        found = make(
            root, lock, where, interpreter, staged, wheels or [], source if wheelhouse else None, pip_environment
        )
        result["diff"] = difference(root, lock, found)
    if switch and found is not None and not check:
        manifest.switch(root, build.name)
    result.update(
        changed=bool(actions),
        present=found is not None,
        build_dir=str(build),
        python=str(manifest.python_of(build)),
        manifest=found,
        actions=actions,
    )
    return result


def info(root: Path, lock_sha256: Optional[str]) -> Dict[str, Any]:
    """What is there, for a reader: all whole builds, the current one, and the build of one lock (any Python; null if
    absent)."""
    builds = []
    for path in manifest.whole(root):
        document = manifest.read(path)
        assert document is not None
        builds.append({k: document[k] for k in ("digest", "name", "engine", "sglang_version", "python", "lock_digest")})
    wanted = manifest.by_lock(root, lock_sha256) if lock_sha256 else None
    if lock_sha256 is None and manifest.current(root):
        wanted = manifest.builds_dir(root) / str(manifest.current(root))
    document = manifest.read(wanted) if wanted else None
    return {
        "manifest": document,
        "build_dir": str(wanted) if document else None,
        "python": str(manifest.python_of(wanted)) if document and wanted else None,
        "current": manifest.current(root),
        "builds": builds,
    }
