"""The state document (schema ``plumbline.state/1``): what a host is, in groups, each with a digest.

A group's digest is over its identity items that could be read; the state's digest is over the groups'. Conditions
enter none.
"""

from __future__ import annotations

import json
import platform
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from ..digest import digest
from ..errors import unknown_name
from . import build, container, driver, engine_args, files, hardware, kernel, models, nccl, packages, runtime
from .cache import DigestCache
from .context import Context
from .layout import Layout, find_layout
from .redact import redact_shapes
from .values import Group, is_unknown, unknown

SCHEMA = "plumbline.state/1"
GROUPS: Tuple[str, ...] = (
    "hardware",
    "firmware_and_kernel",
    "driver",
    "os_packages",
    "build",
    "files",
    "models",
    "nccl",
    "engine_args",
    "runtime",
    "container",
)


def read_manifest(build_dir: Path) -> Dict[str, Any]:
    """``plumbline-build.json`` of a build; {} where there is none (a build made by hand) or it is damaged."""
    try:
        found = json.loads((build_dir / "plumbline-build.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def observe(
    root: Union[str, Path],
    *,
    build_dir: Union[str, Path, None] = None,
    manifest: Optional[Mapping[str, Any]] = None,
    model_paths: Optional[Mapping[str, str]] = None,
    args: Optional[Mapping[str, Any]] = None,
    environment: Optional[Mapping[str, str]] = None,
    profile: Optional[Mapping[str, Any]] = None,
    host_kind: str = "auto",
    groups: Union[str, Sequence[str]] = "all",
    full: bool = False,
    evidence: bool = False,
    host: str = "",
    home: Optional[str] = None,
    cache_writable: bool = True,
    sysroot: Union[str, Path] = "/",
) -> Dict[str, Any]:
    """Observe this host: ``{"state": document, "evidence": {path: {...}}, "cost": {...}}``. Changes nothing but its
    cache of digests.

    ``build_dir``: a build or a virtual environment; None is the root's ``builds/current``. ``profile``: {profile,
    delivery, variables} of NCCL. ``groups``: names or ``all``; ``full`` reads every file again. Raises PlumblineError
    for an unknown group.
    """
    wanted = list(GROUPS) if groups == "all" else list(groups)
    for name in wanted:
        if name not in GROUPS:
            raise unknown_name("group of the state", name, GROUPS, "groups")
    top = Path(root)
    context = Context(
        root=top,
        cache=DigestCache(top / "cache" / "digests", full, cache_writable),
        build_dir=_build_dir(top, build_dir),
        models=dict(model_paths) if model_paths else model_folders(args or {}),
        args=dict(args or {}),
        nccl=dict(profile) if profile else None,
        host_kind=host_kind,
        home=Path(home).expanduser() if home else None,
        sysroot=Path(sysroot),
        want_evidence=evidence,
    )
    if context.build_dir is not None:
        context.manifest = dict(manifest) if manifest is not None else read_manifest(context.build_dir)
    server = {str(k): str(v) for k, v in (environment or {}).items()}
    found = _observe(context, wanted, server)
    context.cache.save()
    document = assemble(host or platform.node(), found)
    return {
        "state": document,
        "evidence": context.evidence,
        "cost": {"hashed_files": context.cache.hashed_files, "hashed_bytes": context.cache.hashed_bytes},
    }


def _build_dir(root: Path, given: Union[str, Path, None]) -> Optional[Path]:
    if given:
        return Path(given).resolve() if Path(given).is_dir() else None
    current = root / "builds" / "current"
    return current.resolve() if current.is_dir() else None


def model_folders(args: Mapping[str, Any]) -> Dict[str, str]:
    """``target`` and ``draft`` of server arguments, where these name folders of this host."""
    names = {str(k).lstrip("-").replace("_", "-"): v for k, v in args.items()}
    draft = names.get("speculative-draft-model-path", names.get("speculative-draft-model"))
    found = {"target": names.get("model-path"), "draft": draft}
    return {role: str(path) for role, path in found.items() if path and str(path).startswith("/")}


def _observe(context: Context, wanted: Sequence[str], server: Dict[str, str]) -> List[Group]:
    meter = runtime.LoadMeter(context)
    if "driver" in wanted:
        driver.start_tools(context)
    layout: Optional[Layout] = find_layout(context.build_dir) if context.build_dir is not None else None
    observers: Dict[str, Callable[[], Group]] = {
        "hardware": lambda: hardware.observe(context),
        "firmware_and_kernel": lambda: kernel.observe(context),
        "os_packages": lambda: packages.observe(context),
        "build": lambda: build.observe(context, layout),
        "files": lambda: files.observe(context, layout),
        "models": lambda: models.observe(context),
        "nccl": lambda: nccl.observe(context, server),
        "engine_args": lambda: engine_args.observe(context, server),
        "container": lambda: container.observe(context),
        "driver": lambda: driver.observe(context),
        "runtime": lambda: runtime.observe(context, server, meter),
    }
    out: List[Group] = []
    for name, look in observers.items():
        if name not in wanted:
            continue
        try:
            out.append(look())
        except OSError as e:  # a place that vanished or cannot be read while it was looked at: say so, go on
            out.append(Group(name, {"group": unknown(f"{e.filename or ''}: {e.strerror or e}".strip(": "))}))
    return sorted(out, key=lambda g: GROUPS.index(g.name))


def assemble(host: str, groups: Sequence[Group], now: Optional[datetime] = None) -> Dict[str, Any]:
    """The document of these groups, with a last pass for secret shapes over everything that is in it."""
    clean = [Group(g.name, redact_shapes(g.identity), redact_shapes(g.condition)) for g in groups]
    documents = {g.name: g.document() for g in clean}
    at = (now or datetime.now(timezone.utc)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {
        "schema": SCHEMA,
        "host": host,
        "observed_at": at,
        "digest": digest({n: d["digest"] for n, d in documents.items()}),
        "groups": documents,
        "unverified": unverified(documents),
    }


def unverified(groups: Mapping[str, Mapping[str, Any]]) -> List[str]:
    """``"group: item (why)"`` for each identity item that could not be read."""
    return [
        f"{name}: {item} ({value['unknown']})"
        for name, group in groups.items()
        for item, value in group["identity"].items()
        if is_unknown(value)
    ]
