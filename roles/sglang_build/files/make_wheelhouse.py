#!/usr/bin/env python3
"""Fill a folder with the files of a build lock, for hosts that reach no package index.

    make_wheelhouse.py LOCK.yml DIR --python 3.11 [--torch cpu|cuda] [-- PIP OPTIONS]

Run it where an index is reached, with any Python that has pip. Every file is checked against the lock. Without
`--torch` what only one build of torch needs is left out; give the build that your index has.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from plumbline.analysis.build.locks import read
from plumbline.build.lock import alternatives, machine_of, requirements
from plumbline.build.make import check_wheelhouse


def target_options(lock: dict[str, Any], python: str) -> list[str]:
    """pip's options for files of the hosts' Python and platform rather than those of this machine."""
    machine, minor = machine_of(lock), int(lock.get("glibc", "2.28").split(".")[1])
    # pip takes platform tags by equality, so every older glibc is named too.
    platforms = [f"manylinux_2_{older}_{machine}" for older in range(minor, 4, -1)]
    platforms += [f"manylinux{name}_{machine}" for name in ("2014", "2010", "1")] + [f"linux_{machine}"]
    abis = [f"cp{python.replace('.', '')}", "abi3", "none"]
    options = ["--only-binary", ":all:", "--python-version", python, "--implementation", "cp"]
    return [*options, *(x for a in abis for x in ("--abi", a)), *(x for p in platforms for x in ("--platform", p))]


def download(lines: list[str], folder: Path, options: list[str]) -> bool:
    """Download the files of requirement lines; False if pip could not."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
        f.write("\n".join(lines) + "\n")
        f.flush()
        argv = [sys.executable, "-m", "pip", "download", "--require-hashes", "--no-deps", "--dest", str(folder)]
        return subprocess.run([*argv, *options, "-r", f.name], check=False).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lock", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", required=True, help="minor version of the hosts' Python")
    parser.add_argument("--torch", choices=["cpu", "cuda"])
    parser.add_argument("pip", nargs="*", help="options for pip download, after --")
    args = parser.parse_args()
    lock = read(args.lock)
    if args.python not in lock["python"]:
        sys.exit(f"{args.lock} has no files for Python {args.python}: it serves {', '.join(lock['python'])}")
    args.folder.mkdir(parents=True, exist_ok=True)
    options = [*target_options(lock, args.python), *args.pip]
    for lines in alternatives(lock, args.python):
        if not any(download([line], args.folder, options) for line in lines):
            sys.exit(f"none of these could be had: {'; '.join(line.split()[0] for line in lines)}")
    lines = requirements(lock, None) + (requirements(lock, args.torch) if args.torch else [])
    if lines and not download(lines, args.folder, options):
        sys.exit(1)
    check_wheelhouse(args.folder, lock, str(args.lock))
    print(f"{args.folder}: the files of {lock['name']} for Python {args.python}")


if __name__ == "__main__":
    main()
