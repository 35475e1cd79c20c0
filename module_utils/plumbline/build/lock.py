"""A build lock (schema ``plumbline.build/1``) as plain data: its digest, and what pip is told of it.

The controller has read the YAML file and validated it against ``analysis/schemas/build.schema.json``; here the lock
is a mapping of which `local` entries carry `name`, `version` and `tree_sha256`, and `patches` entries `sha256`.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Iterable, List, Optional, Tuple

from ..digest import digest
from ..errors import PlumblineError

SCHEMA = "plumbline.build/1"

# Keys that say nothing about what is installed: a change of theirs must not make a new build.
_NOT_IDENTITY = ("description", "needs_bytes")


def lock_digest(lock: Dict[str, Any]) -> str:
    """Hex SHA-256 over everything in the lock that decides what gets installed or how it is run."""
    identity = {k: v for k, v in lock.items() if k not in _NOT_IDENTITY}
    identity["local"] = [{k: v for k, v in entry.items() if k != "path"} for entry in lock.get("local", [])]
    return digest(identity)


def build_digest(lock_sha256: str, python: str) -> str:
    """Name of the build's folder: one lock gives another environment on another Python minor version (``"3.11"``)."""
    return digest({"lock": lock_sha256, "python": python})


def normal_name(name: str) -> str:
    """A distribution's name as PEP 503 normalises it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def public_version(version: str) -> str:
    """The version without its local part: ``2.13.0+cpu`` -> ``2.13.0``."""
    return version.partition("+")[0]


def wheel_parts(file: str) -> Optional[Tuple[str, str, List[str], List[str], List[str]]]:
    """(name, version, python tags, ABI tags, platform tags) of a wheel's file name; None if it is not one (PEP 427)."""
    if not file.endswith(".whl"):
        return None
    parts = file[:-4].split("-")
    if len(parts) not in (5, 6):
        return None
    return normal_name(parts[0]), parts[1], parts[-3].split("."), parts[-2].split("."), parts[-1].split(".")


def file_serves(file: str, python: str, machine: str) -> bool:
    """True if an interpreter ``python`` ("3.11") of CPython on Linux ``machine`` can take this file; a source archive
    serves all."""
    wheel = wheel_parts(file)
    if wheel is None:
        return file.endswith((".tar.gz", ".zip"))
    _, _, pythons, abis, platforms = wheel
    minor = int(python.split(".")[1])
    exact = f"cp3{minor}"
    if not any(p == "any" or (p.endswith(f"_{machine}") and p.startswith(("manylinux", "linux"))) for p in platforms):
        return False
    if exact in pythons and any(a in (exact, "none", "abi3") for a in abis):
        return True
    if "abi3" in abis:
        return any(p.startswith("cp3") and p[3:].isdigit() and int(p[3:]) <= minor for p in pythons)
    return "none" in abis and any(
        p == "py3" or (p.startswith("py3") and p[3:].isdigit() and int(p[3:]) <= minor) for p in pythons
    )


def machine_of(lock: Dict[str, Any]) -> str:
    """The machine's name in ``platform``: ``linux-x86_64`` -> ``x86_64``."""
    return str(lock["platform"]).partition("-")[2]


def check_files(lock: Dict[str, Any], where: str) -> None:
    """Every distribution has, for each Python of the lock, a file with a digest; a file's name fits its entry.

    Raises `PlumblineError` naming the first distribution without one.
    """
    for name, entry in lock.get("distributions", {}).items():
        place = f"{where}, key distributions.{name}"
        if not entry["files"]:
            raise PlumblineError(
                f"missing hash: {name} {entry['version']} has no file with a SHA-256",
                f"{place}.files",
                "{}",
                "file name -> SHA-256 of that file",
                "make the lock anew with make_lock.py",
            )
        for file in entry["files"]:
            wheel = wheel_parts(file)
            if wheel and (
                wheel[0] != normal_name(name) or public_version(wheel[1]) != public_version(entry["version"])
            ):
                raise PlumblineError(
                    f"a file of another distribution or version stands under {name}",
                    f"{place}.files",
                    file,
                    f"files of {name} {entry['version']}",
                    "correct the version or the file's name",
                )
        for python in lock["python"]:
            if not any(file_serves(f, python, machine_of(lock)) for f in entry["files"]):
                raise PlumblineError(
                    f"missing hash: no file of {name} {entry['version']} serves Python {python}",
                    f"{place}.files",
                    ", ".join(entry["files"]),
                    f"a wheel for CPython {python} on {lock['platform']}",
                    f"add that file, or take {python} out of the lock's key python",
                )


def requirement(name: str, version: str, hashes: Iterable[str], equal: str = "==") -> str:
    """One line of a pip requirements file with its hashes."""
    return " ".join([f"{name}{equal}{version}", *(f"--hash=sha256:{h}" for h in sorted(set(hashes)))])


def builds_of(entry: Dict[str, Any], python: str, machine: str) -> Dict[str, List[str]]:
    """The builds of one version that a distribution's files are, most wanted first: exact version -> their hashes.

    ``2.13.0+cpu`` comes before ``2.13.0``, as pip itself would choose. A source archive belongs to the plain version.
    """
    builds: Dict[str, List[str]] = {}
    for file, sha256 in entry["files"].items():
        if file_serves(file, python, machine):
            wheel = wheel_parts(file)
            builds.setdefault(wheel[1] if wheel else entry["version"], []).append(sha256)
    return {version: builds[version] for version in sorted(builds, key=lambda v: ("+" not in v, v))}


def has_builds(entry: Dict[str, Any]) -> bool:
    """True if an index may give other builds of the pinned version, which only their local version tells apart."""
    versions = {wheel[1] for wheel in map(wheel_parts, entry["files"]) if wheel}
    return any("+" in v for v in versions) and "+" not in entry["version"]


def requirements(lock: Dict[str, Any], flavour: Optional[str]) -> List[str]:
    """Requirement lines of the distributions without a condition (``flavour`` None), or of those for that flavour of
    torch. Left out are those of which an index may give several builds (`alternatives`)."""
    lines = []
    for name, entry in sorted(lock.get("distributions", {}).items()):
        if (entry.get("when") or {}).get("torch") == flavour and not has_builds(entry):
            lines.append(requirement(name, entry["version"], entry["files"].values()))
    return lines


def alternatives(lock: Dict[str, Any], python: str) -> List[List[str]]:
    """For each distribution of which an index may give several builds: its requirement lines, to be tried in order.

    One line with the hashes of all builds would not do: pip prefers a file whose hash its index states to a file in a
    folder, so that a CPU build beside an index would never be taken.
    """
    out = []
    for name, entry in sorted(lock.get("distributions", {}).items()):
        if has_builds(entry):
            builds = builds_of(entry, python, machine_of(lock))
            # Three signs: `==2.13.0` would match 2.13.0+cpu too.
            out.append([requirement(name, version, hashes, "===") for version, hashes in builds.items()])
    return out


def needed_bytes(lock: Dict[str, Any], flavour: Optional[str] = None) -> int:
    """Bytes of disk the build takes: for the part every flavour has (None), or what a flavour takes beside it."""
    return int((lock.get("needs_bytes") or {}).get(flavour or "base", 0))
