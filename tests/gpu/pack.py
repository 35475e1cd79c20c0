"""Pack what a GPU machine without network needs into ``.gpu/`` (git ignores it): SGLang, ansible-core, models' shapes.

    python tests/gpu/pack.py [--pins FILE] [--out .gpu] [--cache DIR] [--kernels DIR] [--kernel sm90|sm100] [--level N]

Wheels come from the package index that pip is configured for (CPython 3.12, x86-64). Of each, only what the run needs is
kept, its RECORD along with it; the archive is `carried.tar.xz` with `site/` (the engine), `controller/` (ansible-core),
`jit/` (with --kernels: SGLang's small kernels, which an earlier run has built and brought back) and `carried.json`, which
holds each wheel's version and SHA-256. At most 64 MiB may travel, the project's own files included.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import io
import json
import lzma
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent.parent
LIMIT = 64 << 20
PARTS = {"engine": ("site",), "controller": ("controller",), "both": ("site", "controller")}
PLATFORMS = [f"manylinux_2_{n}_x86_64" for n in (39, 35, 34, 31, 28, 27, 26, 24, 17, 12, 5)] + [
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
    "linux_x86_64",
]
# Never read where the run goes: scripts with a path of the packing machine, type stubs, sources of compiled parts.
_NEVER = re.compile(r".*\.data/scripts/.*|.*\.pyi$|.*\.(cpp|cc|lib|a)$")
_NEEDED = re.compile(r"^(sglang|tvm_ffi)/")


@dataclass(frozen=True)
class Pin:
    """One line of pins.txt. ``keep``: of compiled libraries only these paths; ``drop``: none below these prefixes."""

    name: str
    version: str
    part: str
    keep: tuple[str, ...] = field(default=())
    drop: tuple[str, ...] = field(default=())


def read_pins(text: str, where: str = "pins.txt") -> list[Pin]:
    """The pins of a file. Raises ValueError naming the line that is none."""
    pins = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        match = re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.+!]+)", words[0])
        options = dict(word.partition("=")[::2] for word in words[2:])
        if not match or len(words) < 2 or words[1] not in PARTS or set(options) - {"keep", "drop"}:
            raise ValueError(
                f"{where}, line {number}: found {line!r}; allowed: name==version {'|'.join(PARTS)} [keep=PATH,..] [drop=PREFIX,..]"
            )
        pins.append(
            Pin(
                match[1],
                match[2],
                words[1],
                *(tuple(filter(None, options.get(k, "").split(","))) for k in ("keep", "drop")),
            )
        )
    return pins


def wanted(path: str, pin: Pin) -> bool:
    """Whether this file of the pin's wheel is carried."""
    if any(path.startswith(prefix) for prefix in pin.drop):
        return False
    if pin.keep and path.endswith(".so"):
        return path in pin.keep
    return not (_NEVER.fullmatch(path) and not _NEEDED.match(path))


def trimmed_record(text: str, kept: Iterable[str]) -> str:
    """A wheel's RECORD without the files that were left out, so that what is there can be checked against it."""
    names = set(kept)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in csv.reader(io.StringIO(text)):
        if row and row[0] in names:
            writer.writerow(row)
    return out.getvalue()


def faults(record: str, root: Path) -> list[str]:
    """Files of a RECORD that are not below ``root`` as it says."""
    found = []
    for path, digest, _ in csv.reader(io.StringIO(record)):
        if not digest:
            continue
        file = root / path
        got = (
            base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).rstrip(b"=").decode()
            if file.is_file()
            else ""
        )
        if digest != f"sha256={got}":
            found.append(path)
    return found


def download(pin: Pin, cache: Path) -> Path:
    """The pin's wheel, from the cache or the index."""
    stem = re.sub(r"[-_.]+", "_", pin.name).lower()

    def there() -> list[Path]:
        return [
            p
            for p in cache.glob("*.whl")
            if re.sub(r"[-_.]+", "_", p.name.split("-")[0]).lower() == stem and p.name.split("-")[1] == pin.version
        ]

    if not there():
        platforms = [word for p in PLATFORMS for word in ("--platform", p)]
        abis = ["--abi", "cp312", "--abi", "abi3", "--abi", "none"]
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "-q",
                "--no-deps",
                "--only-binary=:all:",
                "--python-version",
                "3.12",
                "--implementation",
                "cp",
                *abis,
                *platforms,
                "-d",
                str(cache),
                f"{pin.name}=={pin.version}",
            ],
            check=True,
        )
    return there()[0]


