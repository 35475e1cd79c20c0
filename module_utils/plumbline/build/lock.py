"""A build lock (schema ``plumbline.build/1``) as plain data: its digest, and what pip is told of it.

The controller has read the YAML file and validated it against ``analysis/schemas/build.schema.json``; here the lock
is a mapping of which `local` entries carry `name`, `version` and `tree_sha256`, and `patches` entries `sha256`.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional, Tuple

from ..digest import digest
from ..errors import PlumblineError

SCHEMA = "plumbline.build/1"
FLAVOURS = ("cpu", "cuda")

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


def requirement(name: str, version: str, hashes: List[str]) -> str:
    """One line of a pip requirements file with its hashes. ``==2.13.0`` lets pip take ``2.13.0+cpu`` too."""
    return " ".join([f"{name}=={version}", *(f"--hash=sha256:{h}" for h in sorted(set(hashes)))])


def requirements(lock: Dict[str, Any], flavour: Optional[str]) -> List[str]:
    """Requirement lines of the distributions without a condition (``flavour`` None), or of those for that flavour of
    torch."""
    lines = []
    for name, entry in sorted(lock.get("distributions", {}).items()):
        if (entry.get("when") or {}).get("torch") == flavour:
            lines.append(requirement(name, entry["version"], list(entry["files"].values())))
    return lines


def needed_bytes(lock: Dict[str, Any], flavour: Optional[str] = None) -> int:
    """Bytes of disk the build takes: for the part every flavour has (None), or what a flavour takes beside it."""
    return int((lock.get("needs_bytes") or {}).get(flavour or "base", 0))
