"""How long after a server is ready, or dead, does one know? Prints a Markdown table.

    .venv/bin/python benchmarks/ready.py [--starts 24] [--period 15]

Starts a small stand-in (a real process with SGLang's log lines that binds its port late) again and again. For each
start the lag is from the moment at which the stand-in is ready, or dies, by its own clock, to the moment at which
`plumbline.server.ready.wait` returns with the result: the module plumbline_ready but for Ansible's own overhead.

Beside it the loop that people write, for real and in the same run, many at once since it only sleeps:

    until curl --silent --fail --output /dev/null http://127.0.0.1:PORT/health; do sleep 15; done

Their servers take from 1 s to 1 s + the period to load, evenly spread, so that every phase of the loop comes up alike.
That loop cannot tell death from loading: it goes on until somebody stops it, so its death lag is not a number.
"""
from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "module_utils"))

from plumbline.ids import ulid
from plumbline.server import control, ready, supervisor

STANDIN = Path(__file__).parents[1] / "tests" / "unit" / "server" / "standin.py"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def marks(path: Path) -> dict[str, float]:
    return {entry["mark"]: entry["at"] for entry in map(json.loads, path.read_text().splitlines())}


def start(root: Path, port: int, *options: str) -> tuple[str, Path]:
    boot = ulid()
    file = root / f"{boot}.marks"
    argv = [sys.executable, str(STANDIN), "--port", str(port), "--model-path", "/m", "--marks", str(file)]
    control.start(root, boot, [*argv, "--workers", "2", *options], {"PATH": os.environ["PATH"]}, ready_port=port,
                  grace_s=0.2)
    return boot, file


def one(root: Path, fail: bool, load_s: float) -> float:
    """Lag in seconds of one start."""
    port = free_port()
    way = ["--fail", "crash"] if fail else ["--warm-up-s", "0.2"]
    boot, file = start(root, port, "--load-s", f"{load_s:.3f}", *way)
    found = ready.wait(root, boot, f"http://127.0.0.1:{port}", "/m", timeout_s=60)
    at = time.monotonic()
    if found["ready"] == fail or (fail and found["failure"]["class"] != "cuda_oom"):
        raise SystemExit(f"the stand-in was read wrongly: {found}")
    lag = at - marks(file)["dying" if fail else "fired"]
    control.stop(root, boot)
    return lag


def curl_loop(root: Path, load_s: float, period: float) -> float:
    """Lag in seconds of the loop that people write."""
    port = free_port()
    boot, file = start(root, port, "--load-s", f"{load_s:.3f}")
    while subprocess.run(["curl", "--silent", "--fail", "--output", os.devnull, f"http://127.0.0.1:{port}/health"],
                         check=False).returncode:
        time.sleep(period)
    lag = time.monotonic() - marks(file)["fired"]
    control.stop(root, boot)
    return lag


def row(name: str, lags: list[float]) -> str:
    return f"| {name} | {len(lags)} | {statistics.median(lags):.3f} | {max(lags):.3f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=24)
    parser.add_argument("--period", type=float, default=15.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="plumbline-bench-") as folder:
        root = Path(folder)
        for name in ("bin", "boots", "spool"):
            (root / name).mkdir()
        shutil.copy(supervisor.__file__, root / "bin" / "plumbline-supervise")
        loads = [0.2 + 1.0 * i / given.starts for i in range(given.starts)]
        try:
            lags = [one(root, False, load_s) for load_s in loads]
            deaths = [one(root, True, load_s) for load_s in loads]
            spread = [1 + given.period * i / given.starts for i in range(given.starts)]
            with ThreadPoolExecutor(given.starts) as pool:
                curled = list(pool.map(lambda load_s: curl_loop(root, load_s, given.period), spread))
        finally:
            control.stop_all(root)
    print("| lag, seconds | starts | median | worst |\n|---|---|---|---|")
    print(row("plumbline_ready: ready", lags))
    print(row("plumbline_ready: dead, with the cause", deaths))
    print(row(f"`curl` every {given.period:g} s: ready", curled))
    print(f"| `curl` every {given.period:g} s: dead | - | never | never |")


if __name__ == "__main__":
    main()
