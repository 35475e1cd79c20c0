"""Models whose files come from the controller: whether they are there, and are what the catalogue says."""
from __future__ import annotations

from pathlib import Path

from ..digest import file_digest
from ..errors import PlumblineError
from ..models.catalogue import Model, check_complete


def folder_of(model: Model, root: Path) -> Path:
    """The model's folder on the controller, in which all its files are; ``root``: what a relative path starts from."""
    folder = root / Path(model.location).expanduser()
    where = f"plumbline_models.{model.name}.source.controller, {folder}"
    if not folder.is_dir():
        raise PlumblineError("no such folder on the controller", where, model.location, "a folder of the project",
                             "mend the path, which is taken from the project's root")
    missing = sorted(path for path in model.files if not (folder / path).is_file())
    if missing:
        there = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
        check_complete(there, where)
        raise PlumblineError("files of the model are missing", where, ", ".join(there) or "nothing",
                             f"also {', '.join(missing)}", "restore them (git checkout) or correct the catalogue")
    return folder


def check_digests(folder: Path, model: Model) -> None:
    """Refuse files that are not those of the catalogue: a wrong one is not even sent."""
    for path, sha256 in model.files.items():
        found = file_digest(folder / path)
        if found != sha256:
            raise PlumblineError(f"wrong digest of {path}: it is not the file that the catalogue names",
                                 f"plumbline_models.{model.name}.source.controller, {folder}",
                                 f"SHA-256 {found}", sha256,
                                 "restore the file (git checkout), or correct its digest in plumbline_models")
