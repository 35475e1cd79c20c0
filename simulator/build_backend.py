"""A PEP 517 build back end in the standard library, so that a host without a package index can build this wheel.

The version is taken from the config setting ``version``, else from the environment variable
``PLUMBLINE_SIMULATOR_VERSION``, else from the file ``VERSION``. Two builds of the simulator (``0.5.23+sim.a``,
``0.5.23+sim.b``) thus come from one source. The wheel is reproducible: same source and version, same bytes.
"""
from __future__ import annotations

import base64
import hashlib
import os
import re
import zipfile
from pathlib import Path
from typing import Dict, List, Optional, Tuple

HERE = Path(__file__).resolve().parent
NAME = "sglang"
EPOCH = (2026, 1, 1, 0, 0, 0)
VERSION_FORM = re.compile(r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9]+(\.[a-z0-9]+)*)?")


def _version(config_settings: Optional[dict]) -> str:
    """The version to build, in normal form (``-`` in the local part becomes ``.``)."""
    asked = (config_settings or {}).get("version") or os.environ.get("PLUMBLINE_SIMULATOR_VERSION")
    text = str(asked or (HERE / "VERSION").read_text(encoding="utf-8")).strip().lower()
    public, plus, local = text.partition("+")
    version = public + plus + re.sub(r"[-_]", ".", local)
    if not VERSION_FORM.fullmatch(version):
        raise ValueError(f"simulator: {text!r} is not a version; allowed: such as 0.5.23+sim.a")
    return version


def _metadata(version: str) -> str:
    return (f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\n"
            "Summary: An SGLang-shaped server with declared physics, for tests. It computes nothing and is not SGLang.\n"
            "License: Apache-2.0\nRequires-Python: >=3.9\n")


def _dist_info(version: str) -> Dict[str, str]:
    folder = f"{NAME}-{version}.dist-info"
    return {
        f"{folder}/METADATA": _metadata(version),
        f"{folder}/WHEEL": "Wheel-Version: 1.0\nGenerator: plumbline-simulator\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{folder}/entry_points.txt": "[console_scripts]\nsglang = sglang.cli.main:main\n",
    }


def _sources() -> List[Tuple[str, bytes]]:
    root = HERE / "src"
    return [(str(path.relative_to(root)), path.read_bytes()) for path in sorted(root.rglob("*"))
            if path.is_file() and path.suffix in (".py", ".json") and "__pycache__" not in path.parts]


def get_requires_for_build_wheel(config_settings: Optional[dict] = None) -> List[str]:
    """Nothing is needed."""
    del config_settings
    return []


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Optional[dict] = None) -> str:
    """Write the ``.dist-info`` folder and return its name."""
    version = _version(config_settings)
    for name, text in _dist_info(version).items():
        path = Path(metadata_directory) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return f"{NAME}-{version}.dist-info"


def build_wheel(wheel_directory: str, config_settings: Optional[dict] = None,
                metadata_directory: Optional[str] = None) -> str:
    """Write the wheel with its RECORD and return the wheel's file name."""
    del metadata_directory
    version = _version(config_settings)
    entries = _sources() + [(name, text.encode()) for name, text in sorted(_dist_info(version).items())]
    record_name = f"{NAME}-{version}.dist-info/RECORD"
    lines = []
    wheel = f"{NAME}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(Path(wheel_directory) / wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries:
            archive.writestr(_entry(name), data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(data)}")
        archive.writestr(_entry(record_name), "\n".join([*lines, f"{record_name},,"]) + "\n")
    return wheel


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    return entry
