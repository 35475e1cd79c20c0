"""The hosts that Molecule made, and the project's playbooks on them as a user runs them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ansible_runner
import yaml

ROOT = Path(__file__).parents[2]
# Named, since Molecule would find it in a Git repository only.
SHARED = ROOT / ".config" / "molecule" / "config.yml"
NEEDED = ("mmdebstrap", "systemd-nspawn", "apt-cacher-ng", "ip", "ssh", "dpkg-scanpackages", "gpg")
# On a host of the scenarios.
BUILDS = "/opt/plumbline/builds"
SITE = "venv/lib/python3.11/site-packages"
UNIT = "/etc/systemd/system/sglang.service"
PLANTED = "hf_ThisOneIsPlantedByTheTests"  # molecule/common/group_vars/serving/main.yml


def missing() -> str:
    """Why test hosts cannot be made here, or ""."""
    if os.geteuid() != 0:
        return "it needs root"
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    lacking = [tool for tool in NEEDED if shutil.which(tool, path=path) is None]
    return f"not installed: {', '.join(lacking)}; see molecule/README.md" if lacking else ""


class HostsLab:
    """One Molecule scenario below a folder of the test's own."""

    def __init__(self, scenario: str, folder: Path) -> None:
        self.scenario, self.folder = scenario, folder
        self.ephemeral = folder / "molecule"
        self.ephemeral.mkdir()
        self.results, self.states = folder / "results", folder / "states"
        self.states.mkdir()
        self.counts = folder / "counts.jsonl"
        self.events: list[dict[str, Any]] = []
        own = {
            "PLUMBLINE_COUNTS": str(self.counts),
            "LC_ALL": "C.UTF-8",
            "MOLECULE_GLOB": "molecule/*/molecule.yml",
            "MOLECULE_EPHEMERAL_DIRECTORY": str(self.ephemeral),
            "MOLECULE_PROJECT_DIRECTORY": str(ROOT),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin",
        }
        self.environment = {**{k: v for k, v in os.environ.items() if k != "ANSIBLE_CONFIG"}, **own}

    # Molecule.

    def molecule(self, *argv: str) -> tuple[int, str]:
        """Run Molecule; (its status, what it printed)."""
        log = self.folder / f"molecule-{argv[0]}.log"
        with log.open("w") as f:
            done = subprocess.run(
                ["molecule", "--base-config", str(SHARED), argv[0], "-s", self.scenario, *argv[1:]],
                cwd=ROOT, env=self.environment, stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT,
            )  # fmt: skip
        return done.returncode, log.read_text()

    def destroy(self) -> None:
        """Stop the hosts and forget them, also those that Molecule does not know it has made.

        Not with PLUMBLINE_KEEP_HOSTS set: somebody wants to look at them."""
        if os.environ.get("PLUMBLINE_KEEP_HOSTS"):
            return
        self.molecule("destroy")
        subprocess.run([ROOT / "molecule" / "hostctl", "down", *self.platforms], env=self.environment, check=False)

    @property
    def platforms(self) -> list[str]:
        document = yaml.safe_load((ROOT / "molecule" / self.scenario / "molecule.yml").read_text())
        return [p["name"] for p in document["platforms"]]

    def runs(self, playbook: str) -> list[dict[str, Any]]:
        """What Molecule's runs of a playbook counted, in order."""
        lines = self.counts.read_text().splitlines() if self.counts.exists() else []
        return [run for run in map(json.loads, lines) if run["playbook"] == playbook]

    def verified(self, results: Path) -> dict[str, tuple[int, int]]:
        """``{host: (tests that passed, that failed)}`` of the last verify.yml."""
        found: dict[str, tuple[int, int]] = {}
        for case in ElementTree.parse(results / "verify" / "junit.xml").iter("testcase"):
            host = next((p for p in self.platforms if f"[{p}" in case.get("name", "")), None)
            if host is not None and case.find("skipped") is None:
                passed, failed = found.get(host, (0, 0))
                bad = case.find("failure") is not None or case.find("error") is not None
                found[host] = (passed + (not bad), failed + bad)
        return found

    # The hosts.

    def sh(self, host: str, script: str, stdin: bytes = b"") -> str:
        """What a shell on the host prints; raises if it fails."""
        made = yaml.safe_load((self.ephemeral / "instance_config.yml").read_text())
        entry = next(e for e in made if e["instance"] == host)
        quiet = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR")
        options = [word for option in quiet for word in ("-o", option)]
        there = [f"root@{entry['address']}", f"sh -ec {shlex.quote(script)}"]
        argv = ["ssh", "-i", entry["identity_file"], *options, *there]
        done = subprocess.run(argv, input=stdin, capture_output=True, timeout=120)
        assert done.returncode == 0, f"{script}: {done.stdout.decode()}{done.stderr.decode()}"
        return done.stdout.decode().strip()

    def play(
        self,
        playbook: str,
        limit: str | None = None,
        on_event: Callable[[dict[str, Any]], Any] | None = None,
        cmdline: str = "",
        **variables: Any,
    ) -> int:
        """Run a playbook of the project on the hosts; its status. ``text`` has what it printed."""
        private = self.folder / "runner"
        shutil.rmtree(private, ignore_errors=True)
        private.mkdir()
        self.events = []

        def handle(event: dict[str, Any]) -> bool:
            self.events.append(event)
            if on_event:
                on_event(event)
            return False

        given = {"results_root": str(self.results), "states_folder": str(self.states), **variables}
        done = ansible_runner.run(
            private_data_dir=str(private), playbook=str(ROOT / "playbooks" / f"{playbook}.yml"),
            inventory=str(self.ephemeral / "inventory"), limit=limit, quiet=True, event_handler=handle,
            cmdline=cmdline or None, extravars=given,
            envvars={**{k: self.environment[k] for k in self.environment if k.startswith("MOLECULE_")},
                     "PATH": self.environment["PATH"], "LC_ALL": "C.UTF-8", "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
                     "ANSIBLE_HOST_KEY_CHECKING": "false", "ANSIBLE_CALLBACK_PLUGINS": str(ROOT / "callback_plugins")},
        )  # fmt: skip
        return -signal.SIGKILL if done.rc is None else int(done.rc)

    def text(self) -> str:
        return "\n".join(e.get("stdout", "") for e in self.events)

    def changed(self) -> list[str]:
        """Names of the tasks of the last run that changed something."""
        ok = [e["event_data"] for e in self.events if e["event"] == "runner_on_ok"]
        return [d["task"] for d in ok if d["res"].get("changed")]

    def compare(self, host: str, state: str = "known") -> dict[tuple[str, str], str]:
        """``{(group, item): impact}`` as compare.yml finds it."""
        assert self.play("compare", was=f"state:{state}", now=f"host:{host}") == 0, self.text()
        return self.compared(host, state)

    def compared(self, host: str, state: str = "known") -> dict[tuple[str, str], str]:
        """The same, as whoever compared last has found it."""
        document = json.loads((self.results / "compare" / f"state:{state}--host:{host}.json").read_text())
        return {(d["group"], d["item"]): d["impact"] for d in document["differences"]}
