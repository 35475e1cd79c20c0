"""Small real builds for the tests: a virtual environment whose wheels were made here and installed by pip."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from plumbline.state import document

SITE = f"venv/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
SCHEDULER = "def step(batch):\n    return [token + 1 for token in batch]\n"


def wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> Path:
    """A wheel with a right RECORD."""
    info = f"{name}-{version}.dist-info"
    content = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    for file, text in content.items():
        code = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{file},sha256={code},{len(text.encode())}")
    rows.append(f"{info}/RECORD,,")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in content.items():
            archive.writestr(file, text)
        archive.writestr(f"{info}/RECORD", "\n".join(rows) + "\n")
    return path


def install(build: Path, *wheels: Path) -> None:
    """Install by pip, as a person would by hand."""
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(build / "venv/bin/python"),
            "install",
            "-q",
            "--no-index",
            "--no-deps",
            "--disable-pip-version-check",
            "--compile",
            *map(str, wheels),
        ],
        check=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PIP_CONFIG_FILE": os.devnull},
    )


def sglang_files(version: str, scheduler: str = SCHEDULER) -> dict[str, str]:
    return {
        "sglang/__init__.py": f"__version__ = {version!r}\n",
        "sglang/srt/__init__.py": "",
        "sglang/srt/managers/__init__.py": "",
        "sglang/srt/managers/scheduler.py": scheduler,
        "sglang/srt/entrypoints/engine.py": "def launch():\n    return 1\n",
    }


def make_build(root: Path, name: str = "aaa") -> Path:
    """A build of two wheels, as ``sglang`` and a dependency."""
    build = root / "builds" / name
    wheels = root / "wheelhouse"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(build / "venv")], check=True)
    install(
        build,
        wheel(wheels, "sglang", "0.5.23", sglang_files("0.5.23")),
        wheel(wheels, "tinydep", "1.0", {"tinydep/__init__.py": "ONE = 1\n", "tinydep/data.txt": "data\n"}),
    )
    (root / "builds" / "current").unlink(missing_ok=True)
    (root / "builds" / "current").symlink_to(name)
    return build


def copy_root(original: Path, target: Path) -> Path:
    """A root of its own for one test, without anything that was remembered."""
    shutil.copytree(original, target, symlinks=True, ignore=shutil.ignore_patterns("cache"))
    return target


def look(root: Path, *groups: str, **more: Any) -> dict:
    """The state's groups of a root (default: build and files)."""
    found = document.observe(root, groups=list(groups) or ["build", "files"], host="h", **more)["state"]
    return dict(found["groups"])
