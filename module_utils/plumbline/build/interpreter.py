"""Find the Python that a build is made with: one of the minor versions that the lock has hashes for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from ..errors import PlumblineError

# Run by each candidate, with -I: what it really is. A version manager's shim answers for the Python behind it, or
# fails.
_PROBE = """
import glob, json, os, platform, sys
ok = []
for name in ("venv", "ensurepip", "zlib", "ssl", "ctypes"):
    try:
        __import__(name)
        ok.append(name)
    except ImportError:
        pass
wheels = []
if "ensurepip" in ok:
    import ensurepip
    bundled = os.path.join(os.path.dirname(ensurepip.__file__), "_bundled")
    for folder in (bundled, getattr(ensurepip, "_WHEEL_PKG_DIR", None)):
        wheels += sorted(glob.glob(os.path.join(folder, "pip-*.whl"))) if folder else []
base = getattr(sys, "_base_executable", None) or sys.executable
print(json.dumps({
    # Whatever link it was called by: a virtual environment keeps the name, and with it builds would differ.
    "path": os.path.realpath(base if sys.prefix != sys.base_prefix else sys.executable),
    "version": "%d.%d.%d" % sys.version_info[:3],
    "implementation": sys.implementation.name,
    "bits": 64 if sys.maxsize > 2**32 else 32,
    "modules": ok,
    "machine": platform.machine(),
    "system": platform.system().lower(),
    "libc": list(platform.libc_ver()),
    "pip_wheel": wheels[-1] if wheels else None,
}))
"""
_NEEDED = ("venv", "ensurepip", "zlib", "ssl", "ctypes")
_PROBE_TIMEOUT_S = 20


def probe(path: str) -> Dict[str, Any]:
    """Ask an interpreter what it is: ``{path, version, implementation, bits, modules, machine, system, libc}``, or
    ``{error}``."""
    try:
        done = subprocess.run(
            [path, "-I", "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        return {"error": str(e)}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]}
    try:
        return json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {"error": f"unexpected answer: {done.stdout[:200]!r}"}


def candidates(pythons: Sequence[str], home: Optional[Path] = None, search_path: Optional[str] = None) -> Iterator[str]:
    """Paths that may be a Python of the wanted minors, most wanted first; each file once.

    Looked at: the Python that runs this, PATH, /usr/bin and /usr/local/bin, pyenv's versions, uv's, /opt/python*.
    """
    home = Path.home() if home is None else home
    on_path = [
        Path(p) for p in (os.environ.get("PATH", "") if search_path is None else search_path).split(os.pathsep) if p
    ]
    running = getattr(sys, "_base_executable", None) or sys.executable
    seen = set()
    for python in pythons:
        name = f"python{python}"
        found: List[Path] = []
        if running and sys.version_info[:2] == tuple(int(p) for p in python.split(".")):
            found.append(Path(running))
        found += [folder / name for folder in [*on_path, Path("/usr/bin"), Path("/usr/local/bin"), home / ".local/bin"]]
        pyenv = Path(os.environ.get("PYENV_ROOT") or home / ".pyenv")
        for root, pattern in (
            (pyenv / "versions", f"{python}.*/bin/{name}"),
            (home / ".local/share/uv/python", f"cpython-{python}*/bin/{name}"),
            (Path("/opt"), f"python*/bin/{name}"),
        ):
            found += reversed(_matching(root, pattern))
        for path in found:
            try:
                real = str(path.resolve(strict=True))
            except (OSError, RuntimeError):
                continue
            # A shim is one script behind many names: the name belongs to what it is.
            key = (real, path.name) if "shims" in path.parts else real
            if key not in seen and os.access(path, os.X_OK):
                seen.add(key)
                yield str(path)


def _matching(folder: Path, pattern: str) -> List[Path]:
    """Sorted paths; none where the folder may not be read: PYENV_ROOT and PATH may be left over from another user."""
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def _others() -> List[str]:
    """Versions of Python on PATH that no lock was asked for: to say in a refusal what there is instead."""
    out = []
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        for path in _matching(Path(folder or "."), "python3*"):
            if path.name.replace("python3", "").strip(".").isdigit() or path.name == "python3":
                found = probe(str(path))
                if "version" in found:
                    out.append(f"{found['version']} ({path})")
    return sorted(set(out))


def _fault(
    found: Dict[str, Any], pythons: Sequence[str], platform: str, glibc: Optional[str]
) -> Optional[Tuple[str, str]]:
    """(what is wrong, remedy) with a probed interpreter; None if it serves."""
    if "error" in found:
        return f"does not run: {found['error']}", "mend or remove it"
    minor = ".".join(found["version"].split(".")[:2])
    if minor not in pythons:
        return f"is Python {found['version']}", f"the lock has hashes for {' and '.join(pythons)} only"
    if found["implementation"] != "cpython" or found["bits"] != 64:
        return f"is {found['bits']}-bit {found['implementation']}", "64-bit CPython is needed"
    missing = [m for m in _NEEDED if m not in found["modules"]]
    if missing:
        package = f"python{minor}-venv" if set(missing) <= {"venv", "ensurepip"} else f"a complete Python {minor}"
        return f"lacks the modules {', '.join(missing)}", f"install {package}"
    if f"{found['system']}-{found['machine']}" != platform:
        return f"is for {found['system']}-{found['machine']}", f"the lock is for {platform}"
    libc, version = found["libc"]
    if glibc and (libc != "glibc" or _release(version) < _release(glibc)):
        return f"runs on {libc or 'another libc'} {version}".rstrip(), f"the lock's wheels need glibc {glibc} or newer"
    return None


def _release(version: str) -> List[int]:
    return [int(p) for p in version.split(".") if p.isdigit()]


def find(
    pythons: Sequence[str], platform: str, glibc: Optional[str] = None, given: Optional[str] = None
) -> Dict[str, Any]:
    """The interpreter to build with, as `probe` describes it.

    :param pythons: minor versions that the lock has hashes for, most wanted first, e.g. ``["3.11", "3.12"]``
    :param given: a path or a command's name set by the user: then this one and no other
    :raises PlumblineError: none serves; says what each one found lacks
    """
    wanted = " or ".join(pythons)
    if given:
        found = probe(given)
        fault = _fault(found, pythons, platform, glibc)
        if fault:
            raise PlumblineError(
                f"the given Python {fault[0]}",
                "sglang_build_engine_python",
                given,
                f"CPython {wanted} with venv, {platform}",
                fault[1],
            )
        return found
    faults = []
    for path in candidates(pythons):
        found = probe(path)
        fault = _fault(found, pythons, platform, glibc)
        if fault is None:
            return found
        faults.append(f"{path} {fault[0]} ({fault[1]})")
    seen = faults or [f"only {', '.join(_others()) or 'no Python at all'}"]
    raise PlumblineError(
        f"no Python {wanted} for the engine on this host",
        "sglang_build_engine_python",
        "; ".join(seen),
        f"CPython {wanted} with venv, {platform}",
        f"install Python {pythons[0]} with its venv module, or set sglang_build_engine_python to one",
    )
