"""Runs the project's playbooks as a user would, through ansible-runner, on simulated hosts of the test's own."""
from __future__ import annotations

import os
import shutil
import signal
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ansible_runner
import yaml

ROOT = Path(__file__).parents[2]
QUIET = {"boot_sd": 0.003, "request_sd": 0.002}
QUICK = ROOT / "tests" / "scenario" / "physics" / "quick.yml"


class Lab:
    """Simulated hosts below a folder of the test's own, and the results of what is run on them."""

    def __init__(self, folder: Path, hosts: str = "sim-1", physics: Path = QUICK, first_port: int = 0) -> None:
        self.folder, self.hosts, self.physics = folder, hosts, physics
        self.results = folder / "results"
        # Test files run side by side, each with a range of its own below those that the kernel gives to clients.
        self.first_port = first_port or 20000 + zlib.crc32(str(folder).encode()) % 1000 * 10
        self.events: list[dict] = []

    def run(self, playbook: str, on_event: Callable[[dict], Any] | None = None, limit: str | None = "",
            cmdline: str | None = None, **variables: Any) -> ansible_runner.Runner:
        """Run a playbook on the lab's hosts; ``variables`` are extra variables. Returns ansible-runner's Runner.

        ``limit``: other hosts than the lab's; None for a playbook that touches no host.
        """
        private = self.folder / "runner"
        shutil.rmtree(private, ignore_errors=True)
        private.mkdir(parents=True)
        self.events = []

        def handle(event: dict) -> bool:
            self.events.append(event)
            if on_event:
                on_event(event)
            return False  # events are kept here, not as files

        return ansible_runner.run(
            private_data_dir=str(private), playbook=str(ROOT / "playbooks" / f"{playbook}.yml"),
            inventory=str(ROOT / "inventory" / "simulated"), limit=self.hosts if limit == "" else limit,
            quiet=True, event_handler=handle, cmdline=cmdline,
            envvars={"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                     "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "LC_ALL": "C.UTF-8",
                     "ANSIBLE_CALLBACK_PLUGINS": str(ROOT / "callback_plugins")},
            extravars={"simulated_root": str(self.folder / "hosts"), "results_root": str(self.results),
                       "simulator_physics": str(self.physics), "simulated_first_port": self.first_port, **variables})

    def text(self) -> str:
        """Everything that the last run printed."""
        return "\n".join(e.get("stdout", "") for e in self.events)


def experiment(name: str) -> str:
    """The path of an experiment of the tests, as ``-e experiment=`` takes it."""
    return str(ROOT / "tests" / "scenario" / "experiments" / f"{name}.yml")


def physics(folder: Path, source: str, **changes: Any) -> Path:
    """A physics file of the simulator with loads that pass ten times as fast; step times stay true.

    Boots scatter half as much as in the story, so that the fewest boots decide. ``source``: a name in
    ``simulator/physics``; ``changes``: top-level keys that are different.
    """
    document = yaml.safe_load((ROOT / "simulator" / "physics" / f"{source}.yml").read_text())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{source}-{len(list(folder.iterdir()))}.yml"
    path.write_text(yaml.safe_dump({**document, "time_scale": 600, "noise": QUIET, **changes}))
    return path


def short_workload(requests: int = 8, output_tokens: int = 64) -> dict[str, dict]:
    """``plumbline_workloads_lab`` with a one-stream workload that a few seconds are enough for."""
    book = yaml.safe_load((ROOT / "group_vars" / "all" / "workloads.yml").read_text())["plumbline_workloads"]
    own = {**book["one-stream"], "requests": requests, "output_tokens": output_tokens, "warmup_requests": 1}
    return {"one-stream": {**own, "prompts": {**own["prompts"], "take": requests + 1}}}


def server_args(ranks: int) -> dict[str, Any]:
    """``sglang_server_args`` of the simulated hosts with another number of ranks: each rank is a process to pay for."""
    path = ROOT / "inventory" / "simulated" / "group_vars" / "serving" / "main.yml"
    return {**yaml.safe_load(path.read_text())["sglang_server_args"], "tp-size": ranks}


def kill_controller(event: dict) -> None:
    """SIGKILL to the ansible-playbook process that an event comes from."""
    os.kill(event["pid"], signal.SIGKILL)
