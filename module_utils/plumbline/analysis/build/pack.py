"""Pack a source tree into a wheel whose bytes depend on the tree and the version alone.

The tree's own build backend makes the wheel; then what varies between machines (times, modes, order, the backend's
version) is written anew, and the version replaced where a lock asks for one.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from packaging.version import InvalidVersion, Version

from ...errors import PlumblineError

_EPOCH = (1980, 1, 1, 0, 0, 0)
# PEP 517 by hand: pip would fetch the backend anew for each build; the controller has setuptools already.
_BUILD = """
import sys
from setuptools import build_meta
print(build_meta.build_wheel(sys.argv[1]))
"""
_NOT_SOURCE = shutil.ignore_patterns("__pycache__", "*.pyc", ".git", "build", "dist", "*.egg-info")


def normal_version(version: str, where: str) -> str:
    """The version as PEP 440 writes it (``0.5.23+sim-a`` -> ``0.5.23+sim.a``), as it stands in a wheel's name."""
    try:
        return str(Version(version))
    except InvalidVersion:
        raise PlumblineError(
            "not a version that a wheel can carry",
            where,
            version,
            "PEP 440, e.g. 0.5.23+sim.a",
            "put free text behind a + sign",
        ) from None


def pack(tree: Path, version: str, out: Path) -> Path:
    """Make the wheel of ``tree`` as ``version`` in the folder ``out``; returns its path. Equal trees give equal
    bytes."""
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "source", Path(folder) / "made"
        shutil.copytree(tree, source, ignore=_NOT_SOURCE)
        made.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", _BUILD, str(made)], cwd=source, capture_output=True, text=True, check=False
        )
        wheels = list(made.glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            raise PlumblineError(
                "a local source tree cannot be packed",
                str(tree),
                " / ".join(done.stderr.strip().splitlines()[-4:]),
                "a setuptools project in plain Python",
                "run python -m pip wheel --no-deps there to see why",
            )
        return _rewrite(wheels[0], normal_version(version, str(tree)), out)


def _rewrite(wheel: Path, version: str, out: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        files = {i.filename: archive.read(i) for i in archive.infolist() if not i.is_dir()}
    name, old, *tags = wheel.stem.split("-")
    info, new_info = f"{name}-{old}.dist-info", f"{name}-{version}.dist-info"
    files = {re.sub(f"^{re.escape(info)}/", f"{new_info}/", k): v for k, v in files.items()}
    if any(tag not in ("py3", "none", "any") for tag in tags):
        raise PlumblineError(
            "a local source tree with compiled parts cannot be packed on the controller",
            wheel.name,
            "-".join(tags),
            "py3-none-any",
            "put its wheel into a wheelhouse and lock that",
        )
    metadata = files[f"{new_info}/METADATA"].decode()
    files[f"{new_info}/METADATA"] = re.sub(r"(?m)^Version: .*$", f"Version: {version}", metadata, count=1).encode()
    tag = re.findall(r"(?m)^(Root-Is-Purelib: .*|Tag: .*)$", files[f"{new_info}/WHEEL"].decode())
    files[f"{new_info}/WHEEL"] = ("Wheel-Version: 1.0\nGenerator: plumbline\n" + "\n".join(sorted(tag)) + "\n").encode()
    record = f"{new_info}/RECORD"
    del files[record]
    lines = [
        f"{n},sha256={base64.urlsafe_b64encode(hashlib.sha256(d).digest()).rstrip(b'=').decode()},{len(d)}"
        for n, d in sorted(files.items())
    ]
    files[record] = ("\n".join([*lines, f"{record},,"]) + "\n").encode()
    out.mkdir(parents=True, exist_ok=True)
    target = out / f"{name}-{version}-{'-'.join(tags)}.whl"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for n in sorted(files):
            entry = zipfile.ZipInfo(n, _EPOCH)
            entry.external_attr = 0o100644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, files[n])
    return target
