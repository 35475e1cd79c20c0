"""Settings of a host as files and in force: folders, configuration files, sysctls, values below /sys.

``wanted`` -> what differs -> apply. A setting is a file (so that it holds after a boot) and a value in the running
kernel (so that it holds now); both are looked at each time, and only what differs is touched.
"""

from __future__ import annotations

import glob
import stat
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence

from ..errors import PlumblineError
from ..files import write_atomic

HEADER = "# Written by Plumbline; a change made here is undone by the next run.\n"


def sysctl_text(sysctls: Mapping[str, Any]) -> str:
    """A file for /etc/sysctl.d (sysctl.d(5)); a leading dash: not every kernel has that setting."""
    return HEADER + "".join(f"{name} = {value}\n" for name, value in sysctls.items())


def sysctls_kept(path: Path, known: Mapping[str, Any]) -> Dict[str, Any]:
    """Those of the ``known`` values whose names the file at ``path`` has."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return {}
    said = [line for line in map(str.strip, lines) if "=" in line and line[0] not in "#;"]
    names = {line.partition("=")[0].strip().lstrip("-") for line in said}
    return {name: value for name, value in known.items() if name in names}


def tmpfiles_text(values: Mapping[str, Any]) -> str:
    """A file for /etc/tmpfiles.d (tmpfiles.d(5)) that writes values below /sys at each boot; paths may be globs."""
    return HEADER + "".join(f"w {path} - - - - {value}\n" for path, value in values.items())


def _proc(root: Path, name: str) -> Path:
    return root / "proc/sys" / name.replace(".", "/")


def _same(now: str, wanted: Any) -> bool:
    # "madvise" is in force where the kernel shows "always [madvise] never".
    text = " ".join(str(wanted).split())
    return " ".join(now.split()) == text or f"[{text}]" in now.split()


def sysctl_differences(sysctls: Mapping[str, Any], root: Path = Path("/")) -> List[Dict[str, str]]:
    """``[{path, name, was, now}]`` of what is not in force. Raises PlumblineError for a key that this kernel lacks."""
    out = []
    for key, value in sysctls.items():
        name = key.lstrip("-")
        path = _proc(root, name)
        try:
            was = path.read_text().strip()
        except FileNotFoundError:
            if key.startswith("-"):
                continue
            raise PlumblineError(
                "this kernel has no such setting",
                "gpu_host_sysctls",
                name,
                None,
                f"take {name} out, or write it as -{name} if only some kernels have it",
            ) from None
        if not _same(was, value):
            out.append({"path": str(path), "name": name, "was": " ".join(was.split()), "now": str(value)})
    return out


def sysfs_differences(values: Mapping[str, Any], root: Path = Path("/")) -> List[Dict[str, str]]:
    """``[{path, name, was, now}]`` for files below /sys; a pattern that fits no file asks for nothing."""
    out = []
    for pattern, value in values.items():
        for found in sorted(glob.glob(str(root) + pattern if str(root) != "/" else pattern)):  # noqa: PTH207
            was = Path(found).read_text().strip()
            if not _same(was, value):
                out.append({"path": found, "name": found, "was": was, "now": str(value)})
    return out


def folder_differences(folders: Sequence[Mapping[str, Any]], root: Path = Path("/")) -> List[Dict[str, Any]]:
    """``[{path, was, now}]``, modes in octal; ``was`` is "absent" where there is none. Raises PlumblineError if
    something else has that name."""
    out = []
    for entry in folders:
        path, wanted = root / str(entry["path"]).lstrip("/"), int(str(entry.get("mode", "0755")), 8)
        try:
            found = path.stat()
        except FileNotFoundError:
            out.append({"path": str(path), "was": "absent", "now": f"{wanted:04o}"})
            continue
        if not stat.S_ISDIR(found.st_mode):
            raise PlumblineError("not a folder", str(path), "a file", "a folder", "move it away")
        if stat.S_IMODE(found.st_mode) != wanted:
            out.append({"path": str(path), "was": f"{stat.S_IMODE(found.st_mode):04o}", "now": f"{wanted:04o}"})
    return out


def file_differences(files: Sequence[Mapping[str, Any]], root: Path = Path("/")) -> List[Dict[str, Any]]:
    """``[{path, was: text|null, now: text|null, mode}]``; ``content`` null asks for no file."""
    out = []
    for entry in files:
        path, wanted, mode = (
            root / str(entry["path"]).lstrip("/"),
            entry.get("content"),
            int(str(entry.get("mode", "0644")), 8),
        )
        try:
            was = path.read_text(errors="replace")
            same = was == wanted and stat.S_IMODE(path.stat().st_mode) == mode
        except FileNotFoundError:
            was, same = None, wanted is None
        if not same:
            out.append({"path": str(path), "was": was, "now": wanted, "mode": mode})
    return out


def apply(differences: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write what ``*_differences`` found (keys ``folders``, ``files`` and ``values``). Raises PlumblineError naming the
    setting."""
    for entry in differences["folders"]:
        try:
            Path(entry["path"]).mkdir(int(entry["now"], 8), parents=True, exist_ok=True)
            Path(entry["path"]).chmod(int(entry["now"], 8))
        except OSError as error:
            raise PlumblineError(
                f"a folder cannot be had: {error.strerror}",
                entry["path"],
                entry["was"],
                f"a folder of mode {entry['now']}",
                "choose a place that the user may write to (plumbline_root), or become one who may write there",
            ) from error
    for entry in differences["files"]:
        if entry["now"] is None:
            Path(entry["path"]).unlink()
        else:
            write_atomic(entry["path"], entry["now"], entry["mode"])
    for entry in differences["values"]:
        try:
            Path(entry["path"]).write_text(f"{entry['now']}\n")
        except OSError as error:
            raise PlumblineError(
                f"the kernel refused a setting: {error.strerror}",
                entry["name"],
                entry["now"],
                None,
                "in a container the machine below owns it; else take it out of the role's variables",
            ) from error
