"""Give a virtual environment its pip, by unpacking the wheel that the Python below it ships for `ensurepip`.

`python -m venv` has pip install itself from that wheel, which takes most of the time of a small build, and on Python
3.11 brings a setuptools along that no lock names.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

_SCRIPT = "#!{python}\nimport sys\nfrom pip._internal.cli.main import main\nsys.exit(main())\n"


def _line(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}"


def unpack_pip(wheel: Path, site: Path, bin_dir: Path) -> None:
    """Install pip's pure wheel into ``site`` with a command ``pip`` in ``bin_dir``; recorded as pip would have."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
        info = next(n.partition("/")[0] for n in archive.namelist() if n.split("/")[0].endswith(".dist-info"))
    lines = []
    script = _SCRIPT.format(python=bin_dir / "python").encode()
    for name in ("pip", "pip3"):
        (bin_dir / name).write_bytes(script)
        (bin_dir / name).chmod(0o755)
        lines.append(_line(f"../../../bin/{name}", script))
    (site / info / "INSTALLER").write_bytes(b"pip\n")
    lines.append(_line(f"{info}/INSTALLER", b"pip\n"))
    record = site / info / "RECORD"
    record.write_text(record.read_text().rstrip("\n") + "\n" + "\n".join(lines) + "\n")
