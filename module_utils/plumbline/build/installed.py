"""What was really installed: torch's build, NCCL, commits, and requirements that do not hold."""

from __future__ import annotations

import json
import re
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Dict, List, Optional

from .lock import normal_name

__all__ = ["commit_of", "nccl_of", "normal_name", "torch_of", "undeclared"]

_MISSING = re.compile(r"^(?P<who>\S+) \S+ requires (?P<name>\S+), which is not installed\.$")
_CLASH = re.compile(r"^(?P<who>\S+) \S+ has requirement (?P<name>[A-Za-z0-9._-]+)[^,]*.*, but you have ")


def torch_of(site: Path) -> Dict[str, Optional[str]]:
    """``{version, flavour: cpu|cuda|none}`` as torch's own ``version.py`` says; an index decides which build pip
    gets."""
    try:
        text = (site / "torch" / "version.py").read_text()
    except OSError:
        return {"version": None, "flavour": "none"}
    version = re.search(r"^__version__ *= *['\"]([^'\"]+)", text, re.M)
    cuda = re.search(r"^cuda\b[^=]*= *['\"]", text, re.M)
    return {"version": version.group(1) if version else None, "flavour": "cuda" if cuda else "cpu"}


def nccl_of(installed: Dict[str, str]) -> Optional[str]:
    """Version of the NCCL wheel that torch loads; None without one (a CPU build)."""
    for name, version in installed.items():
        if re.fullmatch(r"nvidia-nccl-cu\d+", name):
            return version
    return None


def commit_of(site: Path, name: str) -> Optional[str]:
    """The commit that a distribution was installed from (PEP 610), or None."""
    for dist in distributions(path=[str(site)]):
        if normal_name(dist.metadata["Name"]) == normal_name(name):
            text = dist.read_text("direct_url.json")
            return (json.loads(text).get("vcs_info") or {}).get("commit_id") if text else None
    return None


def undeclared(pip_check: str, overrides: List[Dict[str, Any]]) -> List[str]:
    """Lines of ``pip check`` about distributions that the lock does not override."""
    declared = {normal_name(entry["name"]) for entry in overrides}
    out = []
    for line in pip_check.splitlines():
        found = _MISSING.match(line) or _CLASH.match(line)
        if found and normal_name(found.group("name")) not in declared:
            out.append(line)
    return out
