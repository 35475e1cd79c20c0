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

from plumbline.analysis.build.locks import read
from plumbline.build.lock import machine_of, requirements
from plumbline.build.make import check_wheelhouse


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
    lines = requirements(lock, None) + (requirements(lock, args.torch) if args.torch else [])
    glibc = [int(p) for p in lock.get("glibc", "2.28").split(".")]
    # pip takes platform tags by equality, so every older glibc is named too.
    platforms = [f"manylinux_2_{minor}_{machine_of(lock)}" for minor in range(glibc[1], 4, -1)]
    platforms += [f"manylinux{name}_{machine_of(lock)}" for name in ("2014", "2010", "1")] + [
        f"linux_{machine_of(lock)}"
    ]
    args.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
        f.write("\n".join(lines) + "\n")
        f.flush()
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--require-hashes",
                "--no-deps",
                "--only-binary",
                ":all:",
                "--python-version",
                args.python,
                "--implementation",
                "cp",
                "--abi",
                f"cp{args.python.replace('.', '')}",
                "--abi",
                "abi3",
                "--abi",
                "none",
                *(x for p in platforms for x in ("--platform", p)),
                "--dest",
                str(args.folder),
                "-r",
                f.name,
                *args.pip,
            ],
            check=True,
        )
    check_wheelhouse(args.folder, lock, str(args.lock))
    print(f"{args.folder}: {len(lines)} distributions of {lock['name']} for Python {args.python}")


if __name__ == "__main__":
    main()
