"""How a profile reaches NCCL: the files below ``<root>/nccl/<profile>-<delivery>/`` and the environment for the
server.
"""

from __future__ import annotations

import json
import pkgutil
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Dict, List, Optional, Union

from ..errors import PlumblineError
from ..files import write_atomic
from . import site_hook  # noqa: F401  (read as text below: what is not imported, Ansible does not send)
from .profile import DELIVERIES

PathLike = Union[str, Path]
MARK = "plumbline-nccl.json"  # a folder without it is not ours and is left alone
ENV_FILE, CONF_FILE, HOOK_FILE, HOOK_DATA = "nccl.env", "nccl.conf", "sitecustomize.py", "profile.json"


def hook_source() -> str:
    """Text of the sitecustomize, also from within the archive in which Ansible ships modules."""
    data = pkgutil.get_data(__package__, "site_hook.py")
    if data is None:
        raise PlumblineError("the sitecustomize's text was not shipped", "module_utils/plumbline/nccl/site_hook.py")
    return data.decode()


def directory(root: PathLike, profile: str, delivery: str) -> Path:
    return Path(root) / "nccl" / f"{profile}-{delivery}"


def plan(
    root: PathLike,
    profile: str,
    variables: Mapping[str, str],
    delivery: str,
    kept: Optional[Mapping[str, str]] = None,
    kept_from: str = "~/.nccl.conf",
    python_path: str = "",
) -> Dict[str, Any]:
    """``{directory, files: {name: text}, environment: {..}}``; a profile that sets nothing needs neither.

    ``kept``: what the conf file sets that NCCL_CONF_FILE will hide: it is carried over, visibly, where the profile
    says nothing. ``python_path``: a PYTHONPATH that the server has anyway; ours goes before it.
    """
    if delivery not in DELIVERIES:
        raise PlumblineError("unknown delivery", "nccl_profile_delivery", delivery, ", ".join(DELIVERIES))
    if not variables:
        return {"directory": None, "files": {}, "environment": {}}
    folder = directory(root, profile, delivery)
    mark = json.dumps({"profile": profile, "delivery": delivery, "variables": dict(variables)}, indent=1) + "\n"
    files: Dict[str, str] = {MARK: mark}
    environment: Dict[str, str] = {}
    lines = "".join(f"{name}={value}\n" for name, value in variables.items())
    if delivery == "env_file":
        files[ENV_FILE] = f"# NCCL profile {profile}, for EnvironmentFile= of a systemd unit\n{lines}"
        environment = dict(variables)
    elif delivery == "sitecustomize":
        files[HOOK_FILE] = hook_source()
        files[HOOK_DATA] = json.dumps({"profile": profile, "variables": dict(variables)}, indent=1) + "\n"
        environment["PYTHONPATH"] = f"{folder}:{python_path}" if python_path else str(folder)
    else:
        carried = {name: value for name, value in (kept or {}).items() if name not in variables}
        text = f"# NCCL profile {profile}\n{lines}"
        if carried:
            text += f"# kept from {kept_from}, which NCCL_CONF_FILE hides\n"
            text += "".join(f"{name}={value}\n" for name, value in carried.items())
        files[CONF_FILE] = text
        environment["NCCL_CONF_FILE"] = str(folder / CONF_FILE)
    return {"directory": str(folder), "files": files, "environment": environment}


def _ours(root: PathLike) -> List[Path]:
    base = Path(root) / "nccl"
    return sorted(path.parent for path in base.glob(f"*/{MARK}")) if base.is_dir() else []


def apply(root: PathLike, planned: Mapping[str, Any], check: bool = False) -> Dict[str, Any]:
    """Make the host as planned: write the files, remove every other delivery of ours.

    Returns ``{changed, removed: [folder], written: [path], diff: [{before_header, after_header, before, after}]}``;
    with ``check`` nothing is touched.
    """
    wanted = Path(planned["directory"]) if planned["directory"] else None
    written, removed, diff = [], [], []
    for folder in _ours(root):
        if folder == wanted:
            continue
        removed.append(str(folder))
        header = str(folder / MARK)
        diff.append(
            {"before_header": header, "after_header": header, "before": (folder / MARK).read_text(), "after": ""}
        )
        if not check:
            shutil.rmtree(folder)
    if wanted is not None:
        for stale in sorted(wanted.iterdir()) if wanted.is_dir() else []:
            if stale.name not in planned["files"] and stale.is_file():
                removed.append(str(stale))
                diff.append(
                    {
                        "before_header": str(stale),
                        "after_header": str(stale),
                        "before": stale.read_text(errors="replace"),
                        "after": "",
                    }
                )
                if not check:
                    stale.unlink()
        for name, text in planned["files"].items():
            path = wanted / name
            before = path.read_text(errors="replace") if path.is_file() else ""
            if before == text:
                continue
            written.append(str(path))
            diff.append({"before_header": str(path), "after_header": str(path), "before": before, "after": text})
            if not check:
                write_atomic(path, text)
    return {"changed": bool(written or removed), "removed": removed, "written": written, "diff": diff}
