"""The engine's texts as its wheel brought them, kept below the root: an edit that is found later can be shown as a
diff and captured as a patch, also where no wheel and no other build of the host has the original."""

from __future__ import annotations

import contextlib
import zipfile
from importlib.metadata import distributions
from pathlib import Path

from . import installed

# Larger files are data, which nobody edits by hand.
MOST_BYTES = 1_000_000


def path_of(root: Path, digest: str) -> Path:
    """Where the originals of the build ``digest`` are kept: a zip file with paths as below site-packages."""
    return root / "wheels" / f"sglang-{digest[:12]}.whl"


def keep(root: Path, site: Path, digest: str) -> None:
    """Write them, from a build whose patches were not applied yet. Nothing is kept of a build without SGLang."""
    found = next((d for d in distributions(path=[str(site)])
                  if installed.normal_name(d.metadata["Name"]) == "sglang"), None)  # fmt: skip
    out = path_of(root, digest)
    if found is None or out.exists():
        return
    out.parent.mkdir(exist_ok=True)
    new = out.with_suffix(".new")
    try:
        with zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for file in found.files or []:
                path = Path(str(found.locate_file(file)))
                if ".." in file.parts or not path.is_file() or path.stat().st_size > MOST_BYTES:
                    continue
                data = path.read_bytes()
                with contextlib.suppress(UnicodeDecodeError):
                    data.decode("utf-8")
                    archive.writestr(str(file), data)
        new.replace(out)
    finally:
        new.unlink(missing_ok=True)
