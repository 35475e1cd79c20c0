"""How long a look at a host's state takes: cold, warm, and with every file read again.

    python benchmarks/state.py [--build DIR] [--files 50000] [--root DIR]

Without ``--build`` a synthetic build of that many files is made (distributions with RECORDs, byte code beside the
sources). Prints one JSON object: seconds of wall and processor time, files, bytes read. Needs nothing but the core.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import shutil
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "module_utils"))

from plumbline.state.document import observe

PER_DISTRIBUTION = 500


def synthetic(build: Path, files: int) -> None:
    """A build of ``files`` files: half of them sources, each with its byte code, in distributions of 500 files."""
    site = build / "venv" / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    (build / "venv" / "pyvenv.cfg").write_text(f"home = {Path(sys.base_prefix) / 'bin'}\nversion = 3.11.0\n")
    made = 0
    number = 0
    while made < files:
        name = f"dist{number:03d}"
        rows: list[str] = []
        for i in range(min(PER_DISTRIBUTION, files - made) // 2):
            folder = site / name / f"p{i // 25}"
            (folder / "__pycache__").mkdir(parents=True, exist_ok=True)
            text = f"# module {i} of {name}\n".encode() * 40
            source = folder / f"m{i}.py"
            source.write_bytes(text)
            code = base64.urlsafe_b64encode(hashlib.sha256(text).digest()).rstrip(b"=").decode()
            rows.append(f"{source.relative_to(site)},sha256={code},{len(text)}")
            head = b"\xa7\r\r\n" + struct.pack("<III", 0, int(source.stat().st_mtime), len(text))
            (folder / "__pycache__" / f"m{i}.cpython-311.pyc").write_bytes(head + text)
            made += 2
        info = site / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "RECORD").write_text("\n".join([*rows, f"{info.name}/RECORD,,"]) + "\n")
        number += 1


def timed(what: Callable[[], dict[str, Any]], repeats: int) -> dict[str, Any]:
    """Median and worst wall time, median processor time (children included in neither) and the last result's cost."""
    walls, cpus = [], []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        found = what()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return {
        "wall_s": round(statistics.median(walls), 3),
        "worst_s": round(max(walls), 3),
        "cpu_s": round(statistics.median(cpus), 3),
        **found["cost"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=Path, help="a build or virtual environment to look at")
    parser.add_argument("--files", type=int, default=50000, help="size of the synthetic build")
    parser.add_argument("--root", type=Path, help="where digests are remembered (default: a temporary folder)")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = options.root or Path(scratch) / "root"
        build = options.build
        if build is None:
            build = root / "builds" / "synthetic"
            synthetic(build, options.files)
        time.sleep(1.2)  # what changed within the last second is not remembered
        shutil.rmtree(root / "cache", ignore_errors=True)

        def look(**more: Any) -> dict[str, Any]:
            return observe(root, build_dir=build, **more)

        report = {
            "build": "synthetic" if options.build is None else "given",
            "cold": timed(look, 1),
            "warm": timed(look, options.repeats),
        }
        changed = next(build.rglob("*.py"))
        changed.touch()
        report["one_file_touched"] = timed(look, 1)
        report["full"] = timed(lambda: look(full=True), 1)
        state = look()["state"]
        report["files"] = state["groups"]["files"]["condition"]["checked"]["files"]
        report["document_bytes"] = len(json.dumps(state))
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
