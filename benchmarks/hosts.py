"""What it costs to run against hosts that need nothing: rebuild, compare and site, as multiples of `ansible -m ping`.

    sudo python benchmarks/hosts.py [--hosts 1,8] [--repeats 3]

The hosts are disposable ones with systemd and sshd (molecule/hostctl), converged once, over ssh. Every figure is of one
run on one machine, whose processors controller and hosts share. "Stock" is Ansible without this project's ansible.cfg:
no pipelining, five forks.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
HOSTCTL = ROOT / "molecule" / "hostctl"
COMMON = ROOT / "molecule" / "common"
BIN = Path(sys.executable).parent


class Bench:
    """Hosts of the benchmark's own, and Ansible on them with the project's settings or with stock ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inventory = folder / "inventory"
        self.inventory.mkdir()
        (self.inventory / "group_vars").symlink_to(COMMON / "group_vars")
        self.names: list[str] = []
        own = ("library", "module_utils", "filter_plugins", "action_plugins")
        paths = {f"ANSIBLE_{name.upper()}": str(ROOT / name) for name in own}
        paths["ANSIBLE_ROLES_PATH"] = str(ROOT / "roles")
        base = {
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}:/usr/sbin:/sbin",
            "LC_ALL": "C.UTF-8",
            "MOLECULE_PROJECT_DIRECTORY": str(ROOT),
            "MOLECULE_EPHEMERAL_DIRECTORY": str(folder),
            "ANSIBLE_HOST_KEY_CHECKING": "false",
        }
        (folder / "stock.cfg").write_text("[defaults]\n")
        self.settings = {
            "ours": {**base, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
            "stock": {**base, "ANSIBLE_CONFIG": str(folder / "stock.cfg"), **paths},
        }

    def start(self, count: int) -> None:
        """Start the hosts, make the repository that they install from, and have them as the inventory says."""
        self.names = [f"bench-{i}" for i in range(1, count + 1)]
        up = subprocess.run([HOSTCTL, "up", *self.names], check=True, stdout=subprocess.PIPE, text=True,
                            env=self.settings["ours"])  # fmt: skip
        key = Path(os.environ.get("HOSTS_DIR") or "/var/tmp/testhosts") / "id_ed25519"
        common = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
        # One lock for all of them: nothing that the simulator is told may hold the host's name.
        physics = {"PLUMBLINE_SIMULATOR_PHYSICS": "/opt/plumbline/simulator/physics.json",
                   "PLUMBLINE_SIMULATOR_CLOCK": "/var/lib/sglang/clock.json", "PLUMBLINE_SIMULATOR_HOST": "bench"}
        hosts = {name: {"ansible_host": address, "sglang_server_environment": physics}
                 for name, address, *_ in map(str.split, up.stdout.splitlines())}
        connection = {
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(key),
            "ansible_ssh_common_args": common,
            "ansible_python_interpreter": "/usr/bin/python3",
        }
        members = {"hosts": dict.fromkeys(hosts)}
        document = {"all": {"hosts": hosts, "vars": connection, "children": {"serving": members, "bare": members}}}
        (self.inventory / "hosts.yml").write_text(yaml.safe_dump(document))
        self.playbook(COMMON / "prepare.yml")
        self.playbook(ROOT / "playbooks" / "site.yml", {"verify": False})
        self.playbook(ROOT / "playbooks" / "capture.yml", {"state": "bench"}, self.names[0])

    def stop(self) -> None:
        if self.names:
            subprocess.run([HOSTCTL, "down", *self.names], check=False, env=self.settings["ours"])

    def ansible(self, argv: list[str], settings: str = "ours") -> tuple[float, str]:
        """Seconds that a command takes, and what it prints; raises if it fails."""
        started = time.monotonic()
        done = subprocess.run(argv, cwd=ROOT, env=self.settings[settings], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(argv)}: {done.stdout[-3000:]}{done.stderr[-2000:]}")
        return time.monotonic() - started, done.stdout

    def playbook(self, path: Path, variables: dict | None = None, limit: str = "",
                 settings: str = "ours") -> tuple[float, str]:
        given = {
            "results_root": str(self.folder / "results"),
            "states_folder": str(self.folder / "states"),
            **(variables or {}),
        }
        argv = [str(BIN / "ansible-playbook"), "-i", str(self.inventory), str(path), "-e", json.dumps(given)]
        return self.ansible([*argv, *(["-l", limit] if limit else [])], settings)

    def nothing_to_do(self, limit: str) -> None:
        """Raises if a rebuild still changes something: then it is not what this measures."""
        _, text = self.playbook(ROOT / "playbooks" / "rebuild.yml", {"state": "bench", "prove": False}, limit)
        if any("changed=" in line and "changed=0" not in line for line in text.splitlines()):
            raise SystemExit(f"a rebuild has something to do: {text[-3000:]}")

    def ping(self, limit: str, settings: str) -> float:
        return self.ansible([str(BIN / "ansible"), "-i", str(self.inventory), limit, "-m", "ping"], settings)[0]

    def actions(self, limit: str, settings: str) -> dict[str, float]:
        """One round of everything, in seconds."""
        books = ROOT / "playbooks"
        out = {"ping": self.ping(limit, settings)}
        now = f"host:{'serving' if ':' in limit else limit}"
        asked = {"was": "state:bench", "now": now}
        out["compare"] = self.playbook(books / "compare.yml", asked, "", settings)[0]
        out["rebuild"] = self.playbook(books / "rebuild.yml", {"state": "bench", "prove": False}, limit, settings)[0]
        out["site"] = self.playbook(books / "site.yml", {"verify": False}, limit, settings)[0]
        return out


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--hosts", default="1,8")
    options.add_argument("--repeats", type=int, default=3)
    given = options.parse_args()
    counts = [int(n) for n in given.hosts.split(",")]
    if os.geteuid() != 0:
        raise SystemExit("it makes hosts, which needs root")
    folder = Path(tempfile.mkdtemp(prefix="plumbline-bench-"))
    bench = Bench(folder)
    try:
        bench.start(max(counts))
        found: dict[tuple[int, str], dict[str, float]] = {}
        for count in counts:
            limit = ":".join(bench.names[:count])
            bench.nothing_to_do(limit)
            for settings in ("ours", "stock"):
                bench.ping(limit, settings)  # connections are open, caches warm
                rounds = [bench.actions(limit, settings) for _ in range(given.repeats)]
                found[count, settings] = {k: statistics.median(r[k] for r in rounds) for k in rounds[0]}
    finally:
        bench.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(table(found, counts))


def table(found: dict[tuple[int, str], dict[str, float]], counts: list[int]) -> str:
    """Each action in pings of the same hosts with the project's settings."""
    columns = [(n, s) for n in counts for s in ("ours", "stock")]
    names = {"ping": "`ansible -m ping`", "compare": "`compare.yml`", "rebuild": "`rebuild.yml`, nothing to do",
             "site": "`site.yml`, nothing to do"}  # fmt: skip
    head = [f"{n} host{'s' if n > 1 else ''}{', stock settings' if s == 'stock' else ''}" for n, s in columns]
    lines = [f"| | {' | '.join(head)} |", f"|---|{'---|' * len(columns)}"]
    for key, name in names.items():
        cells = [f"{found[c][key] / found[c[0], 'ours']['ping']:.1f} ({found[c][key]:.1f} s)" for c in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines.append("")
    lines.append("In pings of the same hosts with this project's settings, medians; `prove=false`, `verify=false`.")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
