"""Runs the benchmarks and writes their tables, with the machine's description, to benchmarks/RESULTS.md.

    make bench ARGS="ready client"      # only those; without names: all
"""
from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
RESULTS = HERE / "RESULTS.md"


def engine() -> Path | None:
    """The environment of the CPU engine that `make demo` built, or None."""
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    found = data / "plumbline" / "builds" / "current" / "venv"
    return found if (found / "bin" / "python").exists() else None


def scripts() -> dict[str, tuple[str, list[str]]]:
    """Title and argv of each benchmark by name."""
    venv, models = engine(), ROOT / "models"
    peers = ["--engine", str(venv), "--model", str(models / "tiny-llama")] if venv else []
    out = {
        "ready": ("Ready lag and death lag", ["ready.py"]),
        "automation": ("What the automation costs", ["automation.py"]),
        "client": ("What the measuring client costs", ["client/bench.py", *peers]),
        "state": ("Observing the state", ["state.py", *(["--build", str(venv.parent)] if venv else [])]),
    }
    if venv:
        out["agreement"] = ("Agreement with other clients and with the server", [
            "agreement.py", "--engine", str(venv), "--target", str(models / "tiny-llama"),
            "--draft", str(models / "tiny-eagle3")])
    if (HERE / "hosts.py").exists():
        out["hosts"] = ("Running against hosts that need nothing", ["hosts.py"])
    return out


def machine() -> str:
    """A line that describes this machine."""
    model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    memory = int(re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text()).group(1)) / 2**20
    return (f"{os.cpu_count()} CPUs ({model.group(1) if model else platform.machine()}), {memory:.0f} GiB, "
            f"Linux {platform.release()}, Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}")


def sections() -> dict[str, str]:
    """The sections of RESULTS.md by their title, so that one benchmark can be run again by itself."""
    text = RESULTS.read_text() if RESULTS.exists() else ""
    parts = re.split(r"^## (.+)$", text, flags=re.M)
    return {parts[i].strip(): parts[i + 1].strip() for i in range(1, len(parts) - 1, 2)}


def write(kept: dict[str, str]) -> None:
    """Write RESULTS.md anew from its sections by title."""
    RESULTS.write_text("# Results\n\nRatios of one run each, on a machine whose other work was not held off: compare "
                       "within a table, not across.\n\n"
                       + "\n\n".join(f"## {title}\n\n{body}" for title, body in kept.items()) + "\n")


def main(names: list[str]) -> int:
    known = scripts()
    unknown = [n for n in names if n not in known]
    if unknown:
        print(f"unknown benchmark: {', '.join(unknown)}; allowed: {', '.join(known)}", file=sys.stderr)
        return 2
    made: dict[str, str] = {}
    failed = []
    for name in names or known:
        title, argv = known[name]
        print(f"{title} ...", flush=True)
        command = [sys.executable, str(HERE / argv[0]), *argv[1:]]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            print(done.stderr[-2000:], file=sys.stderr)
            failed.append(name)
            continue
        print(done.stdout)
        made[title] = f"`benchmarks/{argv[0]}`, {machine()}.\n\n{done.stdout.strip()}"
    write({**sections(), **made})  # read again: another benchmark may have written its own meanwhile
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
