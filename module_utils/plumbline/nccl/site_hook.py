"""Plumbline's sitecustomize: sets the variables of an NCCL profile that are not set yet, at the start of every
Python process.

Installed as ``sitecustomize.py`` in a folder of its own on PYTHONPATH, beside ``profile.json`` {profile, variables}.
It then runs the sitecustomize that it shadows (Debian and Ubuntu ship one). Whatever is wrong with its own data, the
interpreter starts: one line goes to stderr. If PLUMBLINE_NCCL_RAN_DIR names a folder, each process leaves
``<pid>.json`` there as the proof that it ran. It must run alone (no import of the package), on every Python from 3.8
on, and cost next to nothing.
"""

# pathlib would be imported into every Python process of the host
# ruff: noqa: PTH100, PTH103, PTH118, PTH120
from __future__ import annotations

import os
import sys
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from importlib.machinery import ModuleSpec
    from typing import Any

DATA = "profile.json"
RAN_DIR = "PLUMBLINE_NCCL_RAN_DIR"


def apply(folder: str, environment: MutableMapping[str, str]) -> dict[str, Any]:
    """Set what is not set. Returns {profile, set: {name: value}, kept: {name: what was there}, error: text or
    None}.
    """
    report: dict[str, Any] = {"profile": None, "set": {}, "kept": {}, "error": None}
    try:
        import json

        with open(os.path.join(folder, DATA), encoding="utf-8") as f:
            data = json.load(f)
        variables = data["variables"]
        pairs = list(variables.items())
        for name, value in pairs:
            if (
                not isinstance(name, str)
                or not isinstance(value, str)
                or "=" in name
                or "\0" in name + value
                or not name
            ):
                raise ValueError(f"not a variable: {name!r}")
        report["profile"] = data.get("profile")
        for name, value in pairs:
            if name in environment:
                report["kept"][name] = environment[name]
            else:
                environment[name] = value
                report["set"][name] = value
    except Exception as error:  # the interpreter must start whatever happens here
        report["error"] = f"{type(error).__name__}: {error}"
        with suppress(Exception):
            sys.stderr.write(f"plumbline sitecustomize: {os.path.join(folder, DATA)}: {report['error']}\n")
    return report


def shadowed(folder: str, path: list[str]) -> ModuleSpec | None:
    """The sitecustomize that this one hides: what Python would have found without our folder; None if there is
    none.
    """
    from importlib.machinery import PathFinder

    own = os.path.realpath(folder)
    return PathFinder.find_spec(
        "sitecustomize", [entry for entry in path if os.path.realpath(entry or os.curdir) != own]
    )


def leave_proof(report: dict[str, Any], where: str) -> None:
    """Write ``<pid>.json``. A folder that is gone or full is no reason to stop a process."""
    with suppress(Exception):
        import json

        os.makedirs(where, exist_ok=True)
        with open(os.path.join(where, f"{os.getpid()}.json"), "w", encoding="utf-8") as f:
            json.dump(report, f)


def run() -> None:
    folder = os.path.dirname(os.path.abspath(__file__))
    report = apply(folder, os.environ)
    spec = None
    try:
        spec = shadowed(folder, sys.path)
    except Exception as error:
        report["error"] = report["error"] or f"looking for the shadowed sitecustomize: {error}"
    report.update(
        pid=os.getpid(), ppid=os.getppid(), file=os.path.abspath(__file__), chained=spec.origin if spec else None
    )
    where = os.environ.get(RAN_DIR)
    if where:
        leave_proof(report, where)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        # An error in it is reported by the interpreter itself, as without us.
        spec.loader.exec_module(module_from_spec(spec))


if __name__ == "sitecustomize":
    run()
