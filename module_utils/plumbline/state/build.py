"""Group ``build``: what the engine is made of: SGLang's version or commit, every distribution, torch, NCCL, the
Python below."""

# ruff: noqa: PTH115, PTH116, PTH208
from __future__ import annotations

import hashlib
import os
import re
import stat
from pathlib import Path
from typing import Any, Dict, List, Optional

from .cache import stat_key
from .context import Context
from .files import is_skeleton, walk
from .layout import Distribution, Layout, distributions, find_layout, read_pyvenv
from .redact import redact
from .values import Group, absent, unknown


def _distribution(dist: Distribution) -> Dict[str, Any]:
    value: Dict[str, Any] = {"version": dist.version}
    record = dist.record_digest()
    if record is not None:
        value["record"] = record[:16]
    if dist.commit:
        value["commit"] = dist.commit
    if dist.editable:
        value["editable"] = dist.editable
    return value


def installed(context: Context, layout: Layout) -> Dict[str, Any]:
    """Item -> value for every distribution; remembered while no ``*.dist-info`` folder or RECORD changes."""
    out: Dict[str, Any] = {}
    for label, site in [("", s) for s in layout.sites] + [("system.", s) for s in layout.shared_sites]:
        key = f"distributions-{hashlib.sha256(str(site).encode()).hexdigest()[:16]}"
        scope = context.cache.scope(key)
        seen = _info_stats(site)
        if scope.get("seen") != seen:
            fresh = {d.name: _distribution(d) for d in distributions(site)}
            scope.clear()
            scope.update(seen=seen, found=fresh)
            context.cache.touch(key)
        out.update({f"distribution.{label}{name}": value for name, value in scope["found"].items()})
    return out


def _info_stats(site: Path) -> List[Any]:
    out: List[Any] = []
    try:
        names = sorted(os.listdir(site))
    except OSError as e:
        return [str(e)]
    for name in names:
        if name.endswith((".dist-info", ".egg-info", ".egg-link")):
            for path in (
                site / name,
                site / name / "RECORD",
                site / name / "METADATA",
                site / name / "direct_url.json",
            ):
                try:
                    out.append([name, *stat_key(os.stat(path))])
                except OSError:
                    continue
    return out


def _skeleton(layout: Layout) -> Any:
    """Digest of the environment's frame (pyvenv.cfg, activation scripts, links to Python), with its own path taken
    out."""
    parts: List[str] = []
    own = str(layout.venv).encode()
    real = str(layout.venv.resolve()).encode()
    try:
        for folder in (layout.venv, layout.venv / "bin"):
            for name in sorted(os.listdir(folder)):
                path = folder / name
                relative = path.relative_to(layout.venv).as_posix()
                if not is_skeleton(relative) or relative in (".lock", ".gitignore", "CACHEDIR.TAG"):
                    continue
                if path.is_symlink():
                    parts.append(f"{relative} -> {os.readlink(path)}")
                elif path.is_file() and path.stat().st_size < 1 << 20:
                    data = path.read_bytes().replace(real, b"@").replace(own, b"@")
                    # The command that made it names a temporary folder; it has no effect.
                    data = re.sub(rb"(?m)^command = .*$", b"", data)
                    data = re.sub(rb"@/?[\w./-]*|/[\w./-]*/builds/[\w./-]*", b"@", data)
                    parts.append(f"{relative} {hashlib.sha256(data).hexdigest()}")
    except OSError as e:
        return unknown(e.strerror)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _stdlib(context: Context, stdlib: Optional[Path]) -> Any:
    """Digest over the standard library's sources (start-up code apart, which is in group ``files``)."""
    if stdlib is None:
        return unknown("the standard library of the environment's Python was not found")
    prune = (
        "site-packages",
        "dist-packages",
        "test",
        "idlelib",
        "tkinter",
        "turtledemo",
        "lib2to3",
        "ensurepip",
        "config",
    )
    entries, errors = walk(stdlib, prune=prune)
    if errors:
        return unknown(f"{errors[0][0]}: {errors[0][1]}")
    scope = "stdlib-" + hashlib.sha256(str(stdlib).encode()).hexdigest()[:16]
    lines: List[str] = []
    for name, (key, mode) in sorted(entries.items()):
        if (
            "__pycache__/" in name
            or not stat.S_ISREG(mode)
            or name.split(".")[0] in ("sitecustomize", "usercustomize")
            or not name.endswith((".py", ".so"))
        ):
            continue
        try:
            lines.append(f"{name} {context.cache.digest(scope, name, str(stdlib / name), key)}")
        except OSError as e:
            return unknown(f"{name}: {e.strerror}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _interpreter(context: Context, layout: Layout) -> Any:
    python = layout.venv / "bin" / "python"
    try:
        real = python.resolve(strict=True)
        return {"version": layout.version, "sha256": context.cache.digest("python", str(real), str(real))[:16]}
    except OSError as e:
        return unknown(f"{python}: {e.strerror}")


def nccl_version(layout: Layout) -> Any:
    """The NCCL that the build's torch loads: the version in the wheel's ``nccl.h``, or of its distribution."""
    for site in [*layout.sites, *layout.shared_sites]:
        for header in (site / "nvidia/nccl/include/nccl.h", site / "nvidia/cu13/include/nccl.h"):
            try:
                text = header.read_text(errors="replace")
            except OSError:
                continue
            found = dict(re.findall(r"#define NCCL_(MAJOR|MINOR|PATCH) (\d+)", text))
            if len(found) == 3:
                return f"{found['MAJOR']}.{found['MINOR']}.{found['PATCH']}"
    return absent()


def observe(context: Context, layout: Optional[Layout] = None) -> Group:
    """The group ``build``."""
    group = Group("build")
    if context.build_dir is None:
        group.identity["build"] = absent()
        return group
    layout = layout or find_layout(context.build_dir)
    manifest = context.manifest
    found = installed(context, layout)
    group.identity.update(found)
    group.identity["python"] = _interpreter(context, layout)
    group.identity["stdlib"] = _stdlib(context, layout.stdlib)
    group.identity["venv"] = _skeleton(layout)
    group.identity["shared_site_packages"] = layout.shared
    sglang = found.get("distribution.sglang", found.get("distribution.system.sglang"))
    for name in ("sglang", "torch"):
        if name == "sglang" and sglang is None:
            group.identity["distribution.sglang"] = absent()
    group.identity["nccl"] = nccl_version(layout)
    for key in ("engine", "torch", "environment"):
        if manifest.get(key) not in (None, [], {}):
            group.identity[f"manifest.{key}"] = redact(manifest[key])
    # A state is what a build holds, not how it came to: what a patch did is in group ``files``, and two locks that give
    # the same distributions give the same state.
    for key in ("patches", "overrides", "lock_digest", "digest"):
        group.condition[key] = manifest.get(key, absent())
    group.condition["name"] = manifest.get("name", layout.top.name)
    group.condition["pyvenv"] = {k: v for k, v in read_pyvenv(layout.venv / "pyvenv.cfg").items() if k != "command"}
    group.condition["path"] = str(layout.top)
    return group