def unpack(wheel: Path, pin: Pin, root: Path) -> None:
    """Lay the wanted files of a wheel out below ``root`` and check them against the RECORD."""
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if not n.endswith("/") and wanted(n, pin)]
        missing = set(pin.keep) - set(names)
        if missing:
            raise SystemExit(f"{wheel.name} has no {', '.join(sorted(missing))}")
        for name in names:
            archive.extract(name, root)
        record = next(n for n in names if n.endswith(".dist-info/RECORD"))
        text = trimmed_record(archive.read(record).decode(), names)
    (root / record).write_text(text)
    wrong = faults(text, root)
    if wrong:
        raise SystemExit(f"{wheel.name}: not as its RECORD says: {', '.join(wrong[:5])}")


def archive(folder: Path, target: Path, level: int = 6) -> None:
    """``folder`` as a tar, compressed with xz in independent blocks, so that many cores can unpack it."""
    with tempfile.TemporaryDirectory() as scratch:
        plain = Path(scratch) / "carried.tar"
        with tarfile.open(plain, "w") as tar:
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    tar.add(path, str(path.relative_to(folder)))
        xz = shutil.which("xz")
        if xz:
            with open(target, "wb") as out:
                subprocess.run(
                    [xz, "-T2", f"-{level}", "--block-size=32MiB", "-c", str(plain)], stdout=out, check=True
                )
        else:
            with lzma.open(target, "wb", preset=level) as out, open(plain, "rb") as source:
                shutil.copyfileobj(source, out)


def travelling(project: Path, out: Path) -> int:
    """Bytes of the project's files (tracked and untracked, not ignored) and of ``out``."""
    listed = subprocess.run(
        ["git", "-C", str(project), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=True,
    ).stdout
    names = [project / n.decode() for n in listed.split(b"\0") if n]
    return sum(p.stat().st_size for p in [*names, *out.rglob("*")] if p.is_file())


def ignore(project: Path, name: str) -> None:
    """Have git ignore ``/name/`` in this clone only."""
    path = project / ".git" / "info" / "exclude"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = path.read_text().splitlines() if path.exists() else []
    if f"/{name}/" not in lines:
        path.write_text("\n".join([*lines, f"/{name}/"]) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pins", type=Path, default=HERE / "pins.txt")
    parser.add_argument("--out", type=Path, default=PROJECT / ".gpu")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "plumbline-gpu-wheels")
    parser.add_argument("--kernels", type=Path, help="folder of built kernels that a run has brought back")
    parser.add_argument(
        "--kernel", choices=["sm90", "sm100"], default="sm90", help="architecture of sglang-kernel's library"
    )
    parser.add_argument("--level", type=int, default=6, choices=range(10), help="of xz: 2 is quick and 15 % larger")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)
    ignore(PROJECT, options.out.name)
    pins = read_pins(
        options.pins.read_text().replace("sgl_kernel/sm90/", f"sgl_kernel/{options.kernel}/"), str(options.pins)
    )
    with tempfile.TemporaryDirectory() as scratch:
        stage = Path(scratch)
        carried = {}
        for pin in pins:
            wheel = download(pin, options.cache)
            for folder in PARTS[pin.part]:
                (stage / folder).mkdir(exist_ok=True)
                unpack(wheel, pin, stage / folder)
            carried[pin.name] = {
                "version": pin.version,
                "file": wheel.name,
                "part": pin.part,
                "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
            }
        if options.kernels:
            shutil.copytree(options.kernels, stage / "jit")
        (stage / "carried.json").write_text(json.dumps(carried, indent=1, sort_keys=True))
        archive(stage, options.out / "carried.tar.xz", options.level)
    size, total = (options.out / "carried.tar.xz").stat().st_size, travelling(PROJECT, options.out)
    print(
        f"{options.out / 'carried.tar.xz'}: {size / 2**20:.1f} MiB; with the project {total / 2**20:.1f} MiB of {LIMIT >> 20} MiB"
    )
    if total > LIMIT:
        raise SystemExit("too much to travel")


if __name__ == "__main__":
    main()
