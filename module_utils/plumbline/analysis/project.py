"""Where the project's own files lie on the controller. A lab's folders are searched before these."""

from __future__ import annotations

from pathlib import Path

from ..errors import unknown_name

ROOT = Path(__file__).resolve().parents[3]
STATES = ROOT / "states"
_BUILD_FILES = ROOT / "roles" / "sglang_build" / "files"
# Folders with build locks: those of builds alone come before those that are part of a state's lock.
BUILD_LOCKS = (_BUILD_FILES / "locks", STATES)
# What relative paths in a build lock (source trees, patches) start from.
SOURCES = (_BUILD_FILES, ROOT)
_PHYSICS = ROOT / "simulator" / "physics"


def physics_file(name: str) -> Path:
    """The simulator's physics file for a path (from where Ansible was started) or for a name in ``simulator/physics``.

    :raises PlumblineError: there is no such file
    """
    for path in (Path(name).expanduser(), _PHYSICS / name, _PHYSICS / f"{name}.yml"):
        if path.is_file():
            return path
    raise unknown_name(
        "physics file", name, (p.stem for p in _PHYSICS.glob("*.yml")), "-e simulator_physics, a name or a path"
    )
