"""What the automation costs: wall time of a matrix less the time in which servers started and measured.

    .venv/bin/python benchmarks/automation.py [--hosts 1]

Runs `playbooks/matrix.yml` with experiments/demo.yml on a simulated host (the server is quick, so that what is left is
Ansible's and ours), and then, in the same run, a plain loop without Ansible that starts the same servers with the same
argv, polls them, and measures them with the same client. What starting and measuring take (warm-up, caches flushed, the
window, the checks) is that of the loop, for both: nothing but the automation differs. Prints a Markdown table: seconds
a boot.
"""
from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from plumbline.analysis.store import Results
from plumbline.ids import ulid
from plumbline.measure import measurement

ROOT = Path(__file__).parents[1]
PHYSICS = ROOT / "tests" / "scenario" / "physics" / "quick.yml"


def matrix(folder: Path, experiment: str) -> float:
    """Run the playbook; its wall time in seconds."""
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "inventory/simulated", "--limit", "sim-1",
               "playbooks/matrix.yml", "-e", f"experiment={experiment}", "-e", f"simulated_root={folder}/hosts",
               "-e", f"results_root={folder}/results", "-e", f"simulator_physics={PHYSICS}", "-e", "run=new"]
    began = time.monotonic()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "LC_ALL": "C.UTF-8"})
    return time.monotonic() - began


def boots_of(records: list[dict]) -> dict[str, list[dict]]:
    out: dict[str, list[dict]] = {}
    for record in records:
        out.setdefault(record["boot"], []).append(record)
    return out


def ready(base: str) -> bool:
    try:
        with urllib.request.urlopen(f"{base}/health_generate", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def by_hand(folder: Path, records: list[dict]) -> tuple[float, float]:
    """The same starts and measurements without Ansible: (wall time, of it starting and measuring), seconds."""
    root = folder / "hosts" / "sim-1"
    plan = json.loads((folder / "results" / "demo" / "plan.jsonl").read_text().splitlines()[-2])
    began, useful = time.monotonic(), 0.0
    for boot, mine in boots_of(records).items():
        spec = json.loads((root / "boots" / boot / "spec.json").read_text())
        port = spec["ready_port"]
        base = f"http://127.0.0.1:{port}"
        log = folder / f"{boot}.log"
        at = time.monotonic()
        with log.open("wb") as out:
            server = subprocess.Popen(spec["argv"], env=spec["environment"], stdout=out, stderr=out,
                                      start_new_session=True)
        while not ready(base):
            time.sleep(0.25)
        for record in mine:
            workload = plan["workloads"][record["workload"]]
            measurement.from_parameters({
                "root": str(folder / "loop"), "boot": boot, "base_url": base, "measurement": ulid(),
                "workload": workload, "prompts": str(ROOT / workload["prompts"]["file"]), "engine": "simulator",
                "log_path": str(log)})
        useful += time.monotonic() - at
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()
    return time.monotonic() - began, useful


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="plumbline-automation-"))
    try:
        first = matrix(folder, "demo")  # makes the build and places the models
        wall = matrix(folder, "demo")
        store = Results(folder / "results").experiment("demo")
        records = store.measurements(store.runs()[-1])
        boots = boots_of(records)
        loop_wall, loop_useful = by_hand(folder, records)
        n = len(boots)
        print(f"{n} boots of `experiments/demo.yml` on a simulated host; load average {os.getloadavg()[0]:.1f}, "
              f"{os.cpu_count()} CPUs. The first run, which also made the build, took {first:.0f} s.\n")
        print("| | wall time | starting and measuring | the rest, a boot |\n|---|---|---|---|")
        print(f"| `matrix.yml` | {wall:.1f} s | {loop_useful:.1f} s | {(wall - loop_useful) / n:.2f} s |")
        print(f"| a plain loop | {loop_wall:.1f} s | {loop_useful:.1f} s | {(loop_wall - loop_useful) / n:.2f} s |")
        print("\nAim: under 5 s a boot. The rest of `matrix.yml`: observing the state, records, judging, the report.")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
