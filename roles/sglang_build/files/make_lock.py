#!/usr/bin/env python3
"""Write a build lock's key `distributions` anew from requirement files, with the SHA-256 of every file that may serve.

    make_lock.py LOCK.yml --requirements FILE [--for-torch cuda=FILE ...] [--wheels DIR ...] [--uv PATH]

The lock must have its other keys already (name, engine, python, platform, ...); its text up to the line
`distributions:` is kept as it is. Requirement files pin every distribution (`name==version`), dependencies are not
followed; `--for-torch` gives those that are needed only beside one build of torch. File names and digests are asked
of the package index by `uv pip compile`, which downloads no wheel. `--wheels` adds wheels in a folder that the index
does not have, such as another build of torch; they are read and hashed here.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import tomllib
import yaml
from plumbline.build.lock import check_files, file_serves, machine_of, normal_name, public_version, wheel_parts
from plumbline.digest import file_digest


def ask_index(requirements: Path, python: str, lock: dict[str, Any], uv: str) -> dict[str, dict[str, Any]]:
    """name -> {version, files} of each pinned distribution for one Python, from the index that uv is configured for."""
    platform = f"{machine_of(lock)}-manylinux_{lock.get('glibc', '2.28').replace('.', '_')}"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "pylock.toml"
        subprocess.run(
            [
                uv,
                "pip",
                "compile",
                "--quiet",
                "--no-deps",
                "--format",
                "pylock.toml",
                "--python-version",
                python,
                "--python-platform",
                platform,
                "-o",
                str(out),
                str(requirements),
            ],
            check=True,
        )
        packages = tomllib.loads(out.read_text())["packages"]
    found = {}
    for package in packages:
        files = {}
        for file in [
            *package.get("wheels", []),
            *([package["sdist"]] if "sdist" in package and not package.get("wheels") else []),
        ]:
            name = file.get("name") or file["url"].rsplit("/", 1)[1]
            if file_serves(name, python, machine_of(lock)):
                files[name] = file["hashes"]["sha256"]
        found[normal_name(package["name"])] = {"version": package["version"], "files": files}
    return found


def merge(into: dict[str, dict[str, Any]], found: dict[str, dict[str, Any]], flavour: str | None) -> None:
    """Add one answer of the index to the distributions."""
    for name, entry in found.items():
        known = into.setdefault(
            name, {"version": entry["version"], **({"when": {"torch": flavour}} if flavour else {}), "files": {}}
        )
        if known["version"] != entry["version"]:
            sys.exit(f"{name} is pinned to {known['version']} and to {entry['version']}")
        known["files"].update(entry["files"])


def add_wheels(into: dict[str, dict[str, Any]], folder: Path) -> None:
    """Add the wheels in a folder that are another build of a pinned version."""
    for path in sorted(folder.glob("*.whl")):
        parts = wheel_parts(path.name)
        if parts and parts[0] in into and public_version(parts[1]) == public_version(into[parts[0]]["version"]):
            into[parts[0]]["files"][path.name] = file_digest(path)


def render(distributions: dict[str, dict[str, Any]]) -> str:
    """The key `distributions` as YAML, sorted."""
    tidy = {
        n: {k: (dict(sorted(v.items())) if k == "files" else v) for k, v in e.items()}
        for n, e in sorted(distributions.items())
    }
    return yaml.safe_dump({"distributions": tidy}, sort_keys=False, width=1000, default_flow_style=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lock", type=Path)
    parser.add_argument("--requirements", type=Path, required=True)
    parser.add_argument("--for-torch", action="append", default=[], metavar="cuda=FILE")
    parser.add_argument("--wheels", type=Path, action="append", default=[])
    parser.add_argument("--uv", default="uv")
    args = parser.parse_args()
    text = args.lock.read_text()
    head = text.partition("\ndistributions:")[0].rstrip() + "\n\n"
    lock = yaml.safe_load(text)
    distributions: dict[str, dict[str, Any]] = {}
    sources = [(None, args.requirements), *((f.partition("=")[0], Path(f.partition("=")[2])) for f in args.for_torch)]
    for python in lock["python"]:
        for flavour, file in sources:
            merge(distributions, ask_index(file, python, lock, args.uv), flavour)
    for folder in args.wheels:
        add_wheels(distributions, folder)
    lock["distributions"] = distributions
    check_files(lock, str(args.lock))
    args.lock.write_text(head + render(distributions))
    print(
        f"{args.lock}: {len(distributions)} distributions, {sum(len(e['files']) for e in distributions.values())} files"
    )


if __name__ == "__main__":
    main()
